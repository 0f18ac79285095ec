//! Writes that are more than copies over blocks with data: first blocks, blocks never written, and bytes that the
//! record holds itself.

use crate::blocks::alloc::Near;
use crate::bytes::Short;
use crate::error::FsError;
use crate::extent::{BlockMapping, Extents, Fresh, Whereabouts};
use crate::filedata::Growing;
use crate::in_place::{InPlace, place};
use crate::inode::Inode;
use crate::metadata::change::Change;
use crate::metadata::promises::PagePromise;
use core::ops::Range;
use nvmed_io::Operation;
use nvmed_layout::record::{ENTRY_RECORD_BYTES_MAX, Extent, RECORD_BYTES_USUAL, Tail};
use nvmed_sys::door;
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, Block, ByteOffset, Page};

/// Blocks that one step of a write takes at most, 4 MiB: more is another step.
const STEP_BLOCKS: u64 = 1024;
/// Blocks taken ahead of a file that grows at its end, 64 KiB to 2 MiB: half of what it has, so that files that grow
/// side by side have few extents, and small ones hold little that others need.
const AHEAD_BLOCKS_MIN: u64 = 16;
const AHEAD_BLOCKS_MAX: u64 = 512;
/// The file's share.
const AHEAD_SHARE: u64 = 2;

/// A part of a write.
pub(super) struct Piece<'a> {
    /// From where on it is to be written.
    pub(super) at: ByteOffset,
    pub(super) from: &'a [u8],
    /// Whether everything before it, back to the recorded size, was stored.
    follows: bool,
}

impl Piece<'_> {
    /// The first part of it, which ends before a page.
    pub(super) fn until(&self, end: Page) -> Self {
        let bytes = (self.from.len()).min(self.at.until(end.start()) as usize);
        Self { from: &self.from[..bytes], ..*self }
    }

    fn end(&self) -> ByteOffset {
        self.at + self.from.len() as u64
    }

    fn pages(&self) -> Range<Page> {
        self.at.page()..self.end().page_end()
    }
}

impl InPlace {
    /// Writes piece after piece, anywhere in the file or behind its end.
    pub(super) fn write_pieces(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        from: &[u8],
        at: ByteOffset,
    ) -> Result<(), Short> {
        assert!(grow.is_of(&inode.data), "inode {} is written under another's lock", inode.ino);
        let file_end = inode.end();
        // In the last page zeroes were stored up to the write.
        let follows = at <= file_end.page_end().start();
        let mut done = 0;
        while done < from.len() {
            let position = at + done as u64;
            let follows = follows && position >= file_end;
            let piece = Piece { at: position, from: &from[done..], follows };
            let stored = self.write_piece(grow, inode, &piece);
            done += self.or_spare(grow, inode, &piece, stored).map_err(|why| Short { done, why })?;
        }
        Ok(())
    }

    /// Writes a piece, or the first part of it; answers how many bytes.
    fn write_piece(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        piece: &Piece<'_>,
    ) -> Result<usize, FsError> {
        let page = piece.at.page();
        if piece.follows
            && let Some(room) = self.room_at(inode, page)
        {
            let part = piece.until(room.logical_end());
            self.fill(&part, room.physical)?;
            self.use_room(inode, &room, part.pages().end)?;
            return Ok(part.from.len());
        }
        if self.fits_record(inode, piece) {
            self.write_record(inode, piece)?;
            return Ok(piece.from.len());
        }
        self.give_block(grow, inode)?;
        match self.mapping(inode, page)? {
            BlockMapping::Block { block, end, unwritten: false } => {
                let part = piece.until(end);
                let to = place(block, piece.at.within());
                let stored = self.copy_in(inode, piece.at, to, part.from);
                self.note_stored(inode);
                stored.map_err(|status| self.failed(Operation::Write { fua: false }, to, status))?;
                Ok(part.from.len())
            }
            BlockMapping::Block { block, end, .. } => {
                let part = piece.until(end.min(page + STEP_BLOCKS));
                self.fill(&part, block)?;
                self.show(inode, &part, 0, |_, extents| {
                    extents.mark(part.pages(), false);
                    Ok(())
                })?;
                Ok(part.from.len())
            }
            BlockMapping::Hole { end } => {
                let part = piece.until(end.min(page + STEP_BLOCKS));
                if piece.follows && piece.at.within() == 0 {
                    self.append_blocks(inode, &part)
                } else {
                    self.fill_hole(inode, &part)
                }
            }
        }
    }

    /// Stores a piece to blocks that nobody reads yet: what of their pages it does not cover is zero.
    fn fill(&self, piece: &Piece<'_>, block: Block) -> Result<(), FsError> {
        let (before, behind) = (piece.at.within(), piece.end().within());
        let to = place(block, before);
        let end = to + piece.from.len() as u64;
        let rest = if behind == 0 { 0 } else { BLOCK_BYTES - behind };
        let zero =
            |at, bytes: usize| if bytes == 0 { Ok(()) } else { self.medium.zero(at, bytes as u64, false) };
        let stored = zero(place(block, 0), before)
            .and_then(|()| self.medium.take(to, piece.from))
            .and_then(|_| zero(end, rest));
        self.medium.settle();
        stored.map_err(|status| self.failed(Operation::Write { fua: false }, to, status))
    }

    /// Records that blocks have data now, and the size that a piece of it reaches, as one batch.
    fn show(
        &self,
        inode: &Arc<Inode>,
        piece: &Piece<'_>,
        charged: u64,
        edit: impl FnOnce(&mut Change<'_>, &mut Extents) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let has_fresh = inode.data.extents.read().fresh.is_some();
        if has_fresh && piece.end() > inode.end() {
            // The record will tell a size behind blocks that it does not know of yet.
            self.record_up_to(&inode.data.quiet(), inode, piece.at)?;
        }
        self.meta.edit(inode, charged, |change, extents, record| {
            // What is written had a promise, of room for its records too.
            change.use_headroom();
            change.require_flush();
            record.size = record.size.max(piece.end().0);
            edit(change, extents)
        })
    }

    /// Gives pages in the middle of holes their first blocks, with data.
    fn fill_hole(&self, inode: &Arc<Inode>, piece: &Piece<'_>) -> Result<usize, FsError> {
        let (mut promise, wanted) = self.promised(inode, piece)?;
        let page = piece.at.page();
        let goal = inode.data.extents.read().goal(page);
        let near = Near { goal, group: self.meta.home(inode) };
        let run = self.meta.take_near(inode, near, wanted)?;
        let blocks = u64::from(run.blocks);
        promise.shrink_to(blocks);
        let part = piece.until(page + blocks);
        let extent = Extent { logical: page, physical: run.start, blocks: run.blocks, flags: 0 };
        self.fill(&part, run.start)
            .and_then(|()| {
                self.show(inode, &part, blocks, |change, extents| {
                    extents.insert(extent);
                    change.use_run(run)
                })
            })
            .inspect_err(|_| self.meta.blocks.give_back(run))?;
        promise.redeemed(blocks);
        Ok(part.from.len())
    }

    /// Stores a piece behind everything that the file has, in blocks that were taken ahead where there are some. No
    /// record tells of them before the file is synced: until then the memory that outlives the process says where they
    /// are.
    fn append_blocks(&self, inode: &Arc<Inode>, piece: &Piece<'_>) -> Result<usize, FsError> {
        let (mut promise, wanted) = self.promised(inode, piece)?;
        let page = piece.at.page();
        let (goal, fresh) = {
            let held = inode.data.extents.read();
            (held.goal(page), held.fresh)
        };
        let has = inode.blocks() + fresh.map_or(0, |fresh| fresh.extent.blocks.into());
        let ahead = (has / AHEAD_SHARE).clamp(AHEAD_BLOCKS_MIN, AHEAD_BLOCKS_MAX) as u32;
        let ahead = ahead.max(self.meta.prealloc_blocks(inode));
        let run = self.meta.allocate(inode, goal, (page, wanted), ahead)?;
        promise.shrink_to(run.blocks.into());
        let part = piece.until(page + u64::from(run.blocks));
        let stored = self.fill(&part, run.start).and_then(|()| {
            let extent = Extent { logical: page, physical: run.start, blocks: run.blocks, flags: 0 };
            self.go_on(inode, Fresh { extent, of_room: 0 }, |_| ())
        });
        stored.inspect_err(|_| self.meta.blocks.give_back(run))?;
        promise.keep();
        Ok(part.from.len())
    }

    /// Blocks have data of the file, as the fresh ones before them, where those end; `also` changes what else changes
    /// with that.
    pub(super) fn go_on(
        &self,
        inode: &Arc<Inode>,
        new: Fresh,
        also: impl FnOnce(&mut Whereabouts),
    ) -> Result<(), FsError> {
        let join = |before: Option<Fresh>| before.map_or(Some(new), |before| before.joined(&new));
        let mut held = inode.data.extents.write();
        if join(held.fresh).is_none() {
            drop(held);
            // There is one note of where fresh blocks lie.
            self.record_up_to(&inode.data.quiet(), inode, new.extent.logical.start())?;
            held = inode.data.extents.write();
        }
        held.fresh = Some(join(held.fresh).unwrap_or(new));
        also(&mut held);
        Ok(())
    }

    /// A promise for the pages of a piece, and how many they are: fewer where there is no room for all.
    fn promised<'a>(
        &'a self,
        inode: &'a Inode,
        piece: &Piece<'_>,
    ) -> Result<(PagePromise<'a>, u32), FsError> {
        let pages = piece.pages();
        let wanted = pages.end - pages.start;
        let made = PagePromise::made_ahead_or_now(&self.meta, inode, wanted);
        match made {
            Err(FsError::NoSpace | FsError::Quota) if wanted > 1 => {
                PagePromise::made_ahead_or_now(&self.meta, inode, 1).map(|promise| (promise, 1))
            }
            made => made.map(|promise| (promise, wanted as u32)),
        }
    }
}

/// Bytes that the record holds itself.
impl InPlace {
    /// Whether the record may hold the file with a piece written.
    fn fits_record(&self, inode: &Inode, piece: &Piece<'_>) -> bool {
        let end = piece.end().max(inode.end());
        if end.0 > self.inline_bytes || inode.data.residence.is_barred() || inode.blocks() > 0 {
            return false;
        }
        if inode.data.extents.read().fresh.is_some() {
            return false;
        }
        let attributes = inode.lock().record().xattrs.as_ref().map_or(0, |bytes| bytes.len());
        attributes + end.0 as usize <= ENTRY_RECORD_BYTES_MAX - RECORD_BYTES_USUAL
    }

    /// Writes a piece into the record: the batch is in the memory that outlives the process when this returns.
    fn write_record(&self, inode: &Arc<Inode>, piece: &Piece<'_>) -> Result<(), FsError> {
        if inode.data.advance.blocks() == 0 {
            self.meta.room_for_promises()?;
        }
        let mut bytes = inode.lock().record().inline_data().map_or_else(Vec::new, |bytes| bytes.to_vec());
        let (from, to) = (piece.at.0 as usize, piece.end().0 as usize);
        bytes.resize(bytes.len().max(to), 0);
        let arrived = door::take(piece.from, &mut bytes[from..to]);
        if arrived < piece.from.len() {
            bytes[from + arrived..to].fill(0);
            door::note(piece.from.as_ptr().addr() + arrived);
        }
        self.meta.alter(inode, |record| {
            record.tail = Tail::Data(bytes.into());
            record.size = record.size.max(to as u64);
            Ok(())
        })
    }

    /// The file has blocks from here on: what its record holds goes to one.
    pub(super) fn give_block(&self, grow: &Growing<'_>, inode: &Arc<Inode>) -> Result<(), FsError> {
        let residence = &inode.data.residence;
        if residence.is_outside() {
            return Ok(());
        }
        residence.bar(grow);
        let Some(bytes) = inode.lock().record().inline_data().cloned() else { return Ok(()) };
        let mut promise = PagePromise::made_ahead_or_now(&self.meta, inode, 1)?;
        let near = Near { goal: None, group: self.meta.home(inode) };
        let run = self.meta.take_near(inode, near, 1)?;
        let piece = Piece { at: ByteOffset::FIRST, from: &bytes, follows: false };
        let extent = Extent { logical: Page::FIRST, physical: run.start, blocks: 1, flags: 0 };
        self.fill(&piece, run.start)
            .and_then(|()| {
                self.meta.edit(inode, 1, |change, extents, record| {
                    change.use_headroom();
                    change.require_flush();
                    record.tail = Tail::EMPTY;
                    extents.insert(extent);
                    change.use_run(run)
                })
            })
            .inspect_err(|_| self.meta.blocks.give_back(run))?;
        promise.redeemed(1);
        Ok(())
    }
}
