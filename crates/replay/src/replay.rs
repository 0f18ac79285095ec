//! A trace on a device: one thread, one queue pair.

use crate::error::ReplayError;
use crate::feed::{Fed, Feed, Outcome};
use crate::pacing::{Due, Pacer, Pacing, Scale};
use crate::payload::{Payload, Terms};
use crate::placement::{Place, Placement, Remap, Run};
use crate::replayed::Replayed;
use crate::stretch::Stretch;
use crate::survey::Survey;
use nvmed_engine::{
    Completion, DeviceError, Engine, InvalidRequest, Operation, QueueOptions, QueuePair, SubmitError,
};
use nvmed_io::IoError;
use nvmed_trace::{Flags, Op, Request};
use nvmed_units::Lba;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of one command at most, where the device takes more: what a copy of it costs stays below a millisecond.
const PART_BYTES_MAX: u64 = 4 << 20;
/// Memory of one command at least, where all share it, and where each has its own, bytes.
const PART_BYTES_MIN: u64 = 1 << 20;
const CHECKED_BYTES_MIN: u64 = 128 << 10;
/// Requests that are kept, done or not, behind one that is not done.
const WINDOW: usize = 65_536;
/// Requests that are told of by one doorbell, when several are due.
const BATCH: usize = 32;
/// From when this leg is ready to when its first request is due: the thread that reads has a start.
const HEAD_START_NS: u64 = 1_000_000;

/// How a trace is replayed.
#[derive(Clone, Copy, Debug)]
pub struct ReplayOptions {
    /// What decides when a request is given to the device.
    pub pacing: Pacing,
    /// So many times as fast as it was recorded.
    pub speed: f64,
    /// Commands under way at most; cut to what a queue of the device holds.
    pub depth: u16,
    /// What becomes of requests beyond the device.
    pub remap: Remap,
    /// What is added to all offsets, bytes.
    pub shift_bytes: u64,
    /// Whether what is written bears marks, and what is read is compared with them.
    pub verify: bool,
    /// What is written follows from it.
    pub seed: u64,
    /// Requests that earlier legs of this replay have done, and that are not fed again.
    pub done: u64,
    /// How many legs there were.
    pub legs: u32,
    /// When the last of them ended, in nanoseconds of the replay's time; 0 without one.
    pub elapsed_ns: u64,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            pacing: Pacing::Open,
            speed: 1.0,
            depth: 1024,
            remap: Remap::Refuse,
            shift_bytes: 0,
            verify: false,
            seed: 1,
            done: 0,
            legs: 0,
            elapsed_ns: 0,
        }
    }
}

/// A request that was given to the device, or is being given.
#[derive(Debug)]
struct Flight {
    request: Request,
    recorded: Request,
    /// Parts that are with the device.
    left: u32,
    is_sent: bool,
    error: Option<DeviceError>,
    is_done: bool,
}

impl Flight {
    /// Whether it is done. What was lost is not: a later leg gives it to the device again.
    fn is_over(&self) -> bool {
        self.is_done && self.error.is_none_or(|error| error.fault.is_none())
    }

    fn outcome(&self) -> Outcome {
        match (self.error, self.request.finish_ns) {
            (Some(_), _) => Outcome::Failed,
            (None, Some(_)) => Outcome::Completed,
            (None, None) => Outcome::LeftOut,
        }
    }
}

/// A command under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    number: u64,
    run: Run,
    bytes: usize,
    op: Op,
}

/// What the loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// This time, of the replay.
    Time(u64),
    Completion,
    Feed,
    /// Nothing: something was done.
    Nothing,
    End,
}

/// A device to which a trace's requests are given.
pub struct Replay {
    pub(crate) engine: Arc<dyn Engine>,
    // Dropped before the memory of its requests.
    pub(crate) pair: Box<dyn QueuePair>,
    pub(crate) payload: Payload,
    pub(crate) vector: u16,
    options: ReplayOptions,
    placement: Placement,
    pacer: Pacer,
    pub(crate) lba_bytes: u32,
    pub(crate) part_blocks: [u64; 4],
    /// When this leg begins, and the device's time at the replay's time 0, which may be before the device's.
    begin: u64,
    pub(crate) zero: Option<i64>,
    pub(crate) parts: Vec<Option<Part>>,
    free: Vec<usize>,
    /// Parts that were made.
    made: u64,
    head: Option<(Request, Place)>,
    head_was_held: bool,
    /// Slot and request of the command for which it waits.
    obstacle: Option<(usize, u64)>,
    /// Runs of the last request that were not sent yet.
    unsent: VecDeque<Run>,
    flights: VecDeque<Flight>,
    /// The number of the first of them.
    first: u64,
    pub(crate) under_way: u64,
    has_ended: bool,
    pub(crate) completions: Vec<Completion>,
    pub(crate) stretch: Stretch,
    pub(crate) active_ns: u64,
    pub(crate) checked_ns: u64,
    result: Replayed,
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").field("options", &self.options).finish_non_exhaustive()
    }
}

fn operation(request: &Request) -> Operation {
    match request.op {
        Op::Read => Operation::Read,
        Op::Write => Operation::Write { fua: request.flags.has(Flags::FUA) },
        Op::Discard => Operation::Discard,
        Op::Flush => Operation::Flush,
    }
}

impl Replay {
    /// Makes a queue pair of the device and memory for a trace that was surveyed. Nothing is written.
    ///
    /// # Errors
    /// The device is too small for the trace, cannot be used, or the trace does not say what the options need.
    pub fn new(
        engine: &Arc<dyn Engine>,
        survey: &Survey,
        options: ReplayOptions,
    ) -> Result<Self, ReplayError> {
        let geometry = engine.geometry();
        let (lba_bytes, lba_count) = (geometry.lba_bytes, engine.lba_count());
        if lba_count == 0 {
            return Err(ReplayError::NoBlocks);
        }
        if options.pacing == Pacing::Dependent && survey.unfinished > 0 {
            return Err(ReplayError::NoFinish { unfinished: survey.unfinished, requests: survey.requests });
        }
        let placement = Placement::new(survey, options.remap, options.shift_bytes, (lba_bytes, lba_count))?;
        let lba = u64::from(lba_bytes);
        // Short requests have room for longer ones, with which a device is filled and read back.
        let least = if options.verify { CHECKED_BYTES_MIN } else { PART_BYTES_MIN };
        let longest = survey.longest_bytes.saturating_add(lba).next_multiple_of(lba).max(least);
        let most = (u64::from(geometry.transfer_bytes_max).min(PART_BYTES_MAX) / lba * lba).max(lba);
        let depth = options.depth.clamp(1, geometry.queue_depth_max);
        let checked_leg = options.verify.then_some(options.legs);
        let terms = Terms { seed: options.seed, checked_leg };
        let (payload, depth) = Payload::new(engine, most.min(longest) as usize, depth.into(), terms)?;
        let pair = engine.queue(QueueOptions::depth(depth as u16))?;
        let data_blocks = most.min(payload.part_bytes() as u64) / lba;
        let discard_blocks = u64::from(pair.request_blocks_max(Operation::Discard)).max(1);
        let scale = Scale::new(survey.first_ns, options.speed);
        Ok(Self {
            vector: pair.vector(),
            engine: Arc::clone(engine),
            pair,
            payload,
            options,
            placement,
            pacer: Pacer::new(options.pacing, scale),
            lba_bytes,
            part_blocks: [data_blocks, data_blocks, discard_blocks, 0],
            begin: 0,
            zero: None,
            parts: vec![None; depth],
            free: (0..depth).rev().collect(),
            made: 0,
            head: None,
            head_was_held: false,
            obstacle: None,
            unsent: VecDeque::new(),
            flights: VecDeque::new(),
            first: options.done,
            under_way: 0,
            has_ended: false,
            completions: Vec::with_capacity(depth),
            stretch: Stretch::default(),
            active_ns: 0,
            checked_ns: 0,
            result: Replayed { depth: depth as u16, ..Replayed::default() },
        })
    }

    /// Gives the device all requests of a feed, or those until `stop` is set; and what it did, in any case.
    ///
    /// # Errors
    /// The device is gone or failed as a whole, a request does not fit it, or what was read is not what was written.
    pub fn run(mut self, feed: &mut impl Feed, stop: &AtomicBool) -> (Replayed, Result<(), ReplayError>) {
        let mut ended = self.go(feed, stop);
        if ended.is_err() && !matches!(ended, Err(ReplayError::Fault { .. })) {
            // What is under way has its memory until it is done.
            self.has_ended = true;
            (self.head, self.options.verify) = (None, false);
            self.unsent.clear();
            let _ = self.settle(feed);
        }
        self.result.lost += self.under_way;
        self.result.stopped = stop.load(Ordering::Relaxed);
        if ended.is_ok() && self.options.verify && !self.result.stopped {
            let read_back = self.read_back(stop);
            self.result.is_read_back = matches!(read_back, Ok(true));
            self.result.stopped = matches!(read_back, Ok(false));
            ended = read_back.map(|_| ());
        }
        if let Some(checks) = &self.payload.checks {
            (self.result.checked_blocks, self.result.unchecked_blocks) = (checks.checked, checks.unchecked);
        }
        (self.result, ended)
    }

    fn go(&mut self, feed: &mut impl Feed, stop: &AtomicBool) -> Result<(), ReplayError> {
        loop {
            let seen = self.engine.events(self.vector);
            self.reap(feed)?;
            if stop.load(Ordering::Relaxed) {
                (self.has_ended, self.head) = (true, None);
            }
            match self.issue(feed)? {
                Awaited::End => {
                    self.retire(feed);
                    return Ok(());
                }
                Awaited::Nothing => {}
                awaited => self.wait(seen, awaited, feed),
            }
        }
    }

    /// Waits until nothing is under way.
    fn settle(&mut self, feed: &mut impl Feed) -> Result<(), ReplayError> {
        while self.free.len() < self.parts.len() {
            let seen = self.engine.events(self.vector);
            self.reap(feed)?;
            self.wait(seen, Awaited::Completion, feed);
        }
        Ok(())
    }

    /// The replay's time now, which is before its 0 at first.
    pub(crate) fn clock(&self) -> i64 {
        (self.engine.now_ns() as i64).saturating_sub(self.zero.unwrap_or(0))
    }

    /// The replay's time now, or when this leg begins, before that. Something has happened.
    fn stamp(&mut self) -> u64 {
        self.active_ns = self.engine.now_ns();
        let now = (self.active_ns as i64).saturating_sub(self.zero.unwrap_or(0));
        u64::try_from(now).unwrap_or(0).max(self.begin)
    }

    /// Gives the device what is due.
    fn issue(&mut self, feed: &mut impl Feed) -> Result<Awaited, ReplayError> {
        let mut sent = 0;
        let awaited = loop {
            if !self.unsent.is_empty() && !self.send()? {
                break Awaited::Completion;
            }
            if sent == BATCH {
                break Awaited::Nothing;
            }
            let awaited = self.begin(feed)?;
            if awaited != Awaited::Nothing {
                break awaited;
            }
            sent += 1;
        };
        self.pair.ring();
        Ok(if sent > 0 { Awaited::Nothing } else { awaited })
    }

    /// Begins the next request, if it is due.
    fn begin(&mut self, feed: &mut impl Feed) -> Result<Awaited, ReplayError> {
        if self.head.is_none() && !self.has_ended {
            match feed.next() {
                Fed::NotYet => return Ok(Awaited::Feed),
                Fed::End => self.has_ended = true,
                Fed::Request(request) => self.look_at(request)?,
            }
        }
        let Some((request, place)) = self.head else {
            return Ok(if self.under_way == 0 { Awaited::End } else { Awaited::Completion });
        };
        if self.flights.len() == WINDOW || self.free.is_empty() {
            return Ok(Awaited::Completion);
        }
        let now = self.clock();
        let is_later = |time: u64| i64::try_from(time).is_ok_and(|time| time > now);
        let due = match self.pacer.due(&request, self.under_way) {
            _ if is_later(self.begin) => return Ok(Awaited::Time(self.begin)),
            Due::Later => return Ok(Awaited::Completion),
            Due::At(due) if is_later(due) => return Ok(Awaited::Time(due)),
            Due::At(due) => due,
            Due::Now => now as u64,
        };
        if self.options.verify && self.must_wait(request.op, &place) {
            self.result.held += u64::from(!std::mem::replace(&mut self.head_was_held, true));
            return Ok(Awaited::Completion);
        }
        (self.head, self.head_was_held) = (None, false);
        self.take_off(&request, place, due)?;
        Ok(Awaited::Nothing)
    }

    /// The next request is there; the first one says when this leg begins.
    fn look_at(&mut self, request: Request) -> Result<(), ReplayError> {
        let place = self.placement.place(&request)?;
        if self.zero.is_none() {
            self.begin = self.pacer.begin(&request, self.options.elapsed_ns);
            self.active_ns = self.engine.now_ns();
            self.zero = Some((self.active_ns + HEAD_START_NS) as i64 - self.begin as i64);
        }
        self.head = Some((request, place));
        Ok(())
    }

    /// Whether the next request overlaps a command that is under way, and either writes. All commands are looked at
    /// once, and again when the one for which it waits is done: it is asked at each poll.
    fn must_wait(&mut self, op: Op, place: &Place) -> bool {
        let is_there = |(slot, number): (usize, u64)| {
            self.parts[slot].as_ref().is_some_and(|part: &Part| part.number == number)
        };
        if self.obstacle.is_some_and(is_there) {
            return true;
        }
        self.obstacle = self.parts.iter().enumerate().find_map(|(slot, part)| {
            let part = part.filter(|part| !(part.op == Op::Read && op == Op::Read))?;
            place.meets(part.run).then_some((slot, part.number))
        });
        self.obstacle.is_some()
    }

    fn take_off(&mut self, request: &Request, place: Place, due: u64) -> Result<(), ReplayError> {
        let number = self.first + self.flights.len() as u64;
        self.pacer.issued(number, request)?;
        self.result.widened += u64::from(place.is_widened);
        self.result.moved += u64::from(place.is_moved);
        match request.op {
            Op::Flush => self.unsent.push_back(Run { lba: 0, blocks: 0 }),
            _ => self.unsent.extend(place.runs()),
        }
        let asked = Request { arrival_ns: due, start_ns: None, finish_ns: None, waited: None, ..*request };
        self.flights.push_back(Flight {
            request: asked,
            recorded: *request,
            left: 0,
            is_sent: false,
            error: None,
            is_done: false,
        });
        self.under_way += 1;
        self.send()?;
        Ok(())
    }

    /// Sends what was not sent of the last request; false if there was no room for all of it.
    fn send(&mut self) -> Result<bool, ReplayError> {
        let number = self.first + self.flights.len() as u64 - 1;
        let last = self.flights.len() - 1;
        let asked = self.flights[last].request;
        while let (Some(&run), Some(&slot)) = (self.unsent.front(), self.free.last()) {
            let most = self.part_blocks[asked.op as usize];
            let part = Run { lba: run.lba, blocks: run.blocks.min(most) };
            match self.submit(slot, number, part, &asked)? {
                // Nothing that is under way could make room.
                None if self.free.len() == self.parts.len() => {
                    return Err(ReplayError::NoRoom { doing: "a request of the trace" });
                }
                None => return Ok(false),
                Some(false) => {
                    self.leave_out(last);
                    return Ok(true);
                }
                Some(true) => {}
            }
            self.free.pop();
            let flight = &mut self.flights[last];
            flight.left += 1;
            if flight.request.start_ns.is_none() {
                let now = self.stamp();
                let request = &mut self.flights[last].request;
                request.start_ns = Some(now.max(asked.arrival_ns));
                self.result.started(request, self.options.pacing.has_deadlines());
            }
            match &mut self.unsent[0] {
                run if run.blocks > part.blocks => {
                    (run.lba, run.blocks) = (run.lba + part.blocks, run.blocks - part.blocks);
                }
                _ => _ = self.unsent.pop_front(),
            }
        }
        self.flights[last].is_sent = self.unsent.is_empty();
        Ok(self.unsent.is_empty())
    }

    /// A request that the device does not offer: it is as if it had been done at once.
    fn leave_out(&mut self, last: usize) {
        let (number, now) = (self.first + last as u64, self.stamp());
        self.unsent.clear();
        self.result.left_out += 1;
        let flight = &mut self.flights[last];
        flight.request.start_ns = Some(now.max(flight.request.arrival_ns));
        (flight.is_sent, flight.is_done) = (true, true);
        self.under_way -= 1;
        self.pacer.completed(number, now);
    }

    /// Submits one command: whether the device offers it; none where there is no room.
    pub(crate) fn submit(
        &mut self,
        slot: usize,
        number: u64,
        run: Run,
        asked: &Request,
    ) -> Result<Option<bool>, ReplayError> {
        let bytes = run.blocks as usize * self.lba_bytes as usize;
        let data = match asked.op {
            Op::Read => Some(self.payload.read_into(slot, bytes)),
            Op::Write => Some(self.payload.put(slot, self.made, run, bytes)),
            Op::Discard => {
                self.payload.forget(run);
                None
            }
            Op::Flush => None,
        };
        let request = nvmed_engine::Request {
            operation: operation(asked),
            lba: Lba(run.lba),
            blocks: run.blocks as u32,
            data: data.as_slice(),
            tag: slot as u64,
            stream: 0,
        };
        match self.pair.submit(&request) {
            Ok(()) => {
                self.made += 1;
                self.parts[slot] = Some(Part { number, run, bytes, op: asked.op });
                Ok(Some(true))
            }
            Err(SubmitError::NoSlot) => Ok(None),
            Err(SubmitError::Invalid { reason: InvalidRequest::Unsupported, .. })
                if asked.op == Op::Discard =>
            {
                Ok(Some(false))
            }
            Err(SubmitError::Failed(fault)) => Err(ReplayError::Fault { fault }),
            Err(error) => Err(IoError::refused(request.operation, request.lba, error).into()),
        }
    }

    /// Takes what the device has done.
    fn reap(&mut self, feed: &mut impl Feed) -> Result<(), ReplayError> {
        self.completions.clear();
        let count = self.pair.poll(&mut self.completions);
        let now = if count > 0 { self.stamp() } else { 0 };
        let mut ended = Ok(());
        for at in 0..self.completions.len() {
            let Completion { tag, result, .. } = self.completions[at];
            let slot = tag as usize;
            let Some(part) = self.parts.get_mut(slot).and_then(Option::take) else { continue };
            self.free.push(slot);
            let landed = self.land(slot, &part, result, now);
            ended = ended.and(landed);
        }
        self.retire(feed);
        ended
    }

    /// Passes on the first requests, as far as they are done. Those that were left out have no completion.
    fn retire(&mut self, feed: &mut impl Feed) {
        while self.flights.front().is_some_and(Flight::is_over) {
            let first = self.flights.pop_front();
            first.into_iter().for_each(|flight| feed.done(&flight.request, flight.outcome()));
            self.first += 1;
        }
    }

    /// A command is done.
    fn land(
        &mut self,
        slot: usize,
        part: &Part,
        result: Result<(), DeviceError>,
        now: u64,
    ) -> Result<(), ReplayError> {
        let mut ended = Ok(());
        match result {
            Ok(()) if part.op == Op::Read && self.options.verify => {
                ended = self.payload.was_read(slot, part.run, part.bytes);
            }
            Ok(()) => {}
            Err(error) => {
                self.payload.forget(part.run);
                if let Some(fault) = error.fault {
                    ended = Err(ReplayError::Fault { fault });
                }
            }
        }
        let flight = &mut self.flights[(part.number - self.first) as usize];
        flight.left -= 1;
        flight.error = flight.error.or(result.err());
        if flight.left > 0 || !flight.is_sent {
            return ended;
        }
        flight.is_done = true;
        self.under_way -= 1;
        match flight.error {
            None => {
                flight.request.finish_ns = Some(now.max(flight.request.start_ns.unwrap_or(0)));
                self.result.completed(&flight.request, &flight.recorded);
            }
            Some(error) => self.result.failed(error),
        }
        self.pacer.completed(part.number, now);
        ended
    }
}
