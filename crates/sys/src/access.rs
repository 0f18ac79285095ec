//! Bytes and words of a mapping: what other threads, processes and devices change meanwhile.

use crate::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use crate::door;
use crate::mapping::Mapping;
use core::ptr;

/// A mistake of the caller's, out of line with its words.
#[cold]
#[inline(never)]
fn misplaced(bits: u32, offset: usize) -> ! {
    panic!("a word of {bits} bits at offset {offset}")
}

impl Mapping {
    /// Copies `dst.len()` bytes from `offset` out of the mapping.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    #[inline]
    pub fn read(&self, offset: usize, dst: &mut [u8]) {
        let src = self.at(offset, dst.len());
        // SAFETY: `src` is valid for `dst.len()` bytes by `at`; `dst` is a unique reference, so it
        // cannot overlap a mapping to which no reference exists; u8 has no alignment. A concurrent
        // writer can tear the copied bytes, which callers detect by a sequence number or a checksum.
        unsafe { ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) }
    }

    /// Copies `src` into the mapping at `offset`.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    #[inline]
    pub fn write(&self, offset: usize, src: &[u8]) {
        let dst = self.at(offset, src.len());
        // SAFETY: as for `read`, with the roles exchanged.
        unsafe { ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) }
    }

    /// As [`Mapping::read`], into a buffer that may be a program's: what of it is not there is told by [`door::lost`].
    /// Until that is asked nothing is given behind the hole, where what is not the program's buffer lies. What is
    /// missing of a file that was cut short is told by [`Mapping::is_cut`] and not there.
    ///
    /// # Panics
    /// As [`Mapping::read`].
    #[inline]
    pub fn give(&self, offset: usize, dst: &mut [u8]) {
        if !door::is_usual() {
            return self.give_with_care(offset, dst);
        }
        let src = self.at(offset, dst.len());
        // SAFETY: as for `read`.
        let left = unsafe { door::transfer(dst.as_mut_ptr(), src, dst.len()) };
        if left > 0 && self.is_there(offset + dst.len() - left) {
            door::note(dst.as_ptr().addr() + dst.len() - left);
        }
    }

    /// Whether this side of a copy has the byte at `offset`, which the door met nothing at: a touch outside the door,
    /// which is answered by what guards the mapping.
    #[cold]
    fn is_there(&self, offset: usize) -> bool {
        self.u8(offset).load(crate::atomic::Ordering::Relaxed);
        !self.is_cut()
    }

    /// The same where this thread may have met a hole already, or no handler stands.
    #[cold]
    fn give_with_care(&self, offset: usize, dst: &mut [u8]) {
        // Once more, where the caller has not believed the first time; but nothing behind the hole.
        let sound = door::before_hole(dst);
        let dst = &mut dst[..sound];
        let src = self.at(offset, dst.len());
        // SAFETY: as for `read`.
        let arrived = unsafe { door::copy(dst.as_mut_ptr(), src, dst.len()) };
        if arrived < dst.len() && self.is_there(offset + arrived) {
            door::note(dst.as_ptr().addr() + arrived);
        }
    }

    /// As [`Mapping::give`], from memory whose file somebody may cut short, where nothing but the door answers that:
    /// whether this side had all of it. If not, some may have been copied.
    ///
    /// # Panics
    /// As [`Mapping::read`].
    #[inline(always)]
    #[must_use]
    pub fn lend(&self, offset: usize, dst: &mut [u8]) -> bool {
        if !door::is_usual() {
            return self.lend_with_care(offset, dst);
        }
        let src = self.at(offset, dst.len());
        // SAFETY: as for `read`.
        let left = unsafe { door::transfer(dst.as_mut_ptr(), src, dst.len()) };
        left == 0 || self.has_lent(offset, dst, left)
    }

    /// The same where this thread may have met a hole already, or no handler stands.
    #[cold]
    fn lend_with_care(&self, offset: usize, dst: &mut [u8]) -> bool {
        let sound = door::before_hole(dst);
        let dst = &mut dst[..sound];
        let src = self.at(offset, dst.len());
        // SAFETY: as for `read`.
        let arrived = unsafe { door::copy(dst.as_mut_ptr(), src, dst.len()) };
        arrived == dst.len() || self.has_lent(offset, dst, dst.len() - arrived)
    }

    /// After a copy that met nothing before the last `left` bytes: whether it was the buffer that was not there.
    #[cold]
    fn has_lent(&self, offset: usize, dst: &[u8], left: usize) -> bool {
        let mut byte = 0;
        // SAFETY: a local byte, and one that `at` has found in the mapping; the door answers for its being there.
        let there = unsafe { door::copy(&raw mut byte, self.at(offset + dst.len() - left, 1), 1) } == 1;
        if there {
            door::note(dst.as_ptr().addr() + dst.len() - left);
        }
        there
    }

    /// As [`Mapping::write`], from a buffer that may be a program's: what of it is not there becomes zeros, and is told
    /// as by [`Mapping::give`].
    ///
    /// # Panics
    /// As [`Mapping::read`].
    #[inline]
    pub fn take(&self, offset: usize, src: &[u8]) {
        let _ = self.takes(offset, src);
    }

    /// As [`Mapping::take`]; whether all of it was there.
    ///
    /// # Panics
    /// As [`Mapping::read`].
    #[inline]
    #[must_use]
    pub fn takes(&self, offset: usize, src: &[u8]) -> bool {
        let dst = self.at(offset, src.len());
        // SAFETY: as for `write`.
        let left = unsafe { door::transfer(dst, src.as_ptr(), src.len()) };
        if left > 0 {
            self.fill(offset + src.len() - left, left, 0);
            if !self.is_cut() {
                door::note(src.as_ptr().addr() + src.len() - left);
            }
        }
        left == 0
    }

    /// Sets `len` bytes from `offset` to `byte`.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    #[inline]
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        let dst = self.at(offset, len);
        // SAFETY: `dst` is valid for `len` bytes by `at`; nobody holds a reference to them.
        unsafe { ptr::write_bytes(dst, byte, len) }
    }

    /// Copies `len` bytes from `offset` of this mapping to `to_offset` of `to`; ranges may overlap.
    ///
    /// # Panics
    /// When either range is not inside its mapping.
    #[inline]
    pub fn copy(&self, offset: usize, to: &Mapping, to_offset: usize, len: usize) {
        let (src, dst) = (self.at(offset, len), to.at(to_offset, len));
        // SAFETY: both ranges are valid for `len` bytes by `at`; `copy` allows overlap.
        unsafe { ptr::copy(src, dst, len) }
    }

    /// The atomic byte at `offset`.
    ///
    /// # Panics
    /// When it is outside.
    #[inline]
    #[must_use]
    pub fn u8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: in bounds by `at`; a byte is always aligned; lives as long as `self`; everyone
        // else reaches it by atomics or by racy copies, which the type's contract allows.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }
    }

    /// The atomic 16-bit word at `offset`.
    ///
    /// # Panics
    /// When it is outside, or not aligned.
    #[inline]
    #[must_use]
    pub fn u16(&self, offset: usize) -> &AtomicU16 {
        if !offset.is_multiple_of(2) {
            misplaced(16, offset);
        }
        // SAFETY: in bounds by `at`, aligned by the assert (the base is page-aligned), otherwise as `u8`.
        unsafe { AtomicU16::from_ptr(self.at(offset, 2).cast()) }
    }

    /// The atomic 32-bit word at `offset`.
    ///
    /// # Panics
    /// When it is outside, or not aligned.
    #[inline]
    #[must_use]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        if !offset.is_multiple_of(4) {
            misplaced(32, offset);
        }
        // SAFETY: as `u16`.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// The atomic 64-bit word at `offset`.
    ///
    /// # Panics
    /// When it is outside, or not aligned.
    #[inline]
    #[must_use]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        if !offset.is_multiple_of(8) {
            misplaced(64, offset);
        }
        // SAFETY: as `u16`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }
}
