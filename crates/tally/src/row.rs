//! One kind's counts, added up over all seats.

use crate::kind::Kind;
use crate::layout::Nanoseconds;

/// Latencies, counted: how many, how long together, the longest, and how they are spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Calls that failed.
    pub errors: u64,
    /// Bytes that calls moved.
    pub bytes: u64,
    /// Nanoseconds of all calls.
    pub ns: u64,
    /// The longest call, nanoseconds.
    pub max_ns: u64,
    pub(crate) counts: Vec<u64>,
}

impl Default for Sum {
    fn default() -> Self {
        Self { errors: 0, bytes: 0, ns: 0, max_ns: 0, counts: vec![0; Nanoseconds::COUNT] }
    }
}

impl Sum {
    /// How many calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What `percent` of the calls did not pass, nanoseconds; 0 of nothing.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        Nanoseconds::percentile(&self.counts, percent).map_or(0, |ns| ns.min(self.max_ns))
    }

    /// Every bucket with something in it: its largest value in nanoseconds, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        Nanoseconds::filled(&self.counts)
    }

    /// Adds so many calls that took up to `upper_ns`, a bucket's largest value.
    pub fn add_bucket(&mut self, upper_ns: u64, count: u64) {
        self.counts[Nanoseconds::of(upper_ns)] += count;
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.ns += other.ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// What has come since `before` was taken of the same counters. The longest stays the longest of all.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let counts = self.counts.iter().zip(&before.counts).map(|(now, then)| now.saturating_sub(*then));
        Self {
            errors: self.errors.saturating_sub(before.errors),
            bytes: self.bytes.saturating_sub(before.bytes),
            ns: self.ns.saturating_sub(before.ns),
            max_ns: self.max_ns,
            counts: counts.collect(),
        }
    }
}

/// One kind of call and its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which.
    pub kind: Kind,
    /// Its counts.
    pub sum: Sum,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[u64]) -> Sum {
        let mut sum = Sum::default();
        for &ns in values {
            sum.add_bucket(ns, 1);
            sum.ns += ns;
            sum.max_ns = sum.max_ns.max(ns);
        }
        sum
    }

    proptest! {
        /// Percentiles against a sorted list.
        #[test]
        fn percentiles_are_those_of_the_values(mut values in prop::collection::vec(0u64..10_000_000_000, 1..300)) {
            let seen = of(&values);
            values.sort_unstable();
            for percent in [1.0, 50.0, 90.0, 99.0, 100.0] {
                let rank = (percent / 100.0 * values.len() as f64).ceil().max(1.0) as usize;
                let (exact, found) = (values[rank - 1], seen.percentile_ns(percent));
                prop_assert!(found >= exact && found <= exact + exact / 16 + 1, "p{percent}: {found}, is {exact}");
            }
        }
    }

    #[test]
    fn what_came_since_is_the_difference() {
        let (before, after) = (of(&[10, 20]), of(&[10, 20, 30]));
        let since = after.since(&before);
        assert_eq!((since.count(), since.ns, since.percentile_ns(50.0)), (1, 30, 30));
    }
}
