//! An engine that completes requests when a test says so, in a time of its own.
#![allow(dead_code, reason = "each test uses its part of it")]

use nvmed_dma::MapError;
use nvmed_engine::{
    Command, Completion, DeviceError, Engine, EngineError, Geometry, Operation, QueueFault, QueueOptions,
    QueuePair, Request, Segment, SubmitError, UrgentPath, Waited,
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

/// What a look at a queue takes in the fake's time.
pub const LOOK_NS: u64 = 100;

#[derive(Clone, Copy, Debug)]
struct Pending {
    operation: Operation,
    lba: Lba,
    tag: u64,
    rung: bool,
    /// When a timed fake is ready with it.
    due_ns: u64,
    /// The device forgot it.
    lost: bool,
}

#[derive(Default)]
struct Queue {
    pending: VecDeque<Pending>,
    done: VecDeque<Completion>,
    fault: Option<QueueFault>,
    interrupts: bool,
    gone: bool,
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
    looks: u64,
    dead: bool,
    /// Interrupts that were asked for do not come.
    deaf: bool,
    /// Requests that the device will forget, the next ones first.
    lose: usize,
    /// Whether an abort ends a lost request, and a reset works.
    aborts: bool,
    resets: bool,
    /// What a timed fake takes for each request, and by how much it sleeps too long.
    latency_ns: u64,
    oversleep_ns: u64,
    /// Aborts and resets asked for.
    cancelled: usize,
    reset: usize,
    urgent: UrgentPath,
}

impl State {
    fn now_ns(&self) -> u64 {
        self.waited_us * 1000 + self.looks * LOOK_NS
    }
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
    /// After [`Fake::latency`] in the fake's time, which passes with looks and waits only.
    Timed,
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

    /// How long a timed fake takes for each request from now on, in microseconds.
    pub fn latency(&self, us: u64) {
        self.state().latency_ns = us * 1000;
    }

    /// By how much each sleep without an event is too long, in microseconds.
    pub fn oversleep(&self, us: u64) {
        self.state().oversleep_ns = us * 1000;
    }

    /// Raises no interrupts, whatever it was asked.
    pub fn deafen(&self) {
        self.state().deaf = true;
    }

    /// Forgets the next `count` requests; whether an abort ends them, and whether a reset works.
    pub fn lose(&self, count: usize, aborts: bool, resets: bool) {
        let mut state = self.state();
        (state.lose, state.aborts, state.resets) = (count, aborts, resets);
    }

    /// Aborts and resets that were asked for.
    pub fn asked(&self) -> (usize, usize) {
        let state = self.state();
        (state.cancelled, state.reset)
    }

    pub fn looks(&self) -> u64 {
        self.state().looks
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

    /// The log, which is empty then.
    pub fn take_log(&self) -> Vec<(usize, Operation, Lba, u32)> {
        std::mem::take(&mut self.state().log)
    }

    /// Has this path for urgent requests.
    pub fn offer(&self, path: UrgentPath) {
        self.state().urgent = path;
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
    let (rung, left): (Vec<_>, Vec<_>) = queue.pending.iter().partition(|one| one.rung && !one.lost);
    queue.pending = left.into();
    for one in rung.into_iter().rev() {
        let failed =
            DeviceError { operation: one.operation, lba: one.lba, status: Status::WRITE_FAULT, fault: None };
        let result = if bad.contains(&one.lba) { Err(failed) } else { Ok(()) };
        queue.done.push_back(Completion { tag: one.tag, result, value: 0 });
    }
}

/// Completes what is due on a queue of a timed fake.
fn finish_due(state: &mut State, queue: usize) {
    let (now, bad) = (state.now_ns(), state.bad.clone());
    let queue = &mut state.queues[queue];
    let due = |one: &Pending| one.rung && !one.lost && one.due_ns <= now;
    let (done, left): (Vec<Pending>, Vec<_>) = queue.pending.iter().partition(|one| due(one));
    queue.pending = left.into();
    for one in done {
        let failed =
            DeviceError { operation: one.operation, lba: one.lba, status: Status::WRITE_FAULT, fault: None };
        let result = if bad.contains(&one.lba) { Err(failed) } else { Ok(()) };
        queue.done.push_back(Completion { tag: one.tag, result, value: 0 });
    }
}

fn aborted(one: &Pending, fault: Option<QueueFault>) -> Completion {
    let error = DeviceError { operation: one.operation, lba: one.lba, status: DeviceError::ABORTED, fault };
    Completion { tag: one.tag, result: Err(error), value: 0 }
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
        let due_ns = state.now_ns() + state.latency_ns;
        let lost = state.lose > 0;
        let queue = &mut state.queues[self.index];
        if let Some(fault) = queue.fault {
            return Err(SubmitError::Failed(fault));
        }
        if queue.pending.len() + queue.done.len() >= usize::from(self.depth) {
            return Err(SubmitError::NoSlot);
        }
        let Request { operation, lba, tag, blocks, .. } = *request;
        queue.pending.push_back(Pending { operation, lba, tag, rung: false, due_ns, lost });
        state.lose -= usize::from(lost);
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
        state.looks += 1;
        if self.mode == Mode::Timed {
            finish_due(&mut state, self.index);
        }
        let queue = &mut state.queues[self.index];
        if let Some(fault) = queue.fault {
            for one in queue.pending.drain(..) {
                queue.done.push_back(aborted(&one, Some(fault)));
            }
        }
        let count = queue.done.len().min(out.capacity() - out.len());
        out.extend(queue.done.drain(..count));
        count
    }

    fn passthrough(&mut self, command: &Command, _: &[Segment], tag: u64) -> Result<(), SubmitError> {
        let operation = Operation::Passthrough { opcode: command.opcode };
        let mut state = self.state.0.lock().unwrap();
        let due_ns = state.now_ns() + state.latency_ns;
        let lost = state.lose > 0;
        state.lose -= usize::from(lost);
        let index = self.index;
        state.log.push((index, operation, Lba(0), 0));
        let one = Pending { operation, lba: Lba(0), tag, rung: false, due_ns, lost };
        let queue = &mut state.queues[index];
        if lost {
            queue.pending.push_back(one);
        } else {
            queue.done.push_back(Completion { tag, result: Ok(()), value: command.cdw10 + 1 });
        }
        Ok(())
    }

    fn cancel(&mut self, tag: u64) -> Result<(), EngineError> {
        let mut state = self.state.0.lock().unwrap();
        state.cancelled += 1;
        if state.aborts {
            let queue = &mut state.queues[self.index];
            let at = queue.pending.iter().position(|one| one.tag == tag).expect("a request with the tag");
            let one = queue.pending.remove(at).unwrap();
            queue.done.push_back(aborted(&one, None));
        }
        Ok(())
    }

    fn vector(&self) -> u16 {
        self.index as u16
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

impl Drop for Pair {
    fn drop(&mut self) {
        self.state.0.lock().unwrap().queues[self.index].gone = true;
    }
}

impl Engine for Fake {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, EngineError> {
        let QueueOptions { depth, interrupts, .. } = options;
        let mut state = self.state();
        if state.queues.iter().filter(|queue| !queue.gone).count() >= usize::from(self.geometry.queues_max) {
            return Err(EngineError::NoQueue { queues_max: self.geometry.queues_max });
        }
        state.queues.push(Queue { interrupts, ..Queue::default() });
        let index = state.queues.len() - 1;
        Ok(Box::new(Pair { index, depth, mode: self.mode, state: Arc::clone(&self.state) }))
    }

    fn map(&self, _: Arc<Mapping>) -> Result<DeviceAddress, EngineError> {
        Err(EngineError::Map(MapError::Full { limit: 0 }))
    }

    fn unmap(&self, _: DeviceAddress) {}

    fn urgent_path(&self) -> UrgentPath {
        self.state().urgent
    }

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
        self.state().now_ns()
    }

    fn reset(&self) -> Result<(), EngineError> {
        let mut state = self.state();
        state.reset += 1;
        if !state.resets {
            return Err(EngineError::Unsupported { what: "a controller reset" });
        }
        for queue in &mut state.queues {
            for one in queue.pending.drain(..) {
                queue.done.push_back(aborted(&one, Some(QueueFault::Reset)));
            }
        }
        Ok(())
    }

    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        let mut state = self.state();
        if self.mode == Mode::Timed {
            let now = state.now_ns();
            let queue = &state.queues[usize::from(vector)];
            let due = queue.pending.iter().filter(|one| one.rung && !one.lost).map(|one| one.due_ns).min();
            let until = now + u64::from(timeout_us) * 1000;
            let due = due.filter(|&due| queue.interrupts && !state.deaf && due <= until);
            let left = due.map_or(until + state.oversleep_ns, |due| due.max(now)) - now;
            state.waited_us += left.div_ceil(1000);
            return if due.is_some() { Waited::Event } else { Waited::Timeout };
        }
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
