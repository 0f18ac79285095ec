//! Power cuts and process deaths in the middle of writing files.
//!
//! The contract (decision 6): after a power cut everything fsynced is there, names are those
//! after some operation at or past the last sync, no file shows another file's data, and the checker
//! finds nothing. After the death of the process alone, with its memory kept, everything is there.
//!
//! Every 512-byte sector written carries its file's inode number, its place and a serial number. The
//! test knows which serials a sector may show: what was durable, or anything written since.

use crate::support::{Disk, Ground, memory};
use nvmed_dice::Dice;
use nvmed_fs::Object;
use nvmed_fs::*;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

const SECTOR: usize = 512;
const FILE_SECTORS: u64 = 160;
const NAMES: u64 = 6;
const CACHE_BYTES: u64 = 1 << 20;
const WHO: &Credentials<'static> = &Credentials::ROOT;

/// What one file may look like.
#[derive(Clone, Default)]
struct History {
    /// The newest serial of each sector; 0 reads as zeroes.
    now: Vec<u64>,
    /// Serials that each sector had since the file was durable last, then included.
    may: Vec<BTreeSet<u64>>,
    /// The smallest and largest size in sectors since then.
    sizes: (usize, usize),
}

impl History {
    fn set(&mut self, sector: usize, serial: u64) {
        if sector >= self.now.len() {
            self.resize(sector + 1);
        }
        self.now[sector] = serial;
        self.may[sector].insert(serial);
    }

    fn resize(&mut self, sectors: usize) {
        self.now.resize(sectors, 0);
        for may in self.may.iter_mut().skip(sectors) {
            // Cut off: what is there after an extension is zero.
            may.insert(0);
        }
        if self.may.len() < sectors {
            self.may.resize_with(sectors, || BTreeSet::from([0]));
        }
        self.sizes = (self.sizes.0.min(sectors), self.sizes.1.max(sectors));
    }

    fn durable(&mut self) {
        self.may = self.now.iter().map(|&serial| BTreeSet::from([serial])).collect();
        self.sizes = (self.now.len(), self.now.len());
    }
}

#[derive(Clone, Default)]
pub(crate) struct Model {
    names: BTreeMap<String, u64>,
    files: HashMap<u64, History>,
    /// What the names may be after a cut.
    possible: Vec<BTreeMap<String, u64>>,
    serial: u64,
}

impl Model {
    fn names_changed(&mut self) {
        self.possible.push(self.names.clone());
    }

    /// What is there if the power goes while this becomes `after`.
    pub(crate) fn or(&self, after: &Self) -> Self {
        let mut either = after.clone();
        either.possible.extend(self.possible.iter().cloned());
        for (ino, history) in &self.files {
            let own = either.files.entry(*ino).or_default();
            let sectors = history.may.len().max(own.may.len());
            own.may.resize_with(sectors, || BTreeSet::from([0]));
            for (own, may) in own.may.iter_mut().zip(&history.may) {
                own.extend(may);
            }
            own.sizes = (own.sizes.0.min(history.sizes.0), own.sizes.1.max(history.sizes.1));
        }
        either
    }

    /// Everything about names up to now is durable.
    pub(crate) fn names_durable(&mut self) {
        self.possible = vec![self.names.clone()];
    }
}

fn sector_bytes(ino: u64, sector: u64, serial: u64) -> [u8; SECTOR] {
    let mut bytes = [serial as u8; SECTOR];
    bytes[..8].copy_from_slice(&ino.to_le_bytes());
    bytes[8..16].copy_from_slice(&sector.to_le_bytes());
    bytes[16..24].copy_from_slice(&serial.to_le_bytes());
    bytes
}

fn open(files: &FileSystem, name: &str, flags: OpenFlags) -> Result<Arc<File>, FsError> {
    files.open(&files.root(), name.as_bytes(), flags, 0o644, WHO)
}

/// One random step, in the model first: after an error, the device's, it may have happened or not.
pub(crate) fn step(files: &FileSystem, model: &mut Model, dice: &mut Dice) -> Result<(), FsError> {
    let name = format!("f{}", dice.roll(NAMES));
    let known = model.names.get(&name).copied();
    match (dice.roll(20), known) {
        (_, None) => {
            let made = open(files, &name, OpenFlags::WRITE.with(OpenFlags::CREATE))?;
            let ino = made.stat().ino;
            model.names.insert(name, ino);
            model.files.insert(ino, History::default());
            model.names_changed();
        }
        (0..9, Some(ino)) => return write(files, model, dice, &name, ino),
        (9, Some(ino)) => {
            let sectors = if dice.roll(3) == 0 { dice.roll(3) } else { dice.roll(FILE_SECTORS) } as usize;
            model.files.get_mut(&ino).unwrap().resize(sectors);
            files.truncate(
                Object::At(&files.root(), name.as_bytes(), Follow::Yes),
                (sectors * SECTOR) as u64,
                WHO,
            )?;
        }
        (10..13, Some(ino)) => {
            let file = open(files, &name, OpenFlags::WRITE)?;
            if dice.roll(2) == 0 {
                file.fsync()?
            } else {
                file.fdatasync()?
            }
            model.files.get_mut(&ino).unwrap().durable();
            model.names_durable();
        }
        (13, Some(_)) => {
            files.sync()?;
            model.files.values_mut().for_each(History::durable);
            model.names_durable();
        }
        (14, Some(_)) if dice.roll(4) == 0 => drop(files.trim(dice.roll(2) * 65_536)?),
        (14, Some(_)) => files.write_back_older_than(Duration::ZERO)?,
        (15, Some(_)) => {
            model.names.remove(&name);
            model.names_changed();
            files.unlink(&files.root(), name.as_bytes(), WHO)?;
        }
        (16 | 17, Some(ino)) => {
            let new = format!("f{}", dice.roll(NAMES));
            model.names.remove(&name);
            model.names.insert(new.clone(), ino);
            model.names_changed();
            files.rename(
                &files.root(),
                name.as_bytes(),
                &files.root(),
                new.as_bytes(),
                RenameFlags::Replace,
                WHO,
            )?;
        }
        (_, Some(ino)) => check_now(files, model, &name, ino),
    }
    Ok(())
}

fn write(
    files: &FileSystem,
    model: &mut Model,
    dice: &mut Dice,
    name: &str,
    ino: u64,
) -> Result<(), FsError> {
    // Half of the names are of files so small that they lie in their records, mostly.
    let small = name < "f3" && dice.roll(8) > 0;
    let (start, count) = if small { (0, 1) } else { (dice.roll(FILE_SECTORS), 1 + dice.roll(24)) };
    model.serial += 1;
    let serial = model.serial;
    let bytes: Vec<u8> =
        (start..start + count).flat_map(|sector| sector_bytes(ino, sector, serial)).collect();
    let history = model.files.get_mut(&ino).unwrap();
    for sector in start..start + count {
        history.set(sector as usize, serial);
    }
    let file = open(files, name, OpenFlags::WRITE)?;
    assert_eq!(file.pwrite(&bytes, start * SECTOR as u64)?, bytes.len());
    Ok(())
}

fn contents(files: &FileSystem, name: &str) -> Vec<u8> {
    let file = open(files, name, OpenFlags::READ).expect("the file opens");
    let mut bytes = vec![0xee; file.stat().size as usize + 1];
    let done = file.pread(&mut bytes, 0).expect("the file is read");
    bytes.truncate(done);
    assert_eq!(done as u64, file.stat().size);
    bytes
}

/// The serial of a sector; panics when it is no sector of this file and place.
fn serial_of(bytes: &[u8], ino: u64, sector: u64) -> u64 {
    if bytes.iter().all(|&byte| byte == 0) {
        return 0;
    }
    let serial = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    assert_eq!(
        bytes,
        sector_bytes(ino, sector, serial),
        "sector {sector} of inode {ino} shows something else"
    );
    serial
}

/// Each part of a sector is as it was when the sector had some serial that it may show.
fn assert_torn(bytes: &[u8], whole: usize, (ino, sector): (u64, u64), may: &BTreeSet<u64>) {
    let versions: Vec<[u8; SECTOR]> = may
        .iter()
        .map(|&serial| if serial == 0 { [0; SECTOR] } else { sector_bytes(ino, sector, serial) })
        .collect();
    for (part, at) in bytes.chunks(whole).zip((0..).step_by(whole)) {
        let known = versions.iter().any(|version| version[at..at + part.len()] == *part);
        assert!(known, "sector {sector} of inode {ino} shows {part:?} at {at}, of none of {may:?}");
    }
}

/// The file is what was written last.
fn check_now(files: &FileSystem, model: &Model, name: &str, ino: u64) {
    let bytes = contents(files, name);
    let serials: Vec<u64> =
        bytes.chunks(SECTOR).zip(0..).map(|(bytes, sector)| serial_of(bytes, ino, sector)).collect();
    assert_eq!(serials, model.files[&ino].now, "{name}, inode {ino}");
}

fn names_of(files: &FileSystem) -> BTreeMap<String, u64> {
    let directory = open(files, ".", OpenFlags::DIRECTORY).unwrap();
    let mut names = BTreeMap::new();
    let read = directory.read_dir(&mut |entry| {
        names.insert(String::from_utf8(entry.name.to_vec()).unwrap(), entry.ino);
        core::ops::ControlFlow::Continue(())
    });
    read.unwrap();
    names.retain(|name, _| name.starts_with('f'));
    names
}

/// After a cut: what is there is what may be there. It becomes what the model knows.
fn check_survivor(files: &FileSystem, model: &mut Model) {
    check_survivor_by(files, model, SECTOR);
}

/// As [`check_survivor`], where a cut tears between parts of `whole` bytes.
pub(crate) fn check_survivor_by(files: &FileSystem, model: &mut Model, whole: usize) {
    let names = names_of(files);
    assert!(model.possible.contains(&names), "names {names:?} were never so since {:?}", model.possible);
    let mut survived = HashMap::new();
    for (name, &ino) in &names {
        let (bytes, history) = (contents(files, name), &model.files[&ino]);
        let sectors = bytes.len().div_ceil(SECTOR);
        let sizes = history.sizes;
        assert!(sectors >= sizes.0 && sectors <= sizes.1, "{name} has {sectors} sectors, not {sizes:?}");
        let mut found = History::default();
        found.resize(sectors);
        for (bytes, sector) in bytes.chunks(SECTOR).zip(0..) {
            let may = history.may.get(sector as usize);
            if whole < SECTOR {
                let may = may.unwrap_or_else(|| panic!("{name} inode {ino} has no sector {sector}"));
                assert_torn(bytes, whole, (ino, sector), may);
                continue;
            }
            let serial = serial_of(bytes, ino, sector);
            let allowed = may.is_some_and(|may| may.contains(&serial));
            assert!(allowed, "{name} inode {ino} sector {sector}: {serial} is none of {may:?}");
            found.set(sector as usize, serial);
        }
        found.durable();
        survived.insert(ino, found);
    }
    (model.names, model.files) = (names, survived);
    model.names_durable();
}

fn options(dice: &mut Dice) -> MountOptions {
    MountOptions {
        prealloc_bytes: dice.roll(3) * (64 << 10),
        discard: dice.roll(2) == 0,
        ..MountOptions::default()
    }
}

/// Some rounds of steps, each ended by a cut after a random number of device writes.
fn power_cuts(seed: u64) {
    power_cuts_on(seed, false);
}

/// The device may say that it has flushed, and lie.
fn power_cuts_on(seed: u64, lies: bool) {
    let mut dice = Dice::new(seed);
    let mut disk = Disk::new(16 << 20);
    disk.format();
    let mut model = Model::default();
    model.names_durable();
    for _ in 0..4 {
        let files = disk.mount_with(options(&mut dice), CACHE_BYTES);
        disk.set_lying(lies);
        disk.cut_after(dice.roll(120));
        for _ in 0..400 {
            if let Err(error) = step(&files, &mut model, &mut dice) {
                assert_eq!(error.errno(), Errno::IO, "{error}");
                break;
            }
        }
        disk = disk.survivor(|| dice.roll(2) == 0);
        drop(files);
        disk.assert_sound();
        let files = disk.mount_with(MountOptions::default(), CACHE_BYTES);
        check_survivor(&files, &mut model);
        files.unmount().unwrap();
        drop(files);
        disk.assert_sound();
    }
}

#[test]
fn after_a_power_cut_everything_fsynced_is_there() {
    let seeds = std::env::var("NVMED_CRASH_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    for seed in 0..seeds {
        let run = std::panic::catch_unwind(|| power_cuts(seed));
        assert!(run.is_ok(), "seed {seed} failed: power_cuts({seed}) replays it");
    }
}

/// The canary: did an fsync flush nothing, the test above would have to notice.
#[test]
fn a_device_that_flushes_nothing_is_noticed() {
    let noticed = (0..20).any(|seed| std::panic::catch_unwind(|| power_cuts_on(seed, true)).is_err());
    assert!(noticed, "twenty seeds of power cuts passed without a single flush");
}

/// The process dies; its memory and what the device had cached live on.
fn process_deaths(seed: u64, ground: &Ground) {
    let mut dice = Dice::new(seed ^ 0xdead);
    let mut model = Model::default();
    let mut held = Vec::new();
    for _ in 0..3 {
        let memory_of_the_dead = memory(CACHE_BYTES);
        let parts = ground.parts(memory_of_the_dead.clone(), options(&mut dice));
        let files = FileSystem::mount(parts).unwrap();
        for _ in 0..dice.roll(300) {
            step(&files, &mut model, &mut dice).unwrap();
        }
        // Nothing of it runs any more, not even what dropping does.
        held.push(std::mem::ManuallyDrop::new(files));
        let parts = ground.parts(memory(CACHE_BYTES), MountOptions::default());
        let files = salvage(parts, &memory_of_the_dead, &[]).unwrap();
        assert_eq!(names_of(&files), model.names);
        for (name, &ino) in &model.names {
            check_now(&files, &model, name, ino);
        }
        ground.end(files);
    }
}

#[test]
fn after_the_death_of_the_process_everything_completed_is_there() {
    for seed in 0..60 {
        for ground in [Ground::disk, Ground::medium] {
            let run = std::panic::catch_unwind(|| process_deaths(seed, &ground(16 << 20)));
            assert!(run.is_ok(), "seed {seed} failed: process_deaths({seed}) replays it");
        }
    }
}

/// What a dead process wrote may still be in the device's cache when the next one mounts: an fsync of that one
/// sent nothing, since it had written nothing itself.
#[test]
fn an_fsync_after_the_death_of_the_process_covers_what_that_had_written() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let file = open(&files, "f", OpenFlags::READ_WRITE.with(OpenFlags::CREATE)).unwrap();
    file.pwrite(&[1; 4096], 0).unwrap();
    file.fsync().unwrap();
    file.pwrite(&[2; 4096], 0).unwrap();
    file.sync_range(0, 0).unwrap();
    drop((file, files));
    let files = disk.mount();
    assert_eq!(contents(&files, "f"), [2; 4096]);
    open(&files, "f", OpenFlags::READ).unwrap().fsync().unwrap();
    let files = disk.survivor(|| false).mount();
    assert_eq!(contents(&files, "f"), [2; 4096], "it was seen, and then synced");
}
