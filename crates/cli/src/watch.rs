//! What `nvmed run` shows of a program: the table of its file calls, and each of them in a file.

use crate::failure::{Failure, Status};
use crate::run::arguments::Run;
use crate::trips::LastCounters;
use nvmed_stack::{Behind, Config};
use nvmed_sys::spawn_quiet;
use nvmed_tally::{Record, Row, TALLY_VARIABLE, Tally};
use rustix::fd::OwnedFd;
use serde_json::json;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the recorder waits when nobody has made a call: a thread's ring takes 13,000 calls, which a fast program
/// makes in about this time.
const PAUSE: Duration = Duration::from_millis(2);

/// What was asked for, while the program runs.
pub struct Watch {
    tally: Arc<Tally>,
    fd: OwnedFd,
    recorder: Option<Recorder>,
    stats: Option<PathBuf>,
    summary: bool,
    counters: LastCounters,
    began: Instant,
}

/// The thread that writes records to the file.
struct Recorder {
    file: PathBuf,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Watch {
    /// Prepares to watch; `None` if nothing was asked for.
    ///
    /// # Errors
    /// A file cannot be written, or there is no memory.
    pub fn begin(arguments: &Run) -> Result<Option<Self>, Failure> {
        if arguments.stats.is_none() && arguments.record.is_none() && !arguments.summary {
            return Ok(None);
        }
        arguments.stats.as_deref().map_or(Ok(()), writable)?;
        let no_memory = |errno| Failure::new(Status::Run, format!("run: no memory for the counts: {errno}"));
        let (tally, fd) = Tally::create(arguments.record.is_some()).map_err(no_memory)?;
        let counters = LastCounters::begin().map_err(no_memory)?;
        let tally = Arc::new(tally);
        let record = arguments.record.as_deref();
        let recorder = record.map(|file| Recorder::start(file, &tally, &arguments.program)).transpose()?;
        let (stats, summary) = (arguments.stats.clone(), arguments.summary);
        Ok(Some(Self { tally, fd, recorder, stats, summary, counters, began: Instant::now() }))
    }

    /// Tells the program where to count.
    pub fn tell(&self, command: &mut Command) {
        command.env(TALLY_VARIABLE, crate::run::own_path(&self.fd));
    }

    /// Tells the run's server where its last counters go, if they are shown.
    pub(crate) fn tell_server(&self, command: &mut Command) {
        if self.summary || self.stats.is_some() {
            LastCounters::tell(command, &crate::run::own_path(self.counters.memory()));
        }
    }

    /// Writes what was seen.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn end(self, config: &Config) -> Result<(), Failure> {
        let (rows, wall) = (self.tally.rows(), self.began.elapsed());
        if let Some(recorder) = self.recorder {
            recorder.finish()?;
        }
        let lost = self.tally.lost();
        if lost > 0 {
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
        Ok(())
    }
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
    fn start(file: &Path, tally: &Arc<Tally>, program: &[std::ffi::OsString]) -> Result<Self, Failure> {
        let fail = |error| failure("--record", file, &error);
        let mut out = BufWriter::with_capacity(1 << 20, File::create(file).map_err(fail)?);
        let words: Vec<_> =
            program.iter().map(|word| word.to_string_lossy().escape_debug().to_string()).collect();
        writeln!(out, "# nvmed calls 1: {}\n# {}", words.join(" "), Record::COLUMNS).map_err(fail)?;
        let (stop, tally) = (Arc::new(AtomicBool::new(false)), Arc::clone(tally));
        let stopped = Arc::clone(&stop);
        let thread =
            spawn_quiet("nvmed-record", move || write_records(out, &tally, &stopped)).map_err(fail)?;
        Ok(Self { file: file.to_owned(), stop, thread })
    }

    fn finish(self) -> Result<(), Failure> {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        ended.map_err(|error| failure("--record", &self.file, &error))
    }
}

/// Writes records until it is told to stop and none are left. After a write that failed it only empties the rings.
fn write_records(mut out: BufWriter<File>, tally: &Tally, stop: &AtomicBool) -> std::io::Result<()> {
    let (start, mut result) = (tally.start_ns(), Ok(()));
    loop {
        let last = stop.load(Ordering::Acquire);
        let taken = tally.drain(&mut |record| {
            if result.is_ok() {
                result = writeln!(out, "{}", record.line(start));
            }
        });
        if last {
            return result.and_then(|()| out.flush());
        }
        if taken == 0 {
            std::thread::sleep(PAUSE);
        }
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
