//! How a thread waits for a device: look a few times, then let others run, then sleep.

use nvmed_engine::{Engine, Waited};

/// Looks without a pause. A controller on another core answers within a microsecond or two, about
/// what these take; longer would burn a core that the controller's own thread may need.
const LOOKS: u32 = 40;
/// Looks with the processor given away in between.
const YIELDS: u32 = 4;
/// The first sleep, and the longest: an event ends either early.
const SLEEP_US: u32 = 50;
const SLEEP_US_MAX: u32 = 10_000;
/// A request without an answer for so long is given up, and its queue with it. Linux gives an NVMe
/// command 30 s; a virtual device's flush may have to wait for a slow disk of the host, and 120 s is
/// what Linux takes for a hang there.
const TIMEOUT_US: u64 = 120_000_000;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look again.
    Look,
    /// Look whether the device is still alive, then again.
    Check,
    /// The time is over.
    Expire,
}

/// One wait. Time is the sum of the engine's waits, so that a test decides how fast it passes.
pub(crate) struct Pace {
    looks: u32,
    sleep_us: u32,
    slept_us: u64,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { looks: 0, sleep_us: SLEEP_US, slept_us: 0 }
    }

    /// Lets some time pass. `seen` is [`Engine::events`] from before the last look.
    pub(crate) fn pause(&mut self, engine: &dyn Engine, vector: u16, seen: u32) -> Next {
        self.looks += 1;
        if self.looks <= LOOKS {
            core::hint::spin_loop();
            return Next::Look;
        }
        if self.looks <= LOOKS + YIELDS {
            std::thread::yield_now();
            return Next::Look;
        }
        self.slept_us += match engine.wait(vector, seen, self.sleep_us) {
            Waited::Event => 1,
            Waited::Timeout => u64::from(self.sleep_us),
        };
        self.sleep_us = (self.sleep_us * 2).min(SLEEP_US_MAX);
        if self.slept_us >= TIMEOUT_US { Next::Expire } else { Next::Check }
    }
}
