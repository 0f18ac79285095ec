//! `nvmed trace record`: what the kernel's block layer does while a command runs.
//!
//! A tracing instance of its own, so that nobody else's tracing is disturbed: events of the block layer, a ring buffer
//! for each processor, read by a thread each into a file, and paired to requests when the command has ended. Signals
//! are the command's: what ends it ends the recording, and the trace is written.

use super::arguments::Record;
use crate::failure::{Failure, Status};
use nvmed_sys::Signals;
use nvmed_trace::{KernelEvent, KernelLayout, KernelTrace, Sink};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Where tracefs is, where it is mounted at all.
const TRACEFS: &str = "/sys/kernel/tracing";
/// How long a thread waits for more when a ring buffer is empty.
const PAUSE: Duration = Duration::from_millis(20);
/// Signals that end the command.
const ENDS: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

/// Records while a command runs.
///
/// # Errors
/// There is no tracefs or no permission, no such device, the command does not start, or the trace cannot be written.
pub fn run(arguments: &Record) -> Result<(), Failure> {
    let device = arguments.device.as_deref().map(disk).transpose()?;
    // Before all threads, and for longer than the instance is there.
    let signals = Signals::take(&[&ENDS[..], &[libc::SIGCHLD]].concat())
        .map_err(|error| failed(format!("signals: {error}")))?;
    let tracing = Tracing::begin(device, arguments.buffer)?;
    let sink = Sink::create(&arguments.output, arguments.to_format).map_err(super::failure)?;
    let (recorded, ended) = tracing.record(&arguments.command, &signals)?;
    let lost = tracing.lost()?;
    let mut trace = KernelTrace::new(tracing.layout.clone(), recorded, tracing.page_bytes);
    write(&mut trace, sink)?;
    tell(&trace, arguments, lost);
    match ended {
        Some(0) => Ok(()),
        Some(status) => {
            Err(failed(format!("{}: it ended with exit status {status}", arguments.command[0].display())))
        }
        None => Err(failed(format!("{}: a signal ended it", arguments.command[0].display()))),
    }
}

fn failed(message: String) -> Failure {
    Failure::new(Status::Failed, message)
}

fn write(trace: &mut KernelTrace<File>, mut sink: Sink) -> Result<(), Failure> {
    let read = |error: io::Error| failed(format!("what was recorded: {error}"));
    while let Some(request) = trace.next().map_err(read)? {
        sink.write(&request, trace.names()).map_err(super::failure)?;
    }
    let left_out = sink.finish(trace.names()).map_err(super::failure)?;
    if left_out > 0 {
        eprintln!("nvmed: {left_out} requests are left out, which the format cannot say");
    }
    Ok(())
}

fn tell(trace: &KernelTrace<File>, arguments: &Record, lost: u64) {
    let counts = trace.counts();
    eprintln!(
        "nvmed: {}: {} of {}",
        arguments.output.display(),
        super::counted(counts.requests, "request"),
        super::counted(trace.names().devices.count() as u64 - 1, "device"),
    );
    let unpaired = [
        (lost, "events were lost; a larger --buffer holds more"),
        (counts.without_issue, "completions are left out whose issue was not seen"),
        (counts.without_completion, "requests are left out that were not completed"),
        (counts.without_arrival, "requests arrive when they were issued, since their arrival was not seen"),
    ];
    for (count, what) in unpaired.into_iter().filter(|(count, _)| *count > 0) {
        eprintln!("nvmed: {}: {count} {what}", arguments.output.display());
    }
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

/// A tracing instance, which is gone with this.
struct Tracing {
    /// tracefs, where we have mounted it.
    mounted: Option<PathBuf>,
    instance: PathBuf,
    layout: KernelLayout,
    page_bytes: usize,
    processors: Vec<PathBuf>,
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // Nobody can be told; an instance that stays takes memory, and is named after us.
        let _ = fs::write(self.instance.join("tracing_on"), "0");
        let _ = fs::remove_dir(&self.instance);
        if let Some(place) = &self.mounted {
            let _ = unmount(place, UnmountFlags::DETACH);
            let _ = fs::remove_dir(place);
        }
    }
}

/// The message of a host that does not let us trace.
fn refused(place: &Path, error: &io::Error) -> Failure {
    failed(format!(
        "{}: {error}; recording the kernel's block layer needs root and tracefs (CONFIG_FTRACE)",
        place.display()
    ))
}

impl Tracing {
    /// An instance that traces a disk, or all of them, into buffers of so many bytes a processor.
    fn begin(device: Option<u64>, buffer_bytes: u64) -> Result<Self, Failure> {
        let (root, mounted) = tracefs()?;
        let instance = root.join("instances").join(format!("nvmed-{}", std::process::id()));
        let mut tracing = Self {
            mounted,
            instance,
            layout: KernelLayout::default(),
            page_bytes: 4096,
            processors: Vec::new(),
        };
        let instance = tracing.instance.clone();
        fs::create_dir(&instance).map_err(|error| refused(&instance, &error))?;
        let set = |name: &str, value: &str| {
            let place = instance.join(name);
            fs::write(&place, value).map_err(|error| refused(&place, &error))
        };
        // Times that steps of the clock do not change; a full buffer keeps what is there, and a page is handed out
        // before it is full.
        set("trace_clock", "mono")?;
        set("options/overwrite", "0")?;
        set("buffer_size_kb", &buffer_bytes.div_ceil(1024).to_string())?;
        if let Ok(text) = fs::read_to_string(instance.join("buffer_subbuf_size_kb")) {
            tracing.page_bytes = text.trim().parse::<usize>().map_or(4096, |kib| kib << 10);
        }
        for (event, name) in KernelEvent::ALL {
            let place = format!("events/block/{name}");
            let Ok(text) = fs::read_to_string(instance.join(&place).join("format")) else {
                // Kernels before 6.3 have no `block_io_start`; a request then arrives when it is inserted.
                continue;
            };
            tracing.layout.add(event, &text).map_err(|field| {
                failed(format!(
                    "{}/{place}/format: it has no `{field}` that is known here",
                    instance.display()
                ))
            })?;
            if let Some(device) = device {
                set(&format!("{place}/filter"), &format!("dev == {device}"))?;
            }
            set(&format!("{place}/enable"), "1")?;
        }
        let processors = instance.join("per_cpu");
        let entries = fs::read_dir(&processors).map_err(|error| refused(&processors, &error))?;
        tracing.processors = entries.flatten().map(|entry| entry.path()).collect();
        tracing.processors.sort();
        Ok(tracing)
    }

    /// Runs a command; what each processor has recorded, and the command's exit status.
    fn record(&self, command: &[OsString], signals: &Signals) -> Result<(Vec<File>, Option<i32>), Failure> {
        let mut files = Vec::new();
        for _ in &self.processors {
            files.push(unnamed().map_err(|error| failed(format!("a file for what is recorded: {error}")))?);
        }
        let has_ended = AtomicBool::new(false);
        let (copied, ended) = std::thread::scope(|scope| {
            let copies: Vec<_> = self
                .processors
                .iter()
                .zip(&mut files)
                .map(|(processor, file)| {
                    let pipe = processor.join("trace_pipe_raw");
                    let has_ended = &has_ended;
                    scope.spawn(move || copy(&pipe, self.page_bytes, file, has_ended))
                })
                .collect();
            let ended = obey(command, signals);
            let stopped = fs::write(self.instance.join("tracing_on"), "0");
            has_ended.store(true, Ordering::Release);
            copies.iter().for_each(|copy| copy.thread().unpark());
            let copied = copies
                .into_iter()
                .map(|copy| copy.join().unwrap_or_else(|_| Err(io::Error::other("a thread"))));
            (copied.chain([stopped]).collect::<io::Result<Vec<()>>>(), ended)
        });
        copied.map_err(|error| failed(format!("what was recorded: {error}")))?;
        let ended = ended.map_err(|error| failed(format!("{}: {error}", command[0].display())))?;
        Ok((files, ended.code()))
    }

    /// Events that found their buffer full.
    fn lost(&self) -> Result<u64, Failure> {
        let mut lost = 0;
        for processor in &self.processors {
            let place = processor.join("stats");
            let text = fs::read_to_string(&place).map_err(|error| refused(&place, &error))?;
            let count = |line: &str| {
                let (name, count) = line.split_once(':')?;
                matches!(name, "overrun" | "commit overrun" | "dropped events")
                    .then(|| count.trim().parse::<u64>().ok())?
            };
            lost += text.lines().filter_map(count).sum::<u64>();
        }
        Ok(lost)
    }
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

/// Where tracefs is; where it was not mounted, it is, for us alone to know.
fn tracefs() -> Result<(PathBuf, Option<PathBuf>), Failure> {
    let root = PathBuf::from(TRACEFS);
    if root.join("instances").exists() {
        return Ok((root, None));
    }
    let place = std::env::temp_dir().join(format!("nvmed-tracefs-{}", std::process::id()));
    fs::create_dir(&place).map_err(|error| refused(&place, &error))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if let Err(errno) = mount("tracefs", &place, "tracefs", flags, None) {
        let _ = fs::remove_dir(&place);
        return Err(refused(&root, &errno.into()));
    }
    Ok((place.clone(), Some(place)))
}

/// A file without a name.
fn unnamed() -> io::Result<File> {
    let flags = OFlags::TMPFILE.bits() as i32;
    let temporary = std::env::temp_dir();
    let made = fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(&temporary);
    made.or_else(|_| {
        let path = temporary.join(format!("nvmed-record-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    })
}

/// Copies a processor's pages into a file until the command has ended, and then what is left.
fn copy(pipe: &Path, page_bytes: usize, file: &mut File, has_ended: &AtomicBool) -> io::Result<()> {
    let mut pipe =
        fs::OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(pipe)?;
    let mut page = vec![0; page_bytes];
    loop {
        // Before the look: what was recorded before the end is in the buffer then.
        let is_last = has_ended.load(Ordering::Acquire);
        loop {
            match pipe.read(&mut page) {
                Ok(0) => break,
                Ok(count) => {
                    page[count..].fill(0);
                    file.write_all(&page)?;
                }
                Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if is_last {
            return file.rewind();
        }
        std::thread::park_timeout(PAUSE);
    }
}
