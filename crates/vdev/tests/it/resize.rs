//! A namespace that grows and shrinks under its host.

use crate::host::{DATA, Host};
use nvmed_nvme::{Status, SubmissionEntry};
use nvmed_sys::Pages;
use nvmed_vdev::{ControllerConfig, FileOptions, Flush, Media, MediaError};
use std::sync::atomic::{AtomicUsize, Ordering};

const BYTES: u64 = 1 << 20;

fn file() -> Media {
    static SERIAL: AtomicUsize = AtomicUsize::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("nvmed-resize-{}-{serial}", std::process::id()));
    let options = FileOptions { path: path.clone(), size: Some(BYTES), flush: Flush::Host, lock: false };
    let media = Media::file(options).unwrap();
    std::fs::remove_file(path).unwrap();
    media
}

fn media() -> [Media; 4] {
    let ram = || Media::ram_with_room(BYTES, 4 * BYTES, Pages::Base).unwrap();
    [ram(), Media::volatile(ram()), file(), Media::volatile(file())]
}

fn blocks(host: &mut Host) -> u64 {
    let identify = SubmissionEntry { opcode: 6, nsid: 1, prp1: host.address(DATA).0, ..Default::default() };
    assert!(host.admin(identify).status().is_success());
    host.memory.u64(DATA).load(Ordering::Relaxed)
}

fn resize(host: &Host, bytes: u64) -> Result<(), MediaError> {
    host.device.controller().resize(bytes)
}

/// The one byte that a whole page at `lba` is made of.
fn byte(host: &mut Host, lba: u64) -> u8 {
    assert!(host.io(host.data(2, lba, 8, 4096)).status().is_success());
    let mut page = [0; 4096];
    host.memory.read(DATA, &mut page);
    assert!(page.iter().all(|&byte| byte == page[0]));
    page[0]
}

fn fill(host: &mut Host, lba: u64, byte: u8) -> Status {
    host.memory.fill(DATA, 4096, byte);
    host.io(host.data(1, lba, 8, 4096)).status()
}

#[test]
fn every_medium_grows_and_shrinks() {
    for media in media() {
        let mut host = Host::new(ControllerConfig::default(), media);
        let last = BYTES / 512 - 8;
        assert!(fill(&mut host, last, 7).is_success() && fill(&mut host, 0, 9).is_success());
        // Not a whole chunk of an image.
        resize(&host, 2 * BYTES + 4096).unwrap();
        assert_eq!(blocks(&mut host), (2 * BYTES + 4096) / 512);
        assert_eq!((byte(&mut host, last), byte(&mut host, last + 8)), (7, 0), "what is new is zero");
        assert!(fill(&mut host, 2 * BYTES / 512, 5).is_success());
        assert_eq!(byte(&mut host, 2 * BYTES / 512), 5);
        resize(&host, BYTES - 4096).unwrap();
        assert!(fill(&mut host, last, 1).is(Status::LBA_OUT_OF_RANGE));
        assert!(host.io(host.data(2, last - 1, 8, 4096)).status().is(Status::LBA_OUT_OF_RANGE));
        assert!(host.io(SubmissionEntry { opcode: 0, nsid: 1, ..Default::default() }).status().is_success());
        resize(&host, 3 * BYTES).unwrap();
        assert_eq!((byte(&mut host, 0), byte(&mut host, last)), (9, 0), "what was cut is gone");
        assert_eq!(byte(&mut host, 2 * BYTES / 512), 0);
        assert!(fill(&mut host, 3 * BYTES / 512 - 8, 3).is_success());
    }
}

#[test]
fn a_size_that_cannot_be_is_refused_and_changes_nothing() {
    let mut host = Host::new(ControllerConfig::default(), Media::ram(BYTES, Pages::Base).unwrap());
    assert!(matches!(resize(&host, BYTES + 4096), Err(MediaError::Room { room: BYTES, .. })));
    assert!(resize(&host, 0).is_err() && resize(&host, 4097).is_err());
    assert_eq!(blocks(&mut host), BYTES / 512);
}

#[test]
fn a_host_that_wants_to_know_is_told() {
    let mut host = Host::new(ControllerConfig::default(), Media::ram(BYTES, Pages::Base).unwrap());
    let request = SubmissionEntry { opcode: 0x0c, cid: 77, ..Default::default() };
    host.place(0, request);
    host.ring(0);
    resize(&host, BYTES / 2).unwrap();
    assert!(host.reap(0).is_none(), "not unless it wants to");
    let notices = SubmissionEntry { opcode: 9, cdw10: 11, cdw11: 1 << 8, ..Default::default() };
    assert!(host.admin(notices).status().is_success());
    resize(&host, BYTES).unwrap();
    let event = host.reap(0).expect("an event");
    assert_eq!((event.cid, event.result), (77, 0x0004_0002), "notice: namespace attribute changed, log 04h");
    let log =
        SubmissionEntry { opcode: 2, cdw10: 4 | 1 << 16, prp1: host.address(DATA).0, ..Default::default() };
    for expected in [1, 0] {
        assert!(host.admin(log).status().is_success());
        assert_eq!(host.memory.u64(DATA).load(Ordering::Relaxed), expected, "namespace 1, once");
    }
    host.place(0, request);
    host.ring(0);
    resize(&host, BYTES / 2).unwrap();
    assert!(host.reap(0).is_some(), "and the next time");
}

/// Threads read and write while the size goes up and down: every command is done, or out of range.
#[test]
fn commands_meet_the_size_of_their_moment() {
    for media in media() {
        let mut host = Host::new(ControllerConfig::default(), media);
        let mut rings = [host.open(2), host.open(3)];
        let device = std::sync::Arc::clone(&host.device);
        std::thread::scope(|scope| {
            let workers = rings.each_mut().map(|ring| {
                scope.spawn(move || {
                    // Long enough that a size often changes in their midst.
                    for round in 0..400u64 {
                        let entry = ring.data(1 + (round % 2) as u8, round * 37 % 1000, 2048, 1 << 20);
                        let status = ring.run(entry).status();
                        assert!(status.is_success() || status.is(Status::LBA_OUT_OF_RANGE));
                    }
                })
            });
            let mut round = 0;
            while !workers.iter().all(|worker| worker.is_finished()) {
                round += 1;
                device.controller().resize(4096 * (256 + round * 97 % 700)).unwrap();
            }
        });
    }
}
