//! A host as small as the specification allows, to look at the controller's answers one by one.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod input;

use nvmed_dma::Transport;
use nvmed_nvme::{CompletionEntry, SubmissionEntry, register};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, QueueId};
use nvmed_vdev::{Controller, ControllerConfig, InProcess, Media};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, IntoBytes};

/// Entries of the queues of the tests.
pub const ENTRIES: u16 = 8;
/// Bytes of memory that a host and each further ring have.
pub const MEMORY: usize = 4 << 20;
/// Where a ring's submission and completion queue lie in its memory; the host's first pair and the admin pair
/// share one memory.
const ADMIN: (usize, usize) = (0x1000, 0x2000);
const FIRST: (usize, usize) = (0x3000, 0x4000);
/// Where tests put data: 512 pages from here; the page before it holds the PRP list.
pub const DATA: usize = 0x10000;

/// A queue pair, seen from the host, and the memory with its data.
pub struct Ring {
    device: Arc<InProcess>,
    pub memory: Arc<Mapping>,
    base: DeviceAddress,
    id: QueueId,
    stride: u32,
    sq: usize,
    cq: usize,
    tail: u16,
    head: u16,
    phase: bool,
    pub entries: u16,
}

impl Ring {
    fn new(host: (&Arc<InProcess>, &Arc<Mapping>, DeviceAddress), id: u16, (sq, cq): (usize, usize)) -> Self {
        let (device, memory, base) = (Arc::clone(host.0), Arc::clone(host.1), host.2);
        let stride = (device.read64(register::CAP) >> 32 & 0xf) as u32;
        let id = QueueId(id);
        Self { device, memory, base, id, stride, sq, cq, tail: 0, head: 0, phase: true, entries: ENTRIES }
    }

    /// As after its controller's reset.
    pub fn reset(&mut self) {
        (self.tail, self.head, self.phase) = (0, 0, true);
    }

    pub fn address(&self, offset: usize) -> DeviceAddress {
        self.base.plus(offset as u64)
    }

    /// Puts an entry into the queue without ringing.
    pub fn place(&mut self, entry: SubmissionEntry) {
        self.memory.write(self.sq + 64 * usize::from(self.tail), entry.as_bytes());
        self.tail = (self.tail + 1) % self.entries;
    }

    pub fn ring(&self) {
        self.device.write32(register::sq_doorbell(self.id, self.stride), u32::from(self.tail));
    }

    /// The next completion, if there is one; its doorbell is rung.
    pub fn reap(&mut self) -> Option<CompletionEntry> {
        let done = self.peek()?;
        self.head = (self.head + 1) % self.entries;
        self.phase ^= self.head == 0;
        self.device.write32(register::cq_doorbell(self.id, self.stride), u32::from(self.head));
        Some(done)
    }

    /// The next completion, left where it is.
    pub fn peek(&self) -> Option<CompletionEntry> {
        let at = self.cq + 16 * usize::from(self.head);
        let last = self.memory.u32(at + 12).load(Ordering::Acquire);
        if (last >> 16 & 1 != 0) != self.phase {
            return None;
        }
        let mut bytes = [0; 16];
        self.memory.read(at, &mut bytes);
        Some(CompletionEntry::read_from_bytes(&bytes).unwrap())
    }

    /// The slot of the next completion.
    pub fn reaped(&self) -> u16 {
        self.head
    }

    /// Steps over an entry that cannot be seen.
    pub fn skip(&mut self) {
        self.head = (self.head + 1) % self.entries;
        self.phase ^= self.head == 0;
    }

    /// Completions that lie there and are not reaped.
    pub fn filled(&self) -> u16 {
        let seen = |step: &u16| {
            let slot = (self.head + step) % self.entries;
            let last = self.memory.u32(self.cq + 16 * usize::from(slot) + 12).load(Ordering::Acquire);
            (last >> 16 & 1 != 0) == (self.phase ^ (slot < self.head))
        };
        (0..self.entries).take_while(seen).count() as u16
    }

    pub fn wait(&mut self) -> CompletionEntry {
        for _ in 0..30 {
            let seen = self.device.events(self.id.0);
            if let Some(done) = self.reap() {
                return done;
            }
            self.device.wait(self.id.0, seen, 1_000_000);
        }
        panic!("no completion on queue {} in half a minute", self.id.0);
    }

    /// Executes one command.
    pub fn run(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        self.place(entry);
        self.ring();
        self.wait()
    }

    /// A data command over the pages at [`DATA`]: one, two, or a list of them at `DATA - 4096`.
    pub fn data(&self, opcode: u8, lba: u64, blocks: u32, bytes: usize) -> SubmissionEntry {
        self.data_from(0, opcode, (lba, blocks), bytes)
    }

    /// As [`Ring::data`], with the data beginning `skew` bytes into the first page.
    pub fn data_from(&self, skew: usize, opcode: u8, range: (u64, u32), bytes: usize) -> SubmissionEntry {
        let pages = (skew + bytes).div_ceil(4096);
        for page in 1..pages {
            let entry = self.address(DATA + 4096 * page).0;
            self.memory.u64(DATA - 4096 + 8 * (page - 1)).store(entry, Ordering::Relaxed);
        }
        let prp2 = if pages > 2 { DATA - 4096 } else { DATA + 4096 };
        SubmissionEntry {
            opcode,
            nsid: 1,
            prp1: self.address(DATA + skew).0,
            prp2: self.address(prp2).0,
            cdw10: range.0 as u32,
            cdw11: (range.0 >> 32) as u32,
            cdw12: range.1 - 1,
            ..Default::default()
        }
    }
}

/// A host with an admin queue pair and I/O queue pair 1.
pub struct Host {
    pub device: Arc<InProcess>,
    pub memory: Arc<Mapping>,
    pub base: DeviceAddress,
    pub rings: [Ring; 2],
}

impl Host {
    /// An enabled controller with I/O queues.
    pub fn new(config: ControllerConfig, media: Media) -> Self {
        let mut host = Self::disabled(config, media);
        host.enable();
        host.create_io();
        host
    }

    pub fn disabled(config: ControllerConfig, media: Media) -> Self {
        Self::of(Controller::new(config, media))
    }

    /// The host of a controller, which is disabled.
    pub fn of(controller: Arc<Controller>) -> Self {
        let device = Arc::new(InProcess::new(controller).unwrap());
        let memory = Arc::new(Mapping::anonymous(MEMORY, Pages::Base).unwrap());
        let base = device.map(Arc::clone(&memory)).unwrap();
        let here = (&device, &memory, base);
        let rings = [Ring::new(here, 0, ADMIN), Ring::new(here, 1, FIRST)];
        Self { device, memory, base, rings }
    }

    pub fn address(&self, offset: usize) -> DeviceAddress {
        self.base.plus(offset as u64)
    }

    pub fn enable(&mut self) {
        self.enable_with(0);
    }

    /// Enables with further bits of Controller Configuration.
    pub fn enable_with(&mut self, cc: u32) {
        self.memory.fill(0x1000, 0x4000, 0);
        self.rings.iter_mut().for_each(Ring::reset);
        let size = u32::from(ENTRIES) - 1;
        self.device.write32(register::AQA, size | size << 16);
        self.device.write64(register::ASQ, self.address(ADMIN.0).0);
        self.device.write64(register::ACQ, self.address(ADMIN.1).0);
        self.device.write32(register::CC, 0x0046_0000 | cc);
        self.device.write32(register::CC, 0x0046_0001 | cc);
    }

    pub fn create_io(&mut self) {
        let (sq, cq) = (self.address(FIRST.0).0, self.address(FIRST.1).0);
        self.create((1, ENTRIES), (sq, cq));
    }

    /// A further queue pair, with a memory of its own, for another thread.
    pub fn open(&mut self, id: u16) -> Ring {
        let memory = Arc::new(Mapping::anonymous(MEMORY, Pages::Base).unwrap());
        let base = self.device.map(Arc::clone(&memory)).unwrap();
        self.create((id, ENTRIES), (base.plus(FIRST.0 as u64).0, base.plus(FIRST.1 as u64).0));
        Ring::new((&self.device, &memory, base), id, FIRST)
    }

    fn create(&mut self, (id, entries): (u16, u16), (sq, cq): (u64, u64)) {
        let cdw10 = u32::from(entries - 1) << 16 | u32::from(id);
        let cdw11 = 3 | u32::from(id) << 16;
        let cq = SubmissionEntry { opcode: 5, prp1: cq, cdw10, cdw11, ..Default::default() };
        assert!(self.admin(cq).status().is_success());
        let cdw11 = 1 | u32::from(id) << 16;
        let sq = SubmissionEntry { opcode: 1, prp1: sq, cdw10, cdw11, ..Default::default() };
        assert!(self.admin(sq).status().is_success());
    }

    /// Deletes a queue pair.
    pub fn close(&mut self, id: u16) {
        for opcode in [0, 4] {
            let entry = SubmissionEntry { opcode, cdw10: u32::from(id), ..Default::default() };
            assert!(self.admin(entry).status().is_success());
        }
    }

    /// Where a submission queue lies in the host's memory.
    pub fn queue(&self, queue: usize) -> usize {
        self.rings[queue].sq
    }

    /// The tail that was rung last.
    pub fn tail(&self, queue: usize) -> u32 {
        u32::from(self.rings[queue].tail)
    }

    pub fn place(&mut self, queue: usize, entry: SubmissionEntry) {
        self.rings[queue].place(entry);
    }

    pub fn ring(&self, queue: usize) {
        self.rings[queue].ring();
    }

    /// Gives one command to the first I/O queue.
    pub fn submit(&mut self, entry: SubmissionEntry) {
        self.place(1, entry);
        self.ring(1);
    }

    pub fn reap(&mut self, queue: usize) -> Option<CompletionEntry> {
        self.rings[queue].reap()
    }

    /// Executes one admin command.
    pub fn admin(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        self.rings[0].run(entry)
    }

    /// Executes one I/O command.
    pub fn io(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        self.rings[1].run(entry)
    }

    /// As [`Ring::data`], on the first I/O queue.
    pub fn data(&self, opcode: u8, lba: u64, blocks: u32, bytes: usize) -> SubmissionEntry {
        self.rings[1].data(opcode, lba, blocks, bytes)
    }
}
