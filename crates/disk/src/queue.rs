//! The engine and its queue: what is sent, executed and completed when.
//!
//! A command is sent, executed and completed at three times, and what happens next to which command is for the
//! dice to say, whenever somebody looks at the queue. A prompt device does all three as it is sent.

use crate::disk::{DEPTH, Disk, DiskState};
use nvmed_engine::{
    Completion, DeviceError, Engine, EngineError, Geometry, Operation, QueueOptions, QueuePair, Request,
    Segment, SubmitError, UrgentPath, Waited,
};
use nvmed_nvme::Status;
use nvmed_sys::Mapping;
use nvmed_sys::sync::Arc;
use nvmed_units::{DeviceAddress, Lba};

/// The device as an engine.
pub(crate) struct DiskEngine(pub(crate) Arc<Disk>);

/// What becomes of a request.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    /// Its number in the trace, if it changes something.
    pub number: Option<usize>,
    pub result: Result<(), Status>,
}

/// A request under way.
pub(crate) struct Flight {
    tag: u64,
    pub operation: Operation,
    pub lba: Lba,
    pub blocks: u32,
    pub data: Vec<Segment>,
    pub task: Task,
    executed: bool,
}

struct DiskQueue {
    disk: Arc<Disk>,
    flights: Vec<Flight>,
    done: Vec<Completion>,
    is_urgent: bool,
}

impl DiskQueue {
    /// Executes or completes the request at `at`, whichever comes next.
    fn advance(&mut self, at: usize, disk: &Disk, inner: &mut DiskState) {
        if !self.flights[at].executed {
            self.flights[at].executed = true;
            if self.flights[at].task.result.is_ok() {
                self.flights[at].task.result = disk.execute(inner, &self.flights[at]);
            }
            return;
        }
        let flight = self.flights.swap_remove(at);
        if let Some(number) = flight.task.number {
            inner.complete(number);
        }
        let (operation, lba) = (flight.operation, flight.lba);
        let result = flight.task.result.map_err(|status| DeviceError { operation, lba, status, fault: None });
        self.done.push(Completion { tag: flight.tag, result, value: 0 });
    }

    /// Executes and completes what is under way, in its order.
    fn end_all(&mut self) {
        let disk = Arc::clone(&self.disk);
        let mut inner = disk.lock();
        while !self.flights.is_empty() {
            self.advance(0, &disk, &mut inner);
        }
    }

    /// Time passes: some of what is under way goes on.
    fn pass(&mut self) {
        let disk = Arc::clone(&self.disk);
        let mut inner = disk.lock();
        let idle = inner.idle;
        while !self.flights.is_empty() && !inner.dice.chance(idle) {
            let at = inner.dice.roll(self.flights.len() as u64) as usize;
            self.advance(at, &disk, &mut inner);
        }
    }
}

impl Drop for DiskQueue {
    /// What is under way ends, and nobody hears of it.
    fn drop(&mut self) {
        self.end_all();
    }
}

impl QueuePair for DiskQueue {
    fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        if self.flights.len() + self.done.len() >= DEPTH {
            return Err(SubmitError::NoSlot);
        }
        if matches!(request.operation, Operation::Write { .. }) {
            self.disk.wait_if_stalled();
        }
        if self.is_urgent {
            self.disk.count_urgent(request.operation);
        }
        let task = self.disk.accept(request, self.outstanding() + 1);
        let Request { tag, operation, lba, blocks, data, .. } = *request;
        let data = data.to_vec();
        let flight = Flight { tag, operation, lba, blocks, data, task, executed: false };
        #[cfg(feature = "schedule")]
        if nvmed_sys::sync::has_hook() {
            self.disk.keep_as_sent(&flight);
        }
        self.flights.push(flight);
        if self.disk.is_prompt() {
            self.end_all();
        }
        Ok(())
    }

    fn ring(&mut self) {}

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.pass();
        let count = self.done.len().min(out.capacity() - out.len());
        out.extend(self.done.drain(..count));
        count
    }

    fn outstanding(&self) -> usize {
        self.flights.len() + self.done.len()
    }

    fn check(&mut self) {}

    fn expire(&mut self) {}

    fn request_blocks_max(&self, operation: Operation) -> u32 {
        if operation == Operation::Discard { 1 << 16 } else { 256 }
    }
}

impl DiskEngine {
    fn pair(&self, is_urgent: bool) -> DiskQueue {
        DiskQueue { disk: Arc::clone(&self.0), flights: Vec::new(), done: Vec::new(), is_urgent }
    }
}

impl Engine for DiskEngine {
    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }

    fn queue(&self, _: QueueOptions) -> Result<Box<dyn QueuePair>, EngineError> {
        Ok(Box::new(self.pair(false)))
    }

    fn urgent_path(&self) -> UrgentPath {
        UrgentPath::Reserved
    }

    fn urgent_queues(&self, _: u16) -> Result<Vec<Box<dyn QueuePair>>, EngineError> {
        Ok(vec![Box::new(self.pair(true))])
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, EngineError> {
        self.0.space().map(memory).map_err(EngineError::Map)
    }

    fn unmap(&self, address: DeviceAddress) {
        self.0.space().unmap(address);
    }

    fn shutdown(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    /// Whoever waits comes here before each look, and holds no lock of the queue.
    fn events(&self, _vector: u16) -> u32 {
        #[cfg(feature = "schedule")]
        nvmed_sys::sync::look();
        0
    }

    fn wait(&self, _vector: u16, _seen: u32, _timeout_us: u32) -> Waited {
        Waited::Event
    }
}
