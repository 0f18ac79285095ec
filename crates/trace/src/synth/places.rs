//! Where requests begin: exactly so many behind the one before, and exactly so many where one began before, as far as
//! the sizes allow.

use nvmed_dice::Dice;
use std::collections::HashMap;

/// Parts of the range, of which the first are taken more often than the last.
const ZONES: u64 = 64;
/// Throws for a place in a popular zone, before those for one anywhere.
const ZONE_THROWS: u32 = 16;
/// Throws for a place. Where at most half of all places are taken, all fail once in 2^48.
const THROWS: u32 = ZONE_THROWS + 48;

/// What is left to be placed.
#[derive(Debug)]
pub(super) struct Places {
    granule: u64,
    first: u64,
    /// Places in the range.
    slots: u64,
    left: u64,
    sequential: u64,
    hits: u64,
    /// Where requests began: the size of the last one there, and its number in `starts`.
    known: HashMap<u64, (u64, usize)>,
    starts: Vec<u64>,
    /// The number of the last start that was hit.
    cursor: usize,
    /// The end of the last request.
    end: Option<u64>,
    /// Whether hits are needed among those that follow the one before: then the first ones build a row of requests, one
    /// behind the other, which the others go through again and again with the same sizes. Where such a size is
    /// not left, they go on at the next start.
    rows: bool,
}

impl Places {
    /// Places for `left` requests from `first` on, of which so many are `sequential` and so many are `hits`.
    pub fn new(granule: u64, (first, slots): (u64, u64), left: u64, (sequential, hits): (u64, u64)) -> Self {
        let rows = hits > left - sequential;
        let (known, starts) = (HashMap::new(), Vec::new());
        let slots = slots.max(1);
        Self { granule, first, slots, left, sequential, hits, known, starts, cursor: 0, end: None, rows }
    }

    /// Where the next request begins, and the size that it should have if there is one.
    pub fn next(&mut self, dice: &mut Dice) -> (u64, Option<u64>) {
        let place = match self.end {
            Some(end) if self.follows(end, dice) => {
                self.sequential = self.sequential.saturating_sub(1);
                end
            }
            _ => self.jump(dice),
        };
        self.left = self.left.saturating_sub(1);
        let Some(&(bytes, number)) = self.known.get(&place) else { return (place, None) };
        self.hits = self.hits.saturating_sub(1);
        self.cursor = number;
        (place, Some(bytes).filter(|_| self.rows))
    }

    /// The request at a place has this size.
    pub fn placed(&mut self, place: u64, bytes: u64) {
        let number = self.starts.len();
        let start = self.known.entry(place).or_insert((bytes, number));
        start.0 = bytes;
        if start.1 == number {
            self.starts.push(place);
        }
        self.end = Some(place + bytes);
    }

    /// Whether the next request begins where the last one ends.
    fn follows(&self, end: u64, dice: &mut Dice) -> bool {
        let jumps = self.left.saturating_sub(self.sequential);
        let old = self.known.contains_key(&end);
        // What follows would be a hit too many, or one too few.
        let wrong = if old { self.hits == 0 } else { self.left <= self.hits };
        match (self.sequential, jumps) {
            (0, _) => false,
            (_, 0) => true,
            _ if wrong => false,
            _ if self.rows => true,
            _ => dice.roll(self.left) < self.sequential,
        }
    }

    /// A place that is not the end of the last request.
    fn jump(&self, dice: &mut Dice) -> u64 {
        let jumps = self.left.saturating_sub(self.sequential).max(1);
        if self.hits > 0 && !self.starts.is_empty() && (self.hits >= jumps || dice.roll(jumps) < self.hits) {
            let onward = (1..3).map(|steps| self.starts[(self.cursor + steps) % self.starts.len()]);
            if let Some(start) = onward.filter(|_| self.rows).find(|&start| self.end != Some(start)) {
                return start;
            }
            for _ in 0..THROWS {
                // Those of late are taken more often.
                let ago = dice.roll(self.starts.len() as u64).min(dice.roll(self.starts.len() as u64));
                let start = self.starts[self.starts.len() - 1 - ago as usize];
                if self.end != Some(start) {
                    return start;
                }
            }
        }
        let mut place = self.first;
        for throw in 0..THROWS {
            let zone = self.slots.div_ceil(ZONES);
            let slot = match throw {
                ..ZONE_THROWS => dice.roll(ZONES).min(dice.roll(ZONES)) * zone + dice.roll(zone),
                _ => dice.next(),
            };
            place = self.first + slot % self.slots * self.granule;
            if self.end != Some(place) && !self.known.contains_key(&place) {
                break;
            }
        }
        place
    }
}
