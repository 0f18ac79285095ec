//! The metadata region as the medium of the metadata store.
//!
//! The store's buffers are ordinary memory; a device reaches only what is mapped for it. So bytes go
//! through a few staging areas: a log append copies one block.

use crate::error::FsError;
use core::ops::Range;
use nvmed_io::{Device, Handle, IoError, Segment};
use nvmed_kv::{Medium, MediumError};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{BLOCK_BYTES, DeviceAddress, Lba};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Bytes of one staging area: a checkpoint writes runs of nodes, a mount reads runs of log.
const AREA_BYTES: usize = 64 << 10;
/// Areas: one for a commit, some for readers that go on meanwhile.
const AREAS: usize = 4;

/// Staging memory, and the blocks of the device behind it.
pub(crate) struct Region {
    handle: Handle,
    blocks: Range<u64>,
    lbas_per_block: u64,
    memory: Arc<Mapping>,
    address: DeviceAddress,
    areas: [Mutex<()>; AREAS],
}

/// How many LBAs make a block of ours.
///
/// # Errors
/// [`FsError::NotSupported`] for an LBA format that does not divide a block.
pub(crate) fn lbas_per_block(device: &Device) -> Result<u64, FsError> {
    match device.geometry().lba_bytes as usize {
        bytes if bytes > 0 && BLOCK_BYTES.is_multiple_of(bytes) => Ok((BLOCK_BYTES / bytes) as u64),
        _ => Err(FsError::NotSupported),
    }
}

/// Whole blocks of the device.
///
/// # Errors
/// As [`lbas_per_block`].
pub(crate) fn device_blocks(device: &Device) -> Result<u64, FsError> {
    Ok(device.geometry().lba_count / lbas_per_block(device)?)
}

impl Region {
    /// The blocks `blocks` of a device.
    ///
    /// # Errors
    /// No memory, or no room in the device's address space.
    pub(crate) fn new(device: &Device, handle: Handle, blocks: Range<u64>) -> Result<Self, FsError> {
        let memory = Arc::new(Mapping::anonymous(AREA_BYTES * AREAS, Pages::Base)?);
        let address = device.map(Arc::clone(&memory))?;
        let areas = core::array::from_fn(|_| Mutex::new(()));
        Ok(Self { handle, blocks, lbas_per_block: lbas_per_block(device)?, memory, address, areas })
    }

    fn area(&self) -> (usize, MutexGuard<'_, ()>) {
        for (index, area) in self.areas.iter().enumerate() {
            match area.try_lock() {
                Ok(guard) => return (index * AREA_BYTES, guard),
                Err(TryLockError::Poisoned(poisoned)) => return (index * AREA_BYTES, poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        (0, self.areas[0].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The LBA of a block of the region, if `bytes` bytes from there on lie inside.
    fn lba(&self, block: u64, bytes: usize) -> Result<Lba, MediumError> {
        let count = (bytes / BLOCK_BYTES) as u64;
        let end = block.checked_add(count).and_then(|end| end.checked_add(self.blocks.start));
        match end {
            Some(end) if end <= self.blocks.end && bytes.is_multiple_of(BLOCK_BYTES) => {
                Ok(Lba((self.blocks.start + block) * self.lbas_per_block))
            }
            _ => Err(MediumError { errno: rustix::io::Errno::INVAL.raw_os_error() }),
        }
    }

    fn segment(&self, offset: usize, bytes: usize) -> [Segment; 1] {
        [Segment { address: self.address.plus(offset as u64), bytes: bytes as u32 }]
    }

    /// Reads blocks of the region.
    pub(crate) fn fetch(&self, block: u64, into: &mut [u8]) -> Result<(), FsError> {
        self.read(block, into).map_err(|error| FsError::Host(errno(error)))
    }

    /// Writes blocks of the region, durably.
    pub(crate) fn store(&self, block: u64, data: &[u8]) -> Result<(), FsError> {
        self.write(block, data, true).map_err(|error| FsError::Host(errno(error)))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.handle.device().unmap(self.address);
    }
}

fn errno(error: MediumError) -> rustix::io::Errno {
    rustix::io::Errno::from_raw_os_error(error.errno)
}

fn failed(error: IoError) -> MediumError {
    MediumError { errno: error.errno().raw_os_error() }
}

impl Medium for Region {
    fn blocks(&self) -> u64 {
        self.blocks.end - self.blocks.start
    }

    fn read(&self, block: u64, into: &mut [u8]) -> Result<(), MediumError> {
        self.lba(block, into.len())?;
        let (offset, _guard) = self.area();
        for (part, place) in into.chunks_mut(AREA_BYTES).enumerate() {
            let lba = self.lba(block + (part * AREA_BYTES / BLOCK_BYTES) as u64, place.len())?;
            self.handle.read(lba, &self.segment(offset, place.len())).map_err(failed)?;
            self.memory.read(offset, place);
        }
        Ok(())
    }

    fn write(&self, block: u64, data: &[u8], fua: bool) -> Result<(), MediumError> {
        self.lba(block, data.len())?;
        let (offset, _guard) = self.area();
        for (part, bytes) in data.chunks(AREA_BYTES).enumerate() {
            let lba = self.lba(block + (part * AREA_BYTES / BLOCK_BYTES) as u64, bytes.len())?;
            self.memory.write(offset, bytes);
            self.handle.write(lba, &self.segment(offset, bytes.len()), fua).map_err(failed)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.handle.flush().map_err(failed)
    }
}
