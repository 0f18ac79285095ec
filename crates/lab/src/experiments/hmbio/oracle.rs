//! What a page costs on a busy drive, by registers, cells and buses alone: a second model, which shares no code with
//! the drive's. It has no map, no queues and no arbiter; pages are at dies that chance chooses.

use super::device::{Inside, Times};
use nvmed_dice::Dice;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Time between two urgent pages, at least and at most: the one before is done, and the drive has settled.
const PAUSE_NS: (u64, u64) = (2_000_000, 4_000_000);

/// Whether a page is urgent.
type IsUrgent = bool;

/// What happens, at a die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Its cells are read.
    Read,
    /// A page of it has passed the bus.
    Passed(IsUrgent),
    /// An urgent page is wanted; of no die yet.
    Wanted,
}

/// A die: pages that wait for a register, whether each register is used (the second one is for urgent pages), pages
/// that wait for the cells, and what they read.
#[derive(Clone, Debug, Default)]
struct Die {
    waiting: VecDeque<IsUrgent>,
    used: [bool; 2],
    ready: VecDeque<IsUrgent>,
    reads: Option<IsUrgent>,
}

impl Die {
    fn wants_urgent(&self) -> bool {
        self.waiting.contains(&true) || self.ready.contains(&true)
    }
}

/// The dies and buses of a drive that is busy with as many pages as its window has places.
#[derive(Debug)]
pub(super) struct Oracle {
    times: Times,
    inside: Inside,
    dies: Vec<Die>,
    /// Pages that wait for a bus, by channel: their dies; and whether it is busy.
    for_bus: Vec<VecDeque<(usize, IsUrgent)>>,
    is_busy: Vec<bool>,
    events: BinaryHeap<Reverse<(u64, Event, usize)>>,
    dice: Dice,
    /// When the urgent page arrived that is under way, and whether it waits for a place.
    arrived_ns: u64,
    wants_place: bool,
}

impl Oracle {
    pub(super) fn new(times: Times, window: u32, inside: Inside) -> Self {
        let dies = (times.channels * times.channel_dies) as usize;
        let mut oracle = Self {
            times,
            inside,
            dies: vec![Die::default(); dies],
            for_bus: vec![VecDeque::new(); times.channels as usize],
            is_busy: vec![false; times.channels as usize],
            events: BinaryHeap::new(),
            dice: Dice::new(0x6f72_6163_6c65),
            arrived_ns: 0,
            wants_place: false,
        };
        (0..window).for_each(|_| oracle.enter(0, false));
        oracle.want(0);
        oracle
    }

    /// The mean latency of so many urgent pages, one by one, in nanoseconds.
    pub(super) fn mean_ns(mut self, count: u32) -> f64 {
        let (mut sum_ns, mut done) = (0, 0);
        while done < count {
            let Some(Reverse((now_ns, event, die))) = self.events.pop() else { break };
            match event {
                Event::Wanted => {
                    self.arrived_ns = now_ns;
                    if self.inside.has_places {
                        self.enter(now_ns, true);
                    } else {
                        self.wants_place = true;
                    }
                }
                Event::Read => {
                    let read = self.dies[die].reads.take().unwrap_or_default();
                    let channel = die % self.for_bus.len();
                    self.for_bus[channel].push_back((die, read));
                }
                Event::Passed(is_urgent) => {
                    let channel = die % self.for_bus.len();
                    self.is_busy[channel] = false;
                    let register = self.register(is_urgent);
                    self.dies[die].used[register] = false;
                    if is_urgent {
                        sum_ns += now_ns - self.arrived_ns;
                        done += 1;
                        self.want(now_ns);
                    }
                    self.give_place(now_ns, is_urgent);
                }
            }
            if event != Event::Wanted {
                self.go_on(now_ns, die);
            }
        }
        sum_ns as f64 / f64::from(done)
    }

    fn want(&mut self, now_ns: u64) {
        let pause_ns = PAUSE_NS.0 + self.dice.roll(PAUSE_NS.1 - PAUSE_NS.0);
        self.events.push(Reverse((now_ns + pause_ns, Event::Wanted, 0)));
    }

    /// The register that a page needs.
    fn register(&self, is_urgent: IsUrgent) -> usize {
        usize::from(is_urgent && self.inside.has_register)
    }

    /// A place of the window is free, or one that is kept for urgent pages.
    fn give_place(&mut self, now_ns: u64, was_urgent: IsUrgent) {
        if was_urgent && self.inside.has_places {
            return;
        }
        let is_urgent = std::mem::take(&mut self.wants_place);
        self.enter(now_ns, is_urgent);
    }

    /// A page comes to a die.
    fn enter(&mut self, now_ns: u64, is_urgent: IsUrgent) {
        let die = self.dice.index(self.dies.len());
        let waiting = &mut self.dies[die].waiting;
        if is_urgent && self.inside.is_ranked {
            waiting.push_front(true);
        } else {
            waiting.push_back(is_urgent);
        }
        self.go_on(now_ns, die);
    }

    /// Registers, cells and the bus of a die take what waits for them.
    fn go_on(&mut self, now_ns: u64, at: usize) {
        for is_urgent in [true, false] {
            let register = self.register(is_urgent);
            let die = &mut self.dies[at];
            // With one register, or without rank, the first is next.
            let next = match self.inside.has_register {
                true => die.waiting.iter().position(|&one| one == is_urgent),
                false => die.waiting.front().and_then(|&one| (one == is_urgent).then_some(0)),
            };
            if let Some(next) = next.filter(|_| !die.used[register]) {
                let _ = die.waiting.remove(next);
                die.used[register] = true;
                if is_urgent && self.inside.is_ranked {
                    die.ready.push_front(true);
                } else {
                    die.ready.push_back(is_urgent);
                }
            }
        }
        let die = &mut self.dies[at];
        if die.reads.is_none()
            && let Some(next) = die.ready.pop_front()
        {
            die.reads = Some(next);
            self.events.push(Reverse((now_ns + self.times.cell_ns, Event::Read, at)));
        }
        self.pass(now_ns, at % self.for_bus.len());
    }

    /// A bus takes what waits for it: urgent pages first, then what holds one up, then the first.
    fn pass(&mut self, now_ns: u64, channel: usize) {
        if self.is_busy[channel] {
            return;
        }
        let queue = &self.for_bus[channel];
        let urgent = || queue.iter().position(|(_, is_urgent)| *is_urgent).filter(|_| self.inside.is_ranked);
        let blocks = |(die, _): &(usize, IsUrgent)| self.dies[*die].wants_urgent();
        let blocking = || queue.iter().position(blocks).filter(|_| self.inside.inherits);
        let at = urgent().or_else(blocking).unwrap_or(0);
        if let Some((die, is_urgent)) = self.for_bus[channel].remove(at) {
            self.is_busy[channel] = true;
            self.events.push(Reverse((now_ns + self.times.out_ns, Event::Passed(is_urgent), die)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::{Device, WINDOWS};
    use super::*;

    /// A full bus serves its two dies in turn. A page that goes first finds its die somewhere in a turn of 120 us, and
    /// has a turn of its own then: 180 us as a mean, beside 100 alone.
    #[test]
    fn behind_full_buses_a_page_that_goes_first_waits_for_half_a_turn() {
        let times = Device::new(WINDOWS[1]).unwrap().times();
        let first = Inside { has_places: true, is_ranked: true, ..Inside::PLAIN };
        let ranked = Oracle::new(times, WINDOWS[1], first).mean_ns(2000) / 1e3;
        assert!((ranked - 180.0).abs() < 0.03 * 180.0, "{ranked} us");
    }
}
