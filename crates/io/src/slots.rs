//! Completion slots: where the requests of one queue leave their results.

use crate::error::IoError;
use core::task::Waker;
use std::thread::Thread;

/// Synchronous calls of one queue that can be under way at once; a further caller waits its turn.
/// They have completion slots of their own, since requests whose results nobody takes could fill all others.
const CALLS: usize = 64;

/// The thread or task to be woken when a result is there.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A thread that sleeps until the completion thread has its result.
    Thread(Thread),
    /// A task that awaits a ticket.
    Task(Waker),
}

impl Waiter {
    pub(crate) fn wake(self) {
        match self {
            Self::Thread(thread) => thread.unpark(),
            Self::Task(waker) => waker.wake(),
        }
    }
}

/// What a request is timed for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// When it was submitted, in the device's time; 0 if nobody wants to know, [`Stamp::UNTIMED`] of one that is only
    /// recorded.
    pub(crate) since_ns: u64,
    /// Its kind and size, see [`crate::learn::Class`].
    pub(crate) class: u8,
    /// Whether the completion thread is to see it done.
    pub(crate) served: bool,
    /// What it was expected to take.
    pub(crate) expected_ns: u64,
}

impl Stamp {
    /// In the place of the time of a request that is recorded, and timed for nothing else.
    pub(crate) const UNTIMED: u64 = u64::MAX;

    /// When it was submitted, if it is timed.
    pub(crate) fn since_ns(self) -> Option<u64> {
        Some(self.since_ns).filter(|&ns| ns > 0 && ns != Self::UNTIMED)
    }
}

/// How long somebody has been waiting in vain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Nobody has looked yet.
    #[default]
    Unseen,
    /// It was there at this time, nanoseconds.
    Seen(u64),
    /// The device was asked to give it up at this time.
    Cancelled(u64),
}

/// The requests behind one ticket or one synchronous call.
#[derive(Debug, Default)]
pub(crate) struct CompletionSlot {
    /// Requests not done, and how many of them the queue pair knows by this slot.
    remaining: u32,
    direct: u32,
    /// Nobody will take the result.
    abandoned: bool,
    /// Whether this slot was taken from those for calls.
    call: bool,
    /// Who asked.
    pub(crate) handle: u32,
    /// When, in submissions of this queue.
    serial: u64,
    pub(crate) stamp: Stamp,
    pub(crate) overdue: Overdue,
    /// Dword 0 of the last completion.
    value: u32,
    /// What failed first.
    error: Option<IoError>,
    waiter: Option<Waiter>,
}

/// What the end of a request means for others.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// The handle that it was for.
    pub(crate) handle: u32,
    /// All requests of the slot are done; when and what it was.
    pub(crate) stamp: Option<Stamp>,
    pub(crate) waiter: Option<Waiter>,
}

/// All completion slots of one queue. The tag of a request is the index of its slot.
pub(crate) struct CompletionSlots {
    slots: Box<[CompletionSlot]>,
    free: Vec<u32>,
    /// Completion slots left for tickets and for calls; together as many as `free`.
    tickets_left: usize,
    calls_left: usize,
    serial: u64,
    /// Completion slots that a task awaits.
    awaited: usize,
}

impl CompletionSlots {
    /// Completion slots for `tickets` tickets, and for calls beside them.
    pub(crate) fn new(tickets: usize) -> Self {
        let count = tickets + CALLS;
        Self {
            slots: (0..count).map(|_| CompletionSlot::default()).collect(),
            free: (0..count as u32).rev().collect(),
            tickets_left: tickets,
            calls_left: CALLS,
            serial: 0,
            awaited: 0,
        }
    }

    /// How many there are, free or not.
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Completion slots in use: requests not done, or results not taken.
    pub(crate) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A slot for a synchronous call or for a ticket, if there is one.
    #[inline]
    pub(crate) fn open(&mut self, handle: u32, call: bool) -> Option<usize> {
        let left = if call { &mut self.calls_left } else { &mut self.tickets_left };
        *left = left.checked_sub(1)?;
        let index = self.free.pop().expect("there are as many slots as both budgets count") as usize;
        self.serial += 1;
        let slot = &mut self.slots[index];
        assert!(slot.remaining == 0, "slot {index} was free while {} requests ran", slot.remaining);
        (slot.direct, slot.abandoned, slot.call) = (0, false, call);
        (slot.handle, slot.serial, slot.error) = (handle, self.serial, None);
        (slot.stamp, slot.overdue) = (Stamp::default(), Overdue::Unseen);
        Some(index)
    }

    /// The slot that [`CompletionSlots::keep`] would give to a synchronous call, which may do without it.
    #[inline]
    pub(crate) fn next_for_call(&self) -> Option<usize> {
        if self.calls_left == 0 { None } else { self.free.last().map(|&index| index as usize) }
    }

    /// Takes the slot that [`CompletionSlots::next_for_call`] named just before, for one request.
    #[cold]
    pub(crate) fn keep(&mut self, handle: u32) {
        let kept = self.open(handle, true).map(|index| self.expect(index));
        assert!(kept.is_some(), "no slot is left, although one was named for this call");
    }

    /// One more request of `index` is with the queue pair.
    #[inline]
    pub(crate) fn expect(&mut self, index: usize) {
        self.slots[index].remaining += 1;
        self.slots[index].direct += 1;
    }

    /// One more request of `index` waits in the scheduler.
    pub(crate) fn expect_queued(&mut self, index: usize) {
        self.slots[index].remaining += 1;
    }

    /// Notes what its requests are timed for.
    pub(crate) fn stamp(&mut self, index: usize, stamp: Stamp) {
        let slot = &mut self.slots[index];
        assert!(slot.remaining > 0, "slot {index} is timed, but no request of it runs");
        slot.stamp = stamp;
    }

    pub(crate) fn stamp_of(&self, index: usize) -> Stamp {
        self.slots[index].stamp
    }

    pub(crate) fn handle_of(&self, index: usize) -> u32 {
        self.slots[index].handle
    }

    /// Notes the end of one request of `index` that the queue pair had.
    #[inline]
    pub(crate) fn complete_direct(&mut self, index: usize, failed: Option<IoError>, value: u32) -> Ended {
        let slot = &mut self.slots[index];
        assert!(slot.direct > 0, "the queue pair ended a request of slot {index}, where it had none");
        slot.direct -= 1;
        self.complete(index, failed, value)
    }

    /// Notes the end of one request of `index`.
    #[inline]
    pub(crate) fn complete(&mut self, index: usize, failed: Option<IoError>, value: u32) -> Ended {
        let slot = &mut self.slots[index];
        assert!(slot.remaining > 0, "a request of slot {index} ended, where none ran");
        slot.remaining -= 1;
        (slot.value, slot.overdue) = (value, Overdue::Unseen);
        if slot.error.is_none() {
            slot.error = failed;
        }
        let handle = slot.handle;
        if slot.remaining > 0 {
            return Ended { handle, ..Ended::default() };
        }
        // A long call may go on: its next requests are timed by themselves.
        let stamp = core::mem::take(&mut slot.stamp);
        let waiter = slot.waiter.take();
        self.awaited -= usize::from(matches!(waiter, Some(Waiter::Task(_))));
        let ended = Ended { handle, stamp: Some(stamp), waiter };
        if slot.abandoned {
            self.close(index);
        }
        ended
    }

    /// The result, once all requests of `index` are done.
    #[inline]
    pub(crate) fn result(&self, index: usize) -> Option<Result<u32, IoError>> {
        let slot = &self.slots[index];
        (slot.remaining == 0).then_some(slot.error.map_or(Ok(slot.value), Err))
    }

    /// Notes the waiter to be woken when the result is there; answers the one that was noted before.
    pub(crate) fn wake_later(&mut self, index: usize, waiter: Waiter) -> Option<Waiter> {
        self.awaited += usize::from(matches!(waiter, Waiter::Task(_)));
        let before = self.slots[index].waiter.replace(waiter);
        self.awaited -= usize::from(matches!(before, Some(Waiter::Task(_))));
        before
    }

    /// How many slots a task awaits.
    pub(crate) fn awaited(&self) -> usize {
        self.awaited
    }

    /// Requests of `index` that are not done.
    pub(crate) fn running(&self, index: usize) -> u32 {
        self.slots[index].remaining
    }

    /// Whether a request of `index` has failed already; of a slot that was just given back, of its last ones.
    pub(crate) fn has_failed(&self, index: usize) -> bool {
        self.slots[index].error.is_some()
    }

    /// Gives the slot back; its requests are done.
    #[inline]
    pub(crate) fn close(&mut self, index: usize) {
        let slot = &self.slots[index];
        assert!(slot.remaining == 0, "slot {index} is given back while {} requests run", slot.remaining);
        assert!(self.free.len() < self.slots.len(), "slot {index} is given back, although all are free");
        *(if slot.call { &mut self.calls_left } else { &mut self.tickets_left }) += 1;
        self.free.push(index as u32);
    }

    /// Nobody will take the result; answers the waiter that was noted.
    pub(crate) fn abandon(&mut self, index: usize) -> Option<Waiter> {
        assert!(!self.slots[index].abandoned, "slot {index} is abandoned twice");
        let waiter = self.slots[index].waiter.take();
        self.awaited -= usize::from(matches!(waiter, Some(Waiter::Task(_))));
        if self.slots[index].remaining == 0 {
            self.close(index);
        } else {
            self.slots[index].abandoned = true;
        }
        waiter
    }

    /// The newest submission so far, for [`CompletionSlots::quiet_until`].
    pub(crate) fn newest(&self) -> u64 {
        self.serial
    }

    /// Whether every request up to submission `serial` is done.
    pub(crate) fn quiet_until(&self, serial: u64) -> bool {
        self.slots.iter().all(|slot| slot.remaining == 0 || slot.serial > serial)
    }

    /// Whether `handle` has requests that are not done.
    pub(crate) fn busy(&self, handle: u32) -> bool {
        self.slots.iter().any(|slot| slot.remaining > 0 && slot.handle == handle)
    }

    /// How long the requests of `index` have been waited for, and for which handle, if the queue pair has
    /// any.
    pub(crate) fn overdue(&self, index: usize) -> Option<(u32, Overdue)> {
        let slot = &self.slots[index];
        (slot.direct > 0).then_some((slot.handle, slot.overdue))
    }

    pub(crate) fn set_overdue(&mut self, index: usize, overdue: Overdue) {
        self.slots[index].overdue = overdue;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One slot for a ticket, which is taken.
    fn taken() -> (CompletionSlots, usize) {
        let mut slots = CompletionSlots::new(1);
        let index = slots.open(0, false).expect("the only slot for a ticket");
        (slots, index)
    }

    #[test]
    #[should_panic(expected = "where none ran")]
    fn a_request_ends_once() {
        let (mut slots, index) = taken();
        slots.expect_queued(index);
        slots.complete(index, None, 0);
        slots.complete(index, None, 0);
    }

    #[test]
    #[should_panic(expected = "where it had none")]
    fn the_queue_pair_ends_what_it_was_given() {
        let (mut slots, index) = taken();
        slots.expect_queued(index);
        slots.complete_direct(index, None, 0);
    }

    #[test]
    #[should_panic(expected = "while 1 requests run")]
    fn a_slot_is_kept_while_a_request_runs() {
        let (mut slots, index) = taken();
        slots.expect(index);
        slots.close(index);
    }

    #[test]
    #[should_panic(expected = "is abandoned twice")]
    fn a_slot_is_abandoned_once() {
        let (mut slots, index) = taken();
        slots.expect(index);
        slots.abandon(index);
        slots.abandon(index);
    }

    #[test]
    #[should_panic(expected = "no request of it runs")]
    fn a_slot_is_timed_while_a_request_runs() {
        let (mut slots, index) = taken();
        slots.stamp(index, Stamp::default());
    }

    #[test]
    #[should_panic(expected = "although all are free")]
    fn a_slot_is_given_back_once() {
        let (mut slots, index) = taken();
        slots.close(index);
        slots.close(index);
    }

    #[test]
    #[should_panic(expected = "was free while 1 requests ran")]
    fn a_free_slot_has_no_requests() {
        let (mut slots, index) = taken();
        slots.close(index);
        slots.expect(index);
        slots.open(0, false);
    }

    #[test]
    #[should_panic(expected = "no slot is left")]
    fn a_slot_that_was_named_is_there() {
        let mut slots = CompletionSlots::new(1);
        while slots.next_for_call().is_some() {
            slots.keep(0);
        }
        slots.keep(0);
    }
}
