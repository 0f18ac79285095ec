//! Sleeping until a page is filled.

use crate::entry::{Entry, FILLING, WAITERS};
use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_sys::sync::{Condvar, Mutex};
use nvmed_units::Page;

/// Buckets in which threads wait; pages share them by hash, and a wrong waking costs one look.
const BUCKETS: usize = 16;

#[derive(Default)]
struct Bucket {
    lock: Mutex<()>,
    woken: Condvar,
}

/// Where those sleep who found a page claimed by somebody else.
#[derive(Default)]
pub(crate) struct Waiting {
    buckets: [Bucket; BUCKETS],
}

impl Waiting {
    fn bucket(&self, page: Page) -> &Bucket {
        &self.buckets[page.0 as usize % BUCKETS]
    }

    /// Sleeps while the page is being filled.
    pub(crate) fn sleep(&self, page: Page, slot: &AtomicU64) {
        let bucket = self.bucket(page);
        let mut held = bucket.lock.lock();
        loop {
            let seen = Entry::load(slot);
            if !seen.has(FILLING) {
                return;
            }
            let marked = seen.with(WAITERS).0;
            if slot.compare_exchange(seen.0, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                held = bucket.woken.wait(held);
            }
        }
    }

    /// Ends a claim by storing what the page is now, and wakes who slept.
    pub(crate) fn end_claim(&self, page: Page, slot: &AtomicU64, entry: Entry) {
        // Barrier W2, as in `unlock`. Only flag WAITERS can have changed meanwhile.
        let before = Entry(slot.swap(entry.0, Ordering::AcqRel));
        debug_assert!(before.has(FILLING));
        if before.has(WAITERS) {
            let bucket = self.bucket(page);
            // A sleeper marks and starts to wait under the lock: after it is ours, it waits.
            drop(bucket.lock.lock());
            bucket.woken.notify_all();
        }
    }
}
