//! Calls on files made again, below a directory.

use super::COMMAND;
use crate::failure::{Failure, Status};
use crate::output::Output;
use crate::paths::place;
use crate::trace::arguments;

use crate::trace::files::{counted, failure, report_counts};
use nvmed_chart::time;
use nvmed_lab::LabError;
use nvmed_lab::calls::{CallPacing, Replay, ReplayOptions, Replayed};
use nvmed_trace::{CallOptions, shown};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Makes a trace's calls again, or what was there before them, as `nvmed trace replay --calls` says.
///
/// # Errors
/// The trace cannot be read, the files that were there cannot be made, or calls came late.
pub(super) fn replay_calls(arguments: &arguments::Replay) -> Result<(), Failure> {
    let options = CallOptions {
        format: arguments.reading.format,
        tolerance: arguments.reading.malformed.unwrap_or_default(),
        below: arguments.below.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect(),
    };
    let pacing = match (arguments.open, arguments.dependent) {
        (true, _) => CallPacing::Open,
        (_, true) => CallPacing::Dependent,
        _ => CallPacing::Closed,
    };
    if arguments.speed.is_some() && pacing == CallPacing::Closed {
        let what = "--speed is about times, which calls have with --open or --dependent";
        return Err(Failure::usage(format!("{COMMAND}: {what}")));
    }
    let how = ReplayOptions {
        pacing,
        speed: arguments.speed.unwrap_or(1.0),
        threads: arguments.closed,
        late_ns: arguments.late_bound.map(|bound| u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)),
    };
    let what = (arguments.prepare, arguments.times);
    make(COMMAND, what, (&arguments.trace, &options), arguments.target.as_ref(), &how)
}

/// The same as `nvmed lab replay` says: as fast as it goes.
///
/// # Errors
/// As [`replay_calls`].
pub(crate) fn make_calls(command: &str, what: (bool, u32), trace: &Path, dir: &Path) -> Result<(), Failure> {
    make(command, what, (trace, &CallOptions::default()), dir, &ReplayOptions::default())
}

/// Says nothing on standard output that differs from one file system to the other unless their answers do.
fn make(
    command: &str,
    (prepare, times): (bool, u32),
    (trace, options): (&Path, &CallOptions),
    dir: &Path,
    how: &ReplayOptions,
) -> Result<(), Failure> {
    let failed = |what: String| Failure::new(Status::Failed, format!("{command}: {what}"));
    let wrong = |error: LabError| failed(error.to_string());
    let replay = Replay::load(place(trace), options).map_err(|error| {
        let failure = failure(error);
        Failure::new(failure.status, format!("{command}: {}", failure.message))
    })?;
    report_counts(trace, replay.counts(), replay.malformed());
    let mut directories = Replay::repetitions(dir, times);
    if prepare {
        return directories.try_for_each(|dir| replay.prepare(&dir)).map_err(wrong);
    }
    // As many files may be open as the program had.
    let now = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
    let mut done = Replayed::default();
    directories.try_for_each(|dir| replay.run(&dir, how).map(|replayed| done += replayed)).map_err(wrong)?;
    let mut out = Output::new();
    let Replayed { calls, failed: failures, read_bytes, written_bytes, lateness, .. } = &done;
    out.text(&format!(
        "{calls} calls, {failures} failed, {read_bytes} bytes read, {written_bytes} bytes written\n"
    ))?;
    if how.pacing != CallPacing::Closed {
        let at = |percent| time(lateness.histogram.percentile_ns(percent) as f64);
        let (median, most) = (at(50.0), time(lateness.histogram.max_ns() as f64));
        let bound = time(lateness.bound_ns as f64);
        out.text(&format!(
            "lateness: median {median}, p99 {}, max {most}; {} beyond {bound}\n",
            at(99.0),
            counted(lateness.beyond, "call")
        ))?;
    }
    out.finish()?;
    tell(trace, &replay, &done);
    if !lateness.is_on_time() {
        let cure =
            "take a lower --speed, or leave --open and --dependent out; --late-bound sets another bound";
        return Err(failed(format!("calls were made too late, so that this is no replay: {cure}")));
    }
    Ok(())
}

/// Says on standard error what of a trace was not made, and what ended otherwise.
fn tell(trace: &Path, replay: &Replay, done: &Replayed) {
    let path = shown(&trace.display().to_string());
    if !replay.passed().is_empty() {
        let kinds = replay.passed().iter().map(|(kind, count)| format!("{count} {}", shown(kind)));
        let kinds: Vec<String> = kinds.collect();
        eprintln!(
            "nvmed: {path}: not made again, since nothing changes by it, or not enough is known: {}",
            kinds.join(", ")
        );
    }
    if done.differing > 0 {
        eprintln!(
            "nvmed: {path}: {} ended otherwise than in the recording:",
            counted(done.differing, "call")
        );
        for difference in &done.differences {
            eprintln!("  line {}: {}: {}", difference.line, shown(&difference.step), difference.what);
        }
        let more = done.differing - done.differences.len() as u64;
        if more > 0 {
            eprintln!("  and {more} more");
        }
    }
}
