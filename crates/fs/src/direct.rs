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
use crate::inode::Inode;
use crate::status::OpenFlags;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use nvmed_io::{Handle, IoError, Operation, Request, Segment, SubmitError, Ticket};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard, PoisonError};
use nvmed_units::{BLOCK_BYTES, Lba};
use std::collections::VecDeque;

const PAGE: u64 = BLOCK_BYTES as u64;
/// Rounds of writing back what others make dirty meanwhile, before the call goes through the cache.
const ROUNDS_MAX: u32 = 8;

/// The direct transfers of an inode that are under way.
#[derive(Default)]
pub(crate) struct Flights {
    count: AtomicU32,
    list: Mutex<Vec<Arc<DirectIo>>>,
}

/// A direct transfer. Its memory is the device's until [`DirectIo::wait`] has returned, or [`DirectIo::poll`] has
/// answered something; letting go of it ends nothing, since the file keeps it until then.
pub struct DirectIo {
    file: Arc<File>,
    handle: Handle,
    operation: Operation,
    pages: Range<u64>,
    bytes: usize,
    inner: Mutex<Inner>,
}

/// A piece that lies in one extent.
#[derive(Clone, Copy)]
struct Part {
    lba: Lba,
    blocks: u32,
    data: Segment,
}

struct Inner {
    unsent: VecDeque<Part>,
    tickets: Vec<Ticket>,
    error: Option<IoError>,
    over: bool,
}

impl core::fmt::Debug for DirectIo {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (operation, pages) = (self.operation, &self.pages);
        f.debug_struct("DirectIo")
            .field("operation", &operation)
            .field("pages", pages)
            .finish_non_exhaustive()
    }
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<DirectIo>>> {
        // A push or a removal is whole at every step.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the transfers under way that `which` accepts.
    fn settle(&self, which: impl Fn(&DirectIo) -> bool) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let flying: Vec<_> = self.lock().iter().filter(|flight| which(flight)).map(Arc::clone).collect();
        // A failure is told to whoever began the transfer.
        flying.iter().for_each(|flight| drop(flight.finish()));
    }

    /// Waits for all transfers under way.
    pub(crate) fn settle_all(&self) {
        self.settle(|_| true);
    }

    /// Whether a write of `page` is under way.
    fn writes(&self, page: u64) -> bool {
        self.count.load(Ordering::SeqCst) > 0 && self.lock().iter().any(|flight| flight.writes(page))
    }
}

impl Inode {
    /// Before a claim of a page: waits for direct writes of it.
    #[inline]
    pub(crate) fn await_direct(&self, page: u64) {
        if self.data.flights.count.load(Ordering::Relaxed) > 0 {
            self.data.flights.settle(|flight| flight.writes(page));
        }
    }

    /// After a claim of a page: whether a direct write of it has begun meanwhile, so that the claim must be dropped.
    #[inline]
    pub(crate) fn is_overtaken(&self, page: u64) -> bool {
        // With the fence in `begin`: either we see the transfer, or it sees the claim and waits for it.
        fence(Ordering::SeqCst);
        self.data.flights.writes(page)
    }
}

impl DirectIo {
    fn writes(&self, page: u64) -> bool {
        matches!(self.operation, Operation::Write { .. }) && self.pages.contains(&page)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Its parts move between the lists by calls that do not panic in between.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the device as much as it has room for.
    fn send(&self, inner: &mut Inner) {
        while inner.error.is_none()
            && let Some(part) = inner.unsent.front()
        {
            let request = Request {
                operation: self.operation,
                lba: part.lba,
                blocks: part.blocks,
                data: &[part.data],
                tag: 0,
                stream: 0,
            };
            match self.handle.submit(&request) {
                Ok(ticket) => inner.tickets.push(ticket),
                Err(SubmitError::NoSlot) => return,
                Err(refused) => inner.error = Some(IoError::refused(self.operation, part.lba, refused)),
            }
            inner.unsent.pop_front();
        }
        if inner.error.is_some() {
            inner.unsent.clear();
        }
    }

    /// Everything that the device was given has come back.
    fn end(&self, inner: &mut Inner) {
        inner.over = true;
        let inode = &self.file.inode;
        if matches!(self.operation, Operation::Write { .. }) {
            // Also of one that failed: some of it may have been written.
            let ticket = self.file.core.journal.order.wrote();
            inode.data.ticket.fetch_max(ticket, Ordering::SeqCst);
        }
        let flights = &inode.data.flights;
        flights.lock().retain(|flight| !core::ptr::eq(Arc::as_ptr(flight), self));
        flights.count.fetch_sub(1, Ordering::SeqCst);
    }

    fn result(&self, inner: &Inner) -> Result<usize, FsError> {
        inner.error.map_or(Ok(self.bytes), |error| Err(error.into()))
    }

    fn finish(&self) -> Result<usize, FsError> {
        let mut inner = self.lock();
        while !inner.over {
            self.send(&mut inner);
            match inner.tickets.pop() {
                Some(ticket) => {
                    let result = self.handle.wait(ticket);
                    inner.error = inner.error.or(result.err());
                }
                None if inner.unsent.is_empty() => self.end(&mut inner),
                // Others have all slots of the queue.
                None => nvmed_sys::sync::yield_now(),
            }
        }
        self.result(&inner)
    }

    /// Waits for the end; answers bytes moved: fewer than asked for at the end of the file.
    ///
    /// # Errors
    /// The device's. Blocks of a failed write hold what they held before, or what was to be written.
    pub fn wait(&self) -> Result<usize, FsError> {
        self.finish()
    }

    /// The result, if it is there.
    #[must_use]
    pub fn poll(&self) -> Option<Result<usize, FsError>> {
        // Who holds the lock for long waits for the end.
        let mut inner = self.inner.try_lock().ok()?;
        if !inner.over {
            self.send(&mut inner);
            let Inner { tickets, error, .. } = &mut *inner;
            tickets.retain(|ticket| match self.handle.poll(ticket) {
                None => true,
                Some(result) => {
                    *error = error.or(result.err());
                    false
                }
            });
            if !inner.tickets.is_empty() || !inner.unsent.is_empty() {
                return None;
            }
            self.end(&mut inner);
        }
        Some(self.result(&inner))
    }
}

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
            let _io = inode.data.io();
            if is_dirty() {
                continue;
            }
            let Some((parts, bytes)) = self.parts(wish, end)? else { return Ok(None) };
            let flight = self.register(handle, wish, &pages, (parts, bytes));
            if matches!(wish.operation, Operation::Write { .. }) && !self.core.forget_clean(inode, &pages) {
                // Dirty again in between.
                flight.lock().unsent.clear();
                flight.end(&mut flight.lock());
                continue;
            }
            flight.send(&mut flight.lock());
            return Ok(Some(flight));
        }
        Ok(None)
    }

    fn register(
        self: &Arc<Self>,
        handle: &Handle,
        wish: &Wish,
        pages: &Range<u64>,
        (parts, bytes): (VecDeque<Part>, usize),
    ) -> Arc<DirectIo> {
        let inner = Inner { unsent: parts, tickets: Vec::new(), error: None, over: false };
        let flight = Arc::new(DirectIo {
            file: Arc::clone(self),
            handle: handle.clone(),
            operation: wish.operation,
            pages: pages.clone(),
            bytes,
            inner: Mutex::new(inner),
        });
        let flights = &self.inode.data.flights;
        flights.lock().push(Arc::clone(&flight));
        flights.count.fetch_add(1, Ordering::SeqCst);
        // With the fence in `is_overtaken`.
        fence(Ordering::SeqCst);
        flight
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
