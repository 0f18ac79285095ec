//! Blocks behind the end of a file that is appended to and synced again and again: recorded ahead, as never written.
//!
//! In: the record of what was appended. Out: the blocks that were taken ahead of the file, in the same batch; appends
//! into them. They have no data that counts before a record says that they were written, so that a cut of power leaves
//! what a fallocate past the end does.

use crate::FILE_BYTES_MAX;
use crate::blocks::reservation::Taken;
use crate::error::FsError;
use crate::extent::Fresh;
use crate::filedata::Growing;
use crate::in_place::InPlace;
use crate::inode::Inode;
use core::sync::atomic::Ordering;
use nvmed_layout::record::{EXTENT_UNWRITTEN, Extent, INLINE_EXTENTS};
use nvmed_sys::sync::Arc;
use nvmed_units::{ByteOffset, Page};

/// Extents that a file has at most which gets room: with what was appended and the room itself they fit its record,
/// which a sync writes anyway.
const EXTENTS_MAX: usize = INLINE_EXTENTS - 2;

/// Blocks that are about to be the room of a file. Dropped, they are ahead of it as before.
pub(super) struct NewRoom<'a> {
    inode: &'a Inode,
    /// None once they are recorded.
    taken: Option<Taken<'a>>,
    extent: Extent,
    /// Nobody appends meanwhile.
    _grow: Growing<'a>,
}

impl NewRoom<'_> {
    /// Where they are.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// A batch has recorded them.
    pub fn recorded(mut self) {
        if let Some(taken) = self.taken.take() {
            taken.withhold();
        }
        self.inode.data.extents.write().room = Some(self.extent);
    }
}

impl Drop for NewRoom<'_> {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            self.inode.discharge(self.extent.blocks.into());
            self.inode.data.ahead().keep(taken);
        }
    }
}

impl InPlace {
    /// The blocks taken ahead of a file, where it is worth to record them with what was `reached`, up to its `end`: it
    /// was synced before, and nobody appends at this moment. Room is given back by a batch of its own.
    pub(super) fn new_room<'a>(
        &'a self,
        inode: &'a Arc<Inode>,
        reached: &Extent,
        end: ByteOffset,
    ) -> Option<NewRoom<'a>> {
        if !inode.synced.load(Ordering::Relaxed) || !inode.data.ahead().is_some() {
            return None;
        }
        let grow = inode.data.try_grow()?;
        {
            let held = inode.data.extents.read();
            let is_all = end == inode.end() && held.fresh?.extent.logical_end() == reached.logical_end();
            let extents = held.recorded.as_ref()?;
            // A program may have allocated there itself.
            let is_free = extents.first_in(&(reached.logical_end()..Page::END)).is_none();
            if !is_all || !is_free || extents.len() > EXTENTS_MAX {
                return None;
            }
        }
        let mut ahead = inode.data.ahead();
        let taken = ahead.take(&self.meta.blocks)?;
        let run = taken.run();
        let is_next = run.start == reached.physical_end()
            && reached.logical_end() + u64::from(run.blocks) <= ByteOffset(FILE_BYTES_MAX).page();
        if !is_next || inode.charge(run.blocks.into()).is_err() {
            ahead.keep(taken);
            return None;
        }
        let logical = reached.logical_end();
        let extent = Extent { logical, physical: run.start, blocks: run.blocks, flags: EXTENT_UNWRITTEN };
        Some(NewRoom { inode, taken: Some(taken), extent, _grow: grow })
    }

    /// How many of the pages from `page` on the room has, which begins there.
    pub(super) fn room_at(&self, inode: &Inode, page: Page) -> Option<Extent> {
        inode.data.extents.read().room.filter(|room| room.logical == page)
    }

    /// Pages up to `end` of the room have data.
    pub(super) fn use_room(&self, inode: &Arc<Inode>, room: &Extent, end: Page) -> Result<(), FsError> {
        if let Some(extent) = room.before(end) {
            let extent = Extent { flags: 0, ..extent };
            let left = room.behind(end);
            self.go_on(inode, Fresh { extent, of_room: extent.blocks }, |held| held.room = left)?;
        }
        Ok(())
    }
}
