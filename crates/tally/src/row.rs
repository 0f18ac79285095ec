//! One kind's counts, added up over all seats.

use crate::call_kind::CallKind;
use crate::layout::{NS_GROUPS, NS_STEPS};
use nvmed_units::Buckets;
use serde_json::{Value, json};

/// Latencies, counted: how many, how long together, the longest, and how they are spread over [`Buckets`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum<const STEPS: usize = NS_STEPS, const GROUPS: usize = NS_GROUPS> {
    /// Calls that failed.
    pub errors: u64,
    /// Bytes that calls moved.
    pub bytes: u64,
    /// Nanoseconds of all calls.
    pub ns: u64,
    /// The longest call, nanoseconds.
    pub max_ns: u64,
    /// Calls by the bucket of their nanoseconds.
    pub counts: Vec<u64>,
}

impl<const STEPS: usize, const GROUPS: usize> Default for Sum<STEPS, GROUPS> {
    fn default() -> Self {
        let counts = vec![0; Buckets::<STEPS, GROUPS>::COUNT];
        Self { errors: 0, bytes: 0, ns: 0, max_ns: 0, counts }
    }
}

impl<const STEPS: usize, const GROUPS: usize> Sum<STEPS, GROUPS> {
    /// How many calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What `percent` of the calls did not pass, nanoseconds; 0 of nothing.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        Buckets::<STEPS, GROUPS>::percentile(&self.counts, percent).map_or(0, |ns| ns.min(self.max_ns))
    }

    /// Every bucket with something in it: its largest value in nanoseconds, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        Buckets::<STEPS, GROUPS>::filled(&self.counts)
    }

    /// Adds so many calls that took up to `upper_ns`, a bucket's largest value.
    pub fn add_bucket(&mut self, upper_ns: u64, count: u64) {
        self.counts[Buckets::<STEPS, GROUPS>::of(upper_ns)] += count;
    }

    /// The counts of a kind of call as a line of statistics has them: docs/seeing.md.
    #[must_use]
    pub fn json(&self, call: &str, with_buckets: bool) -> Value {
        json!({
            "call": call,
            "count": self.count(),
            "errors": self.errors,
            "bytes": self.bytes,
            "ns": self.ns,
            "max_ns": self.max_ns,
            "p50_ns": self.percentile_ns(50.0),
            "p90_ns": self.percentile_ns(90.0),
            "p99_ns": self.percentile_ns(99.0),
            "buckets": self.buckets().filter(|_| with_buckets).collect::<Vec<_>>(),
        })
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
    pub kind: CallKind,
    /// Its counts.
    pub sum: Sum,
}

impl Row {
    /// [`Sum::json`] of the kind, with its buckets.
    #[must_use]
    pub fn json(&self) -> Value {
        self.sum.json(self.kind.name(), true)
    }
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
    fn a_line_of_statistics_is_one_json_object() {
        let sum = of(&[3, 3, 100]);
        assert_eq!(
            sum.json("read", true).to_string(),
            "{\"call\":\"read\",\"count\":3,\"errors\":0,\"bytes\":0,\"ns\":106,\"max_ns\":100,\"p50_ns\":3,\
             \"p90_ns\":100,\"p99_ns\":100,\"buckets\":[[3,2],[103,1]]}"
        );
        assert_eq!(sum.json("read", false)["buckets"], json!([]));
    }

    #[test]
    fn what_came_since_is_the_difference() {
        let (before, after) = (of(&[10, 20]), of(&[10, 20, 30]));
        let since = after.since(&before);
        assert_eq!((since.count(), since.ns, since.percentile_ns(50.0)), (1, 30, 30));
    }
}
