//! The longest queues that there are, in memory that comes in several ranges.

use crate::host::{DATA, Host};
use nvmed_dma::Transport;
use nvmed_flash::{FixedProfile, Profile};
use nvmed_nvme::{CompletionEntry, Status, SubmissionEntry, register};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, QueueId};
use nvmed_vdev::{Clock, ControllerConfig, Media, QUEUE_ENTRIES_MAX};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, IntoBytes};

const ENTRIES: usize = QUEUE_ENTRIES_MAX as usize;
/// One entry stays empty.
const COMMANDS: usize = ENTRIES - 1;
const LBA_BYTES: usize = 512;
/// Bytes of a range: the submission queue takes four of them, the completion queue one.
const RANGE_BYTES: usize = 256 << 10;
const SQ: u64 = 1 << 32;
const CQ: u64 = 2 << 32;
const BUFFERS: u64 = 3 << 32;

/// A host whose queue 2 is as long as a queue can be.
struct Long {
    host: Host,
    sq: Vec<Arc<Mapping>>,
    cq: Arc<Mapping>,
    buffers: Arc<Mapping>,
    tail: usize,
    head: usize,
    phase: bool,
}

fn memory(bytes: usize) -> Arc<Mapping> {
    Arc::new(Mapping::anonymous(bytes, Pages::Base).unwrap())
}

fn create(opcode: u8, at: u64, entries: usize, cdw11: u32) -> SubmissionEntry {
    let cdw10 = ((entries - 1) as u32) << 16 | 2;
    SubmissionEntry { opcode, prp1: at, cdw10, cdw11, ..Default::default() }
}

impl Long {
    fn new(clock: Clock, drive: Option<Profile>) -> Self {
        let config = ControllerConfig { clock, drive, ..ControllerConfig::default() };
        let mut host = Host::new(config, Media::ram((ENTRIES * LBA_BYTES) as u64, Pages::Base).unwrap());
        let sq: Vec<_> = (0..4).map(|_| memory(RANGE_BYTES)).collect();
        let (cq, buffers) = (memory(RANGE_BYTES), memory(ENTRIES * LBA_BYTES));
        let ranges = (0..).map(|n| SQ + n * RANGE_BYTES as u64).zip(&sq);
        for (at, memory) in ranges.chain([(CQ, &cq), (BUFFERS, &buffers)]) {
            host.device.controller().map_at(DeviceAddress(at), Arc::clone(memory)).unwrap();
        }
        assert!(host.admin(create(5, CQ, ENTRIES, 3 | 2 << 16)).status().is_success());
        assert!(host.admin(create(1, SQ, ENTRIES, 1 | 2 << 16)).status().is_success());
        let mut long = Self { host, sq, cq, buffers, tail: 0, head: 0, phase: true };
        long.fill();
        long
    }

    /// Writes the number of each block into it, a MiB at a time.
    fn fill(&mut self) {
        const PART: usize = 1 << 20;
        for first in (0..ENTRIES).step_by(PART / LBA_BYTES) {
            for block in 0..PART / LBA_BYTES {
                let words = ((first + block) as u64).to_le_bytes().repeat(LBA_BYTES / 8);
                self.host.memory.write(DATA + block * LBA_BYTES, &words);
            }
            let entry = self.host.data(1, first as u64, (PART / LBA_BYTES) as u32, PART);
            assert!(self.host.io(entry).status().is_success());
        }
    }

    fn lba(cid: usize, round: usize) -> usize {
        (cid * 5 + round) % ENTRIES
    }

    /// Fills the queue with reads of a block each, and rings once.
    fn submit(&mut self, round: usize) {
        self.buffers.fill(0, self.buffers.len(), 0xee);
        for cid in 0..COMMANDS {
            let entry = SubmissionEntry {
                opcode: 2,
                cid: cid as u16,
                nsid: 1,
                prp1: BUFFERS + (cid * LBA_BYTES) as u64,
                cdw10: Self::lba(cid, round) as u32,
                ..Default::default()
            };
            let at = self.tail * 64;
            self.sq[at / RANGE_BYTES].write(at % RANGE_BYTES, entry.as_bytes());
            self.tail = (self.tail + 1) % ENTRIES;
        }
        self.host.device.write32(register::sq_doorbell(QueueId(2), 0), self.tail as u32);
    }

    /// Looks at all completions, which fill their queue; then rings once.
    fn reap(&mut self, round: usize) {
        let mut seen = vec![false; COMMANDS];
        for _ in 0..COMMANDS {
            let done = self.next();
            let cid = usize::from(done.cid);
            assert!(done.status().is_success() && !std::mem::replace(&mut seen[cid], true), "command {cid}");
            assert!(usize::from(done.sq_head) < ENTRIES && done.sq_id == 2, "{done:?}");
            let mut block = [0; LBA_BYTES];
            self.buffers.read(cid * LBA_BYTES, &mut block);
            assert!(block == (Self::lba(cid, round) as u64).to_le_bytes().repeat(LBA_BYTES / 8)[..], "{cid}");
        }
        self.host.device.write32(register::cq_doorbell(QueueId(2), 0), self.head as u32);
    }

    fn next(&mut self) -> CompletionEntry {
        let at = self.head * 16;
        for _ in 0..30 {
            let seen = self.host.device.events(2);
            if (self.cq.u32(at + 12).load(Ordering::Acquire) >> 16 & 1 != 0) == self.phase {
                let mut bytes = [0; 16];
                self.cq.read(at, &mut bytes);
                self.head = (self.head + 1) % ENTRIES;
                self.phase ^= self.head == 0;
                return CompletionEntry::read_from_bytes(&bytes).unwrap();
            }
            self.host.device.wait(2, seen, 1_000_000);
        }
        panic!("no completion at {} in half a minute", self.head);
    }
}

#[test]
fn a_full_queue_in_several_ranges_completes_each_command_once_and_with_its_data() {
    let slow = || Some(Profile::fixed(FixedProfile { read_ns: 100_000, ..FixedProfile::default() }));
    for (clock, drive) in
        [(Clock::Inline, None), (Clock::Threaded, None), (Clock::Threaded, slow()), (Clock::Virtual, slow())]
    {
        let mut long = Long::new(clock, drive);
        // Twice and more: both queues wrap.
        for round in 0..3 {
            long.submit(round);
            long.reap(round);
        }
    }
}

#[test]
fn the_entries_of_a_queue_are_what_the_capabilities_say() {
    for entries in [2, 100, QUEUE_ENTRIES_MAX] {
        let config = ControllerConfig { queue_entries_max: entries, ..ControllerConfig::default() };
        let mut host = Host::disabled(config, Media::null(1 << 20).unwrap());
        host.enable();
        assert_eq!(host.device.read64(register::CAP) & 0xffff, u64::from(entries) - 1, "MQES");
        host.device.controller().map_at(DeviceAddress(SQ), memory(4 << 20)).unwrap();
        let entries = usize::from(entries);
        for (opcode, more) in [(5, 3), (1, 1 | 2 << 16)] {
            for beyond in [entries + 1, 1 << 16] {
                let said = host.admin(create(opcode, SQ, beyond, more)).status();
                assert!(said.is(Status::INVALID_QUEUE_SIZE), "{beyond} of {entries} entries: {said}");
            }
            let said = host.admin(create(opcode, SQ, entries, more)).status();
            assert!(said.is_success(), "{entries} entries: {said}");
        }
    }
    // Memory that ends before the queue does.
    let mut host = Host::disabled(ControllerConfig::default(), Media::null(1 << 20).unwrap());
    host.enable();
    host.device.controller().map_at(DeviceAddress(CQ), memory(ENTRIES * 16 - 4096)).unwrap();
    assert!(host.admin(create(5, CQ, ENTRIES, 3)).status().is(Status::INVALID_FIELD));
}
