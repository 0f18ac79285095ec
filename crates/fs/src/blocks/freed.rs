//! Freed blocks on their way back: first their record becomes durable, then, with the mount option, the
//! device is told that their contents are not needed, and only then are they free again (decision 6).

use super::alloc::{Allocator, Run};
use crate::broken::take_from;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nvmed_kv::Sequence;
use nvmed_mutant::Mutant;
use nvmed_sys::sync::Mutex;
use std::collections::VecDeque;

/// Blocks waiting to be discarded at which a commit sends them, 64 MiB: few commands for much space.
const DISCARD_BLOCKS: u64 = 1 << 14;

/// Blocks that were freed and are not free yet.
#[derive(Default)]
pub(super) struct Freed {
    /// Freed by batches that are not durable yet, oldest first.
    held: Mutex<VecDeque<(Sequence, Run)>>,
    /// Whether there are any.
    holds: AtomicBool,
    /// Durably free, to be discarded before they are used again.
    queue: Mutex<Vec<Run>>,
    queued_blocks: AtomicU64,
    /// Held by who discards, and who has blocks in its hands for that.
    pub(super) turn: Mutex<()>,
    /// The device has refused a discard: no more are sent.
    pub(super) refused: AtomicBool,
}

impl Freed {
    /// A batch that frees a run was applied.
    pub(super) fn hold(&self, sequence: Sequence, run: Run) {
        let mut held = self.held.lock();
        let last = held.back().map_or(Sequence(0), |(last, _)| *last);
        assert!(last <= sequence, "batch {} frees blocks after batch {}", sequence.0, last.0);
        held.push_back((sequence, run));
        self.holds.store(true, Ordering::Release);
        drop(held);
    }

    /// Whether freed blocks wait for their batch to become durable.
    pub(super) fn holds(&self) -> bool {
        self.holds.load(Ordering::Acquire)
    }

    /// Takes over what is durably free now: to be discarded, or at once for use.
    pub(super) fn settle(&self, durable: Sequence, alloc: &Allocator, discard: bool) {
        let mut held = self.held.lock();
        let discard = discard && !self.refused.load(Ordering::Relaxed);
        while let Some(&(sequence, run)) = held.front() {
            let early = if discard { Mutant::EarlyDiscard } else { Mutant::EarlyReuse };
            if sequence > durable && !early.is_made() {
                break;
            }
            held.pop_front();
            if discard {
                self.queue.lock().push(run);
                self.queued_blocks.fetch_add(u64::from(run.blocks), Ordering::Relaxed);
            } else {
                alloc.give_back(run);
            }
        }
        self.holds.store(!held.is_empty(), Ordering::Release);
    }

    /// Gives back what waits to be discarded, undiscarded: somebody needs it now. Waits for who has blocks in
    /// its hands.
    pub(super) fn recall(&self, alloc: &Allocator) -> bool {
        let _turn = self.turn.lock();
        let queue = self.take_queue();
        queue.iter().for_each(|run| alloc.give_back(*run));
        !queue.is_empty()
    }

    /// Takes what waits to be discarded.
    pub(super) fn take_queue(&self) -> Vec<Run> {
        let queue = core::mem::take(&mut *self.queue.lock());
        let blocks = queue.iter().map(|run| u64::from(run.blocks)).sum();
        take_from(&self.queued_blocks, blocks, "queued blocks");
        queue
    }

    /// Whether anything waits to be discarded.
    pub(super) fn is_queued(&self) -> bool {
        self.queued_blocks.load(Ordering::Relaxed) > 0
    }

    /// Whether so much waits to be discarded that it should not wait longer.
    pub(super) fn is_due(&self) -> bool {
        self.queued_blocks.load(Ordering::Relaxed) >= DISCARD_BLOCKS
    }
}

/// Sorted, and those that touch as one, as far as a run can be long.
pub(super) fn merged(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable_by_key(|run| run.start);
    let mut all: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match all.last_mut() {
            Some(last) if last.end() == run.start && last.blocks.checked_add(run.blocks).is_some() => {
                last.blocks += run.blocks;
            }
            _ => all.push(run),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_units::Block;

    fn run(start: u64, blocks: u32) -> Run {
        Run { start: Block(start), blocks }
    }

    #[test]
    fn a_freed_block_waits_for_its_record_to_be_durable() {
        let alloc = Allocator::new(Block(0), 8, Block(0));
        let freed = Freed::default();
        let all = alloc.take(super::super::alloc::Near::default(), 8, &|_| Ok(None)).unwrap().unwrap();
        assert_eq!(all, run(0, 8));
        freed.hold(Sequence(5), run(2, 3));
        freed.settle(Sequence(4), &alloc, false);
        assert!(freed.holds());
        assert_eq!(alloc.take(super::super::alloc::Near::default(), 1, &|_| Ok(None)).unwrap(), None);
        freed.settle(Sequence(5), &alloc, false);
        assert!(!freed.holds());
        assert_eq!(
            alloc.take(super::super::alloc::Near::default(), 8, &|_| Ok(None)).unwrap(),
            Some(run(2, 3))
        );
    }

    #[test]
    fn what_waits_to_be_discarded_can_be_called_back() {
        let alloc = Allocator::new(Block(0), 8, Block(0));
        let freed = Freed::default();
        alloc.take(super::super::alloc::Near::default(), 8, &|_| Ok(None)).unwrap().unwrap();
        freed.hold(Sequence(1), run(0, 2));
        freed.settle(Sequence(1), &alloc, true);
        assert_eq!(alloc.take(super::super::alloc::Near::default(), 1, &|_| Ok(None)).unwrap(), None);
        assert!(freed.recall(&alloc) && !freed.recall(&alloc));
        assert_eq!(
            alloc.take(super::super::alloc::Near::default(), 2, &|_| Ok(None)).unwrap(),
            Some(run(0, 2))
        );
    }

    #[test]
    #[should_panic(expected = "queued blocks: 2 taken from 1")]
    fn queued_blocks_are_counted() {
        let alloc = Allocator::new(Block(0), 8, Block(0));
        let freed = Freed::default();
        alloc.take(super::super::alloc::Near::default(), 8, &|_| Ok(None)).unwrap().unwrap();
        freed.hold(Sequence(1), run(0, 2));
        freed.settle(Sequence(1), &alloc, true);
        freed.queued_blocks.store(1, Ordering::SeqCst);
        freed.recall(&alloc);
    }

    #[test]
    #[should_panic(expected = "batch 4 frees blocks after batch 5")]
    fn batches_free_blocks_in_order() {
        let freed = Freed::default();
        freed.hold(Sequence(5), run(0, 2));
        freed.hold(Sequence(4), run(2, 2));
    }

    #[test]
    fn neighbours_are_told_as_one() {
        let runs =
            vec![run(30, 5), run(10, 10), run(20, 10), run(50, u32::MAX), run(50 + u64::from(u32::MAX), 1)];
        let expected = [run(10, 25), run(50, u32::MAX), run(50 + u64::from(u32::MAX), 1)];
        assert_eq!(merged(runs), expected);
    }
}
