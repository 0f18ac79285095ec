//! Applications of a mobile device on our file system and on ext4, over the same disk: TCE'17 figure 9 and table II.

use crate::calls::Replay;
use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::medium::{Mounted, Zram, formatted};
use crate::mobile::App;
use crate::samples::Samples;
use crate::shell::{nvmed, run, run_with};
use crate::undo::{self, HostResource};
use nvmed_stack::{Config, Sharing};
use nvmed_sys::sync::Mutex;
use nvmed_trace::{CallOptions, Tolerance};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Elapsed time.
pub(crate) struct Time;
/// Write requests that the disk was given.
pub(crate) struct Requests;

/// The variable that names a directory of traces; what is called `mobigen*` there is replayed too.
const TRACES: &str = "NVMED_TRACES";
/// Room for the largest database, its journal and our metadata, several times.
const DISK_BYTES: u64 = 1 << 30;
/// The name of the database below its directory.
const DATABASE: &str = "main.db";

/// What one contender did.
#[derive(Clone, Copy, Debug)]
struct Figures {
    seconds: f64,
    requests: f64,
    bytes: f64,
}

/// One workload: rounds of ours and of ext4's.
#[derive(Clone, Debug, Default)]
struct Pair {
    name: String,
    ours: Vec<Figures>,
    ext4: Vec<Figures>,
}

/// What was measured, and what was not and why.
#[derive(Clone, Debug, Default)]
struct All {
    pairs: Vec<Pair>,
    notes: Vec<String>,
}

fn rounds(effort: &Effort) -> usize {
    if effort.quick { 2 } else { 7 }
}

/// How often a trace is replayed: a minute of an application is done in a tenth of a second.
fn times(effort: &Effort) -> u32 {
    if effort.quick { 2 } else { 20 }
}

/// What runs on both disks.
enum Workload {
    Sql(App, u64),
    Trace(PathBuf, u32),
}

impl Workload {
    fn name(&self) -> String {
        match self {
            Self::Sql(app, _) => app.name().to_owned(),
            Self::Trace(path, _) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }
}

/// A fresh disk with a file system on it, and how a program is started on it.
enum Seat {
    Ours { dir: PathBuf, config: Settings, nvmed: PathBuf },
    Ext4 { mounted: Mounted },
}

/// A configuration file, removed when dropped.
struct Settings(PathBuf);

impl Drop for Settings {
    fn drop(&mut self) {
        undo::undo(&HostResource::File(self.0.clone()));
    }
}

impl Seat {
    fn ours(zram: &Zram) -> Result<Self, LabError> {
        let spec = formatted(zram)?;
        let base = std::env::temp_dir().join(format!("nvmed-lab-{}-mobile", std::process::id()));
        let (dir, file) = (base.with_extension("on"), base.with_extension("conf"));
        let mut config = Config::new(dir.clone(), spec);
        config.sharing = Some(Sharing::Private);
        undo::made(&HostResource::File(file.clone()));
        std::fs::write(&file, config.to_text()).map_err(|error| LabError::program(file.display(), &error))?;
        Ok(Self::Ours { dir, config: Settings(file), nvmed: nvmed()? })
    }

    fn ext4(zram: &Zram) -> Result<Self, LabError> {
        Ok(Self::Ext4 { mounted: Mounted::made(zram, "ext4")? })
    }

    fn dir(&self) -> &Path {
        match self {
            Self::Ours { dir, .. } => dir,
            Self::Ext4 { mounted } => mounted.dir(),
        }
    }

    /// `program`, whose files below [`Seat::dir`] are on the disk.
    fn command(&self, program: &Path) -> Command {
        match self {
            Self::Ours { config, nvmed, .. } => {
                let mut command = Command::new(nvmed);
                command.args(["run", "--config"]).arg(&config.0).arg("--").arg(program);
                command
            }
            Self::Ext4 { .. } => Command::new(program),
        }
    }

    fn sqlite(&self, sql: &str) -> Result<String, LabError> {
        let mut command = self.command(Path::new("sqlite3"));
        run_with(command.arg("-bail").arg(self.dir().join(DATABASE)), sql.as_bytes())
    }

    /// Everything is on the disk. Ours is when the program has ended: its mount has too.
    fn sync(&self) -> Result<(), LabError> {
        match self {
            Self::Ours { .. } => Ok(()),
            Self::Ext4 { mounted } => mounted.sync(),
        }
    }
}

/// Does the work on a fresh disk; the answer of [`App::check`] tells what the database is afterwards.
fn round(zram: &Zram, seat: &Seat, workload: &Workload, seed: u64) -> Result<(Figures, String), LabError> {
    let dir = seat.dir().display().to_string();
    let timed = |what: &mut dyn FnMut() -> Result<String, LabError>| {
        let before = zram.writes()?;
        let begin = Instant::now();
        let said = what()?;
        seat.sync()?;
        let seconds = begin.elapsed().as_secs_f64();
        let after = zram.writes()?;
        let (requests, bytes) = (after.0 - before.0, after.1 - before.1);
        Ok::<_, LabError>((Figures { seconds, requests: requests as f64, bytes: bytes as f64 }, said))
    };
    match workload {
        Workload::Sql(app, count) => {
            seat.sqlite(&app.before(&dir))?;
            seat.sync()?;
            let sql = app.transactions_sql(&dir, *count, seed);
            let (figures, _) = timed(&mut || seat.sqlite(&sql))?;
            Ok((figures, seat.sqlite(&app.check(&dir))?))
        }
        Workload::Trace(path, times) => {
            let times = times.to_string();
            let replay = |words: &[&str]| {
                let mut command = seat.command(&nvmed()?);
                run(command.args(["lab", "replay", "--times", &times]).args(words).arg(path).arg(seat.dir()))
            };
            replay(&["--prepare"])?;
            seat.sync()?;
            timed(&mut || replay(&[]))
        }
    }
}

fn pair(workload: &Workload, effort: &Effort) -> Result<Pair, LabError> {
    let mut pair = Pair { name: workload.name(), ..Pair::default() };
    for seed in 0..rounds(effort) as u64 {
        let zram = Zram::new(DISK_BYTES)?;
        let (ours, a) = round(&zram, &Seat::ours(&zram)?, workload, seed)?;
        drop(zram);
        let zram = Zram::new(DISK_BYTES)?;
        let (ext4, b) = round(&zram, &Seat::ext4(&zram)?, workload, seed)?;
        if a != b {
            let reason = format!("ours ended as {a:?}, ext4 as {b:?}");
            return Err(LabError::Program { shown: pair.name, reason });
        }
        pair.ours.push(ours);
        pair.ext4.push(ext4);
    }
    Ok(pair)
}

/// The traces that may be replayed, or why there are none.
fn traces() -> Result<Vec<PathBuf>, String> {
    let none = |what: String| Err(format!("SKIPPED: the replay of a recorded application: {what}"));
    let Some(dir) = std::env::var_os(TRACES) else {
        return none(format!("{TRACES} names no directory with a trace of mobigen"));
    };
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()),
        Err(error) => return none(format!("{}: {error}", Path::new(&dir).display())),
    };
    let mut paths: Vec<PathBuf> = entries
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("mobigen")))
        .collect();
    paths.sort();
    if paths.is_empty() {
        none(format!("{} holds no mobigen*", Path::new(&dir).display()))
    } else {
        Ok(paths)
    }
}

/// Both experiments look at the same runs.
fn measured(effort: &Effort) -> Result<All, LabError> {
    static LAST: Mutex<Option<(bool, All)>> = Mutex::new(None);
    let mut last = LAST.lock();
    if let Some((quick, all)) = &*last
        && *quick == effort.quick
    {
        return Ok(all.clone());
    }
    if Command::new("sqlite3").arg("--version").output().is_err() {
        return Err(LabError::missing("the sqlite3 shell is needed (Debian: sqlite3)"));
    }
    let share = if effort.quick { 10 } else { 1 };
    let mut workloads: Vec<Workload> =
        App::ALL.map(|app| Workload::Sql(app, app.transactions() / share)).into();
    let mut all = All::default();
    match traces() {
        Ok(paths) => {
            for path in &paths {
                let tolerance = Tolerance::Lines(u64::MAX);
                let replay = Replay::load(path, &CallOptions { tolerance, ..CallOptions::default() });
                let replay = replay.map_err(|error| LabError::missing(error.to_string()))?;
                let passed = replay.passed().values().sum::<u64>() + replay.counts().malformed;
                all.notes.push(format!(
                    "{}: {} calls, {passed} lines passed over",
                    path.display(),
                    replay.calls()
                ));
            }
            workloads.extend(paths.into_iter().map(|path| Workload::Trace(path, times(effort))));
        }
        Err(skipped) => {
            eprintln!("nvmed: lab: {skipped}");
            all.notes.push(skipped);
        }
    }
    for workload in &workloads {
        all.pairs.push(pair(workload, effort)?);
    }
    *last = Some((effort.quick, all.clone()));
    Ok(all)
}

fn series(pair: &Pair, unit: &str, of: fn(&Figures) -> f64) -> Series {
    let measured = |name: &str, rounds: &[Figures]| Measured {
        name: name.to_owned(),
        runs: rounds.iter().map(of).collect::<Samples>(),
    };
    Series {
        label: pair.name.clone(),
        unit: unit.to_owned(),
        ours: measured("nvmed on zram", &pair.ours),
        rivals: vec![measured("ext4 on zram", &pair.ext4)],
    }
}

fn method(effort: &Effort) -> String {
    let counts: Vec<String> = App::ALL
        .iter()
        .map(|app| format!("{} {}", app.transactions() / if effort.quick { 10 } else { 1 }, app.name()))
        .collect();
    format!(
        "the unmodified sqlite3 shell, journal_mode=TRUNCATE, synchronous=FULL, transactions as nvmed_lab::mobile::App \
         describes them ({}), and recorded system calls by `nvmed lab replay`, {} times, without pauses; each on a \
         fresh zram disk of its own: ours by `nvmed run` with a private mount over io_uring, its start, mount and \
         unmount included; ext4 (ordered journal) with a final syncfs; requests and bytes are those that the disk \
         counted; the databases are compared afterwards; {} rounds in turns",
        counts.join(", "),
        times(effort),
        rounds(effort)
    )
}

impl Experiment for Time {
    fn id(&self) -> &'static str {
        "tce17.fig9.mobile_db"
    }

    fn what(&self) -> &'static str {
        "mobile applications on an embedded database: elapsed time against ext4's"
    }

    fn goal(&self) -> Goal {
        Goal::AtMost(0.6)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let all = measured(effort)?;
        let mut limits = all.notes.clone();
        limits.push(
            "the paper's traces of a week are not public: the transactions are synthetic; its disk is an SSD, zram \
             answers at once, so software decides more here"
                .to_owned(),
        );
        let series = all.pairs.iter().map(|pair| series(pair, "ms", |round| round.seconds * 1e3)).collect();
        Ok(Finding { cells: Vec::new(), series, method: method(effort), limits })
    }
}

impl Experiment for Requests {
    fn id(&self) -> &'static str {
        "tce17.table2.write_requests"
    }

    fn what(&self) -> &'static str {
        "the same runs: write requests that the disk was given, against ext4's"
    }

    fn goal(&self) -> Goal {
        Goal::AtMost(0.6)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let all = measured(effort)?;
        let median =
            |rounds: &[Figures]| rounds.iter().map(|round| round.bytes / 1e6).collect::<Samples>().median();
        let mut limits = all.notes.clone();
        limits.extend(all.pairs.iter().map(|pair| {
            format!("{}: {:.1} MB written, ext4 {:.1} MB", pair.name, median(&pair.ours), median(&pair.ext4))
        }));
        let series = all.pairs.iter().map(|pair| series(pair, "requests", |round| round.requests)).collect();
        Ok(Finding { cells: Vec::new(), series, method: method(effort), limits })
    }
}
