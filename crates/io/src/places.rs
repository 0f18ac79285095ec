//! Places: where the requests of one queue leave their results.

use crate::error::IoError;
use core::task::Waker;
use std::thread::Thread;

/// Synchronous calls of one queue that can be under way at once; a further caller waits its turn.
/// They have places of their own, since requests whose results nobody takes could fill all others.
const CALLS: usize = 64;

/// Who is to be woken when a result is there.
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
    /// When it was submitted, in the device's time; 0 if nobody wants to know.
    pub(crate) since_ns: u64,
    /// Its kind and size, see [`crate::learn::Class`].
    pub(crate) class: u8,
    /// Whether the completion thread is to see it done.
    pub(crate) served: bool,
    /// What it was expected to take.
    pub(crate) expected_ns: u64,
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
pub(crate) struct Place {
    /// Requests not done, and how many of them the queue pair knows by this place.
    remaining: u32,
    direct: u32,
    /// Nobody will take the result.
    abandoned: bool,
    /// Whether this place was taken from those for calls.
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
    /// All requests of the place are done; when and what it was.
    pub(crate) stamp: Option<Stamp>,
    pub(crate) waiter: Option<Waiter>,
}

/// All places of one queue. The tag of a request is the index of its place.
pub(crate) struct Places {
    places: Box<[Place]>,
    free: Vec<u32>,
    /// Places left for tickets and for calls; together as many as `free`.
    tickets_left: usize,
    calls_left: usize,
    serial: u64,
    /// Places that a task awaits.
    awaited: usize,
}

impl Places {
    /// Places for `tickets` tickets, and for calls beside them.
    pub(crate) fn new(tickets: usize) -> Self {
        let count = tickets + CALLS;
        Self {
            places: (0..count).map(|_| Place::default()).collect(),
            free: (0..count as u32).rev().collect(),
            tickets_left: tickets,
            calls_left: CALLS,
            serial: 0,
            awaited: 0,
        }
    }

    /// How many there are, free or not.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// Places in use: requests not done, or results not taken.
    pub(crate) fn used(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// A place for a synchronous call or for a ticket, if there is one.
    #[inline]
    pub(crate) fn open(&mut self, handle: u32, call: bool) -> Option<usize> {
        let left = if call { &mut self.calls_left } else { &mut self.tickets_left };
        *left = left.checked_sub(1)?;
        let index = self.free.pop().expect("there are as many places as both budgets count") as usize;
        self.serial += 1;
        let place = &mut self.places[index];
        assert!(place.remaining == 0, "place {index} was free while {} requests ran", place.remaining);
        (place.direct, place.abandoned, place.call) = (0, false, call);
        (place.handle, place.serial, place.error) = (handle, self.serial, None);
        (place.stamp, place.overdue) = (Stamp::default(), Overdue::Unseen);
        Some(index)
    }

    /// The place that [`Places::keep`] would give to a synchronous call, which may do without it.
    #[inline]
    pub(crate) fn next_for_call(&self) -> Option<usize> {
        if self.calls_left == 0 { None } else { self.free.last().map(|&index| index as usize) }
    }

    /// Takes the place that [`Places::next_for_call`] named just before, for one request.
    #[cold]
    pub(crate) fn keep(&mut self, handle: u32) {
        let kept = self.open(handle, true).map(|index| self.expect(index));
        assert!(kept.is_some(), "no place is left, although one was named for this call");
    }

    /// One more request of `index` is with the queue pair.
    #[inline]
    pub(crate) fn expect(&mut self, index: usize) {
        self.places[index].remaining += 1;
        self.places[index].direct += 1;
    }

    /// One more request of `index` waits in the scheduler.
    pub(crate) fn expect_queued(&mut self, index: usize) {
        self.places[index].remaining += 1;
    }

    /// Notes what its requests are timed for.
    pub(crate) fn stamp(&mut self, index: usize, stamp: Stamp) {
        let place = &mut self.places[index];
        assert!(place.remaining > 0, "place {index} is timed, but no request of it runs");
        place.stamp = stamp;
    }

    pub(crate) fn stamp_of(&self, index: usize) -> Stamp {
        self.places[index].stamp
    }

    pub(crate) fn handle_of(&self, index: usize) -> u32 {
        self.places[index].handle
    }

    /// Notes the end of one request of `index` that the queue pair had.
    #[inline]
    pub(crate) fn complete_direct(&mut self, index: usize, failed: Option<IoError>, value: u32) -> Ended {
        let place = &mut self.places[index];
        assert!(place.direct > 0, "the queue pair ended a request of place {index}, where it had none");
        place.direct -= 1;
        self.complete(index, failed, value)
    }

    /// Notes the end of one request of `index`.
    #[inline]
    pub(crate) fn complete(&mut self, index: usize, failed: Option<IoError>, value: u32) -> Ended {
        let place = &mut self.places[index];
        assert!(place.remaining > 0, "a request of place {index} ended, where none ran");
        place.remaining -= 1;
        (place.value, place.overdue) = (value, Overdue::Unseen);
        if place.error.is_none() {
            place.error = failed;
        }
        let handle = place.handle;
        if place.remaining > 0 {
            return Ended { handle, ..Ended::default() };
        }
        // A long call may go on: its next requests are timed by themselves.
        let stamp = core::mem::take(&mut place.stamp);
        let waiter = place.waiter.take();
        self.awaited -= usize::from(matches!(waiter, Some(Waiter::Task(_))));
        let ended = Ended { handle, stamp: Some(stamp), waiter };
        if place.abandoned {
            self.close(index);
        }
        ended
    }

    /// The result, once all requests of `index` are done.
    #[inline]
    pub(crate) fn result(&self, index: usize) -> Option<Result<u32, IoError>> {
        let place = &self.places[index];
        (place.remaining == 0).then_some(place.error.map_or(Ok(place.value), Err))
    }

    /// Who is to be woken when the result is there; answers who was before.
    pub(crate) fn wake_later(&mut self, index: usize, waiter: Waiter) -> Option<Waiter> {
        self.awaited += usize::from(matches!(waiter, Waiter::Task(_)));
        let before = self.places[index].waiter.replace(waiter);
        self.awaited -= usize::from(matches!(before, Some(Waiter::Task(_))));
        before
    }

    /// How many places a task awaits.
    pub(crate) fn awaited(&self) -> usize {
        self.awaited
    }

    /// Requests of `index` that are not done.
    pub(crate) fn running(&self, index: usize) -> u32 {
        self.places[index].remaining
    }

    /// Whether a request of `index` has failed already.
    pub(crate) fn has_failed(&self, index: usize) -> bool {
        self.places[index].error.is_some()
    }

    /// Gives the place back; its requests are done.
    #[inline]
    pub(crate) fn close(&mut self, index: usize) {
        let place = &self.places[index];
        assert!(place.remaining == 0, "place {index} is given back while {} requests run", place.remaining);
        assert!(self.free.len() < self.places.len(), "place {index} is given back, although all are free");
        *(if place.call { &mut self.calls_left } else { &mut self.tickets_left }) += 1;
        self.free.push(index as u32);
    }

    /// Nobody will take the result; answers who would have been woken.
    pub(crate) fn abandon(&mut self, index: usize) -> Option<Waiter> {
        assert!(!self.places[index].abandoned, "place {index} is abandoned twice");
        let waiter = self.places[index].waiter.take();
        self.awaited -= usize::from(matches!(waiter, Some(Waiter::Task(_))));
        if self.places[index].remaining == 0 {
            self.close(index);
        } else {
            self.places[index].abandoned = true;
        }
        waiter
    }

    /// The newest submission so far, for [`Places::quiet_until`].
    pub(crate) fn newest(&self) -> u64 {
        self.serial
    }

    /// Whether every request up to submission `serial` is done.
    pub(crate) fn quiet_until(&self, serial: u64) -> bool {
        self.places.iter().all(|place| place.remaining == 0 || place.serial > serial)
    }

    /// Whether `handle` has requests that are not done.
    pub(crate) fn busy(&self, handle: u32) -> bool {
        self.places.iter().any(|place| place.remaining > 0 && place.handle == handle)
    }

    /// How long the requests of `index` have been waited for, and for which handle, if the queue pair has
    /// any.
    pub(crate) fn overdue(&self, index: usize) -> Option<(u32, Overdue)> {
        let place = &self.places[index];
        (place.direct > 0).then_some((place.handle, place.overdue))
    }

    pub(crate) fn set_overdue(&mut self, index: usize, overdue: Overdue) {
        self.places[index].overdue = overdue;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One place for a ticket, which is taken.
    fn taken() -> (Places, usize) {
        let mut places = Places::new(1);
        let index = places.open(0, false).expect("the only place for a ticket");
        (places, index)
    }

    #[test]
    #[should_panic(expected = "where none ran")]
    fn a_request_ends_once() {
        let (mut places, index) = taken();
        places.expect_queued(index);
        places.complete(index, None, 0);
        places.complete(index, None, 0);
    }

    #[test]
    #[should_panic(expected = "where it had none")]
    fn the_queue_pair_ends_what_it_was_given() {
        let (mut places, index) = taken();
        places.expect_queued(index);
        places.complete_direct(index, None, 0);
    }

    #[test]
    #[should_panic(expected = "while 1 requests run")]
    fn a_place_is_kept_while_a_request_runs() {
        let (mut places, index) = taken();
        places.expect(index);
        places.close(index);
    }

    #[test]
    #[should_panic(expected = "is abandoned twice")]
    fn a_place_is_abandoned_once() {
        let (mut places, index) = taken();
        places.expect(index);
        places.abandon(index);
        places.abandon(index);
    }

    #[test]
    #[should_panic(expected = "no request of it runs")]
    fn a_place_is_timed_while_a_request_runs() {
        let (mut places, index) = taken();
        places.stamp(index, Stamp::default());
    }

    #[test]
    #[should_panic(expected = "although all are free")]
    fn a_place_is_given_back_once() {
        let (mut places, index) = taken();
        places.close(index);
        places.close(index);
    }

    #[test]
    #[should_panic(expected = "was free while 1 requests ran")]
    fn a_free_place_has_no_requests() {
        let (mut places, index) = taken();
        places.close(index);
        places.expect(index);
        places.open(0, false);
    }

    #[test]
    #[should_panic(expected = "no place is left")]
    fn a_place_that_was_named_is_there() {
        let mut places = Places::new(1);
        while places.next_for_call().is_some() {
            places.keep(0);
        }
        places.keep(0);
    }
}
