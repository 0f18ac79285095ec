//! Queue pairs as long as they can be: 16,384 entries, 16,383 commands in flight.

use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{
    Completion, Engine, EngineError, Operation, QUEUE_DEPTH_MAX, QueueFault, QueueOptions, QueuePair,
    Request, Segment, SubmitError, Waited,
};
use nvmed_flash::{FixedProfile, Profile, Rate};
use nvmed_nvme::Status;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};
use nvmed_vdev::{Clock, Controller, ControllerConfig, FaultAction, FaultPlan, FaultRule, InProcess, Media};
use std::sync::Arc;

const DEPTH: usize = QUEUE_DEPTH_MAX as usize;
const LBA_BYTES: usize = 512;
const PAGE_BYTES: usize = 4096;
/// Blocks of a request. Its first block goes to the end of a page, its last to the begin of that page, and the eight
/// between to a page that all share: three pages, so that each command has a PRP list, and a page of memory each.
const BLOCKS: u32 = 10;
const DEVICE_BYTES: u64 = 16 << 20;

const SLOW: Option<FixedProfile> =
    Some(FixedProfile { read_ns: 100_000, write_ns: 0, link: Rate::UNLIMITED });

/// A controller whose block n holds n in each of its words, and memory for a full queue.
struct Bench {
    engine: NvmeEngine,
    memory: Arc<Mapping>,
    base: DeviceAddress,
}

impl Bench {
    fn new(config: ControllerConfig) -> Self {
        let controller = Controller::new(config, Media::ram(DEVICE_BYTES, Pages::Base).unwrap());
        let engine = NvmeEngine::open(Arc::new(InProcess::new(controller).unwrap())).unwrap();
        let memory = Arc::new(Mapping::anonymous((DEPTH + 1) * PAGE_BYTES, Pages::Base).unwrap());
        let base = engine.map(Arc::clone(&memory)).unwrap();
        let bench = Self { engine, memory, base };
        bench.fill();
        bench
    }

    /// Writes the number of each block into it.
    fn fill(&self) {
        let mut pair = self.engine.queue(QueueOptions::depth(1)).unwrap();
        let part_bytes = self.engine.geometry().transfer_bytes_max;
        let part_blocks = u64::from(part_bytes) / LBA_BYTES as u64;
        for part in 0..DEVICE_BYTES / u64::from(part_bytes) {
            for block in 0..part_blocks {
                let words = (part * part_blocks + block).to_le_bytes().repeat(LBA_BYTES / 8);
                self.memory.write(block as usize * LBA_BYTES, &words);
            }
            let (lba, blocks) = (Lba(part * part_blocks), part_blocks as u32);
            let data = [Segment { address: self.base, bytes: part_bytes }];
            let operation = Operation::Write { fua: false };
            pair.submit(&Request { operation, lba, blocks, data: &data, tag: 0, stream: 0 }).unwrap();
            pair.ring();
            self.reap(&mut *pair, 1).into_iter().for_each(|done| assert_eq!(done.result, Ok(())));
        }
    }

    fn first_lba(tag: usize, round: usize) -> u64 {
        ((tag * 7 + round) % (DEVICE_BYTES as usize / LBA_BYTES - BLOCKS as usize)) as u64
    }

    /// Fills a queue with reads, without a doorbell, until it takes no more.
    fn fill_queue(&self, pair: &mut dyn QueuePair, round: usize) {
        self.memory.fill(0, self.memory.len(), 0xee);
        for tag in 0..=DEPTH {
            let page = self.base.plus((tag % DEPTH * PAGE_BYTES) as u64);
            let data = [
                Segment { address: page.plus((PAGE_BYTES - LBA_BYTES) as u64), bytes: LBA_BYTES as u32 },
                Segment { address: self.base.plus((DEPTH * PAGE_BYTES) as u64), bytes: PAGE_BYTES as u32 },
                Segment { address: page, bytes: LBA_BYTES as u32 },
            ];
            let lba = Lba(Self::first_lba(tag, round));
            let (operation, blocks, tag) = (Operation::Read, BLOCKS, tag as u64);
            let taken = pair.submit(&Request { operation, lba, blocks, data: &data, tag, stream: 0 });
            assert_eq!(taken, if tag < DEPTH as u64 { Ok(()) } else { Err(SubmitError::NoSlot) }, "{tag}");
        }
        assert_eq!(pair.outstanding(), DEPTH);
    }

    /// Takes `count` completions.
    fn reap(&self, pair: &mut dyn QueuePair, count: usize) -> Vec<Completion> {
        let (mut all, mut some) = (Vec::new(), Vec::with_capacity(64));
        let mut quiet = 0;
        while all.len() < count {
            let seen = self.engine.events(pair.vector());
            if pair.poll(&mut some) > 0 {
                all.append(&mut some);
                continue;
            }
            quiet += u32::from(self.engine.wait(pair.vector(), seen, 100_000) == Waited::Timeout);
            assert!(quiet < 300, "{} of {count} completions came within 30 s", all.len());
        }
        assert_eq!((pair.outstanding(), pair.poll(&mut some)), (0, 0));
        all
    }

    /// That each of a full queue's reads has ended once and well, with its own data.
    fn check(&self, mut done: Vec<Completion>, round: usize) {
        done.sort_unstable_by_key(|done| done.tag);
        assert!(done.iter().map(|done| done.tag).eq(0..DEPTH as u64), "each request ends once");
        for done in done {
            assert_eq!(done.result, Ok(()), "request {}", done.tag);
            let (first, page) = (Self::first_lba(done.tag as usize, round), done.tag as usize * PAGE_BYTES);
            for (at, lba) in [(page + PAGE_BYTES - LBA_BYTES, first), (page, first + u64::from(BLOCKS) - 1)] {
                let mut block = [0; LBA_BYTES];
                self.memory.read(at, &mut block);
                assert!(block == lba.to_le_bytes().repeat(LBA_BYTES / 8)[..], "request {}", done.tag);
            }
        }
    }
}

fn config(clock: Clock, fixed: Option<FixedProfile>) -> ControllerConfig {
    ControllerConfig { clock, drive: fixed.map(Profile::fixed), ..ControllerConfig::default() }
}

#[test]
fn a_full_queue_of_16384_entries_completes_each_command_once_and_with_its_data() {
    for (clock, fixed) in
        [(Clock::Inline, None), (Clock::Threaded, None), (Clock::Threaded, SLOW), (Clock::Virtual, SLOW)]
    {
        let bench = Bench::new(config(clock, fixed));
        assert_eq!(bench.engine.geometry().queue_depth_max, 16_383, "CAP.MQES is 16,383");
        let mut pair = bench.engine.queue(QueueOptions::depth(16_383)).unwrap();
        // More rounds than an identifier of this depth has uses: both rings wrap, and identifiers come again.
        for round in 0..6 {
            bench.fill_queue(&mut *pair, round);
            pair.ring();
            let done = bench.reap(&mut *pair, DEPTH);
            bench.check(done, round);
        }
    }
}

#[test]
fn a_deeper_queue_than_the_device_has_is_refused_in_words() {
    for (entries, depth_max) in [(nvmed_vdev::QUEUE_ENTRIES_MAX, 16_383), (100, 99), (2, 1)] {
        let config = ControllerConfig { queue_entries_max: entries, ..ControllerConfig::default() };
        let controller = Controller::new(config, Media::null(1 << 20).unwrap());
        let engine = NvmeEngine::open(Arc::new(InProcess::new(controller).unwrap())).unwrap();
        assert_eq!(engine.geometry().queue_depth_max, depth_max);
        drop(engine.queue(QueueOptions::depth(depth_max)).unwrap());
        for depth in [depth_max + 1, u16::MAX] {
            let refused = engine.queue(QueueOptions::depth(depth)).err().unwrap();
            assert!(matches!(refused, EngineError::Depth { .. }), "{refused:?}");
            let words = format!("a queue of this device holds 1 to {depth_max} commands, not {depth}");
            assert!(refused.to_string().starts_with(&words), "{refused}");
        }
    }
}

/// Commands that never complete: some are aborted, a reset ends the others, and the queue runs full again.
#[test]
fn a_full_queue_is_aborted_and_reset() {
    let faults = FaultPlan::default();
    let bench = Bench::new(ControllerConfig { faults: faults.clone(), ..config(Clock::Virtual, SLOW) });
    let mut pair = bench.engine.queue(QueueOptions::depth(16_383)).unwrap();
    faults.add(FaultRule::new(FaultAction::Drop { executed: false }));
    bench.fill_queue(&mut *pair, 0);
    pair.ring();
    let mut out = Vec::with_capacity(64);
    assert_eq!(pair.poll(&mut out), 0);
    let aborted = [0, 1, 8191, 16_382];
    aborted.iter().for_each(|&tag| pair.cancel(tag).unwrap());
    assert_eq!(pair.poll(&mut out), aborted.len());
    for (done, tag) in out.iter().zip(aborted) {
        assert_eq!((done.tag, done.result.unwrap_err().status.is(Status::ABORT_REQUESTED)), (tag, true));
    }
    faults.clear();
    bench.engine.reset().unwrap();
    let mut left = bench.reap(&mut *pair, DEPTH - aborted.len());
    left.sort_unstable_by_key(|done| done.tag);
    let others = (0..DEPTH as u64).filter(|tag| !aborted.contains(tag));
    assert!(left.iter().map(|done| done.tag).eq(others), "each request ends once");
    assert!(left.iter().all(|done| done.result.unwrap_err().fault == Some(QueueFault::Reset)));
    bench.fill_queue(&mut *pair, 1);
    pair.ring();
    let done = bench.reap(&mut *pair, DEPTH);
    bench.check(done, 1);
}
