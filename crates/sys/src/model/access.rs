//! Bytes and words of a mapping in a model.

use crate::Mapping;
use crate::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use crate::model::Words;

impl Mapping {
    /// Its words; the range is inside.
    fn words(&self, offset: usize, len: usize) -> &Words {
        let _inside = self.at(offset, len);
        self.words.as_ref().expect("with the feature `model` memory has words in models only")
    }

    /// Copies `dst.len()` bytes from `offset` out of the mapping.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn read(&self, offset: usize, dst: &mut [u8]) {
        self.words(offset, dst.len()).read(offset, dst);
    }

    /// Copies `src` into the mapping at `offset`.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn write(&self, offset: usize, src: &[u8]) {
        self.words(offset, src.len()).write(offset, src);
    }

    /// As [`Mapping::read`]: in a model all of a program's memory is there.
    ///
    /// # Panics
    /// As [`Mapping::read`].
    pub fn give(&self, offset: usize, dst: &mut [u8]) {
        self.read(offset, dst);
    }

    /// As [`Mapping::give`]; all of it is there.
    ///
    /// # Panics
    /// As [`Mapping::read`].
    #[must_use]
    pub fn lend(&self, offset: usize, dst: &mut [u8]) -> bool {
        self.give(offset, dst);
        true
    }

    /// As [`Mapping::write`].
    ///
    /// # Panics
    /// As [`Mapping::read`].
    pub fn take(&self, offset: usize, src: &[u8]) {
        self.write(offset, src);
    }

    /// As [`Mapping::write`], all of which is there.
    ///
    /// # Panics
    /// As [`Mapping::read`].
    #[must_use]
    pub fn takes(&self, offset: usize, src: &[u8]) -> bool {
        self.write(offset, src);
        true
    }

    /// Sets `len` bytes from `offset` to `byte`.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        self.write(offset, &vec![byte; len]);
    }

    /// Copies `len` bytes from `offset` of this mapping to `to_offset` of `to`; ranges may overlap.
    ///
    /// # Panics
    /// When either range is not inside its mapping.
    pub fn copy(&self, offset: usize, to: &Mapping, to_offset: usize, len: usize) {
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes);
        to.write(to_offset, &bytes);
    }

    /// The atomic byte at `offset`.
    ///
    /// # Panics
    /// When it is outside.
    #[must_use]
    pub fn u8(&self, offset: usize) -> &AtomicU8 {
        self.words(offset, 1).u8(offset)
    }

    /// The atomic 16-bit word at `offset`.
    ///
    /// # Panics
    /// When it is outside, or not aligned.
    #[must_use]
    pub fn u16(&self, offset: usize) -> &AtomicU16 {
        assert!(offset.is_multiple_of(2), "16-bit word at odd offset {offset}");
        self.words(offset, 2).u16(offset)
    }

    /// The atomic 32-bit word at `offset`.
    ///
    /// # Panics
    /// When it is outside, or not aligned.
    #[must_use]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "32-bit word at offset {offset}");
        self.words(offset, 4).u32(offset)
    }

    /// The atomic 64-bit word at `offset`.
    ///
    /// # Panics
    /// When it is outside, or not aligned.
    #[must_use]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "64-bit word at offset {offset}");
        self.words(offset, 8).u64(offset)
    }
}
