//! How far ahead of a sequential reader to read.

use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_units::Page;

/// First window of a reader that looks sequential, in pages.
const FIRST_PAGES: u64 = 4;

/// Pages to fill, `[start, start + pages)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First page.
    pub start: Page,
    /// How many.
    pub pages: u64,
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
}

impl Readahead {
    /// What to fill when the pages `[page, page + wanted)` are asked for and `page` is missing: the
    /// pages wanted, and for a sequential reader up to `pages_max` in a window that doubles.
    #[must_use]
    pub fn miss(&self, page: Page, wanted: u64, pages_max: u64) -> Window {
        let sequential = page.0 == self.end.load(Ordering::Relaxed);
        let pages = if sequential {
            (self.pages.load(Ordering::Relaxed) * 2).max(FIRST_PAGES).max(wanted).min(pages_max.max(wanted))
        } else {
            wanted
        };
        self.pages.store(pages, Ordering::Relaxed);
        self.end.store(page.0 + pages, Ordering::Relaxed);
        Window { start: page, pages }
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
            let window = habit.miss(page, 1, 32);
            assert_eq!(window.start, page);
            windows.push(window.pages);
            page += window.pages;
        }
        assert_eq!(windows, [4, 8, 16, 32, 32, 32]);
        assert_eq!(habit.miss(page, 100, 32).pages, 100, "what is asked for is filled in one go");
    }

    #[test]
    fn a_random_reader_gets_what_it_asks_for() {
        let habit = Readahead::default();
        for page in [77, 3, 1000, 12, 5000].map(Page) {
            assert_eq!(habit.miss(page, 2, 32), Window { start: page, pages: 2 });
        }
        assert_eq!(habit.miss(Page(5002), 1, 32).pages, 4, "two in a row look sequential");
    }
}
