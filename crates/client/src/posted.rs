//! Writes that make no call: they are posted in the process's log (docs/spec/posted-writes.md).

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use nvmed_fs::posted::{Grant, Poster, Reach, SLOTS};
use nvmed_sys::{ForkGuard, ForkLock};
use nvmed_wire::PAGES_GRANTED;
use std::sync::OnceLock;

/// Writes that could have been posted before a process asks for a log: one that writes little needs none.
const WRITES_BEFORE: u32 = 4;
/// Writes between two times that the server is asked for a grant, at most.
const WRITES_BETWEEN: u32 = 64;
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

/// The grant of a description, if it has one.
#[derive(Debug)]
pub(crate) struct Granted {
    /// Packed; 0 is none.
    grant: AtomicU64,
    /// How large the file was then.
    bytes: AtomicU64,
    /// Whether anything was posted, or could be by a later grant: the status that the open answered is not the file's.
    used: AtomicBool,
    /// Writes that could have been posted, and at how many of them the server is asked for a grant.
    writes: AtomicU32,
    ask_at: AtomicU32,
}

/// A grant as one word, which is not 0.
fn packed(Grant { slot, number, reach }: Grant) -> u64 {
    u64::from(number) << 32 | u64::from(slot) << 8 | reach as u64
}

impl Default for Granted {
    fn default() -> Self {
        Self {
            grant: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            used: AtomicBool::new(false),
            writes: AtomicU32::new(0),
            ask_at: AtomicU32::new(WRITES_BEFORE),
        }
    }
}

impl Granted {
    /// Of a file that was opened with so many bytes.
    pub fn new(grant: Option<Grant>, bytes: u64) -> Self {
        let granted = Self::default();
        if let Some(grant) = grant {
            granted.set(grant, bytes);
        }
        granted
    }

    fn set(&self, grant: Grant, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.grant.store(packed(grant), Ordering::Release);
    }

    /// The grant as it was when it was last heard of.
    #[inline]
    pub fn get(&self) -> Option<Grant> {
        let packed = self.grant.load(Ordering::Acquire);
        let reach = Reach::ALL[(packed & 0xff) as usize % Reach::ALL.len()];
        let (number, slot) = ((packed >> 32) as u32, (packed as u32) >> 8);
        (packed != 0).then_some(Grant { slot, number, reach })
    }

    /// This grant is over; one that another thread has got since is not.
    fn forget(&self, over: Grant) {
        let _ = self.grant.compare_exchange(packed(over), 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The server has answered a renewal. Where it grants nothing, what another thread was granted stays.
    pub(crate) fn renewed(&self, grant: Option<Grant>, bytes: u64) {
        self.used.store(true, Ordering::Relaxed);
        if let Some(grant) = grant {
            self.set(grant, bytes);
        }
    }

    /// Whether anything may have been posted.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether nothing was posted.
    pub fn is_fresh(&self) -> bool {
        !self.used.load(Ordering::Relaxed) && self.grant.load(Ordering::Relaxed) != 0
    }

    /// The description was read: what is counted are writes in a row.
    #[inline]
    pub(crate) fn was_read(&self) {
        if self.writes.load(Ordering::Relaxed) != 0 {
            self.writes.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a write that could have been posted; whether the server is asked for a grant now. Each time takes twice
    /// as many, so that a file that others open again and again is not granted each time.
    pub(crate) fn wants_grant(&self) -> bool {
        let ask_at = self.ask_at.load(Ordering::Relaxed);
        if self.writes.fetch_add(1, Ordering::Relaxed) + 1 < ask_at {
            return false;
        }
        self.ask_at.store((ask_at * 2).min(WRITES_BETWEEN), Ordering::Relaxed);
        self.writes.store(0, Ordering::Relaxed);
        true
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

    fn log(&self) -> Option<&Poster> {
        self.log.get()?.as_ref()
    }

    /// Whether there is a log.
    pub(crate) fn has_log(&self) -> bool {
        self.log().is_some()
    }

    /// Whether the server has made all that this process has posted.
    pub fn is_taken(&self) -> bool {
        self.log().is_none_or(Poster::is_taken)
    }

    /// Calls `post` with the log, the grant, and how far the file has come; none without a grant that stands, or when
    /// another thread is at it.
    pub fn post<T>(
        &self,
        granted: &Granted,
        post: impl FnOnce(&Poster, Grant, &mut Progress) -> Option<T>,
    ) -> Option<T> {
        let grant = granted.get()?;
        let log = self.log()?;
        let mut files = self.lock()?;
        // What the open answered tells of the file no more, whatever comes of this.
        granted.used.store(true, Ordering::Relaxed);
        let progress = &mut files[grant.slot as usize];
        if progress.number != grant.number {
            // One that is over says nothing of the file whose grant has its slot.
            if !log.stands(grant) {
                granted.forget(grant);
                return None;
            }
            let end = granted.bytes.load(Ordering::Relaxed);
            *progress = Progress { number: grant.number, end, last: 0, pages: PAGES_GRANTED };
        }
        let posted = post(log, grant, progress);
        if posted.is_none() && !log.stands(grant) {
            granted.forget(grant);
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
