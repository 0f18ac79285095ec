//! A file that is written: what was under its name stays there until the new one is whole.

use rustix::fs::{AtFlags, CWD, OFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Symbolic links that are followed, as by the kernel.
const LINKS_MAX: usize = 40;
/// Names for the time being that are tried: others are of processes that were killed, and had our number.
const NAMES_TRIED: u32 = 1000;

/// A file that is written.
///
/// Until [`OutputFile::finish`] its bytes are in a file without a name (where the file system has none, in
/// `.nvmed-PROCESS-NUMBER.part` in the same directory), and what was under the name is still there; whoever is killed
/// leaves nothing. Symbolic links are followed first, so that a link stays one, and a file that is replaced keeps its
/// owner, as far as we may give it away, and its mode. What is no plain file (a pipe, a terminal, `/dev/null`) and a
/// descriptor that is open already (`/dev/stdout`) is written directly.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    place: Place,
}

/// Where the bytes of a file are until it is whole.
#[derive(Debug)]
enum Place {
    /// Where they belong.
    There,
    /// In a file without a name.
    Unnamed { target: PathBuf },
    /// Under a name for the time being.
    Named { part: PathBuf, target: PathBuf },
}

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    /// A descriptor that this process has open.
    Descriptor(i32),
    /// One of another process.
    Foreign(PathBuf),
    /// Something that is no plain file.
    Special(PathBuf),
    /// A plain file, or nothing yet.
    Plain(PathBuf),
}

/// Follows symbolic links, but for those of `/proc/PROCESS/fd`: what they lead to is not a name, but a description.
fn target(path: &Path) -> io::Result<Target> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = parent.canonicalize()?;
        let here = parent.join(name);
        let found = match here.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Target::Plain(here)),
            found => found?.file_type(),
        };
        if parent.starts_with("/proc") && parent.ends_with("fd") && found.is_symlink() {
            let ours = Path::new("/proc").join(std::process::id().to_string());
            let number =
                name.to_str().and_then(|name| name.parse().ok()).filter(|_| parent.starts_with(ours));
            return Ok(number.map_or(Target::Foreign(here), Target::Descriptor));
        }
        if found.is_symlink() {
            path = parent.join(here.read_link()?);
            continue;
        }
        return match () {
            () if found.is_file() => Ok(Target::Plain(here)),
            () if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            () if found.is_block_device() => {
                Err(io::Error::other("it is a block device, whose data would be lost; name a file"))
            }
            () => Ok(Target::Special(here)),
        };
    }
    Err(io::Error::from(rustix::io::Errno::LOOP))
}

/// What a descriptor of ours writes to, at the place where it is.
fn described(number: i32) -> io::Result<File> {
    match number {
        1 => Ok(io::stdout().as_fd().try_clone_to_owned()?.into()),
        2 => Ok(io::stderr().as_fd().try_clone_to_owned()?.into()),
        _ => appended(Path::new(&format!("/proc/self/fd/{number}"))),
    }
}

/// What somebody else has open: what was written through it stays.
fn appended(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

/// The name that the kernel has for a file that is open.
fn descriptor_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn directory_of(target: &Path) -> &Path {
    target.parent().unwrap_or(Path::new("/"))
}

/// Makes something under a name for the time being beside a file.
fn beside<T>(target: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(T, PathBuf)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..NAMES_TRIED {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let part = directory_of(target).join(format!(".nvmed-{}-{number}.part", std::process::id()));
        match make(&part) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|made| (made, part)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

impl OutputFile {
    /// Begins a file.
    ///
    /// # Errors
    /// The host does not let us write there, or it is a directory or a block device.
    pub fn create(path: &Path) -> io::Result<Self> {
        let there = |file| Self { file, place: Place::There };
        match target(path)? {
            Target::Descriptor(number) => described(number).map(there),
            Target::Foreign(path) => appended(&path).map(there),
            Target::Special(path) => OpenOptions::new().write(true).open(path).map(there),
            Target::Plain(target) => Self::instead(target),
        }
    }

    /// Begins a file that will take the place of a plain one.
    fn instead(target: PathBuf) -> io::Result<Self> {
        // Who may not write to a file may not replace it, either.
        let replaced = match OpenOptions::new().write(true).open(&target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found?.metadata()?),
        };
        let mut options = OpenOptions::new();
        // A format may look at what it has written.
        options.read(true).write(true);
        let unnamed = options.clone().custom_flags(OFlags::TMPFILE.bits() as i32).open(directory_of(&target));
        let output = match unnamed {
            // Without /proc it could not be given a name.
            Ok(file) if descriptor_of(&file).symlink_metadata().is_ok() => {
                Self { file, place: Place::Unnamed { target } }
            }
            _ => {
                let (file, part) = beside(&target, |part| options.clone().create_new(true).open(part))?;
                Self { file, place: Place::Named { part, target } }
            }
        };
        if let Some(replaced) = replaced {
            // To give a file away is root's; the mode comes after it, since this takes bits of it away.
            let _ = std::os::unix::fs::fchown(&output.file, Some(replaced.uid()), Some(replaced.gid()));
            output.file.set_permissions(std::fs::Permissions::from_mode(replaced.mode() & 0o777))?;
        }
        Ok(output)
    }

    /// A file that is whole at once.
    ///
    /// # Errors
    /// The host does not let us write it: what was there before is still there.
    pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut output = Self::create(path)?;
        output.file.write_all(bytes)?;
        output.finish()
    }

    /// Where its bytes are written: at the same place as through every other of these.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn writer(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Puts the file in its place, when it is on its medium.
    ///
    /// # Errors
    /// The host does not take it: nothing is left then.
    pub fn finish(mut self) -> io::Result<()> {
        let target = match &self.place {
            Place::There => return Ok(()),
            Place::Unnamed { target } | Place::Named { target, .. } => target.clone(),
        };
        self.file.sync_all()?;
        if let Place::Unnamed { .. } = self.place {
            let descriptor = descriptor_of(&self.file);
            let link = |part: &Path| {
                rustix::fs::linkat(CWD, &descriptor, CWD, part, AtFlags::SYMLINK_FOLLOW)
                    .map_err(io::Error::from)
            };
            let ((), part) = beside(&target, link)?;
            self.place = Place::Named { part, target: target.clone() };
        }
        if let Place::Named { part, .. } = &self.place {
            std::fs::rename(part, &target)?;
        }
        self.place = Place::There;
        Ok(())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Place::Named { part, .. } = &self.place {
            // Nobody can be told.
            let _ = std::fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_followed_to_what_it_is() {
        let directory = std::env::temp_dir().join(format!("nvmed-output-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(directory.join("d")).unwrap();
        let directory = directory.canonicalize().unwrap();
        let at = |name: &str| directory.join(name);
        std::fs::write(at("plain"), "").unwrap();
        for (link, to) in
            [("a", "plain"), ("d/b", "../a"), ("none", "new"), ("l", "l"), ("out", "/dev/stdout")]
        {
            std::os::unix::fs::symlink(to, at(link)).unwrap();
        }
        assert_eq!(target(&at("d/b")).unwrap(), Target::Plain(at("plain")));
        assert_eq!(target(&at("none")).unwrap(), Target::Plain(at("new")));
        assert_eq!(target(&at("out")).unwrap(), Target::Descriptor(1));
        assert_eq!(target(Path::new("/dev/null")).unwrap(), Target::Special("/dev/null".into()));
        let error = target(&at("l")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::LOOP.raw_os_error()));
        assert_eq!(target(&at("d")).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(target(&at("e/f")).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
