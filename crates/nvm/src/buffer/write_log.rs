//! The write log: which lines wait in the buffer's memory to be programmed, by page.
//!
//! A bookkeeping of lines alone; their bytes are at home already.

use core::cmp::Reverse;
use core::ops::Range;
use std::collections::{BTreeSet, HashMap};

/// Lines of one page that wait.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    lines: u64,
    /// When the first of them came, as a number.
    age: u64,
}

/// The pages of which lines wait.
#[derive(Debug)]
pub(crate) struct WriteLog {
    pages: HashMap<u64, Waiting>,
    /// Most lines last, and of as many the oldest.
    order: BTreeSet<(u32, Reverse<u64>, u64)>,
    lines: u64,
    /// Lines that it has room for.
    room: u64,
    next_age: u64,
}

impl WriteLog {
    /// An empty one with room for so many lines.
    pub(crate) fn new(room: u64) -> Self {
        Self { pages: HashMap::new(), order: BTreeSet::new(), lines: 0, room, next_age: 0 }
    }

    /// Lines of a page come: a bit each.
    pub(crate) fn add(&mut self, page: u64, lines: u64) {
        if lines == 0 {
            return;
        }
        let before = self.take(page);
        let age = before.map_or(self.next_age, |waiting| waiting.age);
        self.next_age += 1;
        let lines = lines | before.map_or(0, |waiting| waiting.lines);
        self.pages.insert(page, Waiting { lines, age });
        self.order.insert((lines.count_ones(), Reverse(age), page));
        self.lines += u64::from(lines.count_ones());
    }

    /// Takes a page out; which of its lines waited.
    fn take(&mut self, page: u64) -> Option<Waiting> {
        let waiting = self.pages.remove(&page)?;
        self.order.remove(&(waiting.lines.count_ones(), Reverse(waiting.age), page));
        self.lines -= u64::from(waiting.lines.count_ones());
        Some(waiting)
    }

    /// What some pages had is of no use any more.
    pub(crate) fn forget(&mut self, pages: Range<u64>) {
        let found: Vec<_> = self.pages.keys().copied().filter(|page| pages.contains(page)).collect();
        for page in found {
            self.take(page);
        }
    }

    /// Takes the page out that frees the most, of several the oldest, if there are more lines than room.
    pub(crate) fn take_excess(&mut self) -> Option<(u64, u64)> {
        if self.lines <= self.room {
            return None;
        }
        let &(_, _, page) = self.order.last()?;
        self.take(page).map(|waiting| (page, waiting.lines))
    }

    /// Takes all pages out, in the order in which they came.
    pub(crate) fn take_all(&mut self) -> Vec<(u64, u64)> {
        let mut all: Vec<_> = self.pages.drain().collect();
        all.sort_unstable_by_key(|(_, waiting)| waiting.age);
        self.order.clear();
        self.lines = 0;
        all.into_iter().map(|(page, waiting)| (page, waiting.lines)).collect()
    }

    /// Lines that wait.
    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_frees_the_most_goes_first_and_all_go_in_their_order() {
        let mut log = WriteLog::new(6);
        for (page, lines) in [(9, 0b11), (2, 0b1), (7, 0b111), (9, 0b110), (5, 0)] {
            log.add(page, lines);
        }
        assert_eq!(log.lines(), 7);
        assert_eq!(log.take_excess(), Some((9, 0b111)), "as many lines as page 7, and older");
        assert_eq!((log.take_excess(), log.lines()), (None, 4));
        log.add(1, 0b1);
        log.forget(3..8);
        assert_eq!(log.lines(), 2);
        assert_eq!(log.take_all(), [(2, 1), (1, 1)]);
        assert_eq!(log.lines(), 0);
    }
}
