//! A device, its buffers and who works on which bytes of it.

use crate::aio::Flights;
use crate::buffer::{Buffer, Pool};
use crate::cached::{BlockCache, CacheOptions, CacheStats};
use crate::error::BlockError;
use crate::guard::Guard;
use crate::handle::{ByteHandle, Route, Settings};
use crate::memory::Memory;
use crate::range::{Mode, RangeGuard, RangeId, Ranges};
use crate::signature::{self, Signature};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use nvmed_io::{Binding, Device, Handle, Source, caller};
use nvmed_sys::Pages;
use nvmed_sys::sync::{Arc, Mutex, RwLock, Weak};
use nvmed_units::Page;
use std::io::IoSliceMut;

/// How a disk behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// What stands behind buffers: huge pages are used if the kernel has them.
    pub pages: Pages,
    /// Whether calls may write to a device that holds a file system, a volume, a partition table, swap, or a
    /// store of ours. Without it the first handle of the disk looks at what is there (384 KiB of the device at
    /// most are read), and writes answer [`BlockError::Holds`]; reads and passthrough work all the same.
    pub overwrite: bool,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { pages: Pages::Huge, overwrite: false }
    }
}

/// A device as one array of bytes.
pub struct Disk {
    device: Arc<Device>,
    lba_shift: u32,
    pub(crate) pool: Arc<Pool>,
    ranges: Ranges,
    /// Write-backs, and what else needs no handle of the caller's.
    io: Handle,
    cache: RwLock<Option<Arc<BlockCache>>>,
    /// Whether there is one, for those who need not know more.
    has_cache: AtomicBool,
    /// Failed write-backs.
    pub(crate) failed: Arc<AtomicU32>,
    guard: Guard,
    /// The asynchronous calls of every handle, for those who wait for a range that one of them has.
    flights: Mutex<Vec<Weak<Flights>>>,
}

impl core::fmt::Debug for Disk {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Disk").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Disk {
    /// A disk on an open device. Two disks on one device do not know of each other's writes: have one.
    #[must_use]
    pub fn new(device: Arc<Device>, options: DiskOptions) -> Arc<Self> {
        if caller::of_thread().is_urgent() {
            // It was started with the I/O class real-time, which its threads inherit; some may have another.
            device.expect_urgent(Source::Threads);
        }
        let pool = Pool::new(Arc::clone(&device), options.pages);
        let io = device.handle(Binding::Spread);
        let lba_shift = device.geometry().lba_bytes.trailing_zeros();
        Arc::new(Self {
            device,
            lba_shift,
            pool,
            ranges: Ranges::default(),
            io,
            cache: RwLock::new(None),
            has_cache: AtomicBool::new(false),
            failed: Arc::default(),
            guard: Guard::new(options.overwrite),
            flights: Mutex::default(),
        })
    }

    /// Puts a cache in front of the device, puts another one in its place, or takes it away. What the old one
    /// has is written to the device before.
    ///
    /// # Errors
    /// No memory for the new one, or the device did not take what the old one had: then nothing has changed.
    pub fn set_cache(&self, options: Option<CacheOptions>) -> Result<(), BlockError> {
        let new = options.map(|options| BlockCache::new(&self.device, options, &self.failed)).transpose()?;
        let _held = self.lock(0..u64::MAX, Mode::Exclusive);
        if let Some(old) = self.cache() {
            old.write_back(&self.io, Page::ALL, false)?;
        }
        let mut cache = self.cache.write();
        // Stored while the lock on the whole range is held: a call that holds a range sees no change.
        self.has_cache.store(new.is_some(), Ordering::SeqCst);
        *cache = new;
        Ok(())
    }

    /// How the cache was made, if there is one.
    #[must_use]
    pub fn cache_options(&self) -> Option<CacheOptions> {
        self.cache().map(|cache| *cache.options())
    }

    /// What the cache did, if there is one.
    #[must_use]
    pub fn cache_stats(&self) -> Option<CacheStats> {
        self.cache().map(|cache| cache.stats())
    }

    #[inline]
    pub(crate) fn has_cache(&self) -> bool {
        self.has_cache.load(Ordering::SeqCst)
    }

    pub(crate) fn cache(&self) -> Option<Arc<BlockCache>> {
        if !self.has_cache() {
            return None;
        }
        self.cache.read().clone()
    }

    pub(crate) fn is_current(&self, cache: &Arc<BlockCache>) -> bool {
        self.cache.read().as_ref().is_some_and(|now| Arc::ptr_eq(now, cache))
    }

    /// Writes everything that is dirty in the cache to the device. It is durable after a flush.
    ///
    /// # Errors
    /// The first; pages that the device did not take stay dirty.
    pub fn write_back(&self) -> Result<(), BlockError> {
        let Some(cache) = self.cache() else { return Ok(()) };
        cache.write_back(&self.io, Page::ALL, false).map(|_| ())
    }

    /// Looks at what the device holds, unless that was done or may be overwritten.
    pub(crate) fn look(&self) {
        self.guard.look(|| self.held());
    }

    /// Looks again at what the device holds: after a command sent past this disk, which may have formatted it. It costs
    /// nothing where writes are allowed.
    pub fn look_again(&self) {
        self.guard.look_again(|| self.held());
    }

    /// Whether a call may write.
    #[inline]
    pub(crate) fn may_write(&self) -> Result<(), BlockError> {
        if self.guard.is_open() { Ok(()) } else { self.guard.refusal(|| self.held()) }
    }

    fn held(&self) -> Result<Option<Signature>, BlockError> {
        signature::find(self.bytes(), |offset, len| {
            let mut data = vec![0; len];
            let mut done = 0;
            // After an error in the middle the rest is asked for again, which answers the error.
            while done < len {
                let into = &mut [IoSliceMut::new(&mut data[done..])];
                let (at, left) = (offset + done as u64, len - done);
                done += self.read_direct(&self.io, &mut Memory::Into(into), 0, at, left)?;
            }
            Ok(data)
        })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Bytes of the device now: its namespace may grow or shrink.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.device.lba_count().saturating_mul(u64::from(self.lba_bytes()))
    }

    /// Bytes of a logical block.
    #[must_use]
    pub fn lba_bytes(&self) -> u32 {
        1 << self.lba_shift
    }

    pub(crate) fn lba_shift(&self) -> u32 {
        self.lba_shift
    }

    /// A new handle over some queues.
    ///
    /// # Errors
    /// No such queue, no queue, or settings that make no sense.
    pub fn handle(self: &Arc<Self>, route: Route, settings: Settings) -> Result<ByteHandle, BlockError> {
        ByteHandle::new(Arc::clone(self), route, settings)
    }

    /// Memory of `bytes` bytes, at most 1 GiB, that the device knows. What it holds is anything.
    ///
    /// # Errors
    /// [`BlockError::Memory`].
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, BlockError> {
        self.pool.take(bytes)
    }

    /// Whether a buffer is of this disk: others work too, but their bytes are copied.
    #[must_use]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.is_of(&self.pool)
    }

    /// Waits for the right to work on a range of bytes.
    pub(crate) fn lock(&self, bytes: Range<u64>, mode: Mode) -> RangeGuard<'_> {
        self.ranges.lock(bytes, mode, || self.advance())
    }

    pub(crate) fn unlock(&self, range: RangeId) {
        self.ranges.unlock(range);
    }

    pub(crate) fn watch(&self, flights: &Arc<Flights>) {
        let mut all = self.flights.lock();
        all.retain(|flights| flights.strong_count() > 0);
        all.push(Arc::downgrade(flights));
    }

    /// Looks after the asynchronous calls of every handle.
    fn advance(&self) {
        let all: Vec<_> = {
            let all = self.flights.lock();
            all.iter().filter_map(Weak::upgrade).collect()
        };
        all.iter().for_each(|flights| flights.advance());
    }
}

/// What an open device holds; `None` when it holds nothing but zeroes.
///
/// # Errors
/// It cannot be read.
pub fn find_on(device: &Arc<Device>) -> Result<Option<Signature>, BlockError> {
    Disk::new(Arc::clone(device), DiskOptions { overwrite: true, ..DiskOptions::default() }).held()
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A caller who wants to know whether it worked calls flush before.
        let _ = self.write_back();
    }
}
