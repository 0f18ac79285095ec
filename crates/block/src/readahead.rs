//! What a reader of a handle will want next.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_cache::Readahead;
use nvmed_sys::sync::{Mutex, MutexGuard};
use nvmed_units::{BLOCK_SHIFT, ByteOffset, Page};

/// Ranges of advice that a handle keeps: the extents of a badly fragmented large file.
pub const ADVICE_MAX: usize = 4096;

/// The reading habit of a handle, and what it was told of its reader's plans.
#[derive(Debug)]
pub(crate) struct Ahead {
    habit: Readahead,
    bytes: AtomicU64,
    /// Ranges of pages in the order in which they will be read, none empty.
    advice: Mutex<Vec<Range<Page>>>,
}

impl Ahead {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { habit: Readahead::default(), bytes: AtomicU64::new(bytes), advice: Mutex::default() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_bytes(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    fn advice(&self) -> MutexGuard<'_, Vec<Range<Page>>> {
        self.advice.lock()
    }

    /// Replaces the advice: ranges of bytes in the order in which they will be read.
    pub(crate) fn advise(&self, ranges: &[Range<u64>]) {
        let pages = ranges.iter().filter(|bytes| !bytes.is_empty()).take(ADVICE_MAX);
        let pages = pages.map(|bytes| ByteOffset(bytes.start).page()..ByteOffset(bytes.end).page_end());
        *self.advice() = pages.collect();
    }

    /// What to bring in when the `wanted` pages are read and the first is missing: ranges that begin with it, of at
    /// most `pages_max` pages together, none past page `end`.
    ///
    /// Inside the advice that is the rest of its range and the ranges after it; else the pages that follow, for a
    /// reader that looks sequential.
    pub(crate) fn miss(&self, wanted: Range<Page>, end: Page, pages_max: u64, out: &mut Vec<Range<Page>>) {
        let (page, count) = (wanted.start, (wanted.end - wanted.start).min(pages_max));
        let ahead = (self.bytes() >> BLOCK_SHIFT).min(pages_max);
        let advice = self.advice();
        if let Some(at) = advice.iter().position(|range| range.contains(&page)) {
            let mut left = ahead.max(count);
            let first = page..advice[at].end.max(page + count);
            for range in core::iter::once(&first).chain(&advice[at + 1..]) {
                if left == 0 {
                    break;
                }
                let range = range.start..range.end.min(range.start + left).min(end);
                if !range.is_empty() {
                    left -= range.end - range.start;
                    out.push(range);
                }
            }
            return;
        }
        drop(advice);
        let pages = if ahead == 0 { count } else { self.habit.miss(page, count, ahead, pages_max).pages };
        out.push(page..(page + pages).min(end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(ahead: &Ahead, wanted: Range<u64>, end: u64) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        ahead.miss(Page(wanted.start)..Page(wanted.end), Page(end), 1000, &mut out);
        out.into_iter().map(|window| (window.start.0, window.end.0)).collect()
    }

    #[test]
    fn advice_goes_on_in_the_next_extent() {
        let ahead = Ahead::new(8 * 4096);
        ahead.advise(&[40_960..49_152, 0..0, 0..8192, 400_000..500_000]);
        assert_eq!(windows(&ahead, 11..12, 1 << 20), [(11, 12), (0, 2), (97, 102)]);
        assert_eq!(windows(&ahead, 97..98, 100), [(97, 100)], "not past the end of the device");
        assert_eq!(windows(&ahead, 500..501, 1 << 20), [(500, 501)], "a page that was not spoken of");
        ahead.advise(&[]);
        assert_eq!(windows(&ahead, 11..12, 1 << 20), [(11, 12)]);
    }

    #[test]
    fn a_sequential_reader_is_read_ahead_of_up_to_the_setting() {
        let ahead = Ahead::new(8 * 4096);
        assert_eq!(windows(&ahead, 0..1, 1 << 20), [(0, 4)]);
        assert_eq!(windows(&ahead, 4..5, 1 << 20), [(4, 12)]);
        ahead.set_bytes(0);
        assert_eq!(windows(&ahead, 12..13, 1 << 20), [(12, 13)]);
    }
}
