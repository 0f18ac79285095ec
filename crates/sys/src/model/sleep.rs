//! Sleeping on a word, as the kernel lets threads do it (futex(2)), but for ever: a model whose threads all sleep has
//! failed.

use super::atomic::AtomicU32;
use core::cell::RefCell;
use core::sync::atomic::Ordering::Relaxed;
use loom::sync::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;

/// The sleepers of a word.
type Bed = Arc<(Mutex<()>, Condvar)>;

std::thread_local! {
    /// By the word's address.
    static BEDS: RefCell<HashMap<usize, Bed>> = RefCell::default();
}

/// The model begins anew.
pub(super) fn begin() {
    BEDS.with(|beds| beds.borrow_mut().clear());
}

fn bed(word: &AtomicU32) -> Bed {
    let address = core::ptr::from_ref(word).addr();
    BEDS.with(|beds| {
        let make = || Arc::new((Mutex::new(()), Condvar::new()));
        Arc::clone(beds.borrow_mut().entry(address).or_insert_with(make))
    })
}

/// Sleeps until [`wake`], if the word still is `seen`. The kernel looks at it under the lock that who wakes takes.
pub fn sleep(word: &AtomicU32, seen: u32) {
    let bed = bed(word);
    let Ok(guard) = bed.0.lock() else { return };
    if word.load(Relaxed) == seen {
        drop(bed.1.wait(guard));
    }
}

/// Wakes who sleeps there.
pub fn wake(word: &AtomicU32) {
    let bed = bed(word);
    let guard = bed.0.lock();
    bed.1.notify_all();
    drop(guard);
}
