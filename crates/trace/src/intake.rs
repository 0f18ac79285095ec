//! What is read of a trace: names, counts, and requests that are put in order.

use crate::malformed::Malformed;
use crate::pairing::Unpaired;
use crate::request::{Catalogue, Names, Request};
use crate::selection::Chooser;
use std::io;

/// Requests that are held to be put in order: what comes later than after so many is too late.
pub(crate) const WINDOW: usize = 65_536;
/// Malformed lines that are kept to be shown.
const SHOWN: usize = 10;
/// Characters that are shown of one.
const SHOWN_CHARS: usize = 100;
/// Longest name of a device or a process, in bytes: that of a file.
const NAME_BYTES_MAX: usize = 255;
/// Malformed lines that are borne however few lines there are.
const MALFORMED_MIN: u64 = 100;

/// How many malformed lines a trace may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tolerance {
    /// 100, and beyond these 1 % of all that were read.
    #[default]
    Percent,
    /// So many.
    Lines(u64),
}

impl Tolerance {
    fn bears(self, malformed: u64, read: u64) -> bool {
        match self {
            Self::Percent => malformed <= MALFORMED_MIN || malformed <= read / 100,
            Self::Lines(lines) => malformed <= lines,
        }
    }
}

/// A line, record or row that was malformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedLine {
    /// Its number, from 1.
    pub number: u64,
    /// What is wrong with it.
    pub reason: Malformed,
    /// How it begins; empty if it is no text.
    pub text: String,
}

impl std::fmt::Display for MalformedLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { number, reason, text } = self;
        if text.is_empty() {
            write!(f, "{number}: {reason}")
        } else {
            write!(f, "{number}: {reason}: {text}")
        }
    }
}

/// Counts of what was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines, records or rows.
    pub lines: u64,
    /// Requests that were given out.
    pub requests: u64,
    /// Requests that are not among those that were selected.
    pub passed_over: u64,
    /// Malformed lines, late ones among them.
    pub malformed: u64,
    /// Lines that came too late to be put in order.
    pub late: u64,
    /// What has no partner, of a trace of events.
    pub unpaired: Unpaired,
}

/// Why a trace is read no further.
#[derive(Debug)]
pub(crate) enum Stop {
    Io(io::Error),
    /// Too many lines are malformed.
    Malformed,
    /// What is wrong with the file as a whole.
    Broken(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Requests in the order of their arrivals, as far as [`WINDOW`] reaches.
///
/// It holds up to twice the window, sorts it if it has to, and gives out the first half: for a trace that is in order
/// this is a copy.
#[derive(Debug)]
struct Window {
    held: Vec<Request>,
    /// How many of them are in order, and how many of these were given out.
    ready: usize,
    given: usize,
    is_sorted: bool,
    /// Whether no request that comes later belongs before those that are held.
    is_complete: bool,
    /// The last arrival that was given out, of each device.
    last_ns: Vec<u64>,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            held: Vec::new(),
            ready: 0,
            given: 0,
            is_sorted: true,
            is_complete: false,
            last_ns: Vec::new(),
        }
    }
}

impl Window {
    #[inline]
    fn push(&mut self, request: Request) -> Result<(), Malformed> {
        if self.last_ns.get(request.device as usize).is_some_and(|last| request.arrival_ns < *last) {
            return Err(Malformed::Late);
        }
        self.is_sorted &= self.held.last().is_none_or(|last| last.arrival_ns <= request.arrival_ns);
        self.held.push(request);
        Ok(())
    }

    /// What was ready was given out, and is held no longer.
    fn forget(&mut self) {
        self.held.drain(..self.ready);
        (self.ready, self.given) = (0, 0);
    }

    /// Makes the first half ready when both are full, or what there is when nothing can come that belongs before it.
    fn settle(&mut self, is_end: bool) {
        let is_end = is_end || std::mem::take(&mut self.is_complete);
        if self.held.len() < 2 * WINDOW && !is_end {
            return;
        }
        if !self.is_sorted {
            self.held.sort_by_key(|request| request.arrival_ns);
            self.is_sorted = true;
        }
        self.ready = if is_end { self.held.len() } else { self.held.len() - WINDOW };
        for request in &self.held[..self.ready] {
            let device = request.device as usize;
            if device >= self.last_ns.len() {
                self.last_ns.resize(device + 1, 0);
            }
            // Of another device's requests that are later than the window, the order within the device still holds.
            self.last_ns[device] = self.last_ns[device].max(request.arrival_ns);
        }
    }
}

/// Takes what a format reads.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    pub(crate) names: Catalogue,
    pub(crate) counts: Counts,
    pub(crate) malformed: Vec<MalformedLine>,
    pub(crate) tolerance: Tolerance,
    /// Takes some of the requests; without it, all are taken.
    pub(crate) chooser: Option<Chooser>,
    window: Window,
    stopped: Option<Stop>,
}

impl Intake {
    /// The number of a device.
    pub(crate) fn device(&mut self, name: &str) -> Result<u32, Malformed> {
        number(&mut self.names.devices, name)
    }

    /// The number of a process.
    pub(crate) fn process(&mut self, name: &str) -> Result<u32, Malformed> {
        number(&mut self.names.processes, name)
    }

    /// Takes a request.
    #[inline]
    pub(crate) fn push(&mut self, request: Request) -> Result<(), Malformed> {
        request.check()?;
        if self.chooser.as_mut().is_some_and(|chooser| !chooser.takes(&request, &self.names)) {
            self.counts.passed_over += 1;
            return Ok(());
        }
        let late = self.window.push(request);
        self.counts.late += u64::from(late.is_err());
        late
    }

    /// Takes a request whose events are on many lines: if it cannot be one, the line that was counted last ended it.
    pub(crate) fn push_of_events(&mut self, request: Request) {
        if let Err(reason) = self.push(request)
            && let Err(stop) = self.malformed(reason, "")
        {
            self.stopped.get_or_insert(stop);
        }
    }

    /// Why the trace is read no further, where that could not be said at once.
    pub(crate) fn stopped(&mut self) -> Result<(), Stop> {
        self.stopped.take().map_or(Ok(()), Err)
    }

    /// Counts a line.
    pub(crate) fn read(&mut self) {
        self.counts.lines += 1;
    }

    /// Counts the line that was counted last as malformed, and stops if there are too many.
    pub(crate) fn malformed(&mut self, reason: Malformed, text: &str) -> Result<(), Stop> {
        let number = self.counts.lines;
        self.counts.malformed += 1;
        if self.malformed.len() < SHOWN {
            // Nothing of it moves the cursor of a terminal.
            let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
            let text: String = text.chars().map(plain).take(SHOWN_CHARS).collect();
            self.malformed.push(MalformedLine { number, reason, text: text.trim().to_owned() });
        }
        let borne = self.tolerance.bears(self.counts.malformed, number);
        if borne { Ok(()) } else { Err(Stop::Malformed) }
    }

    /// The next request of those that are in order; `None` until more was settled.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Request> {
        let Window { held, ready, given, .. } = &mut self.window;
        let next = held[..*ready].get(*given).copied();
        *given += usize::from(next.is_some());
        next
    }

    /// All requests of those that are in order; none until more was settled.
    pub(crate) fn rest(&mut self) -> &[Request] {
        let Window { held, ready, given, .. } = &mut self.window;
        &held[std::mem::replace(given, *ready)..*ready]
    }

    /// Requests that are in order and were not given out.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.window.ready - self.window.given
    }

    /// Nothing that comes later belongs before what was read up to now.
    pub(crate) fn complete(&mut self) {
        self.window.is_complete = true;
    }

    /// Holds no longer what was given out: to be called before more is read, which otherwise would have to move.
    pub(crate) fn forget(&mut self) {
        self.window.forget();
    }

    /// Makes requests ready to be given out, as far as they are in order.
    pub(crate) fn settle(&mut self, is_end: bool) {
        self.window.settle(is_end);
        self.counts.requests += self.window.ready as u64;
    }

    /// Whether so much is held that some of it must be given out.
    pub(crate) fn is_full(&self) -> bool {
        self.window.is_complete || self.window.held.len() >= 2 * WINDOW
    }
}

fn number(names: &mut Names, name: &str) -> Result<u32, Malformed> {
    let short = (name.len() <= NAME_BYTES_MAX).then_some(name);
    short.and_then(|name| names.number(name)).ok_or(Malformed::Names)
}
