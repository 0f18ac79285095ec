//! What one thread of a load counts while another looks.

use crate::histogram::{Counters, Histogram, bump};
use crate::machine::now_ns;
use nvmed_io::Device;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is counted: by one thread, into its own memory, without locked instructions.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Recorder {
    reads: AtomicU64,
    writes: AtomicU64,
    latency: Counters,
    stamps: bool,
    time: Time,
    stop: AtomicBool,
}

/// Whose time a measurement takes.
#[derive(Clone, Debug, Default)]
pub enum Time {
    /// The host's monotonic clock.
    #[default]
    Host,
    /// What the device says that it is: with a virtual clock, simulated time.
    Device(Arc<Device>),
}

impl Time {
    /// Now, in nanoseconds. Of a device: only in the thread that asks it for other things.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Host => now_ns(),
            Self::Device(device) => device.engine().now_ns(),
        }
    }
}

impl Recorder {
    /// Counters of nothing; with `stamps` every request's latency is taken, for two looks at the clock each.
    #[must_use]
    pub fn new(stamps: bool, time: Time) -> Self {
        Self { stamps, time, ..Self::default() }
    }

    /// Now, where latencies are taken.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        if self.stamps { self.time.now_ns() } else { 0 }
    }

    /// A request that was submitted at `begin` is done; answers when.
    #[inline]
    pub(crate) fn done(&self, read: bool, begin: u64) -> u64 {
        bump(if read { &self.reads } else { &self.writes }, 1);
        let now = self.stamp();
        if self.stamps {
            self.latency.note(now.saturating_sub(begin));
        }
        now
    }

    /// Asks the thread to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Reads and writes done so far.
    #[must_use]
    pub fn done_so_far(&self) -> (u64, u64) {
        (self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed))
    }

    /// Adds the latencies so far to `into`.
    pub fn latency(&self, into: &mut Histogram) {
        self.latency.load(into);
    }
}
