//! Rows of a drive that stays with its image: how long it takes to open after its process was killed, and for how long
//! keeping its state holds it up.
//!
//! The image has no data, so that it takes no room on the host: commands go to the flash model itself, and what they
//! change is kept as the virtual controller keeps it.

use crate::flash::{resident_bytes, row};
use crate::row::{Goal, Row};
use nvmed_dice::Dice;
use nvmed_flash::{Command, Flash, Kind, Profile, Tables, UNIT_BYTES, table_sizes};
use nvmed_lab::machine::{now_ns, thread_cpu_ns};
use nvmed_lab::samples::Samples;
use nvmed_lab::undo::{self, HostResource};
use nvmed_stack::{DriveProfile, NewDrive, create_drive};
use nvmed_sys::Words;
use nvmed_vdev::{DriveFile, FileOptions, Flush, LIFE_COUNTERS, Loaded, Media};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};

/// The rows.
pub const NAMES: [&str; 3] = ["flash.open.time", "flash.open.memory", "flash.open.pause"];
/// The argument with which the benchmark is the program that is killed.
pub const ARGUMENT: &str = "--use-drive";

const BYTES: u64 = 64 << 30;
const PROFILE: &str = "tlc";
const ROUNDS: u64 = 5;
/// Commands under way.
const DEPTH: u64 = 256;
/// Commands of a round: its journal is full three times, and it ends elsewhere in it each time.
const COMMANDS: u64 = 2_000_000;
const STEP: u64 = 150_000;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// An image without data, and the drive that it is; both removed when dropped.
struct Image {
    path: PathBuf,
    state: PathBuf,
}

impl Image {
    fn new() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("nvmed-bench-{}-drive.img", std::process::id()));
        let image = Self { state: DriveFile::beside(&path), path };
        for file in [&image.path, &image.state] {
            undo::made(&HostResource::File(file.clone()));
        }
        let profile = DriveProfile::named(PROFILE).map_err(text)?;
        create_drive(&NewDrive {
            image: &image.path.display().to_string(),
            profile: &profile,
            size_bytes: Some(BYTES),
            again: false,
            used: true,
        })
        .map_err(text)?;
        Ok(image)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        for file in [&self.path, &self.state] {
            undo::undo(&HostResource::File(file.clone()));
        }
    }
}

/// The drive of an image.
struct Drive {
    profile: Profile,
    file: DriveFile,
    flash: Flash<Words>,
    loaded: Loaded,
}

impl Drive {
    fn open(image: &Path) -> Result<Self, String> {
        let profile = DriveProfile::named(PROFILE).map_err(text)?.drive(BYTES).map_err(text)?;
        let options = FileOptions { path: image.to_owned(), size: None, flush: Flush::Host, lock: true };
        let media = Media::file(options).map_err(text)?;
        let (map, owners) = table_sizes(&profile);
        let words = |count| Words::new(count).map_err(text);
        let tables = Tables { map: words(map)?, owners: words(owners)? };
        let mut flash = Flash::with_tables(&profile, tables).map_err(text)?;
        let (mut file, loaded) =
            DriveFile::open((image, &media, Flush::Host), &profile, &mut flash).map_err(text)?;
        file.checkpoint(&flash, loaded.life, false).map_err(text)?;
        flash.keep_records();
        Ok(Self { profile, file, flash, loaded })
    }

    /// Writes units at random; the longest times for which keeping what changed held the drive up, in nanoseconds: of
    /// the wall's clock, and of the processor.
    fn use_it(&mut self, seed: u64, count: u64) -> Result<[u64; 2], String> {
        let mut dice = Dice::new(seed);
        let (mut given, mut done, mut longest) = (0, 0, [0; 2]);
        while done < count {
            while given < count && given - done < DEPTH {
                let start = dice.roll(BYTES / UNIT_BYTES) * UNIT_BYTES;
                let write =
                    Command { kind: Kind::Write { fua: false }, start, bytes: UNIT_BYTES, urgent: false };
                let _ = self.flash.arrive(self.flash.now(), &write);
                given += 1;
            }
            let _ = self.flash.advance(u64::MAX).ok_or("a command did not complete")?;
            done += 1;
            let begin = [now_ns(), thread_cpu_ns()];
            let kept = if self.file.append(self.flash.records()) {
                self.file.go_on(&self.flash, || [0; LIFE_COUNTERS])
            } else {
                self.file.checkpoint(&self.flash, [0; LIFE_COUNTERS], false)
            };
            kept.map_err(text)?;
            self.flash.clear_records();
            let took = [now_ns() - begin[0], thread_cpu_ns() - begin[1]];
            longest = [longest[0].max(took[0]), longest[1].max(took[1])];
        }
        Ok(longest)
    }
}

/// Is the program that is killed: uses the drive of an image, says for how long keeping its state held it up at most,
/// in nanoseconds, and stays there.
///
/// # Errors
/// The drive cannot be opened, or used.
pub fn be_killed(image: &str, seed: &str) -> Result<(), String> {
    let seed: u64 = seed.parse().map_err(text)?;
    let mut drive = Drive::open(Path::new(image))?;
    let longest = drive.use_it(seed, COMMANDS + seed * STEP)?;
    println!("{} {}", longest[0], longest[1]);
    // Until it is killed; if nobody does, the end of its input is the end.
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

/// Uses a drive in another process, which is then killed; its longest pauses in nanoseconds, as
/// [`Drive::use_it`] tells them.
fn use_and_kill(image: &Path, seed: u64) -> Result<[f64; 2], String> {
    let own = std::env::current_exe().map_err(text)?;
    let mut program = Program::new(own);
    program.arg(ARGUMENT).arg(image).arg(seed.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program.spawn().map_err(text)?;
    let said = answer(&mut child);
    // SIGKILL.
    child.kill().and_then(|()| child.wait()).map_err(text)?;
    said
}

fn answer(child: &mut Child) -> Result<[f64; 2], String> {
    let out = child.stdout.take().ok_or("the program has no output")?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).map_err(text)?;
    let figures = line.split_whitespace().map(|figure| figure.parse().ok()).collect::<Option<Vec<f64>>>();
    let figures = figures.and_then(|figures| figures.try_into().ok());
    figures.ok_or_else(|| "the program that uses the drive has failed".to_owned())
}

/// A drive that is used, killed and opened again.
///
/// # Errors
/// The host has no room, or the drive cannot be opened.
pub fn measure() -> Result<Vec<Row>, String> {
    let image = Image::new()?;
    let (mut times, mut cpu_times, mut memory) = (Samples::default(), Samples::default(), Samples::default());
    let (mut pauses, mut cpu_pauses) = (Samples::default(), Samples::default());
    let mut units = 0;
    for seed in 1..=ROUNDS {
        let [pause, cpu_pause] = use_and_kill(&image.path, seed)?;
        pauses.push(pause / 1e6);
        cpu_pauses.push(cpu_pause / 1e6);
        let before = resident_bytes()?;
        let begin = [now_ns(), thread_cpu_ns()];
        let drive = Drive::open(&image.path)?;
        times.push((now_ns() - begin[0]) as f64 / 1e9);
        cpu_times.push((thread_cpu_ns() - begin[1]) as f64 / 1e9);
        if drive.loaded.was_at_rest {
            return Err("a drive that was killed is at rest".to_owned());
        }
        units = table_sizes(&drive.profile).0;
        memory.push(resident_bytes()?.saturating_sub(before) as f64 / units as f64);
    }
    let conditions = format!(
        "{PROFILE} drive of {} GiB ({units} units) as after long use, state on {}, from the page cache; written in \
         units at random by a process, depth {DEPTH}, until its journal was full several times; SIGKILL; {ROUNDS} \
         rounds of {COMMANDS} and more writes, in each of which the kill is elsewhere in the journal; of the \
         processor, {:.2} s to open and {:.2} ms at most",
        BYTES >> 30,
        std::env::temp_dir().display(),
        cpu_times.median(),
        cpu_pauses.median()
    );
    let of = |name, unit, samples, goal| row(name, unit, "kept drive", samples, goal, conditions.clone());
    Ok(vec![
        of(NAMES[0], "s", times, Goal::Figure(1.0)),
        of(NAMES[1], "bytes a 4 KiB page", memory, Goal::Figure(10.0)),
        of(NAMES[2], "ms at most", pauses, Goal::Figure(20.0)),
    ])
}
