//! Requests of events: when parts of one were queued, when the device was given it, when that was done.
//!
//! A request is what the device was given: its place and size are those of its issue. Events belong together by device,
//! operation, place and length, the oldest first; never across another operation (perf-tools issue 27 is a recorder
//! that does, and shows latencies of 90 s). What was queued is merged on its way: the parts of an issue are those that
//! tile it exactly, since a part that only lies within it may be another request's. (blktrace(8), blkparse(1).)

use crate::codec::Malformed;
use crate::intake::{Intake, WINDOW};
use crate::request::{Flags, Op, Request};
use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;

/// Parts that are looked at to tile an issue: more than 1,280 KiB (the most of a request by default) of sectors.
const PARTS_MAX: usize = 4096;
/// Waiting parts of one place that a split may be about: threads that queue overlapping requests there at once.
const SPLITS_MAX: usize = 64;
/// How long after lost events an issue's arrival may be among them: writes wait 5 s until mq-deadline sends them
/// (`write_expire`).
const ARRIVAL_LOST_NS: u64 = 5_000_000_000;

/// What happens to a request, in the order in which it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// It comes to the block layer (Q).
    Queued,
    /// It is put among those of the scheduler (I).
    Inserted,
    /// The device gets it (D).
    Issued,
    /// The device has done it, or a first part of what is left of it (C).
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
    /// It is a completion with an error.
    pub(crate) has_failed: bool,
}

/// Counts of what of a trace of events has no partner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unpaired {
    /// Completions, and returns to the queue, of requests whose issue was not seen; they are left out.
    pub completions: u64,
    /// Arrivals of what was never issued, on a device that is given requests; they are left out.
    pub arrivals: u64,
    /// Requests whose completion was not seen, in a trace that has completions; their finish is not known.
    pub unfinished: u64,
    /// Requests whose arrival was not seen, on a device whose requests arrive; they arrive when they are issued.
    pub without_arrival: u64,
    /// Arrivals, issues and other events that are left out since events beside them were lost.
    pub beside_lost: u64,
}

impl Unpaired {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self { completions, arrivals, unfinished, without_arrival, beside_lost } = *self;
        completions + arrivals + unfinished + without_arrival + beside_lost
    }
}

/// What is open: device, operation, where what is left of it begins, how long that is, and its turn.
type Key = (u32, u8, u64, u64, u64);

/// All keys of a place with lengths from one to another.
fn keys(event: &Event, offset: u64, bytes: RangeInclusive<u64>) -> RangeInclusive<Key> {
    let (device, op) = (event.device, event.op as u8);
    (device, op, offset, *bytes.start(), 0)..=(device, op, offset, *bytes.end(), u64::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has arrived.
    Waiting,
    /// The device was given it; its turn among these.
    Issued(u64),
    Finished,
    /// It is part of another one, or left out.
    Gone,
}

/// A request, or a part of one that waits.
#[derive(Clone, Copy, Debug)]
struct Slot {
    request: Request,
    /// Bytes at its end that are not completed.
    left: u64,
    state: State,
    /// Its arrival may have been lost: it is followed, and left out.
    is_left_out: bool,
}

impl Slot {
    fn key(&self, turn: u64) -> Key {
        let request = &self.request;
        (request.device, request.op as u8, request.end() - self.left, self.left, turn)
    }
}

/// What was seen of a device.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    arrives: bool,
    issues: bool,
}

/// Makes requests of events.
#[derive(Debug, Default)]
pub(crate) struct Pairing {
    /// In the order in which they arrived; the first one has the number `first`.
    slots: std::collections::VecDeque<Slot>,
    first: u64,
    /// What waits, by number; and what is issued, by turn: the numbers.
    waiting: BTreeMap<Key, u64>,
    issued: BTreeMap<Key, u64>,
    turn: u64,
    seen: Vec<Seen>,
    /// Some request of the trace was completed.
    completes: bool,
    /// Until when an issue without arrival is one whose arrival may have been lost.
    lost_until_ns: u64,
}

impl Pairing {
    /// Takes an event. One that belongs to no request is counted.
    pub(crate) fn event(&mut self, event: &Event, intake: &mut Intake) -> Result<(), Malformed> {
        event.offset.checked_add(event.bytes).ok_or(Malformed::Number("size"))?;
        match event.stage {
            Stage::Queued => self.arrive(event)?,
            Stage::Inserted if self.parts(event).is_none() => self.arrive(event)?,
            Stage::Inserted => {}
            Stage::Issued => self.issue(event, intake)?,
            Stage::Completed => self.complete(event, intake),
            Stage::Requeued => self.give_back(event, intake),
            Stage::Split(at) => self.split(event, at),
        }
        self.give_those_that_are_done(intake);
        Ok(())
    }

    fn seen(&mut self, device: u32) -> &mut Seen {
        let device = device as usize;
        if device >= self.seen.len() {
            self.seen.resize(device + 1, Seen::default());
        }
        &mut self.seen[device]
    }

    fn slot(&mut self, number: u64) -> &mut Slot {
        &mut self.slots[(number - self.first) as usize]
    }

    /// A request that has this event's place, and arrives with it.
    fn request(event: &Event) -> Result<Request, Malformed> {
        let Event { device, process, op, flags, offset, bytes, time_ns, .. } = *event;
        Ok(Request { device, process, flags, ..Request::new(op, offset, bytes, time_ns) }.checked()?)
    }

    fn wait(&mut self, request: Request) {
        let number = self.first + self.slots.len() as u64;
        let slot = Slot { request, left: request.bytes, state: State::Waiting, is_left_out: false };
        self.slots.push_back(slot);
        self.waiting.insert(slot.key(number), number);
    }

    fn arrive(&mut self, event: &Event) -> Result<(), Malformed> {
        self.wait(Self::request(event)?);
        self.seen(event.device).arrives = true;
        Ok(())
    }

    /// The oldest of these that was there when an event happened.
    fn oldest(
        &self,
        among: &BTreeMap<Key, u64>,
        keys: RangeInclusive<Key>,
        event: &Event,
    ) -> Option<(Key, u64)> {
        let (key, number) = among.range(keys).next()?;
        let request = &self.slots[(number - self.first) as usize].request;
        (request.start_ns.unwrap_or(request.arrival_ns) <= event.time_ns).then_some((*key, *number))
    }

    /// What waits and is an event's: one of its place and length, or parts that tile it. A flush of the device is for
    /// all flushes that wait.
    fn parts(&self, event: &Event) -> Option<Vec<(Key, u64)>> {
        let exact = keys(event, event.offset, event.bytes..=event.bytes);
        if event.op == Op::Flush {
            let all = self.waiting.range(exact).map(|(key, number)| (*key, *number));
            let is_before = |part: &(Key, u64)| {
                self.slots[(part.1 - self.first) as usize].request.arrival_ns <= event.time_ns
            };
            let all: Vec<_> = all.filter(is_before).collect();
            return (!all.is_empty()).then_some(all);
        }
        self.oldest(&self.waiting, exact, event).map(|one| vec![one]).or_else(|| self.tiles(event))
    }

    /// Parts that tile an event: from its beginning on the longest that fit, shorter ones where these end nowhere.
    fn tiles(&self, event: &Event) -> Option<Vec<(Key, u64)>> {
        let end = event.offset + event.bytes;
        let (mut path, mut dead) = (Vec::<(Key, u64)>::new(), HashSet::new());
        let (mut at, mut longest) = (event.offset, event.bytes);
        for _ in 0..PARTS_MAX {
            if at == end {
                return Some(path);
            }
            let length = |keys| self.waiting.range(keys).next_back().map(|((.., bytes, _), _)| *bytes);
            let Some(bytes) = (longest > 0).then(|| length(keys(event, at, 1..=longest))).flatten() else {
                dead.insert(at);
                let ((.., from, tried, _), _) = path.pop()?;
                (at, longest) = (from, tried - 1);
                continue;
            };
            match self.oldest(&self.waiting, keys(event, at, bytes..=bytes), event) {
                Some(part) if !dead.contains(&(at + bytes)) => {
                    path.push(part);
                    (at, longest) = (at + bytes, end - at - bytes);
                }
                _ => longest = bytes - 1,
            }
        }
        None
    }

    /// Makes one request of parts that follow each other, which takes the place of the first that arrived; its number.
    fn join(&mut self, parts: &[(Key, u64)]) -> Option<u64> {
        // The rest of a split is younger than what came with its first part.
        let arrival = |number: u64| self.slots[(number - self.first) as usize].request.arrival_ns;
        let (_, number) = parts.iter().map(|(_, number)| (arrival(*number), *number)).min()?;
        let mut whole = *self.slot(number);
        // What of the first part was done before it came back is the request's, too.
        let (first, last) = (self.slot(parts.first()?.1).request, self.slot(parts.last()?.1).request);
        (whole.request.offset, whole.request.bytes) = (first.offset, last.end() - first.offset);
        for (key, part) in parts {
            self.waiting.remove(key);
            let slot = self.slot(*part);
            slot.state = State::Gone;
            whole.is_left_out |= slot.is_left_out;
        }
        *self.slot(number) = whole;
        Some(number)
    }

    /// The device is given a request.
    fn issue(&mut self, event: &Event, intake: &mut Intake) -> Result<(), Malformed> {
        let unseen = Request { start_ns: Some(event.time_ns), ..Self::request(event)? };
        self.seen(event.device).issues = true;
        let parts = self.parts(event);
        let number = match parts.and_then(|parts| self.join(&parts)) {
            Some(number) => number,
            None => self.issue_without_arrival(event, unseen, intake),
        };
        self.turn += 1;
        let turn = self.turn;
        let slot = self.slot(number);
        slot.request.start_ns = Some(event.time_ns);
        slot.request.flags = event.flags;
        (slot.left, slot.state) = (event.bytes, State::Issued(turn));
        let key = slot.key(turn);
        self.issued.insert(key, number);
        Ok(())
    }

    /// What waits within the issue may be parts of it, and would be taken for later ones: nobody can tell.
    fn issue_without_arrival(&mut self, event: &Event, request: Request, intake: &mut Intake) -> u64 {
        let (device, op) = (event.device, event.op as u8);
        let end = event.offset + event.bytes;
        let within = (device, op, event.offset, 0, 0)..(device, op, end, 0, 0);
        let within =
            self.waiting.range(within).take(PARTS_MAX).filter(|((_, _, at, bytes, _), _)| at + bytes <= end);
        let within: Vec<(Key, u64)> = within.map(|(key, number)| (*key, *number)).collect();
        for (key, number) in within {
            self.waiting.remove(&key);
            self.slot(number).state = State::Gone;
            intake.counts.unpaired.arrivals += 1;
        }
        // The kernel flushes of its own accord, too: before and after writes.
        let arrives = self.seen(device).arrives && event.op != Op::Flush;
        let is_left_out = arrives && event.time_ns < self.lost_until_ns;
        let unpaired = &mut intake.counts.unpaired;
        unpaired.without_arrival += u64::from(arrives && !is_left_out);
        unpaired.beside_lost += u64::from(is_left_out);
        let number = self.first + self.slots.len() as u64;
        self.slots.push_back(Slot { request, left: request.bytes, state: State::Gone, is_left_out });
        number
    }

    /// What was issued first at this place with this length is done; else a first part of something longer.
    fn complete(&mut self, event: &Event, intake: &mut Intake) {
        self.completes = true;
        let exact = keys(event, event.offset, event.bytes..=event.bytes);
        let longer = keys(event, event.offset, event.bytes.saturating_add(1)..=u64::MAX);
        let is_part = || (event.bytes > 0).then(|| self.oldest(&self.issued, longer, event)).flatten();
        let Some((key, number)) = self.oldest(&self.issued, exact, event).or_else(is_part) else {
            return self.complete_without_issue(event, intake);
        };
        self.issued.remove(&key);
        let slot = self.slot(number);
        slot.left -= event.bytes;
        slot.request.finish_ns = Some(event.time_ns);
        if slot.left > 0 {
            // The rest begins where this part ends.
            let rest = slot.key(key.4);
            self.issued.insert(rest, number);
        } else {
            slot.state = if slot.is_left_out { State::Gone } else { State::Finished };
        }
    }

    /// A trace without issues, an issue that was lost, or what the block layer answered itself.
    fn complete_without_issue(&mut self, event: &Event, intake: &mut Intake) {
        let issues = self.seen(event.device).issues;
        if event.op == Op::Flush && issues {
            // Besides the device's flush, what asked for it completes.
            return;
        }
        let parts = self.parts(event).map(|mut parts| {
            // Nothing of this trace says that several flushes were one.
            parts.truncate(if event.op == Op::Flush { 1 } else { usize::MAX });
            parts
        });
        let Some(number) = parts.and_then(|parts| self.join(&parts)) else {
            intake.counts.unpaired.completions += 1;
            return;
        };
        let slot = self.slot(number);
        slot.left = 0;
        slot.request.finish_ns = Some(event.time_ns);
        // Refused before the device was given it: who asked for it asks again.
        let is_refused = event.has_failed && issues;
        slot.state = if is_refused || slot.is_left_out { State::Gone } else { State::Finished };
    }

    /// The device did not take it: it waits as if it had not been issued.
    fn give_back(&mut self, event: &Event, intake: &mut Intake) {
        let exact = keys(event, event.offset, event.bytes..=event.bytes);
        let Some((key, number)) = self.oldest(&self.issued, exact, event) else {
            intake.counts.unpaired.completions += 1;
            return;
        };
        self.issued.remove(&key);
        let slot = self.slot(number);
        slot.state = State::Waiting;
        (slot.request.start_ns, slot.request.finish_ns) = (None, None);
        let key = slot.key(number);
        self.waiting.insert(key, number);
    }

    /// The last one that came to this place and holds the offset is the one that is split.
    fn split(&mut self, event: &Event, at: u64) {
        let Some(first) = at.checked_sub(event.offset).filter(|bytes| *bytes > 0) else { return };
        let longer = keys(event, event.offset, first.saturating_add(1)..=u64::MAX);
        let found = self.waiting.range(longer).take(SPLITS_MAX).max_by_key(|(_, number)| **number);
        let Some((key, number)) = found.map(|(key, number)| (*key, *number)) else { return };
        self.waiting.remove(&key);
        let slot = self.slot(number);
        let rest = Request { offset: at, bytes: slot.request.end() - at, ..slot.request };
        slot.request.bytes -= rest.bytes;
        slot.left -= rest.bytes;
        let key = slot.key(number);
        self.waiting.insert(key, number);
        self.wait(rest);
    }

    /// Events were lost before this time: nothing that is open can be told from what was lost.
    pub(crate) fn lose(&mut self, until_ns: u64, intake: &mut Intake) {
        let open = std::mem::take(&mut self.waiting).into_values();
        let open: Vec<u64> = open.chain(std::mem::take(&mut self.issued).into_values()).collect();
        intake.counts.unpaired.beside_lost += open.len() as u64;
        for number in open {
            self.slot(number).state = State::Gone;
        }
        self.lost_until_ns = self.lost_until_ns.max(until_ns.saturating_add(ARRIVAL_LOST_NS));
        self.give_those_that_are_done(intake);
    }

    fn give_those_that_are_done(&mut self, intake: &mut Intake) {
        let is_done = |slot: &Slot| matches!(slot.state, State::Finished | State::Gone);
        while self.slots.len() > WINDOW || self.slots.front().is_some_and(is_done) {
            self.give(intake);
        }
    }

    /// Gives away what arrived first, whether it is done or not.
    fn give(&mut self, intake: &mut Intake) {
        let Some(slot) = self.slots.pop_front() else { return };
        let number = self.first;
        self.first += 1;
        let (issues, completes) = (self.seen(slot.request.device).issues, self.completes);
        match slot.state {
            State::Gone => return,
            State::Finished => {}
            State::Waiting => {
                self.waiting.remove(&slot.key(number));
                if issues {
                    intake.counts.unpaired.arrivals += 1;
                    return;
                }
                intake.counts.unpaired.unfinished += u64::from(completes);
            }
            State::Issued(turn) => {
                self.issued.remove(&slot.key(turn));
                if slot.is_left_out {
                    return;
                }
                intake.counts.unpaired.unfinished += u64::from(completes);
            }
        }
        let finish_ns = slot.request.finish_ns.filter(|_| slot.state == State::Finished);
        intake.push_of_events(Request { finish_ns, ..slot.request });
    }

    /// Gives away what is left.
    pub(crate) fn end(&mut self, intake: &mut Intake) {
        while !self.slots.is_empty() {
            self.give(intake);
        }
    }
}
