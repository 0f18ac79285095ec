//! What readers and writers of a store share: the changes that are not in the tree, the tree, and who looks at which.

use crate::batch::{Operation, Operations};
use crate::delta::{Change, Delta};
use crate::intervals::Intervals;
use crate::pins::{Pin, Pins, Version};
use crate::stream::{Position, Sequence};
use crate::{KvError, record};
use nvmed_sys::sync::{Arc, Mutex};

/// What readers and writers share. Never held during I/O.
pub(crate) struct State {
    /// The last batch applied.
    pub(crate) sequence: Sequence,
    /// The end of the stream: after that batch.
    pub(crate) end: Position,
    /// The last batch that asked for a flush before its append.
    pub(crate) flush_first: Sequence,
    /// Where the log begins: after the last batch that the tree holds.
    pub(crate) head: Position,
    /// Changes that no checkpoint has begun to take up.
    pub(crate) active: Delta,
    /// Changes that a checkpoint is merging into the tree.
    pub(crate) frozen: Option<Frozen>,
    /// The tree.
    pub(crate) version: Arc<Version>,
    /// Tree blocks in use.
    pub(crate) used: u64,
    /// Tree blocks in all.
    pub(crate) total: u64,
    /// Snapshots that can be read.
    pub(crate) snapshots: Vec<Arc<SnapshotState>>,
    /// The last batch that one of them sees; 0 without.
    pub(crate) kept: Sequence,
}

/// A delta on its way into the tree.
pub(crate) struct Frozen {
    delta: Arc<Delta>,
    /// Blocks that its merge may need.
    pub(crate) charge: u64,
}

/// A snapshot, as the store knows it.
pub(crate) struct SnapshotState {
    /// The last batch that it sees.
    pub(crate) sequence: Sequence,
    /// Of its tree.
    pub(crate) generation: u64,
    /// Checkpoints finished when it was taken.
    pub(crate) checkpoints: u64,
    past: Mutex<Result<Past, KvError>>,
}

/// What a snapshot keeps.
#[derive(Clone)]
struct Past {
    version: Arc<Version>,
    /// Changes that were on their way into the tree.
    older: Option<Arc<Delta>>,
    /// Changes that no checkpoint had begun to take up; `None` while none has.
    newer: Option<Arc<Delta>>,
    /// Ranges that were gone in these.
    erased: Arc<Intervals>,
}

/// Where a reader looks, newest first.
pub(crate) struct Layers<'a> {
    /// `None`: the store's active changes.
    pub(crate) newer: Option<Arc<Delta>>,
    /// Of the newest changes.
    pub(crate) erased: Arc<Intervals>,
    pub(crate) older: Option<Arc<Delta>>,
    pub(crate) pin: Pin<'a>,
}

impl SnapshotState {
    /// Where to look now. The caller holds the state's lock.
    pub(crate) fn layers<'a>(&self, pins: &'a Pins) -> Result<Layers<'a>, KvError> {
        let past = self.past.lock();
        let Past { version, older, newer, erased } = past.as_ref().map_err(KvError::clone)?;
        let pin = pins.pin(version);
        Ok(Layers { newer: newer.clone(), erased: Arc::clone(erased), older: older.clone(), pin })
    }

    /// The active changes are to be merged: from now on they lie in `delta`.
    pub(crate) fn freeze(&self, delta: &Arc<Delta>) {
        if let Ok(past) = &mut *self.past.lock() {
            past.newer.get_or_insert_with(|| Arc::clone(delta));
        }
    }

    /// Lets go of everything; who asks gets `reason`.
    pub(crate) fn cut_off(&self, reason: KvError) {
        *self.past.lock() = Err(reason);
    }
}

impl State {
    /// Takes up the next batch.
    pub(crate) fn apply(&mut self, operations: &[u8]) {
        self.sequence = self.sequence.next();
        let (batch, kept) = (self.sequence, self.kept);
        for operation in Operations::new(operations).flatten() {
            match operation {
                Operation::Put(key, value) => _ = self.active.set(key, Some(value), batch, kept),
                Operation::Delete(key) => _ = self.active.set(key, None, batch, kept),
                Operation::DeleteRange(from, to) => self.active.erase(from, to, batch, kept),
            }
        }
        self.end += (record::HEADER_BYTES + operations.len()) as u64;
    }

    /// What is known of `key` without the tree.
    pub(crate) fn change(&self, key: &[u8]) -> Option<Change<'_>> {
        self.active.known(key).or_else(|| self.frozen.as_ref()?.delta.known(key))
    }

    /// Where a reader of everything looks.
    pub(crate) fn layers<'a>(&self, pins: &'a Pins) -> Layers<'a> {
        Layers {
            newer: None,
            erased: Arc::clone(self.active.erased()),
            older: self.frozen.as_ref().map(|frozen| Arc::clone(&frozen.delta)),
            pin: pins.pin(&self.version),
        }
    }

    /// Turns the active delta into the frozen one, and `empty` into the active one.
    pub(crate) fn freeze(&mut self, empty: Delta, charge: u64) -> Arc<Delta> {
        assert!(self.frozen.is_none(), "a checkpoint is under way");
        assert!(self.end > self.head, "the log ends at {}, before its head {}", self.end, self.head);
        let delta = Arc::new(core::mem::replace(&mut self.active, empty.since(self.sequence)));
        for snapshot in &self.snapshots {
            snapshot.freeze(&delta);
        }
        self.frozen = Some(Frozen { delta: Arc::clone(&delta), charge });
        delta
    }

    /// A snapshot of what is there now, after that many `checkpoints`.
    pub(crate) fn hold(&mut self, checkpoints: u64) -> Arc<SnapshotState> {
        let past = Past {
            version: Arc::clone(&self.version),
            older: self.frozen.as_ref().map(|frozen| Arc::clone(&frozen.delta)),
            newer: None,
            erased: Arc::clone(self.active.erased()),
        };
        let (sequence, generation) = (self.sequence, self.version.generation);
        let snapshot =
            Arc::new(SnapshotState { sequence, generation, checkpoints, past: Mutex::new(Ok(past)) });
        self.snapshots.push(Arc::clone(&snapshot));
        self.kept = sequence;
        snapshot
    }

    /// Forgets the snapshots that `gone` picks; answers them.
    pub(crate) fn forget_snapshots(
        &mut self,
        gone: impl Fn(&Arc<SnapshotState>) -> bool,
    ) -> Vec<Arc<SnapshotState>> {
        let (out, kept) = core::mem::take(&mut self.snapshots).into_iter().partition(gone);
        self.snapshots = kept;
        self.kept = self.snapshots.iter().map(|snapshot| snapshot.sequence).max().unwrap_or_default();
        out
    }
}
