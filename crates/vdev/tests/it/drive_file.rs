//! The state of a drive beside its image: kept over ends of all kinds, and refused when it is not its own.

use crate::host::{DATA, Host};
use nvmed_dice::Dice;
use nvmed_dma::Transport;
use nvmed_flash::{
    ArrayProfile, BlockKind, Command, Flash, Kind, Medium, Profile, Rate, TranslationProfile, UNIT_BYTES,
};
use nvmed_nvme::{DriveLog, ErrorEntry, LogPage, SmartLog, Status, SubmissionEntry, register};
use nvmed_vdev::{
    Clock, Controller, ControllerConfig, DriveFile, DriveFileError, FileOptions, Flush, KeptDrive,
    LIFE_COUNTERS, Media,
};
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, IntoBytes};

const UNITS: u64 = 2048;
const TEXT: &str = "# a drive for tests\n";

fn profile() -> Profile {
    profile_of(UNITS, 32)
}

/// A drive of so many units, in blocks of so many pages.
pub(crate) fn profile_of(units: u64, pages: u32) -> Profile {
    let kind = BlockKind { per_plane: 24, pages, pages_per_program: 2, ..BlockKind::default() };
    let translation = TranslationProfile { buffer_bytes: 2 << 20, ..TranslationProfile::default() };
    let array = ArrayProfile {
        capacity_bytes: units * UNIT_BYTES,
        channels: 2,
        planes: 2,
        registers: 2,
        bus_out: Rate::per_second(400_000_000),
        bus_in: Rate::per_second(400_000_000),
        blocks: vec![kind],
        translation: Some(translation),
        ..ArrayProfile::default()
    };
    Profile { commands: 64, medium: Medium::Array(Box::new(array)) }
}

/// A directory of a test, and the image in it.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("nvmed-drive-file-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.0.join("disk.img")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn medium(image: &Path) -> Media {
    let size = Some(UNITS * UNIT_BYTES);
    Media::file(FileOptions { path: image.to_owned(), size, flush: Flush::Process, lock: true }).unwrap()
}

pub(crate) fn make(image: &Path, media: &Media) -> (DriveFile, Flash) {
    let mut flash = Flash::new(&profile()).unwrap();
    let file = DriveFile::create((image, media, Flush::Process), (&profile(), TEXT), &flash).unwrap();
    flash.keep_records();
    (file, flash)
}

pub(crate) fn open(image: &Path, media: &Media) -> Result<(DriveFile, Flash, bool), DriveFileError> {
    let mut flash = Flash::new(&profile()).unwrap();
    let (mut file, loaded) = DriveFile::open((image, media, Flush::Process), &profile(), &mut flash)?;
    file.checkpoint(&flash, [0; LIFE_COUNTERS], false)?;
    flash.keep_records();
    Ok((file, flash, loaded.was_at_rest))
}

pub(crate) fn keep(file: &mut DriveFile, flash: &mut Flash) {
    assert!(file.append(flash.records()), "the journal has room");
    flash.clear_records();
    file.go_on(flash, || [0; LIFE_COUNTERS]).unwrap();
}

fn map(flash: &Flash) -> Vec<u32> {
    let mut map = vec![0; flash.map_len()];
    flash.map_words(0, &mut map);
    map
}

/// A few random commands, one after the other.
pub(crate) fn use_drive(flash: &mut Flash, dice: &mut Dice, commands: u64) {
    for _ in 0..commands {
        let start = dice.roll(UNITS);
        let bytes = (1 + dice.roll(16)).min(UNITS - start) * UNIT_BYTES;
        let kind = match dice.roll(16) {
            0 => Kind::Flush,
            1 => Kind::Deallocate,
            _ => Kind::Write { fua: false },
        };
        flash.arrive(flash.now(), &Command { kind, start: start * UNIT_BYTES, bytes, urgent: false });
        while flash.advance(u64::MAX).is_some() {}
    }
}

#[test]
fn a_drive_that_was_closed_or_ended_goes_on() {
    let place = Place::new("goes-on");
    let image = place.image();
    let media = medium(&image);
    let (mut file, mut flash) = make(&image, &media);
    let mut dice = Dice::new(1);
    for life in 0..40 {
        for _ in 0..dice.roll(60) {
            use_drive(&mut flash, &mut dice, 4);
            keep(&mut file, &mut flash);
        }
        let closed = dice.chance(50);
        if closed {
            file.checkpoint(&flash, [life; LIFE_COUNTERS], true).unwrap();
        }
        let before = map(&flash);
        drop(file);
        let (next, opened, was_at_rest) = open(&image, &media).unwrap();
        assert_eq!(map(&opened), before, "life {life}");
        assert!(was_at_rest || !closed, "life {life}");
        (file, flash) = (next, opened);
    }
    let described = DriveFile::describe(&image).unwrap().unwrap();
    assert_eq!((described.profile.as_str(), described.image_bytes), (TEXT, UNITS * UNIT_BYTES));
}

/// A power cut leaves of each page what was synced, or what was written since.
#[test]
fn a_power_cut_loses_nothing_that_was_synced() {
    let place = Place::new("power-cut");
    let image = place.image();
    let media = medium(&image);
    let state = DriveFile::beside(&image);
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let (mut file, mut flash) = make(&image, &media);
        let rounds = 1 + dice.roll(40);
        for _ in 0..rounds {
            use_drive(&mut flash, &mut dice, 4);
            keep(&mut file, &mut flash);
        }
        if dice.chance(30) {
            file.checkpoint(&flash, [0; LIFE_COUNTERS], false).unwrap();
        }
        let synced = std::fs::read(&state).unwrap();
        // What the drive was like then, and after each group of records since.
        let mut lives = vec![map(&flash)];
        let checkpoint_at = dice.roll(80);
        for round in 0..40 {
            use_drive(&mut flash, &mut dice, 2);
            keep(&mut file, &mut flash);
            lives.push(map(&flash));
            if round == checkpoint_at {
                file.checkpoint(&flash, [0; LIFE_COUNTERS], dice.chance(50)).unwrap();
            }
        }
        let written = std::fs::read(&state).unwrap();
        drop(file);
        let chance = [0, 20, 50, 90, 100][dice.index(5)];
        let mixed: Vec<u8> = synced
            .chunks(4096)
            .zip(written.chunks(4096))
            .flat_map(|(old, new)| if dice.chance(chance) { new } else { old })
            .copied()
            .collect();
        std::fs::write(&state, &mixed).unwrap();
        let (_, opened, _) = open(&image, &media).unwrap();
        let found = map(&opened);
        assert!(
            lives.contains(&found),
            "seed {seed}: the map is none that the drive had since it was synced"
        );
    }
}

/// A group that a power cut has torn ends a journal for good: what was behind it is never taken for what comes later.
#[test]
fn what_was_behind_a_torn_group_does_not_come_back() {
    let place = Place::new("behind");
    let image = place.image();
    let media = medium(&image);
    let state = DriveFile::beside(&image);
    let (mut file, mut flash) = make(&image, &media);
    let write = |flash: &mut Flash, unit: u64| {
        let start = unit * UNIT_BYTES;
        flash.arrive(
            flash.now(),
            &Command { kind: Kind::Write { fua: true }, start, bytes: UNIT_BYTES, urgent: false },
        );
        while flash.advance(u64::MAX).is_some() {}
    };
    let mut torn_at = 0;
    let mut before_it = Vec::new();
    for unit in 0..8 {
        let before = std::fs::read(&state).unwrap();
        if unit == 4 {
            before_it = map(&flash);
        }
        write(&mut flash, unit);
        keep(&mut file, &mut flash);
        if unit == 4 {
            let after = std::fs::read(&state).unwrap();
            torn_at = before.iter().zip(&after).position(|(old, new)| old != new).unwrap();
        }
    }
    drop(file);
    let mut bytes = std::fs::read(&state).unwrap();
    bytes[torn_at + 8] ^= 1;
    std::fs::write(&state, bytes).unwrap();
    let (mut file, mut flash, _) = open(&image, &media).unwrap();
    assert_eq!(map(&flash), before_it);
    write(&mut flash, 100);
    keep(&mut file, &mut flash);
    drop(file);
    let (_, opened, _) = open(&image, &media).unwrap();
    assert_eq!(map(&opened), map(&flash));
}

#[test]
fn a_byte_that_is_wrong_anywhere_is_found_or_harmless() {
    let place = Place::new("wrong-byte");
    let image = place.image();
    let media = medium(&image);
    let state = DriveFile::beside(&image);
    let (mut file, mut flash) = make(&image, &media);
    let mut dice = Dice::new(9);
    let mut lives = vec![map(&flash)];
    for round in 0..60 {
        use_drive(&mut flash, &mut dice, 3);
        keep(&mut file, &mut flash);
        lives.push(map(&flash));
        if round == 30 {
            file.checkpoint(&flash, [0; LIFE_COUNTERS], false).unwrap();
        }
    }
    drop(file);
    let whole = std::fs::read(&state).unwrap();
    let mut refused = 0;
    for page in 0..whole.len() / 4096 {
        let mut bytes = whole.clone();
        bytes[page * 4096 + dice.index(4096)] ^= 1 << dice.roll(8);
        std::fs::write(&state, &bytes).unwrap();
        match open(&image, &media) {
            Ok((_, flash, _)) => {
                assert!(lives.contains(&map(&flash)), "page {page}: a map that the drive never had")
            }
            Err(error) => {
                assert!(!error.to_string().contains('\n'));
                refused += 1;
            }
        }
    }
    assert!((1..=4).contains(&refused), "{refused} pages are the header's");
}

#[test]
fn a_file_that_is_not_its_own_is_refused_in_one_line() {
    let place = Place::new("refused");
    let image = place.image();
    let media = medium(&image);
    let state = DriveFile::beside(&image);
    assert_eq!(DriveFile::describe(&image).unwrap(), None);
    let (file, _) = make(&image, &media);
    drop(file);
    let whole = std::fs::read(&state).unwrap();
    let refused = |bytes: &[u8], media: &Media| {
        std::fs::write(&state, bytes).unwrap();
        let error = open(&image, media).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with(state.to_str().unwrap()) && !error.contains('\n'), "{error}");
        error.replace(state.to_str().unwrap(), "X")
    };
    let changed = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        bytes
    };
    assert!(
        refused(b"", &media).starts_with("X is no state of a drive; the image's bytes are as they were: ")
    );
    assert!(refused(&changed(0, b'x'), &media).starts_with("X is no state of a drive; "));
    assert_eq!(refused(&changed(8, 9), &media), "X has version 9 of the format, and this nvmed knows 1");
    assert!(refused(&changed(60, 0), &media).starts_with("X is damaged: its header is not whole; "));
    assert!(refused(&whole[..whole.len() - 4096], &media).contains("it was cut"));
    assert!(
        refused(&whole, &medium(&place.0.join("other.img")))
            .starts_with("X is the state of another image (it has another identity); ")
    );
    let mut heads = whole.clone();
    heads[16_384 + 20] ^= 1;
    heads[16_384 + 4096 + 20] ^= 1;
    assert!(refused(&heads, &media).contains("neither of its checkpoints is whole"));
    std::fs::write(&state, &whole).unwrap();
    assert!(open(&image, &media).is_ok());
    let long = "#".repeat(1 << 15);
    let flash = Flash::new(&profile()).unwrap();
    let error = DriveFile::create((&image, &media, Flush::Process), (&profile(), &long), &flash).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the profile has 32768 bytes, and the state of a drive has room for 16328: shorten its comments"
    );
}

/// A host of the drive that an image is.
fn host(image: &Path, open: impl FnOnce(&Media) -> KeptDrive) -> Host {
    // A process that was killed has no lock; here, it lives on.
    let size = Some(UNITS * UNIT_BYTES);
    let options = FileOptions { path: image.to_owned(), size, flush: Flush::Process, lock: false };
    let media = Media::file(options).unwrap();
    let drive = open(&media);
    let config = ControllerConfig { drive: Some(profile()), ..ControllerConfig::default() };
    let mut host = Host::of(Controller::with_kept_drive(config, media, drive));
    host.enable();
    host.create_io();
    host
}

fn reopen(image: &Path) -> Host {
    host(image, |media| KeptDrive::open((image, media, Flush::Process), &profile()).unwrap())
}

fn log<T: FromBytes + IntoBytes + zerocopy::Immutable>(host: &mut Host, page: LogPage) -> T {
    let (cdw10, prp1) = (127 << 16 | u32::from(page.0), host.address(DATA).0);
    let entry = SubmissionEntry { opcode: 2, nsid: u32::MAX, cdw10, prp1, ..Default::default() };
    assert!(host.admin(entry).status().is_success());
    let mut log = T::new_zeroed();
    host.memory.read(DATA, log.as_mut_bytes());
    log
}

/// Writes 4 KiB units, and what SMART says of them then: writes, power cycles, unsafe shutdowns.
fn write_units(host: &mut Host, units: std::ops::Range<u64>) -> [u64; 3] {
    for unit in units {
        let entry = host.data(1, unit * 8, 8, 4096);
        assert!(host.io(entry).status().is_success());
    }
    let smart: SmartLog = log(host, LogPage::SMART);
    [smart.host_writes[0], smart.power_cycles[0], smart.unsafe_shutdowns[0]]
}

#[test]
fn a_drives_life_is_told_over_all_its_times() {
    let place = Place::new("life");
    let image = place.image();
    let mut first = host(&image, |media| {
        KeptDrive::create((&image, media, Flush::Process), (&profile(), TEXT), false).unwrap()
    });
    assert_eq!(write_units(&mut first, 0..50), [50, 1, 0]);
    drop(first);
    // It was closed, and then one that is shut down and never dropped.
    let mut second = reopen(&image);
    assert_eq!(write_units(&mut second, 50..80), [80, 2, 0]);
    second.device.write32(register::CC, 0x0046_4001);
    std::mem::forget(second);
    // It was at rest, and now it just ends.
    let mut third = reopen(&image);
    assert_eq!(write_units(&mut third, 0..0), [80, 3, 0]);
    let flush = SubmissionEntry { opcode: 0, nsid: 1, ..Default::default() };
    assert!(third.io(flush).status().is_success());
    let before: DriveLog = log(&mut third, LogPage::DRIVE);
    assert_eq!((before.is_whole(), before.host_units), (true, 80));
    assert!(before.programmed_units >= 80);
    std::mem::forget(third);
    let mut fourth = reopen(&image);
    assert_eq!(write_units(&mut fourth, 0..1), [81, 4, 1]);
    // So much that its journal is full and begins anew, several times; and then it just ends.
    for _ in 0..40 {
        write_units(&mut fourth, 0..1000);
    }
    assert!(fourth.io(flush).status().is_success());
    std::mem::forget(fourth);
    let mut fifth = reopen(&image);
    assert_eq!(write_units(&mut fifth, 0..0), [40_081, 5, 2]);
    let after: DriveLog = log(&mut fifth, LogPage::DRIVE);
    assert_eq!((after.host_units, after.erases_max > 0), (40_081, true));
}

#[test]
fn errors_are_numbered_over_all_times_of_a_drive() {
    let place = Place::new("errors");
    let image = place.image();
    // A read behind the end, whose entry has that number; and as many entries SMART tells of.
    let fail = |host: &mut Host, number: u64| {
        let beyond = host.data(2, u64::MAX - 8, 8, 4096);
        assert!(host.io(beyond).status().is(Status::LBA_OUT_OF_RANGE));
        assert_eq!(log::<ErrorEntry>(host, LogPage::ERROR).count, number);
        assert_eq!(log::<SmartLog>(host, LogPage::SMART).error_entries[0], number);
    };
    let mut first = host(&image, |media| {
        KeptDrive::create((&image, media, Flush::Process), (&profile(), TEXT), false).unwrap()
    });
    fail(&mut first, 1);
    fail(&mut first, 2);
    drop(first);
    let mut second = reopen(&image);
    fail(&mut second, 3);
    let flush = SubmissionEntry { opcode: 0, nsid: 1, ..Default::default() };
    assert!(second.io(flush).status().is_success());
    std::mem::forget(second);
    fail(&mut reopen(&image), 4);
}

/// With a simulated clock a drive ages by its own time.
#[test]
fn hours_are_of_the_drive_s_clock() {
    let place = Place::new("hours");
    let image = place.image();
    let media = medium(&image);
    let at = (&*image, &media, Flush::Process);
    let drive = KeptDrive::create(at, (&profile(), TEXT), false).unwrap();
    let config =
        ControllerConfig { drive: Some(profile()), clock: Clock::Virtual, ..ControllerConfig::default() };
    let mut host = Host::of(Controller::with_kept_drive(config, media, drive));
    host.enable();
    for _ in 0..3 {
        host.device.wait(999, 0, 3_600_000_000);
    }
    let smart: SmartLog = log(&mut host, LogPage::SMART);
    assert_eq!(smart.power_on_hours[0], 3);
}
