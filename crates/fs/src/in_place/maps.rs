//! Files that programs map where they lie: which pieces they are, and that each stays the file's while somebody may
//! have it mapped (docs/nvm-maps.md).
//!
//! Everything here is done under `grow`: nobody else changes extents or the size. What grows is stored and settled,
//! shown, and then told by the size. What is cut off stays the file's, as blocks that were never written, until the
//! last mapping is gone.

use crate::ZEROES;
use crate::allocation::Allocation;
use crate::error::FsError;
use crate::extent::BlockMapping;
use crate::filedata::Growing;
use crate::in_place::{InPlace, place};
use crate::inode::{Inode, InodeTable};
use crate::map::{MappedFile, Mappings};
use crate::mapper::{Lies, MapPiece, Mapped, Mapper};
use core::ops::Range;
use core::sync::atomic::Ordering;
use nvmed_io::Operation;
use nvmed_nvm::FlushTo;
use nvmed_sys::QuietFd;
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, ByteOffset, Page};
use rustix::io::Errno;

/// Pieces of one mapping: a process has 65,530 for everything (`vm.max_map_count`).
const PIECES_MAX: u64 = 4096;
/// Pages without data below a mapping that is stored to, 64 MiB, what lies behind the end among them: each has a block
/// before it can be touched. Of a file with more, memory of its own is mapped, which is sparse.
const HOLES_MAX: u64 = 16_384;

fn bytes_of(pages: &Range<Page>) -> u64 {
    (pages.end - pages.start) * BLOCK_BYTES as u64
}

/// Mapping and unmapping.
impl InPlace {
    /// Who shows files where they lie; the first one counts.
    pub(crate) fn shown_by(&self, mapper: Arc<dyn Mapper>) {
        let _ = self.mapper.set(mapper);
    }

    /// See [`crate::File::map_range`]. A file is mapped in one form at a time.
    pub(crate) fn map_range(
        &self,
        inode: &Arc<Inode>,
        write: bool,
        range: Range<ByteOffset>,
    ) -> Result<Mapped, FsError> {
        let grow = inode.data.grow();
        let maps = &inode.data.in_place;
        match self.begin_in_place(&grow, inode, write, &range) {
            Ok(Some(fd)) => {
                maps.begin(write, &grow);
                self.stored_to.fetch_add(u32::from(write), Ordering::SeqCst);
                Ok(Mapped::InPlace(fd))
            }
            Ok(None) | Err(FsError::NoSpace | FsError::Quota) if !maps.is_any() => {
                self.map_held(&grow, inode, write).map(|fd| Mapped::Memory(MappedFile { fd }))
            }
            Ok(None) => Err(FsError::Host(Errno::NOMEM)),
            Err(error) => Err(error),
        }
    }

    /// The medium, if a range can be mapped in place: its pages are ready for that then.
    fn begin_in_place(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        write: bool,
        range: &Range<ByteOffset>,
    ) -> Result<Option<Arc<QuietFd>>, FsError> {
        if self.mapper.get().is_none() || inode.data.mapped.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let in_record = inode.data.residence.is_in_record();
        if in_record && !write {
            return Ok(None);
        }
        let Some(fd) = self.medium.descriptor(write) else { return Ok(None) };
        let pages = range.start.page()..range.end.page_end();
        let (pieces, holes) = self.count_pieces(inode, &pages)?;
        let first = !inode.data.in_place.is_any();
        if pieces > PIECES_MAX || write && first && holes > HOLES_MAX {
            return Ok(None);
        }
        // From here on the record does not get it back.
        self.give_block(grow, inode)?;
        if !self.clean_shown_tail(inode, inode.end())? {
            return Ok(None);
        }
        self.prepare_pages(grow, inode, write, &pages)?;
        Ok(Some(fd))
    }

    /// One mapping in place fewer. After the last, blocks that were left behind the end go.
    ///
    /// # Errors
    /// [`FsError::Invalid`] without such a mapping; the store's.
    pub(crate) fn unmap_in_place(&self, inode: &Arc<Inode>, write: bool) -> Result<(), FsError> {
        let grow = inode.data.grow();
        let noted = if write { self.note_maps(inode) } else { Ok(()) };
        let maps = &inode.data.in_place;
        if !maps.end(write, &grow) {
            return Err(FsError::Invalid);
        }
        if write {
            let before = self.stored_to.fetch_sub(1, Ordering::SeqCst);
            assert!(before > 0, "inode {} was not counted as mapped to be stored to", inode.ino);
        }
        if maps.reveal(&grow) {
            // What cannot go now goes when the file is cut the next time, or with it.
            let _ = self.shrink(&grow, inode, inode.end());
        }
        noted
    }

    /// See [`crate::File::lay_out`].
    pub(crate) fn lay_out(
        &self,
        inode: &Arc<Inode>,
        write: bool,
        range: Range<ByteOffset>,
        tell: &mut dyn FnMut(&MapPiece),
    ) -> Result<(), FsError> {
        let grow = inode.data.grow();
        let pages = range.start.page()..range.end.page_end();
        self.prepare_pages(&grow, inode, write, &pages)?;
        self.pieces(inode, pages, inode.end(), tell)
    }
}

/// Pieces.
impl InPlace {
    /// Tells what pages are, in order, of a file that ends at `end`.
    fn pieces(
        &self,
        inode: &Inode,
        pages: Range<Page>,
        end: ByteOffset,
        tell: &mut dyn FnMut(&MapPiece),
    ) -> Result<(), FsError> {
        let file_end = end.page_end().max(pages.start).min(pages.end);
        self.each_mapping(inode, pages.start..file_end, |part, mapping| {
            let lies = match mapping {
                BlockMapping::Block { block, unwritten: false, .. } => Lies::At(place(block, 0)),
                _ => Lies::Nowhere,
            };
            tell(&MapPiece { offset: part.start.start().0, bytes: bytes_of(&part), lies });
            Ok(())
        })?;
        if file_end < pages.end {
            let behind = file_end..pages.end;
            tell(&MapPiece { offset: file_end.start().0, bytes: bytes_of(&behind), lies: Lies::Behind });
        }
        Ok(())
    }

    /// What pages lie on, extent by extent; what `each` changes of the part that it is given it may.
    fn each_mapping(
        &self,
        inode: &Inode,
        pages: Range<Page>,
        mut each: impl FnMut(Range<Page>, BlockMapping) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let mut page = pages.start;
        while page < pages.end {
            let mapping = self.mapping(inode, page)?;
            let (BlockMapping::Block { end, .. } | BlockMapping::Hole { end }) = mapping;
            let part = page..end.min(pages.end);
            page = part.end;
            each(part, mapping)?;
        }
        Ok(())
    }

    /// In how many pieces pages lie, and how many of them have no data.
    fn count_pieces(&self, inode: &Inode, pages: &Range<Page>) -> Result<(u64, u64), FsError> {
        let end = inode.end().page_end().max(pages.start).min(pages.end);
        let (mut pieces, mut holes) = (0, pages.end - end);
        self.each_mapping(inode, pages.start..end, |part, mapping| {
            pieces += 1;
            if !matches!(mapping, BlockMapping::Block { unwritten: false, .. }) {
                holes += part.end - part.start;
            }
            Ok(())
        })?;
        Ok((pieces, holes))
    }

    /// Pages before the end are ready to be touched: the host has memory for them, and those that are to be stored to
    /// have blocks with data.
    fn prepare_pages(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        write: bool,
        pages: &Range<Page>,
    ) -> Result<(), FsError> {
        let pages = pages.start..inode.end().page_end().max(pages.start).min(pages.end);
        if write {
            self.fill_pages(grow, inode, &pages)?;
        }
        if self.meta.read_only {
            return Ok(());
        }
        self.each_mapping(inode, pages, |part, mapping| match mapping {
            BlockMapping::Block { block, unwritten: false, .. } => self.own(place(block, 0), &part),
            _ => Ok(()),
        })
    }

    /// Gives pages blocks with data, which is zeroes where there was none.
    fn fill_pages(&self, grow: &Growing<'_>, inode: &Arc<Inode>, pages: &Range<Page>) -> Result<(), FsError> {
        let mut lacks = false;
        self.each_mapping(inode, pages.clone(), |_, mapping| {
            lacks |= !matches!(mapping, BlockMapping::Block { unwritten: false, .. });
            Ok(())
        })?;
        if !lacks {
            return Ok(());
        }
        self.prepare(grow, inode)?;
        self.allocate_holes(grow, inode, pages.clone())?;
        let filled = self.each_mapping(inode, pages.clone(), |part, mapping| {
            let BlockMapping::Block { block, unwritten: true, .. } = mapping else { return Ok(()) };
            let at = place(block, 0);
            let zeroed = self.medium.zero(at, bytes_of(&part), false);
            self.medium.settle();
            zeroed.map_err(|status| self.failed(Operation::Write { fua: false }, at, status))?;
            self.own(at, &part)?;
            self.meta.edit(inode, 0, |change, extents, _| {
                change.use_headroom();
                change.require_flush();
                extents.mark(part, false);
                Ok(())
            })
        });
        if inode.data.in_place.is_any() {
            // Others have zeroes of nobody there.
            self.show_changed(inode, pages.clone(), inode.end());
        }
        filled
    }

    /// The host has memory for pages that lie at `at`.
    fn own(&self, at: u64, pages: &Range<Page>) -> Result<(), FsError> {
        let owned = self.medium.allocate(at, bytes_of(pages));
        owned.map_err(|status| self.failed(Operation::Write { fua: false }, at, status))
    }
}

/// Changes below mappings.
impl InPlace {
    /// See [`crate::bytes::Placement::make_room`].
    #[cold]
    pub(super) fn fill_below_maps(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        range: &Range<ByteOffset>,
    ) -> Result<(), FsError> {
        let Some(mapper) = self.mapper.get() else { return Ok(()) };
        let Some(stored_to) = mapper.stored_to(inode.ino.0) else { return Ok(()) };
        let from = range.start.page_end().max(ByteOffset(stored_to.start).page());
        let to = range.end.page_end().min(ByteOffset(stored_to.end).page_end());
        if from < to { self.fill_pages(grow, inode, &(from..to)) } else { Ok(()) }
    }

    /// See [`crate::bytes::Placement::show_maps`]. What cannot be shown is SIGBUS, as it was.
    #[cold]
    pub(super) fn show_changed(&self, inode: &Arc<Inode>, pages: Range<Page>, end: ByteOffset) {
        if let Some(mapper) = self.mapper.get() {
            let _ = self.pieces(inode, pages, end, &mut |piece| mapper.show(inode.ino.0, piece));
        }
    }

    /// What lies behind an end in its page is zero; whether it is, which of a file that is only read may not be.
    fn clean_shown_tail(&self, inode: &Arc<Inode>, end: ByteOffset) -> Result<bool, FsError> {
        let within = end.within();
        if within == 0 {
            return Ok(true);
        }
        let BlockMapping::Block { block, unwritten: false, .. } = self.mapping(inode, end.page())? else {
            return Ok(true);
        };
        let at = place(block, within);
        let mut tail = [0; BLOCK_BYTES];
        let tail = &mut tail[within..];
        let read = self.medium.read(at, tail);
        read.map_err(|status| self.failed(Operation::Read, at, status))?;
        if tail.iter().all(|byte| *byte == 0) {
            return Ok(true);
        }
        if self.meta.read_only {
            return Ok(false);
        }
        self.zero_behind(inode, end, at).map(|()| true)
    }

    /// Leaves a file that is mapped in place the blocks behind a new end, which its record has not been told of.
    pub(super) fn hide_behind(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        (before, end): (ByteOffset, ByteOffset),
    ) -> Result<(), FsError> {
        inode.data.in_place.hide(grow);
        self.show_changed(inode, end.page_end()..before.page_end(), end);
        if let Err(error) = self.meta.hide_blocks(inode, end) {
            self.show_changed(inode, end.page_end()..before.page_end(), before);
            return Err(error);
        }
        // What this leaves is zeroed before the file grows.
        let _ = self.clean_shown_tail(inode, end);
        Ok(())
    }

    /// Stores zeroes where pages have data: their blocks stay below the mappings.
    pub(super) fn blank(&self, inode: &Arc<Inode>, pages: Range<Page>) -> Result<(), FsError> {
        let pages = pages.start..pages.end.min(inode.end().page_end()).max(pages.start);
        self.each_mapping(inode, pages, |part, mapping| {
            let BlockMapping::Block { block, unwritten: false, .. } = mapping else { return Ok(()) };
            for page in 0..part.end - part.start {
                let at = place(block + page, 0);
                let stored = self.copy_in(inode, (part.start + page).start(), at, &ZEROES);
                stored.map_err(|status| self.failed(Operation::Write { fua: false }, at, status))?;
            }
            self.note_stored(inode);
            Ok(())
        })
    }
}

/// Syncs.
impl InPlace {
    /// What programs may have stored by mappings in place counts as stored over, and the file as modified: the next
    /// sync covers it.
    ///
    /// # Errors
    /// The store's.
    pub(super) fn note_maps(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        if inode.data.in_place.is_written() {
            self.note_blocks(inode)?;
            self.meta.modified(inode);
        }
        Ok(())
    }

    /// As [`InPlace::note_maps`] of all files, but that none counts as modified: nobody has asked for its sync.
    ///
    /// # Errors
    /// The first that occurred; the others were tried.
    pub(super) fn note_all_maps(&self, inodes: &InodeTable) -> Result<(), FsError> {
        if self.stored_to.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let stored_to = inodes.collect(|inode| inode.data.in_place.is_written());
        let note = |result: Result<(), FsError>, inode| result.and(self.note_blocks(inode));
        stored_to.iter().fold(Ok(()), note)
    }

    #[cold]
    fn note_blocks(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        if self.medium.flush() != FlushTo::Process {
            self.each_mapping(inode, Page::FIRST..inode.end().page_end(), |part, mapping| {
                if let BlockMapping::Block { block, unwritten: false, .. } = mapping {
                    self.medium.note_mapped(place(block, 0), bytes_of(&part));
                }
                Ok(())
            })?;
        }
        self.note_stored(inode);
        Ok(())
    }
}
