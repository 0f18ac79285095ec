//! A device's side: its file system, mounted in this process for the length of a command.

use crate::failure::{Failure, Status};
use crate::location::Location;
use crate::side::{Attributes, OpenFile, Side};
use nvmed_fs::{
    Credentials, File, FileSystem, FileType, Follow, FsError, Node, Object, OpenFlags, Stat, Time,
};
use nvmed_stack::{Caller, Config, DeviceSpec, Mount, StackError, Surroundings};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// A mounted device and who uses it.
pub struct Volume {
    name: String,
    spec: DeviceSpec,
    mount: Mount,
    who: Caller,
}

/// What a command does with a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

/// The volumes of one command line, each mounted once.
#[derive(Default)]
pub struct Volumes(Vec<Volume>);

impl Volumes {
    /// The volume of `location`, mounted if it is not yet. Of several locations, those to be written come first.
    ///
    /// # Errors
    /// It cannot be mounted; it is to be written, and is read-only.
    pub fn mount(&mut self, location: &Location, how: Use) -> Result<(), Failure> {
        let Location::Device { name, spec, .. } = location else { return Ok(()) };
        if self.of(location).is_some() {
            return Ok(());
        }
        let volume = Volume::mount(name, spec)?;
        match volume.mount.trouble().map(|trouble| trouble.notice(name)) {
            None => {}
            Some(notice) if how == Use::Read => eprintln!("nvmed: {notice}"),
            Some(notice) => {
                volume.unmount()?;
                return Err(Failure::new(Status::Failed, notice));
            }
        }
        self.0.push(volume);
        Ok(())
    }

    /// The volume of `location`, mounted before.
    pub fn of(&self, location: &Location) -> Option<&Volume> {
        self.0.iter().find(|volume| volume.is_at(location))
    }

    /// Mounts the device of `location` and answers its volume.
    ///
    /// # Errors
    /// As [`Volumes::mount`]; the location is on the host.
    pub fn at(&mut self, location: &Location, how: Use) -> Result<&Volume, Failure> {
        self.mount(location, how)?;
        self.of(location)
            .ok_or_else(|| Failure::usage(format!("{location}: not on a device; write DEVICE:/path")))
    }

    /// Writes everything back and closes the devices.
    ///
    /// # Errors
    /// The first thing that could not be written; the other devices are closed all the same.
    pub fn unmount(self) -> Result<(), Failure> {
        let ends: Vec<_> = self.0.iter().map(Volume::unmount).collect();
        ends.into_iter().collect()
    }
}

/// Says which lost copies of metadata a mount has written again: a line each.
pub fn tell_mended(name: &str, files: &FileSystem) {
    for finding in files.mended() {
        eprintln!("nvmed: {name}: {finding}; it was written again");
    }
}

impl Volume {
    /// Mounts a device.
    ///
    /// # Errors
    /// The device cannot be opened, or holds no file system of ours.
    pub fn mount(name: &str, spec: &DeviceSpec) -> Result<Self, Failure> {
        let mut config = Config::new(PathBuf::from("/"), spec.clone());
        // A command ends soon, and writes back then.
        config.writeback_seconds = 0;
        config.cache_huge = false;
        let mount = nvmed_stack::mount(&config, Surroundings::default()).map_err(|error| match error {
            StackError::Fs { error: FsError::Layout(_), .. } if !spec.is_lasting() => {
                let why = "begins and ends with this command, and holds no files";
                let what = "give it to `nvmed run`, `mount` or `serve`, which make a file system on it";
                Failure::new(Status::Device, format!("{name}: this medium {why}; {what}"))
            }
            error => error.into(),
        })?;
        tell_mended(name, &mount);
        Ok(Self { name: name.to_owned(), spec: spec.clone(), mount, who: Caller::process() })
    }

    /// Writes everything back and closes the device.
    ///
    /// # Errors
    /// What could not be written.
    pub fn unmount(&self) -> Result<(), Failure> {
        self.mount.unmount().map_err(|error| Failure::device(&self.name, &error))
    }

    /// Whether `location` is on this device.
    pub fn is_at(&self, location: &Location) -> bool {
        matches!(location, Location::Device { spec, .. } if **spec == self.spec)
    }

    /// The file system.
    pub fn files(&self) -> &FileSystem {
        &self.mount
    }

    /// Its root, from which every path of the command line starts.
    pub fn root(&self) -> Node {
        self.mount.root()
    }

    /// The caller.
    pub fn who(&self) -> Credentials<'_> {
        self.who.credentials()
    }

    /// `mode` less the caller's umask.
    pub fn masked(&self, mode: u32) -> u32 {
        mode & !self.who.umask()
    }

    /// What is at `location`.
    ///
    /// # Errors
    /// Nothing is, or it may not be seen.
    pub fn stat(&self, location: &Location, follow: Follow) -> Result<Stat, Failure> {
        self.files()
            .stat(&self.root(), within(location), follow, &self.who())
            .map_err(|error| Failure::device(location, &error))
    }

    /// Opens what is at `location`.
    ///
    /// # Errors
    /// It does not exist, or may not be opened so.
    pub fn open_file(&self, location: &Location, flags: OpenFlags, mode: u32) -> Result<Arc<File>, Failure> {
        self.files()
            .open(&self.root(), within(location), flags, mode, &self.who())
            .map_err(|error| Failure::device(location, &error))
    }

    /// The names in a directory and what they are, without `.` and `..`, sorted.
    ///
    /// # Errors
    /// It is no directory, or may not be read.
    pub fn entries(&self, location: &Location) -> Result<Vec<(Vec<u8>, FileType)>, Failure> {
        self.entries_of(&self.root(), within(location), location)
    }

    /// The same of the directory that `path` leads to from `at`; `location` is what it is called in messages.
    ///
    /// # Errors
    /// As [`Volume::entries`].
    pub fn entries_of(
        &self,
        at: &Node,
        path: &[u8],
        location: &Location,
    ) -> Result<Vec<(Vec<u8>, FileType)>, Failure> {
        let directory = self
            .files()
            .open(at, path, OpenFlags::READ.with(OpenFlags::DIRECTORY), 0, &self.who())
            .map_err(|error| Failure::device(location, &error))?;
        let mut entries = Vec::new();
        let listed = directory.read_dir(&mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push((entry.name.to_vec(), entry.kind));
            }
            ControlFlow::Continue(())
        });
        listed.map_err(|error| Failure::device(location, &error))?;
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(entries)
    }
}

/// The path from the root directory's inode, which is where every path of the command line starts.
pub fn within(location: &Location) -> &[u8] {
    let path = location.path();
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    if start == path.len() { b"." } else { &path[start..] }
}

struct VolumeFile<'a> {
    file: Arc<File>,
    location: &'a Location,
}

/// A device's files from a directory on.
pub struct Tree<'a> {
    volume: &'a Volume,
    at: Node,
}

impl<'a> Tree<'a> {
    /// From the root on.
    pub fn new(volume: &'a Volume) -> Self {
        Self { volume, at: volume.root() }
    }

    fn open_file(&self, location: &Location, flags: OpenFlags, mode: u32) -> Result<Arc<File>, Failure> {
        self.volume
            .files()
            .open(&self.at, within(location), flags, mode, &self.volume.who())
            .map_err(|error| Failure::device(location, &error))
    }
}

impl<'a> Side<'a> for Tree<'a> {
    fn enter(&self, location: &Location) -> Result<Rc<dyn Side<'a> + 'a>, Failure> {
        let volume = self.volume;
        let at = volume.files().lookup(&self.at, within(location), Follow::Yes, &volume.who());
        let at = at.map_err(|error| Failure::device(location, &error))?;
        Ok(Rc::new(Self { volume, at }))
    }

    fn look(&self, location: &Location, follow: bool) -> Result<Option<Attributes>, Failure> {
        let follow = if follow { Follow::Yes } else { Follow::No };
        match self.volume.files().stat(&self.at, within(location), follow, &self.volume.who()) {
            Ok(stat) => Ok(Some(attributes(&stat))),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(Failure::device(location, &error)),
        }
    }

    fn names(&self, location: &Location) -> Result<Vec<Vec<u8>>, Failure> {
        let entries = self.volume.entries_of(&self.at, within(location), location)?;
        Ok(entries.into_iter().map(|(name, _)| name).collect())
    }

    fn target(&self, location: &Location) -> Result<Vec<u8>, Failure> {
        self.volume
            .files()
            .readlink(Object::At(&self.at, within(location), Follow::No), &self.volume.who())
            .map_err(|error| Failure::device(location, &error))
    }

    fn open<'d>(&'d self, location: &'d Location) -> Result<Box<dyn OpenFile + 'd>, Failure> {
        let file = self.open_file(location, OpenFlags::READ, 0)?;
        Ok(Box::new(VolumeFile { file, location }))
    }

    fn create<'d>(&'d self, location: &'d Location, mode: u32) -> Result<Box<dyn OpenFile + 'd>, Failure> {
        let flags = OpenFlags::WRITE.with(OpenFlags::CREATE).with(OpenFlags::TRUNCATE);
        let file = self.open_file(location, flags, self.volume.masked(mode))?;
        Ok(Box::new(VolumeFile { file, location }))
    }

    fn make_directory(&self, location: &Location, mode: u32) -> Result<(), Failure> {
        self.volume
            .files()
            .mkdir(&self.at, within(location), self.volume.masked(mode), &self.volume.who())
            .map_err(|error| Failure::device(location, &error))
    }

    fn make_link(&self, location: &Location, target: &[u8]) -> Result<(), Failure> {
        self.volume
            .files()
            .symlink(target, &self.at, within(location), &self.volume.who())
            .map_err(|error| Failure::device(location, &error))
    }

    fn keep(&self, location: &Location, attributes: &Attributes) -> Result<(), Failure> {
        let (files, root, who) = (self.volume.files(), &self.at, self.volume.who());
        let fail = |error: FsError| Failure::device(location, &error);
        match files.chown(
            Object::At(root, within(location), Follow::No),
            Some(attributes.uid),
            Some(attributes.gid),
            &who,
        ) {
            Ok(()) | Err(FsError::NotPermitted) => {}
            Err(error) => return Err(fail(error)),
        }
        if attributes.kind != crate::side::EntryKind::Symlink {
            files
                .chmod(Object::At(root, within(location), Follow::Yes), attributes.mode, &who)
                .map_err(fail)?;
        }
        let times = [Time::At(attributes.atime_ns), Time::At(attributes.mtime_ns)];
        files.utimens(Object::At(root, within(location), Follow::No), times, &who).map_err(fail)
    }
}

fn attributes(stat: &Stat) -> Attributes {
    Attributes {
        kind: match stat.kind() {
            FileType::File => crate::side::EntryKind::File,
            FileType::Directory => crate::side::EntryKind::Directory,
            FileType::Symlink => crate::side::EntryKind::Symlink,
            _ => crate::side::EntryKind::Other,
        },
        mode: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        identity: (stat.dev, stat.ino),
        atime_ns: stat.atime_ns,
        mtime_ns: stat.mtime_ns,
    }
}

impl OpenFile for VolumeFile<'_> {
    fn read(&mut self, into: &mut [u8], offset: u64) -> Result<usize, Failure> {
        self.file.pread(into, offset).map_err(|error| Failure::device(self.location, &error))
    }

    fn write(&mut self, data: &[u8], offset: u64) -> Result<(), Failure> {
        let mut done = 0;
        while done < data.len() {
            let more = self.file.pwrite(&data[done..], offset + done as u64);
            done += more.map_err(|error| Failure::device(self.location, &error))?;
        }
        Ok(())
    }

    fn resize(&mut self, bytes: u64) -> Result<(), Failure> {
        self.file.truncate(bytes).map_err(|error| Failure::device(self.location, &error))
    }
}
