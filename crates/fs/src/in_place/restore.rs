//! What a process that died had stored and no record tells of: its blocks lie where its memory says.

use crate::blocks::alloc::{Near, Run};
use crate::bytes::Bytes;
use crate::error::FsError;
use crate::extent::BlockMapping;
use crate::in_place::InPlace;
use crate::inode::Inode;
use crate::memory::SizeLeft;
use crate::metadata::promises::PagePromise;
use nvmed_layout::Damage;
use nvmed_layout::record::Extent;
use nvmed_sys::sync::Arc;
use nvmed_units::{ByteOffset, Page};

/// Blocks that a dead process had stored to, in nobody else's hands from here on.
pub(crate) struct Found {
    inode: Arc<Inode>,
    size: u64,
    extents: Vec<Extent>,
}

impl InPlace {
    /// Takes the blocks of a file that a dead process had appended. To be called for all files before anybody allocates
    /// a block.
    ///
    /// # Errors
    /// The store's; damage where they are somebody else's.
    pub(crate) fn find(&self, inode: &Arc<Inode>, left: &SizeLeft) -> Result<Found, FsError> {
        let recorded = ByteOffset(inode.lock().record().size);
        let pages = recorded.page_end()..ByteOffset(left.size).page_end();
        let mut extents = Vec::new();
        let mut page = pages.start;
        while let Some(shift) = left.shift
            && page < pages.end
        {
            match self.mapping(inode, page)? {
                // Of the room that the file had.
                BlockMapping::Block { block, end, unwritten: true }
                    if block.0 == page.0.wrapping_add(shift) =>
                {
                    let blocks = (end.min(pages.end) - page) as u32;
                    extents.push(Extent { logical: page, physical: block, blocks, flags: 0 });
                    page = end;
                }
                // The batch that tells of it was in the dead process's memory, too.
                BlockMapping::Block { end, .. } => page = end,
                BlockMapping::Hole { end } => {
                    let want = (end.min(pages.end) - page).min(u64::from(u32::MAX)) as u32;
                    let run = self.take_at(inode, page, shift, want)?;
                    extents.push(Extent { logical: page, physical: run.start, blocks: run.blocks, flags: 0 });
                    page += u64::from(run.blocks);
                }
            }
        }
        Ok(Found { inode: Arc::clone(inode), size: left.size, extents })
    }

    /// Takes the blocks that lie `shift` behind the numbers of their pages.
    fn take_at(&self, inode: &Inode, page: Page, shift: u64, want: u32) -> Result<Run, FsError> {
        let start = nvmed_units::Block(page.0.wrapping_add(shift));
        let run = self.meta.blocks.take(Near::goal(Some(start)), want)?;
        if run.start == start {
            return Ok(run);
        }
        self.meta.blocks.give_back(run);
        Err(Damage::Extents(inode.ino).into())
    }

    /// Makes a file what a dead process had made it, from what was found.
    ///
    /// # Errors
    /// The store's; [`FsError::NoSpace`].
    pub(crate) fn restore(&self, found: &Found) -> Result<(), FsError> {
        let Found { inode, size, extents } = found;
        if *size <= inode.lock().record().size {
            return self.truncate(inode, *size);
        }
        // More than it takes where some of them were recorded.
        let blocks = extents.iter().map(|extent| u64::from(extent.blocks)).sum();
        let mut promise = PagePromise::make(&self.meta, inode, blocks)?;
        for extent in extents {
            let reached = extent.logical_end().start().0.min(*size);
            promise.redeemed(self.tell(inode, extent, reached, None)?);
        }
        let _grow = inode.data.grow();
        self.meta.record_size(inode, *size, || true)?;
        self.unrecorded.set_recorded_size(inode, ByteOffset(*size));
        Ok(())
    }
}
