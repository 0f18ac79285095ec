//! Where the blocks of a file come from: what is allocated ahead of it, what is near it, what is free.

use crate::blocks::alloc::{Near, Run};
use crate::error::FsError;
use crate::filedata::AS_MOUNTED;
use crate::inode::Inode;
use crate::metadata::Metadata;
use core::sync::atomic::Ordering;
use nvmed_units::{Block, ByteOffset, Page};

impl Metadata {
    /// Blocks allocated ahead of a file when it grows.
    pub(crate) fn prealloc_blocks(&self, inode: &Inode) -> u32 {
        match inode.data.prealloc_blocks.load(Ordering::Relaxed) {
            AS_MOUNTED => self.prealloc_blocks,
            blocks => blocks,
        }
    }

    /// Takes promised blocks for pages from `page` on; past the end of a growing file, `ahead` more.
    ///
    /// # Errors
    /// As [`crate::blocks::Blocks::take`].
    pub(crate) fn allocate(
        &self,
        inode: &Inode,
        goal: Option<Block>,
        pages: (Page, u32),
        ahead: u32,
    ) -> Result<Run, FsError> {
        let ((page, want), more) = (pages, ahead);
        let mut ahead = inode.data.ahead();
        if let Some(mut taken) = ahead.take(&self.blocks)
            && Some(taken.run().start) == goal
        {
            // The pages have a promise already.
            let run = taken.split(want);
            ahead.keep(taken);
            return Ok(run);
        }
        let end = ByteOffset(inode.size.load(Ordering::Relaxed)).page_end();
        let grows = page + u64::from(want) >= end && inode.opens.load(Ordering::Relaxed) > 0;
        let more = if grows { more } else { 0 };
        let near = Near { goal, group: self.home(inode) };
        let promise = if more == 0 { None } else { self.blocks.ledger.reserve(u64::from(more)).ok() };
        let Some(promise) = promise else { return self.take_near(inode, near, want) };
        let run = self.take_near(inode, near, want.saturating_add(more))?;
        let mut taken = self.blocks.taken(run, promise);
        let run = taken.split(want);
        // What is left of it, which may be nothing: a run may be shorter than wanted.
        ahead.keep(taken);
        Ok(run)
    }

    /// The group that blocks of an inode are looked for in: its own, else its directory's.
    pub(crate) fn home(&self, inode: &Inode) -> Option<u32> {
        let known = |group: u32| (group < self.blocks.groups()).then_some(group);
        known(inode.data.group.load(Ordering::Relaxed)).or_else(|| {
            let directory = inode.parent()?;
            known(directory.data.group.load(Ordering::Relaxed))
        })
    }

    /// Takes blocks, and remembers for the inode and for its directory where they were.
    ///
    /// # Errors
    /// As [`crate::blocks::Blocks::take`].
    pub(crate) fn take_near(&self, inode: &Inode, near: Near, want: u32) -> Result<Run, FsError> {
        let run = self.blocks.take(near, want)?;
        let group = self.blocks.group_of(run.start);
        if near.group != Some(group) {
            inode.data.group.store(group, Ordering::Relaxed);
            if let Some(directory) = inode.parent() {
                directory.data.group.store(group, Ordering::Relaxed);
            }
        }
        Ok(run)
    }

    /// Gives back what is allocated ahead of a file.
    pub(crate) fn drop_prealloc(&self, inode: &Inode) {
        drop(inode.data.ahead().take(&self.blocks));
    }
}
