//! Steps of write-back: how many are under way, and who sleeps until one has ended.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use nvmed_sys::sync::{Condvar, Mutex};

/// Counts of steps that threads have begun and ended.
#[derive(Debug, Default)]
pub(super) struct Steps {
    begun: AtomicU64,
    ended: AtomicU64,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    one_ended: Condvar,
}

/// A step that is under way until this is dropped.
pub(super) struct Step<'a>(&'a Steps);

impl Steps {
    pub fn begin(&self) -> Step<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Step(self)
    }

    /// Sleeps until a step has ended that is under way, and answers whether there was one. The caller has none itself.
    pub fn await_end(&self) -> bool {
        let seen = self.ended.load(Ordering::SeqCst);
        if self.begun.load(Ordering::SeqCst) == seen {
            return false;
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut held = self.lock.lock();
        while self.ended.load(Ordering::SeqCst) == seen {
            held = self.one_ended.wait(held);
        }
        drop(held);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        true
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
        if self.0.sleepers.load(Ordering::SeqCst) > 0 {
            // A sleeper looks, and begins to wait, under the lock: after it is ours, it waits or has seen the end.
            drop(self.0.lock.lock());
            self.0.one_ended.notify_all();
        }
    }
}
