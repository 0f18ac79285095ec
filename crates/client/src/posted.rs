//! Writes that make no call: they are posted in the process's log (docs/spec/posted-writes.md).

use crate::core::Core;
use crate::file::File;
use crate::link::Link;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use nvmed_fs::posted::{Grant, LOG_BYTES, Posted, Poster, SLOTS, WRITE_BYTES_MAX};
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
        let Some(granted) = &self.granted else {
            self.could_be_posted();
            return None;
        };
        if granted.over.load(Ordering::Relaxed) || from.is_empty() || from.len() > WRITE_BYTES_MAX {
            return None;
        }
        let core = self.core();
        let link = core.link();
        if !link.is_open() || core.board.is_dead() {
            return None;
        }
        let log = link.posting.log.get()?.as_ref()?;
        let mut files = link.posting.lock()?;
        let progress = &mut files[granted.grant.slot as usize];
        if progress.number != granted.grant.number {
            let (number, end) = (granted.grant.number, self.bytes_at_open());
            *progress = Progress { number, end, last: 0, pages: PAGES_GRANTED };
        }
        let offset = if self.flags().has(OpenFlags::APPEND) { progress.end } else { offset? };
        let end = offset.checked_add(from.len() as u64).filter(|end| *end <= OFFSET_MAX)?;
        // It tells of the file no more, whatever comes of this.
        granted.used.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            let posted = match progress.new_pages(offset, end) {
                new if new > progress.pages => Posted::Full,
                _ => log.post(granted.grant, offset, from),
            };
            match posted {
                Posted::Done => {
                    progress.wrote(offset, end);
                    return Some(end);
                }
                Posted::Full if self.renew() => progress.pages = PAGES_GRANTED,
                Posted::Fault => return None,
                Posted::Full | Posted::Over => break,
            }
        }
        granted.over.store(true, Ordering::Relaxed);
        None
    }

    #[cold]
    fn renew(&self) -> bool {
        let Ok(handle) = self.handle() else { return false };
        let answered = self.core().call(&Call::Renew { handle });
        answered.is_ok_and(|reply| reply.answer == Answer::Renewed(true))
    }

    /// A description without a grant is written: it might have one, if the process had a log.
    fn could_be_posted(&self) {
        let flags = self.flags();
        let is_plain = flags.writes() && !flags.reads() && self.holding.kind == FileType::File;
        if is_plain && self.core().link().posting.log.get().is_none() {
            self.core().link().ask_for_log();
        }
    }

    /// The status that the open answered, if the grant is the only change since, and nothing was posted.
    pub(crate) fn status_as_granted(&self) -> Option<Stat> {
        let granted = self.granted.as_ref()?;
        if granted.used.load(Ordering::Relaxed) {
            return None;
        }
        let (stat, version) = self.holding.known;
        let core: &Core = self.core();
        core.board.has_version_but_for_one(version?).then_some(stat).and_then(|stat| core.answered(stat))
    }
}
