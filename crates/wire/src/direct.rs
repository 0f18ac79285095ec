//! Reads of a window that has no copies: its pages lie on a medium that the client has mapped itself
//! (docs/spec/shared.md, "Direct windows").

use crate::region::{REGION_BYTES, Region};
use crate::view::{Copied, Seen, TRIES, WindowView};
use crate::window::{ABSENT, ABSENT_LOCKED, ENTRY, OPEN, PAGE, PLACE, ZEROES};
use nvmed_sys::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use nvmed_sys::{Mapping, Pages, door};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// Pages that are copied in one piece at most between looks at their words, where they lie side by side: 64 KiB.
const RUN_PAGES: usize = 16;

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

    /// Copies what lies in a block and those behind it, from so many bytes behind its first one on; whether the medium
    /// has it.
    #[inline]
    fn copy(&self, block: u32, inside: usize, into: &mut [u8]) -> bool {
        let at = block as usize * PAGE + inside;
        // A window names no other block, and a medium that has become shorter is its owner's doing.
        at + into.len() <= self.memory.len() && self.memory.lend(at, into)
    }
}

impl WindowView {
    #[inline]
    fn entry(&self, page: u64) -> &AtomicU32 {
        self.memory.u32(self.entries + page as usize * ENTRY)
    }

    /// Where a page lies, of which its word has told.
    #[inline]
    fn told(&self, page: u64) -> u32 {
        self.memory.u32(self.entries + page as usize * ENTRY + PLACE).load(Ordering::Relaxed)
    }

    /// A page's word, and where it lies; none where that is not told.
    #[inline]
    fn place(&self, page: u64) -> Option<(u32, u32)> {
        // Barrier R1, pairs with W2: place and bytes are not older than this word.
        let word = self.entry(page).load(Ordering::Acquire);
        if word == ABSENT || !word.is_multiple_of(2) {
            return None;
        }
        Some((word, self.told(page)))
    }

    /// As [`WindowView::read`].
    #[inline(never)]
    pub(crate) fn read_in_place(&self, medium: &MediumView, into: &mut [u8], offset: u64) -> Seen {
        let bytes = into.len();
        if self.read_usual(medium, into, offset) {
            Seen::Bytes(bytes)
        } else {
            self.read_pieces(medium, into, offset)
        }
    }

    /// Reads all of `into`, if that is one region's, whose pages lie side by side. False: nothing that was read counts.
    #[inline(always)]
    fn read_usual(&self, medium: &MediumView, into: &mut [u8], offset: u64) -> bool {
        let size = self.size_seen();
        let (last, region) = (offset.wrapping_add(into.len() as u64).wrapping_sub(1), offset / REGION_BYTES);
        let is_open = self.memory.u32(OPEN).load(Ordering::Relaxed) != 0;
        let is_inside =
            offset <= size && into.len() as u64 <= size - offset && last / (PAGE as u64) < self.pages;
        if !is_open || !is_inside || last / REGION_BYTES != region {
            return false;
        }
        let region = Region::of(&self.memory, region);
        let Some(count) = region.settled() else { return false };
        let Some(block) = region.run() else { return false };
        medium.copy(block, (offset % REGION_BYTES) as usize, into)
            && region.is_still(count)
            && !medium.is_left()
            && self.still(size)
    }

    /// As [`WindowView::read_in_place`], piece by piece.
    #[inline(never)]
    fn read_pieces(&self, medium: &MediumView, into: &mut [u8], offset: u64) -> Seen {
        for _ in 0..TRIES {
            let size = self.size_seen();
            let len = match self.clamp(into.len(), offset, size) {
                Ok(len) => len,
                Err(seen) => return seen,
            };
            // Up to there something has changed under this reader, and each page is looked at by itself.
            let (mut done, mut unsettled) = (0, 0);
            while done < len {
                let at = offset + done as u64;
                let rest = &mut into[done..len];
                let counted = if at < unsettled { None } else { self.copy_counted(medium, at, rest) };
                let copied = counted.or_else(|| {
                    unsettled = (at / REGION_BYTES + 1) * REGION_BYTES;
                    self.copy_run(medium, at, rest)
                });
                match copied {
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

    /// Copies as many bytes of one region as lie side by side, between two looks at its count; how many. None: its
    /// pages are to be looked at.
    #[inline]
    fn copy_counted(&self, medium: &MediumView, at: u64, into: &mut [u8]) -> Option<usize> {
        let region = Region::of(&self.memory, at / REGION_BYTES);
        let count = region.settled()?;
        let (page, inside) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let within = (REGION_BYTES - at % REGION_BYTES).min(into.len() as u64) as usize;
        let (block, inside, bytes) = match region.run() {
            Some(first) => (first, (at % REGION_BYTES) as usize, within),
            None => {
                let (block, pages) = self.run_from(page, (inside + within).div_ceil(PAGE) as u64)?;
                (block, inside, within.min(pages as usize * PAGE - inside))
            }
        };
        let into = &mut into[..bytes];
        if block == ZEROES {
            door::give_zeroes(into);
        } else if !medium.copy(block, inside, into) {
            return None;
        }
        region.is_still(count).then_some(bytes)
    }

    /// Where a page lies, and how many of `most` pages from it on lie side by side, while their region's count stays
    /// what it is: then a word that is odd is of a change that has not begun, and that a page is told of is enough.
    #[inline]
    fn run_from(&self, first: u64, most: u64) -> Option<(u32, u64)> {
        let place = |page: u64| {
            // Barrier R6, pairs with W2: as R1.
            let word = self.entry(page).load(Ordering::Acquire);
            (word > ABSENT_LOCKED).then(|| self.told(page))
        };
        let block = place(first)?;
        let apart = u32::from(block != ZEROES);
        let (mut count, mut next) = (1, block.wrapping_add(apart));
        // The number behind the last block is no block's.
        while count < most && place(first + count) == Some(next) && (apart == 0 || next != ZEROES) {
            next = next.wrapping_add(apart);
            count += 1;
        }
        Some((block, count))
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
