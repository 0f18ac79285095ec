//! Regions of a direct window, of 64 pages of the file each: a count of their changes, so that a reader of many pages
//! looks at one word before its copy and at the same one behind it, and the block of the first page where all of them
//! lie side by side. Layout and barriers: docs/spec/shared.md, "Direct windows".

use crate::window::{PAGE, WORDS};
use nvmed_sys::Mapping;
use nvmed_sys::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Of a large read so much at most is copied again because something in it has changed.
/// In a model few.
pub(crate) const REGION_PAGES: u64 = if cfg!(feature = "model") { 2 } else { 64 };
pub(crate) const REGION_BYTES: u64 = REGION_PAGES * PAGE as u64;
/// Bytes of a direct window for each region: the count, the run, and four that are not used.
const REGION: usize = 16;
const RUN: usize = 8;

/// In a count: one change under way. They are fewer than threads can be.
const UNDER_WAY: u64 = 1;
/// In a count: one change that is over.
const OVER: u64 = 1 << 20;

/// Where the pages' entries begin, behind the regions of so many pages.
pub(crate) const fn entries(pages: u64) -> usize {
    WORDS + pages.div_ceil(REGION_PAGES) as usize * REGION
}

/// A region's words.
#[derive(Clone, Copy)]
pub(crate) struct Region<'a> {
    count: &'a AtomicU64,
    run: &'a AtomicU32,
}

impl<'a> Region<'a> {
    #[inline(always)]
    pub(crate) fn of(memory: &'a Mapping, region: u64) -> Self {
        let at = WORDS + region as usize * REGION;
        Self { count: memory.u64(at), run: memory.u32(at + RUN) }
    }

    /// Server: something in it changes from now on; a fence follows (W1).
    pub(crate) fn begin(self) {
        self.count.fetch_add(UNDER_WAY, Ordering::Relaxed);
    }

    /// Server: that change is over.
    pub(crate) fn end(self) {
        // Barrier W3, pairs with R3: who sees that it is over finds what it has left.
        self.count.fetch_add(OVER - UNDER_WAY, Ordering::Release);
    }

    /// Server: its pages lie side by side from this block on. Said by who has all of them locked.
    pub(crate) fn set_run(self, block: u32) {
        // Barrier W4, pairs with R5: who finds a block finds its bytes, and the changes that went before it.
        self.run.store(block + 1, Ordering::Release);
    }

    /// Server: they do not. Said by who has one of them locked.
    pub(crate) fn clear_run(self) {
        self.run.store(0, Ordering::Relaxed);
    }

    /// Client: the count, if no change is under way.
    #[inline(always)]
    pub(crate) fn settled(self) -> Option<u64> {
        // Barrier R3, pairs with W3: places and bytes are not older than this count.
        let count = self.count.load(Ordering::Acquire);
        count.is_multiple_of(OVER).then_some(count)
    }

    /// Client: whether no change has begun since the count was that.
    #[inline(always)]
    pub(crate) fn is_still(self, count: u64) -> bool {
        // Barrier R4, pairs with W1 and W4: had a changed byte been copied, or one of a block that was another's by
        // then, this load would see another count.
        fence(Ordering::Acquire);
        self.count.load(Ordering::Relaxed) == count
    }

    /// Client: the block from which on its pages lie side by side, if they do.
    #[inline(always)]
    pub(crate) fn run(self) -> Option<u32> {
        // Barrier R5, pairs with W4: bytes are not older than what tells of them.
        let run = self.run.load(Ordering::Acquire);
        run.checked_sub(1)
    }
}
