//! Requests without an answer: abort, then reset, then give up (as Linux's `nvme_timeout` does).

use crate::device::Device;
use crate::schedule::NODE_TAG;
use crate::settings::HandleSettings;
use crate::shared_queue::{QueueState, SharedQueue};
use crate::slots::{Overdue, Waiter};
use std::sync::atomic::Ordering;

/// How long a request that was aborted may still take, at most; a handle with a shorter timeout waits that
/// long. A device that answers the abort at all does so within milliseconds.
const GRACE_US_MAX: u64 = 5_000_000;

impl QueueState {
    /// Looks whether the device is alive, and after requests that take too long; answers whether only a
    /// reset helps.
    pub(crate) fn watch(&mut self) -> bool {
        self.pair.check();
        let now = self.now_ns();
        let mut hung = false;
        for index in 0..self.tickets.count() {
            let Some((handle, overdue)) = self.tickets.overdue(index) else { continue };
            let timeout_us = self.timeout_us(handle).unwrap_or(HandleSettings::TIMEOUT_US);
            let (next, stuck) = self.escalate(overdue, now, timeout_us, index as u64, handle);
            self.tickets.set_overdue(index, next);
            hung |= stuck;
        }
        let Some(mut backlog) = self.backlog.take() else { return hung };
        for node in 0..backlog.count() {
            let Some((handle, overdue)) = backlog.pending_at(node) else { continue };
            let timeout_us = self.timeout_us(handle).unwrap_or(HandleSettings::TIMEOUT_US);
            let tag = NODE_TAG | u64::from(node);
            let (next, stuck) = self.escalate(overdue, now, timeout_us, tag, handle);
            backlog.set_overdue(node, next);
            hung |= stuck;
        }
        self.backlog = Some(backlog);
        hung
    }

    /// What becomes of a request that has been `overdue` since some time; whether only a reset helps.
    fn escalate(
        &mut self,
        overdue: Overdue,
        now: u64,
        timeout_us: u64,
        tag: u64,
        handle: u32,
    ) -> (Overdue, bool) {
        match overdue {
            Overdue::Unseen => (Overdue::Seen(now), false),
            Overdue::Seen(since) if now.saturating_sub(since) < timeout_us.saturating_mul(1000) => {
                (overdue, false)
            }
            Overdue::Seen(_) => {
                self.stats_mut(handle).timeouts += 1;
                // A device that does not even take the question is reset after the same grace.
                let _ = self.pair.cancel(tag);
                (Overdue::Cancelled(now), false)
            }
            Overdue::Cancelled(since) => {
                let grace_us = timeout_us.min(GRACE_US_MAX);
                (overdue, now.saturating_sub(since) >= grace_us.saturating_mul(1000))
            }
        }
    }
}

impl SharedQueue {
    /// Resets the device, or waits until the thread that does so is ready. If it does not help, every request
    /// fails.
    #[cold]
    pub(crate) fn recover(&self) {
        match self.device.upgrade() {
            Some(device) => device.recover(self),
            // Only tickets are left of the device; nobody could use it after a reset.
            None => self.lock().pair.expire(),
        }
    }
}

impl Device {
    /// One thread resets, others wait; none submits meanwhile.
    fn recover(&self, queue: &SharedQueue) {
        let _alone = self.resetting.lock();
        if !queue.lock().watch() {
            // Another thread's reset has helped.
            return;
        }
        let queues = self.all_queues();
        let mut held: Vec<_> = queues.iter().map(|queue| queue.lock()).collect();
        let reset = self.engine.reset();
        self.resets.fetch_add(1, Ordering::Relaxed);
        let mut woken = Vec::new();
        for inner in &mut held {
            if reset.is_err() {
                inner.pair.expire();
            }
            // What was outstanding comes out here, before anything new goes in.
            inner.advance();
            woken.extend(inner.take_woken());
        }
        drop(held);
        woken.into_iter().for_each(Waiter::wake);
    }
}
