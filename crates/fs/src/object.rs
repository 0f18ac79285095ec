//! What a call on attributes is about, told once: a path, a held inode, an open file.

use crate::error::FsError;
use crate::file::File;
use crate::filesystem::{FileSystem, Node};
use crate::inode::Inode;
use crate::status::{Credentials, Follow, Time};
use crate::xattr::SetXattr;
use nvmed_sys::sync::Arc;

/// What a call is about. `N` and `F` are the inodes and the open files of whoever makes it.
#[derive(Debug)]
pub enum Object<'a, N = Node, F = File> {
    /// What is at a path from a directory.
    At(&'a N, &'a [u8], Follow),
    /// An inode that the caller holds, whatever names it has (`AT_EMPTY_PATH`).
    Held(&'a N),
    /// What an open file is of; [`FsError::BadDescriptor`] when it was opened for its path only (`O_PATH`).
    Open(&'a F),
}

impl<N, F> Copy for Object<'_, N, F> {}

impl<N, F> Clone for Object<'_, N, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl FileSystem {
    /// The inode, which is to be looked at.
    pub(crate) fn seen(&self, object: Object<'_>, who: &Credentials<'_>) -> Result<Arc<Inode>, FsError> {
        match object {
            Object::At(at, path, follow) => self.core.at(self.start(at), path, follow, who),
            Object::Held(node) => Ok(Arc::clone(&node.inode)),
            Object::Open(file) => file.not_path_only().map(|()| Arc::clone(&file.inode)),
        }
    }

    /// The inode, which is to be changed.
    pub(crate) fn changed(&self, object: Object<'_>, who: &Credentials<'_>) -> Result<Arc<Inode>, FsError> {
        let inode = self.seen(object, who)?;
        self.view.writable()?;
        match object {
            Object::At(..) => {}
            Object::Held(node) => node.view.writable()?,
            Object::Open(file) => file.view.writable()?,
        }
        Ok(inode)
    }

    /// Changes mode bits.
    ///
    /// # Errors
    /// Those of chmod(2).
    pub fn chmod(&self, object: Object<'_>, mode: u32, who: &Credentials<'_>) -> Result<(), FsError> {
        self.core.chmod(&self.changed(object, who)?, mode, who)?;
        self.core.written_through()
    }

    /// Changes owner, group or both.
    ///
    /// # Errors
    /// Those of chown(2).
    pub fn chown(
        &self,
        object: Object<'_>,
        uid: Option<u32>,
        gid: Option<u32>,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.core.chown(&self.changed(object, who)?, uid, gid, who)?;
        self.core.written_through()
    }

    /// Changes the times of access and of change: `[atime, mtime]`.
    ///
    /// # Errors
    /// Those of utimensat(2).
    pub fn utimens(
        &self,
        object: Object<'_>,
        times: [Time; 2],
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.core.utimens(&self.changed(object, who)?, times, who)
    }

    /// Sets the size of a file that `who` may write. [`File::truncate`] goes by what the file was opened for.
    ///
    /// # Errors
    /// Those of truncate(2).
    pub fn truncate(&self, object: Object<'_>, bytes: u64, who: &Credentials<'_>) -> Result<(), FsError> {
        self.core.truncate_checked(&self.changed(object, who)?, bytes, who)?;
        self.core.written_through()
    }

    /// Whether `who` may read (4), write (2), execute (1); 0 asks for existence.
    ///
    /// # Errors
    /// Those of access(2).
    pub fn access(&self, object: Object<'_>, mask: u32, who: &Credentials<'_>) -> Result<(), FsError> {
        let inode = self.seen(object, who)?;
        // A view that changes nothing permits no writing.
        if mask & crate::permission::WRITE != 0 {
            self.view.writable()?;
        }
        self.core.access(&inode, mask, who)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// Those of getxattr(2): [`FsError::NoAttribute`], [`FsError::NotSupported`] for names other than `user.`,
    /// `trusted.` and `security.`; those of resolution.
    pub fn get_xattr(
        &self,
        object: Object<'_>,
        name: &[u8],
        who: &Credentials<'_>,
    ) -> Result<Vec<u8>, FsError> {
        self.core.get_xattr(&*self.seen(object, who)?, name, who)
    }

    /// Sets an extended attribute, of at most [`crate::XATTR_VALUE_BYTES_MAX`] bytes; atomically, and durable as other
    /// changes of the inode are.
    ///
    /// # Errors
    /// Those of setxattr(2): [`FsError::Exists`], [`FsError::NoAttribute`], [`FsError::AttributeTooLong`],
    /// [`FsError::NoSpace`] also when one inode has more than 8 KiB of names and short values; those of resolution.
    pub fn set_xattr(
        &self,
        object: Object<'_>,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        let inode = self.changed(object, who)?;
        self.core.meta.grow_if_low();
        self.core.change_xattr(&inode, name, Some((value, how)), who)?;
        self.core.written_through()
    }

    /// The names of all extended attributes, each ended by a zero byte; `trusted.` ones are root's to see.
    ///
    /// # Errors
    /// Those of resolution; the record's.
    pub fn list_xattr(&self, object: Object<'_>, who: &Credentials<'_>) -> Result<Vec<u8>, FsError> {
        self.core.list_xattr(&*self.seen(object, who)?, who)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// Those of removexattr(2): [`FsError::NoAttribute`]; those of resolution.
    pub fn remove_xattr(
        &self,
        object: Object<'_>,
        name: &[u8],
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.core.change_xattr(&self.changed(object, who)?, name, None, who)?;
        self.core.written_through()
    }
}

impl File {
    /// The file system that it belongs to.
    #[must_use]
    pub fn files(&self) -> FileSystem {
        FileSystem { core: Arc::clone(&self.core), view: self.view.clone() }
    }
}
