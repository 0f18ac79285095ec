//! What a host can count on when a controller goes wrong by plan, and what abort and reset do then.

use crate::host::{DATA, Host};
use nvmed_dma::{Transport, Waited};
use nvmed_flash::{FixedProfile, Profile};
use nvmed_nvme::{Status, SubmissionEntry, register};
use nvmed_sys::Pages;
use nvmed_vdev::{Clock, Controller, ControllerConfig, FaultPlan, Media};
use std::sync::Arc;

const CLOCKS: [Clock; 3] = [Clock::Inline, Clock::Threaded, Clock::Virtual];

fn ram() -> Media {
    Media::ram(1 << 20, Pages::Base).unwrap()
}

fn host(clock: Clock, rules: &str) -> Host {
    let faults = FaultPlan::parse(rules).unwrap();
    Host::new(ControllerConfig { clock, faults, ..ControllerConfig::default() }, ram())
}

fn read(host: &Host, lba: u64, cid: u16) -> SubmissionEntry {
    SubmissionEntry { cid, ..host.data(2, lba, 8, 4096) }
}

fn abort(queue: u16, cid: u16) -> SubmissionEntry {
    let cdw10 = u32::from(queue) | u32::from(cid) << 16;
    SubmissionEntry { opcode: 8, cdw10, ..Default::default() }
}

/// Waits until the controller has been round its queues: a device thread that saw two doorbells at once may
/// serve the admin queue first, but not its next command as well.
fn after_a_round(host: &mut Host) {
    for _ in 0..2 {
        let get_features = SubmissionEntry { opcode: 0x0a, cdw10: 1, ..Default::default() };
        assert!(host.admin(get_features).status().is_success());
    }
}

fn reset(host: &mut Host) {
    host.device.write32(register::CC, 0);
    host.enable();
    host.create_io();
}

fn controller(host: &Host) -> &Controller {
    host.device.controller()
}

#[test]
fn a_dropped_command_is_aborted_and_the_queue_goes_on() {
    for clock in CLOCKS {
        let mut host = host(clock, "drop:op=read,lba=100..200,nth=2,times=1");
        assert!(host.io(read(&host, 100, 1)).status().is_success(), "the first is not the second");
        host.submit(read(&host, 193, 7));
        host.submit(read(&host, 150, 8));
        assert_eq!(host.rings[1].wait().cid, 8, "{clock:?}: only one is dropped");
        assert!(host.reap(1).is_none());
        assert_eq!(host.admin(abort(1, 9)).result, 1, "no such command");
        assert_eq!(host.admin(abort(1, 7)).result, 0);
        let done = host.reap(1).expect("before the completion of the Abort");
        assert_eq!((done.cid, done.status()), (7, Status::ABORT_REQUESTED));
        assert_eq!(host.admin(abort(1, 7)).result, 1, "it is gone");
        assert!(host.io(read(&host, 150, 9)).status().is_success());
        assert_eq!(controller(&host).counters().aborted, 1);
    }
}

#[test]
fn a_reset_ends_what_is_held_and_the_plan_goes_on() {
    for clock in CLOCKS {
        let mut host = host(clock, "drop:op=write,executed,times=1;drop:op=write,nth=2,times=1");
        for lba in [0, 8] {
            host.memory.fill(DATA, 4096, 0x11 + lba as u8);
            host.submit(SubmissionEntry { cid: 3, ..host.data(1, lba, 8, 4096) });
            after_a_round(&mut host);
        }
        reset(&mut host);
        assert!(host.reap(1).is_none(), "{clock:?}");
        for (lba, byte) in [(0u64, 0x11u8), (8, 0)] {
            assert!(host.io(host.data(2, lba, 8, 4096)).status().is_success());
            let found = host.memory.u8(DATA).load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(found, byte, "one was executed and lost its completion, one was lost itself");
        }
        assert!(host.io(host.data(1, 8, 8, 4096)).status().is_success(), "the rules are spent");
    }
}

#[test]
fn a_delayed_command_completes_late_or_is_aborted() {
    for clock in CLOCKS {
        let mut host = host(clock, "delay:us=3000,op=read");
        let device = Arc::clone(&host.device);
        let begin = device.now_ns();
        let done = host.io(read(&host, 0, 4));
        assert!(done.status().is_success() && device.now_ns() - begin >= 3_000_000, "{clock:?}");
        host.submit(read(&host, 0, 5));
        assert!(host.io(SubmissionEntry { opcode: 0, nsid: 1, cid: 6, ..Default::default() }).cid == 6);
        assert_eq!(host.admin(abort(1, 5)).result, 0);
        assert_eq!(host.rings[1].wait().status(), Status::ABORT_REQUESTED);
    }
}

#[test]
fn completions_that_are_not_what_they_should_be() {
    type Look = fn(nvmed_nvme::CompletionEntry) -> bool;
    let looks: [(&str, Look); 4] = [
        ("corrupt:cid", |done| done.cid == 5 ^ 0x8000),
        ("corrupt:status", |done| done.status() == Status(0x7ff)),
        ("corrupt:sqid", |done| done.sq_id == 1 ^ 0x8000),
        ("corrupt:head", |done| done.sq_head == u16::MAX),
    ];
    for (rule, look) in looks {
        let mut host = host(Clock::Inline, &format!("{rule},times=1"));
        host.submit(read(&host, 0, 5));
        assert!(look(host.reap(1).unwrap()), "{rule}");
        assert!(host.io(read(&host, 0, 6)).status().is_success());
    }
    let mut host = host(Clock::Inline, "corrupt:phase,times=1;duplicate:nth=2,times=1");
    host.submit(read(&host, 0, 5));
    assert!(host.reap(1).is_none(), "posted, but not to be seen");
    host.rings[1].skip();
    host.submit(read(&host, 0, 6));
    let done: Vec<u16> = std::iter::from_fn(|| host.reap(1)).map(|done| done.cid).collect();
    assert_eq!(done, [6, 6], "twice");
}

#[test]
fn a_bad_range_fails_and_the_log_names_its_block() {
    let mut host = host(Clock::Inline, "fail:status=0x281,lba=10..20");
    assert!(host.io(read(&host, 20, 1)).status().is_success());
    assert!(host.io(read(&host, 2, 1)).status().is_success());
    let done = host.io(read(&host, 4, 9));
    assert!(done.status().is(Status::UNRECOVERED_READ));
    let log =
        SubmissionEntry { opcode: 2, cdw10: 1 | 15 << 16, prp1: host.address(DATA).0, ..Default::default() };
    assert!(host.admin(log).status().is_success());
    let mut entry = [0; 64];
    host.memory.read(DATA, &mut entry);
    assert_eq!((entry[10], entry[16]), (9, 10), "command identifier and first bad block");
    let counters = controller(&host).counters();
    assert_eq!((counters.errors, counters.media_errors, counters.bytes_read), (1, 1, 8192));
}

#[test]
fn a_stopped_controller_is_cured_by_a_reset_unless_it_is_sticky() {
    for clock in CLOCKS {
        for (rule, csts) in [("stop:nth=2", 1), ("fatal:nth=2", 3)] {
            let faults = FaultPlan::parse(rule).unwrap();
            let config = ControllerConfig { clock, faults: faults.clone(), ..ControllerConfig::default() };
            let mut host = Host::new(config, ram());
            assert!(host.io(read(&host, 0, 1)).status().is_success());
            host.submit(read(&host, 0, 2));
            while faults.hits(0) == 0 {
                host.device.wait(99, 0, 1000);
            }
            host.place(0, abort(1, 2));
            host.ring(0);
            let seen = host.device.events(0);
            assert!(csts == 3 || host.device.wait(0, seen, 2000) == Waited::Timeout, "{clock:?}, {rule}");
            while csts == 3 && host.device.read32(register::CSTS) & 2 == 0 {
                host.device.wait(0, seen, 1000);
            }
            assert!(host.reap(0).is_none() && host.reap(1).is_none(), "{clock:?}, {rule}");
            assert_eq!(host.device.read32(register::CSTS), csts);
            reset(&mut host);
            assert!(host.io(read(&host, 0, 3)).status().is_success(), "{clock:?}, {rule}");
        }
    }
    let mut host = host(Clock::Inline, "fatal:sticky");
    host.submit(read(&host, 0, 1));
    host.device.write32(register::CC, 0);
    assert_eq!(host.device.read32(register::CSTS), 0);
    host.enable();
    assert_eq!(host.device.read32(register::CSTS) & 3, 2, "not ready, and fatal again");
}

#[test]
fn a_controller_that_never_becomes_ready() {
    let faults = FaultPlan::parse("not-ready:times=2").unwrap();
    let mut host = Host::disabled(ControllerConfig { faults: faults.clone(), ..Default::default() }, ram());
    for round in 1..=2 {
        host.enable();
        assert_eq!((host.device.read32(register::CSTS), faults.hits(0)), (0, round));
        host.device.write32(register::CC, 0);
    }
    host.enable();
    assert_eq!(host.device.read32(register::CSTS), 1);
}

#[test]
fn a_controller_that_is_pulled_out_reads_as_all_ones() {
    for clock in CLOCKS {
        for planned in [true, false] {
            let mut host = host(clock, if planned { "die" } else { "" });
            let seen = host.device.events(1);
            if planned {
                host.submit(read(&host, 0, 1));
            } else {
                controller(&host).remove();
                host.submit(read(&host, 0, 1));
            }
            assert_eq!(host.device.wait(1, seen, 30_000_000), Waited::Event, "who waits is told");
            assert_eq!(host.device.read64(register::CAP), u64::MAX);
            assert_eq!(host.device.read32(register::CSTS), u32::MAX);
            host.device.write32(register::CC, 0);
            host.device.write32(register::CC, 0x0046_0001);
            host.ring(0);
            assert!(host.reap(0).is_none() && host.reap(1).is_none(), "{clock:?}");
            assert_eq!(host.device.read32(register::CSTS), u32::MAX);
        }
    }
}

#[test]
fn a_test_changes_the_plan_while_the_controller_runs() {
    let faults = FaultPlan::default();
    let config = ControllerConfig { faults: faults.clone(), ..ControllerConfig::default() };
    let mut host = Host::new(config, ram());
    assert!(host.io(read(&host, 0, 1)).status().is_success());
    let rule = faults.add("fail:status=0x4280,op=write,every=2".parse().unwrap()).unwrap();
    let statuses: Vec<bool> =
        (0..4).map(|_| host.io(host.data(1, 0, 8, 4096)).status().is_success()).collect();
    assert_eq!((statuses, faults.hits(rule)), (vec![false, true, false, true], 2));
    faults.clear();
    assert!(host.io(host.data(1, 0, 8, 4096)).status().is_success());
}

#[test]
fn admin_commands_fail_and_hang_by_plan() {
    for clock in CLOCKS {
        let mut host =
            host(clock, "drop:op=abort,times=1;fail:status=0x6,op=get-features;drop:op=read,times=1");
        host.submit(read(&host, 0, 5));
        host.place(0, SubmissionEntry { cid: 77, ..abort(1, 5) });
        host.ring(0);
        let features = SubmissionEntry { opcode: 0x0a, cdw10: 1, ..Default::default() };
        assert!(host.admin(features).status().is(Status::INTERNAL_ERROR), "{clock:?}");
        assert!(host.reap(0).is_none() && host.reap(1).is_none(), "the abort hangs, too");
        assert_eq!(host.admin(abort(0, 77)).result, 0);
        let done = host.rings[0].wait();
        assert_eq!((done.cid, done.status()), (77, Status::ABORT_REQUESTED));
        assert_eq!(host.admin(abort(1, 5)).result, 0);
        assert_eq!(host.rings[1].wait().status(), Status::ABORT_REQUESTED);
    }
}

#[test]
fn aborts_have_a_limit() {
    let mut host = host(Clock::Inline, "drop:op=abort,times=4");
    for cid in 0..4 {
        host.place(0, SubmissionEntry { cid, ..abort(1, 5) });
        host.ring(0);
    }
    assert!(host.admin(abort(1, 5)).status().is(Status::ABORT_LIMIT));
}

#[test]
fn a_deleted_queue_leaves_nothing_behind() {
    for clock in CLOCKS {
        let mut host = host(clock, "drop:op=read");
        host.submit(read(&host, 0, 5));
        after_a_round(&mut host);
        let delete = SubmissionEntry { opcode: 0, cdw10: 1, ..Default::default() };
        assert!(host.admin(delete).status().is_success());
        let done = host.reap(1).unwrap();
        assert_eq!((done.cid, done.status().is(Status::SQ_DELETED)), (5, true), "{clock:?}");
        reset(&mut host);
        assert!(host.io(SubmissionEntry { opcode: 0, nsid: 1, ..Default::default() }).status().is_success());
    }
}

/// A completion queue that is full when held commands come due: they follow, and nobody spins meanwhile.
#[test]
fn held_commands_wait_for_room() {
    for clock in CLOCKS {
        let drive = Some(Profile::fixed(FixedProfile { read_ns: 50_000, ..FixedProfile::default() }));
        let config = ControllerConfig { clock, drive, ..ControllerConfig::default() };
        let mut host = Host::new(config, ram());
        let mut done = Vec::new();
        for cid in 0..14 {
            host.place(1, read(&host, 0, cid));
            if cid == 6 {
                host.ring(1);
                while host.rings[1].filled() < 7 {
                    let seen = host.device.events(1);
                    if host.rings[1].filled() < 7 {
                        host.device.wait(1, seen, 1_000_000);
                    }
                }
            }
        }
        host.ring(1);
        after_a_round(&mut host);
        let seen = host.device.events(9);
        assert_eq!(host.device.wait(9, seen, 2000), Waited::Timeout);
        while done.len() < 14 {
            done.push(host.rings[1].wait().cid);
        }
        assert_eq!(done, (0..14).collect::<Vec<_>>(), "{clock:?}: each once, in order");
    }
}
