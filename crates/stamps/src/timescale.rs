//! Times of ticks.

use nvmed_sys::TickClock;

/// Readings of both clocks that are kept: of a long run every second one goes when there are so many.
const READINGS_MAX: usize = 1024;

/// Makes nanoseconds of CLOCK_MONOTONIC of ticks, by straight lines between readings of both clocks.
#[derive(Clone, Debug)]
pub struct Timescale {
    clock: TickClock,
    /// Ticks and nanoseconds, both growing.
    readings: Vec<(u64, u64)>,
}

impl Timescale {
    /// A scale that begins now.
    #[must_use]
    pub fn begin(clock: TickClock) -> Self {
        Self { clock, readings: vec![clock.reading()] }
    }

    /// Reads both clocks. Ticks up to now have their times from then on; those of earlier readings do not change, but
    /// for some nanoseconds when a reading goes.
    pub fn read(&mut self) {
        let reading = self.clock.reading();
        self.add(reading);
    }

    fn add(&mut self, reading: (u64, u64)) {
        if self.readings.last().is_some_and(|last| reading.0 <= last.0 || reading.1 <= last.1) {
            return;
        }
        if self.readings.len() == READINGS_MAX {
            let mut number = 0;
            self.readings.retain(|_| {
                number += 1;
                number % 2 == 1 || number == READINGS_MAX
            });
        }
        self.readings.push(reading);
    }

    /// The time of a tick, nanoseconds: before the first reading and after the last one by the nearest line.
    #[must_use]
    pub fn ns(&self, tick: u64) -> u64 {
        let [.., _, _] = self.readings[..] else {
            // One reading says how late it is, and not how fast.
            return self.readings[0].1;
        };
        let after = self.readings.partition_point(|(ticks, _)| *ticks < tick);
        let after = after.clamp(1, self.readings.len() - 1);
        let ((ticks, ns), (end_ticks, end_ns)) = (self.readings[after - 1], self.readings[after]);
        let (line_ticks, line_ns) = (end_ticks - ticks, end_ns - ns);
        let scale = |ticks: u64| {
            let ns = u128::from(ticks) * u128::from(line_ns) / u128::from(line_ticks);
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        match tick.checked_sub(ticks) {
            Some(later) => ns.saturating_add(scale(later)),
            None => ns.saturating_sub(scale(ticks - tick)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scale(readings: &[(u64, u64)]) -> Timescale {
        let mut scale = Timescale { clock: TickClock::Monotonic, readings: vec![readings[0]] };
        readings[1..].iter().for_each(|&reading| scale.add(reading));
        scale
    }

    #[test]
    fn a_tick_has_the_time_of_the_line_that_it_is_on() {
        // 3 ticks a nanosecond, then 2.
        let scale = scale(&[(3000, 50), (6000, 1050), (8000, 2050)]);
        let times = [2700, 3000, 4500, 6000, 7000, 8000, 9000].map(|tick| scale.ns(tick));
        assert_eq!(times, [0, 50, 550, 1050, 1550, 2050, 2550]);
        assert_eq!(scale.ns(0), 0, "before all time");
        assert!(scale.ns(u64::MAX) > 1 << 62);
    }

    #[test]
    fn many_readings_become_fewer_and_say_the_same() {
        let readings: Vec<(u64, u64)> = (0..10_000).map(|at| (at * 3000, at * 1000)).collect();
        let scale = scale(&readings);
        assert!(scale.readings.len() <= READINGS_MAX);
        assert_eq!(scale.readings.last(), readings.last());
        assert!(readings.iter().all(|(ticks, ns)| scale.ns(*ticks) == *ns));
    }

    #[test]
    fn ticks_of_this_host_have_the_times_of_its_clock() {
        for clock in [TickClock::of_host(), TickClock::Monotonic] {
            let mut scale = Timescale::begin(clock);
            let (before, tick, after) = (TickClock::Monotonic.now(), clock.now(), TickClock::Monotonic.now());
            while TickClock::Monotonic.now() < after + 2_000_000 {}
            scale.read();
            let ns = scale.ns(tick);
            // A reading of two clocks is wrong by as much as passes between them, if the thread stands still there.
            assert!(ns + 1_000_000 >= before && ns <= after + 1_000_000, "{before} {ns} {after}");
        }
    }

    proptest! {
        /// What is later in ticks is not earlier in time, whatever was read.
        #[test]
        fn the_order_of_ticks_is_that_of_times(
            steps in prop::collection::vec((0_u64..1 << 40, 0_u64..1 << 40), 1..50),
            ticks in prop::collection::vec(any::<u64>(), 2..50),
        ) {
            let mut sum = (1_u64, 1_u64);
            let readings: Vec<_> = steps.iter().map(|step| {
                sum = (sum.0 + step.0, sum.1 + step.1);
                sum
            }).collect();
            let scale = scale(&readings);
            let mut ticks = ticks;
            ticks.iter_mut().for_each(|tick| *tick >>= *tick % 40);
            ticks.sort_unstable();
            let times: Vec<u64> = ticks.iter().map(|&tick| scale.ns(tick)).collect();
            prop_assert!(times.is_sorted());
        }
    }
}
