//! A mounted file system through a view: where its root is, and what may be changed through it.

use crate::core::Core;
use crate::error::FsError;
use crate::filesystem::{FileSystem, Node};
use crate::inode::Inode;
use crate::view::{Start, View};
use std::sync::Arc;

impl Core {
    /// The directory that `/` is in a view.
    pub(crate) fn root_of(&self, view: &View) -> Arc<Inode> {
        view.root().cloned().unwrap_or_else(|| self.root())
    }

    /// Whether an inode is the view's root or below it. The caller holds the namespace.
    ///
    /// # Errors
    /// [`FsError::NotFound`].
    pub(crate) fn within(&self, view: &View, inode: &Arc<Inode>) -> Result<(), FsError> {
        match view.root() {
            Some(root) if !self.is_above(root, inode) => Err(FsError::NotFound),
            _ => Ok(()),
        }
    }
}

impl FileSystem {
    /// The same file system, of which only `root` and what is below it is to be seen: `/` is that directory, and `..`
    /// above it is [`FsError::Away`], as above the file system's own root. With `read_only`, what would change
    /// something is [`FsError::ReadOnly`]; a view of a view is no wider than that.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`]; [`FsError::NotFound`] for a directory that this view does not have.
    pub fn rooted(&self, root: &Node, read_only: bool) -> Result<Self, FsError> {
        root.inode.directory()?;
        let _namespace = self.core.names_read();
        self.core.within(&self.view, &root.inode)?;
        let view = View::of(Arc::clone(&root.inode), read_only || self.view.is_read_only());
        Ok(Self { core: Arc::clone(&self.core), view })
    }

    /// What decides, beside the caller's ids, what is found through it: the number of its root, and whether nothing may
    /// be changed.
    #[must_use]
    pub fn shows(&self) -> (u64, bool) {
        (self.view.root_ino().0, self.view.is_read_only())
    }

    /// Where a path from a held directory starts.
    pub(crate) fn start<'a>(&'a self, at: &'a Node) -> Start<'a> {
        Start { at: &at.inode, view: &self.view }
    }
}
