//! Times that were counted: how long things took, or how late they were.

use nvmed_units::Buckets;

/// Percentiles are right to 1.6 %, whatever the time.
type Nanoseconds = Buckets<64, 57>;

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

    /// The time in nanoseconds that `percent` of them do not pass; 0 of nothing.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        Nanoseconds::percentile(&self.counts, percent).map_or(0, |ns| ns.min(self.max_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::Times;

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
}
