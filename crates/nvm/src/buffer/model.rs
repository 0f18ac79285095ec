//! When the medium behind a buffer has done what it is asked, and what it is worn by: the drive model's answers.

use super::profile::{BufferClock, BufferOptions};
use super::stats::BufferStats;
use super::wait::pass;
use super::write_log::WriteLog;
use crate::error::NvmError;
use nvmed_flash::{Command, Flash, Kind, Medium, Ticket};
use nvmed_image::Span;
use std::time::{Duration, Instant};

/// Bytes of a line.
pub(crate) const LINE_BYTES: u64 = 64;
/// Bytes of a page, whose lines are the bits of a word.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Bytes that a line takes in the write log: its own and its address.
const LOGGED_BYTES: u64 = LINE_BYTES + 8;
/// Pages of which programs are counted together: wear a MiB.
const WEAR_PAGES: u64 = 256;
/// Bytes of fills ahead that the medium has under way at once: several times what a fast link moves while cells are
/// read. More would be served by dies as they are free, what is needed last before what is needed first.
const AHEAD_BYTES: u64 = 1 << 20;
/// How many these are at least, where one is large.
const AHEAD_MIN: usize = 4;

/// What a command is for.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// To bring a frame; whether nobody has asked for it yet.
    Fill(u64, bool),
    /// Nobody waits for it alone.
    Other,
}

/// The medium's time and wear.
#[derive(Debug)]
pub(crate) struct Model {
    flash: Flash,
    /// By ticket.
    jobs: Vec<Option<Job>>,
    /// Frames that arrived while somebody waited for something else.
    met: Vec<(u64, bool)>,
    /// Fills ahead that are under way, and how many may be.
    ahead_under_way: usize,
    ahead_max: usize,
    /// Of a clock that is waited for: its zero.
    begun: Option<Instant>,
    /// Of a virtual clock; of the other one what it had at its zero.
    now_ns: u64,
    /// When the medium had been filled.
    filled_ns: u64,
    /// Units that a drive had programmed by then.
    filled_units: u64,
    log: WriteLog,
    has_log: bool,
    program_bytes: u64,
    pub(crate) kept: bool,
    /// Programs by MiB.
    wear: Vec<u32>,
    pub(crate) stats: BufferStats,
}

impl Model {
    /// A medium of `bytes` bytes that nobody has asked anything yet, in whose cells `filled` lies.
    ///
    /// # Errors
    /// The profile describes no medium.
    pub(crate) fn new(options: &BufferOptions, bytes: u64, filled: &[Span]) -> Result<Self, NvmError> {
        let profile = &options.profile;
        let mut flash = Flash::new(&profile.medium).map_err(|error| NvmError::Profile { error })?;
        if matches!(profile.medium.medium, Medium::Array(_)) {
            // Nothing of it has to be written for it to be read as slowly as it is.
            flash.fill(filled.iter().map(|span| span.offset..span.end()));
        }
        let tickets = profile.medium.tickets() as usize;
        Ok(Self {
            jobs: vec![None; tickets],
            met: Vec::new(),
            ahead_under_way: 0,
            ahead_max: ((AHEAD_BYTES / profile.fill_bytes) as usize).max(AHEAD_MIN),
            begun: (options.clock == BufferClock::Waited).then(Instant::now),
            now_ns: flash.now(),
            filled_ns: flash.now(),
            filled_units: flash.counts().programmed_units,
            log: WriteLog::new(options.log_bytes() / LOGGED_BYTES),
            has_log: profile.log_percent > 0,
            program_bytes: profile.program_bytes,
            kept: profile.kept,
            wear: vec![0; bytes.div_ceil(PAGE_BYTES * WEAR_PAGES) as usize],
            stats: BufferStats::default(),
            flash,
        })
    }

    /// The time now.
    pub(crate) fn now(&self) -> u64 {
        match self.begun {
            Some(begun) => self.now_ns + u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX / 2),
            None => self.now_ns,
        }
    }

    /// The time now, as callers count it.
    pub(crate) fn since_filled(&self) -> u64 {
        self.now() - self.filled_ns
    }

    /// What is counted, up to now.
    pub(crate) fn stats(&self) -> BufferStats {
        let counts = self.flash.counts();
        BufferStats {
            now_ns: self.since_filled(),
            log_lines: self.log.lines(),
            worn_most: self.wear.iter().copied().max().unwrap_or(0),
            drive_units: counts.programmed_units - self.filled_units,
            ..self.stats
        }
    }

    /// Somebody who has waited since a time, if he has, waits no more.
    pub(crate) fn waited(&mut self, since: Option<u64>) {
        self.stats.waited_ns += since.map_or(0, |since| self.now() - since);
    }

    /// The next frame that has arrived until now, if any, and whether nobody has asked for it.
    pub(crate) fn arrived(&mut self) -> Option<(u64, bool)> {
        let now = self.now();
        while self.met.is_empty() {
            if !self.advance(now) {
                return None;
            }
        }
        self.met.pop()
    }

    /// How long the caller has to wait until a frame may have arrived.
    pub(crate) fn until_arrival(&mut self) -> Duration {
        // Some may have while room for another command was waited for.
        if self.met.is_empty() { self.until_next() } else { Duration::ZERO }
    }

    /// How long until something more is done; a virtual clock is there at once.
    fn until_next(&mut self) -> Duration {
        let due = self.flash.next_due();
        assert!(due != u64::MAX, "somebody waits, and nothing is under way");
        if self.begun.is_none() {
            self.now_ns = self.now_ns.max(due);
            return Duration::ZERO;
        }
        Duration::from_nanos(due.saturating_sub(self.now()))
    }

    /// Lets a virtual clock go on to what is done next, but not beyond `until`, a time as in [`BufferStats::now_ns`];
    /// whether something is done then. A clock that is waited for goes by itself.
    pub(crate) fn step(&mut self, until: u64) -> bool {
        let until = until.saturating_add(self.filled_ns);
        if self.begun.is_some() || self.now_ns >= until {
            return false;
        }
        let due = self.flash.next_due();
        self.now_ns = self.now_ns.max(due.min(until));
        due <= until
    }

    /// Whether one more command would begin without a wait.
    pub(crate) fn has_room(&self) -> bool {
        self.flash.takes(false)
    }

    /// Begins a command, when there is room for it.
    fn begin(&mut self, kind: Kind, span: Span, job: Job) -> Ticket {
        while !self.flash.takes(false) {
            // What is written home is not waited for, as long as the medium keeps up.
            pass(self.until_next());
            self.advance(self.now());
        }
        self.send(self.now(), kind, span, job)
    }

    /// A command, for which there is room, arrives at the medium.
    fn send(&mut self, time: u64, kind: Kind, span: Span, job: Job) -> Ticket {
        let command = Command { kind, start: span.offset, bytes: span.bytes, urgent: false };
        let ticket = self.flash.arrive(time, &command);
        self.ahead_under_way += usize::from(matches!(job, Job::Fill(_, true)));
        self.jobs[ticket.0 as usize] = Some(job);
        ticket
    }

    /// Has happen what is due, up to the next command that is done; false where none is done until `until`. The arrival
    /// of a frame is kept for [`Model::arrived`].
    fn advance(&mut self, until: u64) -> bool {
        let Some(done) = self.flash.advance(until) else { return false };
        if let Some(Job::Fill(frame, ahead)) = self.jobs[done.ticket.0 as usize].take() {
            self.met.push((frame, ahead));
            self.ahead_under_way -= usize::from(ahead);
        }
        true
    }

    /// Whether one more frame may begin to come ahead.
    pub(crate) fn has_room_ahead(&self) -> bool {
        self.ahead_under_way < self.ahead_max && self.flash.takes(false)
    }

    /// Begins to bring a frame, for somebody who waits or ahead of him.
    pub(crate) fn fill(&mut self, frame: u64, span: Span, ahead: bool) {
        self.stats.fills += u64::from(!ahead);
        self.stats.fills_ahead += u64::from(ahead);
        let job = Job::Fill(frame, ahead);
        if ahead && self.flash.takes(false) {
            // In the place of another one, at the time when that was done, whenever somebody looks.
            let _ = self.send(self.flash.now(), Kind::Read, span, job);
        } else {
            let _ = self.begin(Kind::Read, span, job);
        }
    }

    /// Lines of a page leave their frame: they wait in the log, or are programmed where there is none. `more` takes
    /// what waits in the frame of a page, and says whether that frame is there.
    pub(crate) fn leave(&mut self, page: u64, lines: u64, more: impl FnMut(u64) -> (u64, bool)) {
        if lines == 0 {
            return;
        }
        if !self.has_log {
            // All of a page is written, as who knows nothing of lines does.
            return self.program(page, u64::MAX, true);
        }
        self.log.add(page, lines);
        self.make_room(more);
    }

    /// Programs what the log has no room for.
    fn make_room(&mut self, mut more: impl FnMut(u64) -> (u64, bool)) {
        while let Some((page, lines)) = self.log.take_excess() {
            let (others, is_resident) = more(page);
            self.program(page, lines | others, is_resident);
        }
    }

    /// Programs all that waits in the log, in the order in which it came, and then `frames`; and waits for it.
    pub(crate) fn flush(&mut self, frames: &[(u64, u64)], is_resident: impl Fn(u64) -> bool) {
        let logged = self.log.take_all();
        for &(page, lines) in logged.iter().chain(frames) {
            self.program(page, lines, is_resident(page));
        }
        let ticket = self.begin(Kind::Flush, Span { offset: 0, bytes: 0 }, Job::Other);
        while self.jobs[ticket.0 as usize].is_some() {
            pass(self.until_next());
            self.advance(self.now());
        }
    }

    /// What a range had is of no use any more.
    pub(crate) fn discard(&mut self, span: Span) {
        self.log.forget(span.offset / PAGE_BYTES..span.end().div_ceil(PAGE_BYTES));
        let _ = self.begin(Kind::Deallocate, span, Job::Other);
    }

    /// Programs lines of a page, in whole units; what these have besides is read first, unless the buffer has it.
    fn program(&mut self, page: u64, lines: u64, is_resident: bool) {
        let unit = self.program_bytes / LINE_BYTES;
        let of_unit = u64::MAX >> (64 - unit);
        let units = (0..64).step_by(unit as usize).map(|first| of_unit << first);
        let whole = units.filter(|unit| unit & lines != 0).fold(0, |all, unit| all | unit);
        let span = Span { offset: page * PAGE_BYTES, bytes: PAGE_BYTES };
        if whole != lines && !is_resident {
            self.stats.reads_to_program += 1;
            let _ = self.begin(Kind::Read, span, Job::Other);
        }
        for (first, count) in runs(whole) {
            let part = Span { offset: span.offset + first * LINE_BYTES, bytes: count * LINE_BYTES };
            let _ = self.begin(Kind::Write { fua: false }, part, Job::Other);
        }
        self.stats.programs += 1;
        self.stats.programmed_bytes += u64::from(whole.count_ones()) * LINE_BYTES;
        self.wear[(page / WEAR_PAGES) as usize] += 1;
    }
}

/// The runs of ones in a word, each with where it begins and how many there are.
pub(crate) fn runs(word: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut left = word;
    std::iter::from_fn(move || {
        let first = left.trailing_zeros();
        if first == 64 {
            return None;
        }
        let count = (left >> first).trailing_ones();
        left &= u64::MAX.checked_shl(first + count).unwrap_or(0);
        Some((u64::from(first), u64::from(count)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_ones_are_found() {
        assert_eq!(runs(0).count(), 0);
        assert_eq!(runs(u64::MAX).collect::<Vec<_>>(), [(0, 64)]);
        assert_eq!(runs(0b1011 | 1 << 63).collect::<Vec<_>>(), [(0, 2), (3, 1), (63, 1)]);
    }
}
