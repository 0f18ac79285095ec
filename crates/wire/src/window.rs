//! A window: copies of a file's pages that clients read without a call. Layout: docs/spec/shared.md, "Windows".
//!
//! The word of a page is its version, and for the server's threads its lock. An even word other than 0 is a copy as
//! good as the file; whoever changes the file makes the words of the pages odd before and even after. A direct window
//! has no copies: beside each word stands where the page lies on a medium that readers have mapped.

use crate::memory;
use crate::parking;
use crate::region::{self, REGION_PAGES, Region};
use core::ops::Range;
use core::time::Duration;
use nvmed_sys::atomic::{AtomicU32, Ordering, fence};
use nvmed_sys::sync::{Mutex, MutexGuard};
use nvmed_sys::{Mapping, Pages, QuietFd};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

pub(crate) const PAGE: usize = 4096;
pub(crate) const OPEN: usize = 0;
pub(crate) const SIZE: usize = 8;
pub(crate) const PAGES: usize = 16;
/// [`DIRECT`] in a window without copies, else 0.
pub(crate) const KIND: usize = 24;
pub(crate) const DIRECT: u32 = 1;
pub(crate) const WORDS: usize = 4096;
/// Bytes of a direct window for each page: the word, and where the page lies.
pub(crate) const ENTRY: usize = 8;
pub(crate) const PLACE: usize = 4;
/// In the place of a block: the page is zeroes.
pub(crate) const ZEROES: u32 = u32::MAX;
/// Where the pages start is a multiple of a huge page.
const PAGES_ALIGN: usize = 2 << 20;
/// Pages that a window has at most: 1 TiB of a file.
pub const WINDOW_PAGES_MAX: u64 = 1 << 28;

/// A page that is not there.
pub(crate) const ABSENT: u32 = 0;
/// One that is not there while the file changes or is copied.
pub(crate) const ABSENT_LOCKED: u32 = 1;

/// Looks at a locked page's word before a thread of the server sleeps.
const LOOKS: u32 = 100;
/// A sleeper looks again after so long, whatever happens.
const SLEEP: Duration = Duration::from_millis(100);

pub(crate) fn words(pages: u64) -> usize {
    pages as usize * 4
}

pub(crate) fn pages_start(pages: u64) -> usize {
    (WORDS + words(pages)).next_multiple_of(PAGES_ALIGN)
}

pub(crate) fn bytes(pages: u64) -> usize {
    pages_start(pages) + pages as usize * PAGE
}

/// Bytes of a direct window.
pub(crate) const fn table_bytes(pages: u64) -> usize {
    region::entries(pages) + pages as usize * ENTRY
}

/// Bytes of a direct window that tell of so many pages, the first of which begins a region.
#[must_use]
pub const fn direct_bytes(pages: u64) -> u64 {
    (table_bytes(pages) - WORDS) as u64
}

/// Where a page of a file lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a block of the medium, of 4,096 bytes, counted from its first.
    Block(u64),
    /// Nowhere: it is zeroes.
    Zeroes,
}

/// The server's side: it alone writes.
#[derive(Debug)]
pub struct Window {
    memory: Mapping,
    readers: QuietFd,
    pages: u64,
    /// Where the copies begin; a direct window has none.
    copies: Option<usize>,
    /// Where the words of the pages begin, and how far apart they are.
    words: (usize, usize),
    /// Locked by a thread that changes the file's size.
    size: Mutex<()>,
    /// The last version given to a page.
    version: AtomicU32,
    /// Threads that sleep until a page's word is even.
    sleepers: AtomicU32,
}

impl Window {
    /// A window of `pages` pages, none of them there, on a file of `size` bytes.
    ///
    /// # Errors
    /// `EFBIG` for more than [`WINDOW_PAGES_MAX`]; the host has no memory or descriptor left, or no `/proc`.
    pub fn new(pages: u64, size: u64) -> Result<Self, Errno> {
        Self::of(pages.max(1), size, Some(pages_start(pages.max(1))))
    }

    /// As [`Window::new`], of a direct window, which nobody has yet: it is paused.
    ///
    /// # Errors
    /// As there.
    pub fn direct(pages: u64, size: u64) -> Result<Self, Errno> {
        Self::of(pages.max(1), size, None)
    }

    fn of(pages: u64, size: u64, copies: Option<usize>) -> Result<Self, Errno> {
        if pages > WINDOW_PAGES_MAX {
            return Err(Errno::FBIG);
        }
        let len = if copies.is_some() { bytes(pages) } else { table_bytes(pages) };
        let memory = Mapping::shareable(len, Pages::Base)?;
        let readers = memory::read_only(&memory)?;
        memory.u64(SIZE).store(size, Ordering::Relaxed);
        memory.u64(PAGES).store(pages, Ordering::Relaxed);
        memory.u32(KIND).store(if copies.is_some() { 0 } else { DIRECT }, Ordering::Relaxed);
        memory.u32(OPEN).store(copies.is_some().into(), Ordering::Release);
        Ok(Self {
            memory,
            readers,
            pages,
            copies,
            words: if copies.is_some() { (WORDS, words(1)) } else { (region::entries(pages), ENTRY) },
            size: Mutex::new(()),
            version: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
        })
    }

    /// What clients are given.
    #[must_use]
    pub fn readers(&self) -> BorrowedFd<'_> {
        self.readers.as_fd()
    }

    /// Pages that the window has room for; the file may have more.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The file's size, as readers see it.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.memory.u64(SIZE).load(Ordering::Acquire)
    }

    /// Whether its pages lie on a medium.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.copies.is_none()
    }

    fn word(&self, page: u64) -> &AtomicU32 {
        assert!(page < self.pages, "page {page} has no word in a window of {}", self.pages);
        let (start, apart) = self.words;
        self.memory.u32(start + page as usize * apart)
    }

    /// Where a page's copy begins, in a window of copies.
    fn page(&self, start: usize, page: u64) -> usize {
        assert!(page < self.pages, "page {page} has no place in a window of {}", self.pages);
        start + page as usize * PAGE
    }

    /// Where a page lies, in a direct window.
    fn place(&self, page: u64) -> &AtomicU32 {
        assert!(
            page < self.pages && self.is_direct(),
            "page {page} has no place in a window of {}",
            self.pages
        );
        self.memory.u32(self.words.0 + page as usize * ENTRY + PLACE)
    }

    /// The regions in which some of these pages are, of a direct window.
    fn regions(&self, pages: &Range<u64>) -> impl Iterator<Item = Region<'_>> {
        let regions = match self.is_direct() && !pages.is_empty() {
            true => pages.start / REGION_PAGES..pages.end.div_ceil(REGION_PAGES),
            false => 0..0,
        };
        regions.map(|region| Region::of(&self.memory, region))
    }

    /// Whether a page is there.
    #[must_use]
    pub fn has(&self, page: u64) -> bool {
        page < self.pages && self.word(page).load(Ordering::Acquire) > ABSENT_LOCKED
    }

    /// Before bytes `range` of the file change, its size staying: readers make calls for them until the answer is
    /// [`Change::end`]ed or dropped. Waits for other changes of the same pages, and fills.
    #[must_use]
    pub fn begin_change(&self, range: Range<u64>) -> Change<'_> {
        self.change(None, range)
    }

    /// As [`Window::begin_change`], where the size may change too: `range` is made of the size before. Waits for
    /// other changes of the size, so that inside it [`Window::size`] is the file's.
    #[must_use]
    pub fn begin_resize(&self, range: impl FnOnce(u64) -> Range<u64>) -> Change<'_> {
        let resizing = self.size.lock();
        let range = range(self.size());
        self.change(Some(resizing), range)
    }

    fn change<'a>(&'a self, resizing: Option<MutexGuard<'a, ()>>, range: Range<u64>) -> Change<'a> {
        let end = range.end.div_ceil(PAGE as u64).min(self.pages);
        let start = (range.start / PAGE as u64).min(end);
        for page in start..end {
            self.lock(page);
        }
        let pages = start..end;
        self.regions(&pages).for_each(Region::begin);
        // Barrier W1, pairs with R2 and R4: a reader that copies a byte changed from here on sees an odd word, and
        // another count.
        fence(Ordering::SeqCst);
        Change { window: self, counted: pages.clone(), pages, resizing }
    }

    /// Makes a page's word odd, when it is even.
    fn lock(&self, page: u64) {
        let mut looks = 0;
        loop {
            let word = self.word(page);
            let seen = word.load(Ordering::Relaxed);
            if seen.is_multiple_of(2)
                && word.compare_exchange(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            looks += 1;
            if looks < LOOKS {
                core::hint::spin_loop();
            } else {
                self.sleep(word);
            }
        }
    }

    #[cold]
    fn sleep(&self, word: &AtomicU32) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = word.load(Ordering::SeqCst);
        if !seen.is_multiple_of(2) {
            let _ = parking::sleep(word, seen, SLEEP);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Makes a page's word even: `word`.
    fn unlock(&self, page: u64, word: u32) {
        if word == ABSENT && self.is_direct() {
            Region::of(&self.memory, page / REGION_PAGES).clear_run();
        }
        // Barrier W2, pairs with R1: who sees this word copies what was written before it.
        let before = self.word(page).swap(word, Ordering::SeqCst);
        // A second panic while one unwinds would end the process.
        let was_locked = !before.is_multiple_of(2) || std::thread::panicking();
        assert!(was_locked, "page {page} was not locked");
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            parking::wake_all(self.word(page));
        }
    }

    /// A word that no page of this window had in a time in which a reader could still be copying.
    fn fresh(&self) -> u32 {
        loop {
            let version = self.version.fetch_add(2, Ordering::Relaxed).wrapping_add(2);
            if version != ABSENT {
                return version;
            }
        }
    }

    /// Puts a page in that is not there. `read` gets room for the page and fills it with the file's bytes, zeroes past
    /// its end; it answers whether it could. Meanwhile threads that announce their changes by [`Window::begin_change`]
    /// do not change that page. Whether the page is there now; false too when another thread is filling or changing it.
    pub fn fill(&self, page: u64, read: impl FnOnce(&mut [u8; PAGE]) -> bool) -> bool {
        if page >= self.pages {
            return false;
        }
        let word = self.word(page);
        if let Err(seen) = word.compare_exchange(ABSENT, ABSENT_LOCKED, Ordering::Acquire, Ordering::Relaxed)
        {
            return seen.is_multiple_of(2);
        }
        // Given back to absent also when `read` unwinds.
        let locked = Change { window: self, pages: page..page + 1, counted: 0..0, resizing: None };
        // As W1, for who still copies what was there before the page was given back.
        fence(Ordering::SeqCst);
        let mut bytes = [0; PAGE];
        if let Some(start) = self.copies
            && read(&mut bytes)
        {
            self.memory.write(self.page(start, page), &bytes);
            core::mem::forget(locked);
            self.unlock(page, self.fresh());
            return true;
        }
        false
    }

    /// Tells where those of these pages lie of which it was not told, in a direct window. `find` answers that of a page
    /// and how many pages lie behind each other from it on; none ends the pages that are told of here. Meanwhile
    /// threads that announce their changes by [`Window::begin_change`] do not change pages that `find` is asked for.
    pub fn tell(&self, pages: Range<u64>, mut find: impl FnMut(u64) -> Option<(Place, u64)>) {
        let pages = pages.start.min(self.pages)..pages.end.min(self.pages);
        let mut locked: Vec<Change<'_>> = Vec::new();
        for page in pages {
            let word = self.word(page);
            if word.compare_exchange(ABSENT, ABSENT_LOCKED, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue;
            }
            match locked.last_mut() {
                Some(run) if run.pages.end == page => run.pages.end += 1,
                _ => {
                    locked.push(Change { window: self, pages: page..page + 1, counted: 0..0, resizing: None })
                }
            }
        }
        for run in &mut locked {
            // What is left of a run when it is dropped is absent again.
            while !run.pages.is_empty()
                && let Some((place, count)) = find(run.pages.start)
            {
                let end = run.pages.end.min(run.pages.start.saturating_add(count.max(1)));
                let Some(first) = Self::first_place(place, end - run.pages.start) else { break };
                let version = self.fresh();
                self.put(&(run.pages.start..end), first);
                for page in run.pages.start..end {
                    run.pages.start = page + 1;
                    self.unlock(page, version);
                }
            }
        }
    }

    /// Notes where pages lie that this thread has locked, the first of them at `first`.
    fn put(&self, pages: &Range<u64>, first: u32) {
        let place = |page: u64| if first == ZEROES { ZEROES } else { first + (page - pages.start) as u32 };
        for page in pages.clone() {
            // Barrier W5, pairs with R2 and R4: who finds a place sees the changes that went before it.
            self.place(page).store(place(page), Ordering::Release);
        }
        let whole = pages.start.div_ceil(REGION_PAGES)..pages.end / REGION_PAGES;
        for region in whole.filter(|_| first != ZEROES) {
            Region::of(&self.memory, region).set_run(place(region * REGION_PAGES));
        }
    }

    /// What stands for the first of so many pages; none where a block has no number that fits.
    fn first_place(place: Place, pages: u64) -> Option<u32> {
        match place {
            Place::Zeroes => Some(ZEROES),
            Place::Block(first) => {
                u32::try_from(first.checked_add(pages)?).ok().and_then(|end| end.checked_sub(pages as u32))
            }
        }
    }

    /// Whether a page is told of after a write as it was before: one that was zeroes has a block then.
    fn stays(&self, page: u64) -> bool {
        !self.is_direct() || self.place(page).load(Ordering::Relaxed) != ZEROES
    }

    /// Takes pages out again that no thread is filling or changing, and gives their memory back.
    pub fn give_back(&self, pages: Range<u64>) {
        let pages = pages.start.min(self.pages)..pages.end.min(self.pages);
        let mut run = pages.start..pages.start;
        for page in pages {
            let word = self.word(page);
            let seen = word.load(Ordering::Relaxed);
            let there = seen > ABSENT_LOCKED && seen.is_multiple_of(2);
            if !there
                || word.compare_exchange(seen, ABSENT_LOCKED, Ordering::Acquire, Ordering::Relaxed).is_err()
            {
                continue;
            }
            if run.end != page {
                self.release(run);
                run = page..page;
            }
            run.end = page + 1;
        }
        self.release(run);
    }

    /// Gives the memory of pages back that this thread has locked as absent.
    fn release(&self, run: Range<u64>) {
        if run.is_empty() {
            return;
        }
        if let Some(start) = self.copies {
            let len = (run.end - run.start) as usize * PAGE;
            // Memory that cannot be given back is only not free.
            let _ = self.memory.release(self.page(start, run.start), len);
        }
        for page in run {
            self.unlock(page, ABSENT);
        }
    }

    /// Ends the window for ever: readers make calls, and may ask for another. Its memory is given back.
    pub fn close(&self) {
        self.pause();
        if let Some(start) = self.copies {
            let _ = self.memory.release(start, self.pages as usize * PAGE);
        }
    }

    /// Readers make calls until [`Window::resume`]. A reader that has begun and not ended does not take what it copied.
    pub fn pause(&self) {
        // An exchange: what is stored to the medium after it is seen after it.
        self.memory.u32(OPEN).swap(0, Ordering::SeqCst);
    }

    /// Readers find it open.
    pub fn resume(&self) {
        self.memory.u32(OPEN).store(1, Ordering::SeqCst);
    }
}

/// A change of a file under way. Dropped without [`Change::end`], it leaves the pages absent, which is always right.
#[derive(Debug)]
pub struct Change<'a> {
    window: &'a Window,
    /// Whose words are odd because of this change.
    pages: Range<u64>,
    /// Those of whose regions the counts say so.
    counted: Range<u64>,
    resizing: Option<MutexGuard<'a, ()>>,
}

impl Change<'_> {
    /// The file's bytes from `offset` on are these now: those of them in pages that are there are copied.
    ///
    /// # Panics
    /// A mistake of the caller's: the change began for fewer bytes.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (page, inside) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let part = (bytes.len() - done).min(PAGE - inside);
            // Readers would have the old bytes of a page that the change has not locked.
            let is_locked = self.pages.contains(&page);
            assert!(
                is_locked || page >= self.window.pages,
                "page {page} changes in a change of {:?}",
                self.pages
            );
            if let Some(start) = self.window.copies
                && is_locked
                && self.window.word(page).load(Ordering::Relaxed) != ABSENT_LOCKED
            {
                self.window.memory.write(self.window.page(start, page) + inside, &bytes[done..done + part]);
            }
            done += part;
        }
    }

    /// The file's size is this now. To be said inside a change that [`Window::begin_resize`] began.
    pub fn set_size(&self, size: u64) {
        assert!(self.resizing.is_some(), "the size changes where others may change it");
        self.window.memory.u64(SIZE).store(size, Ordering::Release);
    }

    /// The change is done, and what was there is up to date: readers may have it.
    pub fn end(mut self) {
        for page in self.pages.by_ref() {
            let there = self.window.word(page).load(Ordering::Relaxed) != ABSENT_LOCKED;
            let stays = there && self.window.stays(page);
            self.window.unlock(page, if stays { self.window.fresh() } else { ABSENT });
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        for page in self.pages.clone() {
            self.window.word(page).store(ABSENT_LOCKED, Ordering::Relaxed);
        }
        self.window.release(self.pages.clone());
        self.window.regions(&self.counted).for_each(Region::end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_ends_badly_takes_no_page_away_that_it_has_ended() {
        let window = Window::new(8, 2 * PAGE as u64).unwrap();
        assert!((0..2).all(|page| window.fill(page, |_| true)));
        let change = window.begin_change(0..2 * PAGE as u64);
        window.word(1).store(6, Ordering::Relaxed);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change.end()));
        assert!(ended.is_err(), "page 1 is locked no more");
        assert!(window.has(0), "by now it is another's");
    }

    #[test]
    #[should_panic(expected = "page 3 was not locked")]
    fn a_page_that_was_not_locked_is_our_mistake() {
        Window::new(8, 0).unwrap().unlock(3, 2);
    }

    #[test]
    #[should_panic(expected = "page 8 has no word in a window of 8")]
    fn a_page_past_the_window_is_our_mistake() {
        Window::new(8, 0).unwrap().lock(8);
    }

    #[test]
    #[should_panic(expected = "page 8 has no place in a window of 8")]
    fn bytes_past_the_window_are_our_mistake() {
        Window::new(8, 0).unwrap().page(0, 8);
    }

    #[test]
    #[should_panic(expected = "page 1 changes in a change of 0..1")]
    fn a_page_that_the_change_has_not_locked_is_our_mistake() {
        let window = Window::new(8, 8 * PAGE as u64).unwrap();
        let change = window.begin_change(0..PAGE as u64);
        change.write(0, &[7; PAGE + 1]);
    }

    #[test]
    #[should_panic(expected = "the size changes where others may change it")]
    fn a_size_that_anybody_may_change_is_our_mistake() {
        Window::new(1, 0).unwrap().begin_change(0..1).set_size(5);
    }
}
