//! The error log has an entry of each command that failed, with the first block in error, and its completion says so.

use crate::host::{DATA, Host};
use nvmed_flash::{ArrayProfile, BlockKind, Medium, Profile, TranslationProfile};
use nvmed_nvme::{DsmRange, ErrorEntry, LogPage, Status, SubmissionEntry};
use nvmed_sys::Pages;
use nvmed_vdev::{Backing, Clock, ControllerConfig, Media};
use zerocopy::IntoBytes;

const BYTES: u64 = 1 << 20;
const BLOCKS: u64 = BYTES / 512;
/// More, in a status.
const MORE: u16 = 1 << 13;

/// A medium of which some bytes are bad.
#[derive(Debug)]
struct Worn(std::ops::Range<u64>);

impl Worn {
    fn check(&self, offset: u64, len: u64, status: Status) -> Result<(), Status> {
        if offset < self.0.end && self.0.start < offset + len { Err(status) } else { Ok(()) }
    }
}

impl Backing for Worn {
    fn bytes(&self) -> u64 {
        BYTES
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Status> {
        self.check(offset, to.len() as u64, Status::UNRECOVERED_READ)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Status> {
        self.check(offset, from.len() as u64, Status::WRITE_FAULT)
    }

    fn zero(&self, offset: u64, len: u64, _release: bool) -> Result<(), Status> {
        self.check(offset, len, Status::CAPACITY_EXCEEDED)
    }

    fn flush(&self) -> Result<(), Status> {
        Err(Status::WRITE_FAULT)
    }
}

/// The newest entry, after a command that fails: its completion has the same status, and says that there is more.
fn entry_of(host: &mut Host, queue: usize, entry: SubmissionEntry) -> ErrorEntry {
    let status = if queue == 0 { host.admin(entry) } else { host.io(entry) }.status();
    let newest = newest(host);
    assert_eq!(newest.status >> 1, status.0, "{entry:?}");
    assert!(status.0 & MORE != 0, "{status}");
    assert_eq!((usize::from(newest.sq_id), newest.cid, newest.nsid), (queue, entry.cid, entry.nsid));
    newest
}

fn newest(host: &mut Host) -> ErrorEntry {
    let at = DATA + 0x10_0000;
    let (cdw10, prp1) = (15 << 16 | u32::from(LogPage::ERROR.0), host.address(at).0);
    let log = SubmissionEntry { opcode: 2, nsid: u32::MAX, cdw10, prp1, ..Default::default() };
    assert!(host.admin(log).status().is_success());
    let mut newest = ErrorEntry::default();
    host.memory.read(at, newest.as_mut_bytes());
    newest
}

/// A Dataset Management of these ranges.
fn deallocate(host: &Host, ranges: &[(u64, u32)]) -> SubmissionEntry {
    for (at, &(lba, blocks)) in ranges.iter().enumerate() {
        let range = DsmRange { attributes: 0, blocks, lba };
        host.memory.write(DATA + at * size_of::<DsmRange>(), range.as_bytes());
    }
    let entry = host.data(9, 0, 1, 4096);
    SubmissionEntry { cdw10: ranges.len() as u32 - 1, cdw11: DsmRange::DEALLOCATE, cdw12: 0, ..entry }
}

/// A host with a plain device, or with a drive, whose commands are executed in another way.
fn hosts(media: impl Fn() -> Media) -> [Host; 2] {
    let drive = Profile::fixed(nvmed_flash::FixedProfile { read_ns: 1000, ..Default::default() });
    [None, Some(drive)].map(|drive| {
        let config = ControllerConfig { drive, clock: Clock::Virtual, ..ControllerConfig::default() };
        Host::new(config, media())
    })
}

#[test]
fn what_is_out_of_range_is_named_by_its_first_block() {
    for mut host in hosts(|| Media::ram(BYTES, Pages::Base).unwrap()) {
        let beyond = |host: &mut Host, entry| {
            let newest = entry_of(host, 1, entry);
            assert!(Status(newest.status >> 1).is(Status::LBA_OUT_OF_RANGE));
            newest.lba
        };
        let (across, behind) = (host.data(2, BLOCKS - 3, 8, 4096), host.data(1, BLOCKS + 7, 8, 4096));
        assert_eq!(beyond(&mut host, SubmissionEntry { cid: 5, ..across }), BLOCKS);
        assert_eq!(beyond(&mut host, behind), BLOCKS + 7);
        let ranges = deallocate(&host, &[(3, 4), (BLOCKS - 1, 2), (BLOCKS + 9, 1)]);
        assert_eq!(beyond(&mut host, ranges), BLOCKS);
    }
}

#[test]
fn what_the_medium_cannot_do_is_named_by_its_first_block() {
    // Blocks 37 to 39, of which each is met with blocks before and behind.
    for mut host in hosts(|| Media::backed(Box::new(Worn(37 * 512 + 100..39 * 512 + 1))).unwrap()) {
        for (opcode, status) in [
            (1, Status::WRITE_FAULT),
            (2, Status::UNRECOVERED_READ),
            (5, Status::UNRECOVERED_READ),
            (8, Status::CAPACITY_EXCEEDED),
        ] {
            for (lba, blocks, wanted) in [(0, 1024, 37), (37, 1, 37), (38, 8, 38), (30, 8, 37), (39, 2, 39)] {
                let entry = host.data(opcode, lba, blocks, 512 * blocks as usize);
                let newest = entry_of(&mut host, 1, entry);
                assert!(Status(newest.status >> 1).is(status), "opcode {opcode}");
                assert_eq!(newest.lba, wanted, "opcode {opcode}, {blocks} blocks from {lba}");
            }
        }
        // The data begins in the middle of a page, so that pieces end within blocks.
        let skewed = host.rings[1].data_from(100, 2, (30, 16), 8192);
        assert_eq!(entry_of(&mut host, 1, skewed).lba, 37);
        let ranges = deallocate(&host, &[(0, 8), (32, 6)]);
        assert_eq!(entry_of(&mut host, 1, ranges).lba, 37);
        // A Flush has no block, and neither has a command that is wrong in itself.
        let flush = SubmissionEntry { nsid: 1, cdw10: 77, ..Default::default() };
        assert_eq!(entry_of(&mut host, 1, flush).lba, 0);
        let wrong = SubmissionEntry { opcode: 0x77, ..host.data(2, 99, 8, 4096) };
        assert_eq!(entry_of(&mut host, 1, wrong).lba, 0);
        let admin = SubmissionEntry { opcode: 0x0a, cdw10: 0x77, cid: 3, ..Default::default() };
        assert_eq!(entry_of(&mut host, 0, admin).lba, 0);
    }
}

#[test]
fn a_compare_names_the_first_block_that_differs() {
    for mut host in hosts(|| Media::ram(BYTES, Pages::Base).unwrap()) {
        host.memory.fill(DATA + 20 * 512 + 511, 1, 7);
        host.memory.fill(DATA + 25 * 512, 1, 7);
        let entry = host.data(5, 100, 64, 64 * 512);
        assert_eq!(entry_of(&mut host, 1, entry).lba, 120);
    }
}

#[test]
fn a_drive_that_has_become_read_only_names_what_it_refuses() {
    let block = BlockKind { endurance: 8, per_plane: 24, ..BlockKind::default() };
    let array = ArrayProfile {
        capacity_bytes: BYTES,
        channels: 2,
        blocks: vec![block],
        translation: Some(TranslationProfile { buffer_bytes: 0, ..TranslationProfile::default() }),
        ..ArrayProfile::default()
    };
    let drive = Some(Profile { commands: 4, medium: Medium::Array(Box::new(array)) });
    let config = ControllerConfig { drive, clock: Clock::Virtual, ..ControllerConfig::default() };
    let mut host = Host::new(config, Media::ram(BYTES, Pages::Base).unwrap());
    let refused = (0..100_000).find(|at| {
        let status = host.io(host.data(1, at * 24 % (BLOCKS - 8), 8, 4096)).status();
        assert!(status.is_success() || status.is(Status::WRITE_PROTECTED), "{status}");
        !status.is_success()
    });
    let lba = refused.expect("blocks wear out") * 24 % (BLOCKS - 8);
    assert_eq!(newest(&mut host).lba, lba);
    let ranges = deallocate(&host, &[(48, 4), (8, 2)]);
    let newest = entry_of(&mut host, 1, ranges);
    assert!(Status(newest.status >> 1).is(Status::WRITE_PROTECTED));
    assert_eq!(newest.lba, 48);
}
