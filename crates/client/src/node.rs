//! An inode that the session holds.

use crate::core::{Core, STRANGE};
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_fs::{FileType, FsError, Stat};
use nvmed_wire::{Answer, Call, Handle, Object};
use std::sync::Arc;

/// An inode or a description that the session holds, until the last value that names it is dropped.
#[derive(Debug)]
pub(crate) struct Holding {
    pub core: Arc<Core>,
    pub handle: Handle,
    pub ino: u64,
    pub kind: FileType,
    /// Its size when the server answered with it.
    pub bytes: u64,
    /// Others may wait for its end: it was inherited, received, shared or mapped, or a lock was asked for through it.
    told: AtomicBool,
}

impl Holding {
    pub fn new(core: &Arc<Core>, handle: Handle, stat: &Stat) -> Result<Arc<Self>, FsError> {
        // The server is trusted; a kind that is none would be a newer one's.
        let kind = FileType::of((stat.mode >> 12) as u8).ok_or(STRANGE)?;
        let told = AtomicBool::new(false);
        Ok(Arc::new(Self { core: Arc::clone(core), handle, ino: stat.ino, kind, bytes: stat.size, told }))
    }

    /// Another process may have to learn at once that it is given up: from now on that is a call, and not a post.
    pub(crate) fn tell_end(&self) {
        self.told.store(true, Ordering::Relaxed);
    }

    pub fn object(&self) -> Object<'static> {
        Object::Held(self.handle)
    }

    pub fn stat(&self) -> Result<Stat, FsError> {
        match self.core.call(&Call::Stat(self.object()))?.answer {
            Answer::Status(stat) => Ok(stat),
            _ => Err(STRANGE),
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if self.handle != Handle::ROOT {
            self.core.let_go(self.handle, self.told.load(Ordering::Relaxed));
        }
    }
}

/// An inode that somebody holds: a working directory, a directory descriptor, a looked-up file.
///
/// It stays the same inode whatever happens to its name.
#[derive(Clone, Debug)]
pub struct Node(pub(crate) Arc<Holding>);

impl Node {
    /// Its inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.0.ino
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> FileType {
        self.0.kind
    }

    /// The handle by which the server knows it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.0.handle
    }

    /// Its status.
    ///
    /// # Errors
    /// `EIO` once the server is gone.
    pub fn stat(&self) -> Result<Stat, FsError> {
        self.0.stat()
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        // Of one file system, and held: the number is no other inode's.
        self.0.ino == other.0.ino
    }
}
