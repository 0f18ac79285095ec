//! Changing what a file has without writing to it: truncate, fallocate, and the map of its holes.

use crate::allocation::Allocation;
use crate::blocks::alloc::Near;
use crate::error::FsError;
use crate::extent::{BlockMapping, EXTENT_BLOCKS_MAX, Extents};
use crate::filedata::{Growing, Quiet};
use crate::inode::Inode;
use crate::metadata::promises::PagePromise;
use crate::pages::Pages;
use core::ops::Range;
use nvmed_layout::record::{EXTENT_UNWRITTEN, Extent};
use nvmed_sys::sync::Arc;
use nvmed_units::{ByteOffset, Page};

impl Pages {
    /// Makes a file shorter. Also where it ends already: blocks allocated past the end go.
    pub(super) fn shrink(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        end: ByteOffset,
    ) -> Result<(), FsError> {
        assert!(grow.is_of(&inode.data), "inode {} shrinks under another's lock", inode.ino);
        let before = inode.end();
        if end == before && inode.blocks() == 0 {
            return Ok(());
        }
        let quiet = inode.data.quiet();
        self.meta.drop_prealloc(inode);
        inode.data.resize_mapped(end)?;
        self.unrecorded.set_size(inode, end, None);
        let removed = self.remove_pages((grow, &quiet), inode, end.page_end()..Page::END, Some(end));
        if removed.is_err() {
            self.unrecorded.set_size(inode, before, None);
        } else {
            let recorded = inode.lock().record().size;
            self.unrecorded.size_recorded(inode, recorded);
            if end == ByteOffset::FIRST && inode.blocks() == 0 {
                // A new file: it may lie in its record again.
                inode.data.residence.admit(grow);
            }
        }
        drop(quiet);
        removed
    }

    /// Takes blocks, promises and cached pages of a range away, and with `file_end` lowers the recorded
    /// size with them.
    fn remove_pages(
        &self,
        (grow, quiet): (&Growing<'_>, &Quiet<'_>),
        inode: &Arc<Inode>,
        pages: Range<Page>,
        file_end: Option<ByteOffset>,
    ) -> Result<(), FsError> {
        let is_its = grow.is_of(&inode.data) && quiet.io().is_of(&inode.data);
        assert!(is_its, "inode {} loses blocks under another's lock", inode.ino);
        let promised = self.promised_in(inode, pages.clone())?;
        let object = &inode.data.object;
        let removed = self.meta.remove_blocks(inode, pages.clone(), file_end);
        if removed.is_ok() {
            // After the extents: who fills a page from now on finds a hole.
            self.cache.write_back(object).discard(pages);
            drop(PagePromise::taken_back(&self.meta, inode, promised));
        }
        removed
    }

    /// Dirty pages of a range that have a promise instead of a block.
    fn promised_in(&self, inode: &Arc<Inode>, pages: Range<Page>) -> Result<u64, FsError> {
        if inode.data.purse.blocks() == 0 {
            return Ok(0);
        }
        let mut state = inode.lock();
        self.meta.with_extents(inode, &mut state, |_, extents| {
            let mut promised = 0;
            let mut from = pages.start;
            while let Some(page) = inode.data.object.next_dirty(from).filter(|page| *page < pages.end) {
                promised += u64::from(!extents.has(page));
                from = page + 1;
            }
            Ok(promised)
        })
    }
}

impl Allocation for Pages {
    fn has_data(&self, inode: &Inode, page: Page) -> Result<bool, FsError> {
        let is_written =
            matches!(self.meta.mapping(inode, page)?, BlockMapping::Block { unwritten: false, .. });
        let is_in_record = page == Page::FIRST && inode.data.residence.is_in_record();
        Ok(is_written || is_in_record || self.cache.is_dirty(&inode.data.object, page))
    }

    /// And cached pages. The device's direct transfers have ended while they go.
    fn take_away(&self, grow: &Growing<'_>, inode: &Arc<Inode>, pages: Range<Page>) -> Result<(), FsError> {
        let quiet = inode.data.quiet();
        self.remove_pages((grow, &quiet), inode, pages, None)
    }

    fn move_out_of_record(&self, grow: &Growing<'_>, inode: &Arc<Inode>) -> Result<(), FsError> {
        self.write_out_of_record(grow, inode)
    }

    /// Dirty pages exchange their promise.
    fn allocate_holes(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        pages: Range<Page>,
    ) -> Result<(), FsError> {
        assert!(grow.is_of(&inode.data), "inode {} gets blocks under another's lock", inode.ino);
        let _quiet = inode.data.quiet();
        let holes = self.meta.holes(inode, pages.clone())?;
        let promised = self.promised_in(inode, pages.clone())?;
        assert!(promised <= holes, "{promised} promises of {holes} pages without a block");
        let charged = holes - promised;
        inode.charge(charged)?;
        let mut promise = self.meta.promise(holes).inspect_err(|_| inode.discharge(charged))?;
        let mut at = pages.start;
        let mut result = Ok(());
        while at < pages.end && result.is_ok() {
            result = self.meta.mapping(inode, at).and_then(|mapping| match mapping {
                BlockMapping::Block { end, .. } => {
                    at = end;
                    Ok(())
                }
                BlockMapping::Hole { end } => {
                    let want = (end.min(pages.end) - at).min(u64::from(EXTENT_BLOCKS_MAX));
                    let got = self.allocate_hole(inode, at, want as u32)?;
                    promise.redeemed(got);
                    at += got;
                    Ok(())
                }
            });
        }
        let left = promise.blocks();
        drop(promise);
        // What has no block yet was charged for nothing, but for the pages that keep their promise.
        let kept = if left > 0 { self.promised_in(inode, at..pages.end).unwrap_or(left) } else { 0 };
        inode.discharge(left - kept.min(left));
        result
    }
}

impl Pages {
    /// Allocates promised blocks for a hole, as many as lie side by side; answers how many.
    fn allocate_hole(&self, inode: &Arc<Inode>, page: Page, want: u32) -> Result<u64, FsError> {
        let goal = {
            let mut state = inode.lock();
            self.meta.with_extents(inode, &mut state, |_, extents| Ok(extents.goal(page)))?
        };
        let run = self.meta.blocks.take(Near::goal(goal), want)?;
        let got = u64::from(run.blocks);
        let promised =
            self.promised_in(inode, page..page + got).inspect_err(|_| self.meta.blocks.give_back(run))?;
        let extent =
            Extent { logical: page, physical: run.start, blocks: run.blocks, flags: EXTENT_UNWRITTEN };
        self.meta
            .edit(inode, got, |change, extents, _| {
                extents.insert(extent);
                change.use_run(run)
            })
            .inspect_err(|_| self.meta.blocks.give_back(run))?;
        // Dirty pages among them have the block now; it was charged with their promise.
        drop(inode.counted(|| inode.data.purse.take(&self.meta.blocks.ledger, promised)));
        Ok(got)
    }
}

impl Pages {
    /// The offset of the next data, or hole, at or after an offset.
    pub(super) fn next_place(
        &self,
        inode: &Arc<Inode>,
        offset: ByteOffset,
        data: bool,
    ) -> Result<Option<ByteOffset>, FsError> {
        // Pages on their way to the device are neither dirty nor in an extent for a moment.
        let _quiet = inode.data.quiet();
        let mut state = inode.lock();
        let found = self.meta.with_extents(inode, &mut state, |_, extents| {
            let page = offset.page();
            let inline = inode.data.residence.is_in_record();
            let next_dirty = |page| {
                if inline && page == Page::FIRST {
                    Some(Page::FIRST)
                } else {
                    inode.data.object.next_dirty(page)
                }
            };
            Ok(if data { next_data(extents, page, next_dirty) } else { next_hole(extents, page, next_dirty) })
        })?;
        Ok(found.map(|page| page.start().max(offset)))
    }
}

fn next_data(extents: &Extents, from: Page, next_dirty: impl Fn(Page) -> Option<Page>) -> Option<Page> {
    let mut page = from;
    loop {
        match extents.mapping(page) {
            BlockMapping::Block { unwritten: false, .. } => return Some(page),
            BlockMapping::Block { end, .. } | BlockMapping::Hole { end } => {
                if let Some(dirty) = next_dirty(page).filter(|dirty| *dirty < end) {
                    return Some(dirty);
                }
                if end == Page::END {
                    return None;
                }
                page = end;
            }
        }
    }
}

fn next_hole(extents: &Extents, from: Page, next_dirty: impl Fn(Page) -> Option<Page>) -> Option<Page> {
    let mut page = from;
    loop {
        match extents.mapping(page) {
            BlockMapping::Block { unwritten: false, end, .. } => page = end,
            _ if next_dirty(page) == Some(page) => page += 1,
            _ => return Some(page),
        }
    }
}
