//! Completion threads: they look at queues for others.

use crate::error::IoError;
use crate::handle::Handle;
use crate::lane::Lane;
use crate::places::Waiter;
use crate::settings::HandleSettings;
use crate::wait::Cost;
use core::task::{Context, Poll};
use std::sync::Arc;

/// What a completion thread did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadStats {
    /// Its processor time, nanoseconds.
    pub cpu_ns: u64,
    /// How often it looked.
    pub looks: u64,
}

impl Handle {
    /// Makes ready what the settings need: memory and threads that requests then find.
    pub(crate) fn prepare(&self, settings: &HandleSettings) {
        let _ = settings;
    }
}

impl Lane {
    pub(crate) fn wake_service(&self) {}

    pub(crate) fn is_served(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    pub(crate) fn until_woken(&self, index: usize) -> (Result<u32, IoError>, Cost) {
        let _ = index;
        self.until_counted(crate::wait::Awaited::default(), |inner| inner.tickets.result(index))
    }

    /// Looks once for the result of a ticket.
    pub(crate) fn poll_once(lane: &Arc<Self>, index: usize) -> Option<Result<u32, IoError>> {
        let mut inner = lane.lock();
        inner.advance();
        inner.tickets.result(index)
    }

    /// Looks for the result of a ticket on behalf of a task, which is woken when it is there.
    pub(crate) fn poll_task(
        lane: &Arc<Self>,
        index: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), IoError>> {
        let mut inner = lane.lock();
        inner.advance();
        if let Some(result) = inner.tickets.result(index) {
            return Poll::Ready(result.map(|_| ()));
        }
        let before = inner.tickets.wake_later(index, Waiter::Task(context.waker().clone()));
        drop(inner);
        drop(before);
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
