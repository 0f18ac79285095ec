//! Spare blocks: taken, with memory on the host below them, for changes of files that were promised ahead. Where the
//! host has no memory for the block that such a change would have, it gets one of these.
//!
//! In: for how many pages of a file there are to be some. Out: a block at a time. They are promised as data blocks are,
//! and give way to whoever finds no room; those of files that stand are no room of others.

use crate::blocks::alloc::{Near, Run};
use crate::blocks::reservation::Ahead;
use crate::error::FsError;
use crate::inode::Inode;
use crate::metadata::Metadata;
use core::sync::atomic::Ordering;
use nvmed_units::Block;

/// Spare blocks that stay when no file has any, as many as one file is promised: who opens one file after the other
/// asks neither the allocator nor the host each time.
const KEPT_BLOCKS: u64 = 66;

/// The spare blocks of a mount.
#[derive(Default)]
pub(crate) struct Spare {
    /// Where they are; each part has its promise.
    parts: Vec<Ahead>,
    /// How many.
    blocks: u64,
    /// How many of them are files'.
    owed: u64,
}

impl Metadata {
    /// Sees that a file has `pages` spare blocks; `secure` has the host give a run memory.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]; what `secure` answers. The file has those that it had.
    pub(crate) fn spare_for(
        &self,
        inode: &Inode,
        pages: u64,
        secure: &dyn Fn(Run) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let missing = pages.saturating_sub(inode.data.spares.load(Ordering::SeqCst));
        if missing == 0 {
            return Ok(());
        }
        let mut spare = self.spare.lock();
        while spare.blocks < spare.owed + missing {
            let wanted = spare.owed + missing - spare.blocks;
            let mut promise = self.promise(wanted)?;
            // At the end of the region: elsewhere files grow.
            let end = self.superblock.data_first + self.superblock.data_blocks;
            let goal = Block(end - (spare.blocks + wanted).min(self.superblock.data_blocks));
            let run = self.blocks.take(Near::goal(Some(goal)), u32::try_from(wanted).unwrap_or(u32::MAX))?;
            promise.shrink_to(run.blocks.into());
            let taken = self.blocks.taken(run, promise);
            secure(run)?;
            let mut part = Ahead::default();
            part.keep(taken);
            spare.parts.push(part);
            spare.blocks += u64::from(run.blocks);
        }
        spare.owed += missing;
        inode.data.spares.fetch_add(missing, Ordering::SeqCst);
        Ok(())
    }

    /// One of a file's spare blocks, taken, whose promise is given back: whoever wants it has another.
    pub(crate) fn take_spare(&self, inode: &Inode) -> Option<Run> {
        let mut spare = self.spare.lock();
        let fewer = |spared: u64| spared.checked_sub(1);
        inode.data.spares.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).ok()?;
        spare.owed -= 1;
        self.split_spare(&mut spare, 1)
    }

    /// Up to `want` blocks, without their promise, which is given back.
    fn split_spare(&self, spare: &mut Spare, want: u64) -> Option<Run> {
        let mut part = spare.parts.pop()?;
        let mut taken = part.take(&self.blocks)?;
        let run = taken.split(u32::try_from(want).unwrap_or(u32::MAX));
        spare.blocks -= u64::from(run.blocks);
        part.keep(taken);
        if part.is_some() {
            spare.parts.push(part);
        }
        Some(run)
    }

    /// A file has no spare blocks any more.
    pub(crate) fn give_back_spare(&self, inode: &Inode) {
        if inode.data.spares.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut spare = self.spare.lock();
        spare.owed -= inode.data.spares.swap(0, Ordering::SeqCst);
        self.drop_beyond(&mut spare, KEPT_BLOCKS);
    }

    /// Somebody finds no room: the spare blocks that are no file's go.
    pub(crate) fn drop_spare(&self) {
        // Who is about to have more wants room for just these.
        if let Some(mut spare) = self.spare.try_lock() {
            self.drop_beyond(&mut spare, 0);
        }
    }

    fn drop_beyond(&self, spare: &mut Spare, kept: u64) {
        let kept = spare.owed.max(kept);
        while spare.blocks > kept
            && let Some(run) = self.split_spare(spare, spare.blocks - kept)
        {
            self.blocks.give_back(run);
        }
    }

    /// How many spare blocks there are: they are free for whoever needs them more.
    pub(crate) fn spare_blocks(&self) -> u64 {
        self.spare.lock().blocks
    }
}
