//! `nvmed trace sweep`: traces on the drives of a grid.

mod grid;
mod results;
mod shown;

use super::arguments::Sweep;
use super::spare;
use crate::failure::{Failure, Status};
use crate::output::Output;
use crate::paths::Paths;
use crate::status_line::StatusLine;
use grid::{CELLS_MAX, Grid};
use nvmed_replay::{Answer, Digested, Input, InputError, Trial, TrialError, WORKERS_MAX};
use nvmed_trace::Options;
use results::Results;
use shown::Table;
use std::io::Write;
use std::path::{Path, PathBuf};

/// How often progress is told where it is no terminal: this many times in all.
const TOLD: usize = 10;

/// Simulates what is not known yet, and shows all.
///
/// # Errors
/// The file or a trace cannot be read, there is no such drive, or what was found cannot be written.
pub fn run(arguments: &Sweep) -> Result<(), Failure> {
    let grid = Grid::read(&arguments.file)?;
    keep_apart(arguments, &grid)?;
    let traces = traces(arguments, &grid)?;
    let trials: Vec<Trial<'_>> = grid
        .drives
        .iter()
        .flat_map(|drive| {
            let profile = &drive.profile;
            traces.iter().map(|trace| Trial { drive: profile, is_used: grid.is_used, trace })
        })
        .collect();
    let answers = answers(arguments, &grid, &trials)?;
    let table = Table::of(&grid, &traces, &answers);
    if let Some(path) = &arguments.html {
        let title = format!("Sweep: {}", arguments.file.file_stem().unwrap_or_default().to_string_lossy());
        super::files::write_whole(path, &table.page(&title))?;
    }
    let mut out = Output::new();
    out.text(&if arguments.json { table.json() } else { table.text() })?;
    let odd = |of: fn(&Answer) -> u64| answers.iter().filter(|answer| of(answer) > 0).count();
    for (count, what) in [
        (odd(|answer| answer.refused), "a worn-out drive refused writes"),
        (odd(|answer| answer.beyond), "some requests lie beyond the drive, and were moved into it"),
    ] {
        if count > 0 {
            eprintln!("nvmed: in {count} of {} cells {what}", answers.len());
        }
    }
    out.finish()
}

/// The page must not take the place of what is read, or of the results; these look at what is there by themselves.
fn keep_apart(arguments: &Sweep, grid: &Grid) -> Result<(), Failure> {
    let given = arguments.traces.iter().map(PathBuf::from);
    let files = grid.traces.iter().map(|name| grid.dir.join(name)).chain(given);
    let mut paths = files.fold(Paths::default(), |paths, file| paths.reads_trace(&file));
    paths = arguments.output.iter().fold(paths, |paths, file| paths.reads(file, "the results"));
    paths = paths.reads(&arguments.file, "the file of the sweep");
    paths.writes(arguments.html.as_deref(), "--html").check("trace sweep")
}

/// Says how much flash is spare where drives are smaller than their flash.
fn tell_spare(file: &Path, grid: &Grid) {
    let spare: Vec<f64> = grid.drives.iter().filter_map(|drive| drive.spare_percent).collect();
    let most = spare.iter().copied().fold(0.0, f64::max);
    if !spare.is_empty() {
        let (file, count, all) = (file.display(), spare.len(), grid.drives.len());
        let what = spare::WHAT_IT_DOES;
        eprintln!(
            "nvmed: {file}: `size` leaves the flash of {count} of {all} drives as it is, up to {most:.0} % of it \
             spare: {what}"
        );
    }
}

/// The traces, each read once; what of them is malformed is told.
fn traces(arguments: &Sweep, grid: &Grid) -> Result<Vec<Digested>, Failure> {
    let options = Options {
        format: arguments.reading.format,
        tolerance: arguments.reading.malformed.unwrap_or_default(),
    };
    let stdin = "/dev/stdin".to_owned();
    let of_file = grid.traces.iter().map(|name| (name, grid.dir.as_path()));
    // `-` is standard input, which is read more than once if it is a file.
    let given = arguments.traces.iter().map(|name| match name.as_str() {
        "-" => (&stdin, Path::new("")),
        _ => (name, Path::new("")),
    });
    let selection = arguments.reading.selection();
    let named: Vec<(&String, &Path)> = of_file.chain(given).collect();
    if named.is_empty() {
        let file = arguments.file.display();
        let what = "there is no trace; name one after it, or in its `traces`, a file or as synth:Music";
        return Err(Failure::new(Status::Failed, format!("{file}: {what}")));
    }
    if grid.drives.len().saturating_mul(named.len()) > CELLS_MAX {
        return Err(Failure::new(
            Status::Failed,
            format!(
                "{}: {} drives x {} traces are too many; at most {CELLS_MAX} cells are simulated",
                arguments.file.display(),
                grid.drives.len(),
                named.len()
            ),
        ));
    }
    if let Some((at, (name, _))) =
        named.iter().enumerate().find(|(at, (name, _))| named[..*at].iter().any(|(other, _)| other == name))
    {
        return Err(Failure::new(Status::Failed, format!("{name}: trace {} is named twice", at + 1)));
    }
    let mut traces = Vec::new();
    for (name, dir) in named {
        let input = Input::named(name, dir, options).map_err(|error| failure(&error))?.selecting(&selection);
        let (trace, reading) = Digested::of(input).map_err(|error| failure(&error))?;
        if let Some((counts, malformed)) = reading.told() {
            super::files::report_counts(Path::new(name), counts, malformed);
        }
        super::files::tell_devices(Path::new(name), trace.devices);
        if trace.requests == 0 {
            return Err(Failure::new(Status::Failed, format!("{name}: the trace has no requests")));
        }
        traces.push(trace);
    }
    Ok(traces)
}

fn failure(error: &InputError) -> Failure {
    Failure::new(Status::Failed, error.to_string())
}

impl From<TrialError> for Failure {
    fn from(error: TrialError) -> Self {
        Self::new(Status::Failed, error.to_string())
    }
}

/// What each trial answers: what is kept of it, else what comes out now.
fn answers(arguments: &Sweep, grid: &Grid, trials: &[Trial<'_>]) -> Result<Vec<Answer>, Failure> {
    let mut results = arguments.output.as_deref().map(Results::open).transpose()?;
    let keys: Vec<u64> = trials.iter().map(Trial::key).collect();
    let known = |key: &u64| results.as_ref().and_then(|results| results.get(*key));
    let mut answers: Vec<Option<Answer>> = keys.iter().map(known).collect();
    let left: Vec<usize> = (0..trials.len()).filter(|&at| answers[at].is_none()).collect();
    if let (Some(results), Some(path)) = (&results, &arguments.output) {
        let dropped = match results.dropped {
            0 => String::new(),
            count => format!(", {} damaged", super::files::counted(count, "line")),
        };
        let kept = trials.len() - left.len();
        eprintln!("nvmed: {}: {kept} of {} cells are known{dropped}", path.display(), trials.len());
    }
    tell_spare(&arguments.file, grid);
    let workers = arguments.workers.unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(1, |count| count.get().min(WORKERS_MAX))
    });
    let wanted: Vec<Trial<'_>> = left.iter().map(|&at| trials[at]).collect();
    let mut progress = Progress::new(wanted.len());
    let swept = nvmed_replay::sweep(&wanted, workers, |number, answer| {
        let at = left[number];
        answers[at] = Some(answer);
        progress.show();
        results.as_mut().map_or(Ok(()), |results| results.push(keys[at], &answer))
    });
    progress.status.end();
    swept?;
    if let Some(results) = results {
        results.finish(keys.iter().copied())?;
    }
    Ok(answers.into_iter().map(|answer| answer.expect("a sweep that succeeds answers every trial")).collect())
}

/// How far a sweep is, on standard error: a line that changes on a terminal, else some lines.
struct Progress {
    status: StatusLine,
    done: usize,
    all: usize,
}

impl Progress {
    fn new(all: usize) -> Self {
        Self { status: StatusLine::every(0), done: 0, all }
    }

    fn show(&mut self) {
        self.done += 1;
        let (done, all) = (self.done, self.all);
        let line = format!("nvmed: {done} of {all} cells");
        if self.status.is_on() {
            self.status.show(|_| line);
        } else if done * TOLD / all != (done - 1) * TOLD / all {
            // Standard error that goes away takes its lines with it, not the sweep.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
}
