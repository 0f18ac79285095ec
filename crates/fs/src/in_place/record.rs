//! What the records are told of what was stored: sizes, and blocks that no record has yet.

use crate::error::FsError;
use crate::extent::Fresh;
use crate::filedata::Quiet;
use crate::in_place::InPlace;
use crate::in_place::room::NewRoom;
use crate::inode::Inode;
use crate::map::Mappings;
use crate::metadata::promises::PagePromise;
use core::sync::atomic::Ordering;
use nvmed_layout::FileType;
use nvmed_layout::record::Extent;
use nvmed_mutant::Mutant;
use nvmed_sys::sync::Arc;
use nvmed_units::{ByteOffset, Page};

impl InPlace {
    /// Makes a file end at `end`; in the memory that outlives the process too, unless a record says so.
    pub(super) fn set_size(&self, inode: &Arc<Inode>, end: ByteOffset) {
        if inode.lock().record().size == end.0 {
            self.unrecorded.set_recorded_size(inode, end);
        } else {
            let fresh = inode.data.extents.read().fresh;
            self.unrecorded.set_size(inode, end, fresh.map(|fresh| fresh.extent).as_ref());
        }
    }

    /// Has the record tell the size, and of every block with data.
    ///
    /// # Errors
    /// The store's; what was not recorded stays to be, and each open description is told.
    pub(super) fn record(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        // Even when nothing is left: what somebody else records at this moment is recorded then.
        let quiet = inode.data.quiet();
        if inode.kind != FileType::File || !self.unrecorded.has(inode) {
            return Ok(());
        }
        let end = inode.end();
        self.record_up_to(&quiet, inode, end).inspect_err(|_| {
            inode.data.errors.fetch_add(1, Ordering::SeqCst);
        })
    }

    /// Has the record tell what was stored before `end`, as one batch: never a block without the size that it reaches.
    ///
    /// # Errors
    /// As [`InPlace::record`].
    pub(super) fn record_up_to(
        &self,
        quiet: &Quiet<'_>,
        inode: &Arc<Inode>,
        end: ByteOffset,
    ) -> Result<(), FsError> {
        assert!(quiet.io().is_of(&inode.data), "inode {} is recorded under another's lock", inode.ino);
        if inode.reaped.load(Ordering::SeqCst) {
            return Ok(());
        }
        let fresh = inode.data.extents.read().fresh;
        let reached = fresh.and_then(|fresh| fresh.before(end.page_end()));
        let recorded = match reached {
            Some(reached) => self.record_fresh(inode, reached, end)?,
            None => self.meta.record_size(inode, end.0, || !Mutant::GrowthNotFlushed.is_made())?,
        };
        self.unrecorded.size_recorded(inode, recorded);
        Ok(())
    }

    /// Answers the size that the record has then.
    fn record_fresh(&self, inode: &Arc<Inode>, fresh: Fresh, end: ByteOffset) -> Result<u64, FsError> {
        let reached = fresh.extent;
        let room = self.new_room(inode, &reached, end);
        let is_all_room = room.is_none() && fresh.of_room >= reached.blocks;
        if is_all_room && let Some(recorded) = self.meta.record_on(inode, &reached, end.0)? {
            return Ok(recorded);
        }
        let blocks = self.tell(inode, &reached, end.0, room.as_ref().map(NewRoom::extent))?;
        let unknown = u64::from(reached.blocks - fresh.of_room);
        assert_eq!(blocks, unknown, "blocks of inode {} that no record had", inode.ino);
        let data = &inode.data;
        if blocks > 0 {
            inode.counted(|| data.purse.redeemed(&self.meta.blocks.ledger, blocks));
        }
        {
            let mut held = data.extents.write();
            // Somebody may have appended meanwhile.
            held.fresh = held.fresh.and_then(|fresh| fresh.behind(reached.logical_end()));
        }
        if let Some(room) = room {
            room.recorded();
        }
        Ok(inode.lock().record().size)
    }

    /// Has the record tell that an extent has data, and of a size that it reaches, with new room behind it; how many
    /// blocks no record had until now. The others were never written, and lie before those.
    pub(super) fn tell(
        &self,
        inode: &Arc<Inode>,
        extent: &Extent,
        size: u64,
        room: Option<Extent>,
    ) -> Result<u64, FsError> {
        let pages = extent.pages();
        let known = loop {
            // They are forgotten when a file is closed.
            if let Some(all) = &inode.data.extents.read().recorded {
                break all.blocks_in(&pages);
            }
            self.load(inode)?;
        };
        let blocks = u64::from(extent.blocks) - known;
        let charged = blocks + room.map_or(0, |room| room.blocks.into());
        self.meta.edit(inode, charged, |change, extents, record| {
            // What was written had a promise, of room for its records too.
            change.use_headroom();
            change.require_flush();
            record.size = record.size.max(size);
            if known > 0 {
                extents.cut(pages, drop);
            }
            extents.insert(*extent);
            if let Some(new) = extent.behind(extent.logical + known) {
                change.use_run((&new).into())?;
            }
            if let Some(room) = room {
                extents.insert(room);
                change.use_run((&room).into())?;
            }
            Ok(())
        })?;
        Ok(blocks)
    }

    /// Forgets fresh blocks from a page on, and gives those back that no record tells of: what was room goes with the
    /// record's.
    pub(super) fn drop_fresh(&self, quiet: &Quiet<'_>, inode: &Inode, from: Page) {
        assert!(quiet.io().is_of(&inode.data), "inode {} loses blocks under another's lock", inode.ino);
        let gone = {
            // Nobody copies from or to them any more.
            let mut held = inode.data.extents.write();
            let gone = held.fresh.and_then(|fresh| fresh.behind(from));
            held.fresh = held.fresh.and_then(|fresh| fresh.before(from));
            gone
        };
        if let Some(gone) = gone.and_then(|gone| gone.unrecorded()) {
            self.meta.blocks.give_back((&gone).into());
            drop(PagePromise::taken_back(&self.meta, inode, gone.blocks.into()));
        }
    }
}

/// Syncs.
impl InPlace {
    /// Everything that was stored over files, by whomever, has to be covered by the next flush of all of them.
    fn draw_ticket_of_all(&self) {
        if self.stored.swap(false, Ordering::SeqCst) {
            self.meta.journal.order.wrote();
        }
    }

    /// Makes an inode durable: its data, its record if `times` or the data asks for it, and every change of metadata
    /// before.
    pub(crate) fn sync_inode(&self, inode: &Arc<Inode>, times: bool) -> Result<(), FsError> {
        if self.meta.read_only {
            return Ok(());
        }
        if inode.kind == FileType::File {
            self.gather_mapped(inode, ByteOffset::ALL)?;
            self.note_maps(inode)?;
            self.record(inode)?;
            self.draw_ticket(inode);
            inode.synced.store(true, Ordering::Relaxed);
        }
        self.meta.record_times(inode, times)?;
        if inode.kind == FileType::Directory && Mutant::DirectorySyncForgotten.is_made() {
            return Ok(());
        }
        self.meta.commit(inode.data.ticket.load(Ordering::SeqCst))
    }

    /// Has the records tell all of it.
    ///
    /// # Errors
    /// The first that occurred; the others were tried.
    pub(crate) fn write_back_all(&self) -> Result<(), FsError> {
        self.gather_all_mapped(&self.meta.inodes)?;
        let before = self.unrecorded.next();
        let written = self.write_back_due(&|_| true);
        // Others may have taken some off the list first, and not be done.
        self.unrecorded.left_of(before).iter().fold(written, |done, inode| done.and(self.record(inode)))
    }

    pub(crate) fn write_back_due(&self, due: &dyn Fn(i64) -> bool) -> Result<(), FsError> {
        self.meta.grow_if_low();
        let mut result = self.note_all_maps(&self.meta.inodes);
        self.draw_ticket_of_all();
        let mut listed = self.unrecorded.len();
        while listed > 0
            && let Some(file) = self.unrecorded.unlist(due)
        {
            // A bound: the list may have grown since.
            listed -= 1;
            result = result.and(self.record(&file.inode));
            self.unrecorded.relist(file, false);
        }
        result
    }
}
