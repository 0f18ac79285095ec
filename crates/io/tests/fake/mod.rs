//! An engine that completes requests when a test says so.

use nvmed_dma::MapError;
use nvmed_engine::{
    Completion, DeviceError, Engine, EngineError, Geometry, Operation, QueueFault, QueueOptions, QueuePair,
    Request, SubmitError, Waited,
};
use nvmed_nvme::Status;
use nvmed_sys::Mapping;
use nvmed_units::{DeviceAddress, Lba};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Blocks of 512 bytes; one command moves 8.
pub const LBAS: u64 = 1 << 20;
pub const COMMAND_BLOCKS: u32 = 8;

#[derive(Clone, Copy, Debug)]
struct Pending {
    operation: Operation,
    lba: Lba,
    tag: u64,
    rung: bool,
}

#[derive(Default)]
struct Queue {
    pending: VecDeque<Pending>,
    done: VecDeque<Completion>,
    fault: Option<QueueFault>,
}

#[derive(Default)]
struct State {
    queues: Vec<Queue>,
    /// LBAs whose requests fail.
    bad: Vec<Lba>,
    /// Operations in the order in which queues took them: queue, operation, first block, blocks.
    log: Vec<(usize, Operation, Lba, u32)>,
    events: u32,
    waited_us: u64,
    dead: bool,
}

/// How requests get done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With the doorbell.
    AtOnce,
    /// When the test calls [`Fake::release`]; the waits of this engine wait for that.
    OnRelease,
    /// Never; waits return at once, so that a timeout takes no time.
    Never,
}

pub struct Fake {
    geometry: Geometry,
    mode: Mode,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Fake {
    pub fn new(mode: Mode) -> Arc<Self> {
        let geometry = Geometry {
            lba_bytes: 512,
            lba_count: LBAS,
            transfer_bytes_max: COMMAND_BLOCKS * 512,
            queue_depth_max: 64,
            queues_max: 8,
            volatile_write_cache: true,
            serial: String::new(),
            model: String::new(),
            firmware: String::new(),
        };
        Arc::new(Self { geometry, mode, state: Arc::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    /// Completes what was rung on `queue`, the newest first.
    pub fn release(&self, queue: usize) {
        let mut state = self.state();
        finish(&mut state, queue);
        state.events += 1;
        self.state.1.notify_all();
    }

    pub fn fail_at(&self, lba: Lba) {
        self.state().bad.push(lba);
    }

    pub fn die(&self) {
        self.state().dead = true;
    }

    pub fn log(&self) -> Vec<(usize, Operation, Lba, u32)> {
        self.state().log.clone()
    }

    pub fn waited_us(&self) -> u64 {
        self.state().waited_us
    }

    /// Requests that the device has been told of and that are not done.
    pub fn outstanding(&self, queue: usize) -> usize {
        self.state().queues[queue].pending.iter().filter(|one| one.rung).count()
    }
}

fn finish(state: &mut State, queue: usize) {
    let bad = state.bad.clone();
    let queue = &mut state.queues[queue];
    let (rung, left): (Vec<_>, Vec<_>) = queue.pending.iter().partition(|one| one.rung);
    queue.pending = left.into();
    for one in rung.into_iter().rev() {
        let failed =
            DeviceError { operation: one.operation, lba: one.lba, status: Status::WRITE_FAULT, fault: None };
        let result = if bad.contains(&one.lba) { Err(failed) } else { Ok(()) };
        queue.done.push_back(Completion { tag: one.tag, result, value: 0 });
    }
}

struct Pair {
    index: usize,
    depth: u16,
    mode: Mode,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl QueuePair for Pair {
    fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        let mut state = self.state.0.lock().unwrap();
        let queue = &mut state.queues[self.index];
        if let Some(fault) = queue.fault {
            return Err(SubmitError::Failed(fault));
        }
        if queue.pending.len() + queue.done.len() >= usize::from(self.depth) {
            return Err(SubmitError::NoSlot);
        }
        let Request { operation, lba, tag, blocks, .. } = *request;
        queue.pending.push_back(Pending { operation, lba, tag, rung: false });
        let index = self.index;
        state.log.push((index, operation, lba, blocks));
        Ok(())
    }

    fn ring(&mut self) {
        let mut state = self.state.0.lock().unwrap();
        for one in &mut state.queues[self.index].pending {
            one.rung = true;
        }
        if self.mode == Mode::AtOnce {
            finish(&mut state, self.index);
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let mut state = self.state.0.lock().unwrap();
        let queue = &mut state.queues[self.index];
        if let Some(fault) = queue.fault {
            for one in queue.pending.drain(..) {
                let error = DeviceError {
                    operation: one.operation,
                    lba: one.lba,
                    status: DeviceError::ABORTED,
                    fault: Some(fault),
                };
                queue.done.push_back(Completion { tag: one.tag, result: Err(error), value: 0 });
            }
        }
        let count = queue.done.len().min(out.capacity() - out.len());
        out.extend(queue.done.drain(..count));
        count
    }

    fn outstanding(&self) -> usize {
        let state = self.state.0.lock().unwrap();
        state.queues[self.index].pending.len() + state.queues[self.index].done.len()
    }

    fn check(&mut self) {
        let mut state = self.state.0.lock().unwrap();
        if state.dead {
            state.queues[self.index].fault = Some(QueueFault::Gone { csts: u32::MAX });
        }
    }

    fn expire(&mut self) {
        self.state.0.lock().unwrap().queues[self.index].fault = Some(QueueFault::Timeout);
    }

    fn request_blocks_max(&self, operation: Operation) -> u32 {
        match operation {
            Operation::Discard | Operation::Flush => u32::MAX,
            _ => COMMAND_BLOCKS * u32::from(self.depth),
        }
    }
}

impl Engine for Fake {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn queue(&self, QueueOptions { depth, .. }: QueueOptions) -> Result<Box<dyn QueuePair>, EngineError> {
        let mut state = self.state();
        state.queues.push(Queue::default());
        let index = state.queues.len() - 1;
        Ok(Box::new(Pair { index, depth, mode: self.mode, state: Arc::clone(&self.state) }))
    }

    fn map(&self, _: Arc<Mapping>) -> Result<DeviceAddress, EngineError> {
        Err(EngineError::Map(MapError::Full { limit: 0 }))
    }

    fn unmap(&self, _: DeviceAddress) {}

    fn shutdown(&self) -> Result<(), EngineError> {
        for queue in &mut self.state().queues {
            queue.fault = Some(QueueFault::Shutdown);
        }
        Ok(())
    }

    fn events(&self, _vector: u16) -> u32 {
        self.state().events
    }

    fn now_ns(&self) -> u64 {
        self.state().waited_us * 1000
    }

    fn wait(&self, _vector: u16, seen: u32, timeout_us: u32) -> Waited {
        let mut state = self.state();
        state.waited_us += u64::from(timeout_us);
        if self.mode == Mode::OnRelease {
            // A test that forgets to release must not hang: the time is real here, and long.
            let long = Duration::from_secs(20);
            let waited = self.state.1.wait_timeout_while(state, long, |state| state.events == seen);
            return if waited.unwrap().1.timed_out() { Waited::Timeout } else { Waited::Event };
        }
        Waited::Timeout
    }
}
