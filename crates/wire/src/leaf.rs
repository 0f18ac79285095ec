//! Leaves: the pages of a shelf, and which of them are a card's.

use crate::shelf::{FILE_PAGES, LEAF_NUMBERS, LEAVES, PAGE, card};
use core::ops::Range;
use nvmed_fs::versions::Version;
use nvmed_sys::atomic::Ordering;
use nvmed_sys::{HUGE_BYTES, Mapping};

/// In the place of a number: that leaf is not there.
pub(crate) const ABSENT: u32 = u32::MAX;
/// A file may take one of so many parts of a shelf's leaves, so that one that is read from end to end drives out few
/// others.
const SHARE: usize = 8;

/// Bytes of the largest file that has leaves on a shelf with so many: its card has room for the numbers of as many
/// leaves with numbers.
pub(crate) fn file_bytes_max(leaves: usize) -> u64 {
    (leaves / SHARE).clamp(FILE_PAGES, FILE_PAGES * LEAF_NUMBERS) as u64 * PAGE as u64
}

/// Whether so many bytes take leaves with numbers: those of the leaves with bytes do not fit on the card.
pub(crate) fn is_indexed(bytes: u64) -> bool {
    bytes > (FILE_PAGES * PAGE) as u64
}

/// Where a leaf is.
pub(crate) fn start_of(leaf: u32) -> usize {
    LEAVES + leaf as usize * PAGE
}

/// Leaves that a shelf may take of those that all shelves have together.
pub trait ShelfPages {
    /// One more; false when there is none left.
    fn take(&mut self) -> bool;
}

/// Leaves whose memory is made present together: one by one each takes as long as the copy of a small file.
const PRESENT_AT_ONCE: u32 = 32;
/// As many where more than these are used.
const HUGE_PAGE_LEAVES: u32 = (HUGE_BYTES / PAGE) as u32;
const _: () = assert!(LEAVES.is_multiple_of(HUGE_BYTES) && HUGE_PAGE_LEAVES.is_multiple_of(PRESENT_AT_ONCE));

/// Leaves that are no card's.
#[derive(Debug)]
pub(crate) struct Pool {
    max: u32,
    free: Vec<u32>,
    used: u32,
    present: u32,
}

impl Pool {
    pub(crate) fn new(max: u32) -> Self {
        Self { max, free: Vec::new(), used: 0, present: 0 }
    }

    /// One that no card has; a reader that still copies from it finds another `seq` on the card that had it.
    pub(crate) fn take(&mut self, more: &mut impl ShelfPages) -> Option<u32> {
        if let Some(leaf) = self.free.pop() {
            return Some(leaf);
        }
        let is_more = self.used < self.max && more.take();
        is_more.then(|| {
            self.used += 1;
            self.used - 1
        })
    }

    /// Leaves whose memory is to be made present now, because the first of them is used.
    pub(crate) fn not_present(&mut self, in_huge_pages: bool) -> Option<Range<u32>> {
        (self.used > self.present).then(|| {
            let first = self.present;
            let is_huge = in_huge_pages && first >= HUGE_PAGE_LEAVES;
            let count = if is_huge { HUGE_PAGE_LEAVES } else { PRESENT_AT_ONCE };
            self.present = (first + count).min(self.max);
            first..self.present
        })
    }

    pub(crate) fn give(&mut self, leaves: impl IntoIterator<Item = u32>) {
        self.free.extend(leaves.into_iter().filter(|leaf| *leaf != ABSENT));
    }

    /// Leaves that are a card's.
    pub(crate) fn taken(&self) -> usize {
        self.used as usize - self.free.len()
    }

    pub(crate) fn max(&self) -> usize {
        self.max as usize
    }
}

/// A card's leaves, as the server knows them.
#[derive(Debug, Default)]
pub(crate) struct Leaves {
    /// Of what count of the file, and how many bytes it had; none: of nothing.
    of: Option<(Version, u64)>,
    /// By number of the file's page.
    bytes: Vec<u32>,
    /// Those with their numbers, of a file that [`is_indexed`].
    index: Vec<u32>,
}

impl Leaves {
    /// None yet, of this count of a file of so many bytes.
    pub(crate) fn of(version: Version, bytes: u64) -> Self {
        let pages = bytes.div_ceil(PAGE as u64) as usize;
        let index = if is_indexed(bytes) { pages.div_ceil(LEAF_NUMBERS) } else { 0 };
        Self { of: Some((version, bytes)), bytes: vec![ABSENT; pages], index: vec![ABSENT; index] }
    }

    pub(crate) fn is_of(&self, version: Version, bytes: u64) -> bool {
        self.of == Some((version, bytes))
    }

    /// Whether the page with this number is there.
    pub(crate) fn has(&self, page: usize) -> bool {
        self.bytes.get(page).is_some_and(|leaf| *leaf != ABSENT)
    }

    /// Whether any leaf is taken.
    pub(crate) fn has_any(&self) -> bool {
        self.all().any(|leaf| leaf != ABSENT)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.bytes.iter().chain(&self.index).copied()
    }

    /// Puts in what is not there of `bytes`, from the page `first` on; false when `take` has no leaf left.
    pub(crate) fn fill(
        &mut self,
        memory: &Mapping,
        (bytes, first): (&[u8], usize),
        mut take: impl FnMut() -> Option<u32>,
    ) -> bool {
        for leaf in self.index.iter_mut().filter(|leaf| **leaf == ABSENT) {
            let Some(taken) = take() else { return false };
            *leaf = taken;
            memory.take(start_of(taken), &[0xff; PAGE]);
        }
        for (page, part) in (first..).zip(bytes.chunks(PAGE)) {
            if !self.has(page) {
                let Some(taken) = take() else { return false };
                memory.take(start_of(taken), part);
                self.bytes[page] = taken;
            }
        }
        true
    }

    /// Writes on a card at `at`, whose `seq` is odd, which count and bytes it has, and the numbers of the leaves of
    /// pages `pages`, all of which are written elsewhere before.
    pub(crate) fn tell(&self, memory: &Mapping, at: usize, pages: core::ops::Range<usize>) {
        let (version, bytes) = self.of.map_or((0, 0), |(version, bytes)| (version.get(), bytes));
        memory.u64(at + card::BYTES_VERSION).store(version, Ordering::Relaxed);
        memory.u64(at + card::BYTES).store(bytes, Ordering::Relaxed);
        let on_card = if self.index.is_empty() { &self.bytes } else { &self.index };
        for (number, leaf) in on_card.iter().enumerate() {
            memory.u32(at + card::LEAVES + 4 * number).store(*leaf, Ordering::Relaxed);
        }
        for page in pages.filter(|_| !self.index.is_empty()) {
            let index = start_of(self.index[page / LEAF_NUMBERS]);
            memory.u32(index + 4 * (page % LEAF_NUMBERS)).store(self.bytes[page], Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_takes_an_eighth_of_a_shelf_and_no_more_than_its_card_can_number() {
        let pages = |leaves| file_bytes_max(leaves) / PAGE as u64;
        assert_eq!([pages(0), pages(8_000), pages(1 << 30)], [32, 1_000, 32_768]);
    }

    struct Endless;

    impl ShelfPages for Endless {
        fn take(&mut self) -> bool {
            true
        }
    }

    #[test]
    fn the_memory_of_leaves_is_made_present_before_they_are_used_and_soon_in_huge_pages() {
        let mut pool = Pool::new(1300);
        let mut present = 0..0;
        for leaf in 0..1300 {
            assert_eq!(pool.take(&mut Endless), Some(leaf));
            if let Some(more) = pool.not_present(true) {
                assert_eq!(more.start, present.end, "each once, in order");
                let whole = start_of(more.start).is_multiple_of(HUGE_BYTES) && more.len() == 512;
                assert!(more.end == 1300 || whole == (leaf >= 512), "{more:?} for {leaf}");
                present = more;
            }
            assert!(leaf < present.end);
        }
    }

    #[test]
    fn a_pool_gives_out_what_it_has_and_no_more() {
        let mut pool = Pool::new(2);
        let taken: [_; 3] = core::array::from_fn(|_| pool.take(&mut Endless));
        assert_eq!(taken, [Some(0), Some(1), None]);
        pool.give([ABSENT, 1]);
        assert_eq!((pool.taken(), pool.take(&mut Endless), pool.take(&mut Endless)), (1, Some(1), None));
    }
}
