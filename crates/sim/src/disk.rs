//! The device below the file system: an engine over a [`Volatile`], that records, and fails when told.

use crate::media::{BLOCK, Block, Command, Image, Volatile, What};
use nvmed_dma::AddressSpace;
use nvmed_engine::{
    Completion, DeviceError, Engine, EngineError, Geometry, Operation, QueueOptions, QueuePair, Request,
    SubmitError, Waited,
};
use nvmed_fs::{FileSystem, FsError, Memory, MemoryLayout, MountOptions, MountParts};
use nvmed_io::{Device, DeviceOptions, IoError};
use nvmed_nvme::Status;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::DeviceAddress;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of cache of each mount: small, so that pages are written back and read again.
const CACHE_BYTES: u64 = 512 << 10;

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

/// The memory of a mount, copied at some command.
pub struct Death {
    /// Commands that the device had executed.
    pub commands: u64,
    /// The device then, its cache included.
    pub media: Volatile,
    /// The memory.
    pub memory: Memory,
}

struct Inner {
    media: Volatile,
    trace: Option<Vec<Command>>,
    fault: Option<Fault>,
    /// Requests since the fault was set, of the kinds that count.
    requests: u64,
    failed: u64,
    deaths: Vec<u64>,
    memory: Option<Memory>,
    dead: Vec<Death>,
}

/// A device.
pub struct Disk {
    inner: Mutex<Inner>,
    space: AddressSpace,
    geometry: Geometry,
}

impl Disk {
    /// A device with that content, all of it durable.
    #[must_use]
    pub fn new(image: Image) -> Arc<Self> {
        Self::with(Volatile::new(image))
    }

    /// A device with that content and that much of it in its cache.
    #[must_use]
    pub fn with(media: Volatile) -> Arc<Self> {
        let geometry = Geometry {
            lba_bytes: BLOCK as u32,
            lba_count: media.durable().blocks(),
            transfer_bytes_max: 1 << 20,
            queue_depth_max: 64,
            queues_max: 8,
            volatile_write_cache: true,
            serial: "SIM".to_owned(),
            model: "power-cut device".to_owned(),
            firmware: "1".to_owned(),
        };
        let inner = Inner {
            media,
            trace: None,
            fault: None,
            requests: 0,
            failed: 0,
            deaths: Vec::new(),
            memory: None,
            dead: Vec::new(),
        };
        Arc::new(Self { inner: Mutex::new(inner), space: AddressSpace::default(), geometry })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records commands from now on.
    pub fn record(&self) {
        self.lock().trace = Some(Vec::new());
    }

    /// What was recorded; no more is.
    #[must_use]
    pub fn take_trace(&self) -> Vec<Command> {
        self.lock().trace.take().unwrap_or_default()
    }

    /// Commands recorded so far.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.lock().trace.as_ref().map_or(0, |trace| trace.len() as u64)
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

    /// Copies `memory` when each of `commands` commands was recorded: a process that dies there.
    pub fn die_at(&self, memory: Memory, mut commands: Vec<u64>) {
        let mut inner = self.lock();
        commands.sort_unstable();
        inner.memory = Some(memory);
        inner.deaths = commands;
    }

    /// The deaths that came.
    #[must_use]
    pub fn take_deaths(&self) -> Vec<Death> {
        let mut inner = self.lock();
        (inner.memory, inner.deaths) = (None, Vec::new());
        core::mem::take(&mut inner.dead)
    }

    /// The device, opened.
    ///
    /// # Errors
    /// The host has no memory.
    pub fn open(self: &Arc<Self>) -> Result<Arc<Device>, IoError> {
        Device::open(Arc::new(DiskEngine(Arc::clone(self))), DeviceOptions { queues: 1, depth: 64 })
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
    pub fn mount_in(self: &Arc<Self>, memory: Memory, options: MountOptions) -> Result<FileSystem, FsError> {
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

    fn run(&self, request: &Request<'_>) -> Result<(), Status> {
        let (first, count) = (request.lba.0, u64::from(request.blocks));
        if first.checked_add(count).is_none_or(|end| end > self.geometry.lba_count) {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        let mut inner = self.lock();
        inner.may_fail(request.operation == Operation::Read)?;
        let command = match request.operation {
            Operation::Read => return self.read(&inner, request),
            Operation::Write { fua } => {
                let what = if fua { What::WriteFua } else { What::Write };
                Command { what, first, blocks: self.payload(request)? }
            }
            Operation::WriteZeroes { fua } => {
                let what = if fua { What::WriteFua } else { What::Write };
                let zero: Block = Arc::new([0; BLOCK]);
                Command { what, first, blocks: vec![zero; count as usize] }
            }
            Operation::Flush => Command { what: What::Flush, first: 0, blocks: Vec::new() },
            Operation::Discard => Command::discard(first, count),
            Operation::Compare | Operation::Passthrough { .. } => return Ok(()),
        };
        inner.run(command);
        Ok(())
    }

    fn read(&self, inner: &Inner, request: &Request<'_>) -> Result<(), Status> {
        let mut block = request.lba.0;
        let mut within = 0;
        for segment in request.data {
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

    fn payload(&self, request: &Request<'_>) -> Result<Vec<Block>, Status> {
        let mut bytes = Vec::with_capacity(request.blocks as usize * BLOCK);
        for segment in request.data {
            let (memory, offset) = self.resolve(segment.address, segment.bytes)?;
            let start = bytes.len();
            bytes.resize(start + segment.bytes as usize, 0);
            memory.read(offset, &mut bytes[start..]);
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        if !rest.is_empty() || blocks.len() != request.blocks as usize {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        Ok(blocks.iter().map(|block| Arc::new(*block)).collect())
    }
}

impl Inner {
    fn may_fail(&mut self, is_read: bool) -> Result<(), Status> {
        let Some(fault) = self.fault.filter(|fault| fault.reads || !is_read) else { return Ok(()) };
        self.requests += 1;
        if (fault.at..fault.at.saturating_add(fault.count)).contains(&self.requests) {
            self.failed += 1;
            return Err(fault.status);
        }
        Ok(())
    }

    fn run(&mut self, command: Command) {
        self.media.run(&command);
        if let Some(trace) = &mut self.trace {
            trace.push(command);
            let commands = trace.len() as u64;
            if self.deaths.first() == Some(&commands) {
                self.deaths.remove(0);
                let copy = self.memory.as_ref().and_then(|memory| copied(memory).ok());
                let media = self.media.clone();
                self.dead.extend(copy.map(|memory| Death { commands, media, memory }));
            }
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

struct DiskQueue {
    disk: Arc<Disk>,
    done: Vec<Completion>,
}

impl QueuePair for DiskQueue {
    fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        let result = self.disk.run(request).map_err(|status| DeviceError {
            operation: request.operation,
            lba: request.lba,
            status,
            fault: None,
        });
        self.done.push(Completion { tag: request.tag, result, value: 0 });
        Ok(())
    }

    fn ring(&mut self) {}

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let count = self.done.len().min(out.capacity() - out.len());
        out.extend(self.done.drain(..count));
        count
    }

    fn outstanding(&self) -> usize {
        self.done.len()
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
        Ok(Box::new(DiskQueue { disk: Arc::clone(&self.0), done: Vec::new() }))
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

    fn events(&self, _vector: u16) -> u32 {
        0
    }

    fn wait(&self, _vector: u16, _seen: u32, _timeout_us: u32) -> Waited {
        Waited::Event
    }
}
