//! Weighted round robin with urgent priority class, seen in the order of completions.

use crate::host::Host;
use nvmed_dma::{Transport, Waited};
use nvmed_flash::{ArrayProfile, BlockKind, FixedProfile, Medium, Profile, UrgentProfile};
use nvmed_nvme::{SubmissionEntry, register};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::QueueId;
use nvmed_vdev::{Clock, ControllerConfig, FaultPlan, Media};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

const ENTRIES: u32 = 64;
/// One completion queue, then submission queues 10 to 14, in pages.
const CQ: usize = 0;

fn submission_queue(queue: u16) -> usize {
    (usize::from(queue) - 9) * 0x1000
}

/// Queues 10 to 13 of classes urgent to low, and 14 of class low, which complete to one completion queue.
struct Classes {
    host: Host,
    memory: Arc<Mapping>,
    base: u64,
    seen: usize,
}

impl Classes {
    fn new(host: Host) -> Self {
        let memory = Arc::new(Mapping::anonymous(0x10000, Pages::Base).unwrap());
        let base = host.device.map(Arc::clone(&memory)).unwrap();
        let mut classes = Self { host, memory, base: base.0, seen: 0 };
        let cdw10 = |queue: u16| (ENTRIES - 1) << 16 | u32::from(queue);
        let cq = SubmissionEntry {
            opcode: 5,
            prp1: base.plus(CQ as u64).0,
            cdw10: cdw10(10),
            cdw11: 3 | 10 << 16,
            ..Default::default()
        };
        assert!(classes.host.admin(cq).status().is_success());
        for (queue, class) in [(10, 0), (11, 1), (12, 2), (13, 3), (14, 3)] {
            classes.create(queue, class);
            let flush = SubmissionEntry { opcode: 0, nsid: 1, cid: queue, ..Default::default() };
            for slot in 0..ENTRIES as usize {
                classes.memory.write(submission_queue(queue) + 64 * slot, flush.as_bytes());
            }
        }
        classes
    }

    fn create(&mut self, queue: u16, class: u32) {
        let sq = SubmissionEntry {
            opcode: 1,
            prp1: self.base + submission_queue(queue) as u64,
            cdw10: (ENTRIES - 1) << 16 | u32::from(queue),
            cdw11: 1 | class << 1 | 10 << 16,
            ..Default::default()
        };
        assert!(self.host.admin(sq).status().is_success());
    }

    fn ring(&self, queue: u16, tail: u32) {
        self.host.device.write32(register::sq_doorbell(QueueId(queue), 0), tail);
    }

    /// Waits for `count` more completions; which queues they were of. Their entries are kept until `free`.
    fn wait(&mut self, count: usize) -> Vec<u16> {
        let device = Arc::clone(&self.host.device);
        let end = self.seen + count;
        let mut of = Vec::new();
        while self.seen < end {
            let events = device.events(10);
            let at = CQ + 16 * (self.seen % ENTRIES as usize);
            let phase = (self.seen / ENTRIES as usize).is_multiple_of(2);
            let last = self.memory.u32(at + 12).load(Ordering::Acquire);
            if (last >> 16 & 1 != 0) == phase {
                of.push(last as u16);
                self.seen += 1;
            } else {
                assert_eq!(device.wait(10, events, 30_000_000), Waited::Event, "{of:?}");
            }
        }
        of
    }

    fn free(&self) {
        let head = self.seen as u32 % ENTRIES;
        self.host.device.write32(register::cq_doorbell(QueueId(10), 0), head);
    }
}

fn host(faults: &str, weighted: bool) -> Host {
    let faults = FaultPlan::parse(faults).unwrap();
    enabled(ControllerConfig { clock: Clock::Threaded, faults, ..ControllerConfig::default() }, weighted)
}

fn enabled(config: ControllerConfig, weighted: bool) -> Host {
    let mut host = Host::disabled(config, Media::null(1 << 20).unwrap());
    assert_eq!(host.device.read64(register::CAP) >> 17 & 3, 1, "weighted round robin is there");
    host.enable_with(if weighted { 1 << 11 } else { 0 });
    // Burst 1; 4 of class high for 2 of medium and 1 of low.
    let arbitration = SubmissionEntry { opcode: 9, cdw10: 1, cdw11: 3 << 24 | 1 << 16, ..Default::default() };
    assert!(host.admin(arbitration).status().is_success());
    host
}

/// While the completion queue is full, all queues get commands; then there is room for all of them.
fn order(faults: &str, weighted: bool) -> Vec<u16> {
    let mut classes = Classes::new(host(faults, weighted));
    classes.ring(14, 63);
    let first = classes.wait(63);
    assert!(first.iter().all(|&queue| queue == 14));
    for queue in [13, 12, 11, 10] {
        classes.ring(queue, 14);
    }
    // The admin queue is served behind the doorbells that were rung before, at the second time at the latest.
    let features = SubmissionEntry { opcode: 0x0a, cdw10: 1, ..Default::default() };
    assert!(classes.host.admin(features).status().is_success());
    assert!(classes.host.admin(features).status().is_success());
    classes.free();
    classes.wait(56)
}

/// 14 commands of each class.
fn expected() -> Vec<u16> {
    let mut expected = vec![10; 14];
    for _ in 0..3 {
        expected.extend([11, 11, 11, 11, 12, 12, 13]);
    }
    expected.extend([11, 11, 12, 12, 13]);
    expected.extend([12, 12, 13, 12, 12, 13, 12, 12, 13]);
    expected.extend([13; 7]);
    expected
}

fn one_at_a_time(weighted: bool) -> Classes {
    let fixed = FixedProfile { write_ns: 1_000_000, ..FixedProfile::default() };
    let drive = Some(Profile { commands: 1, ..Profile::fixed(fixed) });
    let config = ControllerConfig { clock: Clock::Virtual, drive, ..ControllerConfig::default() };
    Classes::new(enabled(config, weighted))
}

#[test]
fn a_queue_that_was_made_anew_has_its_new_class() {
    let mut classes = one_at_a_time(true);
    classes.ring(14, 1);
    classes.ring(12, 3);
    classes.ring(13, 3);
    let delete = SubmissionEntry { opcode: 0, cdw10: 13, ..Default::default() };
    assert!(classes.host.admin(delete).status().is_success());
    classes.create(13, 0);
    classes.ring(13, 2);
    assert_eq!(classes.wait(6), [14, 13, 13, 12, 12, 12]);
}

/// A drive that takes one command at a time: the others stay in their queues, whose doorbells are all rung when the
/// first one completes. Without a thread it is the doorbell that arbitrates.
#[test]
fn a_drive_takes_commands_in_the_order_of_the_arbiter_without_a_thread_too() {
    for weighted in [true, false] {
        let mut classes = one_at_a_time(weighted);
        classes.ring(14, 1);
        for queue in [13, 12, 11, 10] {
            classes.ring(queue, 14);
        }
        assert_eq!(classes.wait(1), [14]);
        let in_turn = [13, 12, 11, 10].repeat(14);
        assert_eq!(classes.wait(56), if weighted { expected() } else { in_turn }, "weighted: {weighted}");
    }
}

/// Reads of one page of a drive that works on two commands at once, each for a millisecond: five of queue 14, and when
/// two of them are in the drive, three of queue 10, whose class is urgent. The order of their completions.
fn order_of_reads(weighted: bool, urgent: Option<UrgentProfile>) -> Vec<u16> {
    let block = BlockKind { per_plane: 1, pages: 1, read_ns: vec![1_000_000], ..BlockKind::default() };
    let array =
        ArrayProfile { capacity_bytes: 1 << 20, blocks: vec![block], urgent, ..ArrayProfile::default() };
    let drive = Some(Profile { commands: 2, medium: Medium::Array(Box::new(array)) });
    let config = ControllerConfig { clock: Clock::Virtual, drive, ..ControllerConfig::default() };
    let mut classes = Classes::new(enabled(config, weighted));
    for (queue, count) in [(14, 5), (10, 3)] {
        let read = SubmissionEntry {
            opcode: 2,
            nsid: 1,
            cid: queue,
            prp1: classes.base + 0x8000,
            ..Default::default()
        };
        for slot in 0..count {
            classes.memory.write(submission_queue(queue) + 64 * slot, read.as_bytes());
        }
        classes.ring(queue, count as u32);
    }
    classes.wait(8)
}

#[test]
fn what_is_urgent_has_places_in_the_drive_and_goes_first_there() {
    let urgent = UrgentProfile { places: 2, ..UrgentProfile::default() };
    assert_eq!(order_of_reads(true, Some(urgent)), [14, 10, 10, 10, 14, 14, 14, 14]);
    // Places alone: it is in the drive, and waits there for what came before.
    let placed = UrgentProfile { rank: false, ..urgent };
    assert_eq!(order_of_reads(true, Some(placed)), [14, 14, 10, 10, 14, 14, 10, 14]);
    // A rank alone: it waits for a place.
    assert_eq!(order_of_reads(true, Some(UrgentProfile::default())), [14, 14, 10, 10, 10, 14, 14, 14]);
    assert_eq!(order_of_reads(true, None), [14, 14, 10, 10, 10, 14, 14, 14]);
    assert_eq!(order_of_reads(false, Some(urgent)), [14, 14, 14, 10, 14, 10, 14, 10]);
}

#[test]
fn urgent_goes_first_and_the_others_by_weight() {
    assert_eq!(order("", true), expected());
    // Also on the path of a controller with a plan, here one of no effect.
    assert_eq!(order("drop:op=0xee", true).len(), 56);
}

#[test]
fn without_weights_no_class_is_before_another() {
    let mut order = order("", false);
    order.dedup();
    assert_eq!(order, [10, 11, 12, 13], "each queue as a whole, by number");
}

#[test]
fn a_queue_that_is_never_empty_stops_nobody() {
    let mut classes = Classes::new(host("", true));
    for round in 1..200u32 {
        classes.ring(13, round * 7 % ENTRIES);
        classes.ring(10, round % ENTRIES);
        let mut done = classes.wait(8);
        classes.free();
        done.sort_unstable();
        assert_eq!(done, [10, 13, 13, 13, 13, 13, 13, 13]);
    }
}

/// How long the first command of [`a_burst`] takes: the host rings all other doorbells meanwhile.
const FIRST_NS: u64 = 400_000_000;

/// A drive that takes one command at a time, and bursts of 4. While a read of queue 14 is in the drive, all queues get
/// commands; their order is that of the arbiter on each clock. `None`: the host was so slow that the read was over.
fn a_burst(clock: Clock) -> Option<Vec<u16>> {
    let fixed = FixedProfile { read_ns: FIRST_NS, write_ns: 1_000, ..FixedProfile::default() };
    let drive = Some(Profile { commands: 1, ..Profile::fixed(fixed) });
    let mut host = enabled(ControllerConfig { clock, drive, ..ControllerConfig::default() }, true);
    // Burst 4 (two to the power of 2); 6 of class high for 2 of medium and 1 of low.
    let feature = 2 | 5 << 24 | 1 << 16;
    let arbitration = SubmissionEntry { opcode: 9, cdw10: 1, cdw11: feature, ..Default::default() };
    assert!(host.admin(arbitration).status().is_success());
    let mut classes = Classes::new(host);
    let data = classes.base + 0x8000;
    let read = SubmissionEntry { opcode: 2, nsid: 1, cid: 14, prp1: data, ..Default::default() };
    classes.memory.write(submission_queue(14), read.as_bytes());
    let begin = nvmed_sys::monotonic_ns();
    classes.ring(14, 1);
    for queue in [13, 12, 11, 10] {
        classes.ring(queue, 10);
    }
    if clock != Clock::Virtual && nvmed_sys::monotonic_ns() - begin >= FIRST_NS {
        return None;
    }
    assert_eq!(classes.wait(1), [14]);
    Some(classes.wait(40))
}

#[test]
fn urgent_goes_first_and_a_burst_is_cut_by_the_weight_on_every_clock() {
    let mut expected = vec![10; 10];
    // A turn of the class high takes 4 commands, and 2 more where the other queues of its class had none.
    expected.extend([11, 11, 11, 11, 11, 11, 12, 12, 13]);
    expected.extend([11, 11, 11, 11, 12, 12, 13]);
    expected.extend([12, 12, 13, 12, 12, 13, 12, 12, 13]);
    expected.extend([13; 5]);
    for clock in [Clock::Inline, Clock::Virtual, Clock::Threaded] {
        let order = (0..10).find_map(|_| a_burst(clock));
        assert_eq!(order.expect("the host rings five doorbells within 400 ms"), expected, "{clock:?}");
    }
}
