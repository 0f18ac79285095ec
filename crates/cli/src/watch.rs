//! What `nvmed run` shows of a program: the table of its file calls, each of them in a file, and a trace of the stack.

use crate::failure::{Failure, Status};
use crate::paths::Paths;
use crate::recording::{Recording, Told, Wanted};
use crate::run::arguments::Run;
use crate::trips::LastCounters;
use nvmed_stack::{Behind, Config, STAMPS_VARIABLE};
use nvmed_sys::spawn_quiet;
use nvmed_tally::{Record, Row, TALLY_VARIABLE, Tally};
use rustix::fd::OwnedFd;
use serde_json::json;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the recorder waits when nobody has made a call: a thread's ring takes 10,000 calls, which a fast program
/// makes in about this time.
const PAUSE: Duration = Duration::from_millis(2);

/// What was asked for, while the program runs.
pub struct Watch {
    tally: Arc<Tally>,
    /// Of the tally, where file calls are counted or recorded.
    fd: Option<OwnedFd>,
    recorder: Option<Recorder>,
    /// What processes are told of the trace.
    trace: Option<Told>,
    stats: Option<PathBuf>,
    summary: bool,
    counters: LastCounters,
    began: Instant,
}

/// The thread that writes what is recorded.
struct Recorder {
    stop: Arc<AtomicBool>,
    /// Gone when it was waited for.
    thread: Option<JoinHandle<Recorded>>,
}

/// Where it writes.
struct Recorded {
    lines: Option<Lines>,
    trace: Option<Recording>,
}

/// The file of `--record`.
struct Lines {
    file: PathBuf,
    out: BufWriter<File>,
    /// What became of the writes; after one that failed there are no others.
    result: std::io::Result<()>,
}

impl Watch {
    /// Prepares to watch; `None` if nothing was asked for.
    ///
    /// # Errors
    /// A file cannot be written, or there is no memory.
    pub fn begin(arguments: &Run, config: &Config) -> Result<Option<Self>, Failure> {
        let Run { stats, record, summary, .. } = arguments;
        let counts = stats.is_some() || record.is_some() || *summary;
        if !counts && arguments.trace.is_none() {
            return Ok(None);
        }
        let paths = Paths::default().uses(&config.device).writes(arguments.trace.as_deref(), "--trace");
        paths.writes(record.as_deref(), "--record").writes(stats.as_deref(), "--stats").check("run")?;
        arguments.stats.as_deref().map_or(Ok(()), writable)?;
        let no_memory = |errno| Failure::new(Status::Run, format!("run: no memory for the counts: {errno}"));
        let (trace, told) = wanted(arguments, config).as_ref().map(Recording::begin).transpose()?.unzip();
        let records = record.is_some() || told.as_ref().is_some_and(|told| told.file_calls);
        let (tally, fd) = Tally::create(records).map_err(no_memory)?;
        let counters = LastCounters::begin().map_err(no_memory)?;
        let tally = Arc::new(tally);
        let lines =
            record.as_deref().map(|file| Lines::begin(file, &arguments.program, config)).transpose()?;
        let recorded = Recorded { lines, trace };
        let recorder = recorded.is_wanted().then(|| Recorder::start(recorded, &tally)).transpose()?;
        let fd = (counts || records).then_some(fd);
        let (stats, summary, began) = (stats.clone(), *summary, Instant::now());
        Ok(Some(Self { tally, fd, recorder, trace: told, stats, summary, counters, began }))
    }

    /// Tells the program where to count.
    pub fn tell(&self, command: &mut Command) {
        self.fd.iter().for_each(|fd| {
            command.env(TALLY_VARIABLE, crate::run::own_path(fd));
        });
        self.tell_stamps(command);
    }

    /// Tells a process where its requests are recorded.
    fn tell_stamps(&self, command: &mut Command) {
        if let Some(fd) = self.trace.as_ref().and_then(|trace| trace.stamps.as_ref()) {
            command.env(STAMPS_VARIABLE, crate::run::own_path(fd));
        }
    }

    /// Tells the run's server where its last counters go, if they are shown, and where it records.
    pub(crate) fn tell_server(&self, command: &mut Command) {
        if self.summary || self.stats.is_some() {
            LastCounters::tell(command, &crate::run::own_path(self.counters.memory()));
        }
        self.tell_stamps(command);
    }

    /// Writes what was seen.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn end(self, config: &Config) -> Result<(), Failure> {
        let (rows, wall) = (self.tally.rows(), self.began.elapsed());
        let lost = self.tally.lost();
        let recorded = self.recorder.map_or(Ok(()), |recorder| recorder.finish(lost));
        if lost > 0 && self.trace.is_none() {
            eprintln!("nvmed: run: {lost} calls found no room to be recorded; they are counted");
        }
        let trips = self.counters.read();
        if let Some(file) = &self.stats {
            let of_server = trips.as_ref().map_or(String::new(), |trips| format!("{}\n", json!(trips)));
            append(file, &(lines(&rows, wall, lost, config) + &of_server))
                .map_err(|error| failure("--stats", file, &error))?;
        }
        if self.summary {
            eprint!("{}{}", table(&rows, wall), trips.map_or(String::new(), |trips| trips.text()));
        }
        recorded
    }

    /// Of a run that has failed: only what was recorded is written, if there is anything.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn end_of_failed(self) -> Result<(), Failure> {
        let lost = self.tally.lost();
        let Some(Recorded { lines, trace }) = self.recorder.and_then(|mut recorder| recorder.end()) else {
            return Ok(());
        };
        let lines = lines.map_or(Ok(()), Lines::finish);
        let trace = trace.filter(|trace| !trace.is_empty());
        lines.and(trace.map_or(Ok(()), |trace| trace.finish(lost)))
    }
}

/// What of a trace was asked for, if one was.
fn wanted<'a>(arguments: &'a Run, config: &Config) -> Option<Wanted<'a>> {
    let not_ours = match (&config.behind, &arguments.server) {
        (Behind::Host { .. }, _) => Some("--filesystem host"),
        (_, Some(_)) => Some("--server"),
        _ => None,
    };
    let (places, buffer) = (&arguments.trace_at[..], arguments.trace_buffer);
    let is_simulated = config.device.is_simulated();
    Some(Wanted { path: arguments.trace.as_deref()?, places, buffer, not_ours, is_simulated })
}

/// Statistics are written when the program has ended; that they cannot be is told before it starts.
fn writable(file: &Path) -> Result<(), Failure> {
    append(file, "").map_err(|error| failure("--stats", file, &error))
}

fn append(file: &Path, text: &str) -> std::io::Result<()> {
    std::fs::OpenOptions::new().append(true).create(true).open(file)?.write_all(text.as_bytes())
}

fn failure(option: &str, file: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Status::Run, format!("run: {option} {}: {error}", file.display()))
}

/// One line of JSON for the run, and one for each kind of call.
fn lines(rows: &[Row], wall: Duration, lost: u64, config: &Config) -> String {
    let filesystem = match config.behind {
        Behind::Nvmedfs => "nvmedfs",
        Behind::Host { .. } => "host",
    };
    let ns: u64 = rows.iter().map(|row| row.sum.ns).sum();
    let run = json!({
        "filesystem": filesystem,
        "wall_ns": u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
        "calls_ns": ns,
        "records_lost": lost,
    });
    [run].into_iter().chain(rows.iter().map(Row::json)).map(|line| format!("{line}\n")).collect()
}

/// The table of `--summary`: what took most of the time first.
pub fn table(rows: &[Row], wall: Duration) -> String {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.sum.ns));
    let total: u64 = rows.iter().map(|row| row.sum.ns).sum();
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mut text = format!(
        "{:>6} {:>11} {:>9} {:>9} {:>7} {:>13} {:>9} {:>9} {:>9} call\n",
        "% time", "seconds", "us/call", "calls", "errors", "bytes", "p50 us", "p99 us", "max us"
    );
    for row in &rows {
        let (sum, calls) = (&row.sum, row.sum.count());
        let us = |ns: u64| ns as f64 / 1e3;
        // A String takes all.
        let _ = writeln!(
            text,
            "{:>6.2} {:>11.6} {:>9.2} {calls:>9} {:>7} {:>13} {:>9.2} {:>9.2} {:>9.2} {}",
            100.0 * sum.ns as f64 / total.max(1) as f64,
            seconds(sum.ns),
            us(sum.ns) / calls.max(1) as f64,
            sum.errors,
            sum.bytes,
            us(sum.percentile_ns(50.0)),
            us(sum.percentile_ns(99.0)),
            us(sum.max_ns),
            row.kind.name(),
        );
    }
    let calls: u64 = rows.iter().map(|row| row.sum.count()).sum();
    let _ = writeln!(
        text,
        "{calls} file calls took {:.6} s of all threads together; the program ran for {:.6} s",
        seconds(total),
        wall.as_secs_f64(),
    );
    text
}

impl Recorder {
    fn start(recorded: Recorded, tally: &Arc<Tally>) -> Result<Self, Failure> {
        let (stop, tally) = (Arc::new(AtomicBool::new(false)), Arc::clone(tally));
        let stopped = Arc::clone(&stop);
        let thread = spawn_quiet("nvmed-record", move || recorded.write(&tally, &stopped))
            .map_err(|error| Failure::new(Status::Run, format!("run: no thread to record: {error}")))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Writes what is left. `lost_calls` file calls found no room.
    fn finish(mut self, lost_calls: u64) -> Result<(), Failure> {
        let failed = || Failure::new(Status::Run, "run: the thread that records has failed");
        let Recorded { lines, trace } = self.end().ok_or_else(failed)?;
        let lines = lines.map_or(Ok(()), Lines::finish);
        let trace = trace.map_or(Ok(()), |trace| trace.finish(lost_calls));
        lines.and(trace)
    }
}

impl Recorder {
    /// Ends the thread; what it has, if it is not ended yet.
    fn end(&mut self) -> Option<Recorded> {
        let thread = self.thread.take()?;
        self.stop.store(true, Ordering::Release);
        thread.thread().unpark();
        thread.join().ok()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // A run that never began: a trace that nobody finishes leaves nothing behind.
        drop(self.end());
    }
}

impl Recorded {
    fn is_wanted(&self) -> bool {
        self.lines.is_some() || self.trace.is_some()
    }

    /// Writes what is recorded until it is told to stop and nothing is left.
    fn write(mut self, tally: &Tally, stop: &AtomicBool) -> Self {
        let start = tally.start_ns();
        loop {
            let last = stop.load(Ordering::Acquire);
            let Self { lines, trace } = &mut self;
            let mut taken = tally.drain(&mut |record| {
                lines.iter_mut().for_each(|lines| lines.write(record, start));
                trace.iter_mut().for_each(|trace| trace.note(record));
            });
            taken += trace.as_mut().map_or(0, |trace| trace.drain(tally));
            if last {
                return self;
            }
            if taken == 0 {
                std::thread::park_timeout(PAUSE);
            }
        }
    }
}

impl Lines {
    fn begin(file: &Path, program: &[std::ffi::OsString], config: &Config) -> Result<Self, Failure> {
        let fail = |error| failure("--record", file, &error);
        let mut out = BufWriter::with_capacity(1 << 20, File::create(file).map_err(fail)?);
        let words: Vec<_> =
            program.iter().map(|word| word.to_string_lossy().escape_debug().to_string()).collect();
        let mut head = format!("# nvmed calls 2: {}\n", words.join(" "));
        // Under which names a path can mean a file of the run.
        let behind = match &config.behind {
            Behind::Nvmedfs => None,
            Behind::Host { dir } => Some(dir),
        };
        for dir in
            [Some(&config.wrap_dir), behind.filter(|dir| **dir != config.wrap_dir)].into_iter().flatten()
        {
            // A String takes all.
            let _ = writeln!(head, "# below {}", Record::shown(dir.as_os_str().as_bytes()));
        }
        writeln!(out, "{head}# {}", Record::COLUMNS).map_err(fail)?;
        Ok(Self { file: file.to_owned(), out, result: Ok(()) })
    }

    fn write(&mut self, record: &Record, start_ns: u64) {
        if self.result.is_ok() {
            self.result = writeln!(self.out, "{}", record.line(start_ns));
        }
    }

    fn finish(mut self) -> Result<(), Failure> {
        let result = self.result.and_then(|()| self.out.flush());
        result.map_err(|error| failure("--record", &self.file, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_tally::{CallKind, Sum};

    #[test]
    fn the_table_is_sorted_by_time_and_ends_with_a_sum() {
        let row = |kind, ns, bytes| {
            let mut sum = Sum::default();
            (sum.ns, sum.bytes, sum.max_ns) = (ns, bytes, ns);
            sum.add_bucket(ns, 1);
            Row { kind, sum }
        };
        let text = table(
            &[row(CallKind::READ, 1_000, 4096), row(CallKind::FSYNC, 9_000, 0)],
            Duration::from_millis(1),
        );
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].ends_with(" fsync") && lines[1].trim_start().starts_with("90.00"), "{text}");
        assert!(lines[2].ends_with(" read") && lines[2].contains(" 4096 "), "{text}");
        assert!(lines[3].starts_with("2 file calls took 0.000010 s"), "{text}");
        assert!(lines.iter().all(|line| line.len() <= 100), "{text}");
    }
}
