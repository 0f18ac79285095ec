//! Which data writes the device may still lose, so that a commit knows whether it needs a FLUSH.
//!
//! Every data write draws a ticket when it has completed. A FLUSH covers the tickets drawn before it
//! was sent. Writes to newly allocated blocks need none for themselves: the batch that names the blocks
//! asks the store for a flush before its log append (design decision 9).

use core::sync::atomic::{AtomicU64, Ordering};

/// Tickets of completed data writes.
#[derive(Default)]
pub(crate) struct Order {
    written: AtomicU64,
    /// The highest ticket of a write to newly allocated blocks.
    fresh: AtomicU64,
    /// The highest ticket covered by a flush.
    flushed: AtomicU64,
}

impl Order {
    /// A write to the device has completed; `fresh` if its blocks were newly allocated.
    pub(crate) fn wrote(&self, fresh: bool) -> u64 {
        let ticket = self.written.fetch_add(1, Ordering::SeqCst) + 1;
        if fresh {
            self.fresh.fetch_max(ticket, Ordering::SeqCst);
        }
        ticket
    }

    /// A record is about to show what the write with this ticket wrote: a flush goes before it.
    pub(crate) fn exposes(&self, ticket: u64) {
        self.fresh.fetch_max(ticket, Ordering::SeqCst);
    }

    /// The last ticket drawn: what a flush that begins now will cover.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// A flush that began when `written` was the last ticket has succeeded.
    pub(crate) fn flushed(&self, written: u64) {
        self.flushed.fetch_max(written, Ordering::SeqCst);
    }

    /// Whether the device may still lose the write with this ticket.
    pub(crate) fn is_open(&self, ticket: u64) -> bool {
        ticket > self.flushed.load(Ordering::SeqCst)
    }

    /// Whether newly allocated blocks were written since the last flush.
    pub(crate) fn has_fresh(&self) -> bool {
        self.is_open(self.fresh.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_was_written_before_it_began() {
        let order = Order::default();
        let first = order.wrote(false);
        let covered = order.written();
        let second = order.wrote(true);
        assert!(order.is_open(first) && order.has_fresh());
        order.flushed(covered);
        assert!(!order.is_open(first) && order.is_open(second) && order.has_fresh());
        order.flushed(order.written());
        assert!(!order.is_open(second) && !order.has_fresh());
    }
}
