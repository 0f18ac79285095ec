//! Which data writes the device may still lose, so that a commit knows whether it needs a FLUSH.
//!
//! Every data write draws a ticket when it has completed. A FLUSH covers the tickets drawn before it
//! was sent. A file remembers its last ticket, except for a write to newly allocated blocks: the batch that names
//! the blocks asks the store for a flush before its log append (decision 6).

use core::sync::atomic::{AtomicU64, Ordering};

/// Tickets of completed data writes.
#[derive(Default)]
pub(crate) struct Order {
    written: AtomicU64,
    /// The highest ticket covered by a flush.
    flushed: AtomicU64,
    /// The highest ticket of a file that has left memory.
    forgotten: AtomicU64,
}

impl Order {
    /// A write to the device has completed.
    pub(crate) fn wrote(&self) -> u64 {
        self.written.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The last ticket drawn: what a flush that begins now will cover.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// A flush that began when `written` was the last ticket has succeeded.
    pub(crate) fn flushed(&self, written: u64) {
        let drawn = self.written();
        assert!(written <= drawn, "a flush covers ticket {written} of {drawn}");
        self.flushed.fetch_max(written, Ordering::SeqCst);
    }

    /// The file with this ticket leaves memory: who has it loaded again does not know the ticket.
    pub(crate) fn forget(&self, ticket: u64) {
        self.forgotten.fetch_max(ticket, Ordering::SeqCst);
    }

    /// The highest ticket of the files that have left memory.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::SeqCst)
    }

    /// Whether the device may still lose the write with this ticket.
    pub(crate) fn is_open(&self, ticket: u64) -> bool {
        let drawn = self.written();
        assert!(ticket <= drawn, "a write has ticket {ticket} of {drawn}");
        ticket > self.flushed.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_was_written_before_it_began() {
        let order = Order::default();
        let first = order.wrote();
        let covered = order.written();
        let second = order.wrote();
        assert!(order.is_open(first));
        order.flushed(covered);
        assert!(!order.is_open(first) && order.is_open(second));
        order.flushed(order.written());
        assert!(!order.is_open(second));
    }

    #[test]
    #[should_panic(expected = "a flush covers ticket 2 of 1")]
    fn a_flush_covers_no_write_to_come() {
        let order = Order::default();
        let first = order.wrote();
        order.flushed(first + 1);
    }

    #[test]
    #[should_panic(expected = "a write has ticket 1 of 0")]
    fn a_ticket_was_drawn() {
        Order::default().is_open(1);
    }
}
