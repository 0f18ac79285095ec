//! Crash states: every command of a recording, cut there, several outcomes each.

use crate::coverage::{self, Coverage};
use crate::model::Model;
use crate::mount::mount;
use crate::operation::Step;
use crate::rare::{Marks, Rare, RareStates};
use crate::recording::{Recording, Setting};
use crate::runner::wind_clock;
use crate::survey::{OWN, Survey};
use nvmed_check::Finding;
use nvmed_dice::Dice;
use nvmed_disk::{Disk, Event, Image, Kind, Manner, Trace, Volatile, What};
use nvmed_fs::{Credentials, FileSystem, FsError, OpenFlags, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const WHO: &Credentials<'static> = &Credentials::ROOT;
/// Percent of states in which the power goes a second time.
const SECOND_CUTS: u64 = 30;
/// Percent of the states of memory that are then opened as blocks, as other engines do; after a second cut it is memory
/// again.
const OTHER_ENGINES: u64 = 10;
/// Percent of states in which everything is looked at again after work went on.
const SECOND_LOOKS: u64 = 25;

/// Percent in which the checker looks again later; after the first cut it always does.
const SECOND_CHECKS: u64 = 40;

/// Which state: the same numbers make the same state again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Of the workload.
    pub seed: u64,
    /// Events of the recording that came first: commands were sent, executed, completed.
    pub cut: u64,
    /// Which outcome; from `RESET` on, the device kept its power and its cache.
    pub outcome: u64,
}

/// Outcomes from here on: only the machine was reset, so the device is as it was, its cache included.
pub const RESET: u64 = 100;

/// A state in which a promise was broken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Which state.
    pub case: Case,
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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// States examined.
    pub states: u64,
    /// Among them, those with a second cut.
    pub second_cuts: u64,
    /// Among them, those of memory that the next mount took for blocks.
    pub crossed: u64,
    /// Among them, those of memory behind a buffer.
    pub buffered: u64,
    /// Among them, those in which only the machine was reset.
    pub resets: u64,
    /// Among them, those with several commands in flight.
    pub in_flight: u64,
    /// Among them, deaths of the process.
    pub deaths: u64,
    /// Among them, those of several threads.
    pub threads: u64,
    /// Cuts of what writes a dead process's memory out.
    pub salvages: u64,
    /// Cuts of repairs.
    pub repairs: u64,
    /// Among them, workloads with a failing request.
    pub faults: u64,
    /// Among them, images with a damaged block.
    pub damaged: u64,
    /// Among them, those in which something rare was going on.
    pub rare: RareStates,
    /// Events cut.
    pub cuts: u64,
    /// By operation and kind of write.
    pub coverage: Coverage,
    /// What went wrong.
    pub failures: Vec<Failure>,
}

/// A recording on its way through its events.
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

    /// The step during which event `number` (from 1) came has begun.
    fn begin(&mut self, number: u64) {
        if let Some(step) = self.step().filter(|step| step.events.0 < number && !self.begun) {
            self.model.begin(step);
            self.stake.push(step.row);
            self.begun = true;
        }
    }

    /// After `number` events: the steps that have returned.
    fn complete(&mut self, number: u64) {
        while let Some(step) = self.step().filter(|step| step.events.1 <= number) {
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
    let is_tails = recording.setting.rare == Rare::Tails;
    for (number, &event) in (1..).zip(&recording.trace.events) {
        walk.begin(number);
        let marks = recording.marks.get(walk.at).copied().unwrap_or_else(Marks::default);
        walk.media.follow(event, &recording.trace);
        walk.complete(number);
        let command = &recording.trace.commands[event.command()];
        let columns = coverage::columns(command, &recording.meta);
        let at = event.command() as u64 + 1;
        let wanted = match plan.only {
            Some((cut, _)) => cut == number,
            // What is rare shows between few commands: all of them are examined.
            None => at % plan.stride == offset || coverage::is_rare(&columns) || is_tails,
        };
        let outcomes = match event {
            Event::Completed(_) if walk.media.has_cached() => plan.outcomes,
            Event::Completed(_) => 1,
            Event::Sent(_) => u64::from(command.what != What::Flush),
            Event::Executed(_) => 0,
        };
        let before = tally.states;
        if wanted {
            examine(seed, number, outcomes, &walk, plan, &mut tally);
            tally.cuts += u64::from(outcomes > 0);
        }
        tally.coverage.count(&walk.stake, &columns, tally.states - before);
        tally.rare.count(marks, tally.states - before);
        if !more(tally.states - before) || tally.failures.len() > 3 {
            break;
        }
    }
    tally
}

/// One of so many cuts is a reset of the machine besides.
const RESETS_EVERY: u64 = 4;

fn examine(seed: u64, cut: u64, outcomes: u64, walk: &Walk<'_>, plan: &Plan, tally: &mut Tally) {
    let reset = outcomes > 0 && walk.media.has_cached() && Dice::of(&[seed, cut]).roll(RESETS_EVERY) == 0;
    for outcome in (0..outcomes).chain(reset.then_some(RESET)) {
        if plan.only.is_some_and(|(_, only)| only != outcome) {
            continue;
        }
        let case = Case { seed, cut, outcome };
        let mut dice = Dice::of(&[seed, cut, outcome]);
        let manner = Manner::of(outcome + walk.media.in_flight() as u64, &mut dice);
        let media = match outcome {
            RESET => walk.media.clone(),
            _ => Volatile::new(walk.media.after_cut(&walk.recording.trace, manner, &mut dice)),
        };
        let what = if outcome == RESET { "reset".to_owned() } else { format!("{manner:?}") };
        tally.states += 1;
        tally.resets += u64::from(outcome == RESET);
        tally.buffered += u64::from(walk.recording.setting.kind == Kind::Buffered);
        tally.in_flight += u64::from(walk.media.in_flight() > 1);
        let setting = &walk.recording.setting;
        let found = catch_unwind(AssertUnwindSafe(|| examine_media(media, &walk.model, setting, &mut dice)));
        match found {
            Ok(Ok(had)) => tally.note(had),
            Ok(Err(why)) => tally.failures.push(Failure { case, why: format!("{what}: {why}") }),
            Err(panic) => {
                let why = format!("{what}: panic: {}", panic_text(&*panic));
                tally.failures.push(Failure { case, why });
            }
        }
    }
}

/// What a panic said.
#[must_use]
pub(crate) fn panic_text(panic: &(dyn core::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of no text").to_owned()
}

/// As the state after a cut.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn examine_image(
    image: Image,
    model: &Model,
    setting: &Setting,
    dice: &mut Dice,
) -> Result<Had, String> {
    examine_media(Volatile::new(image), model, setting, dice)
}

/// As the state after a cut, of which not all need be durable.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn examine_media(
    media: Volatile,
    oracle: &dyn Oracle,
    setting: &Setting,
    dice: &mut Dice,
) -> Result<Had, String> {
    let crosses = setting.kind != Kind::Blocks && dice.chance(OTHER_ENGINES);
    let media = if crosses { media.of_kind(Kind::Blocks) } else { media };
    let second = State { media, oracle, setting }.examine(dice);
    let second = second.map_err(|why| if crosses { format!("taken for blocks: {why}") } else { why })?;
    Ok(Had { second, crossed: crosses })
}

/// What came in a state that was as promised.
pub(crate) struct Had {
    /// The power went a second time.
    second: bool,
    /// Memory was taken for blocks.
    crossed: bool,
}

impl Tally {
    /// Counts what came in a state.
    pub(crate) fn note(&mut self, had: Had) {
        self.second_cuts += u64::from(had.second);
        self.crossed += u64::from(had.crossed);
    }
}

/// Knows what may be there.
pub(crate) trait Oracle {
    /// Whether it may look so.
    ///
    /// # Errors
    /// What is wrong, in words.
    fn check(&self, found: &Survey) -> Result<(), String>;
}

impl Oracle for Model {
    fn check(&self, found: &Survey) -> Result<(), String> {
        found.check(self)
    }
}

/// What a cut left, and what may be in it.
struct State<'a> {
    /// After a cut all of it is durable; after a reset it is not.
    media: Volatile,
    oracle: &'a dyn Oracle,
    setting: &'a Setting,
}

impl State<'_> {
    /// Remounts and looks; answers whether there was a second cut.
    fn examine(self, dice: &mut Dice) -> Result<bool, String> {
        wind_clock();
        let disk = Disk::with(self.media.clone(), dice);
        sound_after_cut(&disk, "after the cut")?;
        disk.record();
        let files = mount(&disk, self.setting.options.clone()).map_err(|error| format!("mount: {error}"))?;
        let found = Survey::of(&files).map_err(|ended| ended.to_string())?;
        self.oracle.check(&found)?;
        let mounted = disk.recorded();
        let worked = go_on(&files, dice).map_err(|why| format!("going on: {why}"))?;
        let synced = disk.recorded();
        if dice.chance(SECOND_LOOKS) {
            let again = Survey::of(&files).map_err(|ended| format!("going on: {ended}"))?;
            found.same(&again).map_err(|why| format!("going on changed something else: {why}"))?;
        }
        files.unmount().map_err(|error| format!("unmount: {error}"))?;
        drop(files);
        if dice.chance(SECOND_CHECKS) {
            sound(&disk, "after going on and unmounting")?;
        }
        if !self.media.has_cached() && !dice.chance(SECOND_CUTS) {
            return Ok(false);
        }
        let trace = disk.take_trace();
        let all = trace.events.len() as u64;
        let early = dice.chance(30);
        let cut = dice.roll(if early { mounted } else { all } + 1);
        let kept = worked && cut >= synced;
        let seen = (cut >= mounted || !self.media.has_cached()).then_some(&found);
        self.cut_again(seen, &trace, cut, kept, dice).map_err(|why| {
            format!("second cut, after {cut} of {all} events (the mount took {mounted}): {why}")
        })?;
        Ok(true)
    }

    /// The power goes again while the state was recovered, or went on. What was seen then is seen again.
    fn cut_again(
        &self,
        seen: Option<&Survey>,
        trace: &Trace,
        cut: u64,
        kept: bool,
        dice: &mut Dice,
    ) -> Result<(), String> {
        let mut media = self.media.clone();
        media.abandon();
        trace.events[..cut as usize].iter().for_each(|&event| media.follow(event, trace));
        let manner = Manner::of(dice.roll(3), dice);
        let left = media.after_cut(trace, manner, dice).of_kind(self.setting.kind);
        let disk = Disk::with(Volatile::new(left), dice);
        if dice.chance(SECOND_CHECKS) {
            sound_after_cut(&disk, "then")?;
        }
        let files = mount(&disk, self.setting.options.clone()).map_err(|error| format!("mount: {error}"))?;
        let again = Survey::of(&files).map_err(|ended| ended.to_string())?;
        match seen {
            Some(found) => found.same(&again)?,
            None => self.oracle.check(&again)?,
        }
        if kept {
            check_own(&files).map_err(|why| format!("what was synced after the first cut: {why}"))?;
        }
        Ok(())
    }
}

fn findings(disk: &Arc<Disk>, when: &str) -> Result<Vec<Finding>, String> {
    let device = disk.open(1).map_err(|error| error.to_string())?;
    nvmed_check::fsck(&device).map_err(|error| format!("fsck {when}: {error}"))
}

/// The checker finds nothing.
///
/// # Errors
/// What it found.
pub fn sound(disk: &Arc<Disk>, when: &str) -> Result<(), String> {
    let findings = findings(disk, when)?;
    if findings.is_empty() { Ok(()) } else { Err(format!("fsck {when} found {findings:?}")) }
}

/// As [`sound`], but one superblock of two may be as a write that did not come to its end leaves it.
///
/// # Errors
/// What it found besides.
pub(crate) fn sound_after_cut(disk: &Arc<Disk>, when: &str) -> Result<(), String> {
    let mut findings = findings(disk, when)?;
    findings.retain(|finding| !matches!(finding, Finding::Copy(lost) if lost.is_superblock()));
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
    crate::model::fill(&mut bytes, OWN_SERIAL);
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
pub(crate) fn work_long(files: &FileSystem) -> Result<(), FsError> {
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
    crate::model::fill(&mut expected, OWN_SERIAL);
    let path = format!("{OWN}d/f");
    let file = files.open(&files.root(), path.as_bytes(), OpenFlags::READ, 0, WHO);
    let file = file.map_err(|error| format!("`{path}`: {error}"))?;
    let mut found = vec![0; OWN_BYTES + 1];
    let done = file.pread(&mut found, 0).map_err(|error| format!("`{path}`: {error}"))?;
    if found[..done] == expected[..] { Ok(()) } else { Err(format!("`{path}` reads something else")) }
}
