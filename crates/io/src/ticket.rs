//! Tickets: requests that are not done yet, and whose result nobody has taken.

use crate::error::IoError;
use crate::shared_queue::SharedQueue;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

/// A submitted request. Its result is there exactly once, for [`crate::Handle::wait`], for awaiting, or
/// for looking at by [`crate::Handle::poll`].
///
/// As a future it is woken by the thread that reaps the completion: the completion thread, where the handle's
/// policy has one ([`crate::Completions::Thread`], [`crate::Completions::Interrupt`]), or another user of
/// the queue; with the other policies each poll looks at the queue and asks to be polled again.
///
/// Dropping a ticket abandons the request as [`Ticket::abandon`] does: it still runs, its memory stays
/// the device's until [`crate::Handle::drain`], and its result is only counted.
#[must_use = "a request has a result; wait for it, or abandon it"]
#[derive(Debug)]
pub struct Ticket {
    pub(crate) queue: Arc<SharedQueue>,
    pub(crate) index: usize,
}

/// In place of its index: the result was taken.
const TAKEN: usize = usize::MAX;

impl Ticket {
    /// Gives up the result, not the request.
    pub fn abandon(self) {}

    /// Looks once, and takes the result if it is there; the completion slot is free then.
    #[inline]
    pub(crate) fn take_now(&mut self) -> Option<Result<u32, IoError>> {
        let mut inner = self.queue.lock();
        inner.advance();
        let result = inner.tickets.result(self.index)?;
        inner.tickets.close(self.index);
        drop(inner);
        self.index = TAKEN;
        Some(result)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.index != TAKEN {
            let waiter = self.queue.lock().tickets.abandon(self.index);
            // With the lock free: it may be the last of a task that owns other tickets.
            drop(waiter);
        }
    }
}

impl Future for Ticket {
    type Output = Result<(), IoError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        SharedQueue::poll_task(&self.queue, self.index, context)
    }
}
