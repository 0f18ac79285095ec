//! Tickets: requests that are not done yet, and whose result nobody has taken.

use crate::lane::Lane;
use nvmed_engine::{Completion, DeviceError};
use std::sync::Arc;

/// Synchronous calls of one queue that can be under way at once; a further caller waits its turn.
/// They have places of their own, since requests whose results nobody takes could fill all others.
const CALLS: usize = 64;

/// A submitted request. Its result is there exactly once, for [`crate::Handle::wait`], or for looking
/// at by [`crate::Handle::poll`].
///
/// Dropping a ticket abandons the request as [`Ticket::abandon`] does: it still runs, its memory stays
/// the device's until [`crate::Handle::drain`], and its result is only counted.
#[must_use = "a request has a result; wait for it, or abandon it"]
#[derive(Debug)]
pub struct Ticket {
    pub(crate) lane: Arc<Lane>,
    pub(crate) index: usize,
}

impl Ticket {
    /// Gives up the result, not the request.
    pub fn abandon(self) {}
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.lane.lock().tickets.abandon(self.index);
    }
}

/// The requests behind one ticket or one synchronous call.
struct Entry {
    /// Requests not done.
    remaining: u32,
    /// Nobody will take the result.
    abandoned: bool,
    /// Whether this place was taken from those for calls.
    call: bool,
    /// Who asked.
    handle: u32,
    /// When, in submissions of this queue.
    serial: u64,
    /// What failed first.
    error: Option<DeviceError>,
}

/// All tickets of one queue. A request's tag is the index of its entry.
pub(crate) struct Tickets {
    entries: Box<[Entry]>,
    free: Vec<u32>,
    /// Places left for tickets and for calls; together as many as `free`.
    tickets_left: usize,
    calls_left: usize,
    serial: u64,
}

impl Tickets {
    /// Places for `tickets` tickets, and for calls beside them.
    pub(crate) fn new(tickets: usize) -> Self {
        let count = tickets + CALLS;
        let empty =
            || Entry { remaining: 0, abandoned: false, call: false, handle: 0, serial: 0, error: None };
        Self {
            entries: (0..count).map(|_| empty()).collect(),
            free: (0..count as u32).rev().collect(),
            tickets_left: tickets,
            calls_left: CALLS,
            serial: 0,
        }
    }

    /// A place for a synchronous call or for a ticket, if there is one.
    #[inline]
    pub(crate) fn open(&mut self, handle: u32, call: bool) -> Option<usize> {
        let left = if call { &mut self.calls_left } else { &mut self.tickets_left };
        *left = left.checked_sub(1)?;
        let index = self.free.pop().expect("there are as many places as both budgets count") as usize;
        self.serial += 1;
        let serial = self.serial;
        self.entries[index] = Entry { remaining: 0, abandoned: false, call, handle, serial, error: None };
        Some(index)
    }

    /// The place that [`Tickets::keep`] would give to a synchronous call, which may do without it.
    #[inline]
    pub(crate) fn next_for_call(&self) -> Option<usize> {
        if self.calls_left == 0 { None } else { self.free.last().map(|&index| index as usize) }
    }

    /// Takes the place that [`Tickets::next_for_call`] named just before, for one request.
    #[cold]
    pub(crate) fn keep(&mut self, handle: u32) {
        let kept = self.open(handle, true).map(|index| self.expect(index));
        debug_assert!(kept.is_some(), "there was a place");
    }

    /// One more request of `index` is with the device.
    #[inline]
    pub(crate) fn expect(&mut self, index: usize) {
        self.entries[index].remaining += 1;
    }

    /// Notes the end of a request; answers the handle to count an error for.
    #[inline]
    pub(crate) fn complete(&mut self, done: &Completion) -> Option<u32> {
        let index = done.tag as usize;
        let entry = &mut self.entries[index];
        entry.remaining -= 1;
        let handle = entry.handle;
        let failed = done.result.err();
        if entry.error.is_none() {
            entry.error = failed;
        }
        if entry.remaining == 0 && entry.abandoned {
            self.close(index);
        }
        failed.map(|_| handle)
    }

    /// The result, once all requests of `index` are done.
    #[inline]
    pub(crate) fn result(&self, index: usize) -> Option<Result<(), DeviceError>> {
        let entry = &self.entries[index];
        (entry.remaining == 0).then_some(entry.error.map_or(Ok(()), Err))
    }

    /// Whether a request of `index` has failed already.
    pub(crate) fn has_failed(&self, index: usize) -> bool {
        self.entries[index].error.is_some()
    }

    /// Gives the place back; its requests are done.
    #[inline]
    pub(crate) fn close(&mut self, index: usize) {
        let entry = &self.entries[index];
        debug_assert_eq!(entry.remaining, 0, "a place is given back while requests run");
        *(if entry.call { &mut self.calls_left } else { &mut self.tickets_left }) += 1;
        self.free.push(index as u32);
    }

    fn abandon(&mut self, index: usize) {
        if self.entries[index].remaining == 0 {
            self.close(index);
        } else {
            self.entries[index].abandoned = true;
        }
    }

    /// The newest submission so far, for [`Tickets::quiet_until`].
    pub(crate) fn newest(&self) -> u64 {
        self.serial
    }

    /// Whether every request up to submission `serial` is done.
    pub(crate) fn quiet_until(&self, serial: u64) -> bool {
        self.entries.iter().all(|entry| entry.remaining == 0 || entry.serial > serial)
    }
}
