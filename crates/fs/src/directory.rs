//! What a directory in memory knows of its entries.
//!
//! Found names are remembered, and names that were looked for and do not exist. A directory made in
//! this mount knows all its names: a name that it does not know is not there.

use crate::hash::Numbers;
use crate::inode::Inode;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::collections::HashMap;

/// What is remembered of a name.
enum Known {
    /// It does not exist.
    Absent,
    /// It is this inode, if that is in memory.
    Present(Weak<Inode>),
}

/// What is known of a name.
pub(crate) enum Found {
    /// Nothing: ask the store.
    Unknown,
    /// It does not exist.
    Absent,
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
    /// Whether it is a zone's root. Changes with the batch that makes it one, under the lock of the open batch.
    zone: AtomicBool,
    prefix: Mutex<Prefix>,
    size: Mutex<Option<Size>>,
    names: RwLock<Names>,
    /// The file that follows the one of it that was opened to be read last; 0 is none.
    pub(crate) next_read: AtomicU64,
    /// How many files that follow it were brought ahead.
    pub(crate) brought: AtomicUsize,
}

/// The directory's prefix (`keys`), as it was when `epoch` was current.
#[derive(Default)]
pub(crate) struct Prefix {
    pub(crate) epoch: u64,
    pub(crate) bytes: Vec<u8>,
}

/// What is below a directory in its zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) names: u32,
    /// Bytes of their keys.
    pub(crate) bytes: u64,
}

impl Size {
    /// With what `other` counts too.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { names: self.names.saturating_add(other.names), bytes: self.bytes + other.bytes }
    }

    /// Without it. Both count names of the device, which may be damaged.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self { names: self.names.saturating_sub(other.names), bytes: self.bytes.saturating_sub(other.bytes) }
    }
}

impl Directory {
    pub(crate) fn new(zone: bool) -> Self {
        Self {
            zone: AtomicBool::new(zone),
            prefix: Mutex::default(),
            size: Mutex::default(),
            names: RwLock::default(),
            next_read: AtomicU64::new(0),
            brought: AtomicUsize::new(0),
        }
    }

    /// Whether it is a zone's root.
    pub(crate) fn is_zone(&self) -> bool {
        self.zone.load(Ordering::SeqCst)
    }

    /// It was made a zone's root; the caller holds the open batch.
    pub(crate) fn set_zone(&self) {
        self.zone.store(true, Ordering::SeqCst);
    }

    /// The prefix as it was computed last.
    pub(crate) fn prefix(&self) -> MutexGuard<'_, Prefix> {
        self.prefix.lock()
    }

    /// What is below it, if it was counted. Only the directories right below a zone's root are kept
    /// count of; the caller holds the namespace's write lock.
    pub(crate) fn size(&self) -> MutexGuard<'_, Option<Size>> {
        self.size.lock()
    }

    /// The names, to look one up.
    pub(crate) fn names(&self) -> RwLockReadGuard<'_, Names> {
        // Nothing is computed while the map is locked: a panic leaves it whole.
        self.names.read()
    }

    /// The names, to change them.
    pub(crate) fn names_mut(&self) -> RwLockWriteGuard<'_, Names> {
        self.names.write()
    }
}

impl Names {
    /// What is known of a name.
    #[inline]
    pub(crate) fn find(&self, name: &[u8]) -> Found {
        match self.map.get(name) {
            Some(Known::Present(inode)) => match inode.upgrade() {
                Some(inode) => Found::Inode(inode),
                // It is not in memory any more: its record lies with its name.
                None => Found::Unknown,
            },
            Some(Known::Absent) => Found::Absent,
            None if self.complete => Found::Absent,
            None => Found::Unknown,
        }
    }

    /// Remembers a name; answers how many names more there are.
    pub(crate) fn set(&mut self, name: Arc<[u8]>, inode: &Arc<Inode>) -> isize {
        let known = Known::Present(Arc::downgrade(inode));
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
        assert!(self.map.is_empty(), "a new directory has {} names", self.map.len());
        self.complete = true;
    }

    /// Whether there are no names, if that is known.
    pub(crate) fn is_empty(&self) -> Option<bool> {
        let has_names = self.map.values().any(|known| matches!(known, Known::Present(_)));
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
