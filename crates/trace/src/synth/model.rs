//! What a trace is to be like: from a row of the tables, or from a trace that was analysed.

use super::SynthError;
use super::busy::Periods;
use super::clock::unit;
use super::places::Reuse;
use super::spread::spread;
use super::totals::{TOLERANCE, Totals};
use crate::analysis::{SIZES, size_class};
use crate::row::{Cell, Row};
use crate::{Op, Part, ReuseDistances, SizeClass, TimeClass};
use nvmed_dice::Dice;
use nvmed_units::BLOCK_BYTES;

/// Largest read of the paper's traces.
const READ_MAX: u64 = 256 << 10;
/// The range that a trace from a row lies in: half of the paper's device of 32 GB.
const ROW_RANGE: u64 = 16 << 30;
/// Bounds of the share of single pages in the traces of which the paper tells it.
const SINGLE_PAGES: (f64, f64) = (0.452, 0.571);
/// The same of the others, which the paper calls few.
const FEW_SINGLE_PAGES: (f64, f64) = (0.10, 0.20);
/// Shortest time between the end of a request and an arrival, in a trace from a row.
const IDLE_MIN_NS: f64 = 50e3;
/// The longest such time, by the mean.
const IDLE_MAX: f64 = 300.0;
/// Values of a distribution of times in each doubling.
const STEPS: u32 = 4;
/// Most sizes of one class that are told apart.
const SIZES_MAX: u64 = 1024;
/// Throughput of the paper's device in MB/s by size (Figure 3, as its text tells it).
const READ_SPEEDS: [(f64, f64); 2] = [(4096.0, 13.94), (262_144.0, 99.65)];
/// The same of writes.
const WRITE_SPEEDS: [(f64, f64); 3] = [(4096.0, 5.18), (262_144.0, 19.0), (16_777_216.0, 56.15)];

const KIB: u64 = 1024;

/// Values with their numbers.
type Counted<T> = Vec<(T, u64)>;

/// What a trace is to be like.
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) totals: Totals,
    shape: Shape,
    /// Bytes a ns, by operation and class of sizes.
    pub(super) speeds: [[f64; SIZES]; 2],
    /// The first byte of the range, and its length.
    pub(super) range: (u64, u64),
    /// Whether service begins at a known time.
    pub(super) starts_known: bool,
    /// Whether several requests may be served at once.
    pub(super) parallel: bool,
    /// Which units are touched again; `None` when nothing tells.
    pub(super) reuse: Option<Reuse>,
}

/// What is known of distributions.
#[derive(Clone, Debug)]
enum Shape {
    /// What the paper's text says of its figures: whether single pages are many.
    Row { many_single: bool },
    /// Those of a trace.
    Part(Box<Part>),
}

/// A size and what is done with it: smaller ones first, so that a size is found with either operation.
pub(super) type Sized = (u64, bool);

impl Model {
    /// A trace of which only a row is known. Sizes are multiples of 4 KiB, and reads have at most 256 KiB if their mean
    /// allows it. The distributions are those that the paper's text tells: of the traces that mostly write, 44.9 % to
    /// 57.4 % of the requests are single pages; the others have fewer, and most of their requests have 16 to 64 KiB.
    ///
    /// # Errors
    /// A cell is missing that a trace cannot do without, or is no number that a trace has.
    pub fn of(row: &Row) -> Result<Self, SynthError> {
        let speeds = |anchors: &[(f64, f64)]| {
            let mut speeds = [0.0; SIZES];
            for (class, speed) in speeds.iter_mut().enumerate() {
                *speed = interpolated(anchors, (BLOCK_BYTES << class) as f64) / 1e3;
            }
            speeds
        };
        let many_single = row.get(Cell::WriteRequests).is_none_or(|share| share >= 50.0);
        Ok(Self {
            totals: Totals::of(row)?,
            shape: Shape::Row { many_single },
            speeds: [speeds(&READ_SPEEDS), speeds(&WRITE_SPEEDS)],
            range: (0, ROW_RANGE),
            starts_known: true,
            parallel: false,
            reuse: None,
        })
    }

    /// A trace like one that was analysed: its row, its sizes, its throughput by size, its times between arrivals, how
    /// long its device had nothing to do, the range of its offsets, and its working set. Where the device served
    /// several requests at once, or it is not known when service began, several may be served at once.
    ///
    /// # Errors
    /// The trace has no requests, or requests without bytes.
    pub fn like(part: &Part) -> Result<Self, SynthError> {
        let granule = part.granule_bytes.max(1);
        let sum = |of: fn(&SizeClass) -> u64| part.sizes.iter().map(of).sum::<u64>();
        let (reads, read) = (sum(|class| class.reads), sum(|class| class.read_bytes) / granule);
        let (requests, units) =
            (reads + sum(|class| class.writes), read + sum(|class| class.write_bytes) / granule);
        let duration_ns = (part.row.get(Cell::Duration).unwrap_or(0.0) * 1e9) as u64;
        if requests == 0 {
            return Err(SynthError::Missing(Cell::Requests.name()));
        }
        if reads > read || requests - reads > units - read {
            return Err(SynthError::Absurd(Cell::Mean.name(), part.row.get(Cell::Mean).unwrap_or(0.0)));
        }
        let totals = Totals::whole(&part.row, granule, (requests, units), (reads, read), duration_ns);
        let speeds = |of: fn(&SizeClass) -> Option<f64>| {
            let mut speeds = [1.0; SIZES];
            for (speed, class) in speeds.iter_mut().zip(&part.sizes) {
                *speed = of(class).map_or(*speed, |mib_per_s| mib_per_s * f64::from(1 << 20) / 1e9);
            }
            speeds
        };
        Ok(Self {
            totals,
            speeds: [speeds(|class| class.read_mib_per_s), speeds(|class| class.write_mib_per_s)],
            range: (part.first_offset_bytes, part.end_offset_bytes - part.first_offset_bytes),
            starts_known: part.row.get(Cell::Service).is_some(),
            parallel: part.row.get(Cell::Response).is_some()
                && part.waiting.is_none_or(|waiting| waiting.overlap_pct > 0.0),
            reuse: part.working_set.as_ref().map(|set| Reuse {
                distinct: (set.not_counted_kib == 0).then_some(set.distinct_kib * KIB / BLOCK_BYTES as u64),
                within: Vec::new(),
                aligned: part.aligned_pct / 100.0,
            }),
            shape: Shape::Part(Box::new(part.clone())),
        })
    }

    /// The same, with units touched again after such distances.
    #[must_use]
    pub fn with_reuse(mut self, distances: &ReuseDistances) -> Self {
        if let Some(reuse) = &mut self.reuse {
            reuse.within = distances.hits.iter().map(|at| at.hit_pct / 100.0).collect();
        }
        self
    }

    /// The same with so many times the requests a second, and so many times the range of offsets. Service times,
    /// waiting and localities stay, and so does the working set, if the range has room for it.
    #[must_use]
    pub fn scaled(mut self, rate: f64, footprint: f64) -> Self {
        self.totals.duration_ns = (self.totals.duration_ns as f64 / rate) as u64;
        self.range.1 = (self.range.1 as f64 * footprint) as u64;
        self
    }

    /// The row that a trace of this model has.
    #[must_use]
    pub fn row(&self, name: &str) -> Row {
        self.totals.row(name)
    }

    /// Cells of a row that contradict its others: a trace of exactly the number of requests and bytes and the duration
    /// that the row tells misses them by more than 2 %. Each is told with what it would be in such a trace.
    ///
    /// # Errors
    /// As for [`Model::of`].
    pub fn contradictions(row: &Row) -> Result<Vec<(Cell, f64, Option<f64>)>, SynthError> {
        let found = Totals::as_told(row)?.row(&row.name);
        Ok(row.missed_by(&found, TOLERANCE).into_iter().filter(|missed| missed.2.is_some()).collect())
    }

    /// All sizes, with their operations.
    pub(super) fn sizes(&self, dice: &mut Dice) -> Counted<Sized> {
        let totals = &self.totals;
        match &self.shape {
            Shape::Row { many_single } => {
                let (least, most) = if *many_single { SINGLE_PAGES } else { FEW_SINGLE_PAGES };
                let single = least + (most - least) * unit(dice);
                let reads = (totals.reads, totals.read_units);
                let writes = (totals.writes(), totals.units - totals.read_units);
                // The largest request is a write if that leaves enough for the others.
                let fits = |(count, units): (u64, u64)| count > 0 && units >= totals.max_units + (count - 1);
                let max_writes = fits(writes);
                let read_max = (READ_MAX / totals.granule).min(totals.max_units);
                let read_max = if reads.1 > reads.0 * read_max / 4 * 3 || !max_writes {
                    totals.max_units
                } else {
                    read_max
                };
                let mut sizes = Vec::new();
                for (write, side, max) in [(false, reads, read_max), (true, writes, totals.max_units)] {
                    let largest = (max_writes == write && fits(side)).then_some(totals.max_units);
                    let counts = row_sizes(side, max, largest, (single, *many_single), unit(dice));
                    sizes.extend(
                        counts.into_iter().map(|(units, count)| ((units * totals.granule, write), count)),
                    );
                }
                sizes
            }
            Shape::Part(part) => part_sizes(part, totals, dice),
        }
    }

    /// How long the device has nothing to do before requests that need not wait: so many times with this sum.
    pub(super) fn idle(&self, count: u64, sum_ns: u64, dice: &mut Dice) -> Counted<u64> {
        let mut values: Vec<(f64, u64)> = match &self.shape {
            Shape::Row { .. } => {
                let mean_ns = sum_ns as f64 / count.max(1) as f64;
                let (low, high) = (IDLE_MIN_NS.min(mean_ns / 4.0), mean_ns * IDLE_MAX);
                let grid = geometric(low.max(1.0), high);
                let counts = spread(&grid, &vec![1.0; grid.len()], (count, sum_ns), unit(dice));
                grid.into_iter().map(|value| value as f64).zip(counts).collect()
            }
            Shape::Part(part) => {
                let classes = if part.row.get(Cell::Response).is_some() { &part.idle } else { &part.gaps };
                classes.iter().flat_map(|class| within(class, unit(dice))).collect()
            }
        };
        // Steps between values are coarse: the last of the sum is shared by all.
        let found: f64 = values.iter().map(|(value, count)| value * *count as f64).sum();
        for (value, _) in &mut values {
            *value *= sum_ns as f64 / found.max(1.0);
        }
        values.into_iter().map(|(value, count)| (value.round() as u64, count)).collect()
    }

    /// Busy periods of requests whose services usually take so long.
    pub(super) fn periods(&self, no_wait: u64, usual_ns: f64, dice: &mut Dice) -> Periods {
        let totals = &self.totals;
        let empty = Vec::new();
        let (told_s, gaps, idle, responses) = match &self.shape {
            Shape::Row { .. } => (None, &empty, &empty, &empty),
            Shape::Part(part) => (part.row.get(Cell::Duration), &part.gaps, &part.idle, &part.response),
        };
        let scale = totals.duration_ns as f64 / (told_s.unwrap_or(0.0) * 1e9).max(1.0);
        let mut times = |classes: &[TimeClass], count: u64| {
            let values: Vec<(f64, u64)> =
                classes.iter().flat_map(|class| within(class, unit(dice))).collect();
            let sum: f64 = classes.iter().map(|class| class.mean_ms * 1e6 * class.requests as f64).sum();
            let found: f64 = values.iter().map(|(value, count)| value * *count as f64).sum();
            let scale = scale * sum / found.max(1.0);
            let values = values.into_iter().map(|(value, count)| ((value * scale).round() as u64, count));
            as_many(values.collect(), count)
        };
        Periods {
            gaps: times(gaps, totals.requests - 1),
            idle: times(idle, no_wait - 1),
            shape: responses.iter().map(|class| (class.mean_ms * 1e6, class.requests)).collect(),
            longest_ns: match &self.shape {
                Shape::Part(part) => (part.response_max_ms * 1e6).ceil() as u64,
                Shape::Row { .. } => u64::MAX,
            },
            requests: totals.requests,
            no_wait,
            duration_ns: totals.duration_ns,
            service_ns: totals.service_ns.map(|sum_ns| sum_ns as f64),
            response_ns: totals.response_ns.unwrap_or(0) as f64,
            usual_ns,
        }
    }

    /// Discards and flushes, and the bytes of a discard: those of a trace.
    pub(super) fn others(&self) -> (u64, u64, u64) {
        match &self.shape {
            Shape::Row { .. } => (0, 0, 0),
            Shape::Part(part) => {
                let bytes =
                    part.discard_bytes / part.discards.max(1) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
                (part.discards, part.flushes, bytes.max(BLOCK_BYTES as u64))
            }
        }
    }

    /// How long a request is usually served.
    pub(super) fn usual_ns(&self, (bytes, write): Sized) -> f64 {
        bytes as f64 / self.speeds[usize::from(write)][size_class(bytes)].max(1e-9)
    }

    /// The operation of a size.
    pub(super) fn op((_, write): Sized) -> Op {
        if write { Op::Write } else { Op::Read }
    }
}

/// Throughput at a size, on straight lines between anchors, both axes being logarithmic; constant beyond them.
fn interpolated(anchors: &[(f64, f64)], bytes: f64) -> f64 {
    let (first, last) = (anchors[0], anchors[anchors.len() - 1]);
    let bytes = bytes.clamp(first.0, last.0);
    let line = anchors.windows(2).find(|pair| bytes <= pair[1].0);
    line.map_or(last.1, |pair| {
        let along = (bytes / pair[0].0).ln() / (pair[1].0 / pair[0].0).ln();
        pair[0].1 * (pair[1].1 / pair[0].1).powf(along)
    })
}

/// Sizes of a side of a row, in units of 4 KiB: `largest` once, so many single pages, and the others as many in each
/// doubling, as far as the mean allows; of a trace with few single pages more from 16 to 64 KiB.
fn row_sizes(
    (count, units): (u64, u64),
    max: u64,
    largest: Option<u64>,
    (single, many_single): (f64, bool),
    phase: f64,
) -> Counted<u64> {
    let (count, units) = largest.map_or((count, units), |largest| (count - 1, units - largest));
    let mut sizes: Counted<u64> = largest.into_iter().map(|largest| (largest, 1)).collect();
    // The others have at least 2 units each, and at most `max`.
    let least = (2 * count).saturating_sub(units);
    let most = (max * count).saturating_sub(units) / (max - 1).max(1);
    let singles = ((single * count as f64).round() as u64).max(least).min(most).min(count);
    sizes.push((1, singles));
    let values: Vec<u64> = (2..=max.max(2)).collect();
    let weight = |&units: &u64| {
        let hump = if many_single || !(5..=16).contains(&units) { 1.0 } else { 12.0 };
        hump / units as f64
    };
    let prior: Vec<f64> = values.iter().map(weight).collect();
    let counts = spread(&values, &prior, (count - singles, units - singles), phase);
    sizes.extend(values.into_iter().zip(counts));
    sizes
}

/// Sizes of a trace that was analysed: in each class as many, with the same sum; one of them is the largest.
fn part_sizes(part: &Part, totals: &Totals, dice: &mut Dice) -> Counted<Sized> {
    let (granule, largest) = (totals.granule, totals.max_units);
    let mut sizes = Vec::new();
    let mut max_left = true;
    for (number, class) in part.sizes.iter().enumerate().rev() {
        let low = if number == 0 { 0 } else { (BLOCK_BYTES as u64 / granule) << (number - 1) };
        let high = if number + 1 == SIZES {
            largest
        } else {
            ((BLOCK_BYTES as u64 / granule) << number).min(largest)
        };
        let block = BLOCK_BYTES as u64 / granule;
        let sides = [
            (true, (class.writes, class.write_bytes), (class.whole_writes, class.whole_write_bytes)),
            (false, (class.reads, class.read_bytes), (class.whole_reads, class.whole_read_bytes)),
        ];
        for (write, all, whole) in sides {
            let broken = (all.0 - whole.0, all.1 - whole.1);
            for (step, (mut count, bytes)) in [(block, whole), (1, broken)] {
                let first = (low + 1).next_multiple_of(step);
                let mut units = bytes / granule;
                let rest = units.checked_sub(largest).filter(|_| largest.is_multiple_of(step));
                if max_left && count > 0 && rest.is_some_and(|rest| rest >= first * (count - 1)) {
                    max_left = false;
                    sizes.push(((largest * granule, write), 1));
                    (count, units) = (count - 1, units - largest);
                }
                let step = step * (high.saturating_sub(low) / step / SIZES_MAX).max(1);
                let mut values: Vec<u64> = (first..=high).step_by(step as usize).collect();
                if values.is_empty() {
                    values.push(high);
                }
                let counts = spread(&values, &vec![1.0; values.len()], (count, units), unit(dice));
                let counted = values.iter().zip(counts);
                sizes.extend(counted.map(|(&units, count)| ((units * granule, write), count)));
            }
        }
    }
    sizes
}

/// Values from `low` to `high`, at least so many in each doubling.
fn geometric(low: f64, high: f64) -> Vec<u64> {
    let high = high.max(low);
    let steps = ((high / low).log2() * f64::from(STEPS)).ceil().max(1.0);
    let value = |step: u32| (low * (high / low).powf(f64::from(step) / steps)) as u64;
    let mut values: Vec<u64> = (0..=steps as u32).map(value).collect();
    values.dedup();
    values
}

/// The same values so many times in all, in the same proportion; 0 where there are none.
fn as_many(mut values: Counted<u64>, count: u64) -> Counted<u64> {
    let whole: u64 = values.iter().map(|&(_, count)| count).sum();
    if whole == 0 {
        return vec![(0, count)];
    }
    let (mut before, mut taken) = (0, 0);
    for (_, number) in &mut values {
        before += u128::from(*number);
        let until = (before * u128::from(count) / u128::from(whole)) as u64;
        *number = until - taken;
        taken = until;
    }
    values
}

/// Times of one class, in ns: as many, with the same mean.
fn within(class: &TimeClass, phase: f64) -> Vec<(f64, u64)> {
    let mean_ns = class.mean_ms * 1e6;
    let Some(at_most_ms) = class.at_most_ms else { return vec![(mean_ns, class.requests)] };
    let high = at_most_ms * 1e6;
    // A little below the limit, so that none passes it when all are made to add up.
    let grid = geometric((high / 2.0).min(mean_ns).max(1.0), (0.98 * high).max(mean_ns).max(2.0));
    let sum_ns = mean_ns * class.requests as f64;
    let counts = spread(&grid, &vec![1.0; grid.len()], (class.requests, sum_ns as u64), phase);
    grid.into_iter().map(|value| value as f64).zip(counts).collect()
}
