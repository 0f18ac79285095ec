//! Doorbells, and the rounds of work that they start (PCIe Transport 1.0, 3.1.2; Base 2.0, 3.3.1).

use crate::config::Clock;
use crate::controller::{Controller, locked};
use crate::log::Counters;
use crate::queue::{CompletionQueue, HeadDoorbell, SubmissionQueue};
use nvmed_dma::{AddressSpace, View};
use nvmed_nvme::register;
use nvmed_nvme::{AsyncEvent, CompletionEntry};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A completion queue with the submission queues that complete to it: one lock for all of a command.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub cq: Option<CompletionQueue>,
    pub sqs: Vec<SubmissionQueue>,
    /// Host memory as this group's commands see it; refreshed at the begin of each round.
    pub view: View,
}

impl Group {
    /// Sees what is mapped now.
    #[inline]
    pub fn refresh(&mut self, space: &AddressSpace) {
        if self.view.refresh(space) {
            self.move_queues();
        }
    }

    #[cold]
    fn move_queues(&mut self) {
        let Self { cq, sqs, view } = self;
        cq.iter_mut().for_each(|cq| cq.memory.refresh(view));
        sqs.iter_mut().for_each(|sq| sq.memory.refresh(view));
    }
}

/// A group's place, and what the host's head doorbell reaches without the lock. Queues of different
/// processors share no cache line (two, as lines are fetched in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Place {
    pub group: Mutex<Group>,
    head: HeadDoorbell,
    /// Entries of the completion queue; 0 is no queue.
    entries: AtomicU32,
    /// A submission queue waits for room in the completion queue.
    blocked: AtomicBool,
}

impl Place {
    /// Puts a completion queue into the place, whose lock the caller holds.
    pub fn open(&self, group: &mut Group, cq: CompletionQueue) {
        self.head.set(0);
        self.blocked.store(false, Ordering::Release);
        self.entries.store(u32::from(cq.entries), Ordering::Release);
        group.cq = Some(cq);
    }

    /// Empties the place, whose lock the caller holds; answers the counters of the queues that were in it.
    pub fn close(&self, group: &mut Group) -> Counters {
        self.entries.store(0, Ordering::Release);
        let gone = std::mem::take(group);
        gone.sqs.iter().map(|sq| sq.counters).fold(Counters::default(), Counters::plus)
    }

    /// Whether one more entry fits; if not, the host's next head doorbell resumes the queue.
    #[inline]
    fn has_room(&self, cq: &CompletionQueue) -> bool {
        if !cq.is_full(self.head.get()) {
            return true;
        }
        // Pairs with the swap in `head_doorbell`: either that sees `blocked`, or this sees the new head.
        self.blocked.store(true, Ordering::SeqCst);
        !cq.is_full(self.head.get())
    }
}

/// Doorbells that the device thread has not seen.
#[derive(Debug)]
pub(crate) struct Pending {
    /// A bit a submission queue: its tail was rung.
    tails: Bits,
    /// A bit a completion queue: it has room again.
    heads: Bits,
    /// The newest tails; [`RUNG`] says that there is one.
    values: Box<[AtomicU32]>,
}

const RUNG: u32 = 1 << 31;

/// A bit a queue; 256 queues at most.
#[derive(Debug, Default)]
struct Bits([AtomicU64; 4]);

impl Bits {
    fn set(&self, queue: usize) {
        self.0[queue / 64].fetch_or(1 << (queue % 64), Ordering::SeqCst);
    }

    /// Takes the set bits, calling `each` with their queues; whether there were any.
    fn take(&self, mut each: impl FnMut(usize)) -> bool {
        let mut any = false;
        for (index, word) in self.0.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::SeqCst);
            any |= bits != 0;
            while bits != 0 {
                each(index * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
        any
    }
}

impl Pending {
    pub fn new(queues: usize) -> Self {
        let values = (0..queues).map(|_| AtomicU32::new(0)).collect();
        Self { tails: Bits::default(), heads: Bits::default(), values }
    }

    /// Forgets all doorbells.
    pub fn clear(&self) {
        for value in &self.values {
            value.store(0, Ordering::Release);
        }
    }
}

impl Controller {
    #[inline]
    pub(crate) fn doorbell(&self, offset: u32, value: u32) {
        let index = (offset - register::DOORBELLS) >> (2 + self.config.doorbell_stride);
        let queue = (index / 2) as usize;
        let value = value & 0xffff;
        if queue >= self.places.len() {
            return self.event(AsyncEvent::INVALID_DOORBELL_REGISTER);
        }
        if index % 2 == 1 {
            self.head_doorbell(queue, value);
        } else if self.config.clock == Clock::Inline {
            self.tail_doorbell(queue, value);
        } else {
            self.pending.values[queue].store(value | RUNG, Ordering::Release);
            self.pending.tails.set(queue);
            self.rung.ring();
        }
    }

    #[inline]
    fn head_doorbell(&self, queue: usize, value: u32) {
        let place = &self.places[queue];
        let entries = place.entries.load(Ordering::Acquire);
        if value >= entries {
            return self.event(if entries == 0 {
                AsyncEvent::INVALID_DOORBELL_REGISTER
            } else {
                AsyncEvent::INVALID_DOORBELL_VALUE
            });
        }
        place.head.set(value as u16);
        // Pairs with the store in `has_room`: either that sees the head, or this sees `blocked`.
        if place.blocked.swap(false, Ordering::SeqCst) {
            self.resume(queue);
        }
    }

    /// Goes on with the submission queues of a completion queue that has room again.
    #[cold]
    fn resume(&self, cq: usize) {
        if self.config.clock == Clock::Threaded {
            self.pending.heads.set(cq);
            self.rung.ring();
        } else {
            self.run_all(cq);
        }
    }

    fn run_all(&self, cq: usize) {
        let mut group = locked(&self.places[cq].group);
        for index in 0..group.sqs.len() {
            self.run(cq, &mut group, index);
        }
    }

    #[inline]
    fn tail_doorbell(&self, queue: usize, value: u32) {
        let route = self.routes[queue].load(Ordering::Acquire);
        if route == 0 {
            return self.event(AsyncEvent::INVALID_DOORBELL_REGISTER);
        }
        let cq = route as usize - 1;
        let mut group = locked(&self.places[cq].group);
        let Some(index) = group.sqs.iter().position(|sq| usize::from(sq.id) == queue) else { return };
        let sq = &mut group.sqs[index];
        if value >= u32::from(sq.entries) {
            drop(group);
            return self.event(AsyncEvent::INVALID_DOORBELL_VALUE);
        }
        sq.tail = value as u16;
        self.run(cq, &mut group, index);
    }

    /// One round of the device thread: takes the doorbells that were rung; whether there were any.
    pub(crate) fn serve(&self) -> bool {
        let tails = self.pending.tails.take(|queue| self.serve_tail(queue));
        let heads = self.pending.heads.take(|cq| self.run_all(cq));
        tails || heads
    }

    /// As [`Self::tail_doorbell`], with the newest value, which is taken under the queue's lock: a value from
    /// before a reset never meets a queue from after it.
    fn serve_tail(&self, queue: usize) {
        let value = &self.pending.values[queue];
        let route = self.routes[queue].load(Ordering::Acquire);
        if route == 0 {
            if value.swap(0, Ordering::AcqRel) & RUNG != 0 {
                self.event(AsyncEvent::INVALID_DOORBELL_REGISTER);
            }
            return;
        }
        let cq = route as usize - 1;
        let mut group = locked(&self.places[cq].group);
        let Some(index) = group.sqs.iter().position(|sq| usize::from(sq.id) == queue) else {
            // Deleted, or made anew elsewhere, between the two looks: look again in the next round.
            drop(group);
            return self.pending.tails.set(queue);
        };
        let tail = value.swap(0, Ordering::AcqRel);
        let sq = &mut group.sqs[index];
        if tail & RUNG == 0 {
            return;
        }
        if tail & 0xffff >= u32::from(sq.entries) {
            drop(group);
            return self.event(AsyncEvent::INVALID_DOORBELL_VALUE);
        }
        sq.tail = tail as u16;
        self.run(cq, &mut group, index);
    }

    #[inline]
    fn run(&self, cq: usize, group: &mut Group, index: usize) {
        if cq == 0 { self.run_admin(group) } else { self.run_io(&self.places[cq], group, index) }
    }

    #[inline]
    fn run_io(&self, place: &Place, group: &mut Group, index: usize) {
        group.refresh(&self.space);
        let Group { cq: Some(cq), sqs, view } = group else { return };
        let sq = &mut sqs[index];
        let mut posted = false;
        while sq.head != sq.tail && place.has_room(cq) {
            let Some(Ok(entry)) = sq.fetch(view) else { return self.fail() };
            let status = self.execute_io(view, &entry);
            sq.counters.count(&entry, self.lba_shift, status);
            if !status.is_success() {
                locked(&self.errors).push(sq.id, &entry, status);
            }
            if cq.post(view, completion(sq, entry.cid, 0), status).is_err() {
                return self.fail();
            }
            posted = true;
        }
        if posted {
            self.interrupt(cq);
        }
    }

    /// Tells the host of posted completions.
    #[inline]
    fn interrupt(&self, cq: &CompletionQueue) {
        if let Some(vector) = cq.vector {
            self.bells[usize::from(vector)].ring();
        }
    }

    fn run_admin(&self, group: &mut Group) {
        loop {
            self.deliver_events(group);
            let Group { cq: Some(cq), sqs, view } = &mut *group else { return };
            let Some(sq) = sqs.first_mut() else { return };
            if sq.head == sq.tail || !self.places[0].has_room(cq) {
                return;
            }
            let Some(Ok(entry)) = sq.fetch(view) else { return self.fail() };
            if let Some((result, status)) = self.execute_admin(view, &entry) {
                if !status.is_success() {
                    locked(&self.errors).push(0, &entry, status);
                }
                if cq.post(view, completion(sq, entry.cid, result), status).is_err() {
                    return self.fail();
                }
                self.interrupt(cq);
            }
        }
    }

    /// Records an asynchronous event and reports it if the host waits for one. A controller that is not
    /// ready has no events: what is written to it then is the host's affair.
    #[cold]
    pub(crate) fn event(&self, event: AsyncEvent) {
        if self.status().rdy() == 0 {
            return;
        }
        locked(&self.admin).record(event);
        self.deliver_events(&mut locked(&self.places[0].group));
    }

    /// Completes held Asynchronous Event Requests: with recorded events, and those that were aborted.
    fn deliver_events(&self, group: &mut Group) {
        group.refresh(&self.space);
        let Group { cq: Some(cq), sqs, view } = group else { return };
        let Some(sq) = sqs.first() else { return };
        while self.places[0].has_room(cq) {
            let Some((cid, result, status)) = locked(&self.admin).next_held() else { return };
            if cq.post(view, completion(sq, cid, result), status).is_err() {
                return self.fail();
            }
            self.interrupt(cq);
        }
    }
}

#[inline]
fn completion(sq: &SubmissionQueue, cid: u16, result: u32) -> CompletionEntry {
    CompletionEntry { result, sq_head: sq.head, sq_id: sq.id, cid, ..CompletionEntry::default() }
}
