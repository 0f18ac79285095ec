//! A mounted file system and its path calls.

use crate::file::OpenFile;
use crate::path::{follow, split, within};
use crate::policy::Policy;
use crate::ticket::{Ticket, Work};
use crate::worker::Workers;
use nvmed_block::{Buffer, Disk, DiskOptions};
use nvmed_fs::{
    Credentials, FileSystem, Follow, FsError, Node, Object, OpenFlags, RenameFlags, SetXattr, Stat, StatFs,
    Time,
};
use nvmed_io::Source;
use nvmed_io::caller::{self, Urgency};
use nvmed_stack::{Caller, Config, Mount, StackError, Surroundings};
use std::sync::Arc;

/// A file system that this process has mounted. Paths are from its root, with or without a slash in front.
pub struct Files {
    mount: Mount,
    /// For buffers only.
    disk: Arc<Disk>,
    pub(crate) workers: Workers,
    who: Caller,
}

impl core::fmt::Debug for Files {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Files").field("superblock", &self.mount.superblock()).finish_non_exhaustive()
    }
}

impl Files {
    /// Mounts the device that `config` names; `wrap_dir` plays no part.
    ///
    /// # Errors
    /// [`StackError`] naming the device and what is wrong with it.
    pub fn mount(config: &Config) -> Result<Arc<Self>, StackError> {
        let mount = nvmed_stack::mount(config, Surroundings::default())?;
        let disk = Disk::new(Arc::clone(mount.device()), DiskOptions::default());
        Ok(Arc::new(Self { mount, disk, workers: Workers::new(), who: Caller::process() }))
    }

    /// Waits for asynchronous calls, writes everything back, and lets go of the device. Later calls that change
    /// something fail.
    ///
    /// # Errors
    /// What could not be written.
    pub fn unmount(&self) -> Result<(), FsError> {
        self.workers.stop();
        self.mount.unmount()
    }

    /// The file system, for calls that are not here.
    #[must_use]
    pub fn system(&self) -> &FileSystem {
        &self.mount
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<nvmed_io::Device> {
        self.mount.device()
    }

    /// The process's rights.
    #[must_use]
    pub fn who(&self) -> Credentials<'_> {
        self.who.credentials()
    }

    /// Memory that the device knows, for direct calls without a copy. What it holds is anything.
    ///
    /// # Errors
    /// [`FsError::NoMemory`]; [`FsError::Invalid`] for no bytes, or more than 1 GiB.
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, FsError> {
        self.disk.buffer(bytes).map_err(|error| match error.errno() {
            rustix::io::Errno::INVAL => FsError::Invalid,
            _ => FsError::NoMemory,
        })
    }

    /// Does `work` with its calls, the asynchronous ones that it begins among them, passing others on the way to the
    /// device.
    pub fn urgently<T>(&self, work: impl FnOnce() -> T) -> T {
        self.device().expect_urgent(Source::Told);
        caller::with(Urgency::Urgent, work)
    }

    /// Has a thread of the mount make `call`, as urgently as who asks for it; calls with the same `order` are made one
    /// after the other.
    pub fn run(&self, order: u64, call: impl FnOnce() -> Result<usize, FsError> + Send + 'static) -> Ticket {
        let urgency = caller::now();
        let call = move || caller::with(urgency, call);
        Ticket { work: Work::Job(self.workers.run(order, Box::new(call))), buffer: None }
    }

    /// Calls with the root and a path below it, as often as absolute symbolic links ask for.
    fn at<T>(
        &self,
        path: &[u8],
        mut call: impl FnMut(&Node, &[u8]) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let root = self.mount.root();
        follow(path, |path| call(&root, path))
    }

    /// The directory of a path, and its last name: for calls with two paths.
    fn parent<'a>(&self, path: &'a [u8]) -> Result<(Node, &'a [u8]), FsError> {
        if path.is_empty() {
            return Err(FsError::NotFound);
        }
        let (directory, name) = split(path);
        let node =
            self.at(directory, |root, path| self.mount.lookup(root, path, Follow::Yes, &self.who()))?;
        Ok((node, if name.first() == Some(&b'/') { within(name) } else { name }))
    }

    /// Opens, and with `O_CREAT` makes, a file; its data moves as `policy` says. `mode` is less the process's umask.
    ///
    /// # Errors
    /// Those of open(2); the device's, when it has no queue for the policy.
    pub fn open(
        self: &Arc<Self>,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        policy: &Policy,
    ) -> Result<Arc<OpenFile>, FsError> {
        // Alignment is the policy's business: the flag would ask it of the memory too.
        let plain = OpenFlags(flags.0 & !OpenFlags::DIRECT.0);
        let policy = Policy { direct: policy.direct || flags.has(OpenFlags::DIRECT), ..*policy };
        let mode = mode & !self.who.umask();
        let file = self.at(path, |root, path| self.mount.open(root, path, plain, mode, &self.who()))?;
        OpenFile::new(Arc::clone(self), file, &policy).map(Arc::new)
    }

    /// The status of what a path names.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn stat(&self, path: &[u8], follow: Follow) -> Result<Stat, FsError> {
        self.at(path, |root, path| self.mount.stat(root, path, follow, &self.who()))
    }

    /// The status of the file system.
    #[must_use]
    pub fn statfs(&self) -> StatFs {
        self.mount.statfs()
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<(), FsError> {
        let mode = mode & !self.who.umask();
        self.at(path, |root, path| self.mount.mkdir(root, path, mode, &self.who()))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of rmdir(2).
    pub fn rmdir(&self, path: &[u8]) -> Result<(), FsError> {
        self.at(path, |root, path| self.mount.rmdir(root, path, &self.who()))
    }

    /// Removes a name of a file.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn unlink(&self, path: &[u8]) -> Result<(), FsError> {
        self.at(path, |root, path| self.mount.unlink(root, path, &self.who()))
    }

    /// Renames, atomically.
    ///
    /// # Errors
    /// Those of renameat2(2).
    pub fn rename(&self, old: &[u8], new: &[u8], flags: RenameFlags) -> Result<(), FsError> {
        let ((from, old), (to, new)) = (self.parent(old)?, self.parent(new)?);
        self.mount.rename(&from, old, &to, new, flags, &self.who())
    }

    /// Gives a file a second name.
    ///
    /// # Errors
    /// Those of link(2).
    pub fn link(&self, old: &[u8], new: &[u8]) -> Result<(), FsError> {
        let ((from, old), (to, new)) = (self.parent(old)?, self.parent(new)?);
        self.mount.link(Object::At(&from, old, Follow::No), &to, new, &self.who())
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// Those of symlink(2).
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<(), FsError> {
        self.at(path, |root, path| self.mount.symlink(target, root, path, &self.who()))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Those of readlink(2).
    pub fn readlink(&self, path: &[u8]) -> Result<Vec<u8>, FsError> {
        self.at(path, |root, path| self.mount.readlink(Object::At(root, path, Follow::No), &self.who()))
    }

    /// Changes mode bits.
    ///
    /// # Errors
    /// Those of chmod(2).
    pub fn chmod(&self, path: &[u8], mode: u32) -> Result<(), FsError> {
        self.at(path, |root, path| self.mount.chmod(Object::At(root, path, Follow::Yes), mode, &self.who()))
    }

    /// Changes owner, group or both.
    ///
    /// # Errors
    /// Those of chown(2).
    pub fn chown(
        &self,
        path: &[u8],
        uid: Option<u32>,
        gid: Option<u32>,
        follow: Follow,
    ) -> Result<(), FsError> {
        self.at(path, |root, path| self.mount.chown(Object::At(root, path, follow), uid, gid, &self.who()))
    }

    /// Changes the times of access and of change.
    ///
    /// # Errors
    /// Those of utimensat(2).
    pub fn utimens(&self, path: &[u8], times: [Time; 2], follow: Follow) -> Result<(), FsError> {
        self.at(path, |root, path| self.mount.utimens(Object::At(root, path, follow), times, &self.who()))
    }

    /// Sets the size of a file.
    ///
    /// # Errors
    /// Those of truncate(2).
    pub fn truncate(&self, path: &[u8], bytes: u64) -> Result<(), FsError> {
        self.at(path, |root, path| {
            self.mount.truncate(Object::At(root, path, Follow::Yes), bytes, &self.who())
        })
    }

    /// Whether the process may read (4), write (2), execute (1).
    ///
    /// # Errors
    /// Those of access(2).
    pub fn access(&self, path: &[u8], mask: u32) -> Result<(), FsError> {
        self.at(path, |root, path| self.mount.access(Object::At(root, path, Follow::Yes), mask, &self.who()))
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// Those of getxattr(2).
    pub fn get_xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>, FsError> {
        self.at(path, |root, path| {
            self.mount.get_xattr(Object::At(root, path, Follow::Yes), name, &self.who())
        })
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Those of setxattr(2).
    pub fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], how: SetXattr) -> Result<(), FsError> {
        self.at(path, |root, path| {
            self.mount.set_xattr(Object::At(root, path, Follow::Yes), name, value, how, &self.who())
        })
    }

    /// The names of all extended attributes, each with a zero byte behind it.
    ///
    /// # Errors
    /// Those of listxattr(2).
    pub fn list_xattr(&self, path: &[u8]) -> Result<Vec<u8>, FsError> {
        self.at(path, |root, path| self.mount.list_xattr(Object::At(root, path, Follow::Yes), &self.who()))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// Those of removexattr(2).
    pub fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<(), FsError> {
        self.at(path, |root, path| {
            self.mount.remove_xattr(Object::At(root, path, Follow::Yes), name, &self.who())
        })
    }

    /// Makes everything durable that was done before.
    ///
    /// # Errors
    /// What could not be written.
    pub fn sync(&self) -> Result<(), FsError> {
        self.mount.sync()
    }
}
