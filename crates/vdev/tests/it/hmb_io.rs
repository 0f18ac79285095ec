//! HMB-I/O: what slots are granted, what passes through them, in which order, and how it ends.

use crate::drive_file::Place;
use crate::host::{DATA, ENTRIES, Host};
use crate::slots::player;
use crate::slots::{PAGE, READ_NS, SlotHost, UNITS, UNTOUCHED, config, flush, profile, set_feature};
use nvmed_dma::Transport;
use nvmed_flash::{Medium, TranslationProfile};
use nvmed_nvme::{
    CompletionEntry, DriveIdentity, ErrorEntry, HmbIoControl, HmbIoMetadata, HmbIoSlots, IdentifyController,
    IdentifyNamespace, LogPage, Status, SubmissionEntry, register,
};
use nvmed_sys::sync::Mutex;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{CommandId, DeviceAddress};
use nvmed_vdev::{
    Arrival, Clock, Controller, ControllerConfig, DriveEvent, FaultPlan, FileOptions, Flush, KeptDrive, Media,
};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const CLOCKS: [Clock; 3] = [Clock::Inline, Clock::Threaded, Clock::Virtual];
const READ: u32 = HmbIoMetadata::READ;
const WRITE: u32 = HmbIoMetadata::WRITE;
const FOUR: HmbIoSlots = HmbIoSlots { slots: 4, pages: 8 };
const SECTOR: usize = 512;

/// Reads a unit through the I/O queue; whether all its bytes are so.
fn unit_is(host: &mut SlotHost, unit: u64, byte: u8) -> bool {
    host.host.memory.fill(DATA, PAGE, !byte);
    let entry = host.host.data(2, unit * 8, 8, PAGE);
    assert!(host.host.io(entry).status().is_success());
    let mut bytes = [0; PAGE];
    host.host.memory.read(DATA, &mut bytes);
    bytes == [byte; PAGE]
}

fn abort(cid: u16) -> SubmissionEntry {
    SubmissionEntry { opcode: 8, cid: 0x77, cdw10: u32::from(cid) << 16, ..Default::default() }
}

fn byte_of(unit: u64) -> u64 {
    unit * PAGE as u64
}

#[test]
fn a_read_is_in_its_slot_when_it_completes() {
    for clock in CLOCKS {
        let mut host = SlotHost::with_slots(config(clock), FOUR);
        assert_eq!((host.granted, host.feature()), (FOUR, FOUR.dword()));
        assert!(host.control.unwrap().is_of(FOUR));
        // From within a page, over its end: the slot's pages are the drive's.
        let status = host.run(2, READ, byte_of(9) + 3584, 1536);
        assert!(status.is_success(), "{clock:?}: {status:?}");
        assert_eq!(host.read(2, 3584, 1536), [vec![9; 512], vec![10; 1024]].concat());
        assert!(host.read(2, 0, 3584).iter().all(|&byte| byte == UNTOUCHED));
        let log = host.log();
        assert_eq!((log.hmb_io_slots, log.hmb_io_reads, log.hmb_io_writes), (4, 1, 0));
        assert_eq!(log.hmb_io_errors, 0);
        assert!(host.run(3, READ, byte_of(UNITS - 8), 8 * PAGE as u32).is_success());
        assert!(host.read(3, 7 * PAGE, PAGE).iter().all(|&byte| byte == (UNITS - 1) as u8));
    }
}

#[test]
fn a_write_is_taken_from_its_slot() {
    for clock in CLOCKS {
        let mut host = SlotHost::with_slots(config(clock), FOUR);
        host.fill(0, 0, 8 * PAGE, 0xee);
        host.fill(0, 1024, SECTOR, 0x33);
        assert!(host.run(0, WRITE, byte_of(20) + 1024, SECTOR as u32).is_success());
        host.host.memory.fill(DATA, PAGE, 0);
        let entry = host.host.data(2, 20 * 8, 8, PAGE);
        assert!(host.host.io(entry).status().is_success());
        let mut bytes = [0; PAGE];
        host.host.memory.read(DATA, &mut bytes);
        let expected = [vec![20; 1024], vec![0x33; SECTOR], vec![20; PAGE - 1024 - SECTOR]].concat();
        assert!(bytes[..] == expected[..], "{clock:?}: a part of a unit");
        assert!(host.run(1, WRITE | HmbIoMetadata::FUA, byte_of(30), PAGE as u32).is_success());
        assert!(unit_is(&mut host, 30, UNTOUCHED), "{clock:?}: what was in slot 1");
        assert!(host.host.io(flush()).status().is_success());
        // What a normal command wrote, slots read; and the health log counts both alike.
        assert!(host.run(2, READ, byte_of(20), PAGE as u32).is_success());
        assert_eq!(host.read(2, 0, PAGE), expected);
        let counters = host.host.device.controller().counters();
        assert_eq!((counters.reads, counters.writes, counters.fua_writes), (3, UNITS + 2, 1), "{clock:?}");
        assert_eq!(counters.bytes_written, (UNITS + 1) * PAGE as u64 + SECTOR as u64);
        assert_eq!((host.log().hmb_io_reads, host.log().hmb_io_writes), (1, 2));
    }
}

#[test]
fn several_slots_are_under_way_at_once() {
    for clock in CLOCKS {
        let mut host = SlotHost::with_slots(config(clock), HmbIoSlots { slots: 6, pages: 1 });
        for round in 0..40 {
            for slot in 0..6 {
                let unit = (round * 6 + u64::from(slot)) % UNITS;
                match round % 2 {
                    0 => host.place(slot, READ, byte_of(unit), PAGE as u32),
                    _ => host.place(slot, WRITE, byte_of(unit), PAGE as u32),
                };
            }
            host.host.ring(0);
            for _ in 0..6 {
                let done = host.wait();
                assert!(done.status().is_success(), "{clock:?}: {:?}", done.status());
                let slot = done.cid - 0x100;
                let unit = (round * 6 + u64::from(slot)) % UNITS;
                if round % 2 == 0 {
                    assert_eq!(host.read(slot, 0, PAGE), [unit as u8; PAGE], "{clock:?}");
                    host.fill(slot, 0, PAGE, !((unit + 6) as u8));
                }
            }
        }
        assert!((6..12).all(|unit| unit_is(&mut host, unit, !(unit as u8))), "{clock:?}");
    }
}

/// Arrivals at the drive from now on.
fn recorded(host: &SlotHost) -> Arc<Mutex<Vec<Arrival>>> {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&arrivals);
    host.host.device.controller().record_events(Box::new(move |event| {
        told.lock().extend(event.and_then(DriveEvent::arrival));
    }));
    arrivals
}

#[test]
fn a_command_arrives_when_its_metadata_is_there_and_takes_a_reads_time() {
    let mut host = SlotHost::with_slots(config(Clock::Virtual), FOUR);
    let arrivals = recorded(&host);
    let rung = host.host.device.now_ns();
    assert!(host.run(0, READ, byte_of(3), PAGE as u32).is_success());
    let arrived = rung + READ_NS[2];
    let [arrival] = arrivals.lock()[..] else { panic!("one command") };
    assert_eq!((arrival.queue, arrival.opcode, arrival.time_ns), (0, 2, arrived));
    assert!(arrival.command.urgent);
    assert_eq!(arrival.due_ns, Some(arrived + READ_NS[0] + READ_NS[1]));
}

#[test]
fn what_is_urgent_passes_all_that_waits() {
    for urgent_places in [64, 0] {
        for clock in CLOCKS {
            let config = ControllerConfig { drive: Some(profile(urgent_places)), ..config(clock) };
            let mut host = SlotHost::with_slots(config, FOUR);
            let arrivals = recorded(&host);
            for unit in 0..7 {
                let entry = SubmissionEntry { cid: unit, ..host.host.data(2, u64::from(unit) * 8, 8, PAGE) };
                host.host.place(1, entry);
            }
            host.host.ring(1);
            host.submit(0, READ, byte_of(100), PAGE as u32);
            assert!(host.wait().status().is_success());
            for _ in 0..7 {
                assert!(host.host.rings[1].wait().status().is_success());
            }
            // Four have places, and three wait for theirs; the urgent one has its own, or the next one.
            let order: Vec<u16> = arrivals.lock().iter().map(|arrival| arrival.queue).collect();
            if clock == Clock::Virtual {
                assert_eq!(order, [1, 1, 1, 1, 0, 1, 1, 1], "{urgent_places} places of its own");
            }
            assert_eq!(order.len(), 8);
        }
    }
}

#[test]
fn what_is_wrong_has_its_status() {
    for clock in CLOCKS {
        let mut host = SlotHost::with_slots(config(clock), FOUR);
        let (page, beyond) = (PAGE as u32, byte_of(UNITS));
        let (invalid, out) = (Status::INVALID_FIELD, Status::LBA_OUT_OF_RANGE);
        let sound = host.metadata(READ, byte_of(1), page);
        let of = |start, bytes| HmbIoMetadata::new(READ, start, bytes, sound.sequence);
        let cases = [
            ("no type", HmbIoMetadata { kind: 0, ..sound }, invalid),
            ("both types", HmbIoMetadata { kind: 3, ..sound }, invalid),
            ("FUA of a read", HmbIoMetadata { kind: READ | HmbIoMetadata::FUA, ..sound }, invalid),
            ("no bytes", HmbIoMetadata { bytes: 0, nlp: 0, ..sound }, invalid),
            ("a part of a block", HmbIoMetadata { bytes: 513, ..sound }, invalid),
            ("within a block", HmbIoMetadata { first: 1, bytes: 512, ..sound }, invalid),
            ("beyond its first page", HmbIoMetadata { first: 4096, bytes: 512, nlp: 2, ..sound }, invalid),
            ("more pages than it touches", HmbIoMetadata { nlp: 2, ..sound }, invalid),
            ("more than a slot", of(0, 9 * page), invalid),
            ("more than a slot, since it begins within", of(2048, 8 * page), invalid),
            ("all there is", HmbIoMetadata { bytes: !511, nlp: 1 << 20, ..sound }, invalid),
            ("another command's", HmbIoMetadata { sequence: sound.sequence + 1, ..sound }, invalid),
            ("behind the end", of(beyond, 512), out),
            ("over the end", of(beyond - 512, 1024), out),
            ("no such page", HmbIoMetadata { lpn: u64::MAX, ..sound }, out),
            ("no such block", HmbIoMetadata { lpn: u64::MAX >> 3, ..sound }, out),
        ];
        let count = cases.len() as u64;
        let mut run = |entry| host.host.admin(entry).status();
        let command = sound.command(CommandId(1), 0);
        let entries = [
            ("a slot that is not granted", SubmissionEntry { cdw10: 4, ..command }, invalid),
            ("a slot of no number", SubmissionEntry { cdw10: u32::MAX, ..command }, invalid),
            ("fused", SubmissionEntry { flags: 1, ..command }, invalid),
            ("no namespace", SubmissionEntry { nsid: 0, ..command }, Status::INVALID_NAMESPACE),
            ("all namespaces", SubmissionEntry { nsid: u32::MAX, ..command }, Status::INVALID_NAMESPACE),
        ];
        for (what, entry, expected) in entries {
            let status = run(entry);
            assert!(status.is(expected), "{clock:?}, {what}: {status:?}");
        }
        for (what, metadata, expected) in cases {
            host.write_metadata(0, &metadata);
            let status = host.host.admin(command).status();
            assert!(status.is(expected), "{clock:?}, {what}: {status:?}");
        }
        let log = host.log();
        assert_eq!((log.hmb_io_errors, log.hmb_io_reads), (count + 5, 0));
        // The slot is as good as before.
        assert!(host.run(0, READ, beyond - 512, 512).is_success());
    }
}

#[test]
fn a_slot_does_one_command_at_a_time() {
    let mut host = SlotHost::with_slots(config(Clock::Virtual), FOUR);
    host.submit(1, READ, byte_of(1), PAGE as u32);
    let again = host.submit(1, READ, byte_of(2), PAGE as u32);
    let done = host.host.reap(0).expect("refused at once, while the first one is under way");
    assert!(done.cid == again.cid && done.status().is(Status::SEQUENCE_ERROR));
    assert!(host.wait().status().is_success());
    assert_eq!(host.read(1, 0, PAGE), [1; PAGE], "the metadata is copied once, and was that of the first");
    assert!(host.run(1, READ, byte_of(2), PAGE as u32).is_success());
}

#[test]
fn slots_are_asked_for_in_order() {
    let mut host = SlotHost::new(config(Clock::Inline), 2, 512);
    let ask = |host: &mut SlotHost, slots, pages| host.ask(HmbIoSlots { slots, pages }).status();
    let sequence = Status::SEQUENCE_ERROR;
    assert!(ask(&mut host, 4, 8).is(sequence), "no buffer");
    assert!(ask(&mut host, 0, 1).is_success(), "off, as it is");
    let command = HmbIoMetadata::new(READ, 0, 512, 0).command(CommandId(1), 0);
    assert!(host.host.admin(command).status().is(sequence), "no slots");
    assert!(host.lend().is_success());
    assert!(host.host.admin(command).status().is(sequence), "a buffer, and no slots");
    for (slots, pages) in [(65, 1), (1, 33), (u16::MAX, 8)] {
        assert!(ask(&mut host, slots, pages).is(Status::INVALID_FIELD), "{slots} of {pages} pages");
        assert_eq!(host.feature(), 0);
    }
    assert!(ask(&mut host, 64, 32).is_success());
    // 1,024 pages in two ranges: the first one has room for 15 slots behind two pages, the other one for 16.
    assert_eq!((host.granted.slots, host.granted.pages), (31, 32));
    let places = host.control.unwrap().places;
    assert_eq!((places[0].data.segment, places[0].data.offset), (0, 2 * PAGE as u32));
    assert_eq!((places[15].data.segment, places[15].data.offset), (1, 0));
    assert_eq!(places[3].metadata.offset, PAGE as u32 + 3 * 64);
    assert!(ask(&mut host, 4, 8).is(sequence), "on already");
    assert!(ask(&mut host, 0, 1).is_success());
    assert_eq!(host.feature(), 0);
    assert!(ask(&mut host, 4, 8).is_success());
    assert_eq!(host.feature(), FOUR.dword());
    let off = SubmissionEntry { cdw11: 0, ..set_feature(0x0d) };
    assert!(host.host.admin(off).status().is_success());
    assert_eq!(host.feature(), 0, "off with the buffer");
}

#[test]
fn a_small_buffer_has_few_or_small_slots() {
    for (ranges, pages, granted) in [(1, 4, (2, 1)), (1, 9, (2, 3)), (3, 5, (3, 3)), (5, 1, (3, 1))] {
        let mut host = SlotHost::new(config(Clock::Inline), ranges, pages);
        assert!(host.lend().is_success());
        let asked = HmbIoSlots { slots: 64, pages: granted.1 };
        let status = host.ask(asked).status();
        assert!(status.is_success(), "{ranges} of {pages}: {status:?}");
        assert_eq!((host.granted.slots, host.granted.pages), granted, "{ranges} of {pages}");
        for slot in 0..granted.0 {
            assert!(host.run(slot, READ, byte_of(5), u32::from(granted.1) * PAGE as u32).is_success());
            assert_eq!(host.read(slot, 0, PAGE), [5; PAGE]);
        }
        assert!(host.ask(HmbIoSlots::default()).status().is_success());
        // Cut to the longest range.
        assert!(host.ask(HmbIoSlots { slots: 1, pages: 32 }).status().is_success());
        assert!(host.granted.slots == 1 && u32::from(host.granted.pages) <= pages);
    }
    let mut host = SlotHost::new(config(Clock::Inline), 2, 2);
    host.addresses.truncate(1);
    host.memory.truncate(1);
    assert!(host.lend().is(Status::INVALID_FIELD), "below HMMIN");
}

/// A range of the list that lies in two mappings: the host counts from its begin, and no slot is in both.
#[test]
fn a_range_of_two_mappings_is_one_segment() {
    let mut host = SlotHost::new(config(Clock::Inline), 1, 16);
    let halves = [0, 1].map(|_| Arc::new(Mapping::anonymous(8 * PAGE, Pages::Base).unwrap()));
    let begin = DeviceAddress(0x4000_0000_0000);
    for (half, at) in halves.iter().zip([begin, begin.plus(8 * PAGE as u64)]) {
        host.host.device.controller().map_at(at, Arc::clone(half)).unwrap();
    }
    host.addresses[0] = Some(begin);
    assert!(host.lend().is_success());
    let asked = HmbIoSlots { slots: 4, pages: 4 };
    let done = host.host.admin(SubmissionEntry { cdw11: asked.dword(), ..set_feature(0xc1) });
    assert_eq!(HmbIoSlots::of(done.result), HmbIoSlots { slots: 3, pages: 4 });
    let mut bytes = [0; size_of::<HmbIoControl>()];
    halves[0].read(0, &mut bytes);
    let places = HmbIoControl::read_from_bytes(&bytes).unwrap().places;
    let of = |slot: usize| (places[slot].data.segment, places[slot].data.offset as usize / PAGE);
    assert_eq!([of(0), of(1), of(2)], [(0, 2), (0, 8), (0, 12)]);
    let metadata = HmbIoMetadata::new(READ, byte_of(6), PAGE as u32, 1);
    halves[0].write(places[2].metadata.offset as usize, metadata.as_bytes());
    assert!(host.host.admin(metadata.command(CommandId(1), 2)).status().is_success());
    let mut page = [0; PAGE];
    halves[1].read(4 * PAGE, &mut page);
    assert_eq!(page, [6; PAGE]);
}

/// Where a thread serves the drive, and late, a command has its doorbell's time.
#[test]
fn a_doorbell_has_its_own_time() {
    let mut host = SlotHost::with_slots(config(Clock::Threaded), FOUR);
    let (arrivals, (release, released)) =
        (Arc::new(Mutex::new(Vec::<Arrival>::new())), mpsc::channel::<()>());
    let (begun, begins) = mpsc::channel();
    let told = Arc::clone(&arrivals);
    host.host.device.controller().record_events(Box::new(move |event| {
        told.lock().extend(event.and_then(DriveEvent::arrival));
        // The first one holds the thread up. Later, nobody is there any more.
        let _ = begun.send(()).map(|()| released.recv());
    }));
    let read = host.host.data(2, 0, 8, PAGE);
    host.host.submit(read);
    begins.recv().unwrap();
    let before = host.host.device.now_ns();
    host.submit(0, READ, byte_of(50), PAGE as u32);
    let rung = host.host.device.now_ns();
    while host.host.device.now_ns() < rung + READ_NS[2] {}
    let late = host.host.device.now_ns();
    drop((begins, release));
    assert!(host.wait().status().is_success() && host.host.rings[1].wait().status().is_success());
    let arrival = arrivals.lock()[1];
    assert_eq!((arrival.queue, arrival.command.start), (0, byte_of(50)));
    assert!(arrival.time_ns >= before + READ_NS[2], "before it was rung");
    assert!(arrival.time_ns <= late, "when the thread looked");
}

/// The model goes on with what slots leave of the buffer, and touches none.
#[test]
fn the_drive_uses_the_rest_of_the_buffer() {
    let mut host = SlotHost::with_slots(config(Clock::Virtual), FOUR);
    for round in 0..2 {
        for unit in 0..UNITS {
            assert!(unit_is(&mut host, unit, unit as u8));
        }
        assert!((0..4).all(|slot| host.read(slot, 0, 8 * PAGE) == [UNTOUCHED; 8 * PAGE]), "{round}");
    }
    let log = host.log();
    assert!(log.host_puts >= UNITS && log.host_gets > 0, "{log:?}");
    // And with all of it when they are given back.
    assert!(host.ask(HmbIoSlots::default()).status().is_success());
    (0..UNITS).for_each(|unit| assert!(unit_is(&mut host, unit, unit as u8)));
    let mut page = [0; PAGE];
    host.memory[0].read(0, &mut page);
    assert_ne!(page[..8], HmbIoControl::MAGIC, "the first page is the drive's again");
    assert!(host.ask(FOUR).status().is_success());
    (0..UNITS).for_each(|unit| assert!(unit_is(&mut host, unit, unit as u8)));
    // A host that scribbles takes the drive's part away, and no slot.
    let (memory, last) = (Arc::clone(&host.memory[0]), host.data(3).1 + 8 * PAGE);
    memory.fill(last, memory.len() - last, 0x11);
    host.memory[1].fill(0, host.memory[1].len(), 0x11);
    for unit in 0..UNITS {
        assert!(unit_is(&mut host, unit, unit as u8));
    }
    assert_eq!(host.log().host_given_up, 1);
    assert!(host.run(0, READ, byte_of(77), PAGE as u32).is_success());
    assert_eq!(host.read(0, 0, PAGE), [77; PAGE]);
    assert!(host.ask(HmbIoSlots::default()).status().is_success());
    assert!(host.ask(FOUR).status().is(Status::SEQUENCE_ERROR), "there is no buffer any more");
}

#[test]
fn what_a_host_does_to_the_control_block_is_of_no_effect() {
    let mut host = SlotHost::with_slots(config(Clock::Inline), FOUR);
    host.memory[0].fill(0, PAGE, 0xff);
    for slot in 0..4 {
        assert!(host.run(slot, READ, byte_of(8), PAGE as u32).is_success());
        assert_eq!(host.read(slot, 0, PAGE), [8; PAGE]);
    }
}

/// Admin completions that are there now, in their order.
fn there(host: &mut SlotHost) -> Vec<CompletionEntry> {
    std::iter::from_fn(|| host.host.reap(0)).collect()
}

#[test]
fn commands_end_before_what_ends_them() {
    let off = SubmissionEntry { cid: 0x77, ..set_feature(0xc1) };
    let disable = SubmissionEntry { cid: 0x77, ..set_feature(0x0d) };
    for (what, ends, count) in [("C1h", off, 3), ("0Dh", disable, 3), ("Abort", abort(0x101), 1)] {
        let mut host = SlotHost::with_slots(config(Clock::Virtual), FOUR);
        for slot in 0..3 {
            let kind = if slot == 1 { WRITE } else { READ };
            host.submit(slot, kind, byte_of(slot.into()), PAGE as u32);
        }
        host.host.place(0, ends);
        host.host.ring(0);
        let done = there(&mut host);
        assert_eq!(done.len(), count + 1, "{what}: ended at once");
        let (last, ended) = done.split_last().unwrap();
        assert!(last.cid == 0x77 && last.status().is_success() && last.result == 0, "{what}: {last:?}");
        assert!(ended.iter().all(|done| done.status().is(Status::ABORT_REQUESTED)), "{what}: {ended:?}");
        // What was a read writes to no slot any more, and what was a write takes from none.
        host.memory[0].fill(2 * PAGE, 32 * PAGE, UNTOUCHED);
        for _ in 0..3 {
            let seen = host.host.device.events(0);
            host.host.device.wait(0, seen, 10_000);
        }
        let mut left = there(&mut host);
        assert_eq!(left.len(), 3 - count, "{what}");
        left.retain(|done| !done.status().is_success());
        assert!(left.is_empty() && unit_is(&mut host, 1, 1), "{what}: {left:?}");
        let mut bytes = [0; PAGE];
        host.memory[0].read(2 * PAGE + 8 * PAGE, &mut bytes);
        assert_eq!(bytes, [UNTOUCHED; PAGE], "{what}");
        assert_eq!(host.log().hmb_io_ended, count as u64);
        if what == "Abort" {
            assert!(host.run(1, WRITE, byte_of(1), PAGE as u32).is_success(), "its slot is free");
            assert!(unit_is(&mut host, 1, UNTOUCHED));
            let gone = host.host.admin(abort(0x101));
            assert_eq!((gone.status().is_success(), gone.result), (true, 1), "nothing to abort");
        }
    }
}

#[test]
fn a_reset_ends_all() {
    for clock in CLOCKS {
        let mut host = SlotHost::with_slots(config(clock), FOUR);
        for slot in 0..4 {
            host.submit(slot, READ, byte_of(slot.into()), PAGE as u32);
        }
        host.host.device.write32(register::CC, 0x0046_0000);
        host.memory.iter().for_each(|memory| memory.fill(0, memory.len(), UNTOUCHED));
        host.host.enable();
        host.host.create_io();
        assert_eq!(host.feature(), 0, "{clock:?}");
        (0..200).for_each(|unit| assert!(unit_is(&mut host, unit, unit as u8)));
        let mut bytes = vec![0; host.memory[0].len()];
        host.memory[0].read(0, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == UNTOUCHED), "{clock:?}: touched after the reset");
        assert!(host.lend().is_success() && host.ask(FOUR).status().is_success());
        assert!(host.run(0, READ, byte_of(9), PAGE as u32).is_success());
        assert_eq!(host.read(0, 0, PAGE), [9; PAGE]);
    }
}

#[test]
fn a_range_that_is_unmapped_is_not_touched() {
    for clock in CLOCKS {
        let mut host = SlotHost::new(config(clock), 2, 18);
        assert!(host.lend().is_success() && host.ask(FOUR).status().is_success());
        // Two slots in each range.
        assert_eq!(host.control.unwrap().places[2].data.segment, 1);
        let entry = host.submit(3, READ, byte_of(1), PAGE as u32);
        let address = host.addresses[1].unwrap();
        host.host.device.unmap(address);
        host.memory[1].fill(0, host.memory[1].len(), UNTOUCHED);
        let done = host.wait();
        assert_eq!(done.cid, entry.cid);
        // Unless it was quicker.
        let error = Status::DATA_TRANSFER_ERROR;
        assert!(done.status().is(error) || clock != Clock::Virtual && done.status().is_success());
        assert!(host.run(2, WRITE, byte_of(1), PAGE as u32).is(error), "{clock:?}");
        assert!(host.run(0, READ, byte_of(1), PAGE as u32).is_success(), "{clock:?}: another range");
        let mut bytes = vec![0; host.memory[1].len()];
        host.memory[1].read(0, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == UNTOUCHED), "{clock:?}");
        // The metadata's range, too, goes.
        host.host.device.unmap(host.addresses[0].unwrap());
        assert!(host.run(0, READ, byte_of(1), PAGE as u32).is(error), "{clock:?}");
        assert_eq!(host.log().host_given_up, 1);
    }
}

#[test]
fn what_a_smaller_namespace_has_no_more_is_out_of_range() {
    let mut host = SlotHost::with_slots(config(Clock::Virtual), FOUR);
    host.submit(0, READ, byte_of(UNITS - 1), PAGE as u32);
    host.submit(1, WRITE, byte_of(UNITS - 1), PAGE as u32);
    host.host.device.controller().resize(byte_of(UNITS - 1)).unwrap();
    assert_eq!(host.host.rings[0].peek(), None, "both are under way");
    for _ in 0..2 {
        assert!(host.wait().status().is(Status::LBA_OUT_OF_RANGE), "when it is due");
    }
    assert_eq!(host.read(0, 0, PAGE), [UNTOUCHED; PAGE]);
    assert!(host.run(2, READ, byte_of(UNITS - 1), PAGE as u32).is(Status::LBA_OUT_OF_RANGE));
    assert!(host.run(2, READ, byte_of(UNITS - 2), PAGE as u32).is_success());
}

/// Identify and Abort wait for no medium: with a full queue of urgent commands before them they are answered before any
/// time has passed.
#[test]
fn a_flood_leaves_identify_and_abort_answered() {
    for clock in CLOCKS {
        let slots = HmbIoSlots { slots: 5, pages: 1 };
        let mut host = SlotHost::with_slots(config(clock), slots);
        for round in 0..20_u16 {
            (0..5).for_each(|slot| {
                host.place(slot, READ, byte_of(slot.into()), PAGE as u32);
            });
            let asks = match round % 2 {
                0 => SubmissionEntry { opcode: 6, cid: 0x99, cdw10: 1, ..host.host.data(6, 0, 1, PAGE) },
                _ => SubmissionEntry { cid: 0x99, ..abort(0x100) },
            };
            let asks =
                if round % 2 == 0 { SubmissionEntry { nsid: 0, cdw11: 0, cdw12: 0, ..asks } } else { asks };
            host.host.place(0, asks);
            host.host.ring(0);
            let mut before = 0;
            while host.wait().cid != 0x99 {
                before += 1;
            }
            // An Abort is answered behind what it ends; nothing else can be done before time passes.
            let least = usize::from(round % 2);
            assert!(before <= 5, "{clock:?}: {before} completions before it");
            assert!(clock != Clock::Virtual || before == least, "{before} completions before it");
            (before..5).for_each(|_| {
                host.wait();
            });
        }
    }
}

#[test]
fn without_the_offer_there_are_no_such_codes() {
    for offered in [0, 3] {
        let config = ControllerConfig { hmb_io_slots: offered, ..config(Clock::Inline) };
        let mut host = SlotHost::new(config, 1, 64);
        assert!(host.lend().is_success());
        let mut page = vec![0; PAGE];
        let entry =
            SubmissionEntry { nsid: 0, cdw10: 1, cdw11: 0, cdw12: 0, ..host.host.data(6, 0, 1, PAGE) };
        assert!(host.host.admin(entry).status().is_success());
        host.host.memory.read(DATA, &mut page);
        let identify = IdentifyController::read_from_bytes(&page).unwrap();
        let drive = DriveIdentity::of(&identify.vendor).unwrap();
        assert_eq!(drive.offers_hmb_io(), (offered > 0).then_some(offered));
        let effects = u32::from(LogPage::EFFECTS.0) | 1023 << 16;
        let entry = SubmissionEntry { opcode: 2, cdw10: effects, ..entry };
        assert!(host.host.admin(entry).status().is_success());
        host.host.memory.read(DATA, &mut page);
        assert_eq!(page[4 * 0xc4], if offered > 0 { 3 } else { 0 });
        let status = host.ask(FOUR).status();
        let command = HmbIoMetadata::new(READ, 0, 512, 0).command(CommandId(1), 0);
        let done = host.host.admin(command).status();
        if offered == 0 {
            assert!(
                status.is(Status::INVALID_FIELD) && done.is(Status::INVALID_OPCODE),
                "{status:?}, {done:?}"
            );
            let get = SubmissionEntry { opcode: 10, cdw10: 0xc1, ..Default::default() };
            assert!(host.host.admin(get).status().is(Status::INVALID_FIELD));
        } else {
            assert_eq!((status.is_success(), host.granted.slots), (true, 3), "no more than are offered");
        }
    }
}

#[test]
fn faults_meet_commands_of_slots() {
    let fails = |rule: &str, clock| {
        let faults = FaultPlan::parse(rule).unwrap();
        SlotHost::with_slots(ControllerConfig { faults, ..config(clock) }, FOUR)
    };
    for clock in CLOCKS {
        let mut host = fails("fail:op=hmb-io,status=0x281,nth=2", clock);
        assert!(host.run(0, READ, 0, 512).is_success());
        assert!(host.run(0, READ, 0, 512).is(Status::UNRECOVERED_READ));
        assert_eq!(host.read(0, 512, 512), [UNTOUCHED; 512]);
        assert!(host.run(0, READ, 0, 512).is_success());
        assert_eq!(host.host.device.controller().counters().media_errors, 1);

        let mut host = fails("delay:op=hmb-io,us=300;duplicate:op=hmb-io", clock);
        let entry = host.submit(0, READ, byte_of(4), PAGE as u32);
        assert_eq!((host.wait().cid, host.wait().cid), (entry.cid, entry.cid));
        assert_eq!(host.read(0, 0, PAGE), [4; PAGE]);

        for (rule, is_done) in [("drop:op=hmb-io,times=1", false), ("drop:executed,op=hmb-io,times=1", true)]
        {
            let mut host = fails(rule, clock);
            let entry = host.submit(0, WRITE, byte_of(4), PAGE as u32);
            // Through the same plane, so that the other one is done before.
            assert!(host.run(1, READ, byte_of(5), PAGE as u32).is_success());
            assert!(host.host.io(flush()).status().is_success());
            host.host.place(0, abort(entry.cid));
            host.host.ring(0);
            let aborted = [host.wait(), host.wait()];
            let cids = aborted.map(|done| done.cid);
            assert!(cids.contains(&entry.cid) && cids.contains(&0x77), "{clock:?}: {cids:?}");
            let byte = if is_done { UNTOUCHED } else { 4 };
            assert!(unit_is(&mut host, 4, byte), "{clock:?}: {rule}");
        }

        let mut host = fails("stop:op=hmb-io", clock);
        host.submit(0, READ, byte_of(4), PAGE as u32);
        host.host.device.wait(0, u32::MAX, 1000);
        assert_eq!(host.host.rings[0].peek(), None);
        host.host.device.write32(register::CC, 0x0046_0000);
        host.host.enable();
        assert!(host.lend().is_success() && host.ask(FOUR).status().is_success());

        let mut host = fails("die:op=hmb-io", clock);
        host.submit(0, READ, byte_of(4), PAGE as u32);
        while host.host.device.read32(register::CSTS) != u32::MAX {
            host.host.device.events(0);
        }
    }
}

/// Two writes of the same blocks, one through a slot and one through an I/O queue: each block is of one of them; and
/// what follows both reads what is there.
#[test]
fn each_block_is_of_one_of_two_writes() {
    for clock in CLOCKS {
        let mut host = SlotHost::with_slots(config(clock), FOUR);
        for round in 0..30_u8 {
            host.fill(0, 0, 8 * PAGE, 100 + round);
            host.host.memory.fill(DATA, 8 * PAGE, 200 + round);
            let entry = host.host.data(1, 0, 64, 8 * PAGE);
            if round % 2 == 0 {
                host.host.submit(entry);
            }
            host.submit(0, WRITE, 0, 8 * PAGE as u32);
            if round % 2 == 1 {
                host.host.submit(entry);
            }
            assert!(host.wait().status().is_success() && host.host.rings[1].wait().status().is_success());
            assert!(host.run(1, READ, 0, 8 * PAGE as u32).is_success());
            let through_slot = host.read(1, 0, 8 * PAGE);
            host.host.memory.fill(DATA, 8 * PAGE, 0);
            assert!(host.host.io(host.host.data(2, 0, 64, 8 * PAGE)).status().is_success());
            let mut bytes = vec![0; 8 * PAGE];
            host.host.memory.read(DATA, &mut bytes);
            assert!(bytes == through_slot, "{clock:?}: two ways to one medium");
            for block in bytes.chunks(SECTOR) {
                let is_of = |byte: u8| block.iter().all(|&of| of == byte);
                assert!(is_of(100 + round) || is_of(200 + round), "{clock:?}: a torn block");
            }
        }
    }
}

/// A host that consumes no completions loses none.
#[test]
fn completions_wait_for_room() {
    for clock in CLOCKS {
        let mut host = SlotHost::with_slots(config(clock), FOUR);
        // A queue of eight entries has room for seven.
        for filled in [4, ENTRIES - 1] {
            for slot in 0..4 {
                host.submit(slot, READ, byte_of(slot.into()), PAGE as u32);
            }
            while host.host.rings[0].filled() < filled {
                let seen = host.host.device.events(0);
                host.host.device.wait(0, seen, 1000);
            }
        }
        let mut cids: Vec<u16> = (0..8).map(|_| host.wait().cid).collect();
        cids.sort_unstable();
        assert_eq!(cids, [0x100, 0x100, 0x101, 0x101, 0x102, 0x102, 0x103, 0x103], "{clock:?}");
    }
}

/// A drive whose blocks are worn out takes no writes by this way either, and says of which blocks.
#[test]
fn a_drive_that_is_read_only_refuses_writes() {
    let mut drive = profile(64);
    let Medium::Array(array) = &mut drive.medium else { unreachable!("it has dies") };
    array.blocks[0].endurance = 8;
    array.translation = Some(TranslationProfile { buffer_bytes: 0, ..TranslationProfile::default() });
    let config = ControllerConfig { drive: Some(drive), ..config(Clock::Virtual) };
    let mut host = SlotHost::with_slots(config, FOUR);
    let refused = (0..100_000).find(|at| {
        let status = host.run(0, WRITE, byte_of(at * 3 % UNITS), PAGE as u32);
        assert!(status.is_success() || status.is(Status::WRITE_PROTECTED), "{status:?}");
        !status.is_success()
    });
    let refused = refused.expect("blocks wear out") * 3 % UNITS;
    let entry = SubmissionEntry { opcode: 2, nsid: 0, cdw10: 15 << 16 | 1, ..host.host.data(2, 0, 1, PAGE) };
    assert!(host.host.admin(SubmissionEntry { cdw11: 0, cdw12: 0, ..entry }).status().is_success());
    let mut newest = ErrorEntry::new_zeroed();
    host.host.memory.read(DATA, newest.as_mut_bytes());
    assert_eq!((newest.sq_id, newest.cid, newest.lba), (0, 0x100, refused * 8));
    assert!(host.run(0, READ, byte_of(refused), PAGE as u32).is_success());
}

/// What was written with FUA is in flash when it completes, whatever becomes of the process then.
#[test]
fn what_is_written_with_fua_outlives_the_drive() {
    for (fua, used) in [(0, 0), (HmbIoMetadata::FUA, 8)] {
        let place = Place::new("hmb-io");
        let image = place.image();
        let profile = profile(64);
        let open = |size| {
            let path = image.clone();
            Media::file(FileOptions { path, size, flush: Flush::Process, lock: false }).unwrap()
        };
        let media = open(Some(byte_of(UNITS)));
        let drive = KeptDrive::create((&image, &media, Flush::Process), (&profile, "# a drive\n"), false);
        let host = Host::of(Controller::with_kept_drive(config(Clock::Virtual), media, drive.unwrap()));
        let mut host = SlotHost::of(host, 1, 64);
        host.host.enable();
        assert!(host.lend().is_success() && host.ask(FOUR).status().is_success());
        assert!(host.run(0, WRITE | fua, byte_of(10), PAGE as u32).is_success());
        // As a process that is killed. No look was late in simulated time: no program has ended meanwhile.
        std::mem::forget(host);
        let media = open(None);
        let drive = KeptDrive::open((&image, &media, Flush::Process), &profile).unwrap();
        let mut host = Host::of(Controller::with_kept_drive(config(Clock::Virtual), media, drive));
        host.enable();
        let entry = SubmissionEntry { opcode: 6, cdw10: 0, cdw11: 0, cdw12: 0, ..host.data(6, 0, 1, PAGE) };
        assert!(host.admin(entry).status().is_success());
        let mut bytes = [0; PAGE];
        host.memory.read(DATA, &mut bytes);
        assert_eq!(IdentifyNamespace::read_from_bytes(&bytes).unwrap().nuse, used);
    }
}

/// Slots beside a busy queue, a namespace whose size changes and mappings that come and go, each by its own thread.
#[test]
fn slots_work_beside_other_threads() {
    for clock in [Clock::Inline, Clock::Threaded] {
        let mut host = SlotHost::with_slots(config(clock), FOUR);
        let mut ring = host.host.open(2);
        let device = Arc::clone(&host.host.device);
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    (0..6).for_each(|unit| ring.place(ring.data(2, unit * 8, 8, PAGE)));
                    ring.ring();
                    (0..6).for_each(|_| assert!(ring.wait().status().is_success()));
                }
            });
            scope.spawn(|| {
                let memory = Arc::new(Mapping::anonymous(PAGE, Pages::Base).unwrap());
                while !has_ended.load(Ordering::Relaxed) {
                    device.controller().resize(byte_of(UNITS - 1)).unwrap();
                    device.controller().resize(byte_of(UNITS)).unwrap();
                    device.unmap(device.map(Arc::clone(&memory)).unwrap());
                }
            });
            (0..150).for_each(|round| one_round(&mut host, round));
            has_ended.store(true, Ordering::Relaxed);
        });
        assert_eq!(host.log().host_given_up, 0, "{clock:?}");
    }
}

/// Writes units and reads them back, each through a slot; some rounds are cut short.
fn one_round(host: &mut SlotHost, round: u64) {
    for slot in 0..4 {
        let byte = (round + u64::from(slot)) as u8;
        host.fill(slot, 0, PAGE, byte);
        host.place(slot, WRITE, byte_of(round % 60 * 4 + u64::from(slot)), PAGE as u32);
    }
    host.host.ring(0);
    let ends = match round % 10 {
        3 => Some(abort(0x102)),
        6 => Some(SubmissionEntry { cid: 0x77, ..set_feature(0xc1) }),
        9 => Some(SubmissionEntry { cid: 0x77, ..set_feature(0x0d) }),
        _ => None,
    };
    if let Some(entry) = ends {
        host.host.place(0, entry);
        host.host.ring(0);
    }
    for _ in 0..4 + u64::from(ends.is_some()) {
        let done = host.wait();
        let is_ended = ends.is_some() && done.status().is(Status::ABORT_REQUESTED);
        assert!(done.status().is_success() || is_ended, "{round}: {:?}", done.status());
    }
    match round % 10 {
        3 => {}
        6 => assert!(host.ask(FOUR).status().is_success()),
        9 => assert!(host.lend().is_success() && host.ask(FOUR).status().is_success()),
        _ => {
            for slot in 0..4 {
                let unit = round % 60 * 4 + u64::from(slot);
                assert!(host.run(3 - slot, READ, byte_of(unit), PAGE as u32).is_success());
                assert_eq!(host.read(3 - slot, 0, PAGE), [(round + u64::from(slot)) as u8; PAGE]);
            }
        }
    }
}

/// Commands in any order, mappings that go and come, resets, a namespace whose size changes and a host that writes to
/// what it has lent: each command has its status, data is right, and nothing is touched that is not the drive's.
#[test]
fn fuzz_what_a_host_does_with_slots() {
    let passed = AtomicUsize::new(0);
    let mut runner =
        proptest::test_runner::TestRunner::new(ProptestConfig { cases: 96, ..Default::default() });
    let tested = runner.run(&prop::collection::vec(any::<u8>(), 20..900), |bytes| {
        passed.fetch_add(player::play(&bytes), Ordering::Relaxed);
        Ok(())
    });
    tested.unwrap();
    let passed = passed.into_inner();
    assert!(passed > 200, "hardly anything happened: {passed} commands passed through slots");
}
