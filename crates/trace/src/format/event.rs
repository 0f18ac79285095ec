//! Events of requests, paired: when a request was queued, given to the device and completed are events of their own.
//!
//! They belong together by device, operation and first sector, in the order in which they came; never across another
//! operation (perf-tools issue 27 is a recorder that does, and shows latencies of 90 s). The block layer merges
//! requests on their way, so that what it issues and completes may hold several that were queued; and it splits them.
//! (Documentation of blktrace(8) and blkparse(1).)

use crate::codec::Malformed;
use crate::intake::{Intake, WINDOW};
use crate::request::{Catalogue, Flags, Op, Request};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};

/// Events that are held to be written in the order of their times.
const WRITTEN_LATER_MAX: usize = 4 * WINDOW;

/// What happens to a request, in the order in which it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// It comes to the block layer (Q).
    Queued,
    /// It is put among those of the scheduler (I).
    Inserted,
    /// The device gets it (D).
    Issued,
    /// The device has done it (C).
    Completed,
    /// The device did not take it: it will get it again (R).
    Requeued,
    /// It becomes two, of which the second one begins at this offset (X).
    Split(u64),
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) device: u32,
    pub(crate) process: u32,
    pub(crate) stage: Stage,
    pub(crate) op: Op,
    pub(crate) flags: Flags,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) time_ns: u64,
}

type Place = (u32, u8, u64);

fn place(request: &Request) -> Place {
    (request.device, request.op as u8, request.offset)
}

/// Makes requests of events.
#[derive(Debug, Default)]
pub(crate) struct Pairing {
    /// Requests in the order in which they arrived, and the number of the first of them.
    queue: VecDeque<Request>,
    first: u64,
    /// Those that are not completed, by where they begin.
    open: BTreeMap<Place, VecDeque<u64>>,
    /// By which event a request of a device arrives: the earliest that the trace has.
    arrives_by: HashMap<u32, Stage>,
    /// Some request of the trace was completed.
    completes: bool,
}

impl Pairing {
    /// Takes an event. One that belongs to no request is counted.
    pub(crate) fn event(&mut self, event: &Event, intake: &mut Intake) -> Result<(), Malformed> {
        match event.stage {
            stage @ (Stage::Queued | Stage::Inserted | Stage::Issued) => {
                let by = self.arrives_by.entry(event.device).or_insert(stage);
                *by = (*by).min(stage);
                if *by == stage { self.arrived(event, intake) } else { self.found(event, intake) }
            }
            Stage::Completed | Stage::Requeued => self.found(event, intake),
            Stage::Split(at) => self.split(event, at),
        }
    }

    fn arrived(&mut self, event: &Event, intake: &mut Intake) -> Result<(), Malformed> {
        let Event { device, process, op, flags, offset, bytes, time_ns, .. } = *event;
        let start_ns = (event.stage == Stage::Issued).then_some(time_ns);
        let request =
            Request { device, process, flags, start_ns, ..Request::new(op, offset, bytes, time_ns) };
        self.put(request.checked()?);
        if self.queue.len() > WINDOW { self.give(intake) } else { Ok(()) }
    }

    fn put(&mut self, request: Request) {
        let number = self.first + self.queue.len() as u64;
        self.open.entry(place(&request)).or_default().push_back(number);
        self.queue.push_back(request);
    }

    /// Finds the requests within an event's bytes, the first of each place that it can be about.
    fn found(&mut self, event: &Event, intake: &mut Intake) -> Result<(), Malformed> {
        let end = event.offset.checked_add(event.bytes).ok_or(Malformed::Number("size"))?;
        let places = (event.device, event.op as u8, event.offset)
            ..=(event.device, event.op as u8, event.offset.max(end.saturating_sub(1)));
        let (queue, first) = (&self.queue, self.first);
        let is_it = |number: &u64| {
            let request = &queue[(number - first) as usize];
            let fits = request.offset + request.bytes <= end;
            let last_ns = request.start_ns.unwrap_or(request.arrival_ns);
            fits && last_ns <= event.time_ns && (event.stage != Stage::Issued || request.start_ns.is_none())
        };
        let is_started = |number: &u64| queue[(number - first) as usize].start_ns.is_some();
        let found = self.open.range(places).filter_map(|(_, numbers)| match event.stage {
            Stage::Issued => numbers.iter().find(|number| is_it(number)),
            Stage::Requeued => numbers.iter().find(|number| is_it(number) && is_started(number)),
            // One whose issue was lost completes, too, if no other of its place was issued.
            _ => {
                let started = numbers.iter().find(|number| is_it(number) && is_started(number));
                started.or_else(|| numbers.iter().find(|number| is_it(number)))
            }
        });
        let found: Vec<u64> = found.copied().collect();
        intake.counts.unpaired += u64::from(found.is_empty());
        for number in found {
            self.happens(number, event);
        }
        while self.queue.front().is_some_and(|request| request.finish_ns.is_some()) {
            self.give(intake)?;
        }
        Ok(())
    }

    fn happens(&mut self, number: u64, event: &Event) {
        let request = &mut self.queue[(number - self.first) as usize];
        match event.stage {
            Stage::Issued => request.start_ns = Some(event.time_ns),
            Stage::Requeued => request.start_ns = None,
            _ => {
                self.completes = true;
                request.finish_ns = Some(event.time_ns);
                let place = place(request);
                self.close(place, number);
            }
        }
    }

    fn close(&mut self, place: Place, number: u64) {
        if let Some(numbers) = self.open.get_mut(&place) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.open.remove(&place);
            }
        }
    }

    /// The last one that came and was not given to the device is the one that is split.
    fn split(&mut self, event: &Event, at: u64) -> Result<(), Malformed> {
        let numbers = self.open.get(&(event.device, event.op as u8, event.offset));
        let in_queue = |number: &&u64| {
            let request = &self.queue[(**number - self.first) as usize];
            request.start_ns.is_none() && (request.offset + 1..request.end()).contains(&at)
        };
        let Some(&number) = numbers.and_then(|numbers| numbers.iter().rev().find(in_queue)) else {
            return Ok(());
        };
        let request = &mut self.queue[(number - self.first) as usize];
        let rest = Request { offset: at, bytes: request.end() - at, ..*request };
        request.bytes = at - request.offset;
        self.put(rest);
        Ok(())
    }

    /// Gives away the request that arrived first.
    fn give(&mut self, intake: &mut Intake) -> Result<(), Malformed> {
        let Some(request) = self.queue.pop_front() else { return Ok(()) };
        if request.finish_ns.is_none() {
            intake.counts.unpaired += u64::from(self.completes);
            self.close(place(&request), self.first);
        }
        self.first += 1;
        intake.push(request)
    }

    /// Gives away what is left.
    pub(crate) fn end(&mut self, intake: &mut Intake) {
        while !self.queue.is_empty() {
            // What is too late is counted by the intake.
            let _ = self.give(intake);
        }
    }
}

/// Events of requests that are written, in the order of their times.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    events: BinaryHeap<Reverse<(u64, u64, Stage, usize)>>,
    requests: HashMap<usize, (Request, u8)>,
    next: usize,
    number: u64,
}

impl Unwritten {
    /// Adds a request's events.
    pub(crate) fn put(&mut self, request: &Request) {
        let stages = [
            (Stage::Queued, Some(request.arrival_ns)),
            (Stage::Issued, request.start_ns),
            (Stage::Completed, request.finish_ns),
        ];
        let mut events = 0;
        for (stage, time) in stages {
            let Some(time) = time else { continue };
            self.events.push(Reverse((time, self.number, stage, self.next)));
            self.number += 1;
            events += 1;
        }
        self.requests.insert(self.next, (*request, events));
        self.next += 1;
    }

    /// The next event, if nothing that comes after `now_ns` can be before it.
    pub(crate) fn next(&mut self, now_ns: u64) -> Option<(Stage, u64, Request)> {
        let Reverse((time, ..)) = self.events.peek()?;
        if *time >= now_ns && self.events.len() <= WRITTEN_LATER_MAX {
            return None;
        }
        let Reverse((time, _, stage, which)) = self.events.pop()?;
        let (request, left) = self.requests.get_mut(&which)?;
        let request = *request;
        *left -= 1;
        if *left == 0 {
            self.requests.remove(&which);
        }
        Some((stage, time, request))
    }
}

/// The device's major and minor number: those that its name is (`8,33`), else 0 and its index.
pub(crate) fn device_numbers(names: &Catalogue, device: u32) -> (u32, u32) {
    let name = names.devices.name(device);
    let numbers =
        name.split_once(',').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.unwrap_or((0, device))
}

/// Operation and flags that the kernel's letters say (`WS`, `RA`, `FWFSM`); none of what reads and writes nothing.
pub(crate) fn rwbs(text: &str, bytes: u64) -> Option<(Op, Flags)> {
    let flushes = text.starts_with('F');
    let rest = text.strip_prefix('F').filter(|rest| rest.starts_with(['R', 'W', 'D', 'N'])).unwrap_or(text);
    let op = match rest.chars().next()? {
        // A flush before a write is the write's, and a request of its own when there is nothing to write.
        'W' | 'N' if bytes == 0 && flushes => Op::Flush,
        'F' => Op::Flush,
        'W' => Op::Write,
        'R' => Op::Read,
        'D' => Op::Discard,
        _ => return None,
    };
    let flag = |flags: Flags, letter| match letter {
        'F' => flags.and(Flags::FUA),
        'S' => flags.and(Flags::SYNC),
        'M' => flags.and(Flags::META),
        'A' => flags.and(Flags::AHEAD),
        _ => flags,
    };
    Some((op, rest.chars().skip(1).fold(Flags::default(), flag)))
}

/// The letters of a request.
pub(crate) fn letters(request: &Request) -> String {
    let mut text = match request.op {
        Op::Read => "R",
        Op::Write => "W",
        Op::Discard => "D",
        Op::Flush => "F",
    }
    .to_owned();
    for (flag, letter) in [(Flags::FUA, 'F'), (Flags::AHEAD, 'A'), (Flags::SYNC, 'S'), (Flags::META, 'M')] {
        if request.flags.has(flag) {
            text.push(letter);
        }
    }
    text
}
