//! What is recorded of the requests of a queue's handles, where they are recorded.
//!
//! A request of the recording is what a handle was asked for: parts that follow each other on the device and are under
//! way together are one. It begins when its first part is given to the queue pair, past the scheduler, and ends when
//! all that its completion slot waits for is done.

use nvmed_engine::{Operation, Request, op_of};
use nvmed_stamps::{Op, Probe, Producer, Stamped, Stamps};
use std::sync::Arc;

/// No request.
const NONE: u32 = u32::MAX;
/// Requests under way beyond one a completion slot, for calls on blocks that lie apart. What comes on top is lost, and
/// counted.
const APART_MAX: usize = 1024;

/// Requests of one queue that are under way.
pub(crate) struct Recording {
    producer: Producer,
    lba_shift: u32,
    /// When the call arrived whose requests are being given to the queue.
    arrival: u64,
    /// By completion slot: the request of it that came last.
    heads: Box<[u32]>,
    requests: Vec<UnderWay>,
    free: Vec<u32>,
}

/// A request that is not done.
#[derive(Clone, Copy)]
struct UnderWay {
    stamped: Stamped,
    has_begun: bool,
    /// The one of the same completion slot that came before.
    next: u32,
}

impl Recording {
    /// Of a queue with so many completion slots.
    pub(crate) fn new(stamps: &Arc<Stamps>, slots: usize, lba_bytes: u32) -> Box<Self> {
        let count = slots + APART_MAX;
        let (op, offset, bytes) = (Op::Flush, 0, 0);
        let nothing = Stamped { op, offset, bytes, arrival: 0, start: 0, finish: 0, has_failed: false };
        Box::new(Self {
            producer: stamps.producer(Probe::Handle),
            lba_shift: lba_bytes.trailing_zeros(),
            arrival: 0,
            heads: vec![NONE; slots].into(),
            requests: vec![UnderWay { stamped: nothing, has_begun: false, next: NONE }; count],
            free: (0..count as u32).rev().collect(),
        })
    }

    /// Now, in ticks.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.producer.now()
    }

    /// What is given to the queue next arrived then.
    #[inline]
    pub(crate) fn arrive(&mut self, arrival: u64) {
        self.arrival = arrival;
    }

    /// A request that began at `start` is done now, or has failed.
    #[inline]
    pub(crate) fn record(&mut self, request: &Request<'_>, start: u64, has_failed: bool) {
        if let Some(op) = op_of(request.operation) {
            let finish = self.now();
            let stamped = Stamped { finish, has_failed, ..self.stamped(op, request, start) };
            self.producer.put(&stamped);
        }
    }

    #[inline]
    fn stamped(&self, op: Op, request: &Request<'_>, start: u64) -> Stamped {
        let (offset, bytes) = match request.operation {
            Operation::Flush => (0, 0),
            _ => (request.lba.0 << self.lba_shift, u64::from(request.blocks) << self.lba_shift),
        };
        Stamped { op, offset, bytes, arrival: self.arrival, start, finish: start, has_failed: false }
    }

    /// A request of the completion slot `index` is under way: since `start`, or else it waits in the scheduler.
    pub(crate) fn begin(&mut self, request: &Request<'_>, index: usize, start: Option<u64>) {
        let Some(op) = op_of(request.operation) else { return };
        let stamped = self.stamped(op, request, start.unwrap_or(self.arrival));
        let head = self.heads[index];
        if let Some(last) = self.requests.get_mut(head as usize) {
            let before = &mut last.stamped;
            if before.op == op && op != Op::Flush && before.offset + before.bytes == stamped.offset {
                before.bytes += stamped.bytes;
                return;
            }
        }
        let Some(number) = self.free.pop() else { return self.producer.lose() };
        self.requests[number as usize] = UnderWay { stamped, has_begun: start.is_some(), next: head };
        self.heads[index] = number;
    }

    /// A request of the completion slot leaves the scheduler.
    pub(crate) fn leave_scheduler(&mut self, index: usize) {
        let (now, mut number) = (self.now(), self.heads[index]);
        while let Some(request) = self.requests.get_mut(number as usize) {
            if !request.has_begun {
                (request.has_begun, request.stamped.start) = (true, now);
            }
            number = request.next;
        }
    }

    /// All requests of the completion slot are done; which of them have failed is not told apart.
    pub(crate) fn end(&mut self, index: usize, has_failed: bool) {
        let mut number = core::mem::replace(&mut self.heads[index], NONE);
        if number == NONE {
            return;
        }
        let finish = self.now();
        while let Some(request) = self.requests.get(number as usize) {
            self.producer.put(&Stamped { finish, has_failed, ..request.stamped });
            self.free.push(number);
            number = request.next;
        }
    }
}
