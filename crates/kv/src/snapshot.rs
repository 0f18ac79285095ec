//! Snapshots: the store as it was after some batch.
//!
//! A snapshot holds the tree of its time and the changes that were in memory then. The tree's blocks are
//! not reused while it lives; the bounds of [`Options`](crate::Options) say how long that may go on. One
//! that is past a bound is cut off: it answers [`KvError::SnapshotTooOld`], and nothing waits for it.

use crate::iter::Iter;
use crate::scan::{Span, View, Visit};
use crate::state::SnapshotState;
use crate::stream::Sequence;
use crate::{KvError, Store};
use core::ops::Bound;
use core::sync::atomic::Ordering::Relaxed;
use nvmed_sys::sync::Arc;

/// The store as it was when [`Store::snapshot`] was called: exactly the batches applied before.
pub struct Snapshot<'a> {
    store: &'a Store,
    kept: Arc<SnapshotState>,
}

impl core::fmt::Debug for Snapshot<'_> {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Snapshot").field("sequence", &self.kept.sequence).finish_non_exhaustive()
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
        let kept = self.state.write().hold(checkpoints);
        Snapshot { store: self, kept }
    }
}

impl Snapshot<'_> {
    /// The last batch that it sees.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        self.kept.sequence
    }

    /// As [`Store::get`].
    ///
    /// # Errors
    /// [`KvError::SnapshotTooOld`]; a damaged block, or the medium's.
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, KvError> {
        value.clear();
        let state = self.store.state.read();
        let layers = self.kept.layers(&self.store.pins)?;
        let newest = layers.newer.as_deref().unwrap_or(&state.active);
        let mut known = newest.get_at(key, self.kept.sequence);
        if known.is_none() && layers.erased.contain(key) {
            known = Some(None);
        }
        if let Some(known) = known {
            value.extend_from_slice(known.unwrap_or(&[]));
            return Ok(known.is_some());
        }
        drop(state);
        if let Some(known) = layers.older.as_ref().and_then(|older| older.known(key)) {
            value.extend_from_slice(known.unwrap_or(&[]));
            return Ok(known.is_some());
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
        View::Then(self.store, &self.kept)
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        let gone = {
            let mut state = self.store.state.write();
            state.forget_snapshots(|snapshot| Arc::ptr_eq(snapshot, &self.kept))
        };
        // What it kept, perhaps megabytes, goes outside of the lock.
        drop(gone);
    }
}
