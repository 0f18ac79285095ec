//! Which data blocks are free, promised, taken, or freed and not free yet.
//!
//! In: wishes for room and for blocks, edits of the open batch. Out: reservations, and runs that nobody else has.
//! Blocks are reused only after the record that freed them is durable (decision 6).

pub(crate) mod alloc;
mod freed;
pub(crate) mod reservation;

use crate::blocks::alloc::{Allocator, Edits, Near, Run};
use crate::blocks::freed::{Freed, merged};
use crate::blocks::reservation::{Ledger, Reservation, Taken};
use crate::error::FsError;
use crate::journal::Journal;
use core::sync::atomic::Ordering;
use nvmed_io::Handle;
use nvmed_io::caller::{self, Urgency};
use nvmed_kv::Sequence;
use nvmed_layout::bitmap::{CHUNK_BLOCKS, CHUNK_BYTES};
use nvmed_layout::record::Counters;
use nvmed_layout::{Damage, Superblock, keys};
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, Block};

/// Rounds of looking for promised blocks while others free and take, before giving up.
const ROUNDS_MAX: u32 = 1000;
/// Chunks of the bitmap that a trim has in its hands at once, 256 MiB: allocations wait for it at most so long.
const TRIM_CHUNKS: u64 = 64;

/// The data blocks of a mount.
pub(crate) struct Blocks {
    alloc: Allocator,
    pub(crate) ledger: Ledger,
    freed: Freed,
    journal: Arc<Journal>,
    /// Tells the device of freed blocks.
    handle: Handle,
    lbas_per_block: u64,
    /// Whether it is told when they are durably free, and not at a trim only.
    discards: bool,
}

impl Blocks {
    /// The blocks as the counters tell of them.
    pub(crate) fn new(
        journal: Arc<Journal>,
        superblock: &Superblock,
        counters: &Counters,
        handle: Handle,
        (lbas_per_block, discards): (u64, bool),
    ) -> Self {
        Self {
            alloc: Allocator::new(Block(superblock.data_first), superblock.data_blocks, counters.cursor),
            ledger: Ledger::new(counters.free_blocks, Arc::clone(journal.health())),
            freed: Freed::default(),
            journal,
            handle,
            lbas_per_block,
            discards,
        }
    }

    /// Reads a bitmap record.
    fn load(&self, chunk: u64) -> Result<Option<[u8; CHUNK_BYTES]>, FsError> {
        let mut value = Vec::with_capacity(CHUNK_BYTES);
        if !self.journal.store.get(&keys::bitmap(chunk), &mut value)? {
            return Ok(None);
        }
        let bytes = value.as_slice().try_into();
        bytes.map(Some).map_err(|_| Damage::Bitmap(chunk).into())
    }

    /// Up to `want` blocks side by side, where they are near. They were promised, and are recorded by a change once the
    /// data is on the device, or given back by [`Blocks::give_back`].
    ///
    /// # Errors
    /// What the store answers; [`FsError::NoSpace`] only if more is taken than was promised.
    pub(crate) fn take(&self, near: Near, want: u32) -> Result<Run, FsError> {
        let load = |chunk| self.load(chunk);
        for _ in 0..ROUNDS_MAX {
            self.settle();
            if let Some(run) = self.alloc.take(near, want, &load)? {
                return Ok(run);
            }
            if self.freed.recall(&self.alloc) {
                continue;
            }
            if self.freed.holds() {
                // All that is free was freed by changes that are not durable yet: make them so.
                self.commit_all()?;
            } else if let Some(run) = self.alloc.take(near, want, &load)? {
                // A trim had the rest in its hands.
                return Ok(run);
            } else {
                break;
            }
        }
        Err(FsError::NoSpace)
    }

    /// Gives back blocks that were taken and not recorded. Their promise stands.
    pub(crate) fn give_back(&self, run: Run) {
        self.alloc.give_back(run);
    }

    /// A run that was taken, as a value that gives it back with its promise.
    pub(crate) fn taken<'a>(&'a self, run: Run, promise: Reservation<'a>) -> Taken<'a> {
        Taken::new(&self.alloc, run, promise)
    }

    /// The allocation group that a block lies in.
    pub(crate) fn group_of(&self, block: Block) -> u32 {
        self.alloc.group_of(block)
    }

    /// How many groups there are.
    pub(crate) fn groups(&self) -> u32 {
        self.alloc.groups()
    }

    /// How many bitmap records there may be.
    pub(crate) fn chunks(&self) -> u64 {
        self.alloc.chunks()
    }

    /// How many blocks of a run the records do not say are used; all of them are taken from now on.
    ///
    /// # Errors
    /// [`FsError::Layout`] outside the region; the store's.
    pub(crate) fn unmarked(&self, run: Run) -> Result<u64, FsError> {
        self.alloc.unmarked(run, &|chunk| self.load(chunk))
    }
}

/// What the open batch changes in the bitmap.
impl Blocks {
    /// Records taken blocks as used.
    ///
    /// # Errors
    /// [`FsError::Layout`] outside the region; the store's.
    pub(crate) fn log_use(&self, edits: &mut Edits, run: Run) -> Result<(), FsError> {
        self.alloc.log_use(edits, run, &|chunk| self.load(chunk))
    }

    /// Records used blocks as free; they stay taken until it is durable.
    ///
    /// # Errors
    /// As [`Blocks::log_use`].
    pub(crate) fn log_free(&self, edits: &mut Edits, run: Run) -> Result<(), FsError> {
        self.alloc.log_free(edits, run, &|chunk| self.load(chunk))
    }

    /// Tells the records that the open batch changes: chunk, and its bytes, none when all are free.
    pub(crate) fn changed(&self, edits: &Edits, put: impl FnMut(u64, Option<[u8; CHUNK_BYTES]>)) {
        if !edits.is_empty() {
            self.alloc.changed(edits, put);
        }
    }

    /// Where the next search begins, for the counters.
    pub(crate) fn cursor(&self) -> Block {
        self.alloc.cursor()
    }

    /// The open batch was applied: what it freed is held until it is durable.
    pub(crate) fn applied(&self, edits: &mut Edits, sequence: Sequence) {
        if !edits.is_empty() {
            self.alloc.applied(edits, |run| self.freed.hold(sequence, run));
        }
    }

    /// The open batch was not applied: the records are as they were.
    pub(crate) fn undone(&self, edits: &mut Edits) {
        self.alloc.undone(edits);
    }
}

/// Freed blocks on their way back.
impl Blocks {
    /// Makes every change so far durable, and the data that was written up to `ticket`.
    ///
    /// # Errors
    /// The store's or the device's.
    pub(crate) fn commit(&self, ticket: u64) -> Result<(), FsError> {
        if self.journal.commit(ticket)? && self.discards && self.freed.holds() {
            self.settle();
            if self.freed.is_due() {
                self.discard();
            }
        }
        Ok(())
    }

    /// Makes every change so far durable, and all data that was written to the device.
    ///
    /// # Errors
    /// As [`Blocks::commit`].
    pub(crate) fn commit_all(&self) -> Result<(), FsError> {
        self.commit(self.journal.order.written())
    }

    /// What was freed durably meanwhile may be used again.
    #[inline]
    fn settle(&self) {
        if self.freed.holds() {
            self.freed.settle(self.journal.store.durable(), &self.alloc, self.discards);
        }
    }

    /// Discards what waits for it. A device that refuses keeps what it has, which does no harm.
    pub(crate) fn discard(&self) {
        self.settle();
        if !self.freed.is_queued() {
            return;
        }
        let _turn = self.freed.turn.lock();
        let runs = merged(self.freed.take_queue());
        if self.discard_runs(&runs).is_err() {
            self.freed.refused.store(true, Ordering::Relaxed);
        }
        runs.iter().for_each(|run| self.alloc.give_back(*run));
    }

    /// Discards runs that nobody can allocate meanwhile; after an error, no more. It passes nobody, whoever does it:
    /// the device may work long on what no caller needs.
    fn discard_runs(&self, runs: &[Run]) -> Result<(), FsError> {
        caller::with(Urgency::Normal, || {
            for run in runs {
                let (lba, blocks) = (run.start.lba(self.lbas_per_block), u64::from(run.blocks));
                self.handle.discard(lba, blocks * self.lbas_per_block)?;
            }
            Ok(())
        })
    }

    /// Tells the device of all free space that its contents are not needed, but for runs shorter than `bytes_min`.
    /// Answers the bytes told.
    ///
    /// # Errors
    /// The device's and the store's.
    pub(crate) fn trim(&self, bytes_min: u64) -> Result<u64, FsError> {
        // What was freed up to now counts as free.
        self.commit_all()?;
        self.discard();
        let blocks_min = u32::try_from(bytes_min.div_ceil(BLOCK_BYTES as u64).max(1)).unwrap_or(u32::MAX);
        let chunks = self.alloc.chunks();
        let mut blocks = 0;
        for first in (0..chunks).step_by(TRIM_CHUNKS as usize) {
            let _turn = self.freed.turn.lock();
            let mut runs = Vec::new();
            let range = first..(first + TRIM_CHUNKS).min(chunks);
            let chunk_min = blocks_min.min(CHUNK_BLOCKS as u32);
            let taken = self.alloc.take_free(range, chunk_min, &|chunk| self.load(chunk), &mut runs);
            let long = merged(runs.clone());
            let long: Vec<Run> = long.into_iter().filter(|run| run.blocks >= blocks_min).collect();
            let told = taken.and_then(|()| self.discard_runs(&long));
            runs.iter().for_each(|run| self.alloc.give_back(*run));
            told?;
            blocks += long.iter().map(|run| u64::from(run.blocks)).sum::<u64>();
        }
        Ok(blocks * BLOCK_BYTES as u64)
    }
}
