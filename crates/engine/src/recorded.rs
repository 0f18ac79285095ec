//! An engine whose requests are recorded: another engine with a probe around each queue pair.
//!
//! It exists where requests are recorded, so that elsewhere nothing is on the way of a command.

use crate::{
    AsyncEvent, Command, Completion, Engine, EngineError, Geometry, HostMemoryUse, Operation, QueueOptions,
    QueuePair, Request, Segment, SubmitError, Transfer, UrgentPath, Waited,
};
use nvmed_nvme::{IdentifyController, IdentifyNamespace};
use nvmed_stamps::{Op, Probe, Producer, Stamped, Stamps};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::DeviceAddress;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// `engine` with its queue pairs recorded into `stamps`, from the next one on; itself, where nobody wants that.
#[must_use]
pub fn recorded(engine: Arc<dyn Engine>, stamps: &Arc<Stamps>) -> Arc<dyn Engine> {
    if !stamps.wants(Probe::Queue) {
        return engine;
    }
    Arc::new(RecordedEngine { inner: engine, stamps: Arc::clone(stamps) })
}

/// What a request is to a recording; none where it has no place on the device.
#[inline]
#[must_use]
pub fn op_of(operation: Operation) -> Option<Op> {
    match operation {
        Operation::Read | Operation::Compare => Some(Op::Read),
        Operation::Write { fua: false } | Operation::WriteZeroes { fua: false } => Some(Op::Write),
        Operation::Write { fua: true } | Operation::WriteZeroes { fua: true } => Some(Op::DurableWrite),
        Operation::Flush => Some(Op::Flush),
        Operation::Discard => Some(Op::Discard),
        Operation::Passthrough { .. } => None,
    }
}

struct RecordedEngine {
    inner: Arc<dyn Engine>,
    stamps: Arc<Stamps>,
}

/// A request that is with the queue pair.
#[derive(Clone, Copy, Default)]
struct Place {
    /// The caller's tag; the queue pair has the number of the place.
    tag: u64,
    /// What it is, if it is recorded.
    op: Option<Op>,
    offset: u64,
    bytes: u64,
    arrival: u64,
    start: u64,
    is_taken: bool,
}

struct RecordedQueue {
    inner: Box<dyn QueuePair>,
    producer: Producer,
    lba_shift: u32,
    places: Box<[Place]>,
    free: Vec<u16>,
    /// Places whose doorbell was not rung.
    unrung: Vec<u16>,
}

impl RecordedQueue {
    /// A place for a request of now, if there is one: the queue pair has no slot then, either.
    #[inline]
    fn open(&mut self, (op, tag): (Option<Op>, u64), offset: u64, bytes: u64) -> Result<u16, SubmitError> {
        let arrival = self.producer.now();
        let number = *self.free.last().ok_or(SubmitError::NoSlot)?;
        self.places[usize::from(number)] =
            Place { tag, op, offset, bytes, arrival, start: arrival, is_taken: true };
        Ok(number)
    }

    /// The queue pair has taken the request of the place that was opened, or not.
    #[inline]
    fn settle(&mut self, number: u16, submitted: Result<(), SubmitError>) -> Result<(), SubmitError> {
        match submitted {
            Ok(()) => {
                self.free.pop();
                self.unrung.push(number);
            }
            Err(_) => self.places[usize::from(number)].is_taken = false,
        }
        submitted
    }

    #[inline]
    fn put(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        let offset = request.lba.0 << self.lba_shift;
        let bytes = u64::from(request.blocks) << self.lba_shift;
        let number = self.open((op_of(request.operation), request.tag), offset, bytes)?;
        let submitted = self.inner.submit(&Request { tag: number.into(), ..*request });
        self.settle(number, submitted)
    }

    /// Those that were submitted begin then.
    #[inline]
    fn begin(&mut self, now: u64) {
        for number in self.unrung.drain(..) {
            self.places[usize::from(number)].start = now;
        }
    }

    /// Records what was completed, and gives it the callers' tags.
    #[inline]
    fn end(&mut self, done: &mut [Completion]) {
        if done.is_empty() {
            return;
        }
        let finish = self.producer.now();
        for completion in done {
            let number = completion.tag as usize;
            // The queue pair hands out each request once, with the tag that it was given.
            let place = &mut self.places[number];
            assert!(place.is_taken, "a request that nobody submitted has ended in place {number}");
            place.is_taken = false;
            completion.tag = place.tag;
            let Place { op, offset, bytes, arrival, start, .. } = *place;
            self.free.push(number as u16);
            if let Some(op) = op {
                let has_failed = completion.result.is_err();
                self.producer.put(&Stamped { op, offset, bytes, arrival, start, finish, has_failed });
            }
        }
    }
}

impl QueuePair for RecordedQueue {
    fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        self.put(request)
    }

    fn ring(&mut self) {
        if !self.unrung.is_empty() {
            self.begin(self.producer.now());
        }
        self.inner.ring();
    }

    /// The doorbell follows at once: what lies between is shorter than a look at the clock, which is spared.
    fn execute(&mut self, request: &Request<'_>, out: &mut Vec<Completion>) -> Result<usize, SubmitError> {
        self.put(request)?;
        let arrival = self.unrung.last().map_or(0, |number| self.places[usize::from(*number)].arrival);
        self.begin(arrival);
        self.inner.ring();
        Ok(self.poll(out))
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        let count = self.inner.poll(out);
        self.end(&mut out[before..]);
        count
    }

    fn passthrough(&mut self, command: &Command, data: &[Segment], tag: u64) -> Result<(), SubmitError> {
        let number = self.open((None, tag), 0, 0)?;
        let submitted = self.inner.passthrough(command, data, number.into());
        self.settle(number, submitted)
    }

    fn cancel(&mut self, tag: u64) -> Result<(), EngineError> {
        for (number, place) in self.places.iter().enumerate() {
            if place.is_taken && place.tag == tag {
                self.inner.cancel(number as u64)?;
            }
        }
        Ok(())
    }

    fn vector(&self) -> u16 {
        self.inner.vector()
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding()
    }

    fn check(&mut self) {
        self.inner.check();
    }

    fn expire(&mut self) {
        self.inner.expire();
    }

    fn request_blocks_max(&self, operation: Operation) -> u32 {
        self.inner.request_blocks_max(operation)
    }
}

impl RecordedEngine {
    /// A queue pair of `depth` commands with a probe around it.
    fn probe(&self, inner: Box<dyn QueuePair>, depth: u16) -> Box<dyn QueuePair> {
        let places = usize::from(depth);
        Box::new(RecordedQueue {
            inner,
            producer: self.stamps.producer(Probe::Queue),
            lba_shift: self.inner.geometry().lba_bytes.trailing_zeros(),
            places: vec![Place::default(); places].into(),
            free: (0..depth).rev().collect(),
            unrung: Vec::with_capacity(places),
        })
    }
}

impl Engine for RecordedEngine {
    fn queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, EngineError> {
        Ok(self.probe(self.inner.queue(options)?, options.depth))
    }

    fn urgent_queues(&self, depth: u16) -> Result<Vec<Box<dyn QueuePair>>, EngineError> {
        let pairs = self.inner.urgent_queues(depth)?;
        Ok(pairs.into_iter().map(|pair| self.probe(pair, depth)).collect())
    }

    // All others are the engine's below, those with an answer of their own in the trait as well.

    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn lba_count(&self) -> u64 {
        self.inner.lba_count()
    }

    fn urgent_path(&self) -> UrgentPath {
        self.inner.urgent_path()
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, EngineError> {
        self.inner.map(memory)
    }

    fn memory(&self, bytes: usize, pages: Pages) -> Result<Mapping, EngineError> {
        self.inner.memory(bytes, pages)
    }

    fn unmap(&self, address: DeviceAddress) {
        self.inner.unmap(address);
    }

    fn shutdown(&self) -> Result<(), EngineError> {
        self.inner.shutdown()
    }

    fn admin(&self, command: &Command, data: Transfer<'_>) -> Result<u32, EngineError> {
        self.inner.admin(command, data)
    }

    fn namespace(&self) -> u32 {
        self.inner.namespace()
    }

    fn identify_controller(&self) -> Result<IdentifyController, EngineError> {
        self.inner.identify_controller()
    }

    fn identify_namespace(&self) -> Result<IdentifyNamespace, EngineError> {
        self.inner.identify_namespace()
    }

    fn log_page(&self, page: u8, into: &mut [u8]) -> Result<(), EngineError> {
        self.inner.log_page(page, into)
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn reset(&self) -> Result<(), EngineError> {
        self.inner.reset()
    }

    fn host_memory(&self) -> HostMemoryUse {
        self.inner.host_memory()
    }

    fn take_event(&self) -> Result<Option<AsyncEvent>, EngineError> {
        self.inner.take_event()
    }

    fn events(&self, vector: u16) -> u32 {
        self.inner.events(vector)
    }

    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        self.inner.wait(vector, seen, timeout_us)
    }

    fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.inner.event_fd(vector)
    }

    fn now_ns(&self) -> u64 {
        self.inner.now_ns()
    }
}
