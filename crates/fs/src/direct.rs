//! Direct transfers: between a caller's device-visible memory and a file's blocks, past the cache, by a handle
//! of the caller's, without waiting for the end (TCE'17, III.C: sync or async, direct or buffered).
//!
//! What goes directly is a range inside the file whose blocks were all written before; everything else (holes, what
//! is past the end, mapped files) goes through the cache. Direct and cached calls see each other: before a transfer
//! begins, dirty pages of its range are on the device, and before a write the cache forgets its pages; while a write
//! is under way, who wants such a page waits for it; who writes back or takes blocks away waits for all transfers.

use crate::convoy::Data;
use crate::core::{Core, Durability};
use crate::error::FsError;
use crate::extent::Place;
use crate::file::File;
use crate::flight::{DirectIo, Part, Transfer};
use crate::inode::Inode;
use crate::status::OpenFlags;
use core::ops::Range;
use core::sync::atomic::Ordering;
use nvmed_io::{Handle, Operation, Segment};
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, Lba};
use std::collections::VecDeque;

const PAGE: u64 = BLOCK_BYTES as u64;
/// Rounds of writing back what others make dirty meanwhile, before the call goes through the cache.
const ROUNDS_MAX: u32 = 8;

/// What a direct transfer asks for.
struct Wish {
    operation: Operation,
    data: Segment,
    offset: u64,
}

impl File {
    /// What offset, length and memory address of a direct transfer are multiples of, in bytes.
    #[must_use]
    pub fn direct_align(&self) -> u32 {
        self.core.data.direct_align()
    }

    /// Begins to read from the blocks of the file into `into`, by `handle`. `None`: the range cannot be read
    /// directly, and nothing has begun; [`File::pread`] reads it.
    ///
    /// The memory must stay mapped until the end, and nobody else use it.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`]; [`FsError::Invalid`] for what is not aligned; what had to be written back first
    /// and could not.
    pub fn read_direct(
        self: &Arc<Self>,
        handle: &Handle,
        into: Segment,
        offset: u64,
    ) -> Result<Option<Arc<DirectIo>>, FsError> {
        let flags = self.flags();
        self.readable(flags)?;
        let begun = self.begin(handle, &Wish { operation: Operation::Read, data: into, offset })?;
        if begun.is_some() && self.stamps(flags) {
            self.core.accessed(&self.inode);
        }
        Ok(begun)
    }

    /// Begins to write `from` over blocks of the file, by `handle`; with `O_DSYNC` it is durable at the end. `None`:
    /// the range cannot be written directly, and nothing has begun; [`File::pwrite`] writes it.
    ///
    /// The memory must stay mapped and unchanged until the end.
    ///
    /// # Errors
    /// As [`File::read_direct`]; [`FsError::ReadOnly`].
    pub fn write_direct(
        self: &Arc<Self>,
        handle: &Handle,
        from: Segment,
        offset: u64,
    ) -> Result<Option<Arc<DirectIo>>, FsError> {
        let flags = self.flags();
        self.changeable(flags)?;
        let through = self.core.options.durability == Durability::Device;
        if flags.has(OpenFlags::APPEND) || flags.has(OpenFlags::SYNC) || through {
            return Ok(None);
        }
        let operation = Operation::Write { fua: flags.has(OpenFlags::DSYNC) };
        let begun = self.begin(handle, &Wish { operation, data: from, offset })?;
        if begun.is_some() {
            self.core.modified(&self.inode);
        }
        Ok(begun)
    }

    /// As [`File::pwrite`], but from memory of any alignment, and on the device when it returns: what a direct write
    /// of a range is that cannot go directly.
    ///
    /// # Errors
    /// As [`File::pwrite`].
    pub fn pwrite_through(&self, from: &[u8], offset: u64) -> Result<usize, FsError> {
        let written = self.pwrite(from, offset)?;
        self.core.write_back(&self.inode)?;
        Ok(written)
    }

    fn begin(self: &Arc<Self>, handle: &Handle, wish: &Wish) -> Result<Option<Arc<DirectIo>>, FsError> {
        let align = u64::from(self.direct_align());
        if !(wish.offset | u64::from(wish.data.bytes) | wish.data.address.0).is_multiple_of(align) {
            return Err(FsError::Invalid);
        }
        let end = wish.offset.saturating_add(wish.data.bytes.into());
        let pages = wish.offset / PAGE..end.div_ceil(PAGE);
        let inode = &self.inode;
        for _ in 0..ROUNDS_MAX {
            let mapped = inode.data.mapped.load(Ordering::Acquire);
            if mapped || wish.offset >= inode.size.load(Ordering::Acquire) || wish.data.bytes == 0 {
                return Ok(None);
            }
            let is_dirty = || inode.data.object.next_dirty(pages.start).is_some_and(|page| page < pages.end);
            if is_dirty() {
                self.core.write_back_range(inode, pages.clone(), Data::Cached)?;
            }
            let io = inode.data.io();
            if is_dirty() {
                continue;
            }
            let Some((parts, bytes)) = self.parts(wish, end)? else { return Ok(None) };
            let (handle, operation) = (handle.clone(), wish.operation);
            let what = Transfer { handle, operation, pages: pages.clone(), bytes, parts };
            let open: Arc<Self> = Arc::clone(self);
            let flight = DirectIo::register(&io, (inode, &self.core.journal), open, what);
            if matches!(wish.operation, Operation::Write { .. }) && !self.core.forget_clean(inode, &pages) {
                // Dirty again in between.
                flight.call_off();
                continue;
            }
            flight.start();
            return Ok(Some(flight));
        }
        Ok(None)
    }

    /// The pieces of a range, and how many bytes of it the file has; none unless every block was written before, and for
    /// a write that is to be durable, that is so, too.
    fn parts(&self, wish: &Wish, end: u64) -> Result<Option<(VecDeque<Part>, usize)>, FsError> {
        let size = self.inode.size.load(Ordering::Acquire);
        let is_write = matches!(wish.operation, Operation::Write { .. });
        let is_durable = matches!(wish.operation, Operation::Write { fua: true });
        if wish.offset >= size || (is_write && end > size) {
            return Ok(None);
        }
        let lba_bytes = PAGE / self.core.lbas_per_block;
        // Whole logical blocks, also where the file ends inside one.
        let stop = end.min(size.next_multiple_of(lba_bytes));
        let mut parts = VecDeque::new();
        let mut at = wish.offset;
        let mut state = self.inode.lock();
        // Durable at the end is only what durable records tell of, and with it every change of names before.
        if is_durable && (state.record().size < end || !self.core.journal.is_durable()) {
            return Ok(None);
        }
        let whole = self.core.with_extents(&self.inode, &mut state, |_, extents| {
            while at < stop {
                let Place::Block { block, end, unwritten: false } = extents.place(at / PAGE) else {
                    return Ok(false);
                };
                let part_end = end.saturating_mul(PAGE).min(stop);
                let address = wish.data.address.plus(at - wish.offset);
                parts.push_back(Part {
                    lba: Lba(block.lba(self.core.lbas_per_block).0 + at % PAGE / lba_bytes),
                    blocks: ((part_end - at) / lba_bytes) as u32,
                    data: Segment { address, bytes: (part_end - at) as u32 },
                });
                at = part_end;
            }
            Ok(true)
        })?;
        let bytes = (end.min(size) - wish.offset) as usize;
        Ok(whole.then_some((parts, bytes)))
    }
}

impl Core {
    /// Has the cache forget clean pages of a range; whether none is left. The caller holds `io`, and no claim.
    fn forget_clean(&self, inode: &Arc<Inode>, pages: &Range<u64>) -> bool {
        self.data.cache.write_back(&inode.data.object).discard_clean(pages.clone())
    }
}
