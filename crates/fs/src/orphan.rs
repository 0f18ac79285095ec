//! Files without a name that are still open, and what becomes of them.
//!
//! A file whose last name goes while it is open gets an orphan record in the same batch. The last close
//! removes it; after a crash the next mount does. Both go in bounded steps: a step frees some extents
//! and is one batch.

use crate::blocks::alloc::Run;
use crate::core::Core;
use crate::error::FsError;
use crate::inode::{Inode, State};
use crate::namespace::log_removal;
use core::ops::{Bound, ControlFlow};
use core::sync::atomic::Ordering;
use nvmed_layout::keys::{self, Subject};
use nvmed_layout::record::{Extent, FLAG_KEYED_EXTENTS};
use nvmed_mutant::Mutant;
use nvmed_units::{Ino, Page};
use std::sync::Arc;

/// Extents freed in one step: each touches a bitmap record, and a batch has a limit.
const EXTENTS_PER_STEP: usize = 64;
/// Orphans that a mount removes before it returns; the others go with the first syncs.
const ORPHANS_PER_STEP: usize = 4;

impl Core {
    /// A description was closed, or a name removed: a file that has neither goes.
    ///
    /// # Errors
    /// The store's; the orphan record stays then, and the next mount tries again.
    pub(crate) fn reap_if_unused(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        if inode.nlink() > 0 || inode.is_used() {
            return Ok(());
        }
        if self.is_in_trouble() {
            // The next mount frees it.
            return Ok(());
        }
        {
            // Under this lock nobody opens it or links it any more.
            let _namespace = self.names_write();
            let _state = inode.lock();
            let used = inode.nlink() > 0 || inode.is_used();
            if used || inode.reaped.swap(true, Ordering::SeqCst) {
                return Ok(());
            }
        }
        self.forget(inode);
        self.ends.forget(inode.ino, inode.kind);
        self.meta.inodes.remove(inode.ino);
        let removed = self.remove_in_steps(inode);
        if removed.is_err() {
            self.orphans_left.store(true, Ordering::Relaxed);
        }
        removed
    }

    pub(crate) fn remove_in_steps(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        let is_reaped = inode.reaped.load(Ordering::SeqCst);
        assert!(is_reaped, "inode {} is removed and can be opened", inode.ino);
        let _quiet = inode.data.quiet();
        loop {
            let mut state = inode.lock();
            if state.record().flags & FLAG_KEYED_EXTENTS == 0 {
                let mut change = self.meta.change();
                if Mutant::OrphanUnmarkedFirst.is_made() {
                    change.delete_orphan(inode.ino);
                    change.apply()?;
                    self.meta.commit_all()?;
                    change = self.meta.change();
                }
                log_removal(&mut change, inode, state.record())?;
                change.delete_orphan(inode.ino);
                change.apply()?;
                inode.leave_account();
                return Ok(());
            }
            self.free_step(inode, &mut state)?;
        }
    }

    /// Frees some extents that have records of their own; after the last, the inode has none.
    fn free_step(&self, inode: &Arc<Inode>, state: &mut State) -> Result<(), FsError> {
        let (first, end) = (keys::extent(inode.ino, Page::FIRST), keys::extent(inode.ino, Page::END));
        let mut extents = Vec::with_capacity(EXTENTS_PER_STEP);
        self.meta.journal.store.scan(Bound::Included(&first), Bound::Included(&end), &mut |key, value| {
            if let Some(Subject::Extent { logical, .. }) = keys::subject(key) {
                extents.extend(Extent::decode(logical, value));
            }
            if extents.len() < EXTENTS_PER_STEP { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let mut record = state.record().clone();
        let mut change = self.meta.change();
        for extent in &extents {
            change.free_run(Run { start: extent.physical, blocks: extent.blocks })?;
            change.delete_extent(inode.ino, extent.logical);
            // The device's counts, which may be damaged.
            record.blocks = record.blocks.saturating_sub(u64::from(extent.blocks));
            record.extent_count = record.extent_count.saturating_sub(1);
        }
        if extents.len() < EXTENTS_PER_STEP {
            (record.flags, record.extent_count) = (record.flags & !FLAG_KEYED_EXTENTS, 0);
        }
        change.put_inode(inode, &record);
        change.apply()?;
        inode.publish(state, record);
        Ok(())
    }

    /// Removes some orphans that an earlier mount left.
    ///
    /// # Errors
    /// The store's; damage.
    pub(crate) fn reap_orphans(&self) -> Result<(), FsError> {
        if !self.orphans_left.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (first, end) = (keys::orphan(Ino(0)), keys::orphan(Ino(u64::MAX)));
        let mut found = Vec::new();
        self.meta.journal.store.scan(Bound::Included(&first), Bound::Included(&end), &mut |key, _| {
            if let Some(Subject::Orphan(ino)) = keys::subject(key) {
                // One in memory belongs to this mount: it is in use.
                found.extend(self.meta.inodes.get(ino).is_none().then_some(ino));
            }
            if found.len() <= ORPHANS_PER_STEP { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        for ino in found.iter().take(ORPHANS_PER_STEP) {
            let inode = self.meta.load_own(*ino)?;
            self.reap_if_unused(&inode)?;
        }
        if found.len() <= ORPHANS_PER_STEP {
            self.orphans_left.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}
