//! How long a side that waits looks before it parks.

use crate::memory::now_ns;
use core::sync::atomic::{AtomicU32, Ordering};

/// How long a side looks: what it costs to be woken, twice. A processor with nothing else to do takes 10 to 60 µs to wake up, in
/// a virtual machine more than outside.
const LOOKING_NS: u32 = 100_000;
/// Looks between two glances at the clock and at who else is awake, some 2 µs: in it most calls of a side that is awake are
/// answered. Then the processor is offered to others, the other side among them, which may be waiting for just this one.
pub(crate) const LOOKS_AT_ONCE: u32 = 64;
/// Less than this sees no answer, however fast it is.
const LOOKING_NS_MIN: u32 = 4_000;
/// A side that has given looking up tries it again every so many times.
const TRY_AGAIN: u32 = 16;

/// How long a side looks, as its last looks went: a program that calls now and then has no thread that looks all the time.
#[derive(Debug)]
pub(crate) struct Patience {
    ns: AtomicU32,
    turns: AtomicU32,
}

/// The end of looking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    begun_ns: u64,
    ns: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { ns: AtomicU32::new(LOOKING_NS), turns: AtomicU32::new(0) }
    }
}

impl Patience {
    /// From now on, how long; none when it is not worth it.
    pub fn begin(&self) -> Option<Deadline> {
        let mut ns = self.ns.load(Ordering::Relaxed);
        if ns == 0 {
            let turns = self.turns.load(Ordering::Relaxed).wrapping_add(1);
            self.turns.store(turns, Ordering::Relaxed);
            if !turns.is_multiple_of(TRY_AGAIN) {
                return None;
            }
            ns = LOOKING_NS;
        }
        Some(Deadline { begun_ns: now_ns(), ns })
    }

    /// What was looked for came.
    pub fn was_worth_it(&self) {
        self.ns.store(LOOKING_NS, Ordering::Relaxed);
    }

    /// It did not come in time.
    pub fn was_not(&self, deadline: Deadline) {
        let less = deadline.ns / 2;
        self.ns.store(if less < LOOKING_NS_MIN { 0 } else { less }, Ordering::Relaxed);
    }
}

impl Deadline {
    /// Whether it is over.
    pub fn is_over(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.begun_ns) >= u64::from(self.ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_that_see_nothing_end_and_are_tried_again_now_and_then() {
        let patience = Patience::default();
        let first = patience.begin().unwrap();
        assert!(!first.is_over(first.begun_ns) && first.is_over(first.begun_ns + u64::from(LOOKING_NS)));
        while let Some(deadline) = patience.begin() {
            patience.was_not(deadline);
        }
        let tries = (0..10 * TRY_AGAIN).filter(|_| patience.begin().is_some()).count();
        assert_eq!(tries, 10);
        patience.was_worth_it();
        assert!(patience.begin().is_some());
    }
}
