//! How a caller lets the medium's time pass.

use core::time::Duration;
use nvmed_sys::sync::yield_now;
use std::time::Instant;

/// How much later than asked for the host may wake who sleeps: the slack of its timer, 50 us unless somebody has set
/// another (prctl(2), `PR_SET_TIMERSLACK`), and the way back to the processor. It is many times what a fast medium
/// takes.
const LATE: Duration = Duration::from_micros(60);

/// Lets the medium's time pass, or others run, who have to let go of something.
pub(super) fn pause(until: Option<Duration>) {
    until.map_or_else(yield_now, pass);
}

/// Comes back when a time has passed: sleeps for all of it but what the host may be late by, and spins for the rest.
pub(super) fn pass(time: Duration) {
    if time.is_zero() {
        return;
    }
    let end = Instant::now() + time;
    if let Some(sleep) = slept(time) {
        std::thread::sleep(sleep);
    }
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// The part of a wait that is slept, if any.
fn slept(time: Duration) -> Option<Duration> {
    time.checked_sub(LATE).filter(|sleep| !sleep.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_a_wait_and_a_short_one_are_not_slept() {
        let us = Duration::from_micros;
        assert_eq!([us(2), LATE].map(slept), [None, None]);
        assert_eq!(slept(LATE + us(1)), Some(us(1)));
        assert_eq!(slept(us(80_000)), Some(us(79_940)));
    }

    #[test]
    fn nobody_comes_back_early() {
        for time in [1, 2, 59, 61, 300].map(Duration::from_micros) {
            let begin = Instant::now();
            pass(time);
            assert!(begin.elapsed() >= time, "{time:?}");
        }
    }
}
