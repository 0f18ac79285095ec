//! Memory of frames that is made present before it is used, by a thread that nobody waits for.

use core::sync::atomic::{AtomicUsize, Ordering};
use nvmed_sys::Mapping;
use std::sync::OnceLock;
use std::thread::Thread;

/// No huge page: the first one is never made present ahead.
const NONE: usize = 0;

/// The huge page behind the one that is being used.
#[derive(Default)]
pub(crate) struct Ahead {
    thread: OnceLock<Thread>,
    /// Where the one begins that the thread is to take up.
    due: AtomicUsize,
    /// Where the last one begins that it took up.
    taken: AtomicUsize,
}

impl Ahead {
    /// From now on this thread is unparked when there is one to take up.
    pub(crate) fn by(&self, thread: Thread) {
        // A second thread would find nothing.
        let _ = self.thread.set(thread);
    }

    /// The first frame of the huge page at `begun` was taken; behind it comes `next`.
    pub(crate) fn begin(&self, memory: &Mapping, begun: usize, next: Option<usize>) {
        if self.taken.load(Ordering::Relaxed) != begun {
            memory.gather(begun);
        }
        if let (Some(thread), Some(next)) = (self.thread.get(), next) {
            self.due.store(next, Ordering::Relaxed);
            thread.unpark();
        }
    }

    /// By the thread: makes present what is due, if anything is.
    pub(crate) fn take_up(&self, memory: &Mapping) {
        let due = self.due.swap(NONE, Ordering::Relaxed);
        if due != NONE {
            self.taken.store(due, Ordering::Relaxed);
            memory.gather(due);
        }
    }
}
