//! The device's clock.

use std::sync::atomic::{AtomicU64, Ordering};

/// What one look costs in simulated time ([`crate::Clock::Virtual`]): about what a poll of a completion queue in
/// memory costs a processor. A look is a call of `events` or `now_ns`.
pub const VIRTUAL_LOOK_NS: u64 = 50;
/// No time: never.
pub(crate) const NEVER: u64 = u64::MAX;

/// The time of one controller.
#[derive(Debug)]
pub(crate) struct Time {
    /// Simulated time, where it is.
    simulated_ns: Option<AtomicU64>,
}

impl Time {
    pub fn new(simulated: bool) -> Self {
        Self { simulated_ns: simulated.then(|| AtomicU64::new(0)) }
    }

    /// Now; costs nothing.
    pub fn now_ns(&self) -> u64 {
        match &self.simulated_ns {
            Some(now) => now.load(Ordering::Acquire),
            None => nvmed_dma::monotonic_ns(),
        }
    }

    /// Lets the cost of a look pass.
    pub fn look(&self) {
        if let Some(now) = &self.simulated_ns {
            now.fetch_add(VIRTUAL_LOOK_NS, Ordering::AcqRel);
        }
    }

    /// Lets simulated time pass until `ns`; it never goes back.
    pub(crate) fn pass_until(&self, ns: u64) {
        if let Some(now) = &self.simulated_ns {
            now.fetch_max(ns, Ordering::AcqRel);
        }
    }
}
