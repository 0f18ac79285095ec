//! Commands to a drive: when they arrive, when they are due, and what else becomes of them.

use crate::host::{DATA, Host, Ring};
use nvmed_dice::Dice;
use nvmed_dma::{Transport, Waited};
use nvmed_flash::{
    ArrayProfile, BlockKind, FixedProfile, Flash, Kind, Medium, Profile, Rate, TranslationProfile,
};
use nvmed_nvme::{Status, SubmissionEntry, register};
use nvmed_sys::Pages;
use nvmed_vdev::{
    Arrival, Backing, Clock, Controller, ControllerConfig, DriveEvent, FaultPlan, Media, Replay, Replayed,
};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

const CLOCKS: [Clock; 3] = [Clock::Inline, Clock::Threaded, Clock::Virtual];
/// What a read takes in the tests that do not say; no multiple of what a look takes.
const READ_NS: u64 = 10_007;

/// A drive that takes `commands` at once.
fn drive(commands: u32) -> Profile {
    let fixed = FixedProfile { read_ns: READ_NS, write_ns: 3 * READ_NS, link: Rate::UNLIMITED };
    Profile { commands, ..Profile::fixed(fixed) }
}

/// A drive of flash memory with a translation layer, that takes three commands at once.
fn flash() -> Profile {
    let times = (vec![4000], vec![20_000]);
    let block =
        BlockKind { read_ns: times.0, program_ns: times.1, erase_ns: 300_000, ..BlockKind::default() };
    let array = ArrayProfile {
        capacity_bytes: 1 << 20,
        channels: 2,
        registers: 2,
        bus_out: Rate { bytes: 4096, ns: 1000 },
        bus_in: Rate { bytes: 4096, ns: 1000 },
        command_ns: 500,
        blocks: vec![block],
        translation: Some(TranslationProfile::default()),
        ..ArrayProfile::default()
    };
    Profile { commands: 3, medium: Medium::Array(Box::new(array)) }
}

fn host(clock: Clock, drive: Profile, rules: &str) -> Host {
    let faults = FaultPlan::parse(rules).unwrap();
    let config = ControllerConfig { clock, drive: Some(drive), faults, ..ControllerConfig::default() };
    Host::new(config, Media::ram(1 << 20, Pages::Base).unwrap())
}

fn read(ring: &Ring, cid: u16) -> SubmissionEntry {
    SubmissionEntry { cid, ..ring.data(2, u64::from(cid) * 8, 8, 4096) }
}

fn abort(queue: u16, cid: u16) -> SubmissionEntry {
    SubmissionEntry { opcode: 8, cdw10: u32::from(queue) | u32::from(cid) << 16, ..Default::default() }
}

/// What a controller's drive is told from now on.
pub fn record(controller: &Controller) -> Receiver<DriveEvent> {
    let (sender, receiver) = channel();
    controller.record_events(Box::new(move |event| {
        let _ = event.map(|event| sender.send(*event));
    }));
    receiver
}

/// What has arrived since then.
pub fn recorded(controller: &Controller, recording: &Receiver<DriveEvent>) -> Vec<Arrival> {
    controller.end_recording();
    recording.iter().filter_map(|event| event.arrival().copied()).collect()
}

/// The arrivals again, in a fresh drive: each is due at the time at which it was.
fn replay(profile: &Profile, arrivals: &[Arrival]) {
    let mut replay = Replay::new(profile, Flash::new(profile).unwrap());
    for arrival in arrivals {
        assert!(arrival.due_ns.is_some());
        replay.tell(&DriveEvent::Arrival(*arrival)).unwrap();
    }
    let commands = arrivals.len() as u64;
    assert_eq!(replay.end(), Replayed { commands, ..Replayed::default() });
}

#[test]
fn what_a_thread_recorded_is_due_at_the_same_times_in_virtual_time() {
    let fixed = FixedProfile { read_ns: 4000, write_ns: 9000, link: Rate::per_second(2 << 30) };
    let fixed = Profile { commands: 3, ..Profile::fixed(fixed) };
    for (clock, profile) in CLOCKS.into_iter().flat_map(|clock| [(clock, fixed.clone()), (clock, flash())]) {
        let mut host = host(clock, profile.clone(), "");
        let mut rings = [host.open(2), host.open(3)];
        let controller = Arc::clone(host.device.controller());
        let recording = record(&controller);
        let mut dice = Dice::new(7);
        for _ in 0..200 {
            let mut left = [0, 0];
            for (ring, left) in rings.iter_mut().zip(&mut left) {
                for cid in 0..dice.next() % 7 {
                    let opcode = 1 + (dice.next() % 2) as u8;
                    let blocks = 1 + (dice.next() % 8) as u32;
                    let entry = ring.data(opcode, dice.next() % 100, blocks, 4096);
                    ring.place(SubmissionEntry { cid: cid as u16, ..entry });
                    ring.ring();
                    *left += 1;
                }
            }
            for (ring, left) in rings.iter_mut().zip(left) {
                (0..left).for_each(|_| assert!(ring.wait().status().is_success()));
            }
        }
        let arrivals = recorded(&controller, &recording);
        assert!(arrivals.len() > 500, "{clock:?}");
        assert!(arrivals.iter().any(|arrival| arrival.command.kind == Kind::Write { fua: false }));
        replay(&profile, &arrivals);
        assert!(recorded(&controller, &recording).is_empty());
    }
}

/// The same doorbells at the same times, with looks at different times between them.
#[test]
fn times_do_not_depend_on_who_looks_when() {
    let run = |looks: bool| {
        let mut host = host(Clock::Virtual, drive(3), "");
        let mut rings = [host.open(2), host.open(3)];
        let device = Arc::clone(&host.device);
        let recording = record(device.controller());
        let mut dice = Dice::new(3);
        let mut clock_us = device.now_ns() / 1000 + 1;
        let mut now = device.now_ns();
        for round in 0..100 {
            clock_us += 1 + dice.next() % 60;
            if looks {
                while now + 100 < clock_us * 1000 {
                    now = device.now_ns();
                }
            }
            // A look takes a multiple of 50 ns, so both ways arrive at the very time.
            while now < clock_us * 1000 {
                now = device.now_ns();
                let left_us = (clock_us * 1000).saturating_sub(now) / 1000;
                if left_us > 0 {
                    assert_eq!(device.wait(999, 0, left_us as u32), Waited::Timeout);
                }
            }
            assert_eq!(now, clock_us * 1000);
            let ring = &mut rings[(dice.next() % 2) as usize];
            while ring.reap().is_some() {}
            for cid in 0..1 + dice.next() % 3 {
                ring.place(read(ring, (round + cid) as u16 % 100));
            }
            ring.ring();
        }
        device.wait(999, 0, 10_000_000);
        recorded(device.controller(), &recording)
    };
    let (often, rarely) = (run(true), run(false));
    assert_eq!(often.len(), rarely.len());
    assert!(often == rarely);
    replay(&drive(3), &often);
    let late = often.iter().filter(|arrival| often.iter().any(|other| other.due_ns == Some(arrival.time_ns)));
    assert!(late.count() > 20, "many waited for a completion, and arrived at its time");
}

/// A medium whose first read of block 0 waits for the test, and with it the device thread.
#[derive(Debug)]
struct Gate {
    entered: Mutex<Sender<()>>,
    open: Mutex<Receiver<()>>,
}

impl Backing for Gate {
    fn bytes(&self) -> u64 {
        1 << 20
    }

    fn read(&self, offset: u64, _to: &mut [u8]) -> Result<(), Status> {
        if offset == 0 {
            self.entered.lock().unwrap().send(()).unwrap();
            self.open.lock().unwrap().recv().unwrap();
        }
        Ok(())
    }

    fn write(&self, _offset: u64, _from: &[u8]) -> Result<(), Status> {
        Ok(())
    }

    fn zero(&self, _offset: u64, _len: u64, _release: bool) -> Result<(), Status> {
        Ok(())
    }

    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }
}

#[test]
fn each_doorbell_has_its_own_time_however_late_the_thread_looks() {
    let (entered, has_entered) = channel();
    let (open, opened) = channel();
    let gate = Gate { entered: Mutex::new(entered), open: Mutex::new(opened) };
    let profile = drive(2);
    let config = ControllerConfig {
        clock: Clock::Threaded,
        drive: Some(profile.clone()),
        ..ControllerConfig::default()
    };
    let mut host = Host::new(config, Media::backed(Box::new(gate)).unwrap());
    let device = Arc::clone(&host.device);
    let mut other = host.open(2);
    let recording = record(device.controller());
    host.submit(read(&host.rings[1], 0));
    has_entered.recv().unwrap();
    // The thread is in the middle of command 0. Six doorbells of one queue, and one of another.
    let mut times = Vec::new();
    for cid in 1..7 {
        host.place(1, read(&host.rings[1], cid));
        times.push(device.now_ns());
        host.ring(1);
    }
    other.place(read(&other, 7));
    times.push(device.now_ns());
    other.ring();
    times.push(device.now_ns());
    open.send(()).unwrap();
    (0..7).for_each(|_| assert!(host.rings[1].wait().status().is_success()));
    assert!(other.wait().status().is_success());
    let arrivals = recorded(device.controller(), &recording);
    assert_eq!(arrivals.len(), 8);
    replay(&profile, &arrivals);
    // Each arrived at its doorbell's time, or at the completion's that made room for it.
    let due: Vec<u64> = arrivals.iter().map(|arrival| arrival.due_ns.unwrap()).collect();
    for (at, arrival) in arrivals.iter().enumerate().skip(1) {
        let rung = (times[at - 1], times[at]);
        let freed = if at >= 2 { due[at - 2] } else { 0 };
        if freed > rung.1 {
            assert_eq!(arrival.time_ns, freed, "{at}");
        } else if freed < rung.0 {
            assert!((rung.0..=rung.1).contains(&arrival.time_ns), "{at}: {arrival:?}, {rung:?}");
        }
    }
}

#[test]
fn the_window_stays_whole() {
    let mut host = host(Clock::Virtual, drive(4), "");
    let device = Arc::clone(&host.device);
    let delete = SubmissionEntry { opcode: 0, cdw10: 1, ..Default::default() };
    let mut dice = Dice::new(1);
    let mut aborted = 0;
    for round in 0..100_000u32 {
        for cid in 0..1 + (dice.next() % 6) as u16 {
            host.place(1, read(&host.rings[1], cid));
        }
        host.ring(1);
        match round % 16 {
            0 => {
                assert!(host.admin(delete).status().is_success());
                let close = SubmissionEntry { opcode: 4, cdw10: 1, ..Default::default() };
                assert!(host.admin(close).status().is_success());
                host.rings[1].reset();
                host.memory.fill(0x3000, 0x2000, 0);
                host.create_io();
            }
            8 => {
                device.write32(register::CC, 0);
                host.enable();
                host.create_io();
            }
            _ => {
                // In the drive or, where that is full, still in its queue, where an Abort does not find it.
                let cid = (dice.next() % 5) as u16;
                aborted += 1 - host.admin(abort(1, cid)).result;
                while host.tail(1) != u32::from(host.rings[1].reaped()) {
                    host.rings[1].wait();
                }
                assert!(host.reap(1).is_none(), "round {round}: what ended with its queue completes no more");
            }
        }
    }
    assert!(aborted > 40_000, "{aborted}");
    let recording = record(device.controller());
    device.wait(999, 0, 1_000_000);
    for cid in 0..7 {
        host.place(1, read(&host.rings[1], cid));
    }
    let begin = device.now_ns();
    host.ring(1);
    (0..7).for_each(|_| assert!(host.rings[1].wait().status().is_success()));
    let after = |arrival: &Arrival| arrival.time_ns - begin;
    let times: Vec<u64> = recorded(device.controller(), &recording).iter().map(after).collect();
    assert_eq!(times, [0, 0, 0, 0, READ_NS, READ_NS, READ_NS], "four at once");
}

#[test]
fn an_aborted_command_completes_at_once_and_is_not_executed() {
    for clock in CLOCKS {
        let slow = FixedProfile { read_ns: 0, write_ns: 3_600_000_000_000, link: Rate::UNLIMITED };
        let mut host = host(clock, Profile::fixed(slow), "");
        host.memory.fill(DATA, 4096, 0x77);
        host.submit(SubmissionEntry { cid: 9, ..host.data(1, 0, 8, 4096) });
        // The write is under way before the admin queue is looked at.
        assert!(host.io(read(&host.rings[1], 3)).status().is_success());
        assert_eq!(host.admin(abort(1, 9)).result, 0, "{clock:?}");
        let done = host.rings[1].wait();
        assert_eq!((done.cid, done.status()), (9, Status::ABORT_REQUESTED));
        assert!(host.io(host.data(2, 0, 8, 4096)).status().is_success());
        assert_eq!(host.memory.u8(DATA).load(Ordering::Relaxed), 0, "{clock:?}");
        assert_eq!(host.device.controller().counters().aborted, 1);
    }
}

#[test]
fn a_full_completion_queue_holds_up_no_other_queue() {
    for clock in CLOCKS {
        let mut host = host(clock, drive(1), "");
        let mut other = host.open(2);
        // Seven fill the completion queue; seven more are executed and wait for room.
        for half in 0..2 {
            for cid in 0..7 {
                host.place(1, read(&host.rings[1], 7 * half + cid));
            }
            host.ring(1);
            while half == 0 && host.rings[1].filled() < 7 {
                let seen = host.device.events(1);
                if host.rings[1].filled() < 7 {
                    host.device.wait(1, seen, 1_000_000);
                }
            }
        }
        for cid in 0..20 {
            assert!(other.run(read(&other, cid)).status().is_success(), "{clock:?}");
        }
        assert_eq!(host.device.controller().counters().reads, 34, "{clock:?}: executed when they were due");
        let done: Vec<u16> = (0..14).map(|_| host.rings[1].wait().cid).collect();
        assert_eq!(done, (0..14).collect::<Vec<_>>(), "{clock:?}");
    }
}

#[test]
fn faults_act_after_the_drives_time_and_give_its_place_back() {
    let rules = "delay:us=50,op=read,lba=0..1;drop:op=read,lba=8..9;drop:executed,op=write,lba=16..17;\
                 fail:status=0x281,op=read,lba=24..25;duplicate:op=read,lba=32..33";
    for clock in CLOCKS {
        let mut host = host(clock, drive(1), rules);
        let device = Arc::clone(&host.device);
        let recording = record(device.controller());
        let begin = device.now_ns();
        host.memory.fill(DATA, 4096, 0x55);
        host.place(1, SubmissionEntry { cid: 2, ..host.data(1, 16, 8, 4096) });
        for cid in [1, 0, 3, 4] {
            host.place(1, read(&host.rings[1], cid));
        }
        host.ring(1);
        let done: Vec<(u16, bool)> =
            (0..4).map(|_| host.rings[1].wait()).map(|done| (done.cid, done.status().is_success())).collect();
        let mut sorted = done.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [(0, true), (3, false), (4, true), (4, true)], "{clock:?}");
        assert!(device.now_ns() - begin >= 3 * READ_NS + 2 * READ_NS + 50_000, "{clock:?}");
        if clock == Clock::Virtual {
            assert_eq!(done[3], (0, true), "the delayed one is the last");
        }
        assert_eq!(host.admin(abort(1, 1)).result, 0, "a dropped one is there to be aborted");
        assert_eq!(host.admin(abort(1, 2)).result, 0);
        assert_eq!([host.rings[1].wait().cid, host.rings[1].wait().cid], [1, 2]);
        let arrivals = recorded(device.controller(), &recording);
        assert_eq!(arrivals.len(), 5);
        replay(&drive(1), &arrivals);
        assert!(host.io(host.data(2, 17, 1, 512)).status().is_success());
        assert_eq!(host.memory.u8(DATA).load(Ordering::Relaxed), 0x55, "executed, and lost its completion");
    }
}

#[test]
fn a_command_that_fails_never_reaches_the_drive() {
    for clock in CLOCKS {
        let mut host = host(clock, drive(1), "");
        let recording = record(host.device.controller());
        assert!(host.io(host.data(2, 1 << 40, 8, 4096)).status().is(Status::LBA_OUT_OF_RANGE), "{clock:?}");
        let unknown = SubmissionEntry { opcode: 0x70, nsid: 1, ..Default::default() };
        assert!(host.io(unknown).status().is(Status::INVALID_OPCODE));
        assert!(recorded(host.device.controller(), &recording).is_empty());
    }
}

#[test]
fn a_removed_controller_executes_nothing_more() {
    for clock in CLOCKS {
        let mut host = host(clock, drive(2), "");
        for cid in 0..5 {
            host.place(1, read(&host.rings[1], cid));
        }
        let controller = Arc::clone(host.device.controller());
        if clock != Clock::Threaded {
            host.ring(1);
        }
        controller.remove();
        let before = controller.counters().reads;
        host.ring(1);
        host.device.wait(999, 0, 100);
        assert_eq!(controller.counters().reads, before, "{clock:?}");
    }
}
