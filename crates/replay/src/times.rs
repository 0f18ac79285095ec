//! Times that were counted: how long things took, or how late they were.

use nvmed_units::Buckets;

/// Percentiles are right to 1.6 %, whatever the time.
type Nanoseconds = Buckets<64, 58>;

/// Times, counted in buckets whose width is a sixty-fourth of their value or less.
#[derive(Clone, Debug)]
pub struct Times {
    counts: Box<[u64]>,
    count: u64,
    sum_ns: u128,
    max_ns: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self { counts: vec![0; Nanoseconds::COUNT].into(), count: 0, sum_ns: 0, max_ns: 0 }
    }
}

impl Times {
    /// Counts one.
    pub(crate) fn note(&mut self, ns: u64) {
        self.counts[Nanoseconds::of(ns)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean in nanoseconds; none of nothing.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns as f64 / self.count as f64)
    }

    /// The longest, nanoseconds; 0 of nothing.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Their sum, nanoseconds, as far as 64 bits go.
    pub(crate) fn sum_ns(&self) -> u64 {
        self.sum_ns.min(u64::MAX.into()) as u64
    }

    /// The largest time of the bucket up to which `percent` of them are; 0 of nothing.
    pub(crate) fn bucket_ns(&self, percent: f64) -> u64 {
        Nanoseconds::percentile(&self.counts, percent).unwrap_or(0)
    }

    /// The time in nanoseconds that `percent` of them do not pass; 0 of nothing.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        self.bucket_ns(percent).min(self.max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::{Nanoseconds, Times};

    #[test]
    fn percentiles_and_mean_are_those_of_the_times() {
        let mut times = Times::default();
        assert_eq!((times.mean_ns(), times.percentile_ns(50.0), times.max_ns()), (None, 0, 0));
        (1..=1000).for_each(|ns| times.note(ns * 1_000_000_000));
        assert_eq!(
            (times.count(), times.mean_ns(), times.max_ns()),
            (1000, Some(500.5e9), 1_000_000_000_000)
        );
        let median = times.percentile_ns(50.0) as f64;
        assert!((500e9..508e9).contains(&median), "{median}");
    }

    #[test]
    fn a_bucket_holds_what_is_up_to_its_limit_and_at_most_a_64th_less() {
        let mut times: Vec<u64> = (0..5000).collect();
        times.extend((7..63).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 12_345]));
        times.push((1 << 63) - 1);
        for ns in times {
            let (bucket, limit) = (Nanoseconds::of(ns), Nanoseconds::upper(Nanoseconds::of(ns)));
            assert!(ns <= limit && limit - ns <= ns / 64, "{ns}: {limit}");
            assert!(limit == (1 << 63) - 1 || Nanoseconds::of(limit + 1) == bucket + 1, "{ns}");
        }
    }

    #[test]
    fn the_99th_percentile_is_not_exceeded_by_99_of_100() {
        let mut times = Times::default();
        assert_eq!(times.bucket_ns(99.0), 0);
        (1..=100).for_each(|ns| times.note(ns));
        assert_eq!((times.bucket_ns(99.0), times.bucket_ns(50.0), times.sum_ns()), (99, 50, 5050));
        times.note(1_000_000);
        assert_eq!(times.bucket_ns(99.0), 100);
        assert!((1_000_000..=1_015_625).contains(&times.bucket_ns(100.0)));
    }
}
