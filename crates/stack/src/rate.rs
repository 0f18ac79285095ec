//! A limit of bytes a second: a token bucket. A caller that takes more than is in it sleeps until it is paid.

use nvmed_sys::sync::Mutex;
use std::time::{Duration, Instant};

/// What may be spent at once after a pause: a tenth of a second's worth.
const BURST: f64 = 0.1;

/// A rate that spending keeps to.
#[derive(Debug)]
pub(crate) struct Rate {
    bytes_per_s: f64,
    state: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Rate {
    pub(crate) fn new(bytes_per_s: u64) -> Self {
        let bytes_per_s = bytes_per_s as f64;
        let state = Mutex::new(Bucket { tokens: bytes_per_s * BURST, filled: Instant::now() });
        Self { bytes_per_s, state }
    }

    /// Spends, and sleeps until the debt is paid. A caller that comes meanwhile waits for its own bytes behind this
    /// one's.
    pub(crate) fn spend(&self, bytes: u64) {
        let debt = self.take(bytes, Instant::now());
        if !debt.is_zero() {
            std::thread::sleep(debt);
        }
    }

    fn take(&self, bytes: u64, now: Instant) -> Duration {
        let mut bucket = self.state.lock();
        let earned = now.saturating_duration_since(bucket.filled).as_secs_f64() * self.bytes_per_s;
        bucket.tokens = (bucket.tokens + earned).min(self.bytes_per_s * BURST) - bytes as f64;
        bucket.filled = now;
        Duration::from_secs_f64((-bucket.tokens / self.bytes_per_s).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_passes_than_the_rate_and_a_burst() {
        let rate = Rate::new(1000);
        let start = Instant::now();
        let mut now = start;
        let mut passed = 0;
        for _ in 0..100 {
            now += rate.take(37, now);
            passed += 37;
            let allowed = now.duration_since(start).as_secs_f64() * 1000.0 + 101.0;
            assert!(f64::from(passed) <= allowed, "{passed} bytes after {:?}", now - start);
        }
        assert!(now - start >= Duration::from_secs_f64(3.5), "{:?}", now - start);
        // A long pause earns one burst and no more.
        now += Duration::from_secs(60);
        assert_eq!(rate.take(100, now), Duration::ZERO);
        assert!(rate.take(100, now) >= Duration::from_millis(99));
    }
}
