//! Many queues at once, each with a thread of its own.

use crate::host::{DATA, Host, Ring};
use nvmed_dice::Dice;
use nvmed_dma::Transport;
use nvmed_flash::{FixedProfile, Profile, Rate};
use nvmed_nvme::SubmissionEntry;
use nvmed_sys::Pages;
use nvmed_vdev::{Clock, ControllerConfig, FaultPlan, FileOptions, Flush, Media};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Pages of the device; they lie in turns in the threads' care, so that threads meet in every chunk.
const PAGES: u64 = 512;
const THREADS: u64 = 3;
const ROUNDS: u64 = 400;

fn media(kind: usize) -> Media {
    match kind {
        0 => Media::ram(PAGES * 4096, Pages::Base).unwrap(),
        1 => Media::volatile(Media::ram(PAGES * 4096, Pages::Base).unwrap()),
        _ => {
            static SERIAL: AtomicUsize = AtomicUsize::new(0);
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("nvmed-threads-{}-{serial}", std::process::id()));
            let size = Some(PAGES * 4096);
            let options = FileOptions { path: path.clone(), size, flush: Flush::Host, lock: false };
            let media = Media::file(options).unwrap();
            std::fs::remove_file(path).unwrap();
            media
        }
    }
}

/// Writes, discards, flushes and reads the pages of one thread, and compares.
fn work(ring: &mut Ring, thread: u64) {
    let mut model = vec![0u8; (PAGES / THREADS) as usize];
    let mut dice = Dice::new(thread);
    for round in 0..ROUNDS {
        let seed = dice.next();
        let index = (seed % model.len() as u64) as usize;
        let page = index as u64 * THREADS + thread;
        let entry = match seed >> 32 & 7 {
            0..4 => {
                model[index] = round as u8 | 1;
                ring.memory.fill(DATA, 4096, model[index]);
                let fua = u32::from(seed >> 40 & 7 == 0) << 30;
                let entry = ring.data(1, page, 1, 4096);
                SubmissionEntry { cdw12: entry.cdw12 | fua, ..entry }
            }
            4..6 => {
                model[index] = 0;
                // Deallocate.
                SubmissionEntry { cdw12: 1 << 25, ..ring.data(8, page, 1, 0) }
            }
            6 => SubmissionEntry { opcode: 0, nsid: 1, ..Default::default() },
            _ => ring.data(2, page, 1, 4096),
        };
        assert!(ring.run(entry).status().is_success());
        let entry = ring.data(2, page, 1, 4096);
        assert!(ring.run(entry).status().is_success());
        let mut found = [0; 4096];
        ring.memory.read(DATA, &mut found);
        assert!(found.iter().all(|&byte| byte == model[index]), "page {page} in round {round}");
    }
}

fn stress(clock: Clock, kind: usize, fixed: FixedProfile) {
    let faults = FaultPlan::parse(if fixed.read_ns > 0 { "delay:us=40,every=9" } else { "" }).unwrap();
    let drive = (fixed != FixedProfile::default()).then(|| Profile::fixed(fixed));
    let config = ControllerConfig { lba_bytes: 4096, clock, drive, faults, ..ControllerConfig::default() };
    let mut host = Host::new(config, media(kind));
    let rings: Vec<Ring> = (0..THREADS).map(|thread| host.open(2 + thread as u16)).collect();
    let done = AtomicBool::new(false);
    let device = std::sync::Arc::clone(&host.device);
    std::thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let counters = device.controller().counters();
                assert_eq!(counters.errors, 0);
                std::thread::yield_now();
            }
        });
        let workers: Vec<_> = rings
            .into_iter()
            .enumerate()
            .map(|(thread, mut ring)| scope.spawn(move || work(&mut ring, thread as u64)))
            .collect();
        // Beside them queues come and go.
        for _ in 0..50 {
            let mut ring = host.open(40);
            assert!(ring.run(ring.data(2, 0, 1, 4096)).status().is_success());
            host.close(40);
        }
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(ends.into_iter().all(|end| end.is_ok()));
    });
    let counters = host.device.controller().counters();
    if clock == Clock::Virtual {
        // Each takes less than 100 us, even if it has the medium alone; waiting for an event that has come takes none.
        let passed_ns = host.device.now_ns();
        assert!(passed_ns < 500_000_000, "{passed_ns} ns: time passed in which nothing was due");
    }
    let commands = counters.reads + counters.writes + counters.flushes + counters.write_zeroes;
    assert_eq!(commands, 2 * THREADS * ROUNDS + 50, "deleted queues' commands stay counted");
}

#[test]
fn threads_keep_their_pages_on_every_medium() {
    for kind in 0..3 {
        stress(Clock::Inline, kind, FixedProfile::default());
    }
}

#[test]
fn one_device_thread_serves_many() {
    for kind in 0..3 {
        stress(Clock::Threaded, kind, FixedProfile::default());
    }
}

#[test]
fn slow_media_serve_many() {
    let latency = FixedProfile { read_ns: 9000, write_ns: 3000, link: Rate::per_second(4 << 30) };
    for clock in [Clock::Inline, Clock::Threaded, Clock::Virtual] {
        stress(clock, 0, latency);
    }
}

/// A host that resets in the middle of everything finds a controller that works, each time.
#[test]
fn resets_among_commands() {
    for clock in [Clock::Inline, Clock::Threaded] {
        let config = ControllerConfig { clock, ..ControllerConfig::default() };
        let mut host = Host::new(config, media(0));
        for round in 0..300u64 {
            assert!(host.device.controller().counters().reads >= round, "commands stay counted");
            let entry = host.data(2, 0, 8, 4096);
            for _ in 0..round % 7 {
                host.place(1, entry);
            }
            host.ring(1);
            host.device.write32(nvmed_nvme::register::CC, 0);
            let before = host.device.controller().counters();
            host.enable();
            host.create_io();
            assert_eq!(
                host.device.controller().counters(),
                before,
                "nothing of before the reset runs after it"
            );
            assert!(host.io(host.data(2, 0, 8, 4096)).status().is_success());
            let features = SubmissionEntry { opcode: 0x0a, cid: 5, cdw10: 1, ..Default::default() };
            assert_eq!(host.admin(features).cid, 5, "no event of a doorbell from before the reset");
        }
    }
}
