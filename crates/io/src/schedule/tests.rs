//! Schedulers against models: what is pushed comes out once, in an order that keeps the promises.

use super::deadline::{BATCH, STARVED_MAX};
use super::*;
use crate::settings::Rate;
use nvmed_engine::{DeviceError, Operation, Priority, QueueFault};
use nvmed_units::Lba;
use proptest::prelude::*;
use std::collections::BTreeMap;

const LBA_BYTES: u32 = 512;
const COMMAND_BLOCKS: u32 = 256;
const NODES: usize = 96;

fn backlog(scheduler: Scheduler, merge: bool, depth: u16) -> Backlog {
    let mut backlog = Backlog::new(scheduler, merge, NODES, depth, Limits::of(LBA_BYTES, COMMAND_BLOCKS));
    (0..8).for_each(|handle| backlog.admit(handle));
    backlog
}

fn rights(weight: u32) -> Rights {
    Rights { weight, ..Rights::default() }
}

fn segment(address: u64, blocks: u32) -> [Segment; 1] {
    [Segment { address: DeviceAddress(address), bytes: blocks * LBA_BYTES }]
}

/// A request of `blocks` blocks at `lba`, its memory at the same offset.
fn push(
    backlog: &mut Backlog,
    operation: Operation,
    lba: u64,
    blocks: u32,
    owner: (u32, u32),
    rights: &Rights,
) {
    let data = segment(lba * u64::from(LBA_BYTES), blocks);
    let data = if operation.has_data() { &data[..] } else { &[] };
    let request = Request { operation, lba: Lba(lba), blocks, data, tag: 0, stream: 0 };
    assert!(backlog.push(&request, owner, rights, 0));
}

/// Sends the next request; its head, and the slots that go with it, in order of LBA.
fn send(backlog: &mut Backlog, now: u64) -> Option<(u32, Vec<u32>)> {
    let head = backlog.next(now)?;
    assert_eq!(backlog.request(head).tag, NODE_TAG | u64::from(head));
    let slots = backlog.chain(head).map(|index| backlog.nodes[index].slot).collect();
    backlog.sent(head, now).for_each(drop);
    Some((head, slots))
}

fn end(backlog: &mut Backlog, head: u32, result: Result<(), IoError>) -> Vec<(usize, Option<bool>)> {
    let mut told = vec![];
    backlog.end(head, result, true, |end| told.push((end.slot, end.result.map(|result| result.is_ok()))));
    told
}

/// Everything in the order in which it would go if each were done at once.
fn all(backlog: &mut Backlog, now: u64) -> Vec<u32> {
    let mut slots = vec![];
    while let Some((head, mut some)) = send(backlog, now) {
        slots.append(&mut some);
        end(backlog, head, Ok(()));
    }
    slots
}

fn failure(fault: Option<QueueFault>) -> IoError {
    let status = DeviceError::ABORTED;
    IoError::Device(DeviceError { operation: Operation::Read, lba: Lba(0), status, fault })
}

const READ: Operation = Operation::Read;
const WRITE: Operation = Operation::Write { fua: false };

fn schedulers() -> impl Strategy<Value = Scheduler> {
    prop_oneof![
        Just(Scheduler::None),
        (0u32..100, 0u32..100).prop_map(|(read_us, write_us)| Scheduler::Deadline { read_us, write_us }),
        Just(Scheduler::Fair),
    ]
}

fn operations() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => Just(READ),
        4 => Just(WRITE),
        1 => Just(Operation::Flush),
        1 => Just(Operation::WriteZeroes { fua: false }),
        1 => Just(Operation::Discard),
        1 => Just(Operation::Compare),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Push { operation: Operation, lba: u64, blocks: u32, handle: u32, urgent: bool, replay: bool },
    Send,
    Hold,
    End { which: usize, how: u8 },
    Change(Scheduler),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (operations(), 0u64..64, 1u32..20, 0u32..4, prop::bool::weighted(0.1), any::<bool>()).prop_map(
            |(operation, lba, blocks, handle, urgent, replay)| Step::Push {
                operation, lba: lba * 8, blocks, handle, urgent, replay
            }
        ),
        4 => Just(Step::Send),
        1 => Just(Step::Hold),
        4 => (any::<usize>(), 0u8..8).prop_map(|(which, how)| Step::End { which, how }),
        1 => schedulers().prop_map(Step::Change),
        1 => (0u64..100_000_000).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..250)
}

/// What the model knows of a request that is not over.
#[derive(Clone, Debug)]
struct Known {
    operation: Operation,
    lba: u64,
    blocks: u32,
    handle: u32,
    serial: u32,
    sent: bool,
}

impl Known {
    fn writes(&self) -> bool {
        matches!(self.operation, Operation::Write { .. } | Operation::WriteZeroes { .. } | Operation::Discard)
    }

    fn must_go_before(&self, later: &Known) -> bool {
        let meet =
            self.lba < later.lba + u64::from(later.blocks) && later.lba < self.lba + u64::from(self.blocks);
        let flushes = [self.operation, later.operation].contains(&Operation::Flush);
        self.handle == later.handle
            && self.serial < later.serial
            && if flushes {
                later.operation == Operation::Flush && self.writes()
            } else {
                meet && (self.writes() || later.writes())
            }
    }
}

struct Model {
    backlog: Backlog,
    known: BTreeMap<u32, Known>,
    sent: Vec<(u32, Vec<u32>)>,
    next: u32,
    now: u64,
    over: Vec<u32>,
}

impl Model {
    fn push(&mut self, operation: Operation, lba: u64, blocks: u32, handle: u32, rights: &Rights) {
        let blocks = if operation == Operation::Flush { 0 } else { blocks };
        let lba = if operation == Operation::Flush { 0 } else { lba };
        // Memory beside that of its neighbour, on a page of its own, or somewhere in one.
        let far = u64::from(self.next) << 20;
        let address = [lba * u64::from(LBA_BYTES), far, far + 512][self.next as usize % 3];
        let data = segment(address, blocks);
        let data = if operation.has_data() { &data[..] } else { &[] };
        let request = Request { operation, lba: Lba(lba), blocks, data, tag: 0, stream: 0 };
        let held = self.known.values().filter(|known| known.handle == handle).count();
        let room = held < NODES - self.known.len();
        assert_eq!(self.backlog.push(&request, (self.next, handle), rights, self.now), room);
        if room {
            let known = Known { operation, lba, blocks, handle, serial: self.next, sent: false };
            self.known.insert(self.next, known);
        }
        self.next += 1;
    }

    fn send(&mut self) {
        let Some((head, slots)) = send(&mut self.backlog, self.now) else { return };
        self.check_shape(head, &slots);
        for &slot in &slots {
            let mine = self.known[&slot].clone();
            let passed = self.known.values().find(|other| !other.sent && other.must_go_before(&mine));
            let with = |other: &Known| slots.contains(&other.serial);
            assert!(passed.is_none_or(with), "{mine:?} passed {passed:?}");
            assert!(!mine.sent, "{mine:?} went twice");
        }
        for slot in &slots {
            self.known.get_mut(slot).unwrap().sent = true;
        }
        self.sent.push((head, slots));
    }

    /// One request for the device: end to end, within its limit, as PRP lists need it.
    fn check_shape(&self, head: u32, slots: &[u32]) {
        let request = self.backlog.request(head);
        let parts: Vec<&Known> = slots.iter().map(|slot| &self.known[slot]).collect();
        assert_eq!(request.blocks, parts.iter().map(|part| part.blocks).sum::<u32>());
        assert!(parts.len() == 1 || request.blocks <= COMMAND_BLOCKS);
        let mut at = request.lba.0;
        for part in parts {
            assert_eq!((part.lba, part.operation), (at, request.operation));
            at += u64::from(part.blocks);
        }
        let bytes: u64 = request.data.iter().map(|segment| u64::from(segment.bytes)).sum();
        assert_eq!(bytes, if request.operation.has_data() { u64::from(request.blocks) * 512 } else { 0 });
        for pair in request.data.windows(2) {
            let end = pair[0].address.0 + u64::from(pair[0].bytes);
            assert!(end.is_multiple_of(4096) && pair[1].address.0.is_multiple_of(4096), "{:?}", request.data);
        }
    }

    fn end(&mut self, which: usize, how: u8) {
        if self.sent.is_empty() {
            return;
        }
        let (head, slots) = self.sent.swap_remove(which % self.sent.len());
        let result = match how {
            0 => Err(failure(None)),
            1 => Err(failure(Some(QueueFault::Reset))),
            _ => Ok(()),
        };
        let told = end(&mut self.backlog, head, result);
        for slot in slots {
            let mine = told.iter().find(|(told, _)| *told == slot as usize);
            match mine {
                Some((_, Some(_))) => {
                    self.known.remove(&slot);
                    self.over.push(slot);
                }
                // Sent again after a reset, or taken out of a request of several that failed.
                Some((_, None)) | None => self.known.get_mut(&slot).unwrap().sent = false,
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Nothing is lost, nothing comes twice, and the order that is promised is kept, whatever fails and however
    /// often the scheduler changes.
    #[test]
    fn each_request_ends_once_and_in_order(
        first in schedulers(), merge in any::<bool>(), depth in 1u16..40, steps in steps(),
    ) {
        let backlog = backlog(first, merge, depth);
        let mut model = Model { backlog, known: BTreeMap::new(), sent: vec![], next: 0, now: 1, over: vec![] };
        for step in steps {
            match step {
                Step::Push { operation, lba, blocks, handle, urgent, replay } => {
                    let priority = if urgent { Priority::Urgent } else { Priority::Low };
                    let rate = Rate { bytes_per_s: u64::from(handle) << 20, requests_per_s: 0 };
                    let rights = Rights { priority, weight: 1 + handle, rate, replay };
                    model.push(operation, lba, blocks, handle, &rights);
                }
                Step::Send => model.send(),
                Step::Hold => {
                    if let Some(head) = model.backlog.next(model.now) {
                        model.backlog.hold(head);
                    }
                }
                Step::End { which, how } => model.end(which, how),
                Step::Change(scheduler) => model.backlog.set(scheduler, rights),
                Step::Pass(ns) => model.now += ns,
            }
            prop_assert!(model.sent.len() <= usize::from(depth), "more with the device than its window");
        }
        // In the end everything goes, if time passes: rates only delay.
        let mut rounds = 0;
        while !model.known.is_empty() {
            model.now += 1_000_000_000;
            model.send();
            model.end(0, 7);
            rounds += 1;
            prop_assert!(rounds < 10_000, "{} requests are stuck", model.known.len());
        }
        let mut over = model.over.clone();
        over.sort_unstable();
        over.dedup();
        prop_assert_eq!(over.len(), model.over.len(), "a request ended twice");
        prop_assert!(!model.backlog.has_waiting());
        prop_assert_eq!(model.backlog.nodes.free(), NODES);
        prop_assert!(model.backlog.held.iter().all(|&held| held == 0));
    }

    /// Bytes of handles that always have something waiting are as their weights, to within a request and a round.
    #[test]
    fn shares_follow_weights(
        weights in prop::collection::vec(1u32..400, 2..5), blocks in prop::collection::vec(1u32..200, 2..5),
    ) {
        let mut backlog = backlog(Scheduler::Fair, false, 4);
        let count = weights.len().min(blocks.len());
        let mut sent = vec![0u64; count];
        let fill = |backlog: &mut Backlog, handle: usize| {
            push(backlog, READ, 0, blocks[handle], (handle as u32, handle as u32), &rights(weights[handle]));
        };
        for handle in 0..count {
            (0..4).for_each(|_| fill(&mut backlog, handle));
        }
        for _ in 0..4000 {
            let (head, slots) = send(&mut backlog, 0).unwrap();
            let handle = slots[0] as usize;
            sent[handle] += u64::from((blocks[handle] * LBA_BYTES).max(4096));
            end(&mut backlog, head, Ok(()));
            fill(&mut backlog, handle);
        }
        for one in 0..count {
            for other in 0..one {
                let share = |handle: usize| sent[handle] as f64 / f64::from(weights[handle]);
                // A round's share for each weight, and the largest request, on either side.
                let slack = |handle: usize| {
                    64.0 + f64::from((blocks[handle] * LBA_BYTES).max(4096)) / f64::from(weights[handle])
                };
                let apart = (share(one) - share(other)).abs();
                prop_assert!(apart <= 2.0 * (slack(one) + slack(other)), "{sent:?} for {weights:?}");
            }
        }
    }
}

/// Reads that never end, and one write: how many reads pass it.
fn passed(scheduler: Scheduler, now: u64) -> u32 {
    let mut backlog = backlog(scheduler, false, 1);
    push(&mut backlog, WRITE, 0, 8, (1000, 1), &rights(100));
    for n in 0.. {
        while backlog.nodes.queued() < 40 {
            push(&mut backlog, READ, 5000, 8, (n, 0), &rights(100));
        }
        let (head, slots) = send(&mut backlog, now).unwrap();
        end(&mut backlog, head, Ok(()));
        if slots == [1000] {
            return n;
        }
        assert!(n < 10_000, "the write starves");
    }
    unreachable!()
}

#[test]
fn a_write_is_passed_by_a_bounded_number_of_reads() {
    let bound = BATCH * STARVED_MAX;
    let passed_by = passed(Scheduler::Deadline { read_us: 1000, write_us: 1000 }, 0);
    assert!(passed_by > 0 && passed_by <= bound, "{passed_by} reads");
    assert!(passed(Scheduler::Deadline { read_us: 0, write_us: 0 }, u64::MAX) <= bound);
    assert!(passed(Scheduler::Fair, 0) <= 3);
}

#[test]
fn deadline_goes_up_the_disk_and_back_to_what_has_waited_too_long() {
    let scheduler = Scheduler::Deadline { read_us: 1, write_us: 5 };
    let mut backlog = backlog(scheduler, false, 1);
    for (slot, lba) in [(0, 500), (1, 100), (2, 300)] {
        push(&mut backlog, READ, lba, 8, (slot, 0), &rights(1));
    }
    assert_eq!(all(&mut backlog, 0), [1, 2, 0]);
    // The head is at 508. A request far behind it waits while others lie ahead, until its time is over: then it
    // goes with the next batch, which is after 16 of the others.
    push(&mut backlog, READ, 8, 8, (99, 0), &rights(1));
    for slot in 0..40 {
        push(&mut backlog, READ, 1000 + u64::from(slot) * 8, 8, (slot, 0), &rights(1));
    }
    let order = all(&mut backlog, 2000);
    let at = order.iter().position(|&slot| slot == 99).unwrap();
    assert!(at > 0 && at <= BATCH as usize, "after {at} others");
}

#[test]
fn a_handle_is_held_to_its_rate_and_others_are_not() {
    for (rate, per_s) in [
        (Rate { bytes_per_s: 100 * 4096, requests_per_s: 0 }, 100),
        (Rate { bytes_per_s: 0, requests_per_s: 50 }, 50),
    ] {
        let mut backlog = backlog(Scheduler::Fair, false, 1);
        let limited = Rights { rate, ..rights(1000) };
        let mut sent = [0u64; 2];
        let fill = |backlog: &mut Backlog| {
            push(backlog, READ, 0, 8, (0, 0), &limited);
            push(backlog, READ, 0, 8, (1, 1), &rights(1));
        };
        (0..10).for_each(|_| fill(&mut backlog));
        // Four seconds in steps of a millisecond, a request each.
        for ms in 0..4000u64 {
            let (head, slots) = send(&mut backlog, ms * 1_000_000).expect("the other always may");
            end(&mut backlog, head, Ok(()));
            sent[slots[0] as usize] += 1;
            let rights = if slots[0] == 0 { limited } else { rights(1) };
            push(&mut backlog, READ, 0, 8, (slots[0], slots[0]), &rights);
        }
        let allowed = per_s * 4;
        assert!((allowed - 2..=allowed + 3).contains(&sent[0]), "{} of {allowed}", sent[0]);
        assert_eq!(sent[0] + sent[1], 4000);
    }
}

#[test]
fn a_limited_handle_alone_says_when_it_may() {
    let mut backlog = backlog(Scheduler::Fair, false, 4);
    let rights = Rights { rate: Rate { bytes_per_s: 0, requests_per_s: 10 }, ..rights(1) };
    (0..3).for_each(|slot| push(&mut backlog, READ, 0, 8, (slot, 0), &rights));
    let now = 1_000_000_000;
    assert!(send(&mut backlog, now).is_some());
    assert!(send(&mut backlog, now).is_none());
    let later = backlog.later_ns().expect("a time");
    assert!(later > now && later <= now + 100_000_000, "{later}");
    assert!(backlog.next(later - 1).is_none());
    assert!(send(&mut backlog, later).is_some());
}

#[test]
fn a_flood_leaves_room_for_others() {
    let mut backlog = backlog(Scheduler::Fair, false, 4);
    let data = segment(0, 8);
    let request = Request { operation: READ, lba: Lba(0), blocks: 8, data: &data, tag: 0, stream: 0 };
    let mut flood =
        |handle| (0..).take_while(|&n| backlog.push(&request, (n, handle), &rights(1), 0)).count();
    let got: Vec<usize> = (0..3).map(&mut flood).collect();
    assert_eq!(got, [NODES / 2, NODES / 4, NODES / 8]);
    assert!(flood(3) > 0);
}

#[test]
fn urgent_requests_pass_all_others_but_not_for_ever() {
    for scheduler in [Scheduler::None, Scheduler::DEADLINE, Scheduler::Fair] {
        let mut backlog = backlog(scheduler, false, 1);
        push(&mut backlog, READ, 0, 8, (0, 0), &rights(1));
        let urgent = Rights { priority: Priority::Urgent, ..rights(1) };
        (1..=40).for_each(|slot| push(&mut backlog, READ, 0, 8, (slot, 1), &urgent));
        let order = all(&mut backlog, 0);
        let at = order.iter().position(|&slot| slot == 0).unwrap();
        assert_eq!(at, URGENT_RUN_MAX as usize, "{scheduler:?}: {order:?}");
    }
}

#[test]
fn neighbours_become_one_and_a_failure_takes_them_apart() {
    let mut backlog = backlog(Scheduler::None, true, 4);
    for (slot, lba) in [(0, 16), (1, 24), (2, 8), (3, 100), (4, 32)] {
        push(&mut backlog, READ, lba, 8, (slot, slot), &rights(1));
    }
    let (head, slots) = send(&mut backlog, 0).unwrap();
    assert_eq!(slots, [2, 0, 1, 4]);
    let request = backlog.request(head);
    assert_eq!((request.lba, request.blocks, request.data.len()), (Lba(8), 32, 1));
    assert_eq!(end(&mut backlog, head, Err(failure(None))), []);
    // Each by itself now: what fails again fails alone.
    let mut seen = vec![];
    while let Some((head, slots)) = send(&mut backlog, 0) {
        assert_eq!(slots.len(), 1);
        let result = if slots == [1] { Err(failure(None)) } else { Ok(()) };
        seen.extend(end(&mut backlog, head, result));
    }
    seen.sort_unstable();
    let expected = [0, 1, 2, 3, 4].map(|slot| (slot, Some(slot != 1)));
    assert_eq!(seen, expected);
}

#[test]
fn one_flush_stands_for_all_that_wait() {
    let mut backlog = backlog(Scheduler::None, true, 8);
    push(&mut backlog, WRITE, 0, 8, (0, 0), &rights(1));
    for slot in 1..4 {
        push(&mut backlog, Operation::Flush, 0, 0, (slot, slot - 1), &rights(1));
    }
    assert_eq!(send(&mut backlog, 0).unwrap().1, [0]);
    let (head, slots) = send(&mut backlog, 0).unwrap();
    assert_eq!((slots.len(), backlog.request(head).blocks), (3, 0));
    assert_eq!(end(&mut backlog, head, Ok(())).len(), 3);
}

#[test]
fn what_comes_back_goes_before_what_was_about_to_go() {
    let mut backlog = backlog(Scheduler::None, false, 4);
    push(&mut backlog, WRITE, 0, 8, (0, 0), &Rights { replay: true, ..rights(1) });
    push(&mut backlog, Operation::Flush, 0, 0, (1, 0), &rights(1));
    let (write, _) = send(&mut backlog, 0).unwrap();
    let flush = backlog.next(0).unwrap();
    backlog.hold(flush);
    end(&mut backlog, write, Err(failure(Some(QueueFault::Reset))));
    assert_eq!(all(&mut backlog, 0), [0, 1]);
}

#[test]
fn a_request_that_brings_the_device_down_each_time_ends() {
    let mut backlog = backlog(Scheduler::None, false, 4);
    push(&mut backlog, WRITE, 0, 8, (7, 0), &Rights { replay: true, ..rights(1) });
    let reset = || Err(failure(Some(QueueFault::Reset)));
    for _ in 0..REPLAYS_MAX {
        let (head, _) = send(&mut backlog, 0).unwrap();
        assert_eq!(end(&mut backlog, head, reset()), [(7, None)]);
    }
    let (head, _) = send(&mut backlog, 0).unwrap();
    assert_eq!(end(&mut backlog, head, reset()), [(7, Some(false))]);
}
