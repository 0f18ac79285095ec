//! A client's side of a window. Layout and locking are [`crate::Window`]'s.

use crate::direct::MediumView;
use crate::memory;
use crate::region;
use crate::window::{
    ABSENT, DIRECT, KIND, OPEN, PAGE, PAGES, SIZE, WINDOW_PAGES_MAX, WORDS, bytes, pages_start, table_bytes,
    words,
};
use nvmed_sys::atomic::{Ordering, fence};
use nvmed_sys::{Mapping, Pages};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::sync::Arc;

/// How often a reader tries again when a page changes under it, before it makes a call.
pub(crate) const TRIES: u32 = 4;
/// Cache lines that a reader asks for at once; beyond, the processor's own prefetcher follows.
const LINES_AHEAD: usize = 32;

/// What a read through a window came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// So many bytes; fewer than asked for at the end of the file only.
    Bytes(usize),
    /// Not all of it is there: make the call.
    Missing,
    /// The window is closed for ever: make the call, and ask for another.
    Closed,
}

/// A client's side.
#[derive(Debug)]
pub struct WindowView {
    pub(crate) memory: Mapping,
    pub(crate) pages: u64,
    /// Where a direct window's entries begin.
    pub(crate) entries: usize,
    bytes: Bytes,
}

/// Where the bytes of the pages are.
#[derive(Debug)]
enum Bytes {
    /// Behind the words, from there on.
    Copies(usize),
    /// On the medium, as soon as the process has that.
    Medium(Option<Arc<MediumView>>),
}

impl WindowView {
    /// The window behind a descriptor that came from the server.
    ///
    /// # Errors
    /// `EINVAL` for what is no window; what `mmap` answers.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        memory::check_bytes(fd, WORDS)?;
        let head = Mapping::read_only(fd, 0, WORDS, Pages::Base)?;
        let pages = head.u64(PAGES).load(Ordering::Acquire);
        if pages == 0 || pages > WINDOW_PAGES_MAX {
            return Err(Errno::INVAL);
        }
        let is_direct = head.u32(KIND).load(Ordering::Relaxed) == DIRECT;
        let (len, bytes) = if is_direct {
            (table_bytes(pages), Bytes::Medium(None))
        } else {
            (bytes(pages), Bytes::Copies(pages_start(pages)))
        };
        memory::check_bytes(fd, len)?;
        let memory = Mapping::read_only(fd, 0, len, Pages::Base)?;
        Ok(Self { memory, pages, entries: region::entries(pages), bytes })
    }

    /// Whether its pages lie on the medium, which it is to be given ([`WindowView::over`]).
    #[must_use]
    pub fn is_direct(&self) -> bool {
        matches!(self.bytes, Bytes::Medium(_))
    }

    /// The same, of a direct window: its pages lie there.
    #[must_use]
    pub fn over(self, medium: Arc<MediumView>) -> Self {
        if self.is_direct() { Self { bytes: Bytes::Medium(Some(medium)), ..self } } else { self }
    }

    /// Whether the window still is to be had.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let is_left = matches!(&self.bytes, Bytes::Medium(Some(medium)) if medium.is_left());
        self.memory.u32(OPEN).load(Ordering::Acquire) != 0 && !is_left
    }

    /// The file's size, while the window is open.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        let size = self.size_seen();
        self.is_open().then_some(size)
    }

    #[inline]
    pub(crate) fn size_seen(&self) -> u64 {
        self.memory.u64(SIZE).load(Ordering::Acquire)
    }

    /// Whether the window has room for the page of a byte.
    #[must_use]
    pub fn covers(&self, offset: u64) -> bool {
        offset / (PAGE as u64) < self.pages
    }

    /// Reads what is at `offset`, if all of it is there. The bytes of a page are those of one moment, and no older than
    /// the call.
    #[inline]
    #[must_use]
    pub fn read(&self, into: &mut [u8], offset: u64) -> Seen {
        let start = match &self.bytes {
            Bytes::Copies(start) => *start,
            Bytes::Medium(Some(medium)) => return self.read_in_place(medium, into, offset),
            Bytes::Medium(None) => return Seen::Missing,
        };
        let inside = (offset % PAGE as u64) as usize;
        if inside + into.len() <= PAGE {
            return self.read_one(start, into, offset, inside);
        }
        self.read_many(start, into, offset)
    }

    /// Whether what was copied is the file's: it had this size at the end too, and the window was open.
    #[inline]
    pub(crate) fn still(&self, size: u64) -> bool {
        self.memory.u64(SIZE).load(Ordering::Relaxed) == size
            && self.memory.u32(OPEN).load(Ordering::Relaxed) != 0
    }

    /// What ends a read before it begins, or how many bytes of `len` the file has.
    #[inline]
    pub(crate) fn clamp(&self, len: usize, offset: u64, size: u64) -> Result<usize, Seen> {
        if self.memory.u32(OPEN).load(Ordering::Relaxed) == 0 {
            return Err(Seen::Closed);
        }
        let len = len.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        if len == 0 {
            return Err(Seen::Bytes(0));
        }
        let last = (offset + len as u64 - 1) / PAGE as u64;
        if last < self.pages { Ok(len) } else { Err(Seen::Missing) }
    }

    #[inline]
    fn read_one(&self, start: usize, into: &mut [u8], offset: u64, inside: usize) -> Seen {
        let page = offset / PAGE as u64;
        if page < self.pages {
            // Word and bytes arrive from memory at the same time.
            let begin = start + page as usize * PAGE + inside;
            for line in 0..into.len().div_ceil(64).min(LINES_AHEAD) {
                self.memory.prefetch_read(begin + line * 64);
            }
        }
        for _ in 0..TRIES {
            let size = self.size_seen();
            let len = match self.clamp(into.len(), offset, size) {
                Ok(len) => len,
                Err(seen) => return seen,
            };
            match self.copy(start, (page, inside), &mut into[..len]) {
                Copied::Whole if self.still(size) => return Seen::Bytes(len),
                Copied::Missing => return Seen::Missing,
                _ => core::hint::spin_loop(),
            }
        }
        Seen::Missing
    }

    fn read_many(&self, start: usize, into: &mut [u8], offset: u64) -> Seen {
        let size = self.size_seen();
        let len = match self.clamp(into.len(), offset, size) {
            Ok(len) => len,
            Err(seen) => return seen,
        };
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (page, inside) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let part = (len - done).min(PAGE - inside);
            let copied = (0..TRIES).find_map(|_| {
                let copied = self.copy(start, (page, inside), &mut into[done..done + part]);
                (copied != Copied::Torn).then_some(copied)
            });
            if copied != Some(Copied::Whole) {
                return Seen::Missing;
            }
            done += part;
        }
        if self.still(size) { Seen::Bytes(len) } else { Seen::Missing }
    }

    #[inline]
    fn copy(&self, start: usize, (page, inside): (u64, usize), into: &mut [u8]) -> Copied {
        let word = self.memory.u32(WORDS + words(page));
        // Barrier R1, pairs with W2: the bytes copied below are not older than this word.
        let before = word.load(Ordering::Acquire);
        if before == ABSENT || !before.is_multiple_of(2) {
            return Copied::Missing;
        }
        self.memory.give(start + page as usize * PAGE + inside, into);
        // Barrier R2, pairs with W1: had a changed byte been copied, this load would see the odd word, or
        // what came after it.
        fence(Ordering::Acquire);
        if word.load(Ordering::Relaxed) == before { Copied::Whole } else { Copied::Torn }
    }
}

/// What a copy between two looks at a page's word came to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copied {
    Whole,
    Torn,
    Missing,
}
