//! Readers of a tree hold its blocks: two counters, of the readers of this tree and of the one before.

use crate::guard::lock;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, PoisonError};

/// Which of the two counters; flips with every new tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parity(bool);

impl Parity {
    pub(crate) fn other(self) -> Self {
        Self(!self.0)
    }
}

#[derive(Default)]
pub(crate) struct Pins {
    counts: [AtomicUsize; 2],
    awaited: AtomicBool,
    gate: Mutex<()>,
    changed: Condvar,
}

/// While it lives, no block of its tree is reused.
pub(crate) struct Pin<'a> {
    pins: &'a Pins,
    parity: Parity,
}

impl Pins {
    /// Called under the lock that `parity` is read under, so that it cannot flip in between.
    pub(crate) fn pin(&self, parity: Parity) -> Pin<'_> {
        self.counts[usize::from(parity.0)].fetch_add(1, SeqCst);
        Pin { pins: self, parity }
    }

    /// Waits until no reader of `parity` is left; new ones must not come any more.
    pub(crate) fn drain(&self, parity: Parity) {
        let count = &self.counts[usize::from(parity.0)];
        let mut guard = lock(&self.gate);
        self.awaited.store(true, SeqCst);
        while count.load(SeqCst) > 0 {
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.awaited.store(false, SeqCst);
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let before = self.pins.counts[usize::from(self.parity.0)].fetch_sub(1, SeqCst);
        if before == 1 && self.pins.awaited.load(SeqCst) {
            // Through the gate, so that who waits is either asleep or has not looked yet.
            drop(lock(&self.pins.gate));
            self.pins.changed.notify_all();
        }
    }
}
