//! Reuse distances: how many distinct units of 4 KiB were touched since a unit was touched last. A cache of C units
//! that evicts the least recently used one hits exactly where the distance is below C.
//!
//! Source: Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal
//! 9(2), 1970; Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC construction with SHARDS", FAST 2015, the
//! variant of fixed size with its correction (SHARDS-adj).

use crate::Request;
use crate::fenwick::Fenwick;
use nvmed_dice::mix;
use nvmed_units::BLOCK_BYTES;
use serde::Serialize;
use std::collections::{BinaryHeap, HashMap};

/// Most units that are followed at once: distances are exact up to 1 GiB of distinct units, in some 30 MiB.
const UNITS_MAX: usize = 1 << 18;
/// Groups of units whose results are compared, for the error of a sample.
const GROUPS: usize = 16;
/// Classes of distances: 0, below 2, below 4, and so on. 2^52 units are more than all devices have.
const CLASSES: usize = 53;

/// Follows the units that a trace touches.
#[derive(Debug)]
pub(super) struct Reuse {
    units_max: usize,
    /// Units whose hash is below are followed.
    threshold: u64,
    /// The slot of a unit's last touch, by its hash, which no other unit has.
    slots: HashMap<u64, u32>,
    /// The hashes that are followed, the largest first.
    largest: BinaryHeap<u64>,
    /// A slot for each touch, in their order; it counts 1 while it is the last touch of its unit.
    touches: Fenwick,
    next: u32,
    groups: Box<[Group; GROUPS]>,
    touched: u64,
}

/// What was found of a part of the units, weighted by how many touches each one that is followed stands for.
#[derive(Clone, Copy, Debug)]
struct Group {
    distances: [f64; CLASSES],
    first: f64,
}

/// How often a cache of this size would hit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HitRatio {
    /// The size of the cache.
    pub cache_kib: u64,
    /// Touches of units that would hit, of all.
    pub hit_pct: f64,
}

/// Reuse distances of a trace, all of its devices together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReuseDistances {
    /// Touches of units of 4 KiB.
    pub touches: u64,
    /// Share of the touches that are the first of their unit.
    pub first_pct: f64,
    /// Share of the units that were followed to the end; 100 is exact.
    pub sampled_pct: f64,
    /// The largest standard error of the shares, in percentage points.
    pub error_points: f64,
    /// By sizes that double.
    pub hits: Vec<HitRatio>,
}

impl Default for Reuse {
    fn default() -> Self {
        Self::of(UNITS_MAX)
    }
}

impl Reuse {
    /// Follows so many units at most.
    fn of(units_max: usize) -> Self {
        Self {
            units_max,
            threshold: u64::MAX,
            slots: HashMap::new(),
            largest: BinaryHeap::new(),
            touches: Fenwick::new(2 * units_max),
            next: 0,
            groups: Box::new([Group { distances: [0.0; CLASSES], first: 0.0 }; GROUPS]),
            touched: 0,
        }
    }

    /// A read or a write touches its units.
    pub fn push(&mut self, request: &Request) {
        // Bytes end at 2^56, units at 2^44: the device has the bits above, as far as they go.
        let device = u64::from(request.device) << 44;
        let units = request.offset / BLOCK_BYTES as u64..request.end().div_ceil(BLOCK_BYTES as u64);
        self.touched += units.end - units.start;
        for unit in units {
            let hash = mix(unit ^ device);
            if hash < self.threshold {
                self.touch(hash);
            }
        }
    }

    /// Touches a unit that is followed.
    fn touch(&mut self, hash: u64) {
        if self.next as usize == 2 * self.units_max {
            self.renumber();
        }
        let slot = self.next;
        self.next += 1;
        let weight = 2f64.powi(64) / self.threshold as f64;
        let group = &mut self.groups[(mix(hash) % GROUPS as u64) as usize];
        self.touches.add(slot as usize, 1);
        match self.slots.insert(hash, slot) {
            Some(last) => {
                self.touches.take(last as usize);
                let since = self.touches.total() - 1 - self.touches.before(last as usize);
                let distance = (since as f64 * weight) as u64;
                let class = (u64::BITS - distance.leading_zeros()) as usize;
                group.distances[class.min(CLASSES - 1)] += weight;
            }
            None => {
                group.first += weight;
                self.largest.push(hash);
                self.shrink();
            }
        }
    }

    /// Follows fewer units when there are too many.
    fn shrink(&mut self) {
        while self.largest.len() > self.units_max
            && let Some(hash) = self.largest.pop()
        {
            self.threshold = hash;
            if let Some(slot) = self.slots.remove(&hash) {
                self.touches.take(slot as usize);
            }
        }
    }

    /// Gives the touches that count the first slots, in their order.
    fn renumber(&mut self) {
        let mut order: Vec<(u32, u64)> = self.slots.iter().map(|(&hash, &slot)| (slot, hash)).collect();
        order.sort_unstable();
        self.touches = Fenwick::new(2 * self.units_max);
        for (slot, &(_, hash)) in order.iter().enumerate() {
            self.touches.add(slot, 1);
            self.slots.insert(hash, slot as u32);
        }
        self.next = order.len() as u32;
    }

    /// The distances of all that was touched.
    pub fn finish(mut self) -> ReuseDistances {
        let share = self.threshold as f64 / 2f64.powi(64);
        let found: f64 =
            self.groups.iter().map(|group| group.first + group.distances.iter().sum::<f64>()).sum();
        // SHARDS-adj: what the sample has too few or too many is touches of few hot units, which hit soonest.
        let adjust = (self.touched as f64 - found) / GROUPS as f64;
        self.groups.iter_mut().for_each(|group| group.distances[0] += adjust);
        let whole = self.touched.max(1) as f64;
        let exact = self.threshold == u64::MAX;
        let mut sums = [0.0; GROUPS];
        let (mut hits, mut error) = (Vec::new(), 0f64);
        for class in 0..CLASSES {
            for (sum, group) in sums.iter_mut().zip(self.groups.iter()) {
                *sum += group.distances[class];
            }
            error = error.max(standard_error(&sums) / whole);
            let hit_pct = 100.0 * (sums.iter().sum::<f64>() / whole).clamp(0.0, 1.0);
            hits.push(HitRatio { cache_kib: 4 << class, hit_pct });
        }
        let last = hits.last().map_or(0.0, |last| last.hit_pct);
        hits.truncate(hits.iter().position(|at| at.hit_pct >= last).map_or(0, |at| at + 1));
        ReuseDistances {
            touches: self.touched,
            first_pct: 100.0 - last,
            sampled_pct: if exact { 100.0 } else { 100.0 * share },
            error_points: if exact { 0.0 } else { 100.0 * error },
            hits,
        }
    }
}

/// The standard error of the sum of random groups (Wolter, "Introduction to Variance Estimation", 1985, chapter 2).
fn standard_error(sums: &[f64; GROUPS]) -> f64 {
    let mean = sums.iter().sum::<f64>() / GROUPS as f64;
    let squares: f64 = sums.iter().map(|sum| (sum - mean).powi(2)).sum();
    (squares * GROUPS as f64 / (GROUPS - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;
    use nvmed_dice::Dice;

    /// Hits of a cache of so many units that evicts the least recently used, touch by touch.
    fn lru(requests: &[Request], units_max: usize) -> f64 {
        let (mut cache, mut hits, mut touches) = (Vec::new(), 0u32, 0u32);
        for request in requests {
            for unit in request.offset / 4096..request.end().div_ceil(4096) {
                let unit = (request.device, unit);
                touches += 1;
                match cache.iter().position(|&other| other == unit) {
                    Some(at) => {
                        hits += 1;
                        cache.remove(at);
                    }
                    None if cache.len() == units_max => {
                        cache.remove(0);
                    }
                    None => {}
                }
                cache.push(unit);
            }
        }
        100.0 * f64::from(hits) / f64::from(touches)
    }

    fn requests(count: u64, units: u64) -> Vec<Request> {
        let mut dice = Dice::new(9);
        let one = |_| {
            let unit = dice.roll(units).min(dice.roll(units));
            let request = Request::new(Op::Read, unit * 4096, 1 + dice.roll(20_000), 0);
            Request { device: dice.roll(2) as u32, ..request }
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn exact_distances_are_hits_of_a_cache() {
        let requests = requests(1_500, 90);
        // Room for 256 units and 512 touches: the slots are numbered anew many times.
        let mut reuse = Reuse::of(256);
        requests.iter().for_each(|request| reuse.push(request));
        let said = reuse.finish();
        assert_eq!((said.sampled_pct, said.error_points), (100.0, 0.0));
        for at in &said.hits {
            let hits = lru(&requests, (at.cache_kib / 4) as usize);
            assert!((at.hit_pct - hits).abs() < 1e-9, "{at:?}, not {hits}");
        }
        assert!(said.hits.len() > 6 && said.first_pct > 0.0);
    }

    #[test]
    fn a_sample_is_within_its_error() {
        let requests = requests(30_000, 20_000);
        let (mut whole, mut sample) = (Reuse::of(1 << 16), Reuse::of(2_000));
        for request in &requests {
            whole.push(request);
            sample.push(request);
        }
        let (whole, sample) = (whole.finish(), sample.finish());
        assert!(
            sample.sampled_pct < 10.0 && sample.error_points > 0.0 && sample.error_points < 3.0,
            "{sample:?}"
        );
        for (exact, about) in whole.hits.iter().zip(&sample.hits) {
            let off = (exact.hit_pct - about.hit_pct).abs();
            assert!(off < 4.0 * sample.error_points, "{exact:?}, about {about:?}");
        }
    }
}
