//! When calls are due.

use super::plan::Planned;
use crate::histogram::{Counters, Histogram};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nanoseconds that a call may be late however close its neighbours are.
const LATE_NS_MIN: u64 = 1_000_000;

/// What a call waits for, besides those that had ended before it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallPacing {
    /// Nothing: as fast as the file system goes.
    #[default]
    Closed,
    /// Its time in the recording.
    Open,
    /// Its think time after them.
    Dependent,
}

/// How late calls were that had a time.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    /// Of each call, nanoseconds.
    pub histogram: Histogram,
    /// Calls that were later than the bound.
    pub beyond: u64,
    /// The bound, nanoseconds.
    pub bound_ns: u64,
}

impl Lateness {
    /// Whether so few calls came late that the times are those that were asked for: at most one of a hundred.
    #[must_use]
    pub fn is_on_time(&self) -> bool {
        self.beyond <= self.histogram.count() / 100
    }
}

/// The clock of a replay, and how late its calls are.
pub(super) struct Clock {
    begin: Instant,
    speed: f64,
    bound_ns: u64,
    late: Counters,
    beyond: AtomicU64,
}

impl Clock {
    pub(super) fn begin(speed: f64, bound_ns: u64) -> Self {
        let (late, beyond) = (Counters::default(), AtomicU64::new(0));
        Self { begin: Instant::now(), speed, bound_ns, late, beyond }
    }

    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// So long a time of the recording, here.
    pub(super) fn scaled(&self, ns: u64) -> u64 {
        (ns as f64 / self.speed) as u64
    }

    /// Waits for a time, and counts how late it is then.
    pub(super) fn wait_until(&self, due_ns: u64) {
        if let Some(left) = due_ns.checked_sub(self.now_ns()) {
            std::thread::sleep(Duration::from_nanos(left));
        }
        let late = self.now_ns().saturating_sub(due_ns);
        self.late.note(late);
        if late > self.bound_ns {
            self.beyond.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn lateness(&self) -> Lateness {
        let mut histogram = Histogram::default();
        self.late.load(&mut histogram);
        Lateness { histogram, beyond: self.beyond.load(Ordering::Relaxed), bound_ns: self.bound_ns }
    }
}

/// How late a call may be if nothing else is asked for: the median time between begins at this speed, and at least
/// 1 ms.
pub(super) fn bound_ns(calls: &[Planned], speed: f64) -> u64 {
    let mut gaps: Vec<u64> = calls.windows(2).map(|pair| pair[1].begin_ns - pair[0].begin_ns).collect();
    let middle = gaps.len() / 2;
    let median = if gaps.is_empty() { 0 } else { *gaps.select_nth_unstable(middle).1 };
    ((median as f64 / speed) as u64).max(LATE_NS_MIN)
}
