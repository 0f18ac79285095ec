//! What lies where in the cache's mapping, and what a dead process left there.
//!
//! The mapping may be shared memory that outlives the process. The table is
//! `header 64 B | descriptor 16 B a frame | use counter 1 B a frame`; a descriptor is the owner and,
//! when the frame is dirty, `page.0 << 8 | 1`, else 0. Zeroed memory is an empty table.

use crate::FRAMES_MAX;
use core::sync::atomic::Ordering;
use nvmed_sys::{HUGE_BYTES, Mapping};
use nvmed_units::{BLOCK_BYTES, BLOCK_SHIFT, Page};

const HEADER_BYTES: usize = 64;
const DESCRIPTOR_BYTES: usize = 16;
const DIRTY_MARK: u64 = 1;
const FRAMES_A_HUGE_PAGE: u32 = (HUGE_BYTES / BLOCK_BYTES) as u32;

/// Where a cache lies in its mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// First byte of the table, a multiple of 8; [`Layout::table_bytes`] long.
    pub table_offset: usize,
    /// First byte of the frames, a multiple of 4096.
    pub frames_offset: usize,
    /// Frames, at most [`FRAMES_MAX`].
    pub frames: u32,
}

/// A dirty frame of a process that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survivor {
    /// What the object was made with: the inode number.
    pub owner: u64,
    /// Page of the object.
    pub page: Page,
    /// Where its bytes lie in the mapping.
    pub offset: usize,
}

impl Layout {
    /// Bytes of the table of `frames` frames, a multiple of 4096.
    #[must_use]
    pub const fn table_bytes(frames: u32) -> usize {
        (HEADER_BYTES + frames as usize * (DESCRIPTOR_BYTES + 1)).next_multiple_of(BLOCK_BYTES)
    }

    /// Checks that the layout lies inside `memory`.
    ///
    /// # Panics
    /// When it does not: whoever made the layout sized the mapping by it.
    pub(crate) fn assert_inside(&self, memory: &Mapping) {
        assert!(self.frames > 0 && self.frames <= FRAMES_MAX, "{} frames", self.frames);
        assert!(self.table_offset.is_multiple_of(8), "table at {}", self.table_offset);
        assert!(self.frames_offset.is_multiple_of(BLOCK_BYTES), "frames at {}", self.frames_offset);
        let table_end = self.table_offset + Self::table_bytes(self.frames);
        let frames_end = self.frames_offset + self.frames as usize * BLOCK_BYTES;
        assert!(table_end <= self.frames_offset || frames_end <= self.table_offset, "table among the frames");
        assert!(table_end.max(frames_end) <= memory.len(), "the mapping has only {} bytes", memory.len());
    }

    /// Where a frame's bytes are.
    #[inline]
    pub(crate) fn frame(&self, frame: u32) -> usize {
        self.frames_offset + ((frame as usize) << BLOCK_SHIFT)
    }

    /// Where the huge page begins that this frame is the first of, unless it is one of the first frames: a mount that
    /// uses few takes no more memory than they have.
    pub(crate) fn huge_page(&self, frame: u32) -> Option<usize> {
        let at = self.frame(frame);
        let is_whole = at.is_multiple_of(HUGE_BYTES) && self.frames - frame >= FRAMES_A_HUGE_PAGE;
        (is_whole && frame >= FRAMES_A_HUGE_PAGE).then_some(at)
    }

    /// Of the huge page behind the one that begins with this frame, the same.
    pub(crate) fn next_huge_page(&self, frame: u32) -> Option<usize> {
        let next = frame.checked_add(FRAMES_A_HUGE_PAGE).filter(|next| *next < self.frames)?;
        self.huge_page(next)
    }

    fn descriptor(&self, frame: u32) -> usize {
        self.table_offset + HEADER_BYTES + frame as usize * DESCRIPTOR_BYTES
    }

    /// Where a frame's use counter is: one dense array, so that 64 frames share a line.
    #[inline]
    pub(crate) fn uses(&self, frame: u32) -> usize {
        self.table_offset + HEADER_BYTES + self.frames as usize * DESCRIPTOR_BYTES + frame as usize
    }

    /// Empties the table of an earlier life, which had used the frames below its high water mark.
    pub(crate) fn clear(&self, memory: &Mapping) {
        let used = self.high_water(memory);
        memory.fill(self.descriptor(0), used as usize * DESCRIPTOR_BYTES, 0);
        memory.fill(self.uses(0), used as usize, 0);
        self.set_high_water(memory, 0);
    }

    /// Frames from here on were never used.
    fn high_water(&self, memory: &Mapping) -> u32 {
        memory.u32(self.table_offset).load(Ordering::Acquire).min(self.frames)
    }

    pub(crate) fn set_high_water(&self, memory: &Mapping, frames: u32) {
        memory.u32(self.table_offset).store(frames, Ordering::Release);
    }

    /// Records that a frame holds bytes that no device has. The caller holds the page's lock.
    ///
    /// Should the process die in between, the mark is missing and the call that wrote was not completed.
    pub(crate) fn mark_dirty(&self, memory: &Mapping, frame: u32, owner: u64, page: Page) {
        let at = self.descriptor(frame);
        memory.u64(at).store(owner, Ordering::Relaxed);
        // Barrier D1, pairs with D2 in `survivors`: who sees the mark sees the owner and the bytes.
        memory.u64(at + 8).store(page.0 << 8 | DIRTY_MARK, Ordering::Release);
    }

    pub(crate) fn mark_clean(&self, memory: &Mapping, frame: u32) {
        memory.u64(self.descriptor(frame) + 8).store(0, Ordering::Release);
    }

    pub(crate) fn is_marked(&self, memory: &Mapping, frame: u32) -> bool {
        memory.u64(self.descriptor(frame) + 8).load(Ordering::Relaxed) != 0
    }

    /// The dirty frames that a dead process left in `memory`, in no order.
    ///
    /// A table that holds nonsense gives survivors whose owner or page the caller does not know.
    pub fn survivors(self, memory: &Mapping) -> impl Iterator<Item = Survivor> + '_ {
        (0..self.high_water(memory)).filter_map(move |frame| {
            let at = self.descriptor(frame);
            // Barrier D2, pairs with D1 in `mark_dirty`.
            let word = memory.u64(at + 8).load(Ordering::Acquire);
            let owner = memory.u64(at).load(Ordering::Relaxed);
            let page = Page(word >> 8);
            let sane = word & 0xff == DIRTY_MARK && page.0 < crate::PAGES_MAX;
            sane.then_some(Survivor { owner, page, offset: self.frame(frame) })
        })
    }
}
