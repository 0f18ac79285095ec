//! Perfect knowledge: the exact future, the same buffer, the same drive, and nothing of the buffer's own code.
//!
//! Frames begin to come in the order in which they will be used, as early as there is a place; what leaves is what will
//! be used last (Belady), and nothing leaves for what is used later than itself (the rules of Cao, Felten, Karlin and
//! Li, "A study of integrated prefetching and caching strategies", SIGMETRICS'95).

use super::set::{Call, Set};
use crate::error::LabError;
use nvmed_flash::{Command, Flash, Kind, Medium, Profile};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

/// Frames under way at most, over those of the buffer: the best of these counts.
pub(in super::super) const DEPTHS: [usize; 4] = [8, 4, 2, 1];

/// What will be used, and on what.
pub(super) struct Future {
    frames: Vec<u64>,
    profile: Profile,
    fill_bytes: u64,
    /// Bytes of the medium.
    bytes: u64,
    /// Places of the buffer.
    places: usize,
}

fn failed(error: impl std::fmt::Display) -> LabError {
    LabError::missing(format!("no drive for perfect knowledge: {error}"))
}

impl Future {
    pub(super) fn of(set: &Set, calls: &[Call]) -> Result<Self, LabError> {
        let frames = set.future(calls);
        let (profile, fill_bytes) = (set.profile().medium.clone(), set.profile().fill_bytes);
        match set.frames() {
            0 => Err(failed("the buffer has no frames")),
            places => Ok(Self { frames, profile, fill_bytes, bytes: set.bytes(), places }),
        }
    }

    /// The shortest time that was found.
    ///
    /// # Errors
    /// The profile describes no drive.
    pub(super) fn best_ns(&self) -> Result<u64, LabError> {
        let times = DEPTHS.map(|part| self.time_ns((self.places / part).max(1)));
        times.into_iter().try_fold(u64::MAX, |best, time| Ok(best.min(time?)))
    }

    /// What the drive's link takes for each frame once: less is not possible.
    pub(super) fn link_ns(&self) -> u64 {
        let distinct: HashSet<u64> = self.frames.iter().copied().collect();
        let bytes = distinct.len() as u64 * self.fill_bytes;
        match &self.profile.medium {
            Medium::Array(array) => array.link_out.time_of(bytes),
            Medium::Fixed(fixed) => fixed.link.time_of(bytes),
            _ => 0,
        }
    }

    /// The time with so many frames under way at most.
    fn time_ns(&self, depth: usize) -> Result<u64, LabError> {
        let mut flash = Flash::new(&self.profile).map_err(failed)?;
        let mut under_way = HashMap::new();
        let begin = flash.fill(core::iter::once(0..self.bytes));
        let mut run = Run::new(&self.frames, self.places);
        let mut now = begin;
        for (at, &frame) in self.frames.iter().enumerate() {
            loop {
                while under_way.len() < depth
                    && flash.takes(false)
                    && let Some(next) = run.next()
                {
                    let start = next * self.fill_bytes;
                    let bytes = self.fill_bytes.min(self.bytes - start);
                    let read = Command { kind: Kind::Read, start, bytes, urgent: false };
                    under_way.insert(flash.arrive(now, &read), next);
                }
                if run.has(frame) {
                    break;
                }
                let due = flash.next_due();
                assert!(due != u64::MAX, "frame {frame} is waited for, and nothing is under way");
                now = now.max(due);
                while let Some(done) = flash.advance(now) {
                    run.arrived(under_way.remove(&done.ticket));
                }
            }
            run.used(at);
        }
        Ok(now - begin)
    }
}

/// What the buffer holds, and what comes next.
#[derive(Debug)]
pub(in super::super) struct Run<'a> {
    frames: &'a [u64],
    /// Uses of frames that need not come, since all of them is written; of none where this is empty.
    covered: &'a [bool],
    places: usize,
    /// When each frame is used from now on.
    uses: HashMap<u64, VecDeque<usize>>,
    /// Frames with a place, by their next use.
    held: BTreeSet<(usize, u64)>,
    holds: HashSet<u64>,
    /// Those whose bytes are there.
    arrived: HashSet<u64>,
    /// Up to where the future is held or on its way.
    next: usize,
    /// Frames that have left since somebody asked.
    left: Vec<u64>,
}

impl<'a> Run<'a> {
    pub(in super::super) fn new(frames: &'a [u64], places: usize) -> Self {
        let mut uses: HashMap<u64, VecDeque<usize>> = HashMap::new();
        frames.iter().enumerate().for_each(|(at, &frame)| uses.entry(frame).or_default().push_back(at));
        let (held, holds, arrived) = (BTreeSet::new(), HashSet::new(), HashSet::new());
        Self { frames, covered: &[], places, uses, held, holds, arrived, next: 0, left: Vec::new() }
    }

    /// With uses that write all of their frame, a word for each use.
    pub(in super::super) fn with_covered(self, covered: &'a [bool]) -> Self {
        Self { covered, ..self }
    }

    fn next_use(&self, frame: u64) -> usize {
        self.uses.get(&frame).and_then(|uses| uses.front().copied()).unwrap_or(usize::MAX)
    }

    /// Whether a frame's bytes are there.
    pub(in super::super) fn has(&self, frame: u64) -> bool {
        self.arrived.contains(&frame)
    }

    /// The bytes of a frame are there from now on.
    pub(in super::super) fn arrived(&mut self, frame: Option<u64>) {
        self.arrived.extend(frame);
    }

    /// Frames that have left since the last call.
    pub(in super::super) fn take_left(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.left)
    }

    /// Whether a frame need not begin to come: it has a place, or all of it is written before it is read.
    fn need_not_come(&self, frame: u64) -> bool {
        self.holds.contains(&frame) || self.covered.get(self.next_use(frame)) == Some(&true)
    }

    /// Has one frame leave that is used later than `before`; false where there is none.
    fn make_place(&mut self, before: usize) -> bool {
        if self.holds.len() < self.places {
            return true;
        }
        // What is on its way stays.
        let last = self.held.iter().rev().find(|(_, held)| self.arrived.contains(held)).copied();
        let Some((next_use, victim)) = last.filter(|(next_use, _)| *next_use > before) else { return false };
        self.held.remove(&(next_use, victim));
        self.holds.remove(&victim);
        self.arrived.remove(&victim);
        self.left.push(victim);
        // It comes again for that use.
        self.next = self.next.min(next_use);
        true
    }

    fn hold(&mut self, frame: u64) {
        self.holds.insert(frame);
        self.held.insert((self.next_use(frame), frame));
    }

    /// The next frame that begins to come, if there is a place for it; it has that from then on.
    pub(in super::super) fn next(&mut self) -> Option<u64> {
        while self.frames.get(self.next).is_some_and(|&frame| self.need_not_come(frame)) {
            self.next += 1;
        }
        let &frame = self.frames.get(self.next)?;
        // What is used before stays.
        if !self.make_place(self.next) {
            return None;
        }
        self.hold(frame);
        Some(frame)
    }

    /// A place for a frame that is written now, and is there at once; false where none can leave for it.
    pub(in super::super) fn place(&mut self, frame: u64) -> bool {
        if self.holds.contains(&frame) || !self.make_place(0) {
            return false;
        }
        self.hold(frame);
        self.arrived.insert(frame);
        true
    }

    /// The frame of that place in the future is used.
    pub(in super::super) fn used(&mut self, at: usize) {
        let frame = self.frames[at];
        self.next = self.next.max(at + 1);
        self.held.remove(&(at, frame));
        if let Some(uses) = self.uses.get_mut(&frame) {
            uses.pop_front();
        }
        self.held.insert((self.next_use(frame), frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_flash::{FixedProfile, Rate};

    /// A microsecond for the cells and one for the link, a frame.
    fn future(frames: &[u64], places: usize) -> Future {
        let link = Rate { bytes: 4096, ns: 1000 };
        let medium = Medium::Fixed(FixedProfile { read_ns: 1000, write_ns: 1000, link });
        let profile = Profile { commands: 64, medium };
        Future { frames: frames.to_vec(), profile, fill_bytes: 4096, bytes: 64 * 4096, places }
    }

    #[test]
    fn what_is_known_costs_the_link_and_one_latency() {
        let frames: Vec<u64> = (0..64).collect();
        let all = future(&frames, 16);
        assert_eq!((all.best_ns().unwrap(), all.link_ns()), (65_000, 64_000));
        assert_eq!(all.time_ns(1).unwrap(), 64 * 2000, "one after another");
    }

    #[test]
    fn what_is_used_again_is_kept_and_nothing_leaves_for_what_is_used_later() {
        // Two places: frame 1 stays for its second use.
        let again = future(&[1, 2, 1, 3, 4], 2);
        let mut run = Run::new(&again.frames, again.places);
        assert_eq!((run.next(), run.next(), run.next()), (Some(1), Some(2), None), "both are used before 3");
        [1, 2].into_iter().for_each(|frame| run.arrived(Some(frame)));
        run.used(0);
        assert_eq!(run.next(), None, "both are used before 3");
        run.used(1);
        assert_eq!(run.next(), Some(3), "in the place of 2");
        run.arrived(Some(3));
        run.used(2);
        assert_eq!(run.next(), Some(4), "in the place of 1");
    }
}
