//! Reads of a window that has no copies: its pages lie on a medium that the client has mapped itself
//! (docs/spec/shared.md, "Direct windows").

use crate::view::{Copied, Seen, TRIES, WindowView};
use crate::window::{ABSENT, ENTRY, OPEN, PAGE, PLACE, WORDS, ZEROES};
use core::ops::Range;
use nvmed_sys::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use nvmed_sys::{Mapping, Pages, door};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// Pages that are copied in one piece at most, where they lie side by side: 64 KiB.
const RUN_PAGES: usize = 16;

/// Up to so many pages are looked at one by one, by plain loops, which take half of what iterators do; more of them in
/// larger pieces.
const FEW_PAGES: u64 = 4;

/// The medium below a mount, mapped to be read: one mapping for all files of a process.
#[derive(Debug)]
pub struct MediumView {
    memory: Mapping,
    /// The process has other ids since.
    left: AtomicBool,
}

impl MediumView {
    /// The medium behind a descriptor that came from the server.
    ///
    /// # Errors
    /// `EINVAL` for what has no byte; what `fstat` and `mmap` answer.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        let bytes = usize::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
        if bytes == 0 {
            return Err(Errno::INVAL);
        }
        let memory = Mapping::read_only(fd, 0, bytes, Pages::Huge)?;
        memory.keep_from_dumps();
        Ok(Self { memory, left: AtomicBool::new(false) })
    }

    /// The process is about to have other ids: it sees no byte of the medium from here on.
    pub fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
        // Without memory it stays to be seen, and nothing looks at it.
        let _ = self.memory.blank();
    }

    /// Whether the process has left it.
    #[inline]
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Copies what lies in a block and those behind it, from a byte of the first one on; whether the medium has it.
    #[inline]
    fn copy(&self, block: u32, inside: usize, into: &mut [u8]) -> bool {
        let at = block as usize * PAGE + inside;
        // A window names no other block, and a medium that has become shorter is its owner's doing.
        at + into.len() <= self.memory.len() && self.memory.lend(at, into)
    }
}

impl WindowView {
    #[inline(always)]
    fn entry(&self, page: u64) -> &AtomicU32 {
        self.memory.u32(WORDS + page as usize * ENTRY)
    }

    /// A page's word, and where it lies; none where that is not told.
    #[inline(always)]
    fn place(&self, page: u64) -> Option<(u32, u32)> {
        // Barrier R1, pairs with W2: place and bytes are not older than this word.
        let word = self.entry(page).load(Ordering::Acquire);
        if word == ABSENT || !word.is_multiple_of(2) {
            return None;
        }
        Some((word, self.memory.u32(WORDS + page as usize * ENTRY + PLACE).load(Ordering::Relaxed)))
    }

    /// As [`WindowView::read`].
    #[inline(never)]
    pub(crate) fn read_in_place(&self, medium: &MediumView, into: &mut [u8], offset: u64) -> Seen {
        let bytes = into.len();
        if self.read_usual(medium, into, offset) {
            Seen::Bytes(bytes)
        } else {
            self.read_runs(medium, into, offset)
        }
    }

    /// Reads all of `into`, if its pages lie side by side and have all been told of by one word: that takes one copy,
    /// however many they are. False: nothing that was read counts.
    #[inline(always)]
    fn read_usual(&self, medium: &MediumView, into: &mut [u8], offset: u64) -> bool {
        let size = self.size_seen();
        let (first, inside) = (offset / PAGE as u64, (offset % PAGE as u64) as usize);
        let count = (inside + into.len()).div_ceil(PAGE) as u64;
        let is_open = self.memory.u32(OPEN).load(Ordering::Relaxed) != 0;
        let is_inside = offset <= size && into.len() as u64 <= size - offset && first + count <= self.pages;
        if !is_open || !is_inside || count == 0 {
            return false;
        }
        let Some((word, block)) = self.place(first) else { return false };
        let pages = first..first + count;
        if block == ZEROES || !self.is_run(&pages, word, block) || !medium.copy(block, inside, into) {
            return false;
        }
        // Barrier R2, as in `copy_run_once`.
        fence(Ordering::Acquire);
        self.have_still(&pages, word) && !medium.is_left() && self.still(size)
    }

    /// Whether some pages, of which the first is known to, have a word and lie side by side from a block on.
    #[inline(always)]
    fn is_run(&self, pages: &Range<u64>, word: u32, block: u32) -> bool {
        let count = pages.end - pages.start;
        if count > FEW_PAGES {
            return self.is_long_run(pages, word, block);
        }
        let mut index = 1;
        while index < count {
            let place = block.wrapping_add(index as u32);
            if self.place(pages.start + index) != Some((word, place)) {
                return false;
            }
            index += 1;
        }
        true
    }

    #[inline(never)]
    fn is_long_run(&self, pages: &Range<u64>, word: u32, block: u32) -> bool {
        let is_next = |entry: [&AtomicU32; 2], page: u64| {
            let place = block.wrapping_add((page - pages.start) as u32);
            // Barrier R1, as in `place`.
            entry[0].load(Ordering::Acquire) == word && entry[1].load(Ordering::Relaxed) == place
        };
        let mut page = pages.start;
        while pages.end - page >= RUN_PAGES as u64 {
            let words: [_; 2 * RUN_PAGES] = self.memory.u32s(WORDS + page as usize * ENTRY);
            let next = |index: usize| is_next([words[2 * index], words[2 * index + 1]], page + index as u64);
            if !(0..RUN_PAGES).all(next) {
                return false;
            }
            page += RUN_PAGES as u64;
        }
        (page..pages.end).all(|page| is_next(self.memory.u32s(WORDS + page as usize * ENTRY), page))
    }

    /// Whether some pages have a word still.
    #[inline(always)]
    fn have_still(&self, pages: &Range<u64>, word: u32) -> bool {
        if pages.end - pages.start > FEW_PAGES {
            return self.have_all_still(pages, word);
        }
        let mut page = pages.start;
        while page < pages.end {
            if self.entry(page).load(Ordering::Relaxed) != word {
                return false;
            }
            page += 1;
        }
        true
    }

    #[inline(never)]
    fn have_all_still(&self, pages: &Range<u64>, word: u32) -> bool {
        let mut page = pages.start;
        while pages.end - page >= RUN_PAGES as u64 {
            let words: [_; 2 * RUN_PAGES] = self.memory.u32s(WORDS + page as usize * ENTRY);
            if !(0..RUN_PAGES).all(|index| words[2 * index].load(Ordering::Relaxed) == word) {
                return false;
            }
            page += RUN_PAGES as u64;
        }
        (page..pages.end).all(|page| self.entry(page).load(Ordering::Relaxed) == word)
    }

    /// As [`WindowView::read_in_place`], run by run.
    #[inline(never)]
    fn read_runs(&self, medium: &MediumView, into: &mut [u8], offset: u64) -> Seen {
        for _ in 0..TRIES {
            let size = self.size_seen();
            let len = match self.clamp(into.len(), offset, size) {
                Ok(len) => len,
                Err(seen) => return seen,
            };
            let mut done = 0;
            while done < len {
                match self.copy_run(medium, offset + done as u64, &mut into[done..len]) {
                    Some(copied) => done += copied,
                    None => return Seen::Missing,
                }
            }
            if medium.is_left() {
                return Seen::Closed;
            }
            if self.still(size) {
                return Seen::Bytes(len);
            }
        }
        Seen::Missing
    }

    /// Copies as many bytes as lie side by side; how many. None: the call must be made.
    #[inline]
    fn copy_run(&self, medium: &MediumView, at: u64, into: &mut [u8]) -> Option<usize> {
        (0..TRIES).find_map(|_| match self.copy_run_once(medium, at, into) {
            (Copied::Torn, _) => None,
            (Copied::Missing, _) => Some(None),
            (Copied::Whole, copied) => Some(Some(copied)),
        })?
    }

    #[inline]
    fn copy_run_once(&self, medium: &MediumView, at: u64, into: &mut [u8]) -> (Copied, usize) {
        let (first, inside) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let pages = (inside + into.len()).div_ceil(PAGE).min(RUN_PAGES);
        let Some((word, block)) = self.place(first) else { return (Copied::Missing, 0) };
        let mut words = [word; RUN_PAGES];
        let mut count = 1;
        while count < pages
            && let Some((word, next)) = self.place(first + count as u64)
            && (next == block.wrapping_add(count as u32) && next != ZEROES || next == block && next == ZEROES)
        {
            words[count] = word;
            count += 1;
        }
        let bytes = (count * PAGE - inside).min(into.len());
        let into = &mut into[..bytes];
        if block == ZEROES {
            door::give_zeroes(into);
        } else if !medium.copy(block, inside, into) {
            return (Copied::Missing, 0);
        }
        // Barrier R2, pairs with W1: had a changed byte been copied, or one of a block that was another's by then, one
        // of these loads would see the odd word, or what came after it.
        fence(Ordering::Acquire);
        let is_same = |(page, word): (u64, &u32)| self.entry(page).load(Ordering::Relaxed) == *word;
        let same = (first..).zip(&words[..count]).all(is_same);
        (if same { Copied::Whole } else { Copied::Torn }, bytes)
    }
}
