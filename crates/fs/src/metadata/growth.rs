//! The metadata region grows: when the tree's free blocks run low, it takes a run of free data blocks.
//!
//! Order: the superblocks tell of the run first, with the flag `growing`; then a batch marks it as used, which a
//! mount that finds the flag does again; then the metadata store takes the blocks into use. So a power cut
//! anywhere leaves either a run that nobody uses or one that metadata has, and a mount looks at one run at most.

use crate::blocks::alloc::{Near, Run};
use crate::blocks::reservation::Taken;
use crate::error::FsError;
use crate::metadata::Metadata;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nvmed_kv::DeviceMedium;
use nvmed_layout::{Superblock, copies};
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_units::Block;

/// Blocks of a growth at most, 256 MiB, and at least, 256 KiB: the list of runs is bounded, so small ones are for
/// when there is nothing longer.
const GROW_BLOCKS_MAX: u64 = 1 << 16;
const GROW_BLOCKS_MIN: u32 = 64;
/// The region grows by this share of itself at once.
const GROW_SHARE: u64 = 4;
/// Where data blocks are scarce, it grows when less than this share of the tree's blocks is free.
const LOW_SHARE: u64 = 4;
/// Data blocks are scarce when less than this share is free.
const PLENTY_SHARE: u64 = 8;
/// Batches between two looks at the tree's free blocks: each adds a few at most.
const LOOK_EVERY: u64 = 16;
/// Tree blocks that are kept for what was promised already: recording it must not fail.
const PROMISE_BLOCKS: u64 = 128;
/// Extent records that fit one tree block for certain: each promised data block may become an extent of its own.
const EXTENTS_PER_BLOCK: u64 = 48;
/// Bitmap records that do.
const CHUNKS_PER_BLOCK: u64 = 16;
/// Blocks of log worth a checkpoint when room is looked for.
const LOG_BLOCKS_WORTH: u64 = 32;

/// What the growth of the metadata region needs.
pub(crate) struct Growth {
    medium: Arc<DeviceMedium>,
    /// The superblock as it is on the device.
    current: Mutex<Superblock>,
    /// Tree blocks that were free at the last look.
    free: AtomicU64,
    looks: AtomicU64,
    /// The tree's blocks run low.
    low: AtomicBool,
    /// Free data blocks when a growth failed: with no more than that it is not tried again.
    failed_at: AtomicU64,
    /// The medium may have blocks that the store does not use yet.
    behind: AtomicBool,
    /// A superblock could not be written: which one counts is unknown, so none is changed any more.
    broken: AtomicBool,
}

impl Growth {
    pub(crate) fn new(medium: Arc<DeviceMedium>, superblock: Superblock) -> Self {
        Self {
            medium,
            current: Mutex::new(superblock),
            free: AtomicU64::new(u64::MAX),
            looks: AtomicU64::new(0),
            low: AtomicBool::new(false),
            failed_at: AtomicU64::new(0),
            behind: AtomicBool::new(true),
            broken: AtomicBool::new(false),
        }
    }

    /// The superblock as it is on the device.
    pub(crate) fn superblock(&self) -> Superblock {
        self.current.lock().clone()
    }
}

impl Metadata {
    /// A batch was applied: now and then, looks how much room the tree has.
    #[inline]
    pub(crate) fn look_at_tree(&self) {
        if self.growth.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY) {
            self.look_closely();
        }
    }

    #[cold]
    fn look_closely(&self) {
        let [blocks, used, log_bytes] = self.journal.store.room_stats();
        // An estimate: counts of the store that change while they are read.
        let free = blocks.saturating_sub(used);
        let coming = log_bytes / nvmed_units::BLOCK_BYTES as u64;
        self.growth.free.store(free.saturating_sub(coming), Ordering::Relaxed);
        // A checkpoint writes new nodes beside the old ones: with as many free blocks as the tree has, it need
        // not come early. Where data wants the space, it may.
        let plenty = self.blocks.ledger.available() > self.superblock.data_blocks / PLENTY_SHARE;
        let wanted = if plenty { used } else { blocks / LOW_SHARE };
        let low = free < wanted + 2 * coming;
        self.growth.low.store(low, Ordering::Relaxed);
    }

    /// Whether records of all promised data blocks might find no room.
    #[inline]
    fn is_tight(&self) -> bool {
        let promised = self.blocks.ledger.promised();
        let chunks = promised.min(self.blocks.chunks());
        let needed = PROMISE_BLOCKS + promised / EXTENTS_PER_BLOCK + chunks / CHUNKS_PER_BLOCK;
        self.growth.free.load(Ordering::Relaxed) < needed
    }

    /// Sees to room in the tree for records of all promised data blocks: so a promise that was counted, and for which
    /// this has answered, is one of both.
    ///
    /// # Errors
    /// [`FsError::NoSpace`].
    #[inline]
    pub(crate) fn room_for_promises(&self) -> Result<(), FsError> {
        if self.is_tight() { self.make_tree_room() } else { Ok(()) }
    }

    /// Has the metadata region grow if the tree's blocks run low. The caller holds no lock of the namespace, an
    /// inode's state or the open batch. A failure leaves everything as it is: whoever finds no room is told.
    #[inline]
    pub(crate) fn grow_if_low(&self) {
        if self.growth.low.load(Ordering::Relaxed) {
            self.try_to_grow();
        }
    }

    #[cold]
    fn try_to_grow(&self) {
        let available = self.blocks.ledger.available();
        let hopeless = available <= self.growth.failed_at.load(Ordering::Relaxed);
        if hopeless || self.writable().is_err() || self.growth.broken.load(Ordering::Relaxed) {
            return;
        }
        // One is enough; who comes meanwhile goes on with what there is.
        let Some(mut current) = self.growth.current.try_lock() else { return };
        self.look_closely();
        if !self.growth.low.load(Ordering::Relaxed) {
            return;
        }
        if self.grow(&mut current).is_err() {
            self.growth.failed_at.store(self.blocks.ledger.available(), Ordering::Relaxed);
        } else {
            self.growth.failed_at.store(0, Ordering::Relaxed);
        }
        self.look_closely();
    }

    fn grow(&self, current: &mut Superblock) -> Result<(), FsError> {
        if self.growth.behind.load(Ordering::Relaxed) {
            // What an earlier growth has taken comes first.
            let before = self.journal.store.stats().tree_blocks;
            self.take_up()?;
            if self.journal.store.stats().tree_blocks > before {
                return Ok(());
            }
        }
        self.drop_spare();
        let taken = self.take_for_metadata(current.meta_blocks / GROW_SHARE)?;
        let run = taken.run();
        let grown = current.grown(run.numbers()).ok_or(FsError::NoSpace)?;
        let more = grown.meta_blocks - current.meta_blocks;
        assert_eq!(more, run.blocks.into(), "the metadata region grows by what was taken for it");
        // From here on the superblock may tell of the run: it stays out of use whatever happens.
        let run = taken.withhold();
        let device = self.handle.device();
        if let Err(error) = copies::store(device, &self.handle, &grown) {
            self.growth.broken.store(true, Ordering::Relaxed);
            return Err(error.into());
        }
        *current = grown;
        self.mark_as_metadata(run).inspect_err(|_| self.growth.broken.store(true, Ordering::Relaxed))?;
        self.growth.medium.extend(run.start..run.end()).map_err(|_| FsError::NoSpace)?;
        self.take_up()
    }

    /// The metadata store takes all blocks of its medium into use.
    fn take_up(&self) -> Result<(), FsError> {
        self.growth.behind.store(true, Ordering::Relaxed);
        self.journal.store.grow()?;
        self.growth.behind.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Has the tree's room grow for what is promised.
    #[cold]
    fn make_tree_room(&self) -> Result<(), FsError> {
        self.look_closely();
        if self.is_tight() {
            if self.journal.store.stats().log_bytes > LOG_BLOCKS_WORTH * nvmed_units::BLOCK_BYTES as u64 {
                // What the log will add to the tree is only estimated; then it is known.
                self.journal.store.checkpoint()?;
            }
            self.growth.low.store(true, Ordering::Relaxed);
            self.try_to_grow();
        }
        if self.is_tight() { Err(FsError::NoSpace) } else { Ok(()) }
    }

    /// A promised run of about `wanted` free blocks.
    fn take_for_metadata(&self, wanted: u64) -> Result<Taken<'_>, FsError> {
        let mut wanted = wanted.clamp(GROW_BLOCKS_MIN.into(), GROW_BLOCKS_MAX) as u32;
        let mut promise = loop {
            match self.blocks.ledger.reserve(wanted.into()) {
                Ok(promise) => break promise,
                Err(full) if wanted / 2 < GROW_BLOCKS_MIN => return Err(full),
                Err(_) => wanted /= 2,
            }
        };
        let run = self.blocks.take(Near::default(), wanted)?;
        promise.shrink_to(run.blocks.into());
        let taken = self.blocks.taken(run, promise);
        if run.blocks < GROW_BLOCKS_MIN { Err(FsError::NoSpace) } else { Ok(taken) }
    }

    /// Marks a run as used, durably.
    fn mark_as_metadata(&self, run: Run) -> Result<(), FsError> {
        let mut change = self.change();
        change.use_headroom();
        change.use_run(run)?;
        change.apply()?;
        self.commit_all()
    }

    /// At a mount: finishes a growth that was cut off, and mends a copy of the superblock.
    ///
    /// # Errors
    /// The store's and the device's.
    pub(crate) fn finish_growth(&self, copies_agree: bool) -> Result<(), FsError> {
        let current = self.growth.current.lock();
        if !copies_agree {
            copies::store(self.handle.device(), &self.handle, &current)?;
        }
        let last = current.taken_runs().last().cloned();
        let Some(last) = last else { return Ok(()) };
        if current.growing {
            self.mark_unmarked(last)?;
        }
        // The store may not have got so far.
        self.take_up()
    }

    /// Marks those blocks of a run that are not. The run may be that of several growths side by side.
    fn mark_unmarked(&self, last: Range<u64>) -> Result<(), FsError> {
        for run in steps(last) {
            let free = self.blocks.unmarked(run)?;
            if free > 0 {
                let mut promise = self.blocks.ledger.reserve(free)?;
                let mut change = self.change();
                change.use_headroom();
                change.use_some_of(run, free)?;
                change.apply()?;
                promise.redeemed(free);
            }
        }
        Ok(())
    }
}

/// Blocks side by side as runs of which each is no longer than one growth takes, and so fits one change.
fn steps(blocks: Range<u64>) -> impl Iterator<Item = Run> {
    let starts = blocks.clone().step_by(GROW_BLOCKS_MAX as usize);
    starts.map(move |start| Run {
        start: Block(start),
        blocks: (blocks.end - start).min(GROW_BLOCKS_MAX) as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_blocks_of_many_growths_side_by_side_are_in_a_step() {
        let blocks = 77..77 + (1 << 32) + 5;
        let mut at = blocks.start;
        for run in steps(blocks.clone()) {
            assert_eq!(run.start, Block(at));
            assert!(run.blocks > 0 && u64::from(run.blocks) <= GROW_BLOCKS_MAX);
            at = run.end().0;
        }
        assert_eq!(at, blocks.end);
    }
}
