//! Which call works on which bytes: shared for whole blocks, exclusive for parts of blocks.
//!
//! First come, first served: a call goes on when nothing that came before it is in its way, so nobody starves. A
//! call that has to wait helps asynchronous ones along: the range in its way may belong to a request that
//! only this thread would look after.

use core::ops::Range;
use nvmed_sys::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How long a waiting call sleeps before it looks after asynchronous requests again: about one access to a fast SSD.
const LOOK: Duration = Duration::from_micros(50);

/// What a call does with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Other calls with this mode may work on it too.
    Shared,
    /// No other call may work on it.
    Exclusive,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    start: u64,
    end: u64,
    mode: Mode,
}

impl Entry {
    fn hinders(&self, other: &Self) -> bool {
        self.start < other.end
            && other.start < self.end
            && (self.mode, other.mode) != (Mode::Shared, Mode::Shared)
    }
}

/// What the lock of [`Ranges`] guards.
#[derive(Debug, Default)]
struct RangeTable {
    /// Calls that have a range, and calls that wait for one, in the order in which they came.
    entries: Vec<Entry>,
    /// Entries of [`Mode::Exclusive`].
    exclusive: usize,
    next: u64,
    sleepers: usize,
}

impl RangeTable {
    fn is_free(&self, id: u64) -> bool {
        let at = self.entries.partition_point(|entry| entry.id < id);
        let mine = &self.entries[at];
        if mine.mode == Mode::Shared && self.exclusive == 0 {
            return true;
        }
        !self.entries[..at].iter().any(|before| before.hinders(mine))
    }
}

/// The ranges of one disk that calls work on.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    inner: Mutex<RangeTable>,
    freed: Condvar,
}

/// The number of a range that is held beyond one call; [`Ranges::unlock`] ends it.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct RangeId(u64);

/// A range held for the time of one call.
#[must_use]
pub(crate) struct RangeGuard<'a> {
    ranges: &'a Ranges,
    id: u64,
}

impl RangeGuard<'_> {
    /// Keeps the range beyond this call.
    pub(crate) fn keep(self) -> RangeId {
        let id = self.id;
        core::mem::forget(self);
        RangeId(id)
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.ranges.free(self.id);
    }
}

impl Ranges {
    fn guard(&self) -> MutexGuard<'_, RangeTable> {
        // The list is whole at every step.
        self.inner.lock()
    }

    /// Waits for the right to work on `bytes`; meanwhile `help` looks after asynchronous requests. The
    /// caller holds no range and nothing that `help` needs.
    pub(crate) fn lock(&self, bytes: Range<u64>, mode: Mode, help: impl Fn()) -> RangeGuard<'_> {
        let mut inner = self.guard();
        let id = inner.next;
        inner.next += 1;
        inner.exclusive += usize::from(mode == Mode::Exclusive);
        inner.entries.push(Entry { id, start: bytes.start, end: bytes.end, mode });
        let held = RangeGuard { ranges: self, id };
        while !inner.is_free(id) {
            drop(inner);
            help();
            inner = self.guard();
            if !inner.is_free(id) {
                inner.sleepers += 1;
                (inner, _) = self.freed.wait_timeout(inner, LOOK);
                inner.sleepers -= 1;
            }
        }
        held
    }

    /// Ends what [`RangeGuard::keep`] has kept.
    pub(crate) fn unlock(&self, id: RangeId) {
        self.free(id.0);
    }

    fn free(&self, id: u64) {
        let mut inner = self.guard();
        let at = inner.entries.partition_point(|entry| entry.id < id);
        let entry = inner.entries.remove(at);
        debug_assert_eq!(entry.id, id);
        inner.exclusive -= usize::from(entry.mode == Mode::Exclusive);
        if inner.sleepers > 0 {
            self.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[test]
    fn shared_ranges_overlap_and_lonely_ones_do_not() {
        let ranges = Ranges::default();
        let first = ranges.lock(0..10, Mode::Shared, || panic!("nobody is in the way"));
        let second = ranges.lock(5..15, Mode::Shared, || panic!("both are shared"));
        let beside = ranges.lock(20..30, Mode::Exclusive, || panic!("it lies beside"));
        drop((first, second, beside));
        let kept = ranges.lock(0..10, Mode::Exclusive, || ()).keep();
        let kept = std::cell::Cell::new(Some(kept));
        // The call that waits is the one that ends what it waits for.
        let held = ranges.lock(9..11, Mode::Shared, || {
            kept.take().into_iter().for_each(|id| ranges.unlock(id));
        });
        drop(held);
        assert!(ranges.guard().entries.is_empty() && ranges.guard().exclusive == 0);
    }

    /// A writer of part of a block waits for those before it, and those after it wait for it.
    #[test]
    fn nobody_passes_who_came_earlier() {
        let ranges = Ranges::default();
        let first = ranges.lock(0..4, Mode::Shared, || ());
        let inside = AtomicBool::new(false);
        thread::scope(|scope| {
            let alone = scope.spawn(|| {
                let held = ranges.lock(2..6, Mode::Exclusive, || ());
                inside.store(true, Ordering::SeqCst);
                drop(held);
            });
            while ranges.guard().entries.len() < 2 {
                thread::yield_now();
            }
            assert!(!inside.load(Ordering::SeqCst));
            let late = scope.spawn(|| {
                let held = ranges.lock(5..8, Mode::Shared, || ());
                assert!(inside.load(Ordering::SeqCst), "it passed the one that waits");
                drop(held);
            });
            while ranges.guard().entries.len() < 3 {
                thread::yield_now();
            }
            drop(first);
            alone.join().unwrap();
            late.join().unwrap();
        });
    }
}
