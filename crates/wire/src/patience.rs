//! How long a side of a lane looks before it parks: docs/spec/shared.md, "Lanes".

use crate::parking::now_ns;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::thread::sched_yield;

/// How long a side looks: what it costs to be woken, twice. A processor with nothing else to do takes 10 to 60 µs to
/// wake up, in a virtual machine more than outside. Who looks through waits that are longer loses more of a processor
/// than the other side loses by waking it, and gains nothing where a device is waited for.
const LOOKING_NS: u32 = 100_000;
/// Less than this sees no answer, however fast it is.
const LOOKING_NS_MIN: u32 = 4_000;
/// Looks between two glances at the clock and at who else is awake, some 2 µs: in it most calls of a side that is
/// awake are answered. Then the processor is offered to others, the other side among them, which may be waiting for
/// just this one.
pub(crate) const LOOKS_AT_ONCE: u32 = 64;

/// A processor that was offered to others and is back only after so long had another taker: by itself the offer takes
/// less than 1 µs.
const TAKEN_NS: u64 = 3_000;

/// How long a side looks. Each wait that is too long halves it, down to not at all; one that is not brings it back.
#[derive(Debug)]
pub(crate) struct Patience(AtomicU32);

/// A wait: looking, and perhaps parked.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    patience: &'a Patience,
    looking_ns: u32,
    begun_ns: u64,
    now_ns: u64,
    parks: bool,
    shared: bool,
}

impl Default for Patience {
    fn default() -> Self {
        Self(AtomicU32::new(LOOKING_NS))
    }
}

impl Patience {
    /// From now on.
    pub fn begin(&self) -> Wait<'_> {
        let now_ns = now_ns();
        let looking_ns = self.0.load(Ordering::Relaxed);
        Wait { patience: self, looking_ns, begun_ns: now_ns, now_ns, parks: false, shared: false }
    }

    fn waited(&self, ns: u64) {
        let now = self.0.load(Ordering::Relaxed);
        let next = match now / 2 {
            _ if ns <= u64::from(LOOKING_NS) => LOOKING_NS,
            half if half < LOOKING_NS_MIN => 0,
            half => half,
        };
        self.0.store(next, Ordering::Relaxed);
    }
}

impl Wait<'_> {
    /// When it was last looked at the clock.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Whether looking on is worth it, by the last look at the clock. False for a side that has parked once in this
    /// wait.
    pub(crate) fn is_looking(&self) -> bool {
        // In a model looking would go on for ever.
        !cfg!(feature = "model") && !self.parks && self.lasts_ns() < u64::from(self.looking_ns)
    }

    fn lasts_ns(&self) -> u64 {
        self.now_ns.saturating_sub(self.begun_ns)
    }

    /// Offers the processor to others.
    pub fn offer(&mut self) {
        let before_ns = now_ns();
        sched_yield();
        self.glance();
        self.shared = self.now_ns.saturating_sub(before_ns) > TAKEN_NS;
    }

    /// Whether another thread ran when the processor was offered last.
    pub fn shared(&self) -> bool {
        self.shared
    }

    fn glance(&mut self) {
        self.now_ns = now_ns();
    }

    /// It is going to sleep until it is woken.
    pub fn park(&mut self) {
        self.parks = true;
    }

    /// What was waited for is there.
    pub fn end(mut self) {
        if self.parks {
            self.glance();
        }
        self.patience.waited(self.lasts_ns());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(patience: &Patience) -> u32 {
        patience.begin().looking_ns
    }

    #[test]
    fn waits_that_are_long_are_not_looked_through() {
        let patience = Patience::default();
        assert_eq!(looks(&patience), LOOKING_NS);
        patience.waited(LOOKING_NS.into());
        assert_eq!(looks(&patience), LOOKING_NS);
        patience.waited(u64::from(LOOKING_NS) + 1);
        assert_eq!(looks(&patience), LOOKING_NS / 2, "one that is long is not all");
        for _ in 0..10 {
            patience.waited(u64::MAX);
        }
        assert!(!patience.begin().is_looking());
        patience.waited(150_000);
        assert!(!patience.begin().is_looking());
        patience.waited(20_000);
        assert_eq!(looks(&patience), LOOKING_NS, "one who was parked finds out that it is worth it again");
    }

    #[test]
    fn looking_ends_with_its_time() {
        let patience = Patience::default();
        let mut wait = patience.begin();
        assert!(wait.is_looking());
        wait.begun_ns -= u64::from(LOOKING_NS);
        assert!(!wait.is_looking());
        wait.begun_ns = now_ns();
        wait.glance();
        assert!(wait.is_looking());
    }
}
