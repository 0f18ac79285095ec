//! Media that take time, in real and in simulated time.

use crate::host::Host;
use nvmed_dma::{Transport, Waited};
use nvmed_flash::{FixedProfile, Profile, Rate};
use nvmed_nvme::SubmissionEntry;
use nvmed_sys::Pages;
use nvmed_vdev::{Clock, ControllerConfig, Media, VIRTUAL_LOOK_NS};
use std::sync::Arc;

fn host(clock: Clock, fixed: FixedProfile) -> Host {
    let drive = Some(Profile::fixed(fixed));
    let config = ControllerConfig { clock, drive, ..ControllerConfig::default() };
    Host::new(config, Media::ram(1 << 20, Pages::Base).unwrap())
}

fn read(host: &Host, cid: u16) -> SubmissionEntry {
    SubmissionEntry { cid, ..host.data(2, 0, 8, 4096) }
}

#[test]
fn simulated_time_passes_by_looks_and_by_waits() {
    let mut host =
        host(Clock::Virtual, FixedProfile { read_ns: 50_000, write_ns: 7_000, link: Rate::UNLIMITED });
    let device = Arc::clone(&host.device);
    let begin = device.now_ns();
    assert_eq!(device.now_ns() - begin, VIRTUAL_LOOK_NS);
    host.place(1, read(&host, 1));
    host.place(1, SubmissionEntry { cid: 2, ..host.data(1, 0, 8, 4096) });
    host.ring(1);
    let rung = begin + VIRTUAL_LOOK_NS;
    assert_eq!(device.wait(1, device.events(1), 5), Waited::Timeout);
    assert_eq!(device.wait(1, device.events(1), 100), Waited::Event);
    assert_eq!(host.reap(1).unwrap().cid, 2, "the write is faster");
    assert_eq!(device.now_ns() - rung, 7_000 + VIRTUAL_LOOK_NS);
    assert!(host.reap(1).is_none());
    let mut looks = 0;
    while host.reap(1).is_none() {
        device.events(1);
        looks += 1;
    }
    assert_eq!(looks, (50_000 - 7_000 - VIRTUAL_LOOK_NS) / VIRTUAL_LOOK_NS, "a poller sees time pass");
    assert_eq!(device.wait(1, device.events(1), 1_000_000), Waited::Timeout);
    assert_eq!(device.wait(999, 0, 1_000_000), Waited::Timeout, "an hour costs nothing");
    assert!(device.now_ns() > 2_000_000_000);
    assert!(device.event_fd(1).is_none(), "nothing happens outside of calls");
}

#[test]
fn the_same_calls_take_the_same_simulated_time() {
    let times = |_| {
        let latency = FixedProfile { read_ns: 10_000, write_ns: 20_000, link: Rate::per_second(1 << 30) };
        let mut host = host(Clock::Virtual, latency);
        let device = Arc::clone(&host.device);
        let mut times = Vec::new();
        for round in 0..200u64 {
            let entry = host.data(1 + (round % 3 == 0) as u8, round % 100, 1 + (round % 8) as u32, 4096);
            assert!(host.io(entry).status().is_success());
            times.push(device.now_ns());
        }
        times
    };
    assert_eq!(times(1), times(2));
}

#[test]
fn commands_overlap_and_share_the_bandwidth() {
    // 4096 bytes at 4.096 GB/s pass in a microsecond.
    let mut host = host(
        Clock::Virtual,
        FixedProfile { read_ns: 10_000, write_ns: 0, link: Rate::per_second(4_096_000_000) },
    );
    let device = Arc::clone(&host.device);
    for cid in 0..4 {
        host.place(1, read(&host, cid));
    }
    let begin = device.now_ns();
    host.ring(1);
    let mut ends = Vec::new();
    while ends.len() < 4 {
        let seen = device.events(1);
        if let Some(done) = host.reap(1) {
            ends.push((done.cid, (device.now_ns() - begin) / 1000));
        } else {
            device.wait(1, seen, 1000);
        }
    }
    assert_eq!(ends, [(0, 11), (1, 12), (2, 13), (3, 14)]);
}

#[test]
fn an_inline_controller_completes_in_the_call_after_the_time() {
    let mut host = host(Clock::Inline, FixedProfile { read_ns: 2_000_000, ..FixedProfile::default() });
    assert!(host.io(read(&host, 1)).status().is_success());
}
