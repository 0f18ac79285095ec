//! What recording costs, as section II, C measures it: operations on the device beside those of the applications.

use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::mobile::App;
use crate::samples::Samples;
use crate::shell::{run, run_with};
use crate::undo::{self, HostResource};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Operations beside those of the workload, with `nvmed run --trace` and without.
pub(crate) struct Overhead;

/// The application: most of its requests are small and durable.
const APP: App = App::Messenger;
/// What the writer of a trace gives the host at once; and besides that it opens the file, makes it durable, renames and
/// closes it. All of it may be on the device that is traced, as in the paper.
const WRITE_BYTES: u64 = 256 << 10;
const OTHER_OPERATIONS: u64 = 4;

/// One run.
#[derive(Clone, Copy, Debug)]
struct Round {
    seconds: f64,
    operations: f64,
    bytes: f64,
}

/// Files of an experiment, removed when dropped.
struct Files(PathBuf);

impl Files {
    fn new() -> Result<Self, LabError> {
        let base = std::env::temp_dir().join(format!("nvmed-lab-{}-overhead", std::process::id()));
        let files = Self(base);
        for file in files.all() {
            undo::made(&HostResource::File(file.clone()));
            empty(&file)?;
        }
        Ok(files)
    }

    fn image(&self) -> PathBuf {
        self.0.with_extension("img")
    }

    fn trace(&self) -> PathBuf {
        self.0.with_extension("parquet")
    }

    fn counts(&self) -> PathBuf {
        self.0.with_extension("stats")
    }

    fn all(&self) -> [PathBuf; 3] {
        [self.image(), self.trace(), self.counts()]
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.all().into_iter().for_each(|file| undo::undo(&HostResource::File(file)));
    }
}

/// Makes a file, or makes it empty.
fn empty(path: &Path) -> Result<(), LabError> {
    std::fs::File::create(path).map(drop).map_err(|error| LabError::program(path.display(), &error))
}

/// The `nvmed` program beside this one.
fn nvmed() -> Result<PathBuf, LabError> {
    let own = std::env::current_exe().map_err(|error| LabError::program("this program", &error))?;
    let path = own.with_file_name("nvmed");
    let is_there = path.exists();
    if is_there { Ok(path) } else { Err(LabError::missing(format!("no `nvmed` beside {}", own.display()))) }
}

fn round(files: &Files, seed: u64, transactions: u64, is_recorded: bool) -> Result<Round, LabError> {
    let (program, dir) = (nvmed()?, files.0.with_extension("on"));
    let shown = dir.display().to_string();
    run(Command::new(&program).arg("format").arg(files.image()).args(["--size", "256M", "--force"]))?;
    let sqlite = |recorded: bool, sql: &str| {
        let mut command = Command::new(&program);
        command.arg("run").arg("-D").arg(files.image()).arg("-d").arg(&dir);
        command.arg("--stats").arg(files.counts());
        if recorded {
            command.arg("--trace").arg(files.trace());
        }
        run_with(command.args(["--", "sqlite3", "-bail"]).arg(dir.join("main.db")), sql.as_bytes())
    };
    sqlite(false, &APP.before(&shown))?;
    empty(&files.counts())?;
    let begin = Instant::now();
    sqlite(is_recorded, &APP.transactions_sql(&shown, transactions, seed))?;
    let seconds = begin.elapsed().as_secs_f64();
    let (operations, bytes) = device_counts(&files.counts())?;
    let trace_bytes = if is_recorded { size(&files.trace())? } else { 0 };
    let more = if is_recorded { trace_bytes.div_ceil(WRITE_BYTES) + OTHER_OPERATIONS } else { 0 };
    Ok(Round { seconds, operations: (operations + more) as f64, bytes: (bytes + trace_bytes) as f64 })
}

fn size(path: &Path) -> Result<u64, LabError> {
    let metadata = path.metadata().map_err(|error| LabError::program(path.display(), &error))?;
    Ok(metadata.len())
}

/// Requests and bytes that a run's mount gave its device.
fn device_counts(path: &Path) -> Result<(u64, u64), LabError> {
    let text = std::fs::read_to_string(path).map_err(|error| LabError::program(path.display(), &error))?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let device = lines.filter_map(|line| line.get("device").cloned()).next();
    let device =
        device.ok_or_else(|| LabError::missing(format!("{}: no counts of a device", path.display())))?;
    let sum = |names: &[&str]| names.iter().filter_map(|name| device[name].as_u64()).sum::<u64>();
    let operations = sum(&["reads", "writes", "flushes", "write_zeroes", "discards"]);
    Ok((operations, sum(&["bytes_read", "bytes_written"])))
}

impl Experiment for Overhead {
    fn id(&self) -> &'static str {
        "iiswc15.overhead"
    }

    fn what(&self) -> &'static str {
        "recording in our own stack: operations on the device with a trace, over those without"
    }

    /// The paper's 6 of 300.
    fn goal(&self) -> Goal {
        Goal::AtMost(1.02)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        if Command::new("sqlite3").arg("--version").output().is_err() {
            return Err(LabError::missing("the sqlite3 shell is needed (Debian: sqlite3)"));
        }
        let files = Files::new()?;
        let transactions = APP.transactions() / if effort.quick { 10 } else { 1 };
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for seed in 0..effort.rounds() as u64 {
            with.push(round(&files, seed, transactions, true)?);
            without.push(round(&files, seed, transactions, false)?);
        }
        let samples = |rounds: &[Round], of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Samples>();
        let measured = |name: &str, rounds| Measured {
            name: name.to_owned(),
            runs: samples(rounds, |one| one.operations),
        };
        let series = vec![Series {
            label: "operations".to_owned(),
            unit: "operations".to_owned(),
            ours: measured("with --trace, at all four probes", &with),
            rivals: vec![measured("without", &without)],
        }];
        let ratio = |of: fn(&Round) -> f64| samples(&with, of).median() / samples(&without, of).median();
        let limits = vec![
            format!("bytes, those of the trace included: {:.3} x", ratio(|round| round.bytes)),
            format!(
                "elapsed time of the run, its start and end included: {:.3} x (not judged: what else runs is in \
                 it)",
                ratio(|round| round.seconds)
            ),
            "operations of the trace's file are those that its writer makes; how many the host's file system makes of \
             them is its own affair"
                .to_owned(),
            "the paper has no figure for its code; recording the kernel's block layer is not measured".to_owned(),
        ];
        let method = format!(
            "{transactions} transactions of {} by the unmodified sqlite3 shell on an image, `nvmed run`, each round \
             with and without --trace; requests are those that the mount gave its device (--stats), and beside them \
             one for each {} KiB of the trace and {OTHER_OPERATIONS} for its file",
            APP.name(),
            WRITE_BYTES >> 10
        );
        Ok(Finding { series, cells: Vec::new(), method, limits })
    }
}
