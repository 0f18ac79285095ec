//! Requests by slots of HMB-I/O, and by the queue below them where no slot will do.

use crate::puppet::{FIRST, LBAS, PAGE, Puppet, Vices, polled};
use nvmed_dma::Transport;
use nvmed_engine::nvme::{NvmeEngine, NvmeOptions};
use nvmed_engine::{
    Completion, Engine, Operation, QueueFault, QueueOptions, QueuePair, Request, Segment, SubmitError,
    UrgentPath,
};
use nvmed_nvme::{AdminOpcode, FeatureId, HmbIoMetadata, Status};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};
use std::sync::Arc;

/// A puppet that offers slots, an engine that has asked for so many, its urgent queue pair, and memory that it maps.
struct Host {
    puppet: Arc<Puppet>,
    engine: NvmeEngine,
    pair: Box<dyn QueuePair>,
    memory: Arc<Mapping>,
    address: DeviceAddress,
}

fn engine(vices: Vices, hmb_io_slots: u16) -> (Arc<Puppet>, NvmeEngine) {
    let puppet = Puppet::new(vices);
    let transport: Arc<dyn Transport> = Arc::<Puppet>::clone(&puppet);
    let options = NvmeOptions { hmb_io_slots, ..NvmeOptions::default() };
    (puppet, NvmeEngine::open_with(transport, options).unwrap())
}

fn host(slots: u16) -> Host {
    host_of(Vices { slots: slots.max(8), ..Vices::default() }, slots)
}

fn host_of(vices: Vices, slots: u16) -> Host {
    let (puppet, engine) = engine(vices, slots);
    let pair = engine.urgent_queues(4).unwrap().pop().unwrap();
    let memory = Arc::new(Mapping::anonymous(1 << 21, Pages::Base).unwrap());
    let address = engine.map(Arc::clone(&memory)).unwrap();
    Host { puppet, engine, pair, memory, address }
}

impl Host {
    /// Memory at `offset`.
    fn at(&self, offset: u64, bytes: u32) -> [Segment; 1] {
        [Segment { address: self.address.plus(offset), bytes }]
    }

    /// Submits a request of `blocks` blocks, with the memory at its beginning, and rings.
    fn put(&mut self, operation: Operation, lba: u64, blocks: u32, tag: u64) {
        let data = self.at(0, blocks * 512);
        self.pair.submit(&Request { operation, lba: Lba(lba), blocks, data: &data, tag, stream: 0 }).unwrap();
        self.pair.ring();
    }

    fn read(&mut self, tag: u64) {
        self.put(Operation::Read, 8 * tag, 8, tag);
    }

    fn polled(&mut self) -> Vec<Completion> {
        polled(&mut *self.pair)
    }

    fn tags(&mut self) -> Vec<u64> {
        self.polled().into_iter().map(|done| done.result.map(|()| done.tag).unwrap()).collect()
    }

    /// What came by slots, completed well; their number.
    fn serve_slots(&self) -> usize {
        let commands = self.puppet.slot_commands();
        commands.iter().for_each(|(command, _)| self.puppet.end(command.cid, Status::SUCCESS));
        commands.len()
    }
}

fn fault(done: &Completion) -> Option<QueueFault> {
    done.result.expect_err("it did not work").fault
}

#[test]
fn data_goes_through_the_slot_both_ways() {
    let mut host = host(4);
    assert_eq!(host.engine.urgent_path(), UrgentPath::HmbIo { slots: 4, slot_bytes: 128 << 10 });
    host.memory.fill(512, 3584, 1);
    host.memory.fill(8192, 4096, 2);
    let data = [host.at(512, 3584)[0], host.at(8192, 4096)[0]];
    let write = Operation::Write { fua: true };
    let request = Request { operation: write, lba: Lba(9), blocks: 15, data: &data, tag: 7, stream: 0 };
    host.pair.submit(&request).unwrap();
    assert!(host.puppet.slot_commands().is_empty(), "the doorbell was not rung");
    host.pair.ring();
    let [(command, told)] = host.puppet.slot_commands()[..] else { panic!("one command") };
    assert_eq!((told.lpn, told.nlp, told.first, told.bytes), (1, 2, 512, 15 * 512));
    assert_eq!(told.kind, HmbIoMetadata::WRITE | HmbIoMetadata::FUA);
    assert_eq!((command.nsid, command.prp1, command.cdw11), (1, 0, told.sequence as u32));
    let (slot, at) = host.puppet.slot(command.cdw10, 8192);
    let mut bytes = [0; 8192];
    slot.read(at, &mut bytes);
    assert!(bytes[512..4096].iter().all(|&byte| byte == 1) && bytes[4096..].iter().all(|&byte| byte == 2));
    assert!(host.polled().is_empty() && host.pair.outstanding() == 1);
    host.puppet.end(command.cid, Status::SUCCESS);
    assert_eq!((host.tags(), host.pair.outstanding()), (vec![7], 0));

    host.pair.submit(&Request { operation: Operation::Read, tag: 8, ..request }).unwrap();
    host.pair.ring();
    let [(command, told)] = host.puppet.slot_commands()[..] else { panic!("one command") };
    assert_eq!(told.kind, HmbIoMetadata::READ);
    let (slot, at) = host.puppet.slot(command.cdw10, 8192);
    slot.fill(at, 8192, 5);
    host.puppet.end(command.cid, Status::UNRECOVERED_READ);
    let done = host.polled();
    assert!(done[0].result.unwrap_err().status.is(Status::UNRECOVERED_READ));
    let first = |host: &Host| {
        [512, 4095, 8192].map(|at| host.memory.u8(at).load(std::sync::atomic::Ordering::Relaxed))
    };
    assert_eq!(first(&host), [1, 1, 2], "what failed has no data");
    host.pair.submit(&Request { operation: Operation::Read, tag: 9, ..request }).unwrap();
    host.pair.ring();
    assert_eq!(host.serve_slots(), 1);
    assert_eq!((host.tags(), first(&host)), (vec![9], [5, 5, 5]));
    assert_eq!(host.puppet.fetch(FIRST).len(), 0, "nothing went by the queue below");
}

#[test]
fn what_finds_no_slot_goes_by_the_queue_below() {
    let mut host = host(2);
    (1..=3).for_each(|tag| host.read(tag));
    let by_slots = host.puppet.slot_commands();
    assert_eq!(by_slots.len(), 2);
    assert_eq!((host.puppet.serve(FIRST), host.tags(), host.pair.outstanding()), (1, vec![3], 2));
    // In another order than they came.
    by_slots.iter().rev().for_each(|(command, _)| host.puppet.end(command.cid, Status::SUCCESS));
    assert_eq!(host.tags(), [2, 1]);
    // All or nothing: 260 KiB are three slots.
    host.put(Operation::Read, 0, 520, 4);
    assert_eq!((host.puppet.slot_commands().len(), host.puppet.serve(FIRST)), (0, 1));
    assert_eq!(host.tags(), [4]);
}

#[test]
fn what_is_no_read_or_write_of_mapped_memory_goes_by_the_queue_below() {
    let mut host = host(8);
    let flush = Request { operation: Operation::Flush, lba: Lba(0), blocks: 0, data: &[], tag: 1, stream: 0 };
    host.pair.submit(&flush).unwrap();
    // PAGE was not mapped by the engine.
    let other = Request { operation: Operation::Read, blocks: 8, data: &PAGE, tag: 2, ..flush };
    host.pair.submit(&other).unwrap();
    let data = host.at(0, 4096);
    let compare = Request { operation: Operation::Compare, data: &data, tag: 3, ..other };
    host.pair.submit(&compare).unwrap();
    host.pair.ring();
    assert_eq!((host.puppet.slot_commands().len(), host.puppet.serve(FIRST)), (0, 3));
    assert_eq!(host.tags(), [1, 2, 3]);
    let beyond = Request { lba: Lba(LBAS), data: &data, ..other };
    assert!(matches!(host.pair.submit(&beyond), Err(SubmitError::Invalid { .. })));
    // An ordinary pair of the engine knows no slots.
    let mut pair = host.engine.queue(QueueOptions::depth(4)).unwrap();
    pair.submit(&Request { data: &data, ..other }).unwrap();
    pair.ring();
    assert_eq!((host.puppet.slot_commands().len(), host.puppet.serve(FIRST + 1)), (0, 1));
}

#[test]
fn a_long_request_takes_several_slots_and_ends_once() {
    let mut host = host(8);
    // 300 KiB from the middle of a page: slots of 124 KiB, so that each begins as far into a page.
    host.put(Operation::Read, 1, 600, 1);
    let commands = host.puppet.slot_commands();
    let told: Vec<_> = commands.iter().map(|(_, told)| (told.lpn, told.first, told.bytes >> 10)).collect();
    assert_eq!(told, [(0, 512, 124), (31, 512, 124), (62, 512, 52)]);
    for (command, _) in commands.iter().rev() {
        assert!(host.polled().is_empty());
        let (slot, at) = host.puppet.slot(command.cdw10, 128 << 10);
        slot.fill(at, 128 << 10, command.cdw10 as u8 + 1);
        host.puppet.end(command.cid, Status::SUCCESS);
    }
    assert_eq!(host.tags(), [1]);
    let mut bytes = vec![0; 300 << 10];
    host.memory.read(0, &mut bytes);
    for (n, (command, _)) in commands.iter().enumerate() {
        let share = &bytes[n * (124 << 10)..((n + 1) * (124 << 10)).min(300 << 10)];
        assert!(share.iter().all(|&byte| u32::from(byte) == command.cdw10 + 1), "command {n}");
    }
    // More than eight slots are for nobody, be they there.
    for slots in [8, 16] {
        let mut host = self::host(slots);
        host.put(Operation::Read, 0, 2056, 2);
        assert_eq!((host.puppet.slot_commands().len(), host.puppet.serve(FIRST)), (0, 2));
    }
}

#[test]
fn no_command_moves_more_than_the_drive_takes() {
    // 2^2 pages.
    let mut host = host_of(Vices { slots: 8, mdts: 2, ..Vices::default() }, 8);
    host.put(Operation::Read, 0, 80, 1);
    let told: Vec<_> = host.puppet.slot_commands().iter().map(|(_, told)| told.bytes >> 10).collect();
    assert_eq!(told, [16, 16, 8]);
}

/// The queue of slots has not heard of it yet, and finds out with the first request.
#[test]
fn what_the_admin_queue_does_not_take_goes_by_the_queue_below() {
    let mut host = host(1);
    host.puppet.end(0x1234, Status::SUCCESS);
    assert!(host.engine.identify_controller().is_err());
    host.read(1);
    assert_eq!((host.puppet.slot_commands().len(), host.puppet.serve(FIRST)), (0, 1));
    assert_eq!((host.tags(), host.pair.outstanding()), (vec![1], 0));
}

#[test]
fn a_reset_ends_what_is_in_slots_and_they_are_granted_again() {
    let mut host = host(2);
    (1..=3).for_each(|tag| host.read(tag));
    let old = host.puppet.slot_commands();
    host.puppet.end(old[0].0.cid, Status::SUCCESS);
    host.engine.reset().unwrap();
    let done = host.polled();
    assert_eq!(done.iter().map(fault).collect::<Vec<_>>(), [Some(QueueFault::Reset); 3]);
    assert_eq!(host.pair.outstanding(), 0);
    (4..=5).for_each(|tag| host.read(tag));
    assert_eq!(host.serve_slots(), 2);
    assert_eq!(host.tags(), [4, 5]);
    let asked = host.puppet.admin(AdminOpcode::SetFeatures);
    assert_eq!(asked.iter().filter(|entry| entry.cdw10 == FeatureId::HmbIo as u32).count(), 2);
}

#[test]
fn what_the_drive_ends_goes_by_the_queue_below_until_a_reset() {
    for status in [Status::SEQUENCE_ERROR, Status::ABORT_REQUESTED] {
        let mut host = host(4);
        (1..=3).for_each(|tag| host.read(tag));
        let commands = host.puppet.slot_commands();
        host.puppet.end(commands[1].0.cid, status);
        assert!(host.polled().is_empty() && host.pair.outstanding() == 3);
        host.puppet.end(commands[0].0.cid, Status::SUCCESS);
        assert_eq!((host.tags(), host.puppet.serve(FIRST)), (vec![1], 1));
        host.read(4);
        host.puppet.end(commands[2].0.cid, status);
        assert_eq!(host.tags(), [2]);
        assert_eq!((host.puppet.slot_commands().len(), host.puppet.serve(FIRST)), (0, 2));
        assert_eq!((host.tags(), host.pair.outstanding()), (vec![4, 3], 0));
        host.engine.reset().unwrap();
        host.read(5);
        assert_eq!((host.serve_slots(), host.tags()), (1, vec![5]));
    }
}

#[test]
fn a_request_in_slots_is_aborted_by_its_commands() {
    let mut host = host(4);
    host.read(1);
    host.put(Operation::Read, 0, 300, 2);
    let commands = host.puppet.slot_commands();
    host.pair.cancel(2).unwrap();
    host.pair.cancel(77).unwrap();
    let aborted: Vec<_> = host.puppet.admin(AdminOpcode::Abort).iter().map(|abort| abort.cdw10).collect();
    assert_eq!(aborted, [1, 2].map(|n: usize| u32::from(commands[n].0.cid) << 16));
    commands[1..].iter().for_each(|(command, _)| host.puppet.end(command.cid, Status::ABORT_REQUESTED));
    let done = host.polled();
    assert_eq!((done.len(), done[0].tag), (1, 2));
    assert!(done[0].result.unwrap_err().status.is(Status::ABORT_REQUESTED));
    // One that went by the queue below is aborted there.
    (11..=13).for_each(|tag| host.read(tag));
    host.read(14);
    let below = host.puppet.fetch(FIRST);
    host.pair.cancel(14).unwrap();
    let last = host.puppet.admin(AdminOpcode::Abort).last().map(|abort| abort.cdw10);
    assert_eq!(last, Some(u32::from(below[0].cid) << 16 | FIRST));
    host.puppet.post(FIRST, host.puppet.good(FIRST, below[0].cid, Status::ABORT_REQUESTED));
    assert!(host.polled()[0].result.is_err());
    assert_eq!((host.serve_slots(), host.tags().len()), (3, 3));
    // The slots go on.
    host.puppet.end(commands[0].0.cid, Status::SUCCESS);
    assert_eq!(host.tags(), [1]);
    host.read(3);
    assert_eq!((host.serve_slots(), host.tags()), (1, vec![3]));
}

#[test]
fn a_completion_that_makes_no_sense_ends_the_use_of_slots() {
    let mut host = host(4);
    (1..=2).for_each(|tag| host.read(tag));
    let commands = host.puppet.slot_commands();
    let cid = commands[0].0.cid;
    host.puppet.end(cid, Status::SUCCESS);
    host.puppet.end(cid, Status::SUCCESS);
    let done = host.polled();
    assert_eq!((done.len(), done[0].result, done[0].tag), (2, Ok(()), 1));
    assert_eq!(fault(&done[1]), Some(QueueFault::UnknownCommand { cid }));
    host.read(3);
    assert_eq!((host.puppet.slot_commands().len(), host.puppet.serve(FIRST), host.tags()), (0, 1, vec![3]));
    host.engine.reset().unwrap();
    host.read(4);
    assert!(host.polled().is_empty() && host.pair.outstanding() == 1, "what was wrong is over");
    assert_eq!((host.serve_slots(), host.tags()), (1, vec![4]));
}

#[test]
fn what_the_drive_ends_waits_for_room_in_the_queue_below() {
    for is_reset in [false, true] {
        let (mut host, flushes) = host_with_two_that_wait();
        if is_reset {
            host.engine.reset().unwrap();
            let done = host.polled();
            assert_eq!((done.len(), host.pair.outstanding()), (flushes + 2, 0));
            assert!(done.iter().all(|done| fault(done) == Some(QueueFault::Reset)), "{done:?}");
            continue;
        }
        assert_eq!((host.puppet.serve(FIRST), host.tags()), (flushes, vec![9; flushes]));
        assert!(host.polled().is_empty());
        assert_eq!((host.puppet.serve(FIRST), host.tags()), (2, vec![1, 2]));
    }
}

/// A host with the requests 1 and 2, which the drive has ended in their slots, and a queue below them that is full of
/// flushes, so many.
fn host_with_two_that_wait() -> (Host, usize) {
    let mut host = host(2);
    (1..=2).for_each(|tag| host.read(tag));
    let flush = Request { operation: Operation::Flush, lba: Lba(0), blocks: 0, data: &[], tag: 9, stream: 0 };
    let mut flushes = 0;
    while host.pair.submit(&flush).is_ok() {
        flushes += 1;
    }
    host.pair.ring();
    for (command, _) in host.puppet.slot_commands() {
        host.puppet.end(command.cid, Status::SEQUENCE_ERROR);
    }
    assert!(flushes > 0 && host.polled().is_empty());
    assert_eq!(host.pair.outstanding(), flushes + 2, "they wait");
    (host, flushes)
}

#[test]
fn what_the_drive_ends_may_be_beyond_the_namespace_by_then() {
    let mut host = host(2);
    host.put(Operation::Read, LBAS - 8, 8, 1);
    let command = host.puppet.slot_commands()[0].0;
    host.puppet.resize(LBAS / 2);
    host.pair.check();
    host.puppet.end(command.cid, Status::SEQUENCE_ERROR);
    let done = host.polled();
    assert!(done[0].tag == 1 && done[0].result.unwrap_err().status.is(Status::LBA_OUT_OF_RANGE), "{done:?}");
}

/// The queue of slots hears of a reset when it is looked at; until then it has requests of before.
#[test]
fn a_request_after_a_reset_does_not_take_the_place_of_one_before_it() {
    let mut host = host(2);
    host.read(1);
    assert_eq!(host.puppet.slot_commands().len(), 1);
    host.engine.reset().unwrap();
    host.read(2);
    let done = host.polled();
    assert_eq!((done.len(), done[0].tag, fault(&done[0])), (1, 1, Some(QueueFault::Reset)));
    assert_eq!((host.puppet.slot_commands().len(), host.puppet.serve(FIRST), host.tags()), (0, 1, vec![2]));
}

#[test]
fn a_device_that_dies_or_is_given_up_fails_what_is_in_slots() {
    for gives_up in [false, true] {
        let mut host = host(4);
        host.read(1);
        if gives_up {
            host.pair.expire();
        } else {
            host.puppet.set_csts(u32::MAX);
            host.pair.check();
        }
        let found = fault(&host.polled()[0]);
        assert!(matches!(found, Some(QueueFault::Timeout | QueueFault::Gone { .. })), "{found:?}");
        assert_eq!(host.pair.outstanding(), 0);
    }
}

#[test]
fn slots_are_of_one_pair_at_a_time() {
    let mut host = host(2);
    let slots_of = |host: &Host, pair: &mut dyn QueuePair| {
        let data = host.at(0, 4096);
        let request =
            Request { operation: Operation::Read, lba: Lba(0), blocks: 8, data: &data, tag: 1, stream: 0 };
        pair.submit(&request).unwrap();
        pair.ring();
        host.puppet.slot_commands().len()
    };
    let mut second = host.engine.urgent_queues(4).unwrap().pop().unwrap();
    assert_eq!(slots_of(&host, &mut *second), 0);
    host.read(1);
    let command = host.puppet.slot_commands()[0].0;
    // Dropped with a command under way: that is the controller's until its completion.
    host.pair = second;
    let mut third = host.engine.urgent_queues(4).unwrap().pop().unwrap();
    assert_eq!(slots_of(&host, &mut *third), 0);
    host.puppet.end(command.cid, Status::SUCCESS);
    let mut fourth = host.engine.urgent_queues(4).unwrap().pop().unwrap();
    assert_eq!(slots_of(&host, &mut *fourth), 1);
    assert!(polled(&mut *fourth).is_empty(), "what has ended was another pair's");
}

/// Whoever sends a command of their own looks at the same queue, and leaves to the slots what is theirs.
fn look_beside(host: &Host) {
    host.engine.identify_controller().unwrap();
}

#[test]
fn what_has_ended_before_a_reset_is_nobody_s_afterwards() {
    let mut host = host(2);
    host.read(1);
    assert_eq!(host.serve_slots(), 1);
    look_beside(&host);
    host.engine.reset().unwrap();
    assert_eq!(host.polled().iter().map(fault).collect::<Vec<_>>(), [Some(QueueFault::Reset)]);
    host.read(2);
    let commands = host.puppet.slot_commands();
    assert!(host.polled().is_empty() && host.pair.outstanding() == 1, "the drive has not done it");
    host.puppet.end(commands[0].0.cid, Status::SUCCESS);
    assert_eq!(host.tags(), [2]);
}

/// A completion of the command that a slot had before is of no command.
#[test]
fn a_late_completion_is_not_taken_for_the_next_command_s() {
    let mut host = host(1);
    host.read(1);
    let before = host.puppet.slot_commands()[0].0;
    host.puppet.end(before.cid, Status::SUCCESS);
    assert_eq!(host.tags(), [1]);
    host.read(2);
    let next = host.puppet.slot_commands()[0].0;
    assert_eq!(next.cdw10, before.cdw10, "there is one slot");
    assert_ne!(next.cdw11, before.cdw11, "metadata of another command has another number");
    host.puppet.end(before.cid, Status::SUCCESS);
    let done = host.polled();
    assert_eq!((done.len(), fault(&done[0])), (1, Some(QueueFault::UnknownCommand { cid: before.cid })));
}

#[test]
fn nonsense_that_somebody_else_has_found_ends_the_use_of_slots() {
    let mut host = host(2);
    host.read(1);
    host.puppet.end(0x1234, Status::SUCCESS);
    assert!(host.engine.identify_controller().is_err());
    let done = host.polled();
    assert_eq!((done.len(), fault(&done[0])), (1, Some(QueueFault::UnknownCommand { cid: 0x1234 })));
}

#[test]
fn what_has_ended_of_a_request_is_not_aborted() {
    let mut host = host(4);
    host.put(Operation::Read, 0, 300, 1);
    let commands = host.puppet.slot_commands();
    host.puppet.end(commands[0].0.cid, Status::SUCCESS);
    look_beside(&host);
    host.pair.cancel(1).unwrap();
    let aborted: Vec<_> = host.puppet.admin(AdminOpcode::Abort).iter().map(|abort| abort.cdw10).collect();
    assert_eq!(aborted, [u32::from(commands[1].0.cid) << 16]);
}

#[test]
fn without_slots_the_path_is_another() {
    for (vices, wanted) in [
        (Vices { slots: 8, ..Vices::default() }, 0),
        (Vices::default(), 8),
        (Vices { slots: 8, strange_block: true, ..Vices::default() }, 8),
        // No slot, which is none; more slots, and larger ones, than were asked for.
        (Vices { slots: 8, grants: Some((0, 32)), ..Vices::default() }, 8),
        (Vices { slots: 8, grants: Some((8, 32)), ..Vices::default() }, 4),
        (Vices { slots: 8, grants: Some((8, 33)), ..Vices::default() }, 8),
    ] {
        let (puppet, engine) = engine(vices, wanted);
        assert_eq!(engine.urgent_path(), UrgentPath::Reserved, "{vices:?}, {wanted} wanted");
        let pair = engine.urgent_queues(4).unwrap().pop().unwrap();
        assert!(pair.outstanding() == 0);
        let asked = puppet.admin(AdminOpcode::SetFeatures);
        let asked: Vec<_> = asked.iter().filter(|entry| entry.cdw10 == FeatureId::HmbIo as u32).collect();
        // Slots that nobody will use are given back.
        assert_eq!(asked.last().map_or(0, |entry| entry.cdw11), 0);
        assert_eq!(asked.len(), if vices.strange_block || vices.grants.is_some() { 2 } else { 0 });
    }
    // No more is asked for than is offered.
    let (puppet, engine) = engine(Vices { slots: 3, ..Vices::default() }, 8);
    assert_eq!(engine.urgent_path(), UrgentPath::HmbIo { slots: 3, slot_bytes: 128 << 10 });
    let asked = puppet.admin(AdminOpcode::SetFeatures);
    let asked = asked.iter().filter(|entry| entry.cdw10 == FeatureId::HmbIo as u32);
    assert_eq!(asked.map(|entry| entry.cdw11 & 0xffff).collect::<Vec<_>>(), [3]);
}
