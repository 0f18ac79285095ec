//! How far ahead of a sequential reader to read.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use nvmed_units::Page;

/// First window of a reader that looks sequential, in pages.
const FIRST_PAGES: u64 = 4;
/// Nanoseconds a page of a window that nobody waits long for, 1 GB/s: some two times what a reader's own copy takes.
const QUICK_PAGE_NS: u64 = 4096;
/// How often the largest window is doubled for who waits long for it, at most.
const DOUBLINGS_MAX: u32 = 4;

/// Pages to fill, `[start, start + pages)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First page.
    pub start: Page,
    /// How many.
    pub pages: u64,
    /// How many to fill meanwhile, from one behind the first page that follows. That one is left out, so that its miss
    /// tells when the reader has come there.
    pub ahead: u64,
}

impl Window {
    /// What to fill meanwhile.
    #[must_use]
    pub fn pages_ahead(&self) -> Range<Page> {
        let next = self.start + self.pages;
        next + 1..next + 1 + self.ahead
    }
}

/// The reading habit of one open description.
///
/// Only misses are told: a reader who misses exactly where the last window ended has read all of it.
/// Threads that share a description share the habit; a race makes a window too long or too short.
#[derive(Debug, Default)]
pub struct Readahead {
    /// One past the last page of the last window.
    end: AtomicU64,
    pages: AtomicU64,
    /// How often the largest window is doubled, since the reader waits for it.
    doublings: AtomicU32,
}

impl Readahead {
    /// What to fill when the pages `[page, page + wanted)` are asked for and `page` is missing: the
    /// pages wanted, and for a sequential reader up to `pages_max` in a window that doubles, or up to sixteen times as
    /// many where [`Readahead::took`] was told that windows take long, and no more than one fill has, `fill_max`. He
    /// has the next window filled meanwhile. What is missing in the last window is filled up to its end.
    #[must_use]
    pub fn miss(&self, page: Page, wanted: u64, pages_max: u64, fill_max: u64) -> Window {
        let (end, last) = (self.end.load(Ordering::Relaxed), self.pages.load(Ordering::Relaxed));
        let doublings = self.doublings.load(Ordering::Relaxed);
        let most = (pages_max << doublings).min(fill_max);
        if page.0 < end && page.0 + last >= end {
            let pages = (end - page.0).min(most).max(wanted);
            self.end.store(end.max(page.0 + pages), Ordering::Relaxed);
            return Window { start: page, pages, ahead: 0 };
        }
        let (pages, ahead) = if page.0 == end {
            let pages = (last * 2).max(FIRST_PAGES).max(wanted).min(most.max(wanted));
            let next = (pages * 2).min(most).min(fill_max / 2);
            (pages, if doublings > 0 { next.saturating_sub(1) } else { 0 })
        } else {
            self.doublings.store(0, Ordering::Relaxed);
            (wanted, 0)
        };
        self.pages.store(pages, Ordering::Relaxed);
        self.end.store(page.0 + pages, Ordering::Relaxed);
        Window { start: page, pages, ahead }
    }

    /// It took so long to fill a window as large as one may be: where that is long, the next one may be twice as large.
    pub fn took(&self, pages: u64, nanoseconds: u64) {
        let doublings = self.doublings.load(Ordering::Relaxed);
        if nanoseconds > pages.saturating_mul(QUICK_PAGE_NS) && doublings < DOUBLINGS_MAX {
            self.doublings.store(doublings + 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_reader_gets_doubling_windows() {
        let habit = Readahead::default();
        let mut page = Page::FIRST;
        let mut windows = Vec::new();
        for _ in 0..6 {
            let window = habit.miss(page, 1, 32, 1000);
            assert_eq!(window.start, page);
            windows.push(window.pages);
            page += window.pages;
        }
        assert_eq!(windows, [4, 8, 16, 32, 32, 32]);
        assert_eq!(habit.miss(page, 100, 32, 1000).pages, 100, "what is asked for is filled in one go");
    }

    #[test]
    fn a_reader_who_waits_gets_larger_windows() {
        let habit = Readahead::default();
        let mut page = Page::FIRST;
        let mut next = |took| {
            let window = habit.miss(page, 1, 8, 100);
            page += window.pages;
            habit.took(window.pages, took);
            window.pages
        };
        let (quick, slow) = (1_000, 5_000_000);
        let windows = [quick, quick, quick, slow, quick, slow, slow, slow, slow, slow].map(&mut next);
        assert_eq!(
            windows,
            [4, 8, 8, 8, 16, 16, 32, 64, 100, 100],
            "doubled by each that was slow, up to a fill"
        );
        assert_eq!(habit.miss(Page(9000), 1, 8, 100).pages, 1);
        assert_eq!(habit.miss(Page(9001), 1, 8, 100).pages, 4, "another place, another habit");
        assert_eq!(habit.miss(Page(9005), 20, 8, 100).pages, 20);
        assert_eq!(habit.miss(Page(9025), 1, 8, 100).pages, 8);
    }

    #[test]
    fn a_reader_who_waits_has_the_next_window_filled_meanwhile() {
        let habit = Readahead::default();
        let slow = |window: Window| {
            habit.took(window.pages, 5_000_000);
            (window.pages, window.pages_ahead())
        };
        let (first, none) = (Page(0), |page| Page(page)..Page(page));
        assert_eq!(slow(habit.miss(first, 1, 8, 100)), (4, none(5)));
        assert_eq!(slow(habit.miss(Page(4), 1, 8, 100)), (8, Page(13)..Page(28)));
        // Whoever fills is late, or was not there: what is left of the window is filled, and the habit stays.
        assert_eq!(habit.miss(Page(10), 1, 8, 100), Window { start: Page(10), pages: 2, ahead: 0 });
        assert_eq!(habit.miss(Page(11), 3, 8, 100), Window { start: Page(11), pages: 3, ahead: 0 });
        // He asked for more than was left of it.
        assert_eq!(slow(habit.miss(Page(14), 1, 8, 100)), (16, Page(31)..Page(62)));
        let half = Page(51)..Page(60);
        assert_eq!(slow(habit.miss(Page(30), 1, 8, 20)), (20, half), "not more than half a fill");
    }

    #[test]
    fn a_random_reader_gets_what_it_asks_for() {
        let habit = Readahead::default();
        for page in [77, 3, 1000, 12, 5000].map(Page) {
            assert_eq!(habit.miss(page, 2, 32, 1000), Window { start: page, pages: 2, ahead: 0 });
        }
        assert_eq!(habit.miss(Page(5002), 1, 32, 1000).pages, 4, "two in a row look sequential");
    }
}
