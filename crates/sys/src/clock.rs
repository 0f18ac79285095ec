//! Clocks: the time of day, and ticks.

use rustix::time::{ClockId, clock_gettime};

/// What the kernel keeps time by.
#[cfg(target_arch = "x86_64")]
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// Readings of two clocks, of which the one with the shortest time between is taken.
const READINGS: usize = 5;

/// Nanoseconds since 1970 by the host's clock, at the resolution of its tick: what kernels stamp files with.
#[must_use]
pub fn host_clock() -> i64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

/// The host's time in nanoseconds (CLOCK_MONOTONIC); costs no system call.
#[inline]
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A clock that is cheap to read, in ticks that need not be nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickClock {
    /// The processor's time stamp counter: some twenty cycles.
    Counter,
    /// CLOCK_MONOTONIC, nanoseconds.
    Monotonic,
}

impl TickClock {
    /// The counter, where the kernel itself keeps time by it: so it runs at one rate, in sleep states too, and is the
    /// same on all processors (Intel SDM, volume 3, 19.17.1 "Invariant TSC"). CLOCK_MONOTONIC elsewhere.
    #[must_use]
    pub fn of_host() -> Self {
        #[cfg(target_arch = "x86_64")]
        if std::fs::read_to_string(CLOCK_SOURCE).is_ok_and(|source| source.trim() == "tsc") {
            return Self::Counter;
        }
        Self::Monotonic
    }

    /// Now, in ticks. Of two calls that follow each other in a thread the second is not earlier.
    #[inline]
    #[must_use]
    pub fn now(self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the instruction reads a register and touches no memory. A kernel may forbid it to a process
            // (PR_SET_TSC), which then gets a SIGSEGV: nobody but the process itself can have asked for that.
            Self::Counter => unsafe { core::arch::x86_64::_rdtsc() },
            #[cfg(not(target_arch = "x86_64"))]
            Self::Counter => monotonic_ns(),
            Self::Monotonic => monotonic_ns(),
        }
    }

    /// Now, in ticks and in nanoseconds of CLOCK_MONOTONIC.
    #[must_use]
    pub fn reading(self) -> (u64, u64) {
        let once = |_| {
            let before = self.now();
            let ns = monotonic_ns();
            let after = self.now();
            (after.saturating_sub(before), (before + after.saturating_sub(before) / 2, ns))
        };
        let best = (0..READINGS).map(once).min_by_key(|(between, _)| *between);
        best.map_or((0, 0), |(_, reading)| reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_do_not_go_back_and_are_read_with_the_time_of_the_same_moment() {
        for clock in [TickClock::of_host(), TickClock::Monotonic] {
            let (first, second) = (clock.now(), clock.now());
            assert!(first <= second, "{clock:?}: {first}, then {second}");
            let before = monotonic_ns();
            let (ticks, ns) = clock.reading();
            assert!(before <= ns && ns <= monotonic_ns());
            assert!(second <= ticks && ticks <= clock.now());
        }
    }
}
