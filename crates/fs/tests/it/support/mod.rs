//! A block device in memory whose power can be cut, and a file system on it.
//!
//! Writes stay in a volatile cache until a flush, or go around it with FUA. A cut keeps of every
//! cached 512-byte sector what a seeded coin says, in any combination: reordered, torn, lost.
#![allow(dead_code, reason = "each test binary uses its own part")]

use nvmed_check::Finding;
use nvmed_dma::AddressSpace;
use nvmed_engine::{
    Completion, DeviceError, Engine, EngineError, Geometry, InvalidRequest, Operation, QueueOptions,
    QueuePair, Request, SubmitError, Waited,
};
use nvmed_fs::{FileSystem, FormatOptions, Memory, MemoryLayout, MountOptions, MountParts};
use nvmed_io::{Device, DeviceOptions};
use nvmed_nvme::Status;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::DeviceAddress;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub const BLOCK: usize = 4096;
const SECTOR: usize = 512;

type Block = Box<[u8; BLOCK]>;

#[derive(Default)]
struct Blocks {
    durable: HashMap<u64, Block>,
    /// Writes since the last flush, in order.
    cached: Vec<(u64, Block)>,
    newest: HashMap<u64, usize>,
    /// Commands that change something, so far.
    writes: u64,
    flushes: u64,
    reads: u64,
    /// Most requests that one queue had under way at once.
    together: usize,
    discarded: u64,
    /// Commands that change something and fail: the first, and one past the last.
    fails: (u64, u64),
    /// With this; none is an error of the device.
    fails_with: Option<Status>,
    /// After this many of them, nothing reaches the device any more.
    cut_after: Option<u64>,
    /// Blocks that cannot be read.
    bad: Vec<u64>,
    /// A flush does nothing, and says that it has.
    lies: bool,
}

/// The device's contents and switches, shared with whoever tests it.
pub struct Disk {
    blocks: Mutex<Blocks>,
    space: AddressSpace,
    geometry: Geometry,
    stall: Mutex<()>,
    /// Writes until one is stalled, that one included; 0 when none is to be.
    stalls_in: AtomicU64,
}

impl Disk {
    pub fn new(bytes: u64) -> Arc<Self> {
        let geometry = Geometry {
            lba_bytes: BLOCK as u32,
            lba_count: bytes / BLOCK as u64,
            transfer_bytes_max: 1 << 20,
            queue_depth_max: 64,
            queues_max: 8,
            volatile_write_cache: true,
            serial: "TEST".to_owned(),
            model: "test disk".to_owned(),
            firmware: "1".to_owned(),
        };
        let (stall, stalls_in) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Self {
            blocks: Mutex::default(),
            space: AddressSpace::default(),
            geometry,
            stall,
            stalls_in,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    pub fn flushes(&self) -> u64 {
        self.lock().flushes
    }

    pub fn reads(&self) -> u64 {
        self.lock().reads
    }

    /// Most requests that one queue had under way at once since the last call of this.
    pub fn take_together(&self) -> usize {
        core::mem::take(&mut self.lock().together)
    }

    /// Of the commands to come, number `first` (from 1) and some after it fail.
    pub fn fail(&self, first: u64, count: u64) {
        let mut blocks = self.lock();
        blocks.fails = (blocks.writes + first, blocks.writes + first + count);
    }

    /// As [`Disk::fail`], with that status.
    pub fn fail_with(&self, status: Status, first: u64, count: u64) {
        self.lock().fails_with = Some(status);
        self.fail(first, count);
    }

    /// Whether a flush does nothing from now on, and says that it has.
    pub fn set_lying(&self, lies: bool) {
        self.lock().lies = lies;
    }

    /// From now on these blocks cannot be read.
    pub fn spoil(&self, blocks: &[u64]) {
        self.lock().bad = blocks.to_vec();
    }

    pub fn blocks_discarded(&self) -> u64 {
        self.lock().discarded
    }

    /// Whoever sends the next write waits until this is dropped.
    pub fn stall(&self) -> MutexGuard<'_, ()> {
        self.stall_at(1)
    }

    /// As [`Disk::stall`], of the write with this number, from 1.
    pub fn stall_at(&self, write: u64) -> MutexGuard<'_, ()> {
        let held = self.stall.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.stalls_in.store(write, Ordering::SeqCst);
        held
    }

    /// Waits until somebody waits for what [`Disk::stall`] answered.
    pub fn await_stalled(&self) {
        while self.stalls_in.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    /// The power goes after `writes` more writes.
    pub fn cut_after(&self, writes: u64) {
        let mut blocks = self.lock();
        blocks.cut_after = Some(blocks.writes + writes);
    }

    /// A device with what a power cut now leaves: of the cached sectors, those that `coin` keeps.
    pub fn survivor(&self, mut coin: impl FnMut() -> bool) -> Arc<Self> {
        let blocks = self.lock();
        let mut durable = blocks.durable.clone();
        for (number, data) in &blocks.cached {
            let target = durable.entry(*number).or_insert_with(|| Box::new([0; BLOCK]));
            for sector in (0..BLOCK).step_by(SECTOR) {
                if coin() {
                    target[sector..sector + SECTOR].copy_from_slice(&data[sector..sector + SECTOR]);
                }
            }
        }
        let new = Self::new(self.geometry.bytes());
        new.lock().durable = durable;
        new
    }

    /// A device with the same contents, nothing lost: another power-on after a clean end.
    pub fn copy(&self) -> Arc<Self> {
        self.survivor(|| true)
    }

    /// The bytes of a block.
    pub fn peek(&self, block: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        self.lock().read(block, &mut bytes);
        bytes
    }

    /// Changes a block behind everybody's back.
    pub fn poke(&self, block: u64, change: impl FnOnce(&mut [u8])) {
        let mut bytes = self.peek(block);
        change(&mut bytes);
        self.lock().durable.insert(block, bytes.into_boxed_slice().try_into().expect("a block"));
    }

    pub fn device(self: &Arc<Self>) -> Arc<Device> {
        let engine = Arc::new(DiskEngine(Arc::clone(self)));
        Device::open(engine, DeviceOptions { queues: 4, depth: 64 }).expect("the test disk opens")
    }

    /// Formats with a fixed identity.
    pub fn format(self: &Arc<Self>) -> &Arc<Self> {
        self.format_zones(nvmed_fs::ZONE_BOUND)
    }

    /// With a zone bound.
    pub fn format_zones(self: &Arc<Self>, zone_bound: u32) -> &Arc<Self> {
        let root = FormatOptions { uid: 0, gid: 0, ..FormatOptions::default() };
        let options = FormatOptions { uuid: Some([7; 16]), zone_bound, ..root };
        FileSystem::format(&self.device(), &options).expect("the test disk formats");
        self
    }

    pub fn mount(self: &Arc<Self>) -> FileSystem {
        self.mount_with(MountOptions::default(), 8 << 20)
    }

    pub fn mount_with(self: &Arc<Self>, options: MountOptions, cache_bytes: u64) -> FileSystem {
        self.try_mount(options, cache_bytes).expect("the file system mounts")
    }

    pub fn try_mount(
        self: &Arc<Self>,
        options: MountOptions,
        cache_bytes: u64,
    ) -> Result<FileSystem, nvmed_fs::FsError> {
        FileSystem::mount(MountParts { device: self.device(), memory: memory(cache_bytes), options })
    }

    /// Unmounts, mounts again, and lets fsck look in between.
    pub fn remount(self: &Arc<Self>, files: FileSystem) -> FileSystem {
        files.unmount().expect("the file system unmounts");
        drop(files);
        self.assert_sound();
        self.mount()
    }

    /// As [`Disk::assert_sound`], right after a power cut: of a superblock that was being written the other copy
    /// counts.
    pub fn assert_sound_after_cut(self: &Arc<Self>) {
        let mut findings = nvmed_check::fsck(&self.device()).expect("fsck reads the device");
        findings.retain(|finding| !matches!(finding, Finding::Copy(lost) if lost.is_superblock()));
        assert!(findings.is_empty(), "fsck found {findings:#?}");
    }

    pub fn assert_sound(self: &Arc<Self>) {
        let findings = nvmed_check::fsck(&self.device()).expect("fsck reads the device");
        assert!(findings.is_empty(), "fsck found {findings:#?}");
    }
}

pub fn memory(cache_bytes: u64) -> Memory {
    let layout = MemoryLayout::new(cache_bytes);
    let mapping = Mapping::anonymous(layout.total_bytes(), Pages::Base).expect("the host has memory");
    Memory { mapping: Arc::new(mapping), layout }
}

impl Blocks {
    fn read(&self, block: u64, into: &mut [u8]) {
        match (self.newest.get(&block), self.durable.get(&block)) {
            (Some(&index), _) => into.copy_from_slice(&self.cached[index].1[..]),
            (None, Some(data)) => into.copy_from_slice(&data[..]),
            (None, None) => into.fill(0),
        }
    }

    fn write(&mut self, block: u64, data: Block, fua: bool) {
        if fua {
            // What was cached for the block before is superseded, not merely covered.
            self.cached.retain(|(number, _)| *number != block);
            self.newest = self.cached.iter().enumerate().map(|(at, (number, _))| (*number, at)).collect();
            self.durable.insert(block, data);
        } else {
            self.newest.insert(block, self.cached.len());
            self.cached.push((block, data));
        }
    }

    fn flush(&mut self) {
        for (block, data) in core::mem::take(&mut self.cached) {
            self.durable.insert(block, data);
        }
        self.newest.clear();
    }
}

struct DiskEngine(Arc<Disk>);

struct DiskQueue {
    disk: Arc<Disk>,
    done: Vec<Completion>,
}

impl DiskQueue {
    fn run(&self, request: &Request<'_>) -> Result<(), Status> {
        let mut blocks = self.disk.lock();
        let blocks = &mut *blocks;
        let (first, count) = (request.lba.0, u64::from(request.blocks));
        if first + count > self.disk.geometry.lba_count {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        if !matches!(request.operation, Operation::Read) {
            if blocks.cut_after.is_some_and(|limit| blocks.writes >= limit) {
                return Err(Status::INTERNAL_ERROR);
            }
            blocks.writes += 1;
            if (blocks.fails.0..blocks.fails.1).contains(&blocks.writes) {
                return Err(blocks.fails_with.unwrap_or(Status::INTERNAL_ERROR));
            }
        }
        match request.operation {
            Operation::Read => {
                blocks.reads += count;
                if blocks.bad.iter().any(|bad| (first..first + count).contains(bad)) {
                    return Err(Status::UNRECOVERED_READ);
                }
                let mut bytes = vec![0; count as usize * BLOCK];
                for (block, place) in (first..).zip(bytes.chunks_mut(BLOCK)) {
                    blocks.read(block, place);
                }
                let mut rest = &bytes[..];
                for segment in request.data {
                    let (memory, offset) = self.memory(segment.address, segment.bytes)?;
                    let (part, after) = rest.split_at(segment.bytes as usize);
                    memory.write(offset, part);
                    rest = after;
                }
            }
            Operation::Write { fua } => {
                let mut bytes = Vec::new();
                for segment in request.data {
                    let (memory, offset) = self.memory(segment.address, segment.bytes)?;
                    let start = bytes.len();
                    bytes.resize(start + segment.bytes as usize, 0);
                    memory.read(offset, &mut bytes[start..]);
                }
                for (block, data) in (first..).zip(bytes.chunks(BLOCK)) {
                    blocks.write(block, Box::new(data.try_into().expect("whole blocks")), fua);
                }
            }
            Operation::WriteZeroes { fua } => {
                for block in first..first + count {
                    blocks.write(block, Box::new([0; BLOCK]), fua);
                }
            }
            Operation::Flush => {
                blocks.flushes += 1;
                if !blocks.lies {
                    blocks.flush();
                }
            }
            Operation::Discard => {
                // The worst that a device may do: at once, durably, and other bytes than zeroes.
                blocks.discarded += count;
                for block in first..first + count {
                    blocks.write(block, Box::new([0xdd; BLOCK]), true);
                }
            }
            Operation::Compare | Operation::Passthrough { .. } => {}
        }
        Ok(())
    }

    fn memory(&self, address: DeviceAddress, bytes: u32) -> Result<(Arc<Mapping>, usize), Status> {
        self.disk.space.resolve(address, bytes as usize).map_err(|_| Status::DATA_TRANSFER_ERROR)
    }
}

impl QueuePair for DiskQueue {
    fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        let Request { operation, lba, blocks, .. } = *request;
        if blocks > self.request_blocks_max(operation) {
            let reason = InvalidRequest::TooLarge { commands: blocks.into(), depth: 1 };
            return Err(SubmitError::Invalid { operation, lba, reason });
        }
        let writes = matches!(request.operation, Operation::Write { .. });
        let count = |left: u64| left.checked_sub(1);
        if writes && self.disk.stalls_in.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count) == Ok(1) {
            drop(self.disk.stall.lock());
        }
        let result = self.run(request).map_err(|status| DeviceError {
            operation: request.operation,
            lba: request.lba,
            status,
            fault: None,
        });
        self.done.push(Completion { tag: request.tag, result, value: 0 });
        let mut blocks = self.disk.lock();
        blocks.together = blocks.together.max(self.done.len());
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

    fn request_blocks_max(&self, _operation: Operation) -> u32 {
        256
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
        self.0.lock().flush();
        Ok(())
    }

    fn events(&self, _vector: u16) -> u32 {
        0
    }

    fn wait(&self, _vector: u16, _seen: u32, _timeout_us: u32) -> Waited {
        Waited::Event
    }
}
