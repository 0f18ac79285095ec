//! The device below the file system: an engine over a [`Volatile`], that records, and fails when told.
//!
//! A command is sent, executed and completed at three times, and what happens next to which command is for the
//! dice to say, whenever somebody looks at the queue. Memory is read or filled at the execution.

use crate::media::{BLOCK, Block, Command, Event, Image, Trace, Volatile, What};
use nvmed_dice::Dice;
use nvmed_dma::AddressSpace;
use nvmed_engine::{
    Completion, DeviceError, Engine, EngineError, Geometry, Operation, QueueOptions, QueuePair, Request,
    Segment, SubmitError, Waited,
};
use nvmed_fs::{FileSystem, FsError, Memory, MemoryLayout, MountOptions, MountParts};
use nvmed_io::{Device, DeviceOptions, IoError};
use nvmed_nvme::Status;
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};

/// Bytes of cache of each mount: small, so that pages are written back and read again.
const CACHE_BYTES: u64 = 512 << 10;

/// Commands that its queue holds.
const DEPTH: usize = 64;

/// Requests that the device answers with an error.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The first request to fail, counted from the moment of setting.
    pub at: u64,
    /// How many fail from there on.
    pub count: u64,
    /// Whether reads count, too.
    pub reads: bool,
    /// What the device answers.
    pub status: Status,
}

/// The memory of a mount, copied at some event.
pub struct Death {
    /// Events of the trace that had come.
    pub events: u64,
    /// The device then, its cache included.
    pub media: Volatile,
    /// The memory.
    pub memory: Memory,
}

struct DiskState {
    media: Volatile,
    trace: Trace,
    /// Whether the trace is kept.
    records: bool,
    fault: Option<Fault>,
    /// Requests since the fault was set, of the kinds that count.
    requests: u64,
    failed: u64,
    deaths: Vec<u64>,
    memory: Option<Memory>,
    dead: Vec<Death>,
    /// Where the log was written last.
    log_block: u64,
    dice: Dice,
    /// In percent, how often a look at the queue finds that nothing more has happened.
    idle: u64,
}

/// In percent, how idle devices are: one that is prompt, and one that keeps commands for long.
const IDLE: [u64; 4] = [10, 30, 50, 80];

/// A device.
pub struct Disk {
    inner: Mutex<DiskState>,
    space: AddressSpace,
    geometry: Geometry,
}

impl Disk {
    /// A device with that content, all of it durable.
    #[must_use]
    pub fn new(image: Image) -> Arc<Self> {
        Self::with(Volatile::new(image), &mut Dice::of(&[0xd15c]))
    }

    /// A device with that content and that much of it in its cache, which does things in the order that `dice`
    /// say. Nobody waits for what was in flight.
    #[must_use]
    pub fn with(mut media: Volatile, dice: &mut Dice) -> Arc<Self> {
        media.abandon();
        let mut dice = Dice::of(&[dice.next()]);
        let idle = *dice.pick(&IDLE).unwrap_or(&0);
        let geometry = Geometry {
            lba_bytes: BLOCK as u32,
            lba_count: media.durable().blocks(),
            transfer_bytes_max: 1 << 20,
            queue_depth_max: DEPTH as u16,
            queues_max: 8,
            volatile_write_cache: true,
            serial: "SIM".to_owned(),
            model: "power-cut device".to_owned(),
            firmware: "1".to_owned(),
        };
        let inner = DiskState {
            media,
            trace: Trace::default(),
            records: false,
            fault: None,
            requests: 0,
            failed: 0,
            deaths: Vec::new(),
            memory: None,
            dead: Vec::new(),
            log_block: 0,
            dice,
            idle,
        };
        Arc::new(Self { inner: Mutex::new(inner), space: AddressSpace::default(), geometry })
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.inner.lock()
    }

    /// Records events from now on, when nothing is in flight.
    pub fn record(&self) {
        let mut inner = self.lock();
        assert!(inner.media.in_flight() == 0, "a recording begins between two calls");
        (inner.trace, inner.records) = (Trace::default(), true);
    }

    /// What was recorded; no more is.
    #[must_use]
    pub(crate) fn take_trace(&self) -> Trace {
        let mut inner = self.lock();
        assert!(inner.media.in_flight() == 0, "a recording ends between two calls");
        inner.records = false;
        core::mem::take(&mut inner.trace)
    }

    /// Events recorded so far.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.lock().trace.events.len() as u64
    }

    /// The last block of the log that was written.
    #[must_use]
    pub fn log_block(&self) -> u64 {
        self.lock().log_block
    }

    /// A copy of content and cache.
    #[must_use]
    pub fn media(&self) -> Volatile {
        self.lock().media.clone()
    }

    /// Requests fail from now on as `fault` says; none: no more.
    pub fn fail(&self, fault: Option<Fault>) {
        let mut inner = self.lock();
        (inner.fault, inner.requests) = (fault, 0);
    }

    /// Requests that failed so far.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.lock().failed
    }

    /// Copies `memory` when each of `events` events was recorded: a process that dies there.
    pub(crate) fn die_at(&self, memory: Memory, mut events: Vec<u64>) {
        let mut inner = self.lock();
        events.sort_unstable();
        inner.memory = Some(memory);
        inner.deaths = events;
    }

    /// The deaths that came.
    #[must_use]
    pub(crate) fn take_deaths(&self) -> Vec<Death> {
        let mut inner = self.lock();
        (inner.memory, inner.deaths) = (None, Vec::new());
        core::mem::take(&mut inner.dead)
    }

    /// The device, opened.
    ///
    /// # Errors
    /// The host has no memory.
    pub fn open(self: &Arc<Self>) -> Result<Arc<Device>, IoError> {
        Device::open(Arc::new(DiskEngine(Arc::clone(self))), DeviceOptions { queues: 1, depth: DEPTH as u16 })
    }

    /// The file system on it, mounted.
    ///
    /// # Errors
    /// Those of the mount.
    pub fn mount(self: &Arc<Self>, options: MountOptions) -> Result<FileSystem, FsError> {
        self.mount_in(memory()?, options)
    }

    /// As [`Disk::mount`], in given memory.
    ///
    /// # Errors
    /// Those of the mount.
    pub(crate) fn mount_in(
        self: &Arc<Self>,
        memory: Memory,
        options: MountOptions,
    ) -> Result<FileSystem, FsError> {
        FileSystem::mount(self.parts(memory, options)?)
    }

    /// What a mount of this device is made of.
    ///
    /// # Errors
    /// The host has no memory.
    pub fn parts(self: &Arc<Self>, memory: Memory, options: MountOptions) -> Result<MountParts, FsError> {
        Ok(MountParts { device: self.open()?, memory, options })
    }

    fn resolve(&self, address: DeviceAddress, bytes: u32) -> Result<(Arc<Mapping>, usize), Status> {
        self.space.resolve(address, bytes as usize).map_err(|_| Status::DATA_TRANSFER_ERROR)
    }

    /// Takes a request: as what it will be done, or that it will fail.
    fn accept(&self, request: &Request<'_>) -> Task {
        let (first, count) = (request.lba.0, u64::from(request.blocks));
        let failed = |status| Task { number: None, result: Err(status) };
        if first.checked_add(count).is_none_or(|end| end > self.geometry.lba_count) {
            return failed(Status::LBA_OUT_OF_RANGE);
        }
        let mut inner = self.lock();
        if let Err(status) = inner.may_fail(request.operation == Operation::Read) {
            return failed(status);
        }
        let what = match request.operation {
            Operation::Write { fua } | Operation::WriteZeroes { fua } => {
                if fua {
                    What::WriteFua
                } else {
                    What::Write
                }
            }
            Operation::Flush => What::Flush,
            Operation::Discard => What::Discard,
            Operation::Read | Operation::Compare | Operation::Passthrough { .. } => {
                return Task { number: None, result: Ok(()) };
            }
        };
        Task { number: Some(inner.send(what, first)), result: Ok(()) }
    }

    /// Executes a request that was taken: now its memory is read or filled.
    fn execute(&self, inner: &mut DiskState, flight: &Flight) -> Result<(), Status> {
        let (first, count) = (flight.lba.0, flight.blocks as usize);
        let blocks = match flight.operation {
            Operation::Read => return self.read(inner, flight),
            Operation::Write { .. } => self.payload(flight)?,
            Operation::WriteZeroes { .. } => {
                let zero: Block = Arc::new([0; BLOCK]);
                vec![zero; count]
            }
            Operation::Discard => Command::discard(first, count as u64).blocks,
            Operation::Flush | Operation::Compare | Operation::Passthrough { .. } => Vec::new(),
        };
        if let Some(number) = flight.task.number {
            inner.execute(number, blocks);
        }
        Ok(())
    }

    /// Keeps what is in memory now: other threads may change it before the execution.
    #[cfg(feature = "schedule")]
    fn keep_as_sent(&self, flight: &Flight) {
        if let (Operation::Write { .. }, Some(number)) = (flight.operation, flight.task.number)
            && let Ok(blocks) = self.payload(flight)
        {
            let mut inner = self.lock();
            if inner.records {
                inner.trace.as_sent.insert(number, blocks);
            }
        }
    }

    fn read(&self, inner: &DiskState, flight: &Flight) -> Result<(), Status> {
        let mut block = flight.lba.0;
        let mut within = 0;
        for segment in &flight.data {
            let (memory, offset) = self.resolve(segment.address, segment.bytes)?;
            let mut done = 0;
            while done < segment.bytes as usize {
                let part = (BLOCK - within).min(segment.bytes as usize - done);
                memory.write(offset + done, &inner.media.block(block)[within..within + part]);
                done += part;
                within += part;
                if within == BLOCK {
                    (block, within) = (block + 1, 0);
                }
            }
        }
        Ok(())
    }

    fn payload(&self, flight: &Flight) -> Result<Vec<Block>, Status> {
        let mut bytes = Vec::with_capacity(flight.blocks as usize * BLOCK);
        for segment in &flight.data {
            let (memory, offset) = self.resolve(segment.address, segment.bytes)?;
            let start = bytes.len();
            bytes.resize(start + segment.bytes as usize, 0);
            memory.read(offset, &mut bytes[start..]);
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        if !rest.is_empty() || blocks.len() != flight.blocks as usize {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        Ok(blocks.iter().map(|block| Arc::new(*block)).collect())
    }
}

impl DiskState {
    fn may_fail(&mut self, is_read: bool) -> Result<(), Status> {
        let Some(fault) = self.fault.filter(|fault| fault.reads || !is_read) else { return Ok(()) };
        self.requests += 1;
        if (fault.at..fault.at.saturating_add(fault.count)).contains(&self.requests) {
            self.failed += 1;
            return Err(fault.status);
        }
        Ok(())
    }

    fn send(&mut self, what: What, first: u64) -> usize {
        let number = self.trace.commands.len();
        self.trace.commands.push(Command { what, first, blocks: Vec::new() });
        self.media.send(number, what);
        self.note(Event::Sent(number));
        number
    }

    fn execute(&mut self, number: usize, blocks: Vec<Block>) {
        let command = &mut self.trace.commands[number];
        command.blocks = blocks;
        if command.blocks.last().is_some_and(|block| block.starts_with(b"KVLB")) {
            self.log_block = command.first + command.blocks.len() as u64 - 1;
        }
        self.media.execute(number, command);
        if !self.records {
            command.blocks = Vec::new();
        }
        self.note(Event::Executed(number));
    }

    fn complete(&mut self, number: usize) {
        self.media.complete(number);
        self.note(Event::Completed(number));
    }

    fn note(&mut self, event: Event) {
        if !self.records {
            if self.media.in_flight() == 0 {
                self.trace.commands.clear();
            }
            return;
        }
        self.trace.events.push(event);
        let events = self.trace.events.len() as u64;
        if self.deaths.first() == Some(&events) {
            self.deaths.remove(0);
            let copy = self.memory.as_ref().and_then(|memory| copied(memory).ok());
            let media = self.media.clone();
            self.dead.extend(copy.map(|memory| Death { events, media, memory }));
        }
    }
}

/// Zeroed memory for a mount.
///
/// # Errors
/// The host has none.
pub fn memory() -> Result<Memory, FsError> {
    let layout = MemoryLayout::new(CACHE_BYTES);
    let mapping = Mapping::anonymous(layout.total_bytes(), Pages::Base).map_err(FsError::Host)?;
    Ok(Memory { mapping: Arc::new(mapping), layout })
}

/// A copy of a mount's memory, as it is.
fn copied(memory: &Memory) -> Result<Memory, FsError> {
    const CHUNK: usize = 64 << 10;
    let copy = self::memory()?;
    let mut bytes = vec![0; CHUNK];
    let total = memory.layout.total_bytes();
    for at in (0..total).step_by(CHUNK) {
        let part = CHUNK.min(total - at);
        memory.mapping.read(at, &mut bytes[..part]);
        if bytes[..part].iter().any(|&byte| byte != 0) {
            copy.mapping.write(at, &bytes[..part]);
        }
    }
    Ok(copy)
}

struct DiskEngine(Arc<Disk>);

/// What becomes of a request.
#[derive(Clone, Copy)]
struct Task {
    /// Its number in the trace, if it changes something.
    number: Option<usize>,
    result: Result<(), Status>,
}

/// A request under way.
struct Flight {
    tag: u64,
    operation: Operation,
    lba: Lba,
    blocks: u32,
    data: Vec<Segment>,
    task: Task,
    executed: bool,
}

struct DiskQueue {
    disk: Arc<Disk>,
    flights: Vec<Flight>,
    done: Vec<Completion>,
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
        let disk = Arc::clone(&self.disk);
        let mut inner = disk.lock();
        while !self.flights.is_empty() {
            self.advance(0, &disk, &mut inner);
        }
    }
}

impl QueuePair for DiskQueue {
    fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        if self.flights.len() + self.done.len() >= DEPTH {
            return Err(SubmitError::NoSlot);
        }
        let task = self.disk.accept(request);
        let Request { tag, operation, lba, blocks, data, .. } = *request;
        let data = data.to_vec();
        let flight = Flight { tag, operation, lba, blocks, data, task, executed: false };
        #[cfg(feature = "schedule")]
        if crate::schedule::is_scheduled() {
            self.disk.keep_as_sent(&flight);
        }
        self.flights.push(flight);
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

impl Engine for DiskEngine {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn queue(&self, _: QueueOptions) -> Result<Box<dyn QueuePair>, EngineError> {
        Ok(Box::new(DiskQueue { disk: Arc::clone(&self.0), flights: Vec::new(), done: Vec::new() }))
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, EngineError> {
        self.0.space.map(memory).map_err(EngineError::Map)
    }

    fn unmap(&self, address: DeviceAddress) {
        self.0.space.unmap(address);
    }

    fn shutdown(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Whoever waits comes here before each look, and holds no lock of the queue.
    fn events(&self, _vector: u16) -> u32 {
        #[cfg(feature = "schedule")]
        crate::schedule::switch_point();
        0
    }

    fn wait(&self, _vector: u16, _seen: u32, _timeout_us: u32) -> Waited {
        Waited::Event
    }
}
