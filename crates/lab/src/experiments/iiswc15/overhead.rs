//! What recording costs, as section II, C measures it: operations of the device, with a recorder beside those without.

use crate::cell::Cell;
use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::medium::{Mounted, Zram};
use crate::mobile::App;
use crate::samples::Samples;
use crate::shell::{nvmed, run, run_with};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Operations of a disk that has workload and trace, recorded over unrecorded.
pub(crate) struct Overhead;

/// The application: most of its requests are small and durable.
const APP: App = App::Messenger;
/// Room for the image, and for the trace and its temporary files beside it.
const DISK_BYTES: u64 = 1 << 30;
/// Requests that the paper's recorder adds to a request: 6 to 300.
const PAPER_SHARE: f64 = 0.02;

/// Who records.
#[derive(Clone, Copy, Debug)]
enum Recorder {
    /// `nvmed run --trace`: our own stack, over an image on the disk.
    OwnStack,
    /// `nvmed trace record --device`: the kernel's block layer, on which the workload's file system is.
    Kernel,
}

impl Recorder {
    fn name(self) -> &'static str {
        match self {
            Self::OwnStack => "nvmed run --trace",
            Self::Kernel => "nvmed trace record",
        }
    }

    /// What the kernel lacks for it.
    fn lacks(self) -> Option<&'static str> {
        let systems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let has_tracefs = systems.lines().any(|line| line.split_ascii_whitespace().last() == Some("tracefs"));
        (matches!(self, Self::Kernel) && !has_tracefs).then_some("this kernel has no tracefs")
    }

    /// SQLite on the disk, recorded or not. All that is written lies in `dir`: the recorder's temporary files, too.
    fn sqlite(self, dir: &Path, zram: &Zram, is_recorded: bool) -> Result<(Command, String), LabError> {
        let nvmed = nvmed()?;
        let trace = dir.join("trace.parquet");
        let mut command = match (self, is_recorded) {
            (Self::OwnStack, _) => {
                let mut command = Command::new(nvmed);
                command.arg("run").arg("-D").arg(image(dir)).arg("-d").arg(ours(dir));
                command
            }
            (Self::Kernel, true) => {
                let mut command = Command::new(nvmed);
                command.args(["trace", "record", "--device"]).arg(zram.device()).arg("-o").arg(&trace);
                command
            }
            (Self::Kernel, false) => Command::new("sqlite3"),
        };
        if matches!(self, Self::OwnStack) && is_recorded {
            command.arg("--trace").arg(&trace);
        }
        if matches!(self, Self::OwnStack) || is_recorded {
            command.args(["--", "sqlite3"]);
        }
        let files = if matches!(self, Self::OwnStack) { ours(dir) } else { dir.to_owned() };
        command.env("TMPDIR", dir).arg("-bail").arg(files.join("main.db"));
        Ok((command, files.display().to_string()))
    }
}

/// The device of our own stack, on a disk that is mounted at `dir`.
fn image(dir: &Path) -> std::path::PathBuf {
    dir.join("device.img")
}

/// Where programs see what is on it.
fn ours(dir: &Path) -> std::path::PathBuf {
    dir.join("ours")
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Round {
    operations: f64,
    bytes: f64,
    seconds: f64,
}

/// The workload on a fresh disk, which is gone behind it.
fn round(recorder: Recorder, seed: u64, transactions: u64, is_recorded: bool) -> Result<Round, LabError> {
    let zram = Zram::new(DISK_BYTES)?;
    // Declared behind its disk, so that it is unmounted before the disk goes.
    let mounted = Mounted::made(&zram, "ext4")?;
    let dir = mounted.dir();
    if matches!(recorder, Recorder::OwnStack) {
        run(Command::new(nvmed()?).arg("format").arg(image(dir)).args(["--size", "256M"]))?;
    }
    let (mut before, files) = recorder.sqlite(dir, &zram, false)?;
    run_with(&mut before, APP.before(&files).as_bytes())?;
    let (mut workload, _) = recorder.sqlite(dir, &zram, is_recorded)?;
    let sql = APP.transactions_sql(&files, transactions, seed);
    mounted.sync()?;
    let (counts, begin) = (zram.told()?, Instant::now());
    run_with(&mut workload, sql.as_bytes())?;
    let seconds = begin.elapsed().as_secs_f64();
    mounted.sync()?;
    let (operations, bytes) = zram.told()?.since(&counts);
    Ok(Round { operations: operations as f64, bytes: bytes as f64, seconds })
}

/// Rounds with a recorder, and without, in turns.
#[derive(Default)]
struct Rounds {
    with: Vec<Round>,
    without: Vec<Round>,
}

impl Rounds {
    fn of(recorder: Recorder, effort: &Effort, transactions: u64) -> Result<Self, LabError> {
        let mut rounds = Self::default();
        for seed in 0..effort.rounds() as u64 {
            rounds.with.push(round(recorder, seed, transactions, true)?);
            rounds.without.push(round(recorder, seed, transactions, false)?);
        }
        Ok(rounds)
    }

    fn ratio(&self, of: fn(&Round) -> f64) -> f64 {
        samples(&self.with, of).median() / samples(&self.without, of).median()
    }

    fn series(&self, recorder: Recorder) -> Series {
        let measured = |name: &str, rounds: &[Round]| Measured {
            name: name.to_owned(),
            runs: samples(rounds, |round| round.operations),
        };
        Series {
            label: recorder.name().to_owned(),
            unit: "operations".to_owned(),
            ours: measured("recorded", &self.with),
            rivals: vec![measured("unrecorded", &self.without)],
        }
    }

    fn line(&self, recorder: Recorder) -> String {
        format!(
            "{}: bytes {:.3} x; elapsed time {:.3} x, start and end included (neither is judged)",
            recorder.name(),
            self.ratio(|round| round.bytes),
            self.ratio(|round| round.seconds)
        )
    }
}

fn samples(rounds: &[Round], of: fn(&Round) -> f64) -> Samples {
    rounds.iter().map(of).collect()
}

impl Experiment for Overhead {
    fn id(&self) -> &'static str {
        "iiswc15.overhead"
    }

    fn what(&self) -> &'static str {
        "recording: operations of the disk that has workload and trace, over those without a recorder"
    }

    /// The paper's 6 of 300.
    fn goal(&self) -> Goal {
        Goal::AtMost(1.0 + PAPER_SHARE)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        if Command::new("sqlite3").arg("--version").output().is_err() {
            return Err(LabError::missing("the sqlite3 shell is needed (Debian: sqlite3)"));
        }
        let transactions = APP.transactions() / if effort.quick { 10 } else { 1 };
        let (mut series, mut cells, mut limits) = (Vec::new(), Vec::new(), Vec::new());
        for recorder in [Recorder::OwnStack, Recorder::Kernel] {
            if let Some(what) = recorder.lacks() {
                limits.push(format!("SKIPPED: {}: {what}", recorder.name()));
                continue;
            }
            let rounds = Rounds::of(recorder, effort, transactions)?;
            let percent = 100.0 * (rounds.ratio(|round| round.operations) - 1.0);
            cells.push(Cell::new(recorder.name(), "operations added %", 100.0 * PAPER_SHARE, percent));
            limits.push(rounds.line(recorder));
            series.push(rounds.series(recorder));
        }
        limits.push(
            "the paper's recorder writes when it has 300 records of 110 bytes, ours when it has 65,536, packed, and at \
             the end: its share is of the end alone here, and smaller in a longer run. Temporary files of trace record \
             are gone before the kernel writes what is dirty for long, unless a run takes half a minute"
                .to_owned(),
        );
        limits.push(
            "the disk is memory, whose driver merges nothing: an operation is what the file system asks for. The paper \
             has no figure for the time of its code"
                .to_owned(),
        );
        let method = format!(
            "{transactions} transactions of {} by the unmodified sqlite3 shell, on a fresh zram disk with ext4 each \
             time, with and without a recorder in turns, {} rounds; trace and temporary files are on that disk, too; \
             operations are the reads, writes, discards and flushes that the kernel counts there (stat), from a sync \
             before to a sync behind; nvmed run: on an image on the disk, all four probes",
            APP.name(),
            effort.rounds()
        );
        Ok(Finding { series, cells, method, limits })
    }
}
