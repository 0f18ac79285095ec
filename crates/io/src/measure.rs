//! Latency and the cost of waiting, for handles that ask for it.

use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_units::Buckets;

/// Percentiles are right to a sixteenth; up to 2^40 ns, 18 minutes: what is longer counts as that.
type Nanoseconds = Buckets<16, 37>;

/// Latencies, counted in buckets whose width is a sixteenth of their value or less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl Histogram {
    /// How many requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean, nanoseconds.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// The longest, nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The latency that `percent` of the requests did not pass, nanoseconds; 0 without requests.
    /// `percentile_ns(99.99)` of fewer than 10,000 requests is the longest.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        Nanoseconds::percentile(&self.counts, percent).map_or(self.max_ns, |ns| ns.min(self.max_ns))
    }

    /// Every bucket with requests in it: its largest value in nanoseconds, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        Nanoseconds::filled(&self.counts)
    }
}

/// What a handle's requests took, and what waiting for them cost, since [`crate::Handle::measure`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// From submission to the reaping of the completion, in the device's time.
    pub latency: Histogram,
    /// Waits of calling threads that did not end at once.
    pub waits: u64,
    /// How long they took together, in the device's time, nanoseconds.
    pub waited_ns: u64,
    /// Of that, asleep. What remains was spent looking: what a core was burnt for, also where the device's
    /// time is not the host's.
    pub slept_ns: u64,
    /// Sleeps.
    pub sleeps: u64,
    /// Processor time of the calling threads in synchronous calls and waits (CLOCK_THREAD_CPUTIME_ID),
    /// nanoseconds. The completion threads' is in [`crate::ThreadStats`].
    pub cpu_ns: u64,
}

impl Measured {
    /// Time spent looking, in the device's time, nanoseconds.
    #[must_use]
    pub fn looked_ns(&self) -> u64 {
        self.waited_ns.saturating_sub(self.slept_ns)
    }
}

/// Where threads count; all relaxed, since each number is read by itself.
#[derive(Debug)]
pub(crate) struct Measure {
    counts: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
    waits: AtomicU64,
    waited_ns: AtomicU64,
    slept_ns: AtomicU64,
    sleeps: AtomicU64,
    cpu_ns: AtomicU64,
}

impl Measure {
    pub(crate) fn new() -> Self {
        Self {
            counts: (0..Nanoseconds::COUNT).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
            slept_ns: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
        }
    }

    /// A request was done after `ns`.
    pub(crate) fn note(&self, ns: u64) {
        self.counts[Nanoseconds::of(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// A wait is over.
    pub(crate) fn note_wait(&self, waited_ns: u64, slept_ns: u64, sleeps: u32) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.waited_ns.fetch_add(waited_ns, Ordering::Relaxed);
        self.slept_ns.fetch_add(slept_ns, Ordering::Relaxed);
        self.sleeps.fetch_add(sleeps.into(), Ordering::Relaxed);
    }

    /// A call used so much of its thread.
    pub(crate) fn note_cpu(&self, ns: u64) {
        self.cpu_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn load(&self) -> Measured {
        let counts: Box<[u64]> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let count = counts.iter().sum();
        let latency = Histogram {
            counts,
            count,
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
            max_ns: self.max_ns.load(Ordering::Relaxed),
        };
        Measured {
            latency,
            waits: self.waits.load(Ordering::Relaxed),
            waited_ns: self.waited_ns.load(Ordering::Relaxed),
            slept_ns: self.slept_ns.load(Ordering::Relaxed),
            sleeps: self.sleeps.load(Ordering::Relaxed),
            cpu_ns: self.cpu_ns.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn clear(&self) {
        for count in &self.counts {
            count.store(0, Ordering::Relaxed);
        }
        for one in [
            &self.sum_ns,
            &self.max_ns,
            &self.waits,
            &self.waited_ns,
            &self.slept_ns,
            &self.sleeps,
            &self.cpu_ns,
        ] {
            one.store(0, Ordering::Relaxed);
        }
    }
}

/// Processor time of this thread so far, nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Percentiles against a sorted list.
        #[test]
        fn percentiles_are_those_of_the_values(mut values in prop::collection::vec(0u64..10_000_000, 1..300)) {
            let measure = Measure::new();
            values.iter().for_each(|&ns| measure.note(ns));
            values.sort_unstable();
            let seen = measure.load().latency;
            prop_assert_eq!(seen.count(), values.len() as u64);
            prop_assert_eq!(seen.max_ns(), values[values.len() - 1]);
            for percent in [1.0, 50.0, 90.0, 99.0, 99.99, 100.0] {
                let rank = (percent / 100.0 * values.len() as f64).ceil().max(1.0) as usize;
                let (exact, found) = (values[rank - 1], seen.percentile_ns(percent));
                prop_assert!(found >= exact && found <= exact + exact / 16 + 1, "p{percent}: {found}, is {exact}");
            }
        }
    }

    #[test]
    fn nothing_measured_is_nothing() {
        let measure = Measure::new();
        assert_eq!((measure.load().latency.percentile_ns(50.0), measure.load().latency.mean_ns()), (0, 0));
        measure.note(u64::MAX);
        assert_eq!(measure.load().latency.percentile_ns(99.99), (1 << 40) - 1);
        measure.clear();
        assert_eq!(measure.load().latency.count(), 0);
    }
}
