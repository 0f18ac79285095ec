//! Writes that make no call: they are posted in the process's log (docs/spec/posted-writes.md).

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use nvmed_fs::posted::{Grant, Poster, SLOTS};
use nvmed_sys::{ForkGuard, ForkLock};
use nvmed_wire::PAGES_GRANTED;
use std::sync::OnceLock;

/// Writes that could have been posted before a process asks for a log: one that writes little needs none.
const WRITES_BEFORE: u32 = 4;
/// How often a thread looks whether another one has posted.
const LOOKS: u32 = 200;
const PAGE: u64 = 4096;

/// A process's log, and how far the files of its grants have come.
#[derive(Debug, Default)]
pub(crate) struct Posting {
    /// None: the server offers none.
    log: OnceLock<Option<Poster>>,
    writes: AtomicU32,
    /// Taken by the thread that posts.
    files: ForkLock<[Progress; SLOTS]>,
}

/// A file that is written by posts, as its grant has come so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// The grant's.
    number: u32,
    /// The file's size.
    pub end: u64,
    /// The page in which the last write ended, and one more; 0 before the first.
    last: u64,
    /// Pages that are promised.
    pub pages: u64,
}

impl Progress {
    /// How many pages a write may be the first to touch.
    pub(crate) fn new_pages(&self, offset: u64, end: u64) -> u64 {
        let pages = offset / PAGE..end.div_ceil(PAGE);
        pages.end - pages.start - u64::from(pages.start + 1 == self.last)
    }

    pub fn wrote(&mut self, offset: u64, end: u64) {
        self.pages -= self.new_pages(offset, end);
        self.last = end.div_ceil(PAGE);
        self.end = self.end.max(end);
    }
}

/// The grant of a description, until it is over.
#[derive(Debug)]
pub(crate) struct Granted {
    grant: Grant,
    over: AtomicBool,
    /// Whether a write was posted: the status that the open answered is not the file's any more.
    used: AtomicBool,
}

impl Granted {
    pub fn new(grant: Grant) -> Self {
        Self { grant, over: AtomicBool::new(false), used: AtomicBool::new(false) }
    }

    /// Whether anything was posted.
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }
}

impl Posting {
    /// Counts a write that could have been posted; whether the process asks for a log now.
    pub(crate) fn wants_log(&self) -> bool {
        self.log.get().is_none() && self.writes.fetch_add(1, Ordering::Relaxed) + 1 >= WRITES_BEFORE
    }

    /// The log that the server has answered; by one thread at a time, and only the first counts.
    pub fn put(&self, log: Option<Poster>) {
        let _ = self.log.set(log);
    }

    /// Whether the server was asked for a log.
    pub(crate) fn has_asked(&self) -> bool {
        self.log.get().is_some()
    }

    /// Whether the server has made all that this process has posted.
    pub fn is_taken(&self) -> bool {
        self.log.get().and_then(Option::as_ref).is_none_or(Poster::is_taken)
    }

    /// Calls `post` with the log, the grant, and how far the file has come, which had `size` bytes when it was granted;
    /// none when the grant is over, or another thread is at it.
    pub fn post<T>(
        &self,
        granted: &Granted,
        size: u64,
        post: impl FnOnce(&Poster, Grant, &mut Progress) -> Option<T>,
    ) -> Option<T> {
        if granted.over.load(Ordering::Relaxed) {
            return None;
        }
        let log = self.log.get()?.as_ref()?;
        let mut files = self.lock()?;
        let progress = &mut files[granted.grant.slot as usize];
        if progress.number != granted.grant.number {
            let (number, end) = (granted.grant.number, size);
            *progress = Progress { number, end, last: 0, pages: PAGES_GRANTED };
        }
        // What the open answered tells of the file no more, whatever comes of this.
        granted.used.store(true, Ordering::Relaxed);
        let posted = post(log, granted.grant, progress);
        if posted.is_none() && !log.stands(granted.grant) {
            granted.over.store(true, Ordering::Relaxed);
        }
        posted
    }

    fn lock(&self) -> Option<ForkGuard<'_, [Progress; SLOTS]>> {
        // A handler of a signal may have interrupted the thread that has it.
        (0..LOOKS).find_map(|_| {
            let taken = self.files.try_lock();
            if taken.is_none() {
                core::hint::spin_loop();
            }
            taken
        })
    }
}
