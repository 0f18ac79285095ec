//! Memory that the device knows: registered once, address ready.

use crate::error::{BlockError, InvalidOption};
use core::ops::Range;
use nvmed_io::{Device, IoError, Segment};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{BLOCK_BYTES, DeviceAddress};
use std::collections::BTreeMap;

/// Bytes of the first slab; each further one is as large as all before together, up to the second number: a device
/// can be shown only so many mappings (256 in process, 65,535 by the kernel's default for VFIO), and what it is shown
/// may be pinned.
const SLAB_BYTES: usize = 2 << 20;
const SLAB_BYTES_MAX: usize = 256 << 20;
/// Bytes of a bounce buffer: large enough that its request's cost is small beside the copy, small enough to stay
/// in the processor's second-level cache meanwhile.
pub(crate) const BOUNCE_BYTES: usize = 256 << 10;
/// Bounce buffers kept for the next call; more are made while more calls need one.
const BOUNCES_KEPT: usize = 16;
/// Longest buffer: its length fits the 32 bits of a segment, whole pages.
pub(crate) const BUFFER_BYTES_MAX: usize = 1 << 30;

/// One mapping, cut into buffers.
#[derive(Debug)]
struct Slab {
    memory: Arc<Mapping>,
    address: DeviceAddress,
}

/// A piece of a slab.
#[derive(Clone, Copy, Debug)]
struct SlabPiece {
    slab: usize,
    start: usize,
    len: usize,
}

/// What the lock of [`Pool`] guards.
#[derive(Default)]
struct PoolState {
    slabs: Vec<Arc<Slab>>,
    /// Free pieces: (slab, first byte) → bytes. No two of one slab touch.
    free: BTreeMap<(usize, usize), usize>,
    /// Free pieces of [`BOUNCE_BYTES`], not among `free`.
    bounces: Vec<SlabPiece>,
    /// Bytes of all slabs.
    bytes: usize,
}

/// The registered memory of a disk.
pub(crate) struct Pool {
    device: Arc<Device>,
    pages: Pages,
    inner: Mutex<PoolState>,
}

impl Pool {
    pub(crate) fn new(device: Arc<Device>, pages: Pages) -> Arc<Self> {
        Arc::new(Self { device, pages, inner: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // Each change of the lists is one call that does not panic in between.
        self.inner.lock()
    }

    /// A buffer of `bytes` bytes. What it holds is anything.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<Buffer, BlockError> {
        if bytes == 0 || bytes > BUFFER_BYTES_MAX {
            return Err(InvalidOption::BufferBytes { bytes }.into());
        }
        let len = bytes.next_multiple_of(BLOCK_BYTES);
        let mut inner = self.lock();
        let piece = match inner.first_fit(len) {
            Some(piece) => piece,
            None => {
                self.grow(&mut inner, len)?;
                inner.first_fit(len).expect("the new slab has room for what it was made for")
            }
        };
        Ok(self.buffer(&inner, piece, bytes))
    }

    /// A buffer of [`BOUNCE_BYTES`] for the time of one call.
    pub(crate) fn bounce(self: &Arc<Self>) -> Result<Buffer, BlockError> {
        let mut inner = self.lock();
        if let Some(piece) = inner.bounces.pop() {
            return Ok(self.buffer(&inner, piece, BOUNCE_BYTES));
        }
        drop(inner);
        self.take(BOUNCE_BYTES)
    }

    fn buffer(self: &Arc<Self>, inner: &PoolState, piece: SlabPiece, bytes: usize) -> Buffer {
        Buffer { pool: Arc::clone(self), slab: Arc::clone(&inner.slabs[piece.slab]), piece, bytes }
    }

    /// Another slab with room for `len` bytes.
    fn grow(&self, inner: &mut PoolState, len: usize) -> Result<(), BlockError> {
        let need = len.next_multiple_of(SLAB_BYTES);
        let wish = inner.bytes.clamp(SLAB_BYTES, SLAB_BYTES_MAX).max(need);
        // More than what is needed is a wish: the host may limit what a device can be shown.
        let slab = self.slab(wish).or_else(|error| if wish > need { self.slab(need) } else { Err(error) })?;
        let (number, bytes) = (inner.slabs.len(), slab.memory.len());
        inner.slabs.push(Arc::new(slab));
        inner.free.insert((number, 0), bytes);
        inner.bytes += bytes;
        Ok(())
    }

    /// Memory that the device is shown.
    fn slab(&self, bytes: usize) -> Result<Slab, BlockError> {
        let fail = |errno| BlockError::Memory { bytes, errno };
        let memory = self.device.engine().memory(bytes, self.pages).map_err(|error| fail(error.errno()))?;
        // A forked child must not make the parent's pages change under the device.
        memory.forbid_fork().map_err(fail)?;
        let memory = Arc::new(memory);
        let address = self.device.map(Arc::clone(&memory)).map_err(|error: IoError| fail(error.errno()))?;
        Ok(Slab { memory, address })
    }

    fn give_back(&self, piece: SlabPiece) {
        let mut inner = self.lock();
        if piece.len == BOUNCE_BYTES && inner.bounces.len() < BOUNCES_KEPT {
            inner.bounces.push(piece);
        } else {
            inner.free_piece(piece);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Every buffer holds the pool, so none is left.
        for slab in &self.lock().slabs {
            self.device.unmap(slab.address);
        }
    }
}

impl PoolState {
    fn first_fit(&mut self, len: usize) -> Option<SlabPiece> {
        let (&(slab, start), &free) = self.free.iter().find(|(_, free)| **free >= len)?;
        self.free.remove(&(slab, start));
        if free > len {
            self.free.insert((slab, start + len), free - len);
        }
        Some(SlabPiece { slab, start, len })
    }

    /// Adds a piece to the free ones, joined with its neighbours.
    fn free_piece(&mut self, piece: SlabPiece) {
        let SlabPiece { slab, mut start, mut len } = piece;
        if let Some(after) = self.free.remove(&(slab, start + len)) {
            len += after;
        }
        let before = self.free.range(..(slab, start)).next_back().map(|(key, free)| (*key, *free));
        if let Some((key, free)) = before
            && key.0 == slab
            && key.1 + free == start
        {
            self.free.remove(&key);
            (start, len) = (key.1, len + free);
        }
        self.free.insert((slab, start), len);
    }
}

/// Memory that the device can read and write, from the pool of a [`crate::Disk`].
///
/// It starts on a page and lies in one piece for the device too. Bytes move in and out by copies: the device may
/// write at any moment. Dropped, it goes back to the pool. A child of `fork` does not have it.
pub struct Buffer {
    pool: Arc<Pool>,
    slab: Arc<Slab>,
    piece: SlabPiece,
    bytes: usize,
}

impl core::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Buffer").field("address", &self.address()).field("bytes", &self.bytes).finish()
    }
}

impl Buffer {
    /// Bytes asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never: a buffer has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where the program finds it, for those who hand it on to C. Valid as long as the buffer lives.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.slab.memory.address().wrapping_add(self.piece.start)
    }

    /// What the device is told for a range of it, or the error that the range leaves it.
    ///
    /// # Errors
    /// [`BlockError::BufferRange`].
    pub fn segment(&self, range: Range<usize>) -> Result<Segment, BlockError> {
        self.check(range.start, range.len())?;
        let address = self.slab.address.plus((self.piece.start + range.start) as u64);
        // A buffer is at most 1 GiB long.
        Ok(Segment { address, bytes: range.len() as u32 })
    }

    /// Copies `into.len()` bytes from `start` of the buffer out.
    ///
    /// # Errors
    /// [`BlockError::BufferRange`].
    pub fn read(&self, start: usize, into: &mut [u8]) -> Result<(), BlockError> {
        self.check(start, into.len())?;
        self.slab.memory.read(self.piece.start + start, into);
        Ok(())
    }

    /// Copies `from` to `start` of the buffer.
    ///
    /// # Errors
    /// [`BlockError::BufferRange`].
    pub fn write(&self, start: usize, from: &[u8]) -> Result<(), BlockError> {
        self.check(start, from.len())?;
        self.slab.memory.write(self.piece.start + start, from);
        Ok(())
    }

    /// Sets every byte of a range to `byte`.
    ///
    /// # Errors
    /// [`BlockError::BufferRange`].
    pub fn fill(&self, range: Range<usize>, byte: u8) -> Result<(), BlockError> {
        self.check(range.start, range.len())?;
        self.slab.memory.fill(self.piece.start + range.start, range.len(), byte);
        Ok(())
    }

    /// Copies bytes from this buffer to another, or to another place of the same.
    ///
    /// # Errors
    /// [`BlockError::BufferRange`].
    pub fn copy(&self, range: Range<usize>, to: &Self, to_start: usize) -> Result<(), BlockError> {
        self.check(range.start, range.len())?;
        to.check(to_start, range.len())?;
        let from = self.piece.start + range.start;
        self.slab.memory.copy(from, &to.slab.memory, to.piece.start + to_start, range.len());
        Ok(())
    }

    /// Whether a range of this buffer equals one of another.
    ///
    /// # Errors
    /// [`BlockError::BufferRange`].
    pub fn equal(&self, range: Range<usize>, other: &Self, other_start: usize) -> Result<bool, BlockError> {
        self.check(range.start, range.len())?;
        other.check(other_start, range.len())?;
        let at = self.piece.start + range.start;
        let other_at = other.piece.start + other_start;
        Ok(self.slab.memory.equal(at, &other.slab.memory, other_at, range.len()))
    }

    /// Whether it is of a pool, whose device knows it.
    pub(crate) fn is_of(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    pub(crate) fn check(&self, start: usize, bytes: usize) -> Result<(), BlockError> {
        let inside = start.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        if inside { Ok(()) } else { Err(BlockError::BufferRange { start, bytes, len: self.bytes }) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.give_back(self.piece);
    }
}
