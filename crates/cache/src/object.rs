//! What pages belong to.

use crate::index::{Index, Prune};
use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_units::Page;

/// A sequence of pages, one file's.
///
/// Discard its pages before it is dropped: a dropped object's clean frames are found and reused, its
/// dirty ones would be told to whoever salvages the memory.
pub struct Object {
    pub(crate) owner: u64,
    pub(crate) index: Index,
    /// Pages that are dirty and not on their way to the device.
    pub(crate) dirty: AtomicU64,
    /// Held by the one who writes back or discards.
    pub(crate) pass: Mutex<()>,
}

impl Object {
    /// An object without pages. `owner` is what [`crate::Survivor`] tells: the inode number.
    #[must_use]
    pub fn new(owner: u64) -> Arc<Self> {
        Arc::new(Self { owner, index: Index::new(), dirty: AtomicU64::new(0), pass: Mutex::new(()) })
    }

    /// What it was made with.
    #[must_use]
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// Pages to be written back.
    #[must_use]
    pub fn dirty_pages(&self) -> u64 {
        self.dirty.load(Ordering::Acquire)
    }

    /// The first page at or after `from` that is dirty, not counting those on their way to the device.
    #[must_use]
    pub fn next_dirty(&self, from: Page) -> Option<Page> {
        self.index.next_dirty(from, Prune::No)
    }
}

impl core::fmt::Debug for Object {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Object").field("owner", &self.owner).field("dirty", &self.dirty_pages()).finish()
    }
}
