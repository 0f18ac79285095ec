//! Direct transfers: between a caller's device-visible memory and a file's blocks, past the cache, by a handle
//! of the caller's, without waiting for the end (TCE'17, III.C: sync or async, direct or buffered).
//!
//! What goes directly is a range inside the file whose blocks were all written before; everything else (holes, what
//! is past the end, mapped files) goes through the cache. Direct and cached calls see each other: before a transfer
//! begins, dirty pages of its range are on the device, and before a write the cache forgets its pages; while a write
//! is under way, who wants such a page waits for it; who writes back or takes blocks away waits for all transfers.

use crate::bytes::Data;
use crate::error::FsError;
use crate::extent::BlockMapping;
use crate::flight::{DirectIo, Transfer, Wish};
use crate::inode::Inode;
use crate::pages::Pages;
use core::any::Any;
use core::sync::atomic::Ordering;
use nvmed_io::{Flight, Handle, Operation, Segment};
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, ByteOffset, Lba};

/// Rounds of writing back what others make dirty meanwhile, before the call goes through the cache.
const ROUNDS_MAX: u32 = 8;

impl Pages {
    /// Begins a transfer past the cache; none where a page has no written block, or is mapped.
    pub(super) fn transfer_directly(
        &self,
        (inode, open): (&Arc<Inode>, &Arc<dyn Any + Send + Sync>),
        handle: &Handle,
        wish: &Wish,
    ) -> Result<Option<Arc<DirectIo>>, FsError> {
        let end = wish.offset.saturating_plus(wish.data.bytes.into());
        let pages = wish.offset.page()..end.page_end();
        for _ in 0..ROUNDS_MAX {
            let mapped = inode.data.mapped.load(Ordering::Acquire);
            if mapped || wish.offset >= inode.end() || wish.data.bytes == 0 {
                return Ok(None);
            }
            let is_dirty = || inode.data.object.next_dirty(pages.start).is_some_and(|page| page < pages.end);
            if is_dirty() {
                self.write_back_range(inode, wish.offset..end, Data::Cached)?;
            }
            let io = inode.data.io();
            if is_dirty() {
                continue;
            }
            let Some((flight, bytes)) = self.flight(inode, wish, end)? else { return Ok(None) };
            let (handle, operation) = (handle.clone(), wish.operation);
            let what = Transfer { handle, operation, pages: pages.clone(), bytes, flight };
            let flight = DirectIo::register(&io, (inode, &self.meta.journal), Arc::clone(open), what);
            if matches!(wish.operation, Operation::Write { .. })
                && !self.forget_clean(&io, inode, pages.clone())
            {
                // Dirty again in between.
                flight.call_off();
                continue;
            }
            flight.start();
            return Ok(Some(flight));
        }
        Ok(None)
    }

    /// The transfer of a range, and how many bytes of it the file has; none unless every block was written before,
    /// and for a write that is to be durable, that is so, too.
    fn flight(
        &self,
        inode: &Inode,
        wish: &Wish,
        end: ByteOffset,
    ) -> Result<Option<(Flight, usize)>, FsError> {
        let file_end = inode.end();
        let is_write = matches!(wish.operation, Operation::Write { .. });
        let is_durable = matches!(wish.operation, Operation::Write { fua: true });
        if wish.offset >= file_end || (is_write && end > file_end) {
            return Ok(None);
        }
        let lba_bytes = BLOCK_BYTES as u64 / self.lbas_per_block;
        // Whole logical blocks, also where the file ends inside one.
        let stop = end.min(ByteOffset(file_end.0.next_multiple_of(lba_bytes)));
        let memory = Segment {
            bytes: u32::try_from(stop - wish.offset).expect("no more than the caller asks for"),
            ..wish.data
        };
        let mut flight = Flight::new(wish.operation, Some(memory));
        let mut at = wish.offset;
        let mut state = inode.lock();
        // Durable at the end is only what durable records tell of, and with it every change of names before.
        if is_durable && (state.record().size < end.0 || !self.meta.journal.is_durable()) {
            return Ok(None);
        }
        let whole = self.meta.with_extents(inode, &mut state, |_, extents| {
            while at < stop {
                let BlockMapping::Block { block, end, unwritten: false } = extents.mapping(at.page()) else {
                    return Ok(false);
                };
                let part_end = end.start().min(stop);
                let lba = Lba(block.lba(self.lbas_per_block).0 + at.within() as u64 / lba_bytes);
                flight.push(lba, (part_end - at) / lba_bytes);
                at = part_end;
            }
            Ok(true)
        })?;
        let bytes = (end.min(file_end) - wish.offset) as usize;
        Ok(whole.then_some((flight, bytes)))
    }
}
