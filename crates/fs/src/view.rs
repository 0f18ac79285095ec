//! What of a file system its caller sees: all of it, or a directory and what is below.
//!
//! A view decides where `/` is, where `..` ends, and whether anything may be changed. Of a held directory that was
//! moved out of the view since, nothing is found any more.

use crate::error::FsError;
use crate::inode::Inode;
use nvmed_layout::ROOT;
use nvmed_units::Ino;
use std::sync::Arc;

/// What of a file system a caller sees.
#[derive(Clone, Default)]
pub(crate) struct View {
    /// Its root; none is the file system's.
    root: Option<Arc<Inode>>,
    /// Nothing may be changed through it.
    read_only: bool,
}

/// Where a resolution starts.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    /// A relative path's directory.
    pub(crate) at: &'a Arc<Inode>,
    /// What the caller sees.
    pub(crate) view: &'a View,
}

impl View {
    /// Of a directory and what is below.
    pub(crate) fn of(root: Arc<Inode>, read_only: bool) -> Self {
        Self { root: Some(root), read_only }
    }

    /// Its root; none is the file system's.
    pub(crate) fn root(&self) -> Option<&Arc<Inode>> {
        self.root.as_ref()
    }

    /// The inode number of its root.
    pub(crate) fn root_ino(&self) -> Ino {
        self.root.as_ref().map_or(ROOT, |root| root.ino)
    }

    /// Whether nothing may be changed through it.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// # Errors
    /// [`FsError::ReadOnly`].
    pub(crate) fn writable(&self) -> Result<(), FsError> {
        if self.read_only { Err(FsError::ReadOnly) } else { Ok(()) }
    }
}
