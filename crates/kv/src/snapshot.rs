//! Snapshots: the store as it was after some batch.
//!
//! A snapshot holds the tree of its time and the changes that were in memory then. The tree's blocks are
//! not reused while it lives; the bounds of [`Options`](crate::Options) say how long that may go on. One
//! that is past a bound is cut off: it answers [`KvError::SnapshotTooOld`], and nothing waits for it.

use crate::delta::Delta;
use crate::intervals::Intervals;
use crate::iter::Iter;
use crate::pins::{Pin, Version};
use crate::scan::{Span, View, Visit};
use crate::store::State;
use crate::{KvError, Sequence, Store};
use core::ops::Bound;
use core::sync::atomic::Ordering::Relaxed;
use nvmed_sys::sync::{Arc, Mutex};

/// A snapshot, as the store knows it.
pub(crate) struct Held {
    /// The last batch that it sees.
    pub(crate) sequence: u64,
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

impl Held {
    /// Where to look now. The caller holds the state's lock.
    pub(crate) fn layers<'a>(&self, store: &'a Store) -> Result<Layers<'a>, KvError> {
        let past = self.past.lock();
        let Past { version, older, newer, erased } = past.as_ref().map_err(KvError::clone)?;
        let pin = store.pins.pin(version);
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

/// The store as it was when [`Store::snapshot`] was called: exactly the batches applied before.
pub struct Snapshot<'a> {
    store: &'a Store,
    held: Arc<Held>,
}

impl core::fmt::Debug for Snapshot<'_> {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Snapshot").field("sequence", &self.held.sequence).finish_non_exhaustive()
    }
}

impl Store {
    /// The store as it is now, for reading at leisure. Costs next to nothing until something changes.
    ///
    /// While it lives, blocks that its tree uses are not reused and values that it sees are kept in memory
    /// until their checkpoint, both within the bounds of [`crate::Options`].
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_> {
        let checkpoints = self.checkpoints.load(Relaxed);
        let mut state = self.state.write();
        let past = Past {
            version: Arc::clone(&state.version),
            older: state.frozen.as_ref().map(|frozen| Arc::clone(frozen.delta())),
            newer: None,
            erased: Arc::clone(state.active.erased()),
        };
        let (sequence, generation) = (state.sequence, state.version.generation);
        let held = Arc::new(Held { sequence, generation, checkpoints, past: Mutex::new(Ok(past)) });
        state.snapshots.push(Arc::clone(&held));
        state.kept = sequence;
        Snapshot { store: self, held }
    }
}

impl State {
    /// Forgets the snapshots that `gone` picks; answers them.
    pub(crate) fn forget_snapshots(&mut self, gone: impl Fn(&Arc<Held>) -> bool) -> Vec<Arc<Held>> {
        let (out, kept) = core::mem::take(&mut self.snapshots).into_iter().partition(gone);
        self.snapshots = kept;
        self.kept = self.snapshots.iter().map(|held| held.sequence).max().unwrap_or(0);
        out
    }
}

impl Snapshot<'_> {
    /// The last batch that it sees.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        Sequence(self.held.sequence)
    }

    /// As [`Store::get`].
    ///
    /// # Errors
    /// [`KvError::SnapshotTooOld`]; a damaged block, or the medium's.
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, KvError> {
        value.clear();
        let state = self.store.state.read();
        let layers = self.held.layers(self.store)?;
        let newest = layers.newer.as_deref().unwrap_or(&state.active);
        let mut known = newest.get_at(key, self.held.sequence);
        if known.is_none() && layers.erased.contain(key) {
            known = Some(None);
        }
        if let Some(known) = known {
            value.extend_from_slice(known.unwrap_or(&[]));
            return Ok(known.is_some());
        }
        drop(state);
        if let Some(older) = &layers.older {
            match older.get(key) {
                Some(known) => {
                    value.extend_from_slice(known.unwrap_or(&[]));
                    return Ok(known.is_some());
                }
                None if older.erases(key) => return Ok(false),
                None => {}
            }
        }
        self.store.tree(layers.pin.root()).get(key, value)
    }

    /// As [`Store::scan`], and every key of the snapshot is visited.
    ///
    /// # Errors
    /// [`KvError::SnapshotTooOld`]; a damaged block, or the medium's.
    pub fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, visit: &mut Visit<'_>) -> Result<(), KvError> {
        self.view().scan(Span::up(from, to), visit)
    }

    /// As [`Snapshot::scan`], from `to` down to `from`.
    ///
    /// # Errors
    /// As [`Snapshot::scan`].
    pub fn scan_reverse(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<(), KvError> {
        self.view().scan(Span::down(from, to), visit)
    }

    /// As [`Store::iter`].
    #[must_use]
    pub fn iter(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Iter<'_> {
        Iter::new(self.view(), from, to)
    }

    fn view(&self) -> View<'_> {
        View::Then(self.store, &self.held)
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        let gone = {
            let mut state = self.store.state.write();
            state.forget_snapshots(|held| Arc::ptr_eq(held, &self.held))
        };
        // What it kept, perhaps megabytes, goes outside of the lock.
        drop(gone);
    }
}
