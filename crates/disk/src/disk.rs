//! The device: its content, and what a test has told it.

use crate::media::{BLOCK, Block, Command, Event, Image, Trace, Volatile, What};
use crate::memory::{self, Open};
use crate::queue::{DiskEngine, Flight, Task};
use crate::words::Words;
use nvmed_dice::Dice;
use nvmed_dma::AddressSpace;
use nvmed_engine::{Geometry, Operation, Request};
use nvmed_io::{Device, DeviceOptions, IoError};
use nvmed_nvm::{Memory, NvmEngine, Record};
use nvmed_nvme::Status;
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::DeviceAddress;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Commands that its queue holds.
pub(crate) const DEPTH: usize = 64;

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

/// The memory of a process, copied at some event.
pub struct Death {
    /// Events of the trace that had come.
    pub events: u64,
    /// The device then, its cache included.
    pub media: Volatile,
    /// The memory.
    pub memory: Arc<Mapping>,
}

/// What a device has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Commands other than reads.
    pub writes: u64,
    /// Commands to make durable what was written.
    pub flushes: u64,
    /// Commands of urgent callers, by the queue that they have.
    pub urgent: u64,
    /// Discards among [`Counts::urgent`].
    pub urgent_discards: u64,
    /// Blocks that were read.
    pub blocks_read: u64,
    /// Blocks that were discarded.
    pub blocks_discarded: u64,
    /// Requests that failed because a test said so, those that a protected or full device refused among
    /// them.
    pub failed: u64,
}

pub(crate) struct DiskState {
    media: Volatile,
    trace: Trace,
    /// Whether the trace is kept.
    records: bool,
    fault: Option<Fault>,
    /// Requests since the fault was set, of the kinds that count.
    requests: u64,
    counts: Counts,
    /// Most requests that one queue had under way at once.
    together: usize,
    /// Blocks that cannot be read.
    bad: Vec<u64>,
    /// A flush does nothing, and says that it has.
    lies: bool,
    /// It has no room from this block on.
    full_from: Option<u64>,
    /// It takes no writes.
    protected: bool,
    /// Whether it says so when it is asked.
    says_so: bool,
    deaths: Vec<u64>,
    memory: Option<Arc<Mapping>>,
    dead: Vec<Death>,
    /// Where the log was written last.
    log_block: u64,
    /// Of memory: what has not come to its end.
    pub(crate) open: Open,
    pub dice: Dice,
    /// In percent, how often a look at the queue finds that nothing more has happened.
    pub idle: u64,
}

/// In percent, how idle devices are: one that is prompt, and one that keeps commands for long.
const IDLE: [u64; 4] = [10, 30, 50, 80];

/// A device.
pub struct Disk {
    inner: Mutex<DiskState>,
    space: AddressSpace,
    geometry: Geometry,
    /// Its bytes, where they are memory.
    bytes: Option<Arc<Memory>>,
    mapping: Option<Arc<Mapping>>,
    /// Something was stored to them when this was gone.
    strayed: Arc<AtomicBool>,
    /// Each command is executed and complete when it was sent, and a discard is durable at once.
    prompt: bool,
    stall: Mutex<()>,
    /// Writes until one is stalled, that one included; 0 when none is to be.
    stalls_in: AtomicU64,
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
    pub fn with(media: Volatile, dice: &mut Dice) -> Arc<Self> {
        Self::made(media, dice, false)
    }

    /// A device with that content, all of it durable, which does each command as it is sent: what a call does is then
    /// what it has sent. A discard is the worst that one may be: durable at once, and the blocks hold no zeroes.
    #[must_use]
    pub fn prompt(image: Image) -> Arc<Self> {
        Self::made(Volatile::new(image), &mut Dice::of(&[0xd15c]), true)
    }

    fn made(mut media: Volatile, dice: &mut Dice, prompt: bool) -> Arc<Self> {
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
            counts: Counts::default(),
            together: 0,
            bad: Vec::new(),
            lies: false,
            full_from: None,
            protected: false,
            says_so: false,
            deaths: Vec::new(),
            memory: None,
            dead: Vec::new(),
            log_block: 0,
            open: Open::default(),
            dice,
            idle,
        };
        let (mapping, bytes) = memory::of(&inner.media).unzip();
        let disk = Arc::new(Self {
            inner: Mutex::new(inner),
            space: AddressSpace::default(),
            geometry,
            bytes,
            mapping,
            strayed: Arc::default(),
            prompt,
            stall: Mutex::new(()),
            stalls_in: AtomicU64::new(0),
        });
        if let Some(bytes) = &disk.bytes {
            let (stored, strayed) = (Arc::downgrade(&disk), Arc::clone(&disk.strayed));
            bytes.record(Record::told(move |event| {
                // Before, not after: nothing comes between a note and what it tells of.
                #[cfg(feature = "schedule")]
                nvmed_sys::sync::look();
                match stored.upgrade() {
                    Some(disk) => disk.lock().stored(event),
                    None => strayed.store(true, Ordering::Relaxed),
                }
            }));
        }
        disk
    }

    /// Its bytes, where they are memory, which a mount may store to itself.
    #[must_use]
    pub fn bytes(&self) -> Option<Arc<Memory>> {
        self.bytes.clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.inner.lock()
    }

    pub(crate) fn is_prompt(&self) -> bool {
        self.prompt
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn space(&self) -> &AddressSpace {
        &self.space
    }

    /// Records events from now on, when nothing is in flight.
    pub fn record(&self) {
        let mut inner = self.lock();
        inner.settle_all();
        assert!(inner.media.in_flight() == 0, "a recording begins between two calls");
        (inner.trace, inner.records) = (Trace::default(), true);
    }

    /// What was recorded; no more is.
    #[must_use]
    pub fn take_trace(&self) -> Trace {
        let mut inner = self.lock();
        inner.settle_all();
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

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Most requests that one queue had under way at once since the last call of this.
    pub fn take_together(&self) -> usize {
        core::mem::take(&mut self.lock().together)
    }

    /// From now on these blocks cannot be read.
    pub fn spoil(&self, blocks: &[u64]) {
        self.lock().bad = blocks.to_vec();
    }

    /// Whether a flush does nothing from now on, and says that it has.
    pub fn set_lying(&self, lies: bool) {
        self.lock().lies = lies;
    }

    /// From now on, writes that reach this block or a later one find no room, as under an image whose host is full;
    /// none: there is room.
    pub fn fill_from(&self, block: Option<u64>) {
        self.lock().full_from = block;
    }

    /// From now on it takes no writes, as a drive that is worn out; `says_so`: its health log says it.
    pub fn protect(&self, says_so: bool) {
        let mut inner = self.lock();
        (inner.protected, inner.says_so) = (true, says_so);
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.lock().says_so
    }

    /// Whoever sends the write with this number, from 1, waits until the answer is dropped.
    pub fn stall_at(&self, write: u64) -> MutexGuard<'_, ()> {
        let held = self.stall.lock();
        self.stalls_in.store(write, Ordering::SeqCst);
        held
    }

    /// Waits until somebody waits for what [`Disk::stall_at`] answered.
    pub fn await_stalled(&self) {
        while self.stalls_in.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    pub(crate) fn wait_if_stalled(&self) {
        let fewer = |left: u64| left.checked_sub(1);
        if self.stalls_in.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer) == Ok(1) {
            drop(self.stall.lock());
        }
    }

    /// The bytes of a block, as it is read now.
    #[must_use]
    pub fn peek(&self, block: u64) -> Vec<u8> {
        self.lock().media.block(block).to_vec()
    }

    /// Changes a durable block behind everybody's back.
    pub fn poke(&self, block: u64, change: impl FnOnce(&mut [u8])) {
        let mut inner = self.lock();
        let mut bytes = **inner.media.block(block);
        change(&mut bytes);
        inner.media.set(block, Arc::new(bytes));
    }

    /// Copies `memory` when each of `events` events was recorded: a process that dies there.
    pub fn die_at(&self, memory: Arc<Mapping>, mut events: Vec<u64>) {
        let mut inner = self.lock();
        events.sort_unstable();
        inner.memory = Some(memory);
        inner.deaths = events;
    }

    /// The deaths that came.
    #[must_use]
    pub fn take_deaths(&self) -> Vec<Death> {
        let mut inner = self.lock();
        (inner.memory, inner.deaths) = (None, Vec::new());
        core::mem::take(&mut inner.dead)
    }

    /// The device, opened with so many queues.
    ///
    /// # Errors
    /// The host has no memory.
    pub fn open(self: &Arc<Self>, queues: usize) -> Result<Arc<Device>, IoError> {
        let options = DeviceOptions { queues, depth: DEPTH as u16 };
        match &self.bytes {
            Some(bytes) => Device::open(Arc::new(NvmEngine::over(Arc::clone(bytes), BLOCK as u32)), options),
            None => Device::open(Arc::new(DiskEngine(Arc::clone(self))), options),
        }
    }

    fn resolve(&self, address: DeviceAddress, bytes: u32) -> Result<(Arc<Mapping>, usize), Status> {
        self.space.resolve(address, bytes as usize).map_err(|_| Status::DATA_TRANSFER_ERROR)
    }

    /// A command came by the queue of urgent callers.
    pub(crate) fn count_urgent(&self, operation: Operation) {
        let counts = &mut self.lock().counts;
        counts.urgent += 1;
        counts.urgent_discards += u64::from(operation == Operation::Discard);
    }

    /// Takes a request, one of so many of its queue: as what it will be done, or that it will fail.
    pub(crate) fn accept(&self, request: &Request<'_>, together: usize) -> Task {
        let (first, count) = (request.lba.0, u64::from(request.blocks));
        let failed = |status| Task { number: None, result: Err(status) };
        if first.checked_add(count).is_none_or(|end| end > self.geometry.lba_count) {
            return failed(Status::LBA_OUT_OF_RANGE);
        }
        let mut inner = self.lock();
        inner.count(request);
        inner.together = inner.together.max(together);
        if let Err(status) = inner.may_fail(request.operation == Operation::Read) {
            return failed(status);
        }
        let changes = !matches!(request.operation, Operation::Read | Operation::Flush | Operation::Compare);
        if changes && inner.protected {
            inner.counts.failed += 1;
            return failed(Status::WRITE_PROTECTED);
        }
        if changes && inner.full_from.is_some_and(|block| first + count > block) {
            inner.counts.failed += 1;
            return failed(Status::CAPACITY_EXCEEDED);
        }
        let what = match request.operation {
            Operation::Write { fua } | Operation::WriteZeroes { fua } => {
                if fua {
                    What::WriteFua
                } else {
                    What::Write
                }
            }
            Operation::Flush if inner.lies => return Task { number: None, result: Ok(()) },
            Operation::Flush => What::Flush,
            Operation::Discard if self.prompt => What::WriteFua,
            Operation::Discard => What::Discard,
            Operation::Read if inner.bad.iter().any(|&bad| bad >= first && bad - first < count) => {
                return failed(Status::UNRECOVERED_READ);
            }
            Operation::Read | Operation::Compare | Operation::Passthrough { .. } => {
                return Task { number: None, result: Ok(()) };
            }
        };
        Task { number: Some(inner.send(what, first)), result: Ok(()) }
    }

    /// Executes a request that was taken: now its memory is read or filled.
    pub(crate) fn execute(&self, inner: &mut DiskState, flight: &Flight) -> Result<(), Status> {
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
            inner.execute(number, blocks, Vec::new());
        }
        Ok(())
    }

    /// Keeps what is in memory now: other threads may change it before the execution.
    #[cfg(feature = "schedule")]
    pub(crate) fn keep_as_sent(&self, flight: &Flight) {
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

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(mapping) = self.mapping.take() {
            memory::keep(mapping, &self.strayed, &self.inner.lock().media);
        }
    }
}

impl DiskState {
    fn count(&mut self, request: &Request<'_>) {
        let blocks = u64::from(request.blocks);
        match request.operation {
            Operation::Read => self.counts.blocks_read += blocks,
            Operation::Discard => self.counts.blocks_discarded += blocks,
            Operation::Flush => self.counts.flushes += 1,
            _ => {}
        }
        self.counts.writes += u64::from(request.operation != Operation::Read);
    }

    fn may_fail(&mut self, is_read: bool) -> Result<(), Status> {
        let Some(fault) = self.fault.filter(|fault| fault.reads || !is_read) else { return Ok(()) };
        self.requests += 1;
        if (fault.at..fault.at.saturating_add(fault.count)).contains(&self.requests) {
            self.counts.failed += 1;
            return Err(fault.status);
        }
        Ok(())
    }

    pub(crate) fn media(&self) -> &Volatile {
        &self.media
    }

    pub(crate) fn send(&mut self, what: What, first: u64) -> usize {
        let number = self.trace.commands.len();
        self.trace.commands.push(Command { what, first, blocks: Vec::new(), words: Vec::new() });
        self.media.send(number, what);
        self.note(Event::Sent(number));
        number
    }

    pub(crate) fn execute(&mut self, number: usize, blocks: Vec<Block>, words: Vec<Words>) {
        let command = &mut self.trace.commands[number];
        (command.blocks, command.words) = (blocks, words);
        if command.blocks.last().is_some_and(|block| block.starts_with(b"KVLB")) {
            self.log_block = command.first + command.blocks.len() as u64 - 1;
        }
        self.media.execute(number, command);
        if !self.records {
            command.blocks = Vec::new();
        }
        self.note(Event::Executed(number));
    }

    pub(crate) fn complete(&mut self, number: usize) {
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
            let copy = self.memory.as_deref().and_then(copied);
            let media = self.media.clone();
            self.dead.extend(copy.map(|memory| Death { events, media, memory }));
        }
    }
}

/// A copy of memory, as it is.
fn copied(memory: &Mapping) -> Option<Arc<Mapping>> {
    const CHUNK: usize = 64 << 10;
    let total = memory.len();
    let copy = Mapping::anonymous(total, Pages::Base).ok()?;
    let mut bytes = vec![0; CHUNK];
    for at in (0..total).step_by(CHUNK) {
        let part = CHUNK.min(total - at);
        memory.read(at, &mut bytes[..part]);
        if bytes[..part].iter().any(|&byte| byte != 0) {
            copy.write(at, &bytes[..part]);
        }
    }
    Some(Arc::new(copy))
}
