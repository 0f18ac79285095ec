//! Dirty pages on their way to the device, and pages that nobody wants any more.

use crate::cache::Cache;
use crate::entry::{self, BACKED, DIRTY, Entry, FILLING, PRESENT, WRITEBACK};
use crate::index::Prune;
use crate::object::Object;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_sys::sync::MutexGuard;
use nvmed_units::Page;

/// A page to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyPage {
    /// Page of the object.
    pub page: Page,
    /// Where its bytes lie in the mapping. Writers may change them until the page is completed; it is
    /// then dirty again.
    pub offset: usize,
}

/// A page that holds what the device has not.
struct Dirty;

/// How a write to the device ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device has the bytes.
    Written,
    /// It has not: the pages stay dirty.
    Failed,
}

/// The right to write back and to discard pages of one object; one thread has it at a time.
///
/// Pages taken must be completed before this is dropped.
#[must_use]
pub struct WriteBack<'a> {
    cache: &'a Cache,
    object: &'a Object,
    _turn: MutexGuard<'a, ()>,
}

impl Cache {
    /// Waits for the right to write back and to discard pages of `object`.
    pub fn write_back<'a>(&'a self, object: &'a Object) -> WriteBack<'a> {
        let turn = object.pass.lock();
        WriteBack { cache: self, object, _turn: turn }
    }
}

impl WriteBack<'_> {
    /// Appends up to `pages_max` dirty pages of a range to `out`, in ascending order.
    ///
    /// They count as clean from now on, unless somebody writes to them or [`WriteBack::complete`] says
    /// that they were not written.
    pub fn take(&mut self, range: Range<Page>, pages_max: usize, out: &mut Vec<DirtyPage>) {
        let mut from = range.start;
        let wanted = out.len() + pages_max;
        while out.len() < wanted {
            let Some(page) = self.object.index.next_dirty(from, Prune::Yes) else { return };
            if page >= range.end {
                return;
            }
            if let Some(offset) = self.begin(page) {
                out.push(DirtyPage { page, offset });
            }
            from = page + 1;
        }
    }

    fn begin(&self, page: Page) -> Option<usize> {
        let slot = self.object.index.find(page)?;
        let seen = entry::lock(slot)?;
        if !seen.has(DIRTY) {
            entry::unlock(slot, seen);
            return None;
        }
        self.object.index.unmark(page);
        self.object.dirty.fetch_sub(1, Ordering::AcqRel);
        entry::unlock(slot, seen.without(DIRTY).with(WRITEBACK));
        Some(self.cache.layout.frame(seen.frame()))
    }

    /// Ends the write of pages that [`WriteBack::take`] gave.
    pub fn complete(&mut self, pages: &[DirtyPage], outcome: Outcome) {
        for page in pages {
            self.finish(page.page, outcome);
        }
        if outcome == Outcome::Written {
            self.cache.writebacks.fetch_add(pages.len() as u64, Ordering::Relaxed);
            let mut eviction = self.cache.eviction();
            for page in pages {
                // Only after the entry was made clean: an evictor who still saw it dirty has parked it.
                if let Some(slot) = self.object.index.find(page.page) {
                    eviction.unpark(Entry::load(slot).frame());
                }
            }
        }
    }

    /// Ends the write of a page whose bytes went somewhere else than to a block of its own. False when somebody
    /// wrote to it meanwhile: it is dirty then and keeps its promise; else it is clean and has neither block nor
    /// promise from now on.
    #[must_use = "who holds the promise gives it back, or not"]
    pub fn complete_elsewhere(&mut self, page: &DirtyPage) -> bool {
        let slot = self.object.index.find(page.page).expect("a page in write-back keeps its entry");
        let seen = entry::lock(slot).expect("a page in write-back stays in the cache");
        if seen.has(DIRTY) {
            entry::unlock(slot, seen.without(WRITEBACK));
            return false;
        }
        self.cache.note_clean(seen.frame());
        entry::unlock(slot, seen.without(WRITEBACK | BACKED));
        self.cache.writebacks.fetch_add(1, Ordering::Relaxed);
        self.cache.eviction().unpark(seen.frame());
        true
    }

    fn finish(&self, page: Page, outcome: Outcome) {
        let slot = self.object.index.find(page).expect("a page in write-back keeps its entry");
        let seen = entry::lock(slot).expect("a page in write-back stays in the cache");
        let (clean, dirty) = (seen.without(WRITEBACK), seen.has(DIRTY));
        let after = match outcome {
            Outcome::Written => {
                if !dirty {
                    self.cache.note_clean(seen.frame());
                }
                clean.with(BACKED)
            }
            Outcome::Failed => {
                if !dirty {
                    self.cache.note_dirty(self.object, page, seen);
                }
                clean.with(DIRTY)
            }
        };
        entry::unlock(slot, after);
    }

    /// Forgets the pages of a range, dirty ones too. Waits for those that somebody is filling: hold no
    /// claim, and no lock that a filler may need.
    pub fn discard(&mut self, range: Range<Page>) {
        let mut frames = Vec::new();
        self.object.index.visit(range, &mut |page, slot| {
            if let Some(frame) = self.forget(page, slot) {
                frames.push(frame);
            }
        });
        if !frames.is_empty() {
            let mut eviction = self.cache.eviction();
            // The lowest frame is reused first, so that a large mapping stays densely used.
            frames.iter().rev().for_each(|frame| eviction.release(*frame));
        }
    }

    /// As [`WriteBack::discard`], but spares dirty pages; whether there was none. What is discarded was read before
    /// this call, also if it was being filled when the call began.
    pub fn discard_clean(&mut self, range: Range<Page>) -> bool {
        let (mut frames, mut all) = (Vec::new(), true);
        self.object.index.visit(range, &mut |page, slot| match self.forget_clean(page, slot) {
            Ok(frame) => frames.extend(frame),
            Err(_dirty) => all = false,
        });
        if !frames.is_empty() {
            let mut eviction = self.cache.eviction();
            frames.iter().rev().for_each(|frame| eviction.release(*frame));
        }
        all
    }

    fn forget_clean(&self, page: Page, slot: &AtomicU64) -> Result<Option<u32>, Dirty> {
        loop {
            let seen = Entry::load(slot);
            if seen.has(FILLING) {
                self.cache.waiting.sleep(page, slot);
            } else if !seen.has(PRESENT) {
                return Ok(None);
            } else if let Some(seen) = entry::lock(slot) {
                debug_assert!(!seen.has(WRITEBACK), "pages taken are completed first");
                if seen.has(DIRTY) {
                    entry::unlock(slot, seen);
                    return Err(Dirty);
                }
                entry::unlock(slot, seen.absent());
                return Ok(Some(seen.frame()));
            }
        }
    }

    fn forget(&self, page: Page, slot: &AtomicU64) -> Option<u32> {
        loop {
            let seen = Entry::load(slot);
            if seen.has(FILLING) {
                self.cache.waiting.sleep(page, slot);
            } else if !seen.has(PRESENT) {
                return None;
            } else if let Some(seen) = entry::lock(slot) {
                debug_assert!(!seen.has(WRITEBACK), "pages taken are completed first");
                if seen.has(DIRTY) {
                    self.object.index.unmark(page);
                    self.object.dirty.fetch_sub(1, Ordering::AcqRel);
                    self.cache.note_clean(seen.frame());
                }
                entry::unlock(slot, seen.absent());
                return Some(seen.frame());
            }
        }
    }
}
