//! Crash states: every command of a recording, cut there, several outcomes each.

use crate::coverage::{self, Coverage};
use crate::dice::Dice;
use crate::disk::Disk;
use crate::media::{Command, Image, Manner, Volatile, What};
use crate::model::Model;
use crate::operation::Step;
use crate::recording::{Recording, Setting};
use crate::runner::wind_clock;
use crate::survey::{OWN, Survey};
use nvmed_fs::{Credentials, FileSystem, FsError, OpenFlags, RenameFlags};
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};

const WHO: &Credentials<'static> = &Credentials::ROOT;
/// Percent of states in which the power goes a second time.
const SECOND_CUTS: u64 = 30;
/// Percent of states in which everything is looked at again after work went on.
const SECOND_LOOKS: u64 = 25;

/// Which state: the same numbers make the same state again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of the workload.
    pub seed: u64,
    /// Commands of the recording that came first, the one that was in flight included.
    pub cut: u64,
    /// Which outcome; from `IN_FLIGHT` on, the last command had not completed.
    pub outcome: u64,
}

/// Outcomes from here on: the last command was in flight.
pub const IN_FLIGHT: u64 = 100;

/// A state in which a promise was broken.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which state.
    pub place: Place,
    /// What was wrong.
    pub why: String,
}

/// Which cuts and outcomes are tried.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Outcomes of a cut after a command, where the device had something to lose.
    pub outcomes: u64,
    /// Every `stride`-th command is cut, and all of the kinds that are rare.
    pub stride: u64,
    /// Only this state.
    pub only: Option<(u64, u64)>,
}

/// What the cuts of one recording came to.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// States examined.
    pub states: u64,
    /// Among them, those with a second cut.
    pub second_cuts: u64,
    /// Among them, deaths of the process.
    pub deaths: u64,
    /// Among them, workloads with a failing request.
    pub faults: u64,
    /// Among them, images with a damaged block.
    pub damaged: u64,
    /// Workloads in which the metadata region grew.
    pub grown: u64,
    /// Commands cut.
    pub cuts: u64,
    /// By operation and kind of write.
    pub coverage: Coverage,
    /// What went wrong.
    pub failures: Vec<Failure>,
}

/// A recording on its way through its commands.
struct Walk<'a> {
    recording: &'a Recording,
    media: Volatile,
    model: Model,
    /// The next step, and whether it has begun.
    at: usize,
    begun: bool,
    /// Rows of the steps that are not durable, or that promised durability last.
    stake: Vec<usize>,
}

impl<'a> Walk<'a> {
    fn new(recording: &'a Recording) -> Self {
        let (media, model) = (recording.media.clone(), recording.model.clone());
        let mut walk = Self { recording, media, model, at: 0, begun: false, stake: Vec::new() };
        walk.complete(0);
        walk
    }

    fn step(&self) -> Option<&'a Step> {
        self.recording.steps.get(self.at)
    }

    /// The step during which command `number` (from 1) was sent has begun.
    fn begin(&mut self, number: u64) {
        if let Some(step) = self.step().filter(|step| step.commands.0 < number && !self.begun) {
            self.model.begin(step);
            self.stake.push(step.row);
            self.begun = true;
        }
    }

    /// After `number` commands: the steps that have returned.
    fn complete(&mut self, number: u64) {
        while let Some(step) = self.step().filter(|step| step.commands.1 <= number) {
            if !self.begun {
                self.model.begin(step);
                self.stake.push(step.row);
            }
            self.model.end(step);
            if self.model.moments().len() == 1 {
                self.stake = vec![step.row];
            }
            self.begun = false;
            self.at += 1;
        }
    }
}

/// Walks through a recording and examines the states of `plan`.
pub fn examine_all(
    seed: u64,
    recording: &Recording,
    plan: &Plan,
    more: &mut dyn FnMut(u64) -> bool,
) -> Tally {
    let mut tally = Tally::default();
    let mut walk = Walk::new(recording);
    let offset = Dice::of(&[seed, 0x0ff]).roll(plan.stride);
    for (number, command) in (1..).zip(&recording.trace) {
        walk.begin(number);
        let columns = coverage::columns(command, &recording.meta);
        let wanted = match plan.only {
            Some((cut, _)) => cut == number,
            None => number % plan.stride == offset || coverage::is_rare(&columns),
        };
        let before = tally.states;
        if wanted && command.what != What::Flush {
            examine(seed, number, Some(command), &walk, plan, &mut tally);
        }
        walk.media.run(command);
        tally.coverage.count(&walk.stake, &columns, tally.states - before);
        let between = tally.states;
        walk.complete(number);
        if wanted {
            examine(seed, number, None, &walk, plan, &mut tally);
            tally.cuts += 1;
        }
        tally.coverage.count(&walk.stake, &columns, tally.states - between);
        if !more(tally.states - before) || tally.failures.len() > 3 {
            break;
        }
    }
    tally
}

fn examine(
    seed: u64,
    cut: u64,
    in_flight: Option<&Command>,
    walk: &Walk<'_>,
    plan: &Plan,
    tally: &mut Tally,
) {
    let outcomes = match in_flight {
        Some(_) => IN_FLIGHT..IN_FLIGHT + 1,
        None if walk.media.has_cached() => 0..plan.outcomes,
        None => 0..1,
    };
    for outcome in outcomes {
        if plan.only.is_some_and(|(_, only)| only != outcome) {
            continue;
        }
        let place = Place { seed, cut, outcome };
        let mut dice = Dice::of(&[seed, cut, outcome]);
        let manner = Manner::of(outcome % IN_FLIGHT + u64::from(in_flight.is_some()), &mut dice);
        let image = walk.media.after_cut(in_flight, manner, &mut dice);
        tally.states += 1;
        let state = State { image, model: &walk.model, setting: &walk.recording.setting };
        let found = catch_unwind(AssertUnwindSafe(|| state.examine(&mut dice)));
        match found {
            Ok(Ok(second)) => tally.second_cuts += u64::from(second),
            Ok(Err(why)) => tally.failures.push(Failure { place, why: format!("{manner:?}: {why}") }),
            Err(panic) => {
                let why = format!("{manner:?}: panic: {}", panic_text(&*panic));
                tally.failures.push(Failure { place, why });
            }
        }
    }
}

/// What a panic said.
#[must_use]
pub fn panic_text(panic: &(dyn core::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of no text").to_owned()
}

/// As the state after a cut.
///
/// # Errors
/// What is wrong, in words.
pub fn examine_image(
    image: Image,
    model: &Model,
    setting: &Setting,
    dice: &mut Dice,
) -> Result<bool, String> {
    State { image, model, setting }.examine(dice)
}

/// What a cut left, and what may be in it.
struct State<'a> {
    image: Image,
    model: &'a Model,
    setting: &'a Setting,
}

impl State<'_> {
    /// Remounts and looks; answers whether there was a second cut.
    fn examine(self, dice: &mut Dice) -> Result<bool, String> {
        wind_clock();
        let disk = Disk::new(self.image.clone());
        sound(&disk, CUT)?;
        disk.record();
        let files = disk.mount(self.setting.options.clone()).map_err(|error| format!("mount: {error}"))?;
        let found = Survey::of(&files).map_err(|ended| ended.to_string())?;
        found.check(self.model)?;
        let mounted = disk.recorded();
        let worked = go_on(&files, dice).map_err(|why| format!("going on: {why}"))?;
        let synced = disk.recorded();
        if dice.chance(SECOND_LOOKS) {
            let again = Survey::of(&files).map_err(|ended| format!("going on: {ended}"))?;
            found.same(&again).map_err(|why| format!("going on changed something else: {why}"))?;
        }
        files.unmount().map_err(|error| format!("unmount: {error}"))?;
        drop(files);
        sound(&disk, "after going on and unmounting")?;
        if !dice.chance(SECOND_CUTS) {
            return Ok(false);
        }
        let trace = disk.take_trace();
        let cut = if dice.chance(30) { dice.roll(mounted + 1) } else { dice.roll(trace.len() as u64 + 1) };
        let kept = worked && cut >= synced;
        self.cut_again(&found, &trace[..cut as usize], kept, dice).map_err(|why| {
            format!("second cut, after {cut} of {} commands (the mount took {mounted}): {why}", trace.len())
        })?;
        Ok(true)
    }

    /// The power goes again while the state was recovered, or went on.
    fn cut_again(
        &self,
        found: &Survey,
        trace: &[Command],
        kept: bool,
        dice: &mut Dice,
    ) -> Result<(), String> {
        let mut media = Volatile::new(self.image.clone());
        let in_flight = trace.last().filter(|_| !kept && dice.chance(40));
        let whole = trace.len() - usize::from(in_flight.is_some());
        trace[..whole].iter().for_each(|command| media.run(command));
        let manner = Manner::of(2, dice);
        let disk = Disk::new(media.after_cut(in_flight, manner, dice));
        sound(&disk, CUT)?;
        let files = disk.mount(self.setting.options.clone()).map_err(|error| format!("mount: {error}"))?;
        let again = Survey::of(&files).map_err(|ended| ended.to_string())?;
        found.same(&again)?;
        if kept {
            check_own(&files).map_err(|why| format!("what was synced after the first cut: {why}"))?;
        }
        Ok(())
    }
}

/// When the checker looks: nothing has mounted the image since.
const CUT: &str = "after the cut";

/// The checker finds nothing.
pub fn sound(disk: &std::sync::Arc<Disk>, when: &str) -> Result<(), String> {
    let device = disk.open().map_err(|error| error.to_string())?;
    let mut findings = nvmed_fs::fsck(&device).map_err(|error| format!("fsck {when}: {error}"))?;
    // Of a superblock that was being written the other copy counts: the checker says so, and the next mount mends it.
    findings.retain(|finding| when != CUT || !finding.is_of_a_superblock());
    if findings.is_empty() { Ok(()) } else { Err(format!("fsck {when} found {findings:?}")) }
}

/// Bytes of the file that [`go_on`] makes.
const OWN_BYTES: usize = 9000;
const OWN_SERIAL: u64 = u64::MAX;

/// Works on: a directory, a file with data in it, made durable, read back, renamed. Whether there was
/// room for it.
fn go_on(files: &FileSystem, dice: &mut Dice) -> Result<bool, String> {
    match try_go_on(files, dice) {
        Ok(()) => check_own(files).map(|()| true),
        Err(error) if error.errno() == Errno::NOSPC => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

fn try_go_on(files: &FileSystem, dice: &mut Dice) -> Result<(), FsError> {
    let root = files.root();
    let mut bytes = vec![0; OWN_BYTES];
    crate::dice::fill(&mut bytes, OWN_SERIAL);
    files.mkdir(&root, format!("{OWN}d").as_bytes(), 0o755, WHO)?;
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE).with(OpenFlags::EXCLUSIVE);
    let file = files.open(&root, format!("{OWN}new").as_bytes(), flags, 0o644, WHO)?;
    let mut done = 0;
    while done < bytes.len() {
        done += file.pwrite(&bytes[done..], done as u64)?;
    }
    if dice.chance(50) {
        file.fsync()?;
    }
    let (from, to) = (format!("{OWN}new"), format!("{OWN}d/f"));
    files.rename(&root, from.as_bytes(), &root, to.as_bytes(), RenameFlags::NoReplace, WHO)?;
    file.fsync()
}

/// Works until the store has written a checkpoint.
///
/// # Errors
/// The file system's.
pub fn work_long(files: &FileSystem) -> Result<(), FsError> {
    const NAMES: u64 = 600;
    let root = files.root();
    let before = files.store_stats().checkpoints;
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    for number in 0..NAMES {
        let name = format!("{OWN}{number}-{}", "x".repeat(120));
        let file = files.open(&root, name.as_bytes(), flags, 0o644, WHO)?;
        file.pwrite(&[number as u8; 5000], 0)?;
        file.fsync()?;
        drop(file);
        if number > 3 {
            let old = format!("{OWN}{}-{}", number - 2, "x".repeat(120));
            files.unlink(&root, old.as_bytes(), WHO)?;
        }
        if files.store_stats().checkpoints > before + 1 {
            break;
        }
    }
    files.sync()
}

fn check_own(files: &FileSystem) -> Result<(), String> {
    let mut expected = vec![0; OWN_BYTES];
    crate::dice::fill(&mut expected, OWN_SERIAL);
    let path = format!("{OWN}d/f");
    let file = files.open(&files.root(), path.as_bytes(), OpenFlags::READ, 0, WHO);
    let file = file.map_err(|error| format!("`{path}`: {error}"))?;
    let mut found = vec![0; OWN_BYTES + 1];
    let done = file.pread(&mut found, 0).map_err(|error| format!("`{path}`: {error}"))?;
    if found[..done] == expected[..] { Ok(()) } else { Err(format!("`{path}` reads something else")) }
}
