//! One change of the metadata: an atomic batch, and the allocation that belongs to it.
//!
//! Changes are made one after the other under the lock of the open batch, because the counters are in nearly every
//! one. Blocks are found without it. A [`Change`] that is dropped without [`Change::apply`] leaves
//! everything as it was.

use crate::blocks::alloc::{Edits, Run};

use crate::error::FsError;
use crate::metadata::Metadata;
use crate::metadata::entries::Moves;
use core::sync::atomic::Ordering;
use nvmed_kv::{Batch, Sequence};
use nvmed_layout::keys;
use nvmed_layout::record::{Counters, Entry, Extent, Record};
use nvmed_mutant::Mutant;
use nvmed_sys::sync::MutexGuard;
use nvmed_units::{Ino, Page};

/// The batch that a change puts together, and the counters.
pub(crate) struct OpenBatch {
    batch: Batch,
    edits: Edits,
    /// As they are.
    counters: Counters,
    /// As the store has them: the next inode number is ahead, the number of inodes behind.
    written: Counters,
    /// Where values are put together.
    value: Vec<u8>,
}

impl OpenBatch {
    pub(crate) fn new(counters: Counters) -> Self {
        Self { batch: Batch::new(), edits: Edits::default(), counters, written: counters, value: Vec::new() }
    }
}

/// Inode numbers set aside at once: those not used when the power goes are skipped.
const NUMBERS_AHEAD: u64 = 1024;

/// A change being put together.
pub(crate) struct Change<'a> {
    pub(super) meta: &'a Metadata,
    open: MutexGuard<'a, OpenBatch>,
    /// The counters as they will be.
    counters: Counters,
    /// Blocks whose promise this change redeems, and blocks it frees.
    used: u64,
    freed: u64,
    pub(crate) moves: Moves,
    /// The counters are written whether they must be or not.
    tells_counters: bool,
    /// It tells of nothing but data that was written back, and is durable.
    only_tells: bool,
    done: bool,
}

impl Metadata {
    /// Begins a change; others wait until it is applied or dropped.
    pub(crate) fn change(&self) -> Change<'_> {
        // A panic inside a change ran its `Drop`, which left the open batch as it was.
        let mut open = self.open.lock();
        if !open.edits.is_empty() {
            self.undo_left(&mut open.edits);
        }
        open.batch.clear();
        let counters = open.counters;
        Change {
            meta: self,
            open,
            counters,
            used: 0,
            freed: 0,
            moves: Moves::default(),
            tells_counters: false,
            only_tells: false,
            done: false,
        }
    }

    /// A change has ended and left edits behind: they are undone, so that what can be saved is.
    #[cold]
    fn undo_left(&self, edits: &mut Edits) {
        self.blocks.undone(edits);
        self.health.broken("the last change left the bitmap half changed".to_owned());
    }

    /// The counters after the last change.
    pub(crate) fn counters(&self) -> Counters {
        self.open.lock().counters
    }

    /// Writes the counters, if the store's are behind.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn write_counters(&self) -> Result<(), FsError> {
        let mut change = self.change();
        if change.counters.inodes == change.open.written.inodes {
            return Ok(());
        }
        change.tells_counters = true;
        change.use_headroom();
        change.apply().map(drop)
    }
}

impl Change<'_> {
    /// Ends it without undoing it, as a mistake of ours would.
    #[cfg(test)]
    pub(crate) fn abandon(mut self) {
        self.done = true;
    }

    /// A number for a new inode.
    pub(crate) fn new_ino(&mut self) -> Ino {
        let ino = self.counters.next_ino;
        self.counters.next_ino = ino.next();
        self.counters.inodes += 1;
        ino
    }

    /// Puts a value.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.open.batch.put(key, value);
    }

    /// Puts a value under the key that the parts make.
    #[inline]
    pub(crate) fn put_joined(&mut self, key: [&[u8]; 3], value: &[u8]) {
        self.open.batch.put_joined(key, value);
    }

    /// Puts the value that `write` appends, unless it says no, which is answered.
    #[inline]
    pub(crate) fn put_written(&mut self, key: [&[u8]; 3], write: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        self.open.batch.put_written(key, write)
    }

    /// Removes a key.
    pub(crate) fn delete(&mut self, key: &[u8]) {
        self.open.batch.delete(key);
    }

    /// The bytes of an entry, and of a record if one is to follow; and how many are the entry's.
    pub(crate) fn value(&mut self, entry: &Entry<'_>, record: Option<&Record>) -> (Vec<u8>, usize) {
        let mut value = core::mem::take(&mut self.open.value);
        value.clear();
        entry.encode_head(&mut value);
        let head = value.len();
        if let Some(record) = record {
            record.encode_to(&mut value);
        }
        (value, head)
    }

    /// Takes the memory of a value back, for the next one.
    pub(crate) fn keep_value(&mut self, value: Vec<u8>) {
        self.open.value = value;
    }

    /// There is one inode less.
    pub(crate) fn count_inode_gone(&mut self) {
        // The device's count, which may be damaged.
        self.counters.inodes = self.counters.inodes.saturating_sub(1);
    }

    /// Records an extent under a key of its own.
    pub(crate) fn put_extent(&mut self, ino: Ino, extent: &Extent) {
        self.open.batch.put(&keys::extent(ino, extent.logical), &extent.encode());
    }

    /// Removes an extent's own record.
    pub(crate) fn delete_extent(&mut self, ino: Ino, logical: Page) {
        self.open.batch.delete(&keys::extent(ino, logical));
    }

    /// Marks an inode without a name that is still in use.
    pub(crate) fn put_orphan(&mut self, ino: Ino) {
        if !Mutant::OrphanForgotten.is_made() {
            self.open.batch.put(&keys::orphan(ino), &[0]);
        }
    }

    /// Removes the mark.
    pub(crate) fn delete_orphan(&mut self, ino: Ino) {
        self.open.batch.delete(&keys::orphan(ino));
    }

    /// Records a part of a symbolic link's target.
    pub(crate) fn put_target(&mut self, ino: Ino, part: u64, bytes: &[u8]) {
        self.open.batch.put(&keys::target(ino, part), bytes);
    }

    /// Removes a part of a symbolic link's target.
    pub(crate) fn delete_target(&mut self, ino: Ino, part: u64) {
        self.open.batch.delete(&keys::target(ino, part));
    }

    /// Says that this change names newly allocated blocks whose data the device may still lose: a
    /// flush goes before the log append that makes it durable (decision 6).
    pub(crate) fn require_flush(&mut self) {
        if !Mutant::NoDataFlush.is_made() {
            self.open.batch.require_flush();
        }
    }

    /// The change may use what the store keeps for those that must not fail: changes that free something, and
    /// those that record what a program was promised.
    pub(crate) fn use_headroom(&mut self) {
        self.open.batch.use_headroom();
    }

    /// The change tells of nothing but data that was written back, and is durable ([`crate::journal::Journal::told`]).
    pub(crate) fn only_tell(&mut self) {
        self.only_tells = true;
    }

    /// The change only moves names: it leaves that alone.
    pub(crate) fn spare_headroom(&mut self) {
        self.open.batch.spare_headroom();
    }

    /// Records taken blocks as used; their promise is redeemed once this is applied, which whoever has it is told then.
    /// Blocks with data in them want [`Change::require_flush`].
    ///
    /// # Errors
    /// What the allocator answers.
    pub(crate) fn use_run(&mut self, run: Run) -> Result<(), FsError> {
        self.meta.blocks.log_use(&mut self.open.edits, run)?;
        self.count_used(run.blocks.into());
        Ok(())
    }

    /// As [`Change::use_run`], for a run of which all but `blocks` are recorded as used already.
    ///
    /// # Errors
    /// What the allocator answers.
    pub(crate) fn use_some_of(&mut self, run: Run, blocks: u64) -> Result<(), FsError> {
        assert!(blocks <= run.blocks.into(), "{blocks} blocks of a run of {} become used", run.blocks);
        self.meta.blocks.log_use(&mut self.open.edits, run)?;
        self.count_used(blocks);
        Ok(())
    }

    fn count_used(&mut self, blocks: u64) {
        // The device's count, which may be damaged: what is free says the bitmap.
        self.counters.free_blocks = self.counters.free_blocks.saturating_sub(blocks);
        self.used += blocks;
    }

    /// Records used blocks as free.
    ///
    /// # Errors
    /// What the allocator answers.
    pub(crate) fn free_run(&mut self, run: Run) -> Result<(), FsError> {
        self.meta.blocks.log_free(&mut self.open.edits, run)?;
        // On a full metadata region, freeing must still work.
        self.use_headroom();
        self.counters.free_blocks += u64::from(run.blocks);
        self.freed += u64::from(run.blocks);
        Ok(())
    }

    /// Applies all of it at once: visible from now on, durable by a later commit.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] when the metadata region is full; what the store answers. Nothing changed.
    pub(crate) fn apply(mut self) -> Result<Sequence, FsError> {
        let (meta, open) = (self.meta, &mut *self.open);
        let (batch, edits) = (&mut open.batch, &open.edits);
        meta.blocks.changed(edits, |chunk, bytes| match bytes {
            Some(bytes) => batch.put(&keys::bitmap(chunk), &bytes),
            None => batch.delete(&keys::bitmap(chunk)),
        });
        // Most changes make or remove an inode and nothing else: they go without this record.
        let numbers_out = self.counters.next_ino > open.written.next_ino;
        let counters = Counters {
            cursor: meta.blocks.cursor(),
            next_ino: match numbers_out {
                true => Ino(self.counters.next_ino.0 + NUMBERS_AHEAD),
                false => open.written.next_ino,
            },
            ..self.counters
        };
        let blocks_change = counters.free_blocks != open.written.free_blocks;
        let tell = numbers_out || blocks_change || self.tells_counters;
        if tell {
            open.batch.put(&keys::counters(), &counters.encode());
        }
        let sequence = meta.journal.apply(&open.batch)?;
        meta.blocks.applied(&mut open.edits, sequence);
        open.counters = self.counters;
        if tell {
            open.written = counters;
        }
        meta.next_ino.store(self.counters.next_ino.0, Ordering::SeqCst);
        meta.look_at_tree();
        if self.only_tells {
            meta.journal.told(sequence);
        } else {
            meta.journal.applied(sequence);
        }
        // Available, once somebody makes the batch durable, which a commit sees from here on.
        meta.blocks.ledger.freed(self.freed);
        self.follow();
        self.done = true;
        // Last: the change is whole, whatever the count says.
        meta.blocks.ledger.redeemed(self.used);
        Ok(sequence)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.done {
            let meta = self.meta;
            meta.blocks.undone(&mut self.open.edits);
        }
    }
}
