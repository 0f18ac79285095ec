//! What of a file system its caller sees: all of it, or a directory and what is below.
//!
//! A view decides where `/` is, where `..` ends, and whether anything may be changed. Of a held directory that was moved
//! out of the view since, nothing is found any more.

use crate::core::{Core, ROOT};
use crate::error::FsError;
use crate::filesystem::{FileSystem, Node};
use crate::inode::Inode;
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

impl Core {
    /// The directory that `/` is in a view.
    pub(crate) fn root_of(&self, view: &View) -> Arc<Inode> {
        view.root.clone().unwrap_or_else(|| self.root())
    }

    /// Whether an inode is the view's root or below it. The caller holds the namespace.
    ///
    /// # Errors
    /// [`FsError::NotFound`].
    pub(crate) fn within(&self, view: &View, inode: &Arc<Inode>) -> Result<(), FsError> {
        match &view.root {
            Some(root) if !self.is_above(root, inode) => Err(FsError::NotFound),
            _ => Ok(()),
        }
    }
}

impl FileSystem {
    /// The same file system, of which only `root` and what is below it is to be seen: `/` is that directory, and `..`
    /// above it is [`FsError::Away`], as above the file system's own root. With `read_only`, what would change something is
    /// [`FsError::ReadOnly`]; a view of a view is no wider than that.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`]; [`FsError::NotFound`] for a directory that this view does not have.
    pub fn rooted(&self, root: &Node, read_only: bool) -> Result<Self, FsError> {
        root.0.directory()?;
        let _namespace = self.0.names_read();
        self.0.within(&self.1, &root.0)?;
        let view = View { root: Some(Arc::clone(&root.0)), read_only: read_only || self.1.read_only };
        Ok(Self(Arc::clone(&self.0), view))
    }

    /// Whether a held inode may be changed through this view, and through the one by which it came to be held.
    ///
    /// # Errors
    /// [`FsError::ReadOnly`].
    pub(crate) fn changes(&self, node: &Node) -> Result<(), FsError> {
        self.1.writable()?;
        node.2.writable()
    }

    /// Where a path from a held directory starts.
    pub(crate) fn start<'a>(&'a self, at: &'a Node) -> Start<'a> {
        Start { at: &at.0, view: &self.1 }
    }
}
