//! Which granules of a medium were stored to since they were last taken: what the host has to be told of, or what a
//! buffer has to write home.
//!
//! A bit a granule, and a bit for each word of those, so that a fence looks at little.

use nvmed_image::Span;
use nvmed_sys::atomic::Ordering;
use nvmed_sys::{Mapping, Pages};
use rustix::io::Errno;

/// Granules of a word.
const WORD: u64 = 64;

/// The granules of one medium.
#[derive(Debug)]
pub(crate) struct Dirty {
    /// Bytes of a granule.
    granule: u64,
    words: Mapping,
    summary: Mapping,
    /// Words of the summary.
    summaries: u64,
}

impl Dirty {
    /// No granule, of `granule` bytes each, of `bytes` bytes. Its pages appear when touched, so that opening does not
    /// depend on the size.
    ///
    /// # Errors
    /// What `mmap` answers.
    pub(crate) fn new(bytes: u64, granule: u64) -> Result<Self, Errno> {
        let words = bytes.div_ceil(granule).div_ceil(WORD);
        let summaries = words.div_ceil(WORD);
        let map = |words: u64| {
            let bytes = usize::try_from(words * 8).map_err(|_| Errno::NOMEM)?;
            Mapping::anonymous(bytes, Pages::Base)
        };
        Ok(Self { granule, words: map(words)?, summary: map(summaries)?, summaries })
    }

    /// Notes a range, after it was stored. Each note is a read-modify-write, also where the bit is set: it keeps the
    /// stores before it, which could otherwise still wait in this processor while another one's fence takes the bit.
    #[inline]
    pub(crate) fn mark(&self, span: Span) {
        if span.bytes == 0 {
            return;
        }
        let (first, last) = (span.offset / self.granule, (span.end() - 1) / self.granule);
        for word in first / WORD..=last / WORD {
            let (low, high) = (first.max(word * WORD) % WORD, last.min(word * WORD + WORD - 1) % WORD);
            let bits = u64::MAX << low & u64::MAX >> (WORD - 1 - high);
            self.words.u64(word as usize * 8).fetch_or(bits, Ordering::AcqRel);
            let summary = self.summary.u64((word / WORD) as usize * 8);
            summary.fetch_or(1 << (word % WORD), Ordering::AcqRel);
        }
    }

    /// Takes all notes: from the first granule to the last, and whether all between are noted.
    pub(crate) fn take(&self) -> Option<(Span, bool)> {
        let mut found: Option<(u64, u64, u64)> = None;
        self.take_words(|word, bits| {
            let low = word * WORD + u64::from(bits.trailing_zeros());
            let high = word * WORD + WORD - 1 - u64::from(bits.leading_zeros());
            let (first, _, count) = found.unwrap_or((low, low, 0));
            found = Some((first, high, count + u64::from(bits.count_ones())));
        });
        let (first, last, count) = found?;
        let granules = last - first + 1;
        let span = Span { offset: first * self.granule, bytes: granules * self.granule };
        Some((span, count == granules))
    }

    /// Takes all notes: each granule's number, in their order.
    pub(crate) fn take_each(&self, mut one: impl FnMut(u64)) {
        self.take_words(|word, mut bits| {
            while bits != 0 {
                one(word * WORD + u64::from(bits.trailing_zeros()));
                bits &= bits - 1;
            }
        });
    }

    /// Takes all notes, a word of granules at a time.
    fn take_words(&self, mut one: impl FnMut(u64, u64)) {
        for index in 0..self.summaries {
            let summary = self.summary.u64(index as usize * 8);
            if summary.load(Ordering::Acquire) == 0 {
                continue;
            }
            // Before the words: a note that comes between is taken now, and its bit here finds nothing next time.
            let mut left = summary.swap(0, Ordering::AcqRel);
            while left != 0 {
                let word = index * WORD + u64::from(left.trailing_zeros());
                left &= left - 1;
                let bits = self.words.u64(word as usize * 8).swap(0, Ordering::AcqRel);
                if bits != 0 {
                    one(word, bits);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 64 << 10;

    fn span(offset: u64, bytes: u64) -> Span {
        Span { offset, bytes }
    }

    #[test]
    fn notes_are_taken_once_and_a_gap_is_told() {
        let dirty = Dirty::new(10_000 * G, G).unwrap();
        assert_eq!(dirty.take(), None);
        dirty.mark(span(0, 0));
        assert_eq!(dirty.take(), None);
        for (marks, want) in [
            (vec![span(5, 1)], (span(0, G), true)),
            (vec![span(G - 1, 2)], (span(0, 2 * G), true)),
            (vec![span(63 * G, 2 * G)], (span(63 * G, 2 * G), true)),
            (vec![span(7, 9000 * G)], (span(0, 9001 * G), true)),
            (vec![span(9999 * G, G)], (span(9999 * G, G), true)),
            (vec![span(3 * G, G), span(0, 1), span(4095 * G, 8)], (span(0, 4096 * G), false)),
            (vec![span(3 * G, G), span(5 * G, G)], (span(3 * G, 3 * G), false)),
            (vec![span(4096 * G, G), span(4095 * G, G)], (span(4095 * G, 2 * G), true)),
        ] {
            marks.iter().for_each(|&mark| dirty.mark(mark));
            assert_eq!(dirty.take(), Some(want), "{marks:?}");
            assert_eq!(dirty.take(), None, "{marks:?}");
        }
    }
    #[test]
    fn each_note_is_taken_in_order() {
        let dirty = Dirty::new(10_000 * G, G).unwrap();
        [9000, 70, 3, 64, 3].iter().for_each(|&at| dirty.mark(span(at * G, 1)));
        let mut found = Vec::new();
        dirty.take_each(|granule| found.push(granule));
        assert_eq!(found, [3, 64, 70, 9000]);
        dirty.take_each(|granule| panic!("{granule} once more"));
    }
}
