//! The time of day.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since 1970 by the host's clock, at the resolution of its tick: what kernels stamp files with.
#[must_use]
pub fn host_clock() -> i64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}
