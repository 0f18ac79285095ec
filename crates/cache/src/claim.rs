//! A page that is being brought into the cache.

use crate::cache::Cache;
use crate::entry::{BACKED, DIRTY, Entry};
use crate::object::Object;
use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_units::{BLOCK_BYTES, Page};
use std::sync::Arc;

/// What a claim found.
pub enum Claimed<'a> {
    /// The page was missing and is the caller's to fill.
    Fill(Claim<'a>),
    /// The page is there.
    Present,
}

/// What a filled page is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageState {
    /// Its bytes are newer than the device's.
    pub dirty: bool,
    /// It has a block on the device, or the promise of one.
    pub backed: bool,
}

/// A missing page with a frame to fill: all 4096 bytes of it, since the frame holds another page's.
///
/// Readers of the page wait until the claim ends. Dropping it abandons the page.
#[must_use]
pub struct Claim<'a> {
    cache: &'a Cache,
    object: &'a Arc<Object>,
    page: Page,
    slot: &'a AtomicU64,
    frame: u32,
    published: bool,
}

impl<'a> Claim<'a> {
    pub(crate) fn new(
        cache: &'a Cache,
        object: &'a Arc<Object>,
        page: Page,
        slot: &'a AtomicU64,
        frame: u32,
    ) -> Self {
        Self { cache, object, page, slot, frame, published: false }
    }

    /// The page claimed.
    #[must_use]
    pub fn page(&self) -> Page {
        self.page
    }

    /// Where the frame lies in the mapping: for a device to write to.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.cache.layout.frame(self.frame)
    }

    /// Copies `src` to `offset` of the frame.
    ///
    /// # Panics
    /// When the range leaves the page.
    pub fn write(&self, offset: usize, src: &[u8]) {
        assert!(offset + src.len() <= BLOCK_BYTES, "{} bytes at {offset} of a page", src.len());
        self.cache.memory.take(self.offset() + offset, src);
    }

    /// Zeroes `len` bytes at `offset` of the frame.
    ///
    /// # Panics
    /// When the range leaves the page.
    pub fn zero(&self, offset: usize, len: usize) {
        assert!(offset + len <= BLOCK_BYTES, "{len} bytes at {offset} of a page");
        self.cache.memory.fill(self.offset() + offset, len, 0);
    }

    /// Shows the filled page to everybody; whether it is its object's first dirty one.
    pub fn publish(mut self, state: PageState) -> bool {
        self.published = true;
        self.object.index.learn(self.page, self.frame);
        let flags = if state.backed { BACKED } else { 0 } | if state.dirty { DIRTY } else { 0 };
        let entry = Entry(self.slot.load(Ordering::Relaxed)).present(self.frame, flags);
        let first = state.dirty && self.cache.note_dirty(self.object, self.page, entry);
        self.cache.waiting.end_claim(self.page, self.slot, entry);
        first
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.published {
            let entry = Entry(self.slot.load(Ordering::Relaxed)).absent();
            self.cache.waiting.end_claim(self.page, self.slot, entry);
            self.cache.eviction().release(self.frame);
        }
    }
}
