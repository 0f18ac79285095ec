//! The lanes of a session: one for each call at a time, made on demand.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use nvmed_mutant::Mutant;
use nvmed_wire::ClientLane;
use rustix::thread::futex;
use std::sync::OnceLock;

/// Lanes that a session has at most, as the server allows; more callers wait.
pub(crate) const LANES_MAX: usize = 64;

/// The lanes, and which of them are free. Nothing here is a lock: a thread that takes a lane waits for nobody but
/// those whose calls are under way.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: [OnceLock<ClientLane>; LANES_MAX],
    /// A bit for each lane that is there and free.
    free: AtomicU64,
    /// How many are there, and how many are being made.
    made: AtomicU32,
    /// Callers that wait, and what changes when one of them may go on.
    waiting: AtomicU32,
    turn: AtomicU32,
}

/// What a caller does next.
pub(crate) enum Taken<'a> {
    /// Its call, with this lane.
    Lane(Lane<'a>),
    /// It makes a lane: [`Lanes::put`], [`Lanes::not_made`] or [`Lanes::not_this_one`].
    Make,
}

/// A lane that this caller has alone until it is dropped.
pub(crate) struct Lane<'a> {
    lanes: &'a Lanes,
    index: usize,
    pub lane: &'a ClientLane,
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            lanes: [const { OnceLock::new() }; LANES_MAX],
            free: AtomicU64::new(0),
            made: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            turn: AtomicU32::new(0),
        }
    }
}

impl Lanes {
    /// A free lane, or the right to make one; waits while all are busy.
    #[inline]
    pub fn take(&self) -> Taken<'_> {
        loop {
            if let Some(lane) = self.take_free() {
                return Taken::Lane(lane);
            }
            if let Some(taken) = self.may_make() {
                return taken;
            }
            self.wait();
        }
    }

    /// A free lane, if there is one.
    #[inline]
    pub fn take_free(&self) -> Option<Lane<'_>> {
        let mut free = self.free.load(Ordering::Relaxed);
        while free != 0 {
            // The lowest: a thread alone always uses the same one, whose lines are in its processor's cache.
            let rest = free & (free - 1);
            match self.free.compare_exchange_weak(free, rest, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let index = free.trailing_zeros() as usize;
                    let lane = self.lanes[index].get();
                    assert!(lane.is_some(), "lane {index} is free, and was never made");
                    return Some(Lane { lanes: self, index, lane: lane? });
                }
                Err(now) => free = now,
            }
        }
        None
    }

    #[cold]
    fn may_make(&self) -> Option<Taken<'_>> {
        let one = u32::from(!Mutant::LaneForgotten.is_made());
        let one_more = |made: u32| (made < LANES_MAX as u32).then_some(made + one);
        let made = self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok();
        made.map(|_| Taken::Make)
    }

    /// The first lane, which came before anybody wanted one.
    pub fn begin(&self, lane: Option<ClientLane>) {
        if let Some(lane) = lane
            && self.may_make().is_some()
        {
            // Nobody else has seen these lanes yet; dropped, it is free.
            drop(self.put(lane));
        }
    }

    /// The new lane, taken. Lanes are put in by one caller at a time.
    ///
    /// # Panics
    /// A mistake of ours: the lane was not counted, or other threads could take it.
    pub fn put(&self, lane: ClientLane) -> Option<Lane<'_>> {
        let index = self.lanes.iter().take_while(|lane| lane.get().is_some()).count();
        let made = self.made.load(Ordering::Relaxed);
        assert!(index < made as usize, "{made} lanes are counted, and {index} are there before a new one");
        let free = self.free.load(Ordering::Relaxed);
        assert!(free & (1 << index) == 0, "lane {index} is free before it is there");
        self.lanes[index].set(lane).ok()?;
        Some(Lane { lanes: self, index, lane: self.lanes[index].get()? })
    }

    /// The server has no more lanes: those that are there must do.
    ///
    /// # Panics
    /// A mistake of ours: there is none, and all callers would wait for one for ever.
    pub(crate) fn not_made(&self) {
        assert!(self.has_any(), "no lane is there, and no more will be made");
        self.made.store(LANES_MAX as u32, Ordering::Relaxed);
    }

    /// A lane could not be made, and there is none: the next caller tries again.
    pub(crate) fn not_this_one(&self) {
        let before = self.made.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a lane could not be made that nobody was making");
        self.turn.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(&self.turn, futex::Flags::PRIVATE, 1);
    }

    /// Whether any lane is there.
    pub(crate) fn has_any(&self) -> bool {
        self.lanes.iter().any(|lane| lane.get().is_some())
    }

    /// The first lane, where a session counts what makes no call.
    #[inline]
    pub fn first(&self) -> Option<&ClientLane> {
        self.lanes[0].get()
    }

    #[cold]
    fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let turn = self.turn.load(Ordering::SeqCst);
        let none = self.free.load(Ordering::SeqCst) == 0;
        if none && self.made.load(Ordering::SeqCst) >= LANES_MAX as u32 {
            let _ = futex::wait(&self.turn, futex::Flags::PRIVATE, turn, None);
        }
        self.waits_no_more();
    }

    fn waits_no_more(&self) {
        let before = self.waiting.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "nobody waits for a lane, and one waits no more");
    }

    #[inline]
    fn give(&self, index: usize) {
        let bit = 1 << index;
        let was_free = self.free.fetch_or(bit, Ordering::SeqCst) & bit != 0;
        // Two callers would write into it at once. A second panic while one unwinds would end the process.
        assert!(!was_free || std::thread::panicking(), "lane {index} is given back twice");
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.turn.fetch_add(1, Ordering::SeqCst);
            let _ = futex::wake(&self.turn, futex::Flags::PRIVATE, 1);
        }
    }
}

impl Drop for Lane<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lanes.give(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_wire::{Board, ServerLane};
    use std::sync::Arc;

    #[test]
    #[should_panic(expected = "lane 0 is free before it is there")]
    fn a_lane_that_others_could_take_while_it_is_made_is_our_mistake() {
        let there = ServerLane::new(Arc::new(Board::new().unwrap())).unwrap();
        let lanes = Lanes::default();
        lanes.made.store(1, Ordering::Relaxed);
        lanes.give(0);
        let _ = lanes.put(ClientLane::open(there.client().unwrap()).unwrap());
    }

    #[test]
    #[should_panic(expected = "lane 2 is given back twice")]
    fn a_lane_that_is_given_back_twice_is_our_mistake() {
        let lanes = Lanes::default();
        lanes.give(2);
        lanes.give(2);
    }

    #[test]
    #[should_panic(expected = "lane 5 is free, and was never made")]
    fn a_lane_that_is_free_and_not_there_is_our_mistake() {
        let lanes = Lanes::default();
        lanes.give(5);
        let _ = lanes.take_free();
    }

    #[test]
    #[should_panic(expected = "no lane is there, and no more will be made")]
    fn to_make_no_lane_at_all_is_our_mistake() {
        Lanes::default().not_made();
    }

    #[test]
    #[should_panic(expected = "a lane could not be made that nobody was making")]
    fn a_lane_that_nobody_counted_is_our_mistake() {
        Lanes::default().not_this_one();
    }

    #[test]
    #[should_panic(expected = "nobody waits for a lane")]
    fn who_waits_no_more_and_never_did_is_our_mistake() {
        Lanes::default().waits_no_more();
    }
}
