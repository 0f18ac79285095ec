//! A Dataset Management of several ranges: the drive is told of all of them, and the command ends with the last.

use crate::drive::{record, recorded};
use crate::host::{DATA, Host};
use nvmed_dma::Transport;
use nvmed_flash::{ArrayProfile, BlockKind, Kind, Medium, Profile, TranslationProfile};
use nvmed_nvme::{DsmRange, IdentifyNamespace, Status, SubmissionEntry};
use nvmed_sys::Pages;
use nvmed_vdev::{Arrival, Clock, ControllerConfig, Media};
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

const BYTES: u64 = 4 << 20;
const UNITS: u64 = BYTES / 4096;
/// What a command takes at least.
const COMMAND_NS: u64 = 5000;

/// A host of a drive that takes `commands` at once, all of whose units are written.
fn host(clock: Clock, commands: u32) -> Host {
    let block = BlockKind { per_plane: 48, ..BlockKind::default() };
    let array = ArrayProfile {
        capacity_bytes: BYTES,
        channels: 2,
        command_ns: COMMAND_NS,
        blocks: vec![block],
        planes: 2,
        translation: Some(TranslationProfile::default()),
        ..ArrayProfile::default()
    };
    let drive = Some(Profile { commands, medium: Medium::Array(Box::new(array)) });
    let config = ControllerConfig { drive, clock, ..ControllerConfig::default() };
    let mut host = Host::new(config, Media::ram(BYTES, Pages::Base).unwrap());
    host.memory.fill(DATA, 1 << 20, 0x5a);
    for first in (0..BYTES / 512).step_by(2048) {
        assert!(host.io(host.data(1, first, 2048, 1 << 20)).status().is_success());
    }
    host
}

/// A Dataset Management that deallocates ranges of first block and blocks.
fn deallocate(host: &Host, ranges: &[(u64, u32)]) -> SubmissionEntry {
    for (at, &(lba, blocks)) in ranges.iter().enumerate() {
        let range = DsmRange { attributes: 0, blocks, lba };
        host.memory.write(DATA + at * size_of::<DsmRange>(), range.as_bytes());
    }
    let cdw10 = ranges.len() as u32 - 1;
    SubmissionEntry { cid: 9, cdw10, cdw11: DsmRange::DEALLOCATE, cdw12: 0, ..host.data(9, 0, 1, 4096) }
}

/// Units that the drive maps.
fn mapped(host: &mut Host) -> u64 {
    let at = DATA + 0x10_0000;
    let entry = SubmissionEntry { opcode: 6, nsid: 1, prp1: host.address(at).0, ..Default::default() };
    assert!(host.admin(entry).status().is_success());
    let mut page = IdentifyNamespace::new_zeroed();
    host.memory.read(at, page.as_mut_bytes());
    page.nuse / 8
}

fn spans(arrivals: &[Arrival]) -> Vec<(u64, u64)> {
    assert!(arrivals.iter().all(|arrival| arrival.command.kind == Kind::Deallocate));
    arrivals.iter().map(|arrival| (arrival.command.start / 512, arrival.command.bytes / 512)).collect()
}

#[test]
fn all_ranges_reach_the_drive_one_after_the_other() {
    for (clock, commands) in
        [(Clock::Inline, 1), (Clock::Threaded, 1), (Clock::Virtual, 1), (Clock::Virtual, 4)]
    {
        let mut host = host(clock, commands);
        assert_eq!(mapped(&mut host), UNITS);
        let controller = Arc::clone(host.device.controller());
        let recording = record(&controller);
        // Two halves of a unit, two that overlap, one inside another, an empty one, and one alone.
        let ranges =
            [(804, 4), (0, 16), (8, 16), (400, 64), (416, 8), (77, 0), (800, 4), (BYTES / 512 - 8, 8)];
        assert!(host.io(deallocate(&host, &ranges)).status().is_success());
        let arrivals = recorded(&controller, &recording);
        assert_eq!(spans(&arrivals), [(0, 24), (400, 64), (800, 8), (BYTES / 512 - 8, 8)], "{clock:?}");
        for pair in arrivals.windows(2) {
            assert_eq!(pair[0].due_ns, Some(pair[1].time_ns), "{clock:?}");
            assert_eq!(pair[1].due_ns, Some(pair[1].time_ns + COMMAND_NS), "{clock:?}");
        }
        assert_eq!(mapped(&mut host), UNITS - 3 - 8 - 1 - 1, "{clock:?}");
        assert_eq!(controller.counters().dataset_managements, 1);
        assert!(host.reap(1).is_none(), "{clock:?}: one command, one completion");
        for (lba, byte) in
            [(0, 0), (23, 0), (24, 0x5a), (463, 0), (464, 0x5a), (807, 0), (BYTES / 512 - 1, 0)]
        {
            host.memory.fill(DATA, 512, 1);
            assert!(host.io(host.data(2, lba, 1, 512)).status().is_success());
            let mut block = [1; 512];
            host.memory.read(DATA, &mut block);
            assert_eq!(block, [byte; 512], "{clock:?}: block {lba}");
        }
    }
}

#[test]
fn a_command_may_have_as_many_ranges_as_there_can_be() {
    let mut host = host(Clock::Virtual, 2);
    let controller = Arc::clone(host.device.controller());
    let recording = record(&controller);
    let ranges: Vec<_> = (0..256).rev().map(|at| (at * 16, 8)).collect();
    assert!(host.io(deallocate(&host, &ranges)).status().is_success());
    let arrivals = recorded(&controller, &recording);
    assert_eq!((arrivals.len(), spans(&arrivals)[255]), (256, (255 * 16, 8)));
    assert_eq!(mapped(&mut host), UNITS - 256);
    // Without the attribute there is nothing to deallocate, and one command arrives.
    let recording = record(&controller);
    let hint = SubmissionEntry { cdw11: 1, ..deallocate(&host, &ranges) };
    assert!(host.io(hint).status().is_success());
    assert_eq!(spans(&recorded(&controller, &recording)), [(0, 0)]);
    // With a range that is wrong, none is deallocated, and nothing arrives.
    let recording = record(&controller);
    let wrong = deallocate(&host, &[(8, 8), (BYTES / 512, 1)]);
    assert!(host.io(wrong).status().is(Status::LBA_OUT_OF_RANGE));
    assert!(recorded(&controller, &recording).is_empty());
    assert_eq!(mapped(&mut host), UNITS - 256);
}

#[test]
fn what_waits_for_room_arrives_after_the_last_range() {
    let mut host = host(Clock::Virtual, 1);
    let controller = Arc::clone(host.device.controller());
    let recording = record(&controller);
    host.place(1, deallocate(&host, &[(0, 8), (16, 8), (32, 8)]));
    host.place(1, SubmissionEntry { cid: 10, ..host.data(9, 0, 1, 4096) });
    host.ring(1);
    let first = host.rings[1].wait();
    assert_eq!((first.cid, first.status()), (9, Status::SUCCESS));
    assert_eq!(host.rings[1].wait().cid, 10);
    let arrivals = recorded(&controller, &recording);
    assert_eq!(spans(&arrivals)[..3], [(0, 8), (16, 8), (32, 8)]);
    assert_eq!((arrivals.len(), arrivals[2].due_ns), (4, Some(arrivals[3].time_ns)));
}

#[test]
fn an_aborted_command_tells_the_drive_of_no_further_range() {
    let mut host = host(Clock::Virtual, 4);
    let controller = Arc::clone(host.device.controller());
    let recording = record(&controller);
    let ranges: Vec<_> = (0..100).map(|at| (at * 16, 8)).collect();
    host.submit(deallocate(&host, &ranges));
    // Some ranges are done, and the Abort comes before the others.
    host.device.wait(999, 0, 20 * COMMAND_NS as u32 / 1000);
    let abort = SubmissionEntry { opcode: 8, cdw10: 1 | 9 << 16, ..Default::default() };
    assert_eq!(host.admin(abort).result, 0);
    assert!(host.rings[1].wait().status().is(Status::ABORT_REQUESTED));
    host.device.wait(999, 0, 1_000_000);
    let told = recorded(&controller, &recording).len();
    assert!((10..50).contains(&told), "{told}");
    // Its place serves others.
    let recording = record(&controller);
    assert!(host.io(deallocate(&host, &[(8, 8), (24, 8)])).status().is_success());
    assert_eq!(spans(&recorded(&controller, &recording)), [(8, 8), (24, 8)]);
    assert_eq!(mapped(&mut host), UNITS - told as u64 - 2);
}
