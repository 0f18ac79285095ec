//! `nvmed trace record`: what the kernel's block layer does while a command runs.
//!
//! What is recorded is paired to requests when the command has ended. Signals are the command's: what ends it ends the
//! recording, and the trace is written.

mod instance;
mod origin;

use super::arguments::Record;
use crate::failure::{Failure, Status};
use crate::paths::Paths;
use instance::{Instance, Lost};
use nvmed_sys::Signals;
use nvmed_trace::{KernelTrace, Provenance, Sink};
use rustix::fs::FileType;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Signals that end the command.
const ENDS: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

/// Records while a command runs.
///
/// # Errors
/// There is no tracefs or no permission, no such device, the command does not start or fails, nothing was recorded, or
/// the trace cannot be written.
pub fn run(arguments: &Record) -> Result<(), Failure> {
    let device = arguments.device.as_deref().map(disk).transpose()?;
    if arguments.buffer == 0 {
        return Err(Failure::usage("--buffer 0: nothing can be recorded into it; leave it out for 8M"));
    }
    Paths::default().writes(Some(&arguments.output), "-o").check("trace record")?;
    // Before all threads, and for longer than the instance is there.
    let signals = Signals::take(&[&ENDS[..], &[libc::SIGCHLD]].concat())
        .map_err(|error| failed(format!("signals: {error}")))?;
    let instance = Instance::begin(device, arguments.buffer)?;
    let sink = Sink::create(&arguments.output, arguments.to_format).map_err(super::files::failure)?;
    let origin = origin::of(arguments, device);
    let command = arguments.command[0].display();
    let (recorded, ended) = instance.record(|| obey(&arguments.command, &signals))?;
    let ended = ended.map_err(|error| failed(format!("{command}: {error}")))?;
    let lost = instance.lost()?;
    let mut trace = KernelTrace::new(instance.layout.clone(), recorded, instance.page_bytes);
    let written = write(&mut trace, sink, arguments, lost, origin);
    match ended.code() {
        Some(0) => written,
        Some(status) => Err(failed(with(format!("{command}: it ended with exit status {status}"), written))),
        None => Err(failed(with(format!("{command}: a signal ended it"), written))),
    }
}

fn failed(message: String) -> Failure {
    Failure::new(Status::Failed, message)
}

/// Two failures in a line.
fn with(first: String, second: Result<(), Failure>) -> String {
    second.err().map_or(first.clone(), |second| format!("{first}; {}", second.message))
}

/// Writes what was recorded, and says what of it is not there.
fn write(
    trace: &mut KernelTrace<File>,
    mut sink: Sink,
    arguments: &Record,
    lost: Lost,
    mut origin: Provenance,
) -> Result<(), Failure> {
    let output = arguments.output.display();
    let read = |error: io::Error| failed(format!("what was recorded: {error}"));
    while let Some(request) = trace.next().map_err(read)? {
        sink.write(&request, trace.names()).map_err(super::files::failure)?;
    }
    let counts = trace.counts();
    let (lost_events, requests) = (super::files::counted(lost.events, "event"), counts.requests);
    if lost.is_elsewhere || (lost.events > 0 && counts.holes == 0) {
        return Err(failed(format!(
            "{output}: {lost_events} lost at places that the kernel does not tell, so that no time could be trusted; \
             nothing was written: record with a larger --buffer"
        )));
    }
    if requests == 0 {
        let (of, why) = match (&arguments.device, lost.events) {
            (Some(device), 0) => (format!(" of {}", device.display()), ""),
            (None, 0) => (String::new(), ""),
            (_, _) => (String::new(), ", since events were lost all the time: record with a larger --buffer"),
        };
        return Err(failed(format!(
            "{output}: no request{of} was recorded{why}, and nothing was written; what a command leaves in the page \
             cache is not seen (end it with `sync`)"
        )));
    }
    origin::count(&mut origin, &counts, lost.events);
    sink.come_from(&origin);
    let written = sink.finish(trace.names()).map_err(super::files::failure)?;
    let devices = super::files::counted(trace.names().devices.count() as u64 - 1, "device");
    eprintln!(
        "nvmed: {output}: {} of {devices}",
        super::files::counted(requests - written.left_out, "request")
    );
    super::files::tell(&arguments.output, arguments.to_format, &written);
    if counts.malformed > 0 {
        eprintln!(
            "nvmed: {output}: {} left out that cannot be",
            super::files::counted(counts.malformed, "event")
        );
    }
    if lost.events > 0 {
        let places = super::files::counted(counts.holes, "place");
        eprintln!("nvmed: {output}: {lost_events} lost, at {places}; a larger --buffer holds more");
    }
    super::files::unpaired(&arguments.output, &counts.unpaired);
    Ok(())
}

/// The number of a disk in the kernel's events: a partition's requests are its disk's there.
fn disk(path: &Path) -> Result<u64, Failure> {
    let wrong = |what: String| Failure::usage(format!("{}: {what}", path.display()));
    let status = rustix::fs::stat(path).map_err(|errno| wrong(errno.to_string()))?;
    if FileType::from_raw_mode(status.st_mode) != FileType::BlockDevice {
        return Err(wrong("it is no block device".to_owned()));
    }
    let (major, minor) = (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev));
    let place = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let (major, minor) = if place.join("partition").exists() {
        let text = fs::read_to_string(place.join("../dev")).map_err(|error| wrong(error.to_string()))?;
        let numbers = text.trim().split_once(':').map(|(major, minor)| (major.parse(), minor.parse()));
        let Some((Ok(major), Ok(minor))) = numbers else {
            return Err(wrong("its disk has no number".to_owned()));
        };
        (major, minor)
    } else {
        (major, minor)
    };
    Ok(u64::from(major) << 20 | u64::from(minor))
}

/// Runs a command until it ends. What a terminal sends it gets itself; what somebody sends us is passed on.
fn obey(command: &[OsString], signals: &Signals) -> io::Result<ExitStatus> {
    let mut program = Command::new(&command[0]);
    program.args(&command[1..]);
    signals.release_in(&mut program);
    let mut child = program.spawn()?;
    loop {
        let signal = signals.next()?;
        if signal.number == libc::SIGCHLD {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
        } else if signal.from_process
            && let (Some(pid), Some(number)) =
                (Pid::from_raw(child.id().cast_signed()), Signal::from_named_raw(signal.number))
        {
            // It may have ended just now.
            let _ = kill_process(pid, number);
        }
    }
}
