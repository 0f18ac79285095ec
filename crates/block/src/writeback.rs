//! Dirty pages to the device, in the order of their blocks.

use crate::cached::{BlockCache, pages_of};
use crate::error::BlockError;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use nvmed_cache::{DirtyPage, Outcome};
use nvmed_io::{Handle, IoError, Operation};
use nvmed_units::{BLOCK_BYTES, ByteOffset, Page};

/// Pages taken at once, 4 MiB: others may write back or read dirty pages past the cache in between.
const STEP_PAGES: usize = 1024;

/// Pages that are looked at one by one before the write-back right is taken: looking costs some 10 ns a page.
const FEW_PAGES: u64 = 256;

/// Counts a thread that writes back.
struct Busy<'a>(&'a AtomicU32);

impl<'a> Busy<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl BlockCache {
    /// Writes every dirty page of a range to the device.
    ///
    /// # Errors
    /// The first; pages that the device did not take stay dirty.
    pub(crate) fn write_back(&self, io: &Handle, pages: Range<Page>, fua: bool) -> Result<u64, BlockError> {
        let mut from = pages.start;
        let mut written = 0;
        while let Some((count, next)) = self.step(io, from..pages.end, fua)? {
            (written, from) = (written + count, next);
        }
        Ok(written)
    }

    /// Writes a range back; with `fua`, what calls before this one wrote there is durable afterwards.
    pub(crate) fn write_durable(&self, io: &Handle, pages: Range<Page>, fua: bool) -> Result<(), BlockError> {
        let count = pages.end - pages.start;
        let written = self.write_back(io, pages, fua)?;
        if fua && written < count {
            // Somebody else wrote the others back, perhaps into the device's cache only.
            io.flush()?;
        }
        Ok(())
    }

    /// Writes some dirty pages back, going round the device; answers how many.
    pub(crate) fn relieve(&self, io: &Handle) -> Result<u64, BlockError> {
        let from = Page(self.cursor.load(Ordering::Relaxed));
        let step = match self.step(io, from..Page::END, false)? {
            None => self.step(io, Page::ALL, false)?,
            some => some,
        };
        let (count, next) = step.unwrap_or((0, Page::FIRST));
        self.cursor.store(next.0, Ordering::Relaxed);
        Ok(count)
    }

    /// Writes up to [`STEP_PAGES`] pages of a range; answers how many and where to go on, none when none was dirty.
    fn step(&self, io: &Handle, pages: Range<Page>, fua: bool) -> Result<Option<(u64, Page)>, BlockError> {
        // Counted before the first page stops being dirty: who sees neither sees the device's bytes.
        let _busy = Busy::new(&self.busy);
        let mut pass = self.cache.write_back(&self.object);
        let dirty = self.object.dirty_pages() as usize;
        let mut taken = Vec::with_capacity(dirty.min(STEP_PAGES));
        pass.take(pages, STEP_PAGES, &mut taken);
        let Some(last) = taken.last() else { return Ok(None) };
        let next = last.page + 1;
        if let Err(first) = self.send(io, &taken, fua) {
            self.failed.fetch_add(1, Ordering::Relaxed);
            // One bad block does not keep the others dirty.
            for page in taken.chunks(1) {
                let outcome =
                    if self.send(io, page, fua).is_ok() { Outcome::Written } else { Outcome::Failed };
                pass.complete(page, outcome);
            }
            return Err(first.into());
        }
        pass.complete(&taken, Outcome::Written);
        Ok(Some((taken.len() as u64, next)))
    }

    fn send(&self, io: &Handle, pages: &[DirtyPage], fua: bool) -> Result<(), IoError> {
        self.transfer(io, Operation::Write { fua }, pages.iter().map(|page| (page.page, page.offset)))
    }

    /// Writes back what is dirty in a range, and waits for what is on its way.
    pub(crate) fn settle(&self, io: &Handle, pages: Range<Page>) -> Result<(), BlockError> {
        // In this order: a page on its way is not dirty any more, and may become dirty again.
        let quiet = self.object.dirty_pages() == 0
            && self.busy.load(Ordering::SeqCst) == 0
            && self.object.dirty_pages() == 0;
        let few = pages.end - pages.start <= FEW_PAGES;
        if !quiet && (!few || Page::each(pages.clone()).any(|page| self.cache.is_dirty(&self.object, page))) {
            self.write_back(io, pages, false)?;
        }
        Ok(())
    }

    /// Writes everything back and forgets it. The caller has the whole range alone.
    pub(crate) fn empty(&self, io: &Handle) -> Result<(), BlockError> {
        self.write_back(io, Page::ALL, false)?;
        self.cache.write_back(&self.object).discard(Page::ALL);
        Ok(())
    }

    /// Forgets the pages of a range of bytes that will be written past the cache; what is dirty beside it in the
    /// same pages goes to the device. The caller has the pages' range alone.
    pub(crate) fn forget(&self, io: &Handle, offset: u64, len: u64) -> Result<(), BlockError> {
        let pages = pages_of(offset, len);
        let few = pages.end - pages.start <= FEW_PAGES;
        if few && !Page::each(pages.clone()).any(|page| self.cache.has(&self.object, page)) {
            return Ok(());
        }
        let (block, end) = (BLOCK_BYTES as u64, offset + len);
        if !offset.is_multiple_of(block) {
            self.write_back(io, pages.start..pages.start + 1, false)?;
        }
        if !end.is_multiple_of(block) {
            self.write_back(io, ByteOffset(end).page()..pages.end, false)?;
        }
        self.cache.write_back(&self.object).discard(pages);
        Ok(())
    }
}
