//! What a directory in memory knows of its entries.
//!
//! Found names are remembered, and names that were looked for and do not exist. A directory made in
//! this mount knows all its names: a name that it does not know is not there.

use crate::hash::Numbers;
use crate::inode::Inode;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

/// What is remembered of a name.
enum Known {
    /// It does not exist.
    Absent,
    /// It is this inode, which may be in memory.
    Present { ino: u64, inode: Weak<Inode> },
}

/// What is known of a name.
pub(crate) enum Found {
    /// Nothing: ask the store.
    Unknown,
    /// It does not exist.
    Absent,
    /// It is this inode, which is not in memory.
    Number(u64),
    /// It is this inode.
    Inode(Arc<Inode>),
}

/// The remembered names of a directory.
#[derive(Default)]
pub(crate) struct Names {
    map: HashMap<Arc<[u8]>, Known, Numbers>,
    /// Whether a name that is not in the map does not exist.
    complete: bool,
}

/// A directory's part of an inode.
pub(crate) struct Directory {
    /// Inode number of the directory above; of the root, its own.
    parent: AtomicU64,
    names: RwLock<Names>,
}

impl Directory {
    pub(crate) fn new(parent: u64) -> Self {
        Self { parent: AtomicU64::new(parent), names: RwLock::default() }
    }

    /// Inode number of the directory above.
    pub(crate) fn parent(&self) -> u64 {
        self.parent.load(Ordering::Relaxed)
    }

    /// It was moved.
    pub(crate) fn set_parent(&self, parent: u64) {
        self.parent.store(parent, Ordering::Relaxed);
    }

    /// The names, to look one up.
    pub(crate) fn names(&self) -> RwLockReadGuard<'_, Names> {
        // Nothing is computed while the map is locked: a panic leaves it whole.
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names, to change them.
    pub(crate) fn names_mut(&self) -> RwLockWriteGuard<'_, Names> {
        self.names.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names {
    /// What is known of a name.
    #[inline]
    pub(crate) fn find(&self, name: &[u8]) -> Found {
        match self.map.get(name) {
            Some(Known::Present { ino, inode, .. }) => match inode.upgrade() {
                Some(inode) => Found::Inode(inode),
                None => Found::Number(*ino),
            },
            Some(Known::Absent) => Found::Absent,
            None if self.complete => Found::Absent,
            None => Found::Unknown,
        }
    }

    /// Remembers a name; answers how many names more there are.
    pub(crate) fn set(&mut self, name: Arc<[u8]>, inode: &Arc<Inode>) -> isize {
        let known = Known::Present { ino: inode.ino, inode: Arc::downgrade(inode) };
        isize::from(self.map.insert(name, known).is_none())
    }

    /// A name does not exist any more, or was found not to; answers as `set`.
    pub(crate) fn set_absent(&mut self, name: &[u8]) -> isize {
        if self.complete {
            return -isize::from(self.map.remove(name).is_some());
        }
        match self.map.get_mut(name) {
            Some(known) => {
                *known = Known::Absent;
                0
            }
            None => {
                self.map.insert(name.into(), Known::Absent);
                1
            }
        }
    }

    /// The directory is new: it has no names.
    pub(crate) fn begin_complete(&mut self) {
        self.complete = true;
    }

    /// Whether there are no names, if that is known.
    pub(crate) fn is_empty(&self) -> Option<bool> {
        let has_names = self.map.values().any(|known| matches!(known, Known::Present { .. }));
        match (has_names, self.complete) {
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => None,
        }
    }

    /// Forgets everything; answers how many names there were.
    pub(crate) fn clear(&mut self) -> isize {
        let count = self.map.len() as isize;
        self.map = HashMap::default();
        self.complete = false;
        count
    }
}
