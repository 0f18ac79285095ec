//! How a replay lets time pass.

use crate::feed::Feed;
use crate::replay::{Awaited, Replay};
use nvmed_engine::Waited;

/// Completions are polled for so long after the last submission or completion: a sleep ends 50 us late.
const POLL_NS: u64 = 200_000;
/// The longest sleep: how late a wish to stop is seen.
const SLEEP_NS_MAX: u64 = 50_000_000;
/// A sleep while the next request is being read.
const FEED_NS: u64 = 20_000;
/// How often it is looked whether the device is still there.
const CHECK_NS: u64 = 100_000_000;
/// A device that answers nothing for so long is given up: as handles do by default.
const SILENCE_NS: u64 = 30_000_000_000;

impl Replay {
    /// Lets time pass: polls when something is near, and sleeps otherwise.
    pub(crate) fn wait(&mut self, seen: u32, awaited: Awaited, feed: &mut impl Feed) {
        let now = self.engine.now_ns();
        self.watch(now);
        let left = match awaited {
            Awaited::Time(due) => (due as i64).saturating_sub(self.clock()).max(0) as u64,
            Awaited::Feed => FEED_NS + self.stretch.ns(),
            _ => u64::MAX,
        };
        let is_near = left <= self.stretch.ns();
        if is_near || self.under_way > 0 && now.saturating_sub(self.active_ns) < POLL_NS {
            return core::hint::spin_loop();
        }
        feed.pause();
        let sleep = (left - self.stretch.ns()).clamp(1000, SLEEP_NS_MAX);
        let waited = self.engine.wait(self.vector, seen, (sleep / 1000) as u32);
        if waited == Waited::Timeout {
            self.stretch.slept(sleep / 1000 * 1000, self.engine.now_ns().saturating_sub(now));
        }
    }

    /// Looks now and then whether the device is there. One that is gone, or silent, fails what is under way.
    fn watch(&mut self, now: u64) {
        if now.saturating_sub(self.checked_ns) < CHECK_NS {
            return;
        }
        self.checked_ns = now;
        self.pair.check();
        if self.under_way > 0 && now.saturating_sub(self.active_ns) > SILENCE_NS {
            self.pair.expire();
        }
    }
}
