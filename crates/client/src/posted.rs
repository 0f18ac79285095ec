//! Writes that make no call: they are posted in the process's log (docs/spec/posted-writes.md).

use crate::file::File;
use crate::link::Link;
use crate::node::Holding;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use nvmed_fs::posted::{Change, Grant, LOG_BYTES, Posted, Poster, SLOTS, WRITE_BYTES_MAX};
use nvmed_fs::{FileType, OpenFlags, Stat};
use nvmed_sys::{ForkGuard, ForkLock, Mapping, Pages};
use nvmed_wire::{Answer, Call, Control, PAGES_GRANTED};
use rustix::fd::AsFd;
use std::sync::OnceLock;

/// Writes that could have been posted before a process asks for a log: one that writes little needs none.
const WRITES_BEFORE: u32 = 4;
/// How often a thread looks whether another one has posted.
const LOOKS: u32 = 200;
const PAGE: u64 = 4096;
/// No offset of a file is beyond this one: `off_t`.
const OFFSET_MAX: u64 = i64::MAX as u64;

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
struct Progress {
    /// The grant's.
    number: u32,
    /// The file's size.
    end: u64,
    /// The page in which the last write ended, and one more; 0 before the first.
    last: u64,
    /// Pages that are promised.
    pages: u64,
}

impl Progress {
    /// How many pages a write may be the first to touch.
    fn new_pages(&self, offset: u64, end: u64) -> u64 {
        let pages = offset / PAGE..end.div_ceil(PAGE);
        pages.end - pages.start - u64::from(pages.start + 1 == self.last)
    }

    fn wrote(&mut self, offset: u64, end: u64) {
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
}

impl Posting {
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

impl Link {
    /// Whether the server has made all that this process has posted.
    pub(crate) fn is_taken(&self) -> bool {
        self.posting.log.get().and_then(Option::as_ref).is_none_or(Poster::is_taken)
    }

    /// Counts a write that could have been posted; asks for a log at some.
    #[cold]
    fn ask_for_log(&self) {
        let posting = &self.posting;
        if posting.log.get().is_some() || posting.writes.fetch_add(1, Ordering::Relaxed) + 1 < WRITES_BEFORE {
            return;
        }
        let Ok(mut talk) = self.socket() else { return };
        if posting.log.get().is_some() {
            // Another thread has asked meanwhile.
            return;
        }
        let log = talk.ask(&Control::Log, None).ok().and_then(|(_, fd)| {
            let log = Mapping::shared(fd?.as_fd(), 0, LOG_BYTES, Pages::Base).ok()?;
            log.forbid_fork().ok()?;
            Some(Poster::new(log))
        });
        // Set by who holds the socket; nobody else sets.
        let _ = posting.log.set(log);
    }
}

impl File {
    /// Posts a write at an offset, without one at the end, if it may be posted: the offset after it. None takes a call.
    #[inline]
    pub(crate) fn post_write(&self, from: &[u8], offset: Option<u64>) -> Option<u64> {
        if self.holding.granted.is_none() {
            self.could_be_posted();
            return None;
        }
        if from.is_empty() || from.len() > WRITE_BYTES_MAX {
            return None;
        }
        self.holding.with_grant(|log, grant, progress| {
            let offset = if self.flags().has(OpenFlags::APPEND) { progress.end } else { offset? };
            let end = offset.checked_add(from.len() as u64).filter(|end| *end <= OFFSET_MAX)?;
            let write = Change::Write { offset, bytes: from };
            for _ in 0..2 {
                let posted = match progress.new_pages(offset, end) {
                    new if new > progress.pages => Posted::Full,
                    _ => log.post(grant, write),
                };
                match posted {
                    Posted::Done => {
                        progress.wrote(offset, end);
                        return Some(end);
                    }
                    Posted::Full if self.holding.renew() => progress.pages = PAGES_GRANTED,
                    _ => break,
                }
            }
            None
        })
    }

    /// A description without a grant is written: it might have one, if the process had a log.
    fn could_be_posted(&self) {
        let flags = self.flags();
        let is_plain = flags.writes() && !flags.reads() && self.holding.kind == FileType::File;
        if is_plain && self.core().link().posting.log.get().is_none() {
            self.core().link().ask_for_log();
        }
    }
}

impl Holding {
    /// Calls `post` with the log, the grant, and how far the file has come; none without a grant that stands, or when
    /// another thread is at it.
    fn with_grant<T>(&self, post: impl FnOnce(&Poster, Grant, &mut Progress) -> Option<T>) -> Option<T> {
        let granted = self.granted.as_ref()?;
        let link = self.core.link();
        if granted.over.load(Ordering::Relaxed) || !link.is_open() || self.core.board.is_dead() {
            return None;
        }
        let log = link.posting.log.get()?.as_ref()?;
        let mut files = link.posting.lock()?;
        let progress = &mut files[granted.grant.slot as usize];
        if progress.number != granted.grant.number {
            let (number, end) = (granted.grant.number, self.known.0.size);
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

    /// Posts a change of its attributes, if it may be posted.
    pub(crate) fn post_change(&self, change: Change<'_>) -> bool {
        let posted = self.with_grant(|log, grant, _| {
            let posted = || grant.covers(&change) && log.post(grant, change) == Posted::Done;
            posted().then_some(())
        });
        posted.is_some()
    }

    #[cold]
    fn renew(&self) -> bool {
        let Ok(handle) = self.handle() else { return false };
        let answered = self.core.call(&Call::Renew { handle });
        answered.is_ok_and(|reply| reply.answer == Answer::Renewed(true))
    }

    /// The status that the open answered, if the grant is the only change since, and nothing was posted.
    pub(crate) fn status_as_granted(&self) -> Option<Stat> {
        let granted = self.granted.as_ref()?;
        if granted.used.load(Ordering::Relaxed) {
            return None;
        }
        let (stat, version) = self.known;
        if self.core.board.has_version_but_for_one(version?) { self.core.answered(stat) } else { None }
    }
}
