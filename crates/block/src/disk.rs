//! A device, its buffers and who works on which bytes of it.

use crate::aio::Flights;
use crate::buffer::{Buffer, Pool};
use crate::error::BlockError;
use crate::handle::{ByteHandle, Route, Settings};
use crate::range::{Held, Mode, RangeId, Ranges};
use core::ops::Range;
use nvmed_io::Device;
use nvmed_sys::Pages;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// How a disk behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// What stands behind buffers: huge pages are used if the kernel has them.
    pub pages: Pages,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { pages: Pages::Huge }
    }
}

/// A device as one array of bytes.
pub struct Disk {
    device: Arc<Device>,
    pub(crate) pool: Arc<Pool>,
    ranges: Ranges,
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
        let pool = Pool::new(Arc::clone(&device), options.pages);
        Arc::new(Self { device, pool, ranges: Ranges::default(), flights: Mutex::default() })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Bytes of the device now: its namespace may grow or shrink.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.device.engine().lba_count().saturating_mul(u64::from(self.lba_bytes()))
    }

    /// Bytes of a logical block.
    #[must_use]
    pub fn lba_bytes(&self) -> u32 {
        self.device.geometry().lba_bytes
    }

    pub(crate) fn lba_shift(&self) -> u32 {
        self.lba_bytes().trailing_zeros()
    }

    /// A new handle over some queues.
    #[must_use]
    pub fn handle(self: &Arc<Self>, route: Route, settings: Settings) -> ByteHandle {
        ByteHandle::new(Arc::clone(self), route, settings)
    }

    /// Memory of `bytes` bytes, at most 1 GiB, that the device knows. What it holds is anything.
    ///
    /// # Errors
    /// [`BlockError::Memory`].
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, BlockError> {
        self.pool.take(bytes)
    }

    /// Waits for the right to work on a range of bytes.
    pub(crate) fn lock(&self, bytes: Range<u64>, mode: Mode) -> Held<'_> {
        self.ranges.lock(bytes, mode, || self.advance())
    }

    pub(crate) fn unlock(&self, range: RangeId) {
        self.ranges.unlock(range);
    }

    /// Bytes of one asynchronous request at most: one command.
    pub(crate) fn request_bytes(&self) -> usize {
        self.device.geometry().transfer_bytes_max as usize
    }

    pub(crate) fn watch(&self, flights: &Arc<Flights>) {
        let mut all = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|flights| flights.strong_count() > 0);
        all.push(Arc::downgrade(flights));
    }

    /// Looks after the asynchronous calls of every handle.
    fn advance(&self) {
        let all: Vec<_> = {
            let all = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().filter_map(Weak::upgrade).collect()
        };
        all.iter().for_each(|flights| flights.advance());
    }
}
