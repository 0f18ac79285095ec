//! What was applied to the metadata store, and how much of it is durable.
//!
//! In: batches, and tickets of data writes. Out: sequences, and commits with the one barrier that they need.
//! A record is durable only after the data that it tells of (decision 6).

mod order;

use crate::error::FsError;
use crate::health::Health;
use crate::journal::order::Order;
use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_io::Handle;
use nvmed_kv::{Barrier, Batch, Sequence, Store};
use nvmed_mutant::Mutant;
use nvmed_sys::sync::Arc;

/// The metadata store of a mount, and what of it and of the data is durable.
pub(crate) struct Journal {
    pub(crate) store: Store,
    /// Sends the flushes of file data.
    handle: Handle,
    pub(crate) order: Order,
    last: LastSequence,
    /// Of the batches that a sync of whatever makes durable: all but those of [`Journal::told`].
    promised: LastSequence,
    health: Arc<Health>,
}

/// The sequence of the last batch applied.
#[derive(Default)]
struct LastSequence(AtomicU64);

impl LastSequence {
    fn store(&self, sequence: Sequence) {
        let before = self.0.fetch_max(sequence.0, Ordering::SeqCst);
        assert!(before <= sequence.0, "batch {} is told of after batch {before}", sequence.0);
    }

    fn load(&self) -> Sequence {
        Sequence(self.0.load(Ordering::SeqCst))
    }
}

impl Journal {
    /// Of a store whose batches so far count as applied.
    pub(crate) fn new(store: Store, handle: Handle, health: Arc<Health>) -> Self {
        let applied = || LastSequence(AtomicU64::new(store.applied().0));
        let (last, promised) = (applied(), applied());
        Self { store, handle, order: Order::default(), last, promised, health }
    }

    /// What may end the mount's changes.
    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Applies a batch; commits know of it from [`Journal::applied`] on.
    ///
    /// # Errors
    /// The store's. Nothing changed then.
    pub(crate) fn apply(&self, batch: &Batch) -> Result<Sequence, FsError> {
        self.store.apply(batch).map_err(|error| self.health.apply_failed(error))
    }

    /// What was freed by a batch is held back: commits may make it durable from now on.
    pub(crate) fn applied(&self, sequence: Sequence) {
        self.last.store(sequence);
        self.promised.store(sequence);
    }

    /// As [`Journal::applied`], of a batch that tells of nothing but data that was written back, and is durable: an
    /// urgent caller's sync need not make it durable, unless it is of a file that it tells of.
    pub(crate) fn told(&self, sequence: Sequence) {
        self.last.store(sequence);
    }

    /// Whether all is durable that an urgent caller's sync of a file promises: of that file, the batch `told` and the
    /// data up to `ticket`; and what was promised to anybody.
    pub(crate) fn keeps(&self, told: u64, ticket: u64) -> bool {
        let upto = self.promised.load().max(Sequence(told));
        self.health.is_open() && !self.order.is_open(ticket) && self.store.durable() >= upto
    }

    /// Whether no change waits to be made durable.
    pub(crate) fn is_committed(&self) -> bool {
        if Mutant::FsyncSendsNothing.is_made() || Mutant::NoDataFlush.is_made() {
            // A mistake that is made on purpose, and that a durable write would hide.
            return false;
        }
        self.is_durable()
    }

    /// Whether every change so far is durable.
    pub(crate) fn is_durable(&self) -> bool {
        self.store.durable() >= self.last.load()
    }

    /// Flushes the data that was written so far, for batches that are applied from now on: those need no flush.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn flush_data(&self) -> Result<(), FsError> {
        if Mutant::NoDataFlush.is_made() {
            return Ok(());
        }
        let written = self.order.written();
        self.handle.flush().map_err(|error| self.health.flush_failed(error))?;
        self.order.flushed(written);
        Ok(())
    }

    /// Makes every change so far durable, and the data that was written up to `ticket`; whether there was any change to
    /// make durable.
    ///
    /// # Errors
    /// The store's or the device's.
    pub(crate) fn commit(&self, ticket: u64) -> Result<bool, FsError> {
        if Mutant::FsyncSendsNothing.is_made() {
            return Ok(false);
        }
        if !self.health.is_open()
            && let Some(error) = self.health.lost_flush()
        {
            return Err(error);
        }
        // Read before the tickets: data of a batch up to here drew its ticket before the batch was applied.
        let last = self.last.load();
        let written = self.order.written();
        let data_open = self.order.is_open(ticket.max(self.order.forgotten()));
        if self.store.durable() >= last {
            if data_open {
                self.flush_data()?;
            }
            return Ok(false);
        }
        // Batches that want a flush before them say so themselves, and it does for the data too. A flush that another
        // thread's commit sent before this call covers its batches, not this data: only the store knows which it was.
        let barrier = if data_open { Barrier::After } else { Barrier::None };
        let flushed =
            self.store.commit_telling(last, barrier).map_err(|error| self.health.commit_failed(error))?;
        assert!(self.store.durable() >= last, "batch {} was committed and is not durable", last.0);
        if flushed {
            self.order.flushed(written);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "batch 4 is told of after batch 5")]
    fn batches_are_told_of_in_order() {
        let last = LastSequence::default();
        last.store(Sequence(5));
        last.store(Sequence(4));
    }
}
