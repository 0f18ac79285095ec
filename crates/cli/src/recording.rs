//! `nvmed run --trace`: what our own stack does, as a trace (docs/trace.md, "Our own stack").
//!
//! The memory of the rings is this process's, which outlives the program and the server; a thread of it empties them
//! and writes the file.

mod file_calls;
mod order;

use crate::failure::{Failure, Status};
use clap::ValueEnum;
use file_calls::FileCalls;
use nvmed_stamps::{Op as StampedOp, Probe, Reader, Stamped, Stamps, Timescale};
use nvmed_sys::TickClock;
use nvmed_tally::{Record, Tally};
use nvmed_trace::{Catalogue, FORMATS, Flags, Op, Request, Sink, TraceError};
use order::Order;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The format that is written.
const FORMAT: &str = "parquet";
/// Requests that are taken out of the rings at once, before the clock is read and they are written: 4 MB.
const BATCH: usize = 1 << 16;
/// How often rings of dead processes are looked for: there are enough of them for the processes of a minute.
const RECLAIMED_EACH: Duration = Duration::from_secs(1);
/// Names of the devices, in the order of [`Counts`].
const DEVICES: [&str; 4] = ["file", "handle", "queue", "device"];

/// Where `--trace` records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceAt {
    /// Calls of the program that read, write or sync files
    File,
    /// What the file system asks its I/O handles for
    Handle,
    /// What a queue pair is given
    Queue,
    /// Commands of a virtual device
    Device,
}

/// What is asked for.
pub(crate) struct Wanted<'a> {
    /// The file.
    pub(crate) path: &'a Path,
    /// Where; everywhere if empty.
    pub(crate) places: &'a [TraceAt],
    /// Requests that a ring holds.
    pub(crate) buffer: usize,
    /// The option by which the device is somebody else's, if it is.
    pub(crate) not_ours: Option<&'static str>,
    /// Whether the device's own time is simulated.
    pub(crate) is_simulated: bool,
}

/// What is told to the processes that record.
pub(crate) struct Told {
    /// The memory of the rings, where there are any.
    pub(crate) stamps: Option<OwnedFd>,
    /// Whether file calls are wanted.
    pub(crate) file_calls: bool,
}

/// A trace that is being recorded.
pub(crate) struct Recording {
    path: PathBuf,
    reader: Option<Reader>,
    scale: Timescale,
    /// What was taken out of the rings, and has no time yet.
    batch: Vec<(Probe, u32, Stamped)>,
    calls: FileCalls,
    /// File calls of one look.
    fresh: Vec<Record>,
    order: Order,
    names: Catalogue,
    processes: Processes,
    counts: Counts,
    reclaimed: Instant,
    is_simulated: bool,
}

/// What has become of requests.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Taken from each device.
    taken: [u64; DEVICES.len()],
    /// Those that cannot be.
    malformed: u64,
    /// Those that have ended with an error, of those that were taken.
    failed: u64,
}

/// Numbers of processes in the trace, as they are called now.
#[derive(Default)]
struct Processes {
    numbers: HashMap<u32, u32>,
    /// How those were called that are dead.
    last: HashMap<u32, String>,
}

/// Names of dead processes that are kept.
const DEAD_MAX: usize = 1 << 16;

impl Recording {
    /// Begins a trace.
    ///
    /// # Errors
    /// The file cannot be written; there is no such probe in this kind of run; there is no memory.
    pub(crate) fn begin(wanted: &Wanted<'_>) -> Result<(Self, Told), Failure> {
        let path = wanted.path.to_owned();
        let places = places(wanted)?;
        let format = FORMATS.iter().find(|format| format.name() == FORMAT);
        let format = format.expect("the native format is one of them");
        let sink = Sink::create(&path, format).map_err(|error| failure(&error))?;
        let probes: Vec<Probe> = places.iter().filter_map(|place| probe_of(*place)).collect();
        let (mut reader, mut fd, mut clock) = (None, None, TickClock::Monotonic);
        if !probes.is_empty() {
            let made = Stamps::create(&probes, wanted.buffer);
            let no_memory = |errno| {
                Failure::new(Status::Run, format!("run: no memory for the rings of --trace: {errno}"))
            };
            let (stamps, memory) = made.map_err(no_memory)?;
            clock = stamps.clock();
            (reader, fd) = (Some(Reader::new(Arc::new(stamps))), Some(memory));
        }
        let mut names = Catalogue::default();
        // In this order, so that an analysis shows the calls first.
        for name in DEVICES {
            // There is room for four.
            let _ = names.devices.number(name);
        }
        let recording = Self {
            path,
            reader,
            scale: Timescale::begin(clock),
            batch: Vec::with_capacity(BATCH),
            calls: FileCalls::default(),
            fresh: Vec::new(),
            order: Order::new(sink),
            names,
            processes: Processes::default(),
            counts: Counts::default(),
            reclaimed: Instant::now(),
            is_simulated: wanted.is_simulated && wanted.not_ours.is_none(),
        };
        let told = Told { stamps: fd, file_calls: places.contains(&TraceAt::File) };
        Ok((recording, told))
    }

    /// A file call was made.
    pub(crate) fn note(&mut self, record: &Record) {
        self.fresh.push(record.clone());
    }

    /// Writes the file calls that were noted, and what waits in the rings; how many requests that was. `tally` knows
    /// how processes are called.
    ///
    /// All of it in the order in which it ended, as `Order` needs it: a request that is late there is one that many
    /// others have overtaken, and not one that was read after them.
    pub(crate) fn drain(&mut self, tally: &Tally) -> usize {
        self.processes.numbers.clear();
        let mut fresh = std::mem::take(&mut self.fresh);
        // Threads have rings of their own: what ended first was done first.
        fresh.sort_by_key(end_ns);
        let mut calls = &fresh[..];
        let mut of_rings = 0;
        if let Some(mut reader) = self.reader.take() {
            while self.drain_rings(&mut reader, &mut calls, &mut of_rings, tally) {}
            self.reader = Some(reader);
        }
        self.take_calls(&mut calls, u64::MAX, tally);
        let of_files = fresh.len();
        fresh.clear();
        self.fresh = fresh;
        if self.reclaimed.elapsed() > RECLAIMED_EACH {
            self.reclaimed = Instant::now();
            self.reader.iter_mut().for_each(Reader::reclaim);
            self.calls.forget_processes(is_dead);
        }
        of_rings + of_files
    }

    /// A batch of what the rings have, and the file calls that ended between; whether there is more.
    fn drain_rings(
        &mut self,
        reader: &mut Reader,
        calls: &mut &[Record],
        taken: &mut usize,
        tally: &Tally,
    ) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let drained =
            reader.drain(BATCH, &mut |probe, process, request| batch.push((probe, process, *request)));
        self.counts.malformed += drained.malformed as u64;
        *taken += drained.taken;
        if !batch.is_empty() {
            // After all stamps of the batch, so that each lies between two readings.
            self.scale.read();
        }
        for (probe, process, stamped) in batch.drain(..) {
            self.take_calls(calls, self.scale.ns(stamped.finish), tally);
            let process = self.processes.number(process, tally, &mut self.names);
            let request = Request { process, ..request(&stamped, &self.scale) };
            self.counts.failed += u64::from(stamped.has_failed);
            self.take(1 + probe as usize, request);
        }
        self.batch = batch;
        drained.has_more
    }

    /// Takes the file calls that had ended by a time.
    fn take_calls(&mut self, calls: &mut &[Record], until_ns: u64, tally: &Tally) {
        while let Some((call, rest)) = calls.split_first().filter(|(call, _)| end_ns(call) <= until_ns) {
            *calls = rest;
            let requests = self.calls.requests(call);
            if !requests.is_empty() {
                let process = self.processes.number(call.pid, tally, &mut self.names);
                requests.into_iter().for_each(|request| self.take(0, Request { process, ..request }));
            }
        }
    }

    fn take(&mut self, device: usize, request: Request) {
        let request = Request { device: device as u32 + 1, ..request };
        match request.checked() {
            Ok(request) => {
                self.counts.taken[device] += 1;
                self.order.push(request, &self.names);
            }
            Err(_) => self.counts.malformed += 1,
        }
    }

    /// Whether nothing was recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.taken == [0; DEVICES.len()]
    }

    /// Writes the rest, and says what the trace has.
    ///
    /// # Errors
    /// The file could not be written; nothing of it is left.
    pub(crate) fn finish(self, lost_calls: u64) -> Result<(), Failure> {
        let Self { path, reader, counts, order, names, is_simulated, .. } = self;
        let late = order.finish(&names).map_err(|error| failure(&error))?;
        let all: u64 = counts.taken.iter().sum();
        let of = DEVICES.iter().zip(counts.taken).filter(|(_, count)| *count > 0);
        let of: Vec<String> = of.map(|(name, count)| format!("{name} {count}")).collect();
        let of = if of.is_empty() { String::new() } else { format!(" ({})", of.join(", ")) };
        let s = if all == 1 { "" } else { "s" };
        eprintln!("nvmed: run: {}: {all} request{s}{of}", path.display());
        let say = |count: u64, what: &str| {
            if count > 0 {
                eprintln!("nvmed: run: {}: {count} {what}", path.display());
            }
        };
        let lost = reader.map_or(0, |reader| reader.lost());
        say(
            lost,
            "lost, which found no room: --trace-buffer makes the rings larger, --trace-at records less",
        );
        say(lost_calls, "file calls lost, which found no room in their thread's ring");
        say(late, "left out, which ended so late that their place in the file was past");
        say(counts.malformed, "left out, which no request can be");
        say(counts.failed, "failed; they have no finish in the trace");
        if is_simulated {
            eprintln!(
                "nvmed: run: {}: times are of the host's clock: the device's own is simulated, and not in the trace",
                path.display()
            );
        }
        Ok(())
    }
}

/// Where it is recorded.
fn places(wanted: &Wanted<'_>) -> Result<Vec<TraceAt>, Failure> {
    let all = [TraceAt::File, TraceAt::Handle, TraceAt::Queue, TraceAt::Device];
    match (wanted.places, wanted.not_ours) {
        ([], Some(_)) => Ok(vec![TraceAt::File]),
        ([], None) => Ok(all.to_vec()),
        (some, Some(option)) if some.iter().any(|place| *place != TraceAt::File) => Err(Failure::usage(
            format!("run: --trace-at: with {option} this command has no device; only `file` can be recorded"),
        )),
        (some, _) => Ok(some.to_vec()),
    }
}

fn probe_of(place: TraceAt) -> Option<Probe> {
    match place {
        TraceAt::File => None,
        TraceAt::Handle => Some(Probe::Handle),
        TraceAt::Queue => Some(Probe::Queue),
        TraceAt::Device => Some(Probe::Device),
    }
}

/// The trace cannot be written: as any file of a run, it is `nvmed` that has failed, and not the program.
fn failure(error: &TraceError) -> Failure {
    Failure::new(Status::Run, format!("run: --trace {error}"))
}

/// When a file call ended.
fn end_ns(call: &Record) -> u64 {
    call.at_ns.saturating_add(call.ns)
}

fn is_dead(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH))
}

/// A request of a ring, without device and process.
fn request(stamped: &Stamped, scale: &Timescale) -> Request {
    let (op, flags) = match stamped.op {
        StampedOp::Read => (Op::Read, Flags::default()),
        StampedOp::Write => (Op::Write, Flags::default()),
        StampedOp::DurableWrite => (Op::Write, Flags::FUA),
        StampedOp::Discard => (Op::Discard, Flags::default()),
        StampedOp::Flush => (Op::Flush, Flags::default()),
    };
    Request {
        start_ns: Some(scale.ns(stamped.start)),
        // It was not served.
        finish_ns: (!stamped.has_failed).then(|| scale.ns(stamped.finish)),
        flags,
        ..Request::new(op, stamped.offset, stamped.bytes, scale.ns(stamped.arrival))
    }
}

impl Processes {
    /// The number of a process: a name in the trace is that of a program. Asked for once a look, since a process may
    /// execute another program; of one that is dead it is the last one that was known.
    fn number(&mut self, process: u32, tally: &Tally, names: &mut Catalogue) -> u32 {
        if let Some(&number) = self.numbers.get(&process) {
            return number;
        }
        let name = tally.name_of(process).or_else(|| name_of(process));
        if let Some(name) = &name
            && (self.last.len() < DEAD_MAX || self.last.contains_key(&process))
        {
            self.last.insert(process, name.clone());
        }
        let name = name.or_else(|| self.last.get(&process).cloned());
        let name = name.unwrap_or_else(|| format!("process {process}"));
        let number = names.processes.number(&name).unwrap_or(0);
        self.numbers.insert(process, number);
        number
    }
}

/// How the host calls a process.
fn name_of(process: u32) -> Option<String> {
    let name = std::fs::read(Path::new("/proc").join(process.to_string()).join("comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_trace::{Options, Source};
    use rustix::fd::AsFd;

    /// A recorder that had no processor for a while finds the rings of a device of four queues full.
    #[test]
    fn nothing_of_twelve_full_rings_is_late() {
        let path = std::env::temp_dir().join(format!("nvmed-recording-{}", std::process::id()));
        let buffer = nvmed_stamps::REQUESTS_DEFAULT;
        let wanted =
            Wanted { path: &path, places: &[TraceAt::Queue], buffer, not_ours: None, is_simulated: false };
        let (mut recording, told) = Recording::begin(&wanted).unwrap();
        let stamps = Arc::new(Stamps::join(told.stamps.unwrap().as_fd()).unwrap());
        let mut rings: Vec<_> = (0..12).map(|_| stamps.producer(Probe::Queue)).collect();
        let count = 12 * buffer as u64;
        let first = stamps.clock().now() - 100 * count;
        for number in 0..count {
            let arrival = first + 10 * number;
            let (op, start, finish) = (StampedOp::Write, arrival, arrival + 5);
            let (offset, bytes, has_failed) = (number << 12, 4096, false);
            let stamped = Stamped { op, offset, bytes, arrival, start, finish, has_failed };
            rings[number as usize % 12].put(&stamped);
        }
        let (tally, _) = Tally::create(false).unwrap();
        assert_eq!(recording.drain(&tally), count as usize);
        recording.finish(0).unwrap();
        let mut source = Source::open(&path, &Options::default()).unwrap();
        let mut found = 0;
        while let Some(request) = source.next().unwrap() {
            assert_eq!(request.offset, found << 12);
            found += 1;
        }
        assert_eq!(found, count);
        std::fs::remove_file(&path).unwrap();
    }
}
