//! Checkpoints: the changes in the log become part of the tree, and the log begins anew.
//!
//! A checkpoint goes in steps. Each merges changes of a part of the keys, in key order, and ends with a
//! superblock; the last one moves the head of the log. Readers go on with the tree of the step before and
//! both deltas; writers fill a new delta and the rest of the log. A commit that finds a step due does one.

use crate::commit::Barrier;
use crate::delta::Delta;
use crate::layout::TreeIndex;
use crate::merge::Merge;
use crate::pack::PACKED_BYTES_MIN;
use crate::pins::{self, Version};
use crate::space::Space;
use crate::state::{SnapshotState, State};
use crate::stream::{Position, Sequence};
use crate::superblock::Superblock;
use crate::{Batch, KvError, Store};
use core::sync::atomic::Ordering::Relaxed;
use nvmed_mutant::Mutant;
use nvmed_sys::sync::Arc;
use std::collections::VecDeque;

/// Tree blocks that only a checkpoint may use: one path and what it splits into, at seven levels.
const STEP_BLOCKS: u64 = 64;
/// `close` leaves a log of at most this many blocks for the next `open` to read.
const CLOSE_LOG_BLOCKS: u64 = 16;
/// Blocks of a step's budget that the superblock takes, and those that its bitmap pages take at most.
const SUPERBLOCK_BLOCKS: u64 = 2;
const BITMAP_BLOCKS_MAX: u64 = 32;

/// What only one checkpoint at a time uses.
pub(crate) struct Checkpointer {
    pub(crate) space: Space,
    /// Trees that somebody may still look at, oldest first, with the blocks that the next one did without.
    retired: VecDeque<Retired>,
    /// Of the delta that is being merged.
    progress: Option<Progress>,
    /// The memory of the delta before, for the one to come: fresh pages cost as much as filling them.
    spare: Option<Delta>,
}

struct Retired {
    version: Arc<Version>,
    freed: Vec<TreeIndex>,
}

/// How far a merge has come.
struct Progress {
    delta: Arc<Delta>,
    /// Where the log began when that was frozen.
    head: Position,
    /// The stream's end then, and the sequence of the last batch in it.
    end: Position,
    sequence: Sequence,
    /// Everything below is in the tree.
    from: Vec<u8>,
    /// About how many keys that is.
    done: u64,
    /// The log holds it, durably.
    logged: bool,
}

/// Why a batch cannot be applied just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Enough,
    /// The pending memory is full: a commit helps.
    PendingFull,
    /// The log or the tree's free blocks do not suffice: a checkpoint may help.
    CheckpointDue,
}

impl Checkpointer {
    pub(crate) fn new(superblock: &Superblock) -> Self {
        Self { space: Space::new(superblock), retired: VecDeque::new(), progress: None, spare: None }
    }

    /// Gives blocks free that nobody looks at any more; answers whether there were any.
    fn release(&mut self) -> bool {
        let before = self.space.held();
        while let Some(oldest) = self.retired.front_mut() {
            if !pins::is_alone(&mut oldest.version) {
                break;
            }
            self.space.release(&oldest.freed);
            self.retired.pop_front();
        }
        self.space.held() < before
    }
}

/// Tree blocks that merging `puts` records of `bytes` bytes into a tree of `used` blocks may add at most.
///
/// Leaves grow by the bytes, and by one for each leaf that is split just so; what is above them by no
/// more than they.
fn charge(puts: usize, bytes: usize, used: u64) -> u64 {
    2 * ((bytes / PACKED_BYTES_MIN) as u64 + (puts as u64).min(used)) + 8
}

impl Store {
    /// Moves everything in the log into the tree; the log is empty afterwards.
    ///
    /// # Errors
    /// The medium's, or a damaged block.
    pub fn checkpoint(&self) -> Result<(), KvError> {
        let goal = self.state.read().end;
        let mut checkpointer = self.checkpointer.lock();
        while self.state.read().head < goal {
            if !self.advance(&mut checkpointer, u64::MAX)? {
                break;
            }
        }
        Ok(())
    }

    /// Makes everything durable and leaves a short log, so that the next `open` is quick.
    ///
    /// # Errors
    /// As for `commit` and `checkpoint`.
    pub fn close(&self) -> Result<(), KvError> {
        self.commit_only(self.applied(), Barrier::Before)?;
        let (head, end) = {
            let state = self.state.read();
            (state.head, state.end)
        };
        assert!(end >= head, "the log ends at {end}, before its head {head}");
        let blocks = end.block() - head.block();
        if blocks > CLOSE_LOG_BLOCKS {
            self.checkpoint()?;
        }
        self.mend()?;
        self.settle()
    }

    /// After a commit: one step of a checkpoint when one is due, unless somebody else is at it.
    /// If it fails, the log still holds everything, and a later one may do better.
    pub(crate) fn step_if_due(&self) {
        if !self.pace.is_due(self.pending.end()) {
            return;
        }
        let Some(mut checkpointer) = self.checkpointer.try_lock() else {
            return;
        };
        if !self.pace.is_due(self.pending.end()) {
            return;
        }
        self.step_once(&mut checkpointer);
    }

    /// After an `apply` that ended at `end`: a step when commits have not kept up.
    pub(crate) fn step_if_urgent(&self, end: Position) {
        if !self.pace.is_urgent(end) {
            return;
        }
        let checkpointer = match self.pace.is_critical(end) {
            true => Some(self.checkpointer.lock()),
            false => self.checkpointer.try_lock(),
        };
        if let Some(mut checkpointer) = checkpointer
            && self.pace.is_urgent(self.pending.end())
        {
            self.pace.forced.fetch_add(1, Relaxed);
            self.step_once(&mut checkpointer);
        }
    }

    fn step_once(&self, checkpointer: &mut Checkpointer) {
        if self.advance(checkpointer, self.limits.commit_blocks).is_err() {
            self.pace.failed(self.pending.end());
        }
    }

    /// Whether `batch` can be applied to `state`.
    pub(crate) fn room(&self, state: &State, length: u64, batch: &Batch) -> Room {
        let log_blocks = (state.end + length).block() - state.head.block();
        let puts = state.active.puts() + batch.puts();
        let bytes = state.active.bytes() + batch.bytes();
        let frozen = state.frozen.as_ref().map_or(0, |frozen| frozen.charge);
        let kept =
            STEP_BLOCKS + if batch.may_use_headroom() { 0 } else { (state.total / 64).clamp(64, 1024) };
        let coming = charge(puts, bytes, state.used);
        // What merging may take is an estimate, so the sum may be more than there is: nothing is free then.
        let free = state.total.saturating_sub(state.used + frozen + kept);
        if coming * 2 > free {
            // The half that is being merged makes room for the other, as in the log.
            self.pace.hurry(state.end, coming * 4 > free * 3);
        }
        if log_blocks >= self.ring_blocks || coming > free {
            Room::CheckpointDue
        } else if state.end + length - self.pending.start() > self.pending.capacity() {
            Room::PendingFull
        } else {
            Room::Enough
        }
    }

    /// Frees log and tree blocks for `batch`.
    ///
    /// # Errors
    /// [`KvError::Full`] when everything is in the tree already.
    pub(crate) fn make_room(&self, length: u64, batch: &Batch) -> Result<(), KvError> {
        let mut checkpointer = self.checkpointer.lock();
        loop {
            {
                // Whoever held the checkpointer may have made the room.
                let state = self.state.read();
                if self.room(&state, length, batch) != Room::CheckpointDue {
                    return Ok(());
                }
                if state.head == state.end {
                    return Err(KvError::Full);
                }
            }
            self.pace.forced.fetch_add(1, Relaxed);
            self.advance(&mut checkpointer, self.limits.commit_blocks)?;
        }
    }

    /// One step, of a merge that is under way or of a new one; `false` when there is nothing to merge.
    fn advance(&self, checkpointer: &mut Checkpointer, blocks: u64) -> Result<bool, KvError> {
        if checkpointer.progress.is_none() {
            checkpointer.progress = self.freeze(&mut checkpointer.spare);
        }
        let Some(mut progress) = checkpointer.progress.take() else {
            return Ok(false);
        };
        let outcome = self.advance_merge(checkpointer, &mut progress, blocks);
        match outcome {
            Ok(true) => {
                self.checkpoints.fetch_add(1, Relaxed);
                self.pace.idle(progress.end);
                // A reader may still hold it; then its memory goes when the reader does.
                checkpointer.spare = Arc::into_inner(progress.delta).map(Delta::cleared);
            }
            Ok(false) | Err(_) => checkpointer.progress = Some(progress),
        }
        outcome.map(|_| true)
    }

    /// Turns the active delta into the frozen one.
    fn freeze(&self, spare: &mut Option<Delta>) -> Option<Progress> {
        let mut state = self.state.write();
        if state.end == state.head {
            return None;
        }
        let charge = charge(state.active.puts(), state.active.bytes(), state.used);
        let delta = state.freeze(spare.take().unwrap_or_default(), charge);
        let (head, end, sequence) = (state.head, state.end, state.sequence);
        Some(Progress { delta, head, end, sequence, from: Vec::new(), done: 0, logged: false })
    }

    /// A step of a merge; `true` when it was the last.
    fn advance_merge(
        &self,
        checkpointer: &mut Checkpointer,
        progress: &mut Progress,
        blocks: u64,
    ) -> Result<bool, KvError> {
        if !progress.logged {
            self.commit_only(progress.sequence, Barrier::Before)?;
            progress.logged = true;
        }
        self.commits.check()?;
        checkpointer.release();
        if checkpointer.space.free() < STEP_BLOCKS {
            self.reclaim(checkpointer, STEP_BLOCKS);
        }
        let mut step = self.step(checkpointer, progress, blocks);
        if step == Err(KvError::Full) && checkpointer.space.held() > 0 {
            checkpointer.space.abandon();
            self.reclaim(checkpointer, u64::MAX);
            step = self.step(checkpointer, progress, blocks);
        }
        let Some(next) = step.inspect_err(|_| checkpointer.space.abandon())? else {
            return Ok(true);
        };
        let Progress { delta, head, end, from, done, .. } = progress;
        *done += delta.records_between(from, &next) as u64;
        *from = next;
        self.pace.merging(*head, *end, *done, delta.records() as u64);
        Ok(false)
    }

    /// Merges from `progress.from` on as far as the blocks go; answers where to go on, `None` at the end.
    fn step(
        &self,
        checkpointer: &mut Checkpointer,
        progress: &Progress,
        blocks: u64,
    ) -> Result<Option<Vec<u8>>, KvError> {
        let old = self.superblock.lock().clone();
        let disk = self.disk.metered();
        let space = &mut checkpointer.space;
        let around = SUPERBLOCK_BLOCKS + 2 * old.layout.pages.min(BITMAP_BLOCKS_MAX);
        // A budget that bitmap pages alone use up still lets a step do its least.
        let budget = blocks.saturating_sub(around);
        let mut merge = Merge::new(&disk, &self.nodes, space, &old, &progress.delta, &progress.from, budget);
        let root = merge.run()?;
        let (next, moved) = (merge.at.take(), merge.moved);
        if !moved {
            return Err(KvError::Full);
        }
        let mut new = old.clone();
        new.root = root;
        new.generation += 1;
        space.write(&disk, &old, &mut new)?;
        if next.is_none() || Mutant::HeadMovedEarly.is_made() {
            (new.head, new.head_sequence) = (progress.end, progress.sequence);
        }
        if !Mutant::SuperblockBeforeNodes.is_made() {
            self.flush()?;
        }
        self.store_superblock(&mut new)?;
        let freed = space.settle(&new);
        for &block in &freed {
            self.nodes.forget(new.layout.tree_block(block));
        }
        let version = self.publish(&new, next.is_none());
        checkpointer.retired.push_back(Retired { version, freed });
        self.bound_snapshots(checkpointer);
        self.pace.steps.fetch_add(1, Relaxed);
        if blocks != u64::MAX {
            self.pace.worst.fetch_max(disk.spent() + SUPERBLOCK_BLOCKS, Relaxed);
        }
        Ok(next)
    }

    /// Writes `new` over the superblock that it was made from; a commit may have written its epoch since.
    fn store_superblock(&self, new: &mut Superblock) -> Result<(), KvError> {
        let mut current = self.superblock.lock();
        assert_eq!(new.generation, current.generation + 1, "generations come one after the other");
        assert!(
            new.head >= current.head && new.head_sequence >= current.head_sequence,
            "the log's head goes back"
        );
        (new.epoch, new.epoch_first) = (current.epoch, current.epoch_first);
        (new.revision, new.lost) = (current.revision, current.lost);
        if let Err(error) = new.store(&self.disk) {
            // Which of the two counts at the next open is unknown: nothing more may rest on either.
            self.commits.fail(&error);
            return Err(error);
        }
        *current = new.clone();
        Ok(())
    }

    /// Shows readers the tree of `new`; answers the one before.
    fn publish(&self, new: &Superblock, done: bool) -> Arc<Version> {
        let version = Arc::new(Version { root: new.root, generation: new.generation });
        let mut state = self.state.write();
        assert!(state.head <= new.head && new.head <= state.end, "the head {} is not in the log", new.head);
        (state.used, state.head) = (new.used, new.head);
        let frozen = if done { state.frozen.take() } else { None };
        let before = core::mem::replace(&mut state.version, version);
        drop(state);
        drop(frozen);
        before
    }

    /// Cuts off snapshots that are past a bound, and gives free what nobody looks at any more.
    fn bound_snapshots(&self, checkpointer: &mut Checkpointer) {
        let checkpoints = self.checkpoints.load(Relaxed);
        // The first snapshots are not as old as the limit yet.
        let oldest = checkpoints.saturating_sub(self.limits.snapshot_checkpoints);
        self.cut_off(checkpointer, &|snapshot| snapshot.checkpoints < oldest);
        checkpointer.release();
        let total = self.state.read().total;
        let max = self.limits.snapshot_blocks.unwrap_or(total / 4);
        while checkpointer.space.held() > max && self.cut_off_oldest(checkpointer) {
            checkpointer.release();
        }
        self.pace.pinned.store(checkpointer.space.held(), Relaxed);
    }

    /// Makes at least `wanted` blocks free, or all that are only held back: cuts snapshots off, oldest
    /// first, then waits for calls that are reading.
    fn reclaim(&self, checkpointer: &mut Checkpointer, wanted: u64) {
        while checkpointer.space.free() < wanted && checkpointer.space.held() > 0 {
            let helped = checkpointer.release();
            if helped || self.cut_off_oldest(checkpointer) {
                continue;
            }
            if let Some(oldest) = checkpointer.retired.front_mut() {
                self.pins.wait(&mut oldest.version);
            }
        }
    }

    /// Cuts off the snapshots of the oldest tree; `false` when there are none.
    fn cut_off_oldest(&self, checkpointer: &Checkpointer) -> bool {
        let oldest = self.state.read().snapshots.iter().map(|snapshot| snapshot.generation).min();
        let Some(oldest) = oldest else {
            return false;
        };
        self.cut_off(checkpointer, &|snapshot| snapshot.generation == oldest);
        true
    }

    fn cut_off(&self, checkpointer: &Checkpointer, gone: &dyn Fn(&SnapshotState) -> bool) {
        let checkpoints = self.checkpoints.load(Relaxed);
        let (out, total) = {
            let mut state = self.state.write();
            (state.forget_snapshots(|snapshot| gone(snapshot)), state.total)
        };
        for snapshot in out {
            snapshot.cut_off(KvError::SnapshotTooOld {
                sequence: snapshot.sequence,
                checkpoints: checkpoints - snapshot.checkpoints,
                checkpoints_max: self.limits.snapshot_checkpoints,
                blocks: checkpointer.space.held(),
                blocks_max: self.limits.snapshot_blocks.unwrap_or(total / 4),
            });
        }
    }
}
