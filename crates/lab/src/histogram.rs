//! Latencies in buckets, counted by one thread while another may look.

use nvmed_units::Buckets;
use std::sync::atomic::{AtomicU64, Ordering};

/// Percentiles are right to a sixty-fourth, 1.6 %; up to 2^38 ns, 4.6 minutes: what is longer counts as that.
type Nanoseconds = Buckets<64, 33>;

/// Latencies, counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; Nanoseconds::COUNT], sum_ns: 0, max_ns: 0 }
    }
}

impl Histogram {
    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their mean, nanoseconds; 0 of nothing.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count()).unwrap_or(0)
    }

    /// The longest, nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// What `percent` of them did not pass, nanoseconds; 0 of nothing.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        Nanoseconds::percentile(&self.counts, percent).map_or(self.max_ns, |ns| ns.min(self.max_ns))
    }

    /// Every bucket with something in it: its largest value in nanoseconds, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        Nanoseconds::filled(&self.counts)
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// What has come since `before` was taken of the same counters. The longest stays the longest of all.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let counts = self.counts.iter().zip(&before.counts).map(|(now, then)| now.saturating_sub(*then));
        let sum_ns = self.sum_ns.saturating_sub(before.sum_ns);
        Self { counts: counts.collect(), sum_ns, max_ns: self.max_ns }
    }
}

/// Counters that one thread writes and others read: no instruction of the writer is a locked one.
#[derive(Debug)]
pub struct Counters {
    counts: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        let counts = (0..Nanoseconds::COUNT).map(|_| AtomicU64::new(0)).collect();
        Self { counts, sum_ns: AtomicU64::new(0), max_ns: AtomicU64::new(0) }
    }
}

/// One writer: a load and a store will do.
#[inline]
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Counters {
    /// Counts one latency. One thread at a time.
    #[inline]
    pub fn note(&self, ns: u64) {
        bump(&self.counts[Nanoseconds::of(ns)], 1);
        bump(&self.sum_ns, ns);
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// Adds what has been counted so far to `into`.
    pub fn load(&self, into: &mut Histogram) {
        into.counts.iter_mut().zip(&self.counts).for_each(|(sum, one)| *sum += one.load(Ordering::Relaxed));
        into.sum_ns += self.sum_ns.load(Ordering::Relaxed);
        into.max_ns = into.max_ns.max(self.max_ns.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[u64]) -> Histogram {
        let (counters, mut seen) = (Counters::default(), Histogram::default());
        values.iter().for_each(|&ns| counters.note(ns));
        counters.load(&mut seen);
        seen
    }

    proptest! {
        /// Percentiles against a sorted list.
        #[test]
        fn percentiles_are_those_of_the_values(mut values in prop::collection::vec(0u64..10_000_000, 1..300)) {
            let seen = of(&values);
            values.sort_unstable();
            prop_assert_eq!(seen.count(), values.len() as u64);
            prop_assert_eq!(seen.max_ns(), values[values.len() - 1]);
            for percent in [1.0, 50.0, 90.0, 99.0, 99.99, 100.0] {
                let rank = (percent / 100.0 * values.len() as f64).ceil().max(1.0) as usize;
                let (exact, found) = (values[rank - 1], seen.percentile_ns(percent));
                prop_assert!(found >= exact && found <= exact + exact / 64 + 1, "p{percent}: {found}, is {exact}");
            }
        }
    }

    #[test]
    fn nothing_and_the_longest() {
        assert_eq!((of(&[]).percentile_ns(50.0), of(&[]).mean_ns(), of(&[]).max_ns()), (0, 0, 0));
        assert_eq!(of(&[u64::MAX]).count(), 1);
    }

    #[test]
    fn what_came_since_is_the_difference() {
        let (before, after) = (of(&[10, 20]), of(&[10, 20, 30]));
        assert_eq!(after.since(&before).count(), 1);
        assert_eq!(after.since(&before).percentile_ns(50.0), 30);
        let mut sum = before;
        sum.add(&after);
        assert_eq!((sum.count(), sum.max_ns()), (5, 30));
    }
}
