//! Checkpoints: the changes in the log become part of the tree, and the log begins anew.
//!
//! Readers go on with the old tree and both deltas; writers fill a new delta and the rest of the log.

use crate::commit::Barrier;
use crate::delta::{Cursor, Delta};
use crate::guard::{lock, read, write};
use crate::log;
use crate::merge::{self, Merge};
use crate::pack::PACKED_BYTES_MIN;
use crate::pins::Parity;
use crate::space::Space;
use crate::store::{State, Store};
use crate::superblock::Superblock;
use crate::{Batch, KvError, Sequence};
use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, TryLockError};

/// Tree blocks that only a checkpoint may use: one path and what it splits into, at seven levels.
const STEP_BLOCKS: u64 = 64;
/// `close` leaves a log of at most this many blocks for the next `open` to read.
const CLOSE_LOG_BLOCKS: u64 = 16;

/// What only one checkpoint at a time uses.
pub(crate) struct Checkpointer {
    pub(crate) space: Space,
    /// Whose readers may still see the blocks that the last superblock freed.
    before: Parity,
    /// The memory of the delta before, for the one to come: fresh pages cost as much as filling them.
    spare: Option<Delta>,
}

/// A delta on its way into the tree.
#[derive(Clone)]
struct Work {
    delta: Arc<Delta>,
    /// The stream's end and the sequence of the last batch in it.
    end: u64,
    sequence: u64,
}

/// What is frozen, and what its merge will need.
pub(crate) struct Frozen {
    work: Work,
    charge: u64,
}

impl Frozen {
    pub(crate) fn delta(&self) -> &Arc<Delta> {
        &self.work.delta
    }
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
        Self { space: Space::new(superblock), before: Parity::default().other(), spare: None }
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
        let mut checkpointer = lock(&self.checkpointer);
        self.checkpoint_all(&mut checkpointer)
    }

    /// Makes everything durable and leaves a short log, so that the next `open` is quick.
    ///
    /// # Errors
    /// As for `commit` and `checkpoint`.
    pub fn close(&self) -> Result<(), KvError> {
        self.commit(self.applied(), Barrier::Before)?;
        let (head, end) = {
            let state = read(&self.state);
            (state.head, state.end)
        };
        let blocks = log::stream_block(end) - log::stream_block(head);
        if blocks > CLOSE_LOG_BLOCKS { self.checkpoint() } else { Ok(()) }
    }

    /// After a commit: begins a checkpoint when half of the log is full, unless one is under way.
    /// If it fails, the log still holds everything, and a later one may do better.
    pub(crate) fn checkpoint_if_due(&self) {
        if self.pending.end() < self.due_at.load(Relaxed) {
            return;
        }
        let mut checkpointer = match self.checkpointer.try_lock() {
            Ok(checkpointer) => checkpointer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if self.checkpoint_all(&mut checkpointer).is_err() {
            let patience = self.layout.log_blocks * log::PAYLOAD_BYTES / 16;
            self.due_at.store(self.pending.end() + patience, Relaxed);
        }
    }

    /// Whether `batch` can be applied to `state`.
    pub(crate) fn room(&self, state: &State, length: u64, batch: &Batch) -> Room {
        let log_blocks = log::stream_block(state.end + length) - log::stream_block(state.head);
        let puts = state.active.puts() + batch.puts();
        let bytes = state.active.bytes() + batch.bytes();
        let frozen = state.frozen.as_ref().map_or(0, |frozen| frozen.charge);
        let total = self.layout.tree_blocks();
        let kept = STEP_BLOCKS + if batch.may_use_headroom() { 0 } else { (total / 64).clamp(64, 1024) };
        if log_blocks >= self.layout.log_blocks
            || state.used + frozen + charge(puts, bytes, state.used) + kept > total
        {
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
        let mut checkpointer = lock(&self.checkpointer);
        {
            // Whoever held the checkpointer may have made the room.
            let state = read(&self.state);
            if self.room(&state, length, batch) != Room::CheckpointDue {
                return Ok(());
            }
            if state.head == state.end {
                return Err(KvError::Full);
            }
        }
        self.checkpoint_all(&mut checkpointer)
    }

    fn checkpoint_all(&self, checkpointer: &mut Checkpointer) -> Result<(), KvError> {
        // What a failed checkpoint left comes first.
        let left = read(&self.state).frozen.as_ref().map(|frozen| frozen.work.clone());
        if let Some(work) = left {
            self.merge(checkpointer, work)?;
        }
        match self.freeze(checkpointer) {
            Some(work) => self.merge(checkpointer, work),
            None => Ok(()),
        }
    }

    /// Turns the active delta into the frozen one.
    fn freeze(&self, checkpointer: &mut Checkpointer) -> Option<Work> {
        let mut state = write(&self.state);
        if state.end == state.head {
            return None;
        }
        debug_assert!(state.frozen.is_none());
        let empty = checkpointer.spare.take().unwrap_or_default();
        let delta = Arc::new(core::mem::replace(&mut state.active, empty));
        let charge = charge(delta.puts(), delta.bytes(), state.used);
        let work = Work { delta, end: state.end, sequence: state.sequence };
        state.frozen = Some(Frozen { work: work.clone(), charge });
        Some(work)
    }

    /// Merges `work` into the tree, in one step or in as many as the free blocks make necessary.
    fn merge(&self, checkpointer: &mut Checkpointer, work: Work) -> Result<(), KvError> {
        self.commit_only(Sequence(work.sequence), Barrier::Before)?;
        let mut next = Some(merge::start(&work.delta));
        while let Some(at) = next {
            self.commits.check()?;
            // From here on, blocks that only the tree before used may be written.
            self.pins.drain(checkpointer.before);
            let step = self.step(checkpointer, &work, at);
            if step.is_err() {
                checkpointer.space.abandon();
            }
            next = step?;
        }
        self.checkpoints.fetch_add(1, Relaxed);
        self.due_at.store(work.end + self.layout.log_blocks * log::PAYLOAD_BYTES / 2, Relaxed);
        // A scan may still hold it; then its memory goes when the scan ends.
        checkpointer.spare = Arc::into_inner(work.delta).map(Delta::cleared);
        Ok(())
    }

    /// Merges from `at` on as far as the free blocks go; answers where to go on, `None` at the end.
    fn step(
        &self,
        checkpointer: &mut Checkpointer,
        work: &Work,
        at: Cursor,
    ) -> Result<Option<Cursor>, KvError> {
        let old = lock(&self.superblock).clone();
        let space = &mut checkpointer.space;
        let mut merge = Merge::new(&self.disk, &self.nodes, space, &old, &work.delta, at);
        let root = merge.run()?;
        let next = work.delta.entry(merge.at).map(|_| merge.at);
        if next == Some(at) {
            return Err(KvError::Full);
        }
        let mut new = old.clone();
        new.root = root;
        new.generation += 1;
        space.write(&self.disk, &old, &mut new)?;
        if next.is_none() {
            (new.head, new.head_sequence) = (work.end, work.sequence);
        }
        self.disk.flush()?;
        self.store_superblock(&mut new)?;
        for block in space.settle(&new) {
            self.nodes.forget(block);
        }
        checkpointer.before = self.publish(&new, next.is_none());
        Ok(next)
    }

    /// Writes `new` over the superblock that it was made from; commits may have changed its epoch since.
    fn store_superblock(&self, new: &mut Superblock) -> Result<(), KvError> {
        let mut current = lock(&self.superblock);
        (new.epoch, new.revision) = (current.epoch, current.revision);
        if let Err(error) = new.store(&self.disk) {
            // Which of the two counts at the next open is unknown: nothing more may rest on either.
            self.commits.fail(&error);
            return Err(error);
        }
        *current = new.clone();
        Ok(())
    }

    /// Shows readers the tree of `new`; answers the parity of those that still see the one before.
    fn publish(&self, new: &Superblock, done: bool) -> Parity {
        let mut state = write(&self.state);
        let before = state.parity;
        state.parity = before.other();
        (state.root, state.used, state.head) = (new.root, new.used, new.head);
        if done {
            state.frozen = None;
        }
        before
    }
}
