//! The medium as a placement of bytes: what has a block is copied here, while the file's extents are held.

use crate::bytes::{Data, Placement, Short};
use crate::error::FsError;
use crate::extent::BlockMapping;
use crate::filedata::{Growing, Stream};
use crate::in_place::stripes::{RANGE_BYTES, STRIPE_BYTES};
use crate::in_place::{InPlace, place};
use crate::inode::Inode;
use crate::map::Mappings;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use nvmed_io::Operation;
use nvmed_mutant::Mutant;
use nvmed_sys::door;
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, ByteOffset, Page};

impl Placement for InPlace {
    #[inline]
    fn read(&self, inode: &Inode, into: &mut [u8], at: ByteOffset) -> usize {
        if inode.data.residence.is_in_record() {
            return read_record(inode, into, at);
        }
        if into.len() <= RANGE_BYTES {
            return self.read_held(inode, into, at);
        }
        self.read_in_parts(inode, into, at)
    }

    fn bring(
        &self,
        inode: &Arc<Inode>,
        _stream: Option<&Stream>,
        range: Range<ByteOffset>,
    ) -> Result<(), FsError> {
        assert!(range.start < range.end, "no byte of {}..{} is missing", range.start, range.end);
        let mapping = self.mapping(inode, range.start.page())?;
        if let BlockMapping::Block { block, unwritten: false, .. } = mapping {
            let at = place(block, range.start.within());
            // All of the page that is missing, as `copy_pages` asks for it: what follows may be gone, and this there.
            let bytes = (range.end - range.start).min((BLOCK_BYTES - range.start.within()) as u64);
            let read = self.medium.read(at, &mut [0; BLOCK_BYTES][..bytes as usize]);
            read.map_err(|status| self.failed(Operation::Read, at, status))?;
        }
        Ok(())
    }

    #[inline]
    fn overwrite(&self, inode: &Arc<Inode>, from: &[u8], at: ByteOffset) -> usize {
        if inode.data.residence.is_in_record() {
            return 0;
        }
        let done = if from.len() <= RANGE_BYTES {
            self.overwrite_held(inode, from, at)
        } else {
            self.overwrite_in_parts(inode, from, at)
        };
        if done > 0 {
            self.note_stored(inode);
        }
        done
    }

    fn write(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        from: &[u8],
        at: ByteOffset,
    ) -> Result<(), Short> {
        self.write_pieces(grow, inode, from, at)
    }

    fn zero_tail(&self, grow: &Growing<'_>, inode: &Arc<Inode>, end: ByteOffset) -> Result<(), FsError> {
        assert!(grow.is_of(&inode.data), "the end of inode {} is zeroed under another's lock", inode.ino);
        // What comes behind a gap was not stored from here on: the record says first what was.
        self.record_up_to(&inode.data.quiet(), inode, end)?;
        self.meta.drop_room(grow, inode)?;
        if end.within() == 0 || Mutant::TailNotZeroed.is_made() || inode.data.residence.is_in_record() {
            return Ok(());
        }
        match self.mapping(inode, end.page())? {
            BlockMapping::Block { block, unwritten: false, .. } => {
                self.zero_behind(inode, end, place(block, end.within()))
            }
            _ => Ok(()),
        }
    }

    fn grown(&self, inode: &Arc<Inode>, end: ByteOffset) {
        let before = inode.end();
        let grows = before <= end && end.0 <= crate::FILE_BYTES_MAX;
        assert!(grows, "a file of {before} bytes grows to {end}");
        self.set_size(inode, end);
        self.has_grown(inode, end);
    }

    fn lengthened(&self, grow: &Growing<'_>, inode: &Arc<Inode>, end: ByteOffset) -> Result<(), FsError> {
        assert!(grow.is_of(&inode.data), "inode {} grows under another's lock", inode.ino);
        // Nobody has stored what lies between: a record must say that the file has it.
        self.meta.record_size(inode, end.0, || !Mutant::GrowthNotFlushed.is_made())?;
        self.grown(inode, end);
        Ok(())
    }

    fn cut(&self, grow: &Growing<'_>, inode: &Arc<Inode>, end: ByteOffset) -> Result<(), FsError> {
        let before = inode.end();
        assert!(end <= before, "a file of {before} bytes is cut to {end}");
        self.shrink(grow, inode, end)
    }

    fn next_of(&self, inode: &Arc<Inode>, at: ByteOffset, data: bool) -> Result<Option<ByteOffset>, FsError> {
        let in_record = inode.data.residence.is_in_record();
        let mut page = at.page();
        while page < Page::END {
            let mapping = self.mapping(inode, page)?;
            let (end, is_data) = match mapping {
                _ if in_record && page == Page::FIRST => (Page(1), true),
                BlockMapping::Block { end, unwritten, .. } => (end, !unwritten),
                BlockMapping::Hole { end } => (end, false),
            };
            if is_data == data {
                return Ok(Some(page.start().max(at)));
            }
            page = end;
        }
        Ok(None)
    }

    fn settle(&self, inode: &Arc<Inode>, range: Range<ByteOffset>, _how: Data) -> Result<(), FsError> {
        self.gather_mapped(inode, range)?;
        self.note_maps(inode)?;
        self.record(inode)?;
        self.draw_ticket(inode);
        Ok(())
    }

    fn make_room(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        range: Range<ByteOffset>,
    ) -> Result<(), FsError> {
        if inode.data.in_place.is_written() { self.fill_below_maps(grow, inode, &range) } else { Ok(()) }
    }

    fn show_maps(&self, grow: &Growing<'_>, inode: &Arc<Inode>, range: Range<ByteOffset>, end: ByteOffset) {
        assert!(grow.is_of(&inode.data), "inode {} is shown under another's lock", inode.ino);
        if inode.data.in_place.is_any() {
            self.show_changed(inode, range.start.page()..range.end.page_end(), end);
        }
    }

    fn maps_written(&self) -> &AtomicU32 {
        &self.maps_written
    }

    #[inline]
    fn modified(&self, inode: &Arc<Inode>) {
        self.meta.modified(inode);
    }
}

/// Copies bytes that the record holds itself; none if it holds none any more.
fn read_record(inode: &Inode, into: &mut [u8], at: ByteOffset) -> usize {
    let Some(bytes) = inode.lock().record().inline_data().cloned() else { return 0 };
    let there = usize::try_from(at.0).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
    let (first, rest) = into.split_at_mut(there.len().min(into.len()));
    door::give(&there[..first.len()], first);
    door::give_zeroes(rest);
    into.len()
}

/// Copies of more bytes than extents are held for.
impl InPlace {
    fn read_in_parts(&self, inode: &Inode, into: &mut [u8], at: ByteOffset) -> usize {
        let mut done = 0;
        for into in into.chunks_mut(RANGE_BYTES) {
            let copied = self.read_held(inode, into, at + done as u64);
            done += copied;
            if copied < into.len() {
                break;
            }
        }
        done
    }

    fn overwrite_in_parts(&self, inode: &Inode, from: &[u8], at: ByteOffset) -> usize {
        let mut done = 0;
        for from in from.chunks(RANGE_BYTES) {
            let copied = self.overwrite_held(inode, from, at + done as u64);
            done += copied;
            if copied < from.len() {
                break;
            }
        }
        done
    }
}

impl InPlace {
    /// Reads what takes one copy and no more: bytes inside the file that are one stripe's, in written blocks side by
    /// side, on memory that is there. False: nothing that was read counts.
    #[inline]
    pub(crate) fn read_usual(&self, inode: &Inode, into: &mut [u8], at: ByteOffset) -> bool {
        let data = &inode.data;
        // Once: it may be cut meanwhile.
        let end = inode.end();
        let is_inside = at < end && into.len() as u64 <= at.until(end);
        let is_one_stripe = (at.0 % STRIPE_BYTES).saturating_add(into.len() as u64) <= STRIPE_BYTES;
        if !is_inside || !is_one_stripe || data.map_written.load(Ordering::Acquire) {
            return false;
        }
        let held = data.extents.read();
        let pages = at.page()..(at + into.len() as u64).page_end();
        let Some(block) = held.written(pages) else { return false };
        self.copy_usual(inode, at, place(block, at.within()), into)
    }

    #[inline]
    fn read_held(&self, inode: &Inode, into: &mut [u8], at: ByteOffset) -> usize {
        let held = inode.data.extents.read();
        let mut done = 0;
        while done < into.len() {
            let position = at + done as u64;
            let Some(mapping) = held.mapping(position.page()) else { break };
            let (BlockMapping::Block { end, .. } | BlockMapping::Hole { end }) = mapping;
            let part = (into.len() - done).min(position.until(end.start()) as usize);
            let into = &mut into[done..done + part];
            match mapping {
                BlockMapping::Block { block, unwritten: false, .. } => {
                    let from = place(block, position.within());
                    if self.copy_out(inode, position, from, into).is_err() {
                        // Whoever brings the rest is told why.
                        done += self.copy_pages(inode, position, from, into);
                        break;
                    }
                }
                _ => door::give_zeroes(into),
            }
            done += part;
        }
        done
    }

    /// Of bytes that cannot be copied as a whole, copies the pages that are there, up to one that is not: how many
    /// bytes.
    #[cold]
    fn copy_pages(&self, inode: &Inode, at: ByteOffset, from: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let part = (into.len() - done).min(BLOCK_BYTES - (at + done as u64).within());
            let into = &mut into[done..done + part];
            if self.copy_out(inode, at + done as u64, from + done as u64, into).is_err() {
                break;
            }
            done += part;
        }
        done
    }

    #[inline]
    fn overwrite_held(&self, inode: &Inode, from: &[u8], at: ByteOffset) -> usize {
        let held = inode.data.extents.read();
        let mut done = 0;
        while done < from.len() {
            let position = at + done as u64;
            let Some(BlockMapping::Block { block, end, unwritten: false }) = held.mapping(position.page())
            else {
                break;
            };
            let part = (from.len() - done).min(position.until(end.start()) as usize);
            let to = place(block, position.within());
            if self.copy_in(inode, position, to, &from[done..done + part]).is_err() {
                // Whoever writes the rest is told why.
                break;
            }
            done += part;
        }
        done
    }

    /// A write over bytes of a file has to be covered by a flush: the file's next commit asks for one.
    pub(super) fn draw_ticket(&self, inode: &Inode) {
        if inode.data.stored.swap(false, Ordering::SeqCst) {
            let ticket = self.meta.journal.order.wrote();
            inode.data.ticket.fetch_max(ticket, Ordering::SeqCst);
        }
    }
}
