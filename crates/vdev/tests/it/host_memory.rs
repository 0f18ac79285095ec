//! The host memory buffer: what a controller takes, what it does with it, and that it never touches what it may not.

use crate::host::{DATA, Host};
use crate::lender;
use nvmed_dice::Dice;
use nvmed_dma::{Distant, DmaFault, Transport};
use nvmed_flash::{ArrayProfile, BlockKind, MapCacheProfile, Medium, Profile, Rate, TranslationProfile};
use nvmed_nvme::{
    DriveLog, HostMemoryAttributes, IdentifyController, LogPage, Status, SubmissionEntry, register,
};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::DeviceAddress;
use nvmed_vdev::{Clock, Controller, ControllerConfig, HostMemoryConfig, Media};
use proptest::prelude::*;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use zerocopy::FromBytes;

const CLOCKS: [Clock; 3] = [Clock::Inline, Clock::Threaded, Clock::Virtual];
const PAGE: usize = 4096;
/// Units of the drives.
const UNITS: u64 = 1024;
/// Where a list lies in the host's memory.
const LIST: usize = 0x5000;
/// What memory has that nobody touched.
const UNTOUCHED: u8 = 0xa5;

/// A drive with a map of 64 pages in flash, of which its memory has room for two.
pub fn profile() -> Profile {
    let block = BlockKind {
        per_plane: 32,
        pages: 64,
        read_ns: vec![4000],
        program_ns: vec![20_000],
        erase_ns: 100_000,
        ..BlockKind::default()
    };
    let map_cache = Some(MapCacheProfile { bytes: 2 * PAGE as u64, entry_bytes: 256 });
    let array = ArrayProfile {
        capacity_bytes: UNITS * PAGE as u64,
        channels: 2,
        registers: 2,
        bus_out: Rate { bytes: 4096, ns: 1000 },
        bus_in: Rate { bytes: 4096, ns: 1000 },
        link_in: Rate { bytes: 4, ns: 1 },
        link_out: Rate { bytes: 4, ns: 1 },
        blocks: vec![block],
        translation: Some(TranslationProfile { map_cache, ..TranslationProfile::default() }),
        ..ArrayProfile::default()
    };
    Profile { commands: 4, medium: Medium::Array(Box::new(array)) }
}

pub const WANTED: HostMemoryConfig = HostMemoryConfig {
    bytes: 128 << 20,
    bytes_min: 16 << 12,
    entries_max: 16,
    map_percent: 50,
    read_percent: 50,
    write_percent: 0,
};

fn controller(clock: Clock, wanted: HostMemoryConfig) -> Arc<Controller> {
    controller_of(clock, profile(), wanted)
}

pub fn controller_of(clock: Clock, drive: Profile, wanted: HostMemoryConfig) -> Arc<Controller> {
    let config = ControllerConfig {
        clock,
        lba_bytes: 4096,
        drive: Some(drive),
        host_memory: Some(wanted),
        ..ControllerConfig::default()
    };
    Controller::new(config, Media::ram(UNITS * PAGE as u64, Pages::Base).unwrap())
}

/// A host whose drive is full: each unit has its number in all bytes.
fn host(clock: Clock, wanted: HostMemoryConfig) -> Host {
    let mut host = Host::of(controller(clock, wanted));
    host.enable();
    host.create_io();
    for unit in 0..UNITS {
        host.memory.fill(DATA, PAGE, unit as u8);
        let entry = host.data(1, unit, 1, PAGE);
        assert!(host.io(entry).status().is_success());
    }
    host
}

/// Reads units at random, which have what was written.
fn read(host: &mut Host, dice: &mut Dice, count: usize) {
    for _ in 0..count {
        let unit = dice.next() % UNITS;
        host.memory.fill(DATA, PAGE, !(unit as u8));
        let entry = host.data(2, unit, 1, PAGE);
        assert!(host.io(entry).status().is_success());
        assert!(bytes(&host.memory, DATA, PAGE).iter().all(|&byte| byte == unit as u8), "unit {unit}");
    }
}

fn bytes(memory: &Mapping, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes);
    bytes
}

fn log(host: &mut Host) -> DriveLog {
    let dwords = (size_of::<DriveLog>() / 4 - 1) as u32;
    let entry =
        SubmissionEntry { cdw10: u32::from(LogPage::DRIVE.0) | dwords << 16, ..host.data(2, 0, 1, PAGE) };
    assert!(host.admin(SubmissionEntry { opcode: 2, nsid: 0, ..entry }).status().is_success());
    DriveLog::read_from_bytes(&bytes(&host.memory, DATA, size_of::<DriveLog>())).unwrap()
}

/// Whether the feature is enabled, and its attributes.
fn feature(host: &mut Host) -> (u32, HostMemoryAttributes) {
    let entry = SubmissionEntry { opcode: 10, nsid: 0, cdw10: 13, ..host.data(2, 0, 1, PAGE) };
    let entry = SubmissionEntry { cdw11: 0, cdw12: 0, ..entry };
    let done = host.admin(entry);
    assert!(done.status().is_success());
    (done.result, HostMemoryAttributes::read_from_bytes(&bytes(&host.memory, DATA, PAGE)).unwrap())
}

/// Ranges of the host's memory that it lends.
pub struct Ranges {
    pub memory: Vec<Arc<Mapping>>,
    pub addresses: Vec<DeviceAddress>,
    pages: u32,
}

impl Ranges {
    pub fn new(host: &Host, count: usize, pages: u32) -> Self {
        let new = |_| Arc::new(Mapping::anonymous(pages as usize * PAGE, Pages::Base).unwrap());
        let memory: Vec<_> = (0..count).map(new).collect();
        let addresses = memory.iter().map(|memory| host.device.map(Arc::clone(memory)).unwrap()).collect();
        let ranges = Self { memory, addresses, pages };
        ranges.fill();
        ranges
    }

    pub fn fill(&self) {
        self.memory.iter().for_each(|memory| memory.fill(0, memory.len(), UNTOUCHED));
    }

    /// Pages that were written to since.
    pub fn touched(&self) -> usize {
        let pages = |memory: &Arc<Mapping>| bytes(memory, 0, memory.len());
        let is_touched = |page: &[u8]| page.iter().any(|&byte| byte != UNTOUCHED);
        self.memory
            .iter()
            .map(|memory| pages(memory).chunks(PAGE).filter(|page| is_touched(page)).count())
            .sum()
    }

    pub fn list(&self) -> Vec<(u64, u32)> {
        self.addresses.iter().map(|address| (address.0, self.pages)).collect()
    }
}

/// Lends memory; the command's status.
pub fn lend(host: &mut Host, list: &[(u64, u32)]) -> Status {
    let pages = list.iter().fold(0_u32, |sum, &(_, pages)| sum.wrapping_add(pages));
    lend_as(host, list, (pages, 0, list.len() as u32))
}

/// As [`lend`], of a size and with a list of an offset and a length that are said.
fn lend_as(host: &mut Host, list: &[(u64, u32)], (pages, skew, entries): (u32, u64, u32)) -> Status {
    for (at, (address, pages)) in list.iter().enumerate() {
        host.memory.write(LIST + 16 * at, &address.to_le_bytes());
        host.memory.write(LIST + 16 * at + 8, &pages.to_le_bytes());
    }
    let at = host.address(LIST).0 + skew;
    let entry = SubmissionEntry {
        opcode: 9,
        cdw10: 13,
        cdw11: 1,
        cdw12: pages,
        cdw13: at as u32,
        cdw14: (at >> 32) as u32,
        cdw15: entries,
        ..Default::default()
    };
    host.admin(entry).status()
}

pub fn take_back(host: &mut Host) -> Status {
    host.admin(SubmissionEntry { opcode: 9, cdw10: 13, ..Default::default() }).status()
}

#[test]
fn a_buffer_of_many_ranges_is_used_until_it_is_taken_back() {
    // Nothing happens here unless a test of this crate asks for a deliberate mistake.
    nvmed_mutant::set_by(|name| std::env::var(name).ok());
    for clock in CLOCKS {
        let mut host = host(clock, WANTED);
        let mut dice = Dice::new(1);
        let ranges = Ranges::new(&host, 16, 1024);
        assert_eq!(feature(&mut host), (0, HostMemoryAttributes::default()));
        assert!(lend(&mut host, &ranges.list()).is_success(), "{clock:?}");
        let (enabled, attributes) = feature(&mut host);
        let list = host.address(LIST).0;
        assert_eq!((enabled, attributes), (1, HostMemoryAttributes::new(16 * 1024, list, 16)));
        read(&mut host, &mut dice, 400);
        let used = log(&mut host);
        assert_eq!((used.host_memory_bytes, used.host_given_up), (64 << 20, 0));
        assert!(used.host_puts > 100 && used.host_gets > 100, "{clock:?}: {used:?}");
        assert!(ranges.touched() > 100, "{clock:?}: nothing is there");
        // Enough slots for each page of the map, and half of the units: some read nothing from flash any more.
        let again = lend(&mut host, &ranges.list());
        assert!(again.is(Status::SEQUENCE_ERROR), "{again:?}");
        assert!(take_back(&mut host).is_success());
        ranges.fill();
        assert_eq!(feature(&mut host), (0, HostMemoryAttributes::default()));
        read(&mut host, &mut dice, 400);
        assert_eq!(ranges.touched(), 0, "{clock:?}: pages were touched after the disable");
        let after = log(&mut host);
        assert_eq!((after.host_memory_bytes, after.host_given_up), (0, 0));
        assert!(take_back(&mut host).is_success(), "disabled while it is not enabled");
        assert!(lend(&mut host, &ranges.list()).is_success());
        read(&mut host, &mut dice, 100);
        assert!(ranges.touched() > 0, "{clock:?}: lent again, and not used");
    }
}

/// The test above notices a controller that goes on after a disable.
#[test]
fn a_drive_that_goes_on_after_a_disable_is_caught() {
    let name = "host_memory::a_buffer_of_many_ranges_is_used_until_it_is_taken_back";
    let run = |mutant: Option<&str>| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--test-threads", "1"]);
        if let Some(mutant) = mutant {
            command.env("NVMED_MUTANT", mutant);
        }
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    if !nvmed_mutant::ARE_MADE {
        eprintln!("SKIPPED: a release makes no deliberate mistakes");
        return;
    }
    let (is_well, told) = run(Some("HmbAfterDisable"));
    assert!(!is_well && told.contains("pages were touched after the disable"), "{told}");
    assert!(run(None).0, "the test fails without the mistake, too");
}

#[test]
fn what_cannot_be_used_is_refused_and_nothing_is_enabled() {
    let mut host = host(Clock::Inline, WANTED);
    let ranges = Ranges::new(&host, 3, 8);
    let list = ranges.list();
    let [(a, _), (b, _), (c, _)] = list[..] else { panic!("three ranges") };
    let (invalid, unmapped) = (Status::INVALID_FIELD, Status::DATA_TRANSFER_ERROR);
    let beyond = 8 * PAGE as u64;
    let cases = [
        ("too little", vec![(a, 8), (b, 7)], invalid),
        ("a range within a page", vec![(a, 8), (b + 512, 8)], invalid),
        ("overlap", vec![(a, 8), (b, 8), (a + PAGE as u64, 4)], invalid),
        ("the same twice", vec![(a, 8), (a, 8)], invalid),
        ("the end of all addresses", vec![(a, 8), (u64::MAX - 4095, 8)], invalid),
        ("an overlap beyond what is used", [vec![(a, 1); 1], vec![(b, 1); 20]].concat(), invalid),
        ("nothing in 16 entries", vec![(a, 0); 20], invalid),
        ("longer than what is mapped", vec![(a, 8), (b, 9)], unmapped),
        ("behind what is mapped", vec![(a, 8), (c + beyond, 8)], unmapped),
        ("nowhere", vec![(a, 8), (0x7000_0000_0000, 8)], unmapped),
    ];
    for (what, list, expected) in cases {
        let status = lend(&mut host, &list);
        assert!(status.is(expected), "{what}: {status:?}");
        assert_eq!(feature(&mut host).0, 0, "{what}");
    }
    let huge = 65_537;
    for (what, (pages, skew, entries), expected) in [
        ("another sum", (25, 0, 3), invalid),
        ("no entries", (0, 0, 0), invalid),
        ("a list within 16 bytes", (24, 8, 3), invalid),
        ("too long a list", (24, 0, huge), invalid),
        ("a list that is not mapped", (24, 1 << 39, 3), unmapped),
        ("a list that ends behind what is mapped", (24, 0, huge - 1), unmapped),
    ] {
        // The largest list is cut off by the end of the host's memory, which has 4 MiB: move it there.
        let skew = if entries == huge - 1 { (4 << 20) - LIST as u64 - 4096 } else { skew };
        let status = lend_as(&mut host, &list, (pages, skew, entries));
        assert!(status.is(expected), "{what}: {status:?}");
        assert_eq!(feature(&mut host).0, 0, "{what}");
    }
    read(&mut host, &mut Dice::new(2), 100);
    assert_eq!(ranges.touched(), 0);
    // A list of which a part is of use.
    let wanted = vec![(a, 8), (b, 0), (c, 8)];
    assert!(lend(&mut host, &wanted).is_success());
    assert_eq!(log(&mut host).host_memory_bytes, 16 << 12);
}

#[test]
fn no_more_than_what_is_wanted_is_used() {
    let wanted = HostMemoryConfig { bytes: 20 << 12, bytes_min: 1 << 12, entries_max: 3, ..WANTED };
    let mut host = host(Clock::Inline, wanted);
    for (count, used) in [(1, 8), (2, 16), (3, 20), (4, 20)] {
        let ranges = Ranges::new(&host, count, 8);
        assert!(lend(&mut host, &ranges.list()).is_success());
        assert_eq!(log(&mut host).host_memory_bytes, used << 12);
        read(&mut host, &mut Dice::new(3), 200);
        let last = count.min(3) - 1;
        let touched: usize = ranges.touched();
        assert!(touched as u64 <= used && touched > 0, "{touched} of {used} pages of {last}");
        assert!(take_back(&mut host).is_success());
    }
}

#[test]
fn memory_of_which_the_device_has_a_copy_is_refused() {
    #[derive(Debug)]
    struct Elsewhere;
    impl Distant for Elsewhere {
        fn fetch(&self, _: DeviceAddress, _: &Mapping, _: usize, _: usize) -> Result<(), DmaFault> {
            Ok(())
        }
        fn send(&self, _: DeviceAddress, _: &Mapping, _: usize, _: usize) -> Result<(), DmaFault> {
            Ok(())
        }
    }
    let mut host = host(Clock::Inline, WANTED);
    let copy = Arc::new(Mapping::anonymous(64 * PAGE, Pages::Base).unwrap());
    let at = DeviceAddress(0x10_0000);
    host.device.controller().map_distant(at, copy, Arc::new(Elsewhere)).unwrap();
    assert!(lend(&mut host, &[(at.0, 64)]).is(Status::DATA_TRANSFER_ERROR));
    assert_eq!(feature(&mut host).0, 0);
}

#[test]
fn a_buffer_of_which_a_range_is_unmapped_is_given_up() {
    for clock in CLOCKS {
        let mut host = host(clock, WANTED);
        let mut dice = Dice::new(4);
        let ranges = Ranges::new(&host, 4, 64);
        assert!(lend(&mut host, &ranges.list()).is_success());
        read(&mut host, &mut dice, 200);
        assert_eq!(Arc::strong_count(&ranges.memory[2]), 3, "a test that holds what it looks for");
        host.device.unmap(ranges.addresses[2]);
        assert_eq!(
            Arc::strong_count(&ranges.memory[2]),
            1,
            "{clock:?}: the drive has memory that is not mapped"
        );
        ranges.fill();
        read(&mut host, &mut dice, 200);
        assert_eq!(ranges.touched(), 0, "{clock:?}");
        let after = log(&mut host);
        assert_eq!((after.host_memory_bytes, after.host_given_up), (0, 1));
        assert_eq!(feature(&mut host).0, 1, "the host has not disabled it");
        let left = [(ranges.addresses[0].0, 64)];
        assert!(lend(&mut host, &left).is(Status::SEQUENCE_ERROR));
        assert!(take_back(&mut host).is_success());
        assert!(lend(&mut host, &left).is_success());
        read(&mut host, &mut dice, 100);
        assert!(ranges.touched() > 0);
        // Another mapping that goes changes nothing.
        host.device.unmap(ranges.addresses[3]);
        assert_eq!(log(&mut host).host_given_up, 1);
    }
}

#[test]
fn a_host_that_writes_to_the_buffer_takes_time_only() {
    for clock in CLOCKS {
        let mut host = host(clock, WANTED);
        let mut dice = Dice::new(5);
        let ranges = Ranges::new(&host, 2, 64);
        for round in 1..4 {
            assert!(lend(&mut host, &ranges.list()).is_success());
            read(&mut host, &mut dice, 200);
            assert_eq!(log(&mut host).host_given_up, round - 1);
            ranges.memory.iter().for_each(|memory| memory.fill(0, memory.len(), round as u8));
            read(&mut host, &mut dice, 200);
            let after = log(&mut host);
            assert_eq!((after.host_memory_bytes, after.host_given_up), (0, round), "{clock:?}");
            assert!(take_back(&mut host).is_success());
        }
    }
}

/// A host that writes faster than its drive programs, and knows what it wrote.
struct Writer {
    host: Host,
    dice: Dice,
    units: Vec<u8>,
}

impl Writer {
    /// Its drive has 513 units of its own memory for what was written, and lets the rest of it wait in the host's.
    fn new(clock: Clock) -> Self {
        let mut profile = profile();
        let Medium::Array(array) = &mut profile.medium else { unreachable!("a drive of NAND") };
        array.blocks[0].program_ns = vec![400_000];
        // All of the map in memory: no write waits for that.
        let translation = TranslationProfile { buffer_bytes: 2 << 20, ..TranslationProfile::default() };
        array.translation = Some(translation);
        let wanted = HostMemoryConfig { map_percent: 0, read_percent: 0, write_percent: 100, ..WANTED };
        let mut host = Host::of(controller_of(clock, profile, wanted));
        host.enable();
        host.create_io();
        Self { host, dice: Dice::new(7), units: vec![0; UNITS as usize] }
    }

    /// Submits so many writes of different units, seven at most, and lets them be.
    fn begin(&mut self, count: usize) {
        let first = self.dice.next() % UNITS;
        for at in 0..count {
            let unit = (first + 37 * at as u64) % UNITS;
            let (byte, data) = (self.dice.next() as u8, DATA + at * PAGE);
            self.units[unit as usize] = byte;
            self.host.memory.fill(data, PAGE, byte);
            let prp1 = self.host.address(data).0;
            self.host.place(1, SubmissionEntry { prp1, ..self.host.data(1, unit, 1, PAGE) });
        }
        self.host.ring(1);
    }

    fn end(&mut self, count: usize) {
        (0..count).for_each(|_| assert!(self.host.rings[1].wait().status().is_success()));
    }

    fn write(&mut self, count: usize) {
        for _ in 0..count {
            self.begin(1);
            self.end(1);
        }
    }

    fn flush(&mut self) {
        let entry = SubmissionEntry { opcode: 0, nsid: 1, ..Default::default() };
        assert!(self.host.io(entry).status().is_success());
    }

    fn check(&mut self) {
        for unit in 0..UNITS {
            let expected = self.units[unit as usize];
            self.host.memory.fill(DATA, PAGE, !expected);
            let entry = self.host.data(2, unit, 1, PAGE);
            assert!(self.host.io(entry).status().is_success());
            assert!(bytes(&self.host.memory, DATA, PAGE).iter().all(|&byte| byte == expected), "unit {unit}");
        }
    }
}

#[test]
fn what_was_written_into_the_buffer_outlives_its_end() {
    for clock in CLOCKS {
        for end in ["a disable", "a host that writes to it", "an unmapping"] {
            let mut writer = Writer::new(clock);
            let ranges = Ranges::new(&writer.host, 2, 64);
            assert!(lend(&mut writer.host, &ranges.list()).is_success());
            writer.write(900);
            let used = log(&mut writer.host);
            // In real time a busy machine may write more slowly than the drive programs.
            let is_used = used.host_puts > 100 && used.host_gets > 20;
            assert!(is_used || clock != Clock::Virtual, "{clock:?}: {used:?}");
            // Commands are under way, and no slot is free.
            writer.begin(6);
            match end {
                "a disable" => assert!(take_back(&mut writer.host).is_success()),
                "an unmapping" => writer.host.device.unmap(ranges.addresses[1]),
                _ => ranges.memory.iter().for_each(|memory| memory.fill(0, memory.len(), !UNTOUCHED)),
            }
            writer.end(6);
            writer.write(100);
            let (given_up, after) = (u64::from(end != "a disable"), log(&mut writer.host));
            let told = (after.host_memory_bytes, after.host_given_up);
            if clock != Clock::Virtual && end == "a host that writes to it" && after.host_given_up == 0 {
                // So slowly that nothing was to be read out of it: nobody has seen what was written there.
                assert!(take_back(&mut writer.host).is_success());
            } else {
                assert_eq!(told, (0, given_up), "{clock:?}, {end}");
            }
            ranges.fill();
            writer.flush();
            writer.write(100);
            writer.flush();
            assert_eq!(ranges.touched(), 0, "{clock:?}, {end}: the buffer is touched after its end");
            writer.check();
        }
    }
}

#[test]
fn a_reset_a_shutdown_and_a_removal_end_the_use_of_the_buffer() {
    for clock in CLOCKS {
        for end in ["reset", "shutdown", "removal"] {
            let mut host = host(clock, WANTED);
            let mut dice = Dice::new(6);
            let ranges = Ranges::new(&host, 2, 64);
            assert!(lend(&mut host, &ranges.list()).is_success());
            read(&mut host, &mut dice, 100);
            // Reads that are under way.
            for unit in 0..4 {
                let entry = host.data(2, unit * 200, 1, PAGE);
                host.place(1, SubmissionEntry { cid: unit as u16, ..entry });
            }
            host.ring(1);
            match end {
                "reset" => host.device.write32(register::CC, 0x0046_0000),
                "shutdown" => host.device.write32(register::CC, 0x0046_4001),
                _ => host.device.controller().remove(),
            }
            ranges.fill();
            let holders = ranges.memory.iter().map(Arc::strong_count);
            assert!(holders.into_iter().all(|count| count <= 3), "the space, its views and the test");
            if end == "reset" {
                host.enable();
                host.create_io();
                assert_eq!(feature(&mut host).0, 0, "{clock:?}");
                read(&mut host, &mut dice, 100);
                assert_eq!(ranges.touched(), 0, "{clock:?}: after a reset");
                assert!(lend(&mut host, &ranges.list()).is_success());
                read(&mut host, &mut dice, 100);
                assert!(ranges.touched() > 0);
            }
            assert!(end == "reset" || ranges.touched() == 0, "{clock:?}: after a {end}");
        }
    }
}

#[test]
fn identify_tells_what_the_drive_wants() {
    let identify = |config: ControllerConfig| {
        let mut host = Host::new(config, Media::ram(UNITS * PAGE as u64, Pages::Base).unwrap());
        let entry =
            SubmissionEntry { opcode: 6, nsid: 0, cdw10: 1, cdw11: 0, cdw12: 0, ..host.data(2, 0, 1, PAGE) };
        assert!(host.admin(entry).status().is_success());
        let data = IdentifyController::read_from_bytes(&bytes(&host.memory, DATA, PAGE)).unwrap();
        let set = SubmissionEntry { opcode: 9, cdw10: 13, ..Default::default() };
        (host.admin(set).status(), data)
    };
    let (status, data) = identify(ControllerConfig::default());
    assert!(status.is(Status::INVALID_FIELD));
    assert_eq!((data.hmpre, data.hmmin, data.hmminds, data.hmmaxd), (0, 0, 0, 0));
    let drive = ControllerConfig { drive: Some(profile()), ..ControllerConfig::default() };
    let (status, data) = identify(ControllerConfig { host_memory: Some(WANTED), ..drive });
    assert!(status.is_success());
    assert_eq!((data.hmpre, data.hmmin, data.hmminds, data.hmmaxd), (32_768, 16, 1, 16));
}

/// Lists of all kinds, mappings that go and come, resets and a host that writes to what it has lent: nothing is touched
/// that was not lent, data is right, and there is no panic.
#[test]
fn fuzz_what_a_host_lends() {
    let (lent, moved) = (AtomicUsize::new(0), AtomicU64::new(0));
    let mut runner =
        proptest::test_runner::TestRunner::new(ProptestConfig { cases: 48, ..Default::default() });
    let tested = runner.run(&prop::collection::vec(any::<u8>(), 20..800), |bytes| {
        let (lends, moves) = lender::play(&bytes);
        lent.fetch_add(lends, Ordering::Relaxed);
        moved.fetch_add(moves, Ordering::Relaxed);
        Ok(())
    });
    tested.unwrap();
    let (lent, moved) = (lent.into_inner(), moved.into_inner());
    assert!(lent > 48 && moved > 2_000, "hardly anything happened: {lent} lends, {moved} moves");
}
