//! A host as small as the specification allows, to look at the controller's answers one by one.
#![allow(dead_code, reason = "each test binary uses its own part")]

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

struct Pair {
    sq: usize,
    cq: usize,
    tail: u16,
    head: u16,
    phase: bool,
}

/// A host with an admin queue pair and I/O queue pair 1.
pub struct Host {
    pub device: InProcess,
    pub memory: Arc<Mapping>,
    pub base: DeviceAddress,
    pairs: [Pair; 2],
}

/// Where tests put data: 64 pages from here.
pub const DATA: usize = 0x10000;

impl Host {
    /// An enabled controller with I/O queues.
    pub fn new(config: ControllerConfig, media: Media) -> Self {
        let mut host = Self::disabled(config, media);
        host.enable();
        host.create_io();
        host
    }

    pub fn disabled(config: ControllerConfig, media: Media) -> Self {
        let device = InProcess::new(Controller::new(config, media)).unwrap();
        let memory = Arc::new(Mapping::anonymous(4 << 20, Pages::Base).unwrap());
        let base = device.map(Arc::clone(&memory)).unwrap();
        let pair = |sq, cq| Pair { sq, cq, tail: 0, head: 0, phase: true };
        Self { device, memory, base, pairs: [pair(0x1000, 0x2000), pair(0x3000, 0x4000)] }
    }

    pub fn address(&self, offset: usize) -> DeviceAddress {
        self.base.plus(offset as u64)
    }

    pub fn enable(&mut self) {
        self.memory.fill(0x1000, 0x4000, 0);
        for pair in &mut self.pairs {
            (pair.tail, pair.head, pair.phase) = (0, 0, true);
        }
        let size = u32::from(ENTRIES) - 1;
        self.device.write32(register::AQA, size | size << 16);
        self.device.write64(register::ASQ, self.address(0x1000).0);
        self.device.write64(register::ACQ, self.address(0x2000).0);
        self.device.write32(register::CC, 0x0046_0000);
        self.device.write32(register::CC, 0x0046_0001);
    }

    pub fn create_io(&mut self) {
        let size = u32::from(ENTRIES - 1) << 16 | 1;
        let cq = SubmissionEntry {
            opcode: 5,
            prp1: self.address(0x4000).0,
            cdw10: size,
            cdw11: 1,
            ..Default::default()
        };
        assert!(self.admin(cq).status().is_success());
        let sq = SubmissionEntry {
            opcode: 1,
            prp1: self.address(0x3000).0,
            cdw10: size,
            cdw11: 1 | 1 << 16,
            ..Default::default()
        };
        assert!(self.admin(sq).status().is_success());
    }

    /// Where a submission queue lies in the host's memory.
    pub fn queue(&self, queue: usize) -> usize {
        self.pairs[queue].sq
    }

    /// The tail that was rung last.
    pub fn tail(&self, queue: usize) -> u32 {
        u32::from(self.pairs[queue].tail)
    }

    /// Puts an entry into a queue without ringing.
    pub fn place(&mut self, queue: usize, entry: SubmissionEntry) {
        let pair = &mut self.pairs[queue];
        self.memory.write(pair.sq + 64 * usize::from(pair.tail), entry.as_bytes());
        pair.tail = (pair.tail + 1) % ENTRIES;
    }

    pub fn ring(&self, queue: usize) {
        let doorbell = register::sq_doorbell(QueueId(queue as u16), 0);
        self.device.write32(doorbell, u32::from(self.pairs[queue].tail));
    }

    /// The next completion, if there is one; its doorbell is rung.
    pub fn reap(&mut self, queue: usize) -> Option<CompletionEntry> {
        let pair = &mut self.pairs[queue];
        let at = pair.cq + 16 * usize::from(pair.head);
        let last = self.memory.u32(at + 12).load(Ordering::Acquire);
        if (last >> 16 & 1 != 0) != pair.phase {
            return None;
        }
        let mut bytes = [0; 16];
        self.memory.read(at, &mut bytes);
        pair.head = (pair.head + 1) % ENTRIES;
        pair.phase ^= pair.head == 0;
        self.device.write32(register::cq_doorbell(QueueId(queue as u16), 0), u32::from(pair.head));
        Some(CompletionEntry::read_from_bytes(&bytes).unwrap())
    }

    fn wait(&mut self, queue: usize) -> CompletionEntry {
        loop {
            let seen = self.device.events();
            if let Some(done) = self.reap(queue) {
                return done;
            }
            self.device.wait(seen, 1_000_000);
        }
    }

    /// Executes one admin command.
    pub fn admin(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        self.place(0, entry);
        self.ring(0);
        self.wait(0)
    }

    /// Executes one I/O command.
    pub fn io(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        self.place(1, entry);
        self.ring(1);
        self.wait(1)
    }

    /// A data command over one or two pages at [`DATA`], or a list of them at `DATA - 4096`.
    pub fn data(&self, opcode: u8, lba: u64, blocks: u32, bytes: usize) -> SubmissionEntry {
        let pages = bytes.div_ceil(4096);
        for page in 1..pages {
            let entry = self.address(DATA + 4096 * page).0;
            self.memory.u64(DATA - 4096 + 8 * (page - 1)).store(entry, Ordering::Relaxed);
        }
        let prp2 = if pages > 2 { DATA - 4096 } else { DATA + 4096 };
        SubmissionEntry {
            opcode,
            nsid: 1,
            prp1: self.address(DATA).0,
            prp2: self.address(prp2).0,
            cdw10: lba as u32,
            cdw11: (lba >> 32) as u32,
            cdw12: blocks - 1,
            ..Default::default()
        }
    }
}
