//! One change of the metadata: an atomic batch, and the allocation that belongs to it.
//!
//! Changes are made one after the other under the journal's lock, because the allocation bitmap and
//! the counters are in nearly every one. A [`Change`] that is dropped without [`Change::apply`] leaves
//! everything as it was.

use crate::alloc::{Allocator, CHUNK_BYTES, Run};
use crate::core::Core;
use crate::error::FsError;
use crate::keys;
use crate::record::{Counters, Extent, Record, encode_entry};
use crate::status::Kind;
use core::sync::atomic::Ordering;
use nvmed_kv::{Batch, Sequence, Store};
use std::sync::{MutexGuard, PoisonError};

/// What every change needs.
pub(crate) struct Journal {
    batch: Batch,
    alloc: Allocator,
    counters: Counters,
}

impl Journal {
    pub(crate) fn new(alloc: Allocator, counters: Counters) -> Self {
        Self { batch: Batch::new(), alloc, counters }
    }
}

/// Reads a bitmap record.
pub(crate) fn load_chunk(store: &Store, chunk: u64) -> Result<Option<[u8; CHUNK_BYTES]>, FsError> {
    let mut value = Vec::with_capacity(CHUNK_BYTES);
    if !store.get(&keys::bitmap(chunk), &mut value)? {
        return Ok(None);
    }
    let bytes = value.as_slice().try_into();
    bytes.map(Some).map_err(|_| FsError::Damaged { what: "the length of bitmap record", of: chunk })
}

/// A change being put together.
pub(crate) struct Change<'a> {
    core: &'a Core,
    journal: MutexGuard<'a, Journal>,
    /// The counters as they will be.
    counters: Counters,
    /// Blocks whose promise this change redeems, and blocks it frees.
    freed: u64,
    done: bool,
}

impl Core {
    /// Begins a change; others wait until it is applied or dropped.
    pub(crate) fn change(&self) -> Change<'_> {
        // A panic inside a change ran its `Drop`, which left the journal as it was.
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        if journal.alloc.holds() {
            journal.alloc.settle(self.store.durable());
        }
        journal.batch.clear();
        let counters = journal.counters;
        Change { core: self, journal, counters, freed: 0, done: false }
    }

    /// The counters after the last change.
    pub(crate) fn counters(&self) -> Counters {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).counters
    }

    /// Promises `blocks` data blocks, so that a later allocation of as many cannot fail.
    ///
    /// # Errors
    /// [`FsError::NoSpace`].
    pub(crate) fn reserve(&self, blocks: u64) -> Result<(), FsError> {
        let take = |available: u64| available.checked_sub(blocks);
        let taken = self.available.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|_| FsError::NoSpace)
    }

    /// Takes back a promise of which nothing was made.
    pub(crate) fn unreserve(&self, blocks: u64) {
        self.available.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Up to `want` blocks side by side, from `goal` on if that block is free. They were promised by
    /// [`Core::reserve`], and are recorded by [`Change::use_run`] once the data is on the device, or
    /// given back by [`Core::return_blocks`].
    ///
    /// # Errors
    /// What the store answers; [`FsError::NoSpace`] only if more is taken than was promised.
    pub(crate) fn take_blocks(&self, goal: Option<u64>, want: u32) -> Result<Run, FsError> {
        for _ in 0..2 {
            let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
            if journal.alloc.holds() {
                journal.alloc.settle(self.store.durable());
            }
            let load = |chunk| load_chunk(&self.store, chunk);
            if let Some(run) = journal.alloc.take(goal, want, &load)? {
                return Ok(run);
            }
            let holds = journal.alloc.holds();
            drop(journal);
            if !holds {
                break;
            }
            // All that is free was freed by changes that are not durable yet: make them so.
            self.commit_all()?;
        }
        Err(FsError::NoSpace)
    }

    /// Gives back blocks that were taken and not recorded. The promise stands.
    pub(crate) fn return_blocks(&self, run: Run) {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).alloc.give_back(run);
    }
}

impl Change<'_> {
    /// A number for a new inode.
    pub(crate) fn new_ino(&mut self) -> u64 {
        let ino = self.counters.next_ino;
        self.counters.next_ino += 1;
        self.counters.inodes += 1;
        ino
    }

    /// Records an inode.
    pub(crate) fn put_inode(&mut self, ino: u64, record: &Record) {
        self.journal.batch.put(&keys::inode(ino), &record.encode());
    }

    /// Removes an inode's record.
    pub(crate) fn delete_inode(&mut self, ino: u64) {
        self.counters.inodes = self.counters.inodes.saturating_sub(1);
        self.journal.batch.delete(&keys::inode(ino));
    }

    /// Gives an inode a name.
    pub(crate) fn put_entry(&mut self, directory: u64, name: &[u8], ino: u64, kind: Kind) {
        self.journal.batch.put(&keys::entry(directory, name), &encode_entry(ino, kind));
    }

    /// Removes a name.
    pub(crate) fn delete_entry(&mut self, directory: u64, name: &[u8]) {
        self.journal.batch.delete(&keys::entry(directory, name));
    }

    /// Records an extent under a key of its own.
    pub(crate) fn put_extent(&mut self, ino: u64, extent: &Extent) {
        self.journal.batch.put(&keys::extent(ino, extent.logical), &extent.encode());
    }

    /// Removes an extent's own record.
    pub(crate) fn delete_extent(&mut self, ino: u64, logical: u64) {
        self.journal.batch.delete(&keys::extent(ino, logical));
    }

    /// Marks an inode without a name that is still in use.
    pub(crate) fn put_orphan(&mut self, ino: u64) {
        self.journal.batch.put(&keys::orphan(ino), &[0]);
    }

    /// Removes the mark.
    pub(crate) fn delete_orphan(&mut self, ino: u64) {
        self.journal.batch.delete(&keys::orphan(ino));
    }

    /// Records a part of a symbolic link's target.
    pub(crate) fn put_target(&mut self, ino: u64, part: u64, bytes: &[u8]) {
        self.journal.batch.put(&keys::target(ino, part), bytes);
    }

    /// Removes a part of a symbolic link's target.
    pub(crate) fn delete_target(&mut self, ino: u64, part: u64) {
        self.journal.batch.delete(&keys::target(ino, part));
    }

    /// Says that this change names newly allocated blocks whose data the device may still lose: a
    /// flush goes before the log append that makes it durable (design decision 9).
    pub(crate) fn require_flush(&mut self) {
        self.journal.batch.require_flush();
    }

    /// Records taken blocks as used; their promise is redeemed. Blocks with data in them want
    /// [`Change::require_flush`].
    ///
    /// # Errors
    /// What the allocator answers.
    pub(crate) fn use_run(&mut self, run: Run) -> Result<(), FsError> {
        let store = &self.core.store;
        self.journal.alloc.log_use(run, &|chunk| load_chunk(store, chunk))?;
        self.counters.free_blocks = self.counters.free_blocks.saturating_sub(u64::from(run.blocks));
        Ok(())
    }

    /// Records used blocks as free.
    ///
    /// # Errors
    /// What the allocator answers.
    pub(crate) fn free_run(&mut self, run: Run) -> Result<(), FsError> {
        let store = &self.core.store;
        self.journal.alloc.log_free(run, &|chunk| load_chunk(store, chunk))?;
        // On a full metadata region, freeing must still work.
        self.journal.batch.use_headroom();
        self.counters.free_blocks += u64::from(run.blocks);
        self.freed += u64::from(run.blocks);
        Ok(())
    }

    /// Applies all of it at once: visible from now on, durable by a later commit.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] when the metadata region is full; what the store answers. Nothing changed.
    pub(crate) fn apply(mut self) -> Result<Sequence, FsError> {
        let journal = &mut *self.journal;
        let (batch, alloc) = (&mut journal.batch, &journal.alloc);
        alloc.changed(|chunk, bytes| match bytes {
            Some(bytes) => batch.put(&keys::bitmap(chunk), &bytes),
            None => batch.delete(&keys::bitmap(chunk)),
        });
        if self.counters != journal.counters {
            self.counters.cursor = journal.alloc.cursor();
            journal.batch.put(&keys::counters(), &self.counters.encode());
        }
        let sequence = self.core.store.apply(&journal.batch)?;
        journal.alloc.applied(sequence);
        journal.counters = self.counters;
        self.core.available.fetch_add(self.freed, Ordering::Relaxed);
        self.core.last.store(sequence);
        self.done = true;
        Ok(sequence)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.journal.alloc.undone();
        }
    }
}
