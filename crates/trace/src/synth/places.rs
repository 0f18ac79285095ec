//! Where requests begin: exactly so many behind the one before, and exactly so many where one began before, as far as
//! the sizes allow.

use super::clock::unit;
use super::recency::Recency;
use super::touched::Touched;
use nvmed_dice::Dice;
use nvmed_units::BLOCK_BYTES;
use std::collections::HashMap;

/// Parts of the range, of which the first are taken more often than the last.
const ZONES: u64 = 64;
/// Throws for a place in a popular zone, before those for one anywhere.
const ZONE_THROWS: u32 = 16;
/// Throws for a place that overlaps what was touched.
const OVERLAP_THROWS: u32 = 16;
/// Pieces of a trace with rows, in each of which the new requests come first and then the old ones.
const PIECES_MAX: u64 = 32;
/// Fewest requests of a piece, and of these that do not follow the one before.
const PIECE_MIN: u64 = 100;
const PIECE_JUMPS_MIN: u64 = 8;
/// Where there are less than this part of the distinct units that there should be, new places get larger requests.
const FEW: f64 = 0.99;
/// Throws for a place. Where at most half of all places are taken, all fail once in 2^48.
const THROWS: u32 = ZONE_THROWS + 48;

/// What is known of reuse: how many units are touched at all, and at which distances some are touched again.
#[derive(Clone, Debug)]
pub(super) struct Reuse {
    /// Distinct units of the whole trace, where they are known.
    pub distinct: Option<u64>,
    /// The share of the touches of old units since whose last touch less than 1, 2, 4, … units were touched.
    pub within: Vec<f64>,
    /// The share of the requests that begin at a multiple of 4 KiB.
    pub aligned: f64,
}

/// The size that a request should have, if there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Size {
    /// Of so many bytes.
    Of(u64),
    Small,
    Large,
    Any,
}

/// What was touched, by which places are chosen.
#[derive(Debug)]
struct History {
    reuse: Reuse,
    touched: Touched,
    recency: Recency,
    /// Starts that are known, and all that there will be.
    known: u64,
    whole: u64,
    /// Bytes of a request, in the mean.
    reach: u64,
}

/// What is left to be placed.
#[derive(Debug)]
pub(super) struct Places {
    granule: u64,
    first: u64,
    /// Places in the range.
    slots: u64,
    /// What is left of this piece.
    left: u64,
    sequential: u64,
    hits: u64,
    /// How many pieces come after it, and how many requests, sequential ones and hits they have.
    pieces: u64,
    later: (u64, u64, u64),
    /// Whether the old requests of this piece are still to begin.
    turns: bool,
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
    /// No place before this one is left.
    swept: u64,
    history: Option<Box<History>>,
}

impl Places {
    /// Places for `left` requests from `first` on, of which so many are `sequential` and so many are `hits`.
    pub fn new(granule: u64, (first, slots): (u64, u64), left: u64, (sequential, hits): (u64, u64)) -> Self {
        let rows = hits > left - sequential;
        let (known, starts) = (HashMap::new(), Vec::new());
        let slots = slots.max(1);
        Self {
            granule,
            first,
            slots,
            left,
            sequential,
            hits,
            pieces: 0,
            later: (0, 0, 0),
            turns: false,
            known,
            starts,
            cursor: 0,
            end: None,
            rows,
            swept: 0,
            history: None,
        }
    }

    /// The same, reusing units as a trace of so many requests and bytes does.
    pub fn with_reuse(mut self, reuse: Reuse, (whole, bytes): (u64, u64)) -> Self {
        let (reach, starts) = (bytes / whole.max(1), (self.left - self.hits).max(1));
        let (touched, recency) = (Touched::default(), Recency::new());
        self.history = Some(Box::new(History { reuse, touched, recency, known: 0, whole: starts, reach }));
        if self.rows {
            let jumps = self.left.saturating_sub(self.sequential);
            self.pieces = (whole / PIECE_MIN).min(jumps / PIECE_JUMPS_MIN).clamp(1, PIECES_MAX);
            self.later = (self.left, self.sequential, self.hits);
            (self.left, self.sequential, self.hits) = (0, 0, 0);
        }
        self
    }

    /// Begins the next piece with its part of what is left.
    fn piece(&mut self) {
        let (left, sequential, hits) =
            (self.later.0, self.later.1 + self.sequential, self.later.2 + self.hits);
        let part = |number: u64| number / self.pieces.max(1);
        let now = (part(left), part(sequential), part(hits));
        self.later = (left - now.0, sequential - now.1, hits - now.2);
        (self.left, self.sequential, self.hits) = now;
        self.pieces = self.pieces.saturating_sub(1);
        self.turns = true;
    }

    /// Where the next request begins, and the size that it should have if there is one.
    pub fn next(&mut self, dice: &mut Dice) -> (u64, Size) {
        if self.left == 0 && self.pieces > 0 {
            self.piece();
        }
        let place = match self.end {
            Some(end) if self.follows(end, dice) => {
                self.sequential = self.sequential.saturating_sub(1);
                end
            }
            _ => self.jump(dice),
        };
        self.left = self.left.saturating_sub(1);
        let full = self.history.as_ref().map_or(1.0, |history| history.fullness());
        let Some(&(bytes, number)) = self.known.get(&place) else {
            return (place, if full < FEW { Size::Large } else { Size::Any });
        };
        self.hits = self.hits.saturating_sub(1);
        self.cursor = number;
        // The same units again are no new ones, and what is small here leaves larger sizes to new places.
        let size = match full {
            _ if self.rows => Size::Of(bytes),
            ..FEW => Size::Small,
            ..=1.0 => Size::Any,
            _ => Size::Of(bytes),
        };
        (place, size)
    }

    /// The request at a place has this size.
    pub fn placed(&mut self, place: u64, bytes: u64) {
        let number = self.starts.len();
        let start = self.known.entry(place).or_insert((bytes, number));
        start.0 = bytes;
        if start.1 == number {
            self.starts.push(place);
        }
        let number = start.1;
        if let Some(history) = &mut self.history {
            history.touch(number, place, bytes);
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
    fn jump(&mut self, dice: &mut Dice) -> u64 {
        let jumps = self.left.saturating_sub(self.sequential).max(1);
        if self.hits > 0 && !self.starts.is_empty() && (self.hits >= jumps || dice.roll(jumps) < self.hits) {
            // The old ones of a piece begin at a distance that is drawn, and go on from there.
            if self.rows && std::mem::take(&mut self.turns) {
                self.cursor =
                    self.history.as_ref().and_then(|history| history.draw(dice)).unwrap_or(self.cursor);
            }
            let onward = (1..3).map(|steps| self.starts[(self.cursor + steps) % self.starts.len()]);
            if let Some(start) = onward.filter(|_| self.rows).find(|&start| self.end != Some(start)) {
                return start;
            }
            let told = self.history.as_ref().filter(|history| !history.reuse.within.is_empty());
            if let Some(start) = told.map(|history| history.draw(dice)) {
                // So long a distance there is not yet: new places make it, if some are left.
                let new_left = self.hits < jumps && self.left > self.hits;
                let Some(start) = start else {
                    return if new_left { self.fresh(dice) } else { self.oldest(dice) };
                };
                let start = self.starts[start];
                if self.end != Some(start) {
                    return start;
                }
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
        self.fresh(dice)
    }

    /// One of the quarter of the places that were not touched for longest.
    fn oldest(&self, dice: &mut Dice) -> u64 {
        let found = self.history.as_ref().and_then(|history| {
            let units = history.recency.units();
            history.recency.at(units.checked_sub(1 + dice.roll(units.div_ceil(4)))?)
        });
        let start = found.map_or(self.first, |start| self.starts[start]);
        let other = || self.starts.iter().copied().find(|&start| self.end != Some(start));
        if self.end == Some(start) { other().unwrap_or(start) } else { start }
    }

    /// A place where no request has begun.
    fn fresh(&mut self, dice: &mut Dice) -> u64 {
        let new = self.history.as_ref().is_none_or(|history| history.wants_new());
        // Without a history nothing is drawn: the traces of rows are what they always were.
        let aligned = self.history.as_ref().is_some_and(|history| unit(dice) < history.reuse.aligned);
        if !new && let Some(place) = self.beside(aligned, dice) {
            return place;
        }
        for throw in 0..THROWS {
            let zone = self.slots.div_ceil(ZONES);
            let slot = match throw {
                ..ZONE_THROWS => dice.roll(ZONES).min(dice.roll(ZONES)) * zone + dice.roll(zone),
                _ => dice.next(),
            };
            let place = self.first + slot % self.slots * self.granule;
            let place = if aligned { self.aligned(place) } else { place };
            let free = self.end != Some(place) && !self.known.contains_key(&place);
            if free && self.history.as_ref().is_none_or(|history| !history.has(place)) {
                return place;
            }
        }
        // Places are rare: the first that is left.
        while self.swept + 1 < self.slots
            && self.known.contains_key(&(self.first + self.swept * self.granule))
        {
            self.swept += 1;
        }
        let place = self.first + self.swept * self.granule;
        if self.end == Some(place) && self.swept + 1 < self.slots { place + self.granule } else { place }
    }

    /// The multiple of 4 KiB before a place, if it is in the range.
    fn aligned(&self, place: u64) -> u64 {
        let before = place / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if before < self.first { place } else { before }
    }

    /// A place where no request has begun, in units that are touched.
    fn beside(&self, aligned: bool, dice: &mut Dice) -> Option<u64> {
        let block = (BLOCK_BYTES as u64).max(self.granule);
        (0..OVERLAP_THROWS).find_map(|_| {
            let start = *dice.pick(&self.starts)?;
            let (bytes, _) = *self.known.get(&start)?;
            let first = (start / block * block).max(self.first);
            let last = (start + bytes).next_multiple_of(block).min(self.first + self.slots * self.granule);
            let place = first + dice.roll(last.saturating_sub(first) / self.granule) * self.granule;
            let place = if aligned { self.aligned(place) } else { place };
            let free = self.end != Some(place) && !self.known.contains_key(&place);
            free.then_some(place)
        })
    }
}

impl History {
    /// Distinct units, by how many there should be by now: 1 if it does not matter.
    fn fullness(&self) -> f64 {
        let Some(distinct) = self.reuse.distinct else { return 1.0 };
        let share = self.known as f64 / self.whole as f64;
        self.touched.count() as f64 / (distinct as f64 * share).max(1.0)
    }

    /// Whether there are not too many distinct units.
    fn wants_new(&self) -> bool {
        self.fullness() <= 1.0
    }

    /// Whether the units of a request at a place are likely to be touched.
    fn has(&self, place: u64) -> bool {
        let last = place + self.reach.saturating_sub(1);
        [place, last].into_iter().any(|byte| self.touched.has(byte / BLOCK_BYTES as u64))
    }

    /// A request touches units.
    fn touch(&mut self, start: usize, place: u64, bytes: u64) {
        let units = Touched::units(place, bytes);
        self.recency.touch(start, units.end - units.start);
        self.known = self.known.max(start as u64 + 1);
        if self.reuse.distinct.is_some() {
            self.touched.touch(units);
        }
    }

    /// A start at a distance that is drawn; there is none so old.
    fn draw(&self, dice: &mut Dice) -> Option<usize> {
        let all = self.reuse.within.last().copied().unwrap_or(0.0);
        let at = unit(dice) * all;
        let class = self.reuse.within.partition_point(|&share| share <= at) as u32;
        let limit = 1u64 << class.min(52);
        let least = limit / 2;
        // No distance is beyond all units.
        let limit = limit.min(self.reuse.distinct.unwrap_or(limit)).max(least + 1);
        self.recency.at(least + dice.roll(limit - least))
    }
}
