//! Changing what a file has without writing to it: truncate and fallocate. Who takes blocks away holds the file's
//! extents while the batch is applied: nobody copies from or to them then, or later.

use crate::allocation::Allocation;
use crate::blocks::alloc::Near;
use crate::error::FsError;
use crate::extent::{BlockMapping, EXTENT_BLOCKS_MAX};
use crate::filedata::Growing;
use crate::in_place::InPlace;
use crate::inode::Inode;
use crate::metadata::promises::PagePromise;
use core::ops::Range;
use nvmed_layout::record::{EXTENT_UNWRITTEN, Extent};
use nvmed_sys::sync::Arc;
use nvmed_units::{ByteOffset, Page};

impl InPlace {
    /// Makes a file shorter. Also where it ends already: blocks allocated past the end go.
    pub(super) fn shrink(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        end: ByteOffset,
    ) -> Result<(), FsError> {
        assert!(grow.is_of(&inode.data), "inode {} shrinks under another's lock", inode.ino);
        let before = inode.end();
        let has_fresh = || inode.data.extents.read().fresh.is_some();
        if end == before && inode.blocks() == 0 && !has_fresh() {
            return Ok(());
        }
        let quiet = inode.data.quiet();
        self.meta.drop_prealloc(inode);
        inode.data.resize_mapped(end)?;
        let is_shown = inode.data.in_place.is_any();
        let fresh = inode.data.extents.read().fresh;
        let was_room =
            fresh.and_then(|fresh| fresh.behind(end.page_end())).is_some_and(|gone| gone.of_room > 0);
        if is_shown || was_room {
            // Of those shown, blocks that no record tells of would go at once; and what was room would be free when the
            // batch is applied, before it is forgotten here that it has data.
            self.record_up_to(&quiet, inode, before)?;
        }
        if before > end {
            self.set_size(inode, end);
        }
        self.forget_extents(inode);
        // It goes with what lies behind the end.
        inode.data.extents.write().room = None;
        let removed = if is_shown {
            self.hide_behind(grow, inode, (before, end))
        } else {
            self.meta.remove_blocks(inode, end.page_end()..Page::END, Some(end))
        };
        if removed.is_err() {
            self.set_size(inode, before);
        } else {
            self.drop_fresh(&quiet, inode, end.page_end());
            let recorded = inode.lock().record().size;
            self.unrecorded.size_recorded(inode, recorded);
            if end == ByteOffset::FIRST && inode.blocks() == 0 && !is_shown {
                // A new file: it may lie in its record again.
                inode.data.residence.admit(grow);
            }
        }
        removed
    }
}

impl Allocation for InPlace {
    /// The records tell of all that the file has, before any of it goes.
    fn prepare(&self, grow: &Growing<'_>, inode: &Arc<Inode>) -> Result<(), FsError> {
        self.meta.drop_room(grow, inode)?;
        let quiet = inode.data.quiet();
        self.meta.drop_prealloc(inode);
        self.record_up_to(&quiet, inode, inode.end())
    }

    fn has_data(&self, inode: &Inode, page: Page) -> Result<bool, FsError> {
        let is_written = matches!(self.mapping(inode, page)?, BlockMapping::Block { unwritten: false, .. });
        Ok(is_written || page == Page::FIRST && inode.data.residence.is_in_record())
    }

    fn take_away(&self, grow: &Growing<'_>, inode: &Arc<Inode>, pages: Range<Page>) -> Result<(), FsError> {
        assert!(grow.is_of(&inode.data), "inode {} loses blocks under another's lock", inode.ino);
        if inode.data.in_place.is_any() {
            return self.blank(inode, pages);
        }
        let _quiet = inode.data.quiet();
        self.forget_extents(inode);
        self.meta.remove_blocks(inode, pages, None)
    }

    fn move_out_of_record(&self, grow: &Growing<'_>, inode: &Arc<Inode>) -> Result<(), FsError> {
        self.give_block(grow, inode)
    }

    fn allocate_holes(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        pages: Range<Page>,
    ) -> Result<(), FsError> {
        assert!(grow.is_of(&inode.data), "inode {} gets blocks under another's lock", inode.ino);
        let holes = self.meta.holes(inode, pages.clone())?;
        let mut promise = PagePromise::make(&self.meta, inode, holes)?;
        if pages.end > inode.end().page_end() {
            inode.data.in_place.keep_hidden(grow);
        }
        let mut at = pages.start;
        while at < pages.end {
            match self.mapping(inode, at)? {
                BlockMapping::Block { end, .. } => at = end,
                BlockMapping::Hole { end } => {
                    let want = (end.min(pages.end) - at).min(u64::from(EXTENT_BLOCKS_MAX));
                    let got = self.allocate_hole(inode, at, want as u32)?;
                    promise.redeemed(got);
                    at += got;
                }
            }
        }
        Ok(())
    }
}

impl InPlace {
    /// Allocates promised blocks for a hole, as many as lie side by side; answers how many.
    fn allocate_hole(&self, inode: &Arc<Inode>, page: Page, want: u32) -> Result<u64, FsError> {
        let goal = inode.data.extents.read().goal(page);
        let run = self.meta.blocks.take(Near::goal(goal), want)?;
        let got = u64::from(run.blocks);
        let flags = EXTENT_UNWRITTEN;
        let extent = Extent { logical: page, physical: run.start, blocks: run.blocks, flags };
        self.meta
            .edit(inode, got, |change, extents, _| {
                extents.insert(extent);
                change.use_run(run)
            })
            .inspect_err(|_| self.meta.blocks.give_back(run))?;
        Ok(got)
    }
}
