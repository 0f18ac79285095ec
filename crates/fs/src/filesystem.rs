//! The file system as its callers see it.

use crate::error::FsError;
use crate::file::File;
use crate::status::{Credentials, Follow, OpenFlags, RenameFlags, Stat, StatFs, Time};
use std::sync::Arc;

/// A mounted file system; clones are the same one.
#[derive(Clone)]
pub struct FileSystem(Arc<()>);

/// An inode that somebody holds: a working directory, a directory descriptor, a looked-up file.
///
/// It stays the same inode whatever happens to its name.
#[derive(Clone)]
pub struct Node(Arc<()>);

impl Node {
    /// Its status.
    #[must_use]
    pub fn stat(&self) -> Stat {
        todo!()
    }
    /// Its inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        todo!()
    }
}

impl FileSystem {
    /// The root directory.
    #[must_use]
    pub fn root(&self) -> Node {
        todo!()
    }
    /// The path of a held inode, from `/`, this file system's root.
    ///
    /// # Errors
    /// [`FsError::NotFound`] once it has no name.
    pub fn path_of(&self, node: &Node) -> Result<Vec<u8>, FsError> {
        todo!()
    }
    /// Writes everything back and makes it durable; the file system is then no longer usable.
    pub fn unmount(&self) -> Result<(), FsError> {
        todo!()
    }
    /// Makes everything durable.
    pub fn sync(&self) -> Result<(), FsError> {
        todo!()
    }
    /// Status of the file system.
    #[must_use]
    pub fn statfs(&self) -> StatFs {
        todo!()
    }
    /// Opens, and with `O_CREAT` makes, a file. `mode` has the umask applied.
    pub fn open(
        &self,
        at: &Node,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        who: &Credentials<'_>,
    ) -> Result<Arc<File>, FsError> {
        todo!()
    }
    /// Opens a held inode again, as `/proc/self/fd/N` does: with its permissions checked.
    pub fn open_node(
        &self,
        node: &Node,
        flags: OpenFlags,
        who: &Credentials<'_>,
    ) -> Result<Arc<File>, FsError> {
        todo!()
    }
    /// The inode at a path.
    pub fn lookup(
        &self,
        at: &Node,
        path: &[u8],
        follow: Follow,
        who: &Credentials<'_>,
    ) -> Result<Node, FsError> {
        todo!()
    }
    /// The status of the inode at a path.
    pub fn stat(
        &self,
        at: &Node,
        path: &[u8],
        follow: Follow,
        who: &Credentials<'_>,
    ) -> Result<Stat, FsError> {
        todo!()
    }
    /// Makes a directory.
    pub fn mkdir(&self, at: &Node, path: &[u8], mode: u32, who: &Credentials<'_>) -> Result<(), FsError> {
        todo!()
    }
    /// Removes an empty directory.
    pub fn rmdir(&self, at: &Node, path: &[u8], who: &Credentials<'_>) -> Result<(), FsError> {
        todo!()
    }
    /// Removes a name of a file.
    pub fn unlink(&self, at: &Node, path: &[u8], who: &Credentials<'_>) -> Result<(), FsError> {
        todo!()
    }
    /// Renames.
    pub fn rename(
        &self,
        from: &Node,
        old: &[u8],
        to: &Node,
        new: &[u8],
        flags: RenameFlags,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        todo!()
    }
    /// Gives a file a second name.
    pub fn link(
        &self,
        from: &Node,
        old: &[u8],
        to: &Node,
        new: &[u8],
        follow: Follow,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        todo!()
    }
    /// Gives a held file (`AT_EMPTY_PATH`, `/proc/self/fd/N`) a name.
    pub fn link_node(
        &self,
        node: &Node,
        to: &Node,
        new: &[u8],
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        todo!()
    }
    /// Makes a symbolic link.
    pub fn symlink(
        &self,
        target: &[u8],
        at: &Node,
        path: &[u8],
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        todo!()
    }
    /// The target of a symbolic link.
    pub fn readlink(&self, at: &Node, path: &[u8], who: &Credentials<'_>) -> Result<Vec<u8>, FsError> {
        todo!()
    }
    /// Changes mode bits.
    pub fn chmod(
        &self,
        at: &Node,
        path: &[u8],
        mode: u32,
        follow: Follow,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        todo!()
    }
    /// Changes owner or group.
    pub fn chown(
        &self,
        at: &Node,
        path: &[u8],
        uid: Option<u32>,
        gid: Option<u32>,
        follow: Follow,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        todo!()
    }
    /// Changes the times of access and change: `[atime, mtime]`.
    pub fn utimens(
        &self,
        at: &Node,
        path: &[u8],
        times: [Time; 2],
        follow: Follow,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        todo!()
    }
    /// Sets the size.
    pub fn truncate(&self, at: &Node, path: &[u8], bytes: u64, who: &Credentials<'_>) -> Result<(), FsError> {
        todo!()
    }
    /// Whether `who` may read (4), write (2), execute (1); 0 asks for existence.
    pub fn access(
        &self,
        at: &Node,
        path: &[u8],
        mask: u32,
        follow: Follow,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        todo!()
    }
}
