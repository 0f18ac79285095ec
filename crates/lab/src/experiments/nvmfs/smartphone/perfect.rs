//! Perfect knowledge of a workload of reads and writes that arrive at their times: the exact future, the same drive, as
//! many frames and as much of a log, and nothing of the buffer's own code.

use super::super::readahead::future::{DEPTHS, Run};
use super::load::{Load, PAGE};
use crate::error::LabError;
use nvmed_flash::{Command, Flash, Kind, Ticket};
use nvmed_nvm::BufferOptions;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// What a page takes in the log: 64 lines, each with its address.
const LOGGED_PAGE: u64 = PAGE / 64 * 72;

/// A frame of a request.
#[derive(Clone, Copy, Debug)]
struct Use {
    request: usize,
    /// All of it is written: it does not come.
    is_covered: bool,
    /// Pages that are written, a bit each.
    written: u64,
}

/// Pages that wait in memory to be programmed, in the order in which they came.
#[derive(Debug, Default)]
struct Log {
    ages: HashMap<u64, u64>,
    pages: BTreeMap<u64, u64>,
    next_age: u64,
    room: usize,
}

impl Log {
    /// A page comes; the one that has waited longest leaves where there is no room.
    fn push(&mut self, page: u64) -> Option<u64> {
        let age = *self.ages.entry(page).or_insert(self.next_age);
        self.pages.insert(age, page);
        self.next_age += 1;
        if self.pages.len() <= self.room {
            return None;
        }
        let (_, oldest) = self.pages.pop_first()?;
        self.ages.remove(&oldest);
        Some(oldest)
    }
}

/// A workload, and what serves it.
pub(super) struct Perfect<'a> {
    load: &'a Load,
    options: &'a BufferOptions,
    frames: Vec<u64>,
    uses: Vec<Use>,
    covered: Vec<bool>,
}

impl<'a> Perfect<'a> {
    pub(super) fn of(load: &'a Load, options: &'a BufferOptions) -> Self {
        let fill = options.profile.fill_bytes;
        let (mut frames, mut uses) = (Vec::new(), Vec::new());
        for (request, asked) in load.requests.iter().enumerate() {
            for frame in asked.at / fill..asked.end().div_ceil(fill) {
                let from = asked.at.max(frame * fill);
                let to = asked.end().min((frame + 1) * fill);
                let (first, count) = ((from - frame * fill) / PAGE, (to - from).div_ceil(PAGE));
                let written = if asked.is_write { (u64::MAX >> (64 - count)) << first } else { 0 };
                let is_covered = asked.is_write && to - from == fill;
                frames.push(frame);
                uses.push(Use { request, is_covered, written });
            }
        }
        let covered = uses.iter().map(|one| one.is_covered).collect();
        Self { load, options, frames, uses, covered }
    }

    /// The least time, of some depths, in which all requests are served: from the arrival of each, or the end of the
    /// one before it, to its end.
    ///
    /// # Errors
    /// The profile describes no drive.
    pub(super) fn best_ns(&self) -> Result<u64, LabError> {
        let places = self.options.frames() as usize;
        let times = DEPTHS.map(|part| self.service_ns(places, (places / part).max(1)));
        times.into_iter().try_fold(u64::MAX, |best, time| Ok(best.min(time?)))
    }

    fn service_ns(&self, places: usize, depth: usize) -> Result<u64, LabError> {
        let profile = &self.options.profile;
        let failed = |error| LabError::missing(format!("no drive for perfect knowledge: {error}"));
        let mut flash = Flash::new(&profile.medium).map_err(failed)?;
        let begin = flash.fill(core::iter::once(0..self.load.medium_bytes));
        let mut served = Served {
            perfect: self,
            flash,
            now: begin,
            depth,
            run: Run::new(&self.frames, places).with_covered(&self.covered),
            under_way: HashMap::new(),
            written: HashMap::new(),
            log: Log { room: (self.options.log_bytes() / LOGGED_PAGE) as usize, ..Log::default() },
            programs: VecDeque::new(),
        };
        let (mut at, mut sum) = (0, 0);
        for (request, asked) in self.load.requests.iter().enumerate() {
            served.idle_until(begin + asked.arrival_ns);
            let start = served.now;
            while self.uses.get(at).is_some_and(|one| one.request == request) {
                served.serve(at);
                at += 1;
            }
            sum += served.now - start;
        }
        Ok(sum)
    }
}

/// A run through the workload.
struct Served<'a> {
    perfect: &'a Perfect<'a>,
    flash: Flash,
    now: u64,
    /// Frames under way at most.
    depth: usize,
    run: Run<'a>,
    under_way: HashMap<Ticket, u64>,
    /// By frame: pages of it that were written and wait there, a bit each.
    written: HashMap<u64, u64>,
    log: Log,
    /// Pages that are to be programmed.
    programs: VecDeque<u64>,
}

impl Served<'_> {
    /// Has begin what can begin now.
    fn begin(&mut self) {
        loop {
            self.log_left();
            if !self.flash.takes(false) {
                return;
            }
            let command = if let Some(page) = self.programs.pop_front() {
                Command { kind: Kind::Write { fua: false }, start: page * PAGE, bytes: PAGE, urgent: false }
            } else if self.under_way.len() < self.depth
                && let Some(frame) = self.run.next()
            {
                let start = frame * self.perfect.options.profile.fill_bytes;
                let bytes =
                    self.perfect.options.profile.fill_bytes.min(self.perfect.load.medium_bytes - start);
                let read = Command { kind: Kind::Read, start, bytes, urgent: false };
                self.under_way.insert(self.flash.arrive(self.now, &read), frame);
                continue;
            } else {
                return;
            };
            let _ = self.flash.arrive(self.now, &command);
        }
    }

    /// What was written in frames that have left waits in the log, or is to be programmed.
    fn log_left(&mut self) {
        let pages = self.perfect.options.profile.fill_bytes / PAGE;
        for frame in self.run.take_left() {
            let written = self.written.remove(&frame).unwrap_or(0);
            for page in (0..pages).filter(|page| written >> page & 1 != 0) {
                self.programs.extend(self.log.push(frame * pages + page));
            }
        }
    }

    /// Lets pass what is due until `time`, and begin what that makes room for.
    fn pass(&mut self, time: u64) {
        self.now = self.now.max(time);
        while let Some(done) = self.flash.advance(self.now) {
            self.run.arrived(self.under_way.remove(&done.ticket));
        }
    }

    /// Nobody asks for anything until then.
    fn idle_until(&mut self, time: u64) {
        self.begin();
        while self.now < time {
            let due = self.flash.next_due().min(time);
            self.pass(due);
            self.begin();
        }
    }

    /// Waits for a frame, and uses it.
    fn serve(&mut self, at: usize) {
        let (frame, one) = (self.perfect.frames[at], self.perfect.uses[at]);
        loop {
            self.begin();
            if self.run.has(frame) || one.is_covered && self.run.place(frame) {
                break;
            }
            let due = self.flash.next_due();
            assert!(due != u64::MAX, "frame {frame} is waited for, and nothing is under way");
            self.pass(due);
        }
        self.run.used(at);
        if one.written != 0 {
            *self.written.entry(frame).or_default() |= one.written;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::Asked;
    use super::*;
    use nvmed_flash::{FixedProfile, Medium, Profile, Rate};
    use nvmed_nvm::{BufferClock, MediaProfile};

    const FILL: u64 = 4 * PAGE;

    /// A microsecond for the cells and four for the link, a frame.
    fn served(requests: &[(u64, bool, u64, u64)], places: u64, log_percent: u32) -> u64 {
        let requests: Vec<Asked> = requests
            .iter()
            .map(|&(arrival_ns, is_write, page, pages)| Asked {
                arrival_ns,
                is_write,
                at: page * PAGE,
                bytes: pages * PAGE,
            })
            .collect();
        let load = Load { name: String::new(), requests, medium_bytes: 64 * FILL, pieces: Vec::new() };
        let link = Rate { bytes: PAGE, ns: 1000 };
        let medium = Medium::Fixed(FixedProfile { read_ns: 1000, write_ns: 100_000, link });
        let medium = Profile { commands: 64, medium };
        let profile = MediaProfile { medium, program_bytes: 4096, fill_bytes: FILL, log_percent, kept: true };
        let options = BufferOptions { profile, bytes: places * FILL, clock: BufferClock::Virtual };
        Perfect::of(&load, &options).best_ns().unwrap()
    }

    #[test]
    fn what_is_known_comes_before_it_is_asked_for() {
        // The first read has no time to come; the second one has all that it takes.
        assert_eq!(served(&[(0, false, 0, 1), (50_000, false, 8, 1)], 2, 0), 5000);
        // There is one place: the second begins to come when the first one was read.
        assert_eq!(served(&[(0, false, 0, 1), (6000, false, 8, 1)], 1, 0), 5000 + 4000);
        // All of a frame is written, so it does not come; a part of one waits for the rest.
        assert_eq!(served(&[(0, true, 0, 4)], 2, 0), 0);
        assert_eq!(served(&[(0, true, 0, 3)], 2, 0), 5000);
        // What was written is there, also when another frame was written whole meanwhile.
        assert_eq!(served(&[(0, true, 0, 4), (9, true, 4, 4), (10, false, 1, 1)], 2, 0), 0);
    }

    #[test]
    fn the_page_that_has_waited_longest_leaves_the_log() {
        let mut log = Log { room: 2, ..Log::default() };
        let left: Vec<_> = [5, 6, 5, 7, 5, 8].map(|page| log.push(page)).into_iter().collect();
        assert_eq!(left, [None, None, None, Some(5), Some(6), Some(7)]);
    }
}
