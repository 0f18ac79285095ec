//! Which words of a block: what memory does not tear.

use crate::media::{BLOCK, SECTOR, SECTORS};
use core::ops::Range;

/// Bytes that memory never tears.
pub(crate) const WORD: usize = 8;

/// Words of 8 bytes of a block, a bit each; those of a sector are one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words([u64; SECTORS]);

impl Words {
    /// The whole block.
    pub const ALL: Self = Self([u64::MAX; SECTORS]);
    /// Nothing of it.
    pub(crate) const NONE: Self = Self([0; SECTORS]);

    /// Those that bytes `bytes` of a block lie in.
    pub(crate) fn of(bytes: Range<usize>) -> Self {
        let mut words = Self::NONE;
        for word in bytes.start / WORD..bytes.end.div_ceil(WORD) {
            words.0[word / 64] |= 1 << (word % 64);
        }
        words
    }

    /// The sectors of a number's bits.
    pub(crate) fn of_sectors(bits: u8) -> Self {
        Self(core::array::from_fn(|sector| if bits >> sector & 1 != 0 { u64::MAX } else { 0 }))
    }

    /// Of each sector, the words that `bits` answers.
    pub(crate) fn of_each(mut bits: impl FnMut() -> u64) -> Self {
        Self(core::array::from_fn(|_| bits()))
    }

    pub(crate) fn within(self, other: Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at] & other.0[at]))
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    /// Copies these words.
    pub(crate) fn copy(self, to: &mut [u8; BLOCK], from: &[u8; BLOCK]) {
        for (start, &bits) in (0..).step_by(SECTOR).zip(&self.0) {
            if bits == u64::MAX {
                to[start..start + SECTOR].copy_from_slice(&from[start..start + SECTOR]);
                continue;
            }
            let mut left = bits;
            while left != 0 {
                let at = start + left.trailing_zeros() as usize * WORD;
                to[at..at + WORD].copy_from_slice(&from[at..at + WORD]);
                left &= left - 1;
            }
        }
    }
}
