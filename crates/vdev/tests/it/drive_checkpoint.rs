//! A checkpoint that is written in parts while its drive goes on: whatever ends it, the drive's map is one that it had.

use crate::drive_file::{Place, profile_of};
use nvmed_dice::Dice;
use nvmed_flash::{Command, Flash, Kind, Profile, UNIT_BYTES};
use nvmed_vdev::{DriveFile, DriveFileError, FileOptions, Flush, LIFE_COUNTERS, Media};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// As many as make a map of sixteen parts.
const UNITS: u64 = 16 << 10;
const HEADS: Range<usize> = 16_384..16_384 + 2 * 4096;
/// Bytes of a journal, and of them those that are used when the next checkpoint begins.
const JOURNAL: usize = 1 << 20;
const NEXT: usize = JOURNAL / 8 * 7;

fn profile() -> Profile {
    profile_of(UNITS, 256)
}

fn open(image: &Path, media: &Media) -> Result<(DriveFile, Flash), DriveFileError> {
    let mut flash = Flash::new(&profile()).unwrap();
    let (mut file, loaded) = DriveFile::open((image, media, Flush::Process), &profile(), &mut flash)?;
    file.checkpoint(&flash, loaded.life, false)?;
    flash.keep_records();
    Ok((file, flash))
}

/// The map, and how often each block was erased, in a few bytes.
fn print(flash: &Flash) -> u64 {
    let mut map = vec![0; flash.map_len()];
    flash.map_words(0, &mut map);
    map.extend(flash.block_words().chunks(2).map(|block| block[0]));
    map.iter().fold(0, |print, &entry| nvmed_dice::mix(print ^ u64::from(entry)))
}

/// A few writes, and some deallocations.
fn write(flash: &mut Flash, dice: &mut Dice) {
    for _ in 0..6 {
        let count = 1 + dice.roll(16);
        let start = dice.roll(UNITS - count) * UNIT_BYTES;
        let kind = if dice.roll(20) == 0 { Kind::Deallocate } else { Kind::Write { fua: false } };
        flash.arrive(flash.now(), &Command { kind, start, bytes: count * UNIT_BYTES, urgent: false });
        while flash.advance(u64::MAX).is_some() {}
    }
}

/// A drive that is used, and what a host would have of its state.
struct Used {
    place: Place,
    media: Media,
    file: DriveFile,
    flash: Flash,
    dice: Dice,
    /// Bytes that were appended since the last checkpoint began.
    appended: usize,
    rounds: u64,
}

impl Used {
    fn new(name: &str) -> Self {
        let place = Place::new(name);
        let size = Some(UNITS * UNIT_BYTES);
        let options = FileOptions { path: place.image(), size, flush: Flush::Process, lock: false };
        let media = Media::file(options).unwrap();
        let mut flash = Flash::new(&profile()).unwrap();
        let at = (&*place.image(), &media, Flush::Process);
        let file = DriveFile::create(at, (&profile(), "# a drive\n"), &flash).unwrap();
        flash.keep_records();
        Self { place, media, file, flash, dice: Dice::new(3), appended: 0, rounds: 0 }
    }

    fn round(&mut self) {
        write(&mut self.flash, &mut self.dice);
        assert!(self.file.append(self.flash.records()), "the journal has room");
        self.appended += 16 + self.flash.records().len() * 4;
        self.flash.clear_records();
        self.rounds += 1;
        let life = [self.rounds; LIFE_COUNTERS];
        self.file.go_on(&self.flash, || life).unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(DriveFile::beside(&self.place.image())).unwrap()
    }

    fn heads(&self) -> Vec<u8> {
        let file = std::fs::File::open(DriveFile::beside(&self.place.image())).unwrap();
        let mut heads = vec![0; HEADS.len()];
        file.read_exact_at(&mut heads, HEADS.start as u64).unwrap();
        heads
    }

    /// What a drive with such a state is when it is opened. From there it goes on, however it ends.
    fn opened(&self, state: &[u8]) -> Result<u64, DriveFileError> {
        let image = self.place.image().with_extension("copy");
        std::fs::write(DriveFile::beside(&image), state).unwrap();
        let first = open(&image, &self.media)?.1;
        let (mut file, mut flash) = open(&image, &self.media)?;
        let opened = print(&flash);
        assert_eq!(opened, print(&first), "of a drive that was opened twice");
        write(&mut flash, &mut Dice::new(opened));
        assert!(file.append(flash.records()), "a new journal has room");
        drop(file);
        assert_eq!(print(&open(&image, &self.media)?.1), print(&flash), "of a drive that goes on");
        Ok(opened)
    }
}

/// Pages of one state, or of the other, by chance.
fn mixed(old: &[u8], new: &[u8], chance: u64, dice: &mut Dice) -> Vec<u8> {
    let pages = old.chunks(4096).zip(new.chunks(4096));
    pages.flat_map(|(old, new)| if dice.chance(chance) { new } else { old }).copied().collect()
}

/// Of each page a power cut leaves what was synced, or what was written since. The file is synced before a head is
/// written and after it; a Flush syncs it at any time.
#[test]
fn a_power_cut_at_any_write_of_a_checkpoint_loses_nothing_that_was_synced() {
    let mut used = Used::new("cut-checkpoint");
    let mut dice = Dice::new(8);
    let (mut synced, mut lives) = (used.bytes(), vec![print(&used.flash)]);
    let (mut heads, mut cuts) = (0, 0);
    while heads < 4 {
        used.round();
        lives.push(print(&used.flash));
        let headed = used.heads() != synced[HEADS];
        let (cut, flushed) = (headed || dice.chance(5), headed || dice.chance(5));
        if !cut && !flushed {
            continue;
        }
        let now = used.bytes();
        if cut {
            let chance = [0, 20, 50, 90, 100][dice.index(5)];
            let found = used.opened(&mixed(&synced, &now, chance, &mut dice)).unwrap();
            let round = used.rounds;
            assert!(
                lives.contains(&found),
                "round {round}: a map that the drive had not since it was synced"
            );
            cuts += 1;
        }
        if flushed {
            (synced, lives) = (now, vec![print(&used.flash)]);
            heads += u32::from(headed);
        }
    }
    assert!(cuts > 100, "{cuts} power cuts");
}

/// A process that is killed has written all that it has written.
#[test]
fn a_drive_that_is_killed_in_any_part_of_a_checkpoint_goes_on() {
    let mut used = Used::new("killed-checkpoint");
    for life in 0..16 {
        for _ in 0..used.dice.roll(3000) {
            used.round();
        }
        let (before, rounds) = (print(&used.flash), used.rounds);
        let image = used.place.image();
        let mut flash = Flash::new(&profile()).unwrap();
        let at = (&*image, &used.media, Flush::Process);
        let (mut file, loaded) = DriveFile::open(at, &profile(), &mut flash).unwrap();
        assert_eq!(print(&flash), before, "life {life}");
        let [counted, ..] = loaded.life;
        assert!(counted <= rounds && rounds - counted < 100, "life {life}: round {counted} of {rounds}");
        file.checkpoint(&flash, loaded.life, false).unwrap();
        flash.keep_records();
        (used.file, used.flash) = (file, flash);
    }
}

/// What does not fit in its journal while a checkpoint is under way: all of it is written at once.
#[test]
fn what_is_too_much_for_a_journal_is_kept() {
    for bytes in [JOURNAL / 8, NEXT + JOURNAL / 16, NEXT + JOURNAL / 3, NEXT + JOURNAL / 4 * 3] {
        let mut used = Used::new(&format!("too-much-{bytes}"));
        while used.appended < bytes {
            used.round();
        }
        while used.flash.records().len() * 4 < JOURNAL {
            write(&mut used.flash, &mut used.dice);
        }
        let before = used.bytes();
        assert!(!used.file.append(used.flash.records()), "it is too much");
        used.file.checkpoint(&used.flash, [0; LIFE_COUNTERS], false).unwrap();
        used.flash.clear_records();
        assert_eq!(used.opened(&used.bytes()).unwrap(), print(&used.flash), "after {bytes} bytes");
        for _ in 0..10 {
            used.round();
        }
        // And a power cut that has lost its head, and nothing else.
        let mut headless = used.bytes();
        headless[HEADS].copy_from_slice(&before[HEADS]);
        assert_eq!(used.opened(&headless).unwrap(), used.opened(&before).unwrap(), "after {bytes} bytes");
        while used.appended < bytes + NEXT + JOURNAL / 4 {
            used.round();
        }
        assert_eq!(used.opened(&used.bytes()).unwrap(), print(&used.flash), "after {bytes} bytes, again");
    }
}

#[test]
fn a_byte_that_is_wrong_in_a_checkpoint_under_way_is_found_or_harmless() {
    let mut used = Used::new("wrong-under-way");
    let mut lives = vec![print(&used.flash)];
    while used.appended < NEXT + JOURNAL / 4 {
        used.round();
        lives.push(print(&used.flash));
    }
    let whole = used.bytes();
    assert_eq!(used.opened(&whole).unwrap(), print(&used.flash));
    let mut dice = Dice::new(5);
    let mut refused = 0;
    for page in 0..whole.len() / 4096 {
        let mut bytes = whole.clone();
        bytes[page * 4096 + dice.index(4096)] ^= 1 << dice.roll(8);
        match used.opened(&bytes) {
            Ok(found) => assert!(lives.contains(&found), "page {page}: a map that the drive never had"),
            Err(error) => {
                assert!(!error.to_string().contains('\n'));
                refused += 1;
            }
        }
    }
    // The header, and the one checkpoint that is whole.
    assert!(refused > 4 && refused < 40, "{refused} pages are of what there is once");
}
