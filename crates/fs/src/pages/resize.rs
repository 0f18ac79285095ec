//! Changing what a file has without writing to it: truncate, fallocate, and the map of its holes.

use crate::blocks::alloc::Near;
use crate::bytes::Bytes;
use crate::error::FsError;
use crate::extent::{BlockMapping, EXTENT_BLOCKS_MAX, Extents};
use crate::filedata::{Growing, Quiet};
use crate::inode::Inode;
use crate::metadata::change::Change;
use crate::pages::Pages;
use crate::pages::write::PagePromise;
use crate::status::Allocate;
use core::ops::Range;
use nvmed_layout::record::{EXTENT_UNWRITTEN, Extent, Record, Tail};
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, ByteOffset, Page};

/// Extents changed in one batch, which has a limit.
const STEP_EXTENTS: usize = 64;

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
        self.drop_prealloc(inode);
        inode.data.resize_mapped(end)?;
        self.unrecorded.set_size(inode, end);
        let removed = self.remove_pages((grow, &quiet), inode, end.page_end()..Page::END, Some(end));
        if removed.is_err() {
            self.unrecorded.set_size(inode, before);
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
        let removed = self.remove_blocks(inode, pages.clone(), file_end);
        if removed.is_ok() {
            // After the extents: who fills a page from now on finds a hole.
            self.cache.write_back(object).discard(pages);
            drop(PagePromise::taken_back(self, inode, promised));
        }
        removed
    }

    /// Dirty pages of a range that have a promise instead of a block.
    fn promised_in(&self, inode: &Arc<Inode>, pages: Range<Page>) -> Result<u64, FsError> {
        if inode.data.purse.blocks() == 0 {
            return Ok(0);
        }
        let mut state = inode.lock();
        self.with_extents(inode, &mut state, |_, extents| {
            let mut promised = 0;
            let mut from = pages.start;
            while let Some(page) = inode.data.object.next_dirty(from).filter(|page| *page < pages.end) {
                promised += u64::from(!extents.has(page));
                from = page + 1;
            }
            Ok(promised)
        })
    }

    /// Frees the blocks of a range, the last first, in as many batches as it needs.
    fn remove_blocks(
        &self,
        inode: &Arc<Inode>,
        pages: Range<Page>,
        file_end: Option<ByteOffset>,
    ) -> Result<(), FsError> {
        let mut end = pages.end;
        loop {
            let mut start = pages.start;
            let done = self.edit(inode, 0, |change, extents, record| {
                start = step_start(extents, pages.start..end);
                let mut freed = Ok(());
                extents.cut(start..end, |piece| {
                    freed = core::mem::replace(&mut freed, Ok(()))
                        .and_then(|()| change.free_run((&piece).into()));
                });
                if let Some(file_end) = file_end {
                    // Between two steps the file ends where its blocks do.
                    let reached = if start > pages.start { start.start() } else { ByteOffset::FIRST };
                    record.size = record.size.min(file_end.max(reached).0);
                }
                let first_goes = pages.start == Page::FIRST;
                cut_inline(
                    record,
                    file_end.unwrap_or(if first_goes { ByteOffset::FIRST } else { Page(1).start() }),
                );
                freed
            });
            done?;
            if start <= pages.start {
                return Ok(());
            }
            assert!(start < end, "a step from page {start} to {end} frees nothing");
            end = start;
        }
    }

    /// Changes extents, and size and inline data in the record, as one batch. Nothing is written when nothing
    /// changes. The inode's account was charged for `charged` blocks that come.
    fn edit(
        &self,
        inode: &Arc<Inode>,
        charged: u64,
        edit: impl FnOnce(&mut Change<'_>, &mut Extents, &mut Record) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let mut state = inode.lock();
        let before = state.record().clone();
        let mut record = inode.compose(&state);
        let applied = self.with_extents(inode, &mut state, |_, extents| {
            let mut change = self.meta.change();
            edit(&mut change, extents, &mut record)?;
            if !extents.is_touched() && record.size == before.size && record.tail == before.tail {
                return Ok(false);
            }
            change.put_extents(extents, inode.ino, &mut record);
            change.put_inode(inode, &record);
            change.apply().map(|_| true)
        });
        match applied {
            Ok(true) => {
                inode.publish_charged(&mut state, record, charged);
                return Ok(());
            }
            Ok(false) => {}
            Err(_) => self.forget_extents(inode),
        }
        if record.mtime_ns != before.mtime_ns || record.atime_ns != before.atime_ns {
            // The times are as unwritten as before.
            self.meta.touch(inode, None, None, None);
        }
        applied.map(drop)
    }

    /// Allocates, punches or zeroes a range.
    pub(crate) fn allocate_range(
        &self,
        inode: &Arc<Inode>,
        how: Allocate,
        range: Range<ByteOffset>,
    ) -> Result<(), FsError> {
        let grow = inode.data.grow();
        let file_end = inode.end();
        let grows = range.end > file_end && !how.keep_size;
        if how.punch_hole || how.zero_range {
            let inside = range.start..range.end.min(if how.keep_size { file_end } else { range.end });
            self.zero_edges(&grow, inode, &inside, file_end)?;
            let whole = range.start.page_end()..range.end.page();
            if whole.start < whole.end {
                let quiet = inode.data.quiet();
                self.remove_pages((&grow, &quiet), inode, whole, None)?;
                inode.data.punch_mapped(range.clone())?;
            }
        }
        if !how.punch_hole {
            self.move_out_of_record(&grow, inode)?;
            self.allocate_holes(&grow, inode, range.start.page()..range.end.page_end())?;
        }
        if grows {
            self.extend(&grow, inode, file_end..range.end)?;
        }
        drop(grow);
        self.meta.modified(inode);
        Ok(())
    }

    /// Zeroes the parts of a range that do not fill a page, where the file has data.
    fn zero_edges(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        range: &Range<ByteOffset>,
        file_end: ByteOffset,
    ) -> Result<(), FsError> {
        const ZEROES: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        let end = range.end.min(file_end);
        let first_end = range.start.page_end().start().min(end);
        let last_start = end.page().start().max(first_end);
        for (from, to) in [(range.start, first_end), (last_start, end)] {
            let page = from.page();
            // A last page that the range covers to its end is no edge.
            let whole = from.within() == 0 && range.end >= (page + 1).start();
            if from >= to || whole {
                continue;
            }
            let written = matches!(self.mapping(inode, page)?, BlockMapping::Block { unwritten: false, .. })
                || page == Page::FIRST && inode.data.residence.is_in_record();
            if written || self.cache.is_dirty(&inode.data.object, page) {
                self.write_growing(grow, inode, &ZEROES[..(to - from) as usize], from)?;
            }
        }
        Ok(())
    }

    /// Gives every page of a range a block; new ones read as zeroes. Dirty pages exchange their promise.
    /// Without room for all of them, none is allocated.
    fn allocate_holes(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        pages: Range<Page>,
    ) -> Result<(), FsError> {
        assert!(grow.is_of(&inode.data), "inode {} gets blocks under another's lock", inode.ino);
        let _quiet = inode.data.quiet();
        let holes = self.holes(inode, pages.clone())?;
        let promised = self.promised_in(inode, pages.clone())?;
        assert!(promised <= holes, "{promised} promises of {holes} pages without a block");
        let charged = holes - promised;
        inode.charge(charged)?;
        let mut promise = self.promise(holes).inspect_err(|_| inode.discharge(charged))?;
        let mut at = pages.start;
        let mut result = Ok(());
        while at < pages.end && result.is_ok() {
            result = self.mapping(inode, at).and_then(|mapping| match mapping {
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

    /// Pages of a range that have no block.
    fn holes(&self, inode: &Arc<Inode>, pages: Range<Page>) -> Result<u64, FsError> {
        let mut state = inode.lock();
        self.with_extents(inode, &mut state, |_, extents| {
            let (mut at, mut holes) = (pages.start, 0);
            while at < pages.end {
                at = match extents.mapping(at) {
                    BlockMapping::Block { end, .. } => end,
                    BlockMapping::Hole { end } => {
                        holes += end.min(pages.end) - at;
                        end
                    }
                };
            }
            Ok(holes)
        })
    }

    /// Allocates promised blocks for a hole, as many as lie side by side; answers how many.
    fn allocate_hole(&self, inode: &Arc<Inode>, page: Page, want: u32) -> Result<u64, FsError> {
        let goal = {
            let mut state = inode.lock();
            self.with_extents(inode, &mut state, |_, extents| Ok(extents.goal(page)))?
        };
        let run = self.meta.blocks.take(Near::goal(goal), want)?;
        let got = u64::from(run.blocks);
        let promised =
            self.promised_in(inode, page..page + got).inspect_err(|_| self.meta.blocks.give_back(run))?;
        let extent =
            Extent { logical: page, physical: run.start, blocks: run.blocks, flags: EXTENT_UNWRITTEN };
        self.edit(inode, got, |change, extents, _| {
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
        let found = self.with_extents(inode, &mut state, |_, extents| {
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

/// Keeps what lies before `end` of what the record holds of the file itself.
fn cut_inline(record: &mut Record, end: ByteOffset) {
    let Some(data) = record.inline_data() else { return };
    if end == ByteOffset::FIRST {
        record.tail = Tail::EMPTY;
    } else if end.0 < data.len() as u64 {
        record.tail = Tail::Data(data[..end.0 as usize].into());
    }
}

/// Where a step of freeing begins, so that it frees a bounded number of extents at the end of a range.
fn step_start(extents: &Extents, pages: Range<Page>) -> Page {
    let mut start = pages.end;
    for _ in 0..STEP_EXTENTS {
        match extents.last_before(start).filter(|extent| extent.logical_end() > pages.start) {
            Some(extent) => start = extent.logical.max(pages.start),
            None => return pages.start,
        }
    }
    start
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
