//! Promises of data blocks: who was told that there is room finds it (docs/spec/rooms-of-fs.md, "Reservations").

use super::Blocks;
use super::alloc::{Allocator, Run};
use crate::error::FsError;
use crate::health::Health;
use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_sys::sync::Arc;
use nvmed_units::Block;

/// How many data blocks are free, and how many of them are promised.
pub(crate) struct Ledger {
    /// Free and promised to nobody.
    available: AtomicU64,
    /// Promised and not recorded as used.
    promised: AtomicU64,
    health: Arc<Health>,
}

impl Ledger {
    /// Of a file system with `free` free data blocks.
    pub(crate) fn new(free: u64, health: Arc<Health>) -> Self {
        Self { available: AtomicU64::new(free), promised: AtomicU64::new(0), health }
    }

    /// Free data blocks that are promised to nobody.
    #[inline]
    pub(crate) fn available(&self) -> u64 {
        self.available.load(Ordering::Relaxed)
    }

    /// Data blocks that are promised and not recorded.
    #[inline]
    pub(crate) fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    /// Promises `blocks` data blocks, so that a later allocation of as many cannot fail.
    ///
    /// # Errors
    /// [`FsError::NoSpace`].
    #[inline]
    pub(crate) fn reserve(&self, blocks: u64) -> Result<Reservation<'_>, FsError> {
        let take = |available: u64| available.checked_sub(blocks);
        let taken = self.available.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map_err(|_| FsError::NoSpace)?;
        self.promised.fetch_add(blocks, Ordering::Relaxed);
        Ok(Reservation { ledger: self, blocks })
    }

    /// No promise at all, for a run whose promise somebody else has.
    pub(crate) fn nothing(&self) -> Reservation<'_> {
        Reservation { ledger: self, blocks: 0 }
    }

    /// A change was applied that records `blocks` promised blocks as used. Whoever has their promise has it no more.
    pub(crate) fn redeemed(&self, blocks: u64) {
        self.health.take_from(&self.promised, blocks, "promised blocks");
    }

    /// A change was applied that records `blocks` used blocks as free.
    pub(crate) fn freed(&self, blocks: u64) {
        self.available.fetch_add(blocks, Ordering::Relaxed);
    }

    fn release(&self, blocks: u64) {
        self.available.fetch_add(blocks, Ordering::Relaxed);
        self.health.take_from(&self.promised, blocks, "promised blocks");
    }

    /// As a mistake of ours would leave it.
    #[cfg(test)]
    pub(crate) fn forget_promises(&self) {
        self.promised.store(1, Ordering::SeqCst);
    }
}

/// Promised data blocks. Those that are left when it is dropped are available to others.
#[must_use = "what is dropped is promised to nobody"]
pub(crate) struct Reservation<'a> {
    ledger: &'a Ledger,
    blocks: u64,
}

impl Reservation<'_> {
    /// How many.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Gives back what is beyond `blocks`.
    pub(crate) fn shrink_to(&mut self, blocks: u64) {
        if let Some(surplus) = self.blocks.checked_sub(blocks).filter(|surplus| *surplus > 0) {
            self.blocks = blocks;
            self.ledger.release(surplus);
        }
    }

    /// All of them, for somebody else to hold.
    pub(crate) fn take(&mut self) -> Self {
        Self { ledger: self.ledger, blocks: core::mem::take(&mut self.blocks) }
    }

    /// Up to `blocks` of them, for somebody else to hold.
    pub(crate) fn split(&mut self, blocks: u64) -> Self {
        let blocks = blocks.min(self.blocks);
        self.blocks -= blocks;
        Self { ledger: self.ledger, blocks }
    }

    /// Has the promises of another one, too.
    pub(crate) fn join(&mut self, mut other: Self) {
        self.blocks += core::mem::take(&mut other.blocks);
    }

    /// A change has recorded `blocks` of them as used.
    pub(crate) fn redeemed(&mut self, blocks: u64) {
        if blocks > self.blocks {
            self.ledger.health.broken(format!("{blocks} blocks were used of a promise of {}", self.blocks));
        }
        self.blocks = self.blocks.saturating_sub(blocks);
    }

    /// The promise stands without this value: nobody gives it back.
    pub(crate) fn withhold(mut self) -> u64 {
        core::mem::take(&mut self.blocks)
    }
}

impl Drop for Reservation<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.blocks > 0 {
            self.ledger.release(self.blocks);
        }
    }
}

/// Blocks that were taken from the allocator and not recorded, with the promise of some or all of them. Both are given
/// back when it is dropped.
#[must_use = "what is dropped is given back"]
pub(crate) struct Taken<'a> {
    alloc: &'a Allocator,
    run: Run,
    promise: Reservation<'a>,
}

impl<'a> Taken<'a> {
    /// A run of the allocator's, and its promise: none when somebody else has it.
    pub(super) fn new(alloc: &'a Allocator, run: Run, promise: Reservation<'a>) -> Self {
        Self { alloc, run, promise }
    }

    /// The blocks.
    pub(crate) fn run(&self) -> Run {
        self.run
    }

    /// Up to `want` blocks from its start, which stay taken; their own promise is given back, since whoever wants them
    /// has another.
    pub(crate) fn split(&mut self, want: u32) -> Run {
        let used = Run { start: self.run.start, blocks: self.run.blocks.min(want) };
        assert!(used.blocks > 0, "{want} of {} blocks are split off", self.run.blocks);
        self.run = Run { start: used.end(), blocks: self.run.blocks - used.blocks };
        self.promise.shrink_to(u64::from(self.run.blocks));
        used
    }

    /// The blocks stay taken, and promised, without this value.
    pub(crate) fn withhold(mut self) -> Run {
        let run = core::mem::replace(&mut self.run, Run { start: Block(0), blocks: 0 });
        self.promise.blocks = 0;
        run
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.run.blocks > 0 {
            self.alloc.give_back(self.run);
        }
    }
}

/// Blocks that are taken ahead of a growing file, each with a promise of its own; kept beside the file, which outlives
/// any value that refers to the mount.
#[derive(Default)]
pub(crate) struct Ahead(Option<Run>);

impl Ahead {
    /// Whether there are any.
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Keeps blocks, where none are kept.
    pub(crate) fn keep(&mut self, taken: Taken<'_>) {
        assert!(self.0.is_none(), "blocks ahead of a file take the place of others");
        assert_eq!(taken.promise.blocks, taken.run.blocks.into(), "promises of the blocks ahead of a file");
        let run = taken.withhold();
        self.0 = (run.blocks > 0).then_some(run);
    }

    /// Takes them back.
    pub(crate) fn take<'a>(&mut self, blocks: &'a Blocks) -> Option<Taken<'a>> {
        self.take_from(&blocks.alloc, &blocks.ledger)
    }

    fn take_from<'a>(&mut self, alloc: &'a Allocator, ledger: &'a Ledger) -> Option<Taken<'a>> {
        let run = self.0.take()?;
        Some(Taken { alloc, run, promise: Reservation { ledger, blocks: u64::from(run.blocks) } })
    }
}

/// The promises of a file's dirty pages that have no block, one each; kept as [`Ahead`] is.
#[derive(Default)]
pub(crate) struct Purse(AtomicU64);

impl Purse {
    /// How many.
    pub(crate) fn blocks(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Keeps promises.
    pub(crate) fn keep(&self, promise: Reservation<'_>) {
        self.0.fetch_add(promise.withhold(), Ordering::SeqCst);
    }

    /// Takes promises back.
    pub(crate) fn take<'a>(&self, ledger: &'a Ledger, blocks: u64) -> Reservation<'a> {
        ledger.health.take_from(&self.0, blocks, "promised pages of a file");
        Reservation { ledger, blocks }
    }

    /// Takes promises back, if there are so many.
    #[inline]
    pub(crate) fn try_take<'a>(&self, ledger: &'a Ledger, blocks: u64) -> Option<Reservation<'a>> {
        let fewer = |now: u64| now.checked_sub(blocks);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).ok()?;
        Some(Reservation { ledger, blocks })
    }

    /// Takes all promises back.
    pub(crate) fn take_all<'a>(&self, ledger: &'a Ledger) -> Reservation<'a> {
        Reservation { ledger, blocks: self.0.swap(0, Ordering::SeqCst) }
    }

    /// A change has recorded `blocks` of them as used.
    pub(crate) fn redeemed(&self, ledger: &Ledger, blocks: u64) {
        ledger.health.take_from(&self.0, blocks, "promised pages of a file");
    }

    /// As a mistake of ours would leave it.
    #[cfg(test)]
    pub(crate) fn forget_promises(&self) {
        self.0.store(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::alloc::Near;

    fn ledger(free: u64) -> Ledger {
        Ledger::new(free, Arc::default())
    }

    #[test]
    fn what_is_dropped_is_available_again() {
        let ledger = ledger(10);
        let mut promise = ledger.reserve(7).unwrap();
        assert!(matches!(ledger.reserve(4), Err(FsError::NoSpace)));
        promise.shrink_to(5);
        promise.redeemed(2);
        ledger.redeemed(2);
        assert_eq!((ledger.available(), ledger.promised()), (5, 3));
        drop(promise);
        assert_eq!((ledger.available(), ledger.promised()), (8, 0));
    }

    #[test]
    fn a_purse_keeps_promises_until_they_are_taken_or_redeemed() {
        let (ledger, purse) = (ledger(10), Purse::default());
        purse.keep(ledger.reserve(6).unwrap());
        assert_eq!((ledger.available(), ledger.promised(), purse.blocks()), (4, 6, 6));
        drop(purse.take(&ledger, 1));
        purse.redeemed(&ledger, 2);
        ledger.redeemed(2);
        assert_eq!((ledger.available(), ledger.promised(), purse.blocks()), (5, 3, 3));
        drop(purse.take_all(&ledger));
        assert_eq!((ledger.available(), ledger.promised(), purse.blocks()), (8, 0, 0));
    }

    #[test]
    fn taken_blocks_go_back_with_their_promise() {
        let (ledger, alloc) = (ledger(8), Allocator::new(Block(0), 8, Block(0)));
        let take = |want| alloc.take(Near::default(), want, &|_| Ok(None)).unwrap();
        let promise = ledger.reserve(8).unwrap();
        let mut taken = Taken::new(&alloc, take(8).unwrap(), promise);
        assert_eq!(taken.split(3), Run { start: Block(0), blocks: 3 });
        assert_eq!((ledger.available(), take(1)), (3, None));
        let mut ahead = Ahead::default();
        ahead.keep(taken);
        assert_eq!((ledger.available(), take(1), ahead.is_some()), (3, None, true));
        drop(ahead.take_from(&alloc, &ledger));
        assert_eq!((ledger.available(), take(8)), (8, Some(Run { start: Block(3), blocks: 5 })));
    }

    /// Keeps all blocks of a small region ahead of a file, with `promised` promises, and splits off `split` first.
    fn kept_ahead(ahead: &mut Ahead, promised: u64, split: u32) {
        let (ledger, alloc) = (ledger(8), Allocator::new(Block(0), 8, Block(0)));
        let run = alloc.take(Near::default(), 8, &|_| Ok(None)).unwrap().unwrap();
        let mut taken = Taken::new(&alloc, run, ledger.reserve(promised).unwrap());
        taken.split(split);
        ahead.keep(taken);
    }

    #[test]
    #[should_panic(expected = "blocks ahead of a file take the place of others")]
    fn blocks_ahead_are_not_lost() {
        let mut ahead = Ahead::default();
        kept_ahead(&mut ahead, 8, 1);
        kept_ahead(&mut ahead, 8, 1);
    }

    #[test]
    #[should_panic(expected = "promises of the blocks ahead of a file")]
    fn blocks_ahead_are_promised() {
        kept_ahead(&mut Ahead::default(), 3, 1);
    }

    #[test]
    #[should_panic(expected = "0 of 8 blocks are split off")]
    fn some_block_is_split_off() {
        kept_ahead(&mut Ahead::default(), 8, 0);
    }

    #[test]
    #[should_panic(expected = "promised blocks: 2 taken from 1")]
    fn promises_are_counted() {
        let ledger = ledger(4);
        let promise = ledger.reserve(2).unwrap();
        ledger.forget_promises();
        drop(promise);
    }

    #[test]
    #[should_panic(expected = "3 blocks were used of a promise of 2")]
    fn nobody_uses_more_than_was_promised() {
        let ledger = ledger(4);
        ledger.reserve(2).unwrap().redeemed(3);
    }
}
