//! Windows that readers are about to come to, for a thread that fills them meanwhile.

use crate::inode::Inode;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_sys::sync::{Arc, Mutex, OnceLock};
use nvmed_units::Page;
use std::collections::VecDeque;
use std::thread::Thread;

/// Windows that wait at most; a reader whose window finds no place fills it himself.
const WAITING_MAX: usize = 16;

/// The windows that wait to be filled.
#[derive(Default)]
pub(super) struct Ahead {
    waiting: Mutex<VecDeque<(Arc<Inode>, Range<Page>)>>,
    /// Who fills them, from the first one on that is wanted.
    filler: OnceLock<Thread>,
    wanted: AtomicBool,
}

impl Ahead {
    /// A reader is about to come to these pages. Where nobody fills them yet, `starter` is told that somebody should.
    pub(crate) fn want(&self, inode: &Arc<Inode>, pages: Range<Page>, starter: Option<&Thread>) {
        let Some(filler) = self.filler.get() else {
            if let Some(starter) = starter.filter(|_| !self.wanted.swap(true, Ordering::Relaxed)) {
                starter.unpark();
            }
            return;
        };
        let mut waiting = self.waiting.lock();
        if waiting.len() < WAITING_MAX {
            waiting.push_back((Arc::clone(inode), pages));
        }
        drop(waiting);
        filler.unpark();
    }

    /// Whether windows are wanted that nobody fills.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) && self.filler.get().is_none()
    }

    /// `filler` fills what is wanted from here on.
    pub(crate) fn filled_by(&self, filler: Thread) {
        // One is enough; the first one stays.
        let _ = self.filler.set(filler);
    }

    /// The window that has waited longest.
    pub(crate) fn next(&self) -> Option<(Arc<Inode>, Range<Page>)> {
        self.waiting.lock().pop_front()
    }
}
