//! Waiting for a fast medium by looking, or asleep until an event, and what another process gets meanwhile: what the
//! paper builds on (Yang, Minturn and Hady, "When poll is better than interrupt", FAST'12).

use crate::cell::Cell;
use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::machine::{now_ns, thread_cpu_ns};
use crate::samples::Samples;
use crate::seat::Seat;
use nvmed_dice::Dice;
use nvmed_io::{
    Completions, Device, DeviceOptions, Handle, HandleSettings, Operation, QueueNumber, QueueSettings,
    Request, Segment,
};
use nvmed_stack::{DeviceSpec, Open, StackError, open_engine};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use rustix::event::{PollFd, PollFlags, poll};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Reads of 4 KiB from a medium of 4 us: polled, and asleep until the device's event.
pub(crate) struct PollOrInterrupt;

/// The medium: a device with a thread, which looks forward to what is due so soon, so that 4 us are 4 us.
const MEDIUM: &str = "virtual:?media=dram,size=4M,lba=4096,clock=threaded,latency=4us";
const MEDIUM_US: f64 = 4.0;
const BLOCK_BYTES: u32 = 4096;
const DEPTH: u16 = 32;
/// Where the reader and the other process sit, and where the device does.
const CORE: usize = 0;
const DEVICE_CORE: usize = 1;
/// As printed: us of a read that is waited for synchronously and asynchronously, and of the latter what another process
/// gets.
const SYNCHRONOUS_US: f64 = 4.38;
const ASYNCHRONOUS_US: f64 = 9.0;
const OTHERS_US: f64 = 2.7;
/// Another process on the reader's core: it counts, and ends by itself when nobody has ended it before.
const COUNTS: &str = "i=0; while [ $i -lt 300000000 ]; do i=$((i+1)); done";

const LATENCY: &str = "a read of 4 KiB, us";
const OTHERS: &str = "of that, another process has, us";
const LEFT: &str = "of that, the core was not the reader's, us";

/// How a reader waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Polls,
    /// In poll(2), on the descriptor of the queue's events.
    Event,
    /// In a call, by the handle's policy.
    Interrupt,
}

impl Way {
    const ALL: [Self; 3] = [Self::Polls, Self::Event, Self::Interrupt];

    fn name(self) -> &'static str {
        match self {
            Self::Polls => "polls",
            Self::Event => "sleeps, eventfd",
            Self::Interrupt => "sleeps, policy interrupt",
        }
    }

    fn completion(self) -> Completions {
        if self == Self::Polls { Completions::Poll } else { Completions::Interrupt }
    }
}

/// Somebody who reads, with a device of his own.
struct Reader {
    way: Way,
    device: Arc<Device>,
    queue: QueueNumber,
    handle: Handle,
    page: Segment,
    dice: Dice,
}

impl Reader {
    fn new(way: Way) -> Result<Self, LabError> {
        let spec = DeviceSpec::parse(MEDIUM)
            .map_err(|error| StackError::Spec { device: MEDIUM.to_owned(), error })?;
        let engine = {
            // Ahead of ordinary threads as well: a device is late for nobody.
            let _seat = Seat::take(DEVICE_CORE, true);
            open_engine(&spec, Open::Existing { locked_by_run: false })?
        };
        let device = Device::open(engine, DeviceOptions { queues: 1, depth: DEPTH })?;
        let interrupts = way != Way::Polls;
        let queue = device.create_queue(QueueSettings { interrupts, ..QueueSettings::depth(DEPTH) })?;
        let handle = device.bind(nvmed_io::Binding::Queue(queue))?;
        handle.set(HandleSettings { completion: way.completion(), ..HandleSettings::default() })?;
        let page = Mapping::anonymous(BLOCK_BYTES as usize, Pages::Base);
        let page = page.map_err(|errno| LabError::host("memory", errno))?;
        let page = Segment { address: device.map(Arc::new(page))?, bytes: BLOCK_BYTES };
        // No read meets a page that was never there.
        (0..device.lba_count()).try_for_each(|lba| handle.write(Lba(lba), &[page], false))?;
        Ok(Self { way, device, queue, handle, page, dice: Dice::new(1) })
    }

    fn read(&mut self) -> Result<(), LabError> {
        let lba = Lba(self.dice.roll(self.device.lba_count()));
        if self.way == Way::Event {
            self.read_by_event(lba)
        } else {
            Ok(self.handle.read(lba, &[self.page])?)
        }
    }

    fn read_by_event(&self, lba: Lba) -> Result<(), LabError> {
        let event = self.device.event_fd(self.queue)?;
        let event = event.ok_or_else(|| LabError::missing("the device has no descriptor for events"))?;
        let data = [self.page];
        let request = Request { operation: Operation::Read, lba, blocks: 1, data: &data, tag: 0, stream: 0 };
        let ticket = self.handle.submit(&request)?;
        loop {
            if let Some(done) = self.handle.poll(&ticket) {
                return Ok(done?);
            }
            let mut fds = [PollFd::new(&event, PollFlags::IN)];
            match poll(&mut fds, None) {
                // What was counted is of no interest; that it is read is.
                Ok(_) => _ = rustix::io::read(event, &mut [0; 8]),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(LabError::host("poll of a device's events", errno)),
            }
        }
    }
}

/// A process on the reader's core, until it is dropped.
struct Other(Child);

impl Other {
    fn start() -> Result<Self, LabError> {
        let _seat = Seat::take(CORE, false);
        let mut shell = Command::new("sh");
        shell.args(["-c", COUNTS]).stdin(Stdio::null());
        shell.spawn().map(Self).map_err(|error| LabError::program("sh", &error))
    }

    /// Processor time that it had, ns. It does not run while its core's thread asks, so the figure is whole.
    fn had_ns(&self) -> Result<u64, LabError> {
        let path = format!("/proc/{}/schedstat", self.0.id());
        let text = std::fs::read_to_string(&path).map_err(|error| LabError::program(&path, &error))?;
        let first = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
        first.ok_or_else(|| LabError::missing(format!("{path} says {text:?}")))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a way of waiting took, us, a figure a round.
#[derive(Debug, Default)]
struct Found {
    latency: Samples,
    /// Of a read, what the other process had.
    others: Samples,
    /// Of a read, what the reader left of its core to all others.
    left: Samples,
    /// A read while nobody else wants the core.
    alone: Samples,
}

/// The median slice: us a read, what the other process had of it, and what the reader left of the core to all others.
fn turn(reader: &mut Reader, other: Option<&Other>, effort: &Effort) -> Result<[f64; 3], LabError> {
    let _seat = Seat::take(CORE, true);
    let mut figures: [Samples; 3] = Default::default();
    let slice_ns = (effort.slice_s() * 1e9) as u64;
    for _ in 0..effort.slices() {
        let had = other.map_or(Ok(0), Other::had_ns)?;
        let (begin, own, mut count) = (now_ns(), thread_cpu_ns(), 0_u32);
        while now_ns() - begin < slice_ns {
            for _ in 0..16 {
                reader.read()?;
            }
            count += 16;
        }
        let took = now_ns() - begin;
        let left = took.saturating_sub(thread_cpu_ns() - own);
        let others = other.map_or(Ok(0), Other::had_ns)? - had;
        for (figures, ns) in figures.iter_mut().zip([took, others, left]) {
            figures.push(ns as f64 / f64::from(count) / 1e3);
        }
    }
    Ok(figures.map(|of| of.median()))
}

fn measure(effort: &Effort) -> Result<[Found; 3], LabError> {
    let mut readers = Vec::new();
    for way in Way::ALL {
        readers.push(Reader::new(way)?);
    }
    let mut found: [Found; 3] = Default::default();
    for _ in 0..effort.rounds() {
        for (reader, found) in readers.iter_mut().zip(&mut found) {
            found.alone.push(turn(reader, None, effort)?[0]);
        }
        let other = Other::start()?;
        for (reader, found) in readers.iter_mut().zip(&mut found) {
            let [latency, others, left] = turn(reader, Some(&other), effort)?;
            found.latency.push(latency);
            found.others.push(others);
            found.left.push(left);
        }
    }
    Ok(found)
}

fn range(of: &Samples) -> String {
    let (least, most) = of.range();
    format!("{:.2} ({least:.2} to {most:.2})", of.median())
}

impl Experiment for PollOrInterrupt {
    fn id(&self) -> &'static str {
        "nvmfs.poll_vs_interrupt"
    }

    fn what(&self) -> &'static str {
        "reads of 4 KiB a second from a medium of 4 us beside a busy process: polled, over asleep until the event"
    }

    /// The paper's point: what sleeping leaves to others is less than what it takes.
    fn goal(&self) -> Goal {
        Goal::AtLeast(1.0)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let found = measure(effort)?;
        let rates = |way: Way| Measured {
            name: way.name().to_owned(),
            runs: found[way as usize].latency.figures().iter().map(|us| 1e6 / us).collect(),
        };
        let polls = &found[Way::Polls as usize];
        let mut cells = vec![Cell::new(Way::Polls.name(), LATENCY, SYNCHRONOUS_US, polls.latency.median())];
        let mut limits = Vec::new();
        for way in Way::ALL {
            let of = &found[way as usize];
            if way != Way::Polls {
                cells.push(Cell::new(way.name(), LATENCY, ASYNCHRONOUS_US, of.latency.median()));
                cells.push(Cell::new(way.name(), OTHERS, OTHERS_US, of.others.median()));
                cells.push(Cell::new(way.name(), LEFT, OTHERS_US, of.left.median()));
                let lost = of.latency.median() - polls.latency.median();
                let printed = (ASYNCHRONOUS_US - SYNCHRONOUS_US) / OTHERS_US;
                let row = format!("{}: what it takes longer over what it leaves of the core", way.name());
                cells.push(Cell::new(&row, "x", printed, lost / of.left.median()));
            }
            limits.push(format!(
                "{}, us a read, median and range of rounds: beside another process {}, of which that has {}; alone {}",
                way.name(),
                range(&of.latency),
                range(&of.others),
                range(&of.alone)
            ));
        }
        limits.push(format!(
            "of a polled read {:.1} us are not the medium's: our stack, the drive's model \
                 and the way between cores, not told apart",
            polls.latency.median() - MEDIUM_US
        ));
        limits.push(
            "where other work wants the reader's core as well, the process has a part of what the reader leaves"
                .to_owned(),
        );
        limits.push(
            "no interrupt of hardware: the device's thread on another core writes to the descriptor, which wakes the \
             reader by an interrupt between cores; in a virtual machine that costs more than on a machine of its own"
                .to_owned(),
        );
        limits.push(
            "where the reader may go ahead of ordinary threads (SCHED_FIFO), the kernel still gives them 5 % of each \
             second, and who polls leaves them no more"
                .to_owned(),
        );
        Ok(Finding {
            series: vec![Series {
                label: "4 KiB reads beside a busy process".to_owned(),
                unit: "reads a second".to_owned(),
                ours: rates(Way::Polls),
                rivals: vec![rates(Way::Event), rates(Way::Interrupt)],
            }],
            cells,
            method: format!(
                "{MEDIUM}, one thread, depth 1, at random; the device's thread on core {DEVICE_CORE} and the \
                 reader on core {CORE}, both ahead of ordinary threads, and there a process that \
                 only counts, whose processor time is /proc/PID/schedstat; in turns, {} rounds of {} slices of {} ms",
                effort.rounds(),
                effort.slices(),
                effort.slice_s() * 1e3
            ),
            limits,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often this thread has given its core away by itself.
    fn sleeps() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("the thread's status");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.expect("a count").trim().parse().expect("a number")
    }

    /// All ways read; who polls never gives the core away, and who sleeps does.
    #[test]
    fn who_polls_keeps_the_core_and_who_sleeps_gives_it_away() {
        let other = Other::start().expect("a process");
        for way in Way::ALL {
            let mut reader = Reader::new(way).expect("a device");
            let _seat = Seat::take(CORE, true);
            let before = sleeps();
            (0..64).for_each(|_| reader.read().expect("a read"));
            assert_eq!(sleeps() > before, way != Way::Polls, "{way:?}");
        }
        assert!(other.had_ns().is_ok());
    }
}
