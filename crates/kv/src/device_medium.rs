//! Blocks of a device as a medium.
//!
//! A store's buffers are ordinary memory; a device reaches only what is mapped for it. So bytes go
//! through a few staging areas: a log append copies one block. Where the device is memory itself, bytes of it are read,
//! stored and made durable without a command.

use crate::{Medium, MediumError, OpenError};
use core::ops::Range;
use nvmed_io::{Device, DeviceError, Handle, IoError, Operation, Segment};
use nvmed_nvm::Memory;
use nvmed_nvme::Status;
use nvmed_sys::sync::{Arc, Mutex, MutexGuard, RwLock};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{BLOCK_BYTES, Block, DeviceAddress, Lba, bounded};

/// Bytes of one staging area: a checkpoint writes runs of nodes, an open reads runs of log.
const AREA_BYTES: usize = 64 << 10;
/// Areas: one for a commit, some for readers that go on meanwhile, and [`FOR_URGENT`].
const AREAS: usize = 9;
/// Of these, areas that only urgent callers use, so that none waits for a request of others: one for the appender, of
/// which there is one at a time; readers find it free between two appends.
const FOR_URGENT: usize = 1;
/// Runs at most; each growth of a region adds one, and they double.
const RUNS_MAX: usize = 256;
/// `EINVAL`: the caller left the medium.
const OUTSIDE: MediumError = MediumError { errno: 22 };

/// Runs of blocks of a device, one after the other, as one row of blocks from 0 on.
///
/// The store is the only writer of these blocks. LBAs must divide a block of 4096 bytes.
pub struct DeviceMedium {
    handle: Handle,
    /// The device's bytes, where they are memory.
    bytes: Option<Arc<Memory>>,
    runs: RwLock<Vec<Range<Block>>>,
    lbas_per_block: u64,
    memory: Arc<Mapping>,
    address: DeviceAddress,
    areas: [Mutex<()>; AREAS],
}

impl core::fmt::Debug for DeviceMedium {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("DeviceMedium").field("runs", &*self.runs()).finish_non_exhaustive()
    }
}

impl DeviceMedium {
    /// How many LBAs of `device` make a block.
    ///
    /// # Errors
    /// [`OpenError::LbaBytes`] for an LBA format that does not divide a block.
    pub fn lbas_per_block(device: &Device) -> Result<u64, OpenError> {
        match device.geometry().lba_bytes as usize {
            bytes if bytes > 0 && BLOCK_BYTES.is_multiple_of(bytes) => Ok((BLOCK_BYTES / bytes) as u64),
            bytes => Err(OpenError::LbaBytes { bytes }),
        }
    }

    /// Whole blocks of `device`.
    ///
    /// # Errors
    /// As [`DeviceMedium::lbas_per_block`].
    pub fn device_blocks(device: &Device) -> Result<u64, OpenError> {
        Ok(device.geometry().lba_count / Self::lbas_per_block(device)?)
    }

    /// The blocks `blocks` of a device; all requests go through `handle`.
    ///
    /// # Errors
    /// No memory, no room in the device's address space, or LBAs that do not divide a block.
    pub fn new(device: &Device, handle: Handle, blocks: Range<Block>) -> Result<Self, OpenError> {
        let lbas_per_block = Self::lbas_per_block(device)?;
        let memory = Mapping::anonymous(AREA_BYTES * AREAS, Pages::Base)
            .map_err(|errno| OpenError::Host { what: "memory", errno: errno.raw_os_error() })?;
        let memory = Arc::new(memory);
        let address = device.map(Arc::clone(&memory))?;
        let areas = core::array::from_fn(|_| Mutex::new(()));
        let (bytes, runs) = (None, RwLock::new(vec![blocks]));
        Ok(Self { handle, bytes, runs, lbas_per_block, memory, address, areas })
    }

    /// The same blocks, whose bytes are those of `bytes` if there are any: the device is that memory.
    #[must_use]
    pub fn with_bytes(mut self, bytes: Option<Arc<Memory>>) -> Self {
        self.bytes = bytes;
        self
    }

    /// Calls `part` with where in the device's bytes a transfer's lie, piece by piece, and with their range in it.
    fn pieces(
        &self,
        block: Block,
        bytes: usize,
        part: &mut dyn FnMut(u64, Range<usize>) -> Result<(), MediumError>,
    ) -> Result<(), MediumError> {
        self.parts(block, bytes, &mut |lba, range| {
            part(lba.0 / self.lbas_per_block * BLOCK_BYTES as u64, range)
        })
    }

    /// Adds a run of blocks of the device at the end; [`crate::Store::grow`] then takes them into use.
    ///
    /// # Errors
    /// `ENOSPC` after 256 runs.
    pub fn extend(&self, blocks: Range<Block>) -> Result<(), MediumError> {
        let mut runs = self.runs.write();
        let room = runs.len() < RUNS_MAX;
        match runs.last_mut() {
            Some(last) if last.end == blocks.start => last.end = blocks.end,
            _ if room => runs.push(blocks),
            _ => return Err(MediumError { errno: rustix::io::Errno::NOSPC.raw_os_error() }),
        }
        Ok(())
    }

    fn runs(&self) -> nvmed_sys::sync::RwLockReadGuard<'_, Vec<Range<Block>>> {
        self.runs.read()
    }

    fn area(&self) -> (usize, MutexGuard<'_, ()>) {
        let count = if self.has_urgent_here() { AREAS } else { AREAS - FOR_URGENT };
        // The last one first, which an urgent caller alone may have.
        for (index, area) in self.areas[..count].iter().enumerate().rev() {
            if let Some(guard) = area.try_lock() {
                return (index * AREA_BYTES, guard);
            }
        }
        ((count - 1) * AREA_BYTES, self.areas[count - 1].lock())
    }

    /// The device's block that `block` is, and how many follow it there.
    #[inline]
    fn locate(&self, block: Block) -> Option<(Block, u64)> {
        let mut offset = block.0;
        for run in self.runs().iter() {
            let length = run.end - run.start;
            if offset < length {
                return Some((run.start + offset, length - offset));
            }
            offset -= length;
        }
        None
    }

    /// Splits the bytes of a transfer at areas and runs: calls `part` with LBA and byte range.
    fn parts(
        &self,
        block: Block,
        bytes: usize,
        part: &mut dyn FnMut(Lba, Range<usize>) -> Result<(), MediumError>,
    ) -> Result<(), MediumError> {
        let count = (bytes / BLOCK_BYTES) as u64;
        let inside = block.0.checked_add(count).is_some_and(|end| end <= self.blocks());
        if !inside || !bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(OUTSIDE);
        }
        let mut at = 0;
        while at < bytes {
            let (first, follow) = self.locate(block + (at / BLOCK_BYTES) as u64).ok_or(OUTSIDE)?;
            let blocks = follow.min(((bytes - at).min(AREA_BYTES) / BLOCK_BYTES) as u64);
            let end = at + blocks as usize * BLOCK_BYTES;
            part(first.lba(self.lbas_per_block), at..end)?;
            at = end;
        }
        Ok(())
    }

    fn segment(&self, offset: usize, bytes: usize) -> [Segment; 1] {
        [Segment {
            address: self.address.plus(offset as u64),
            bytes: bounded(bytes, "a segment lies in one area"),
        }]
    }
}

impl Drop for DeviceMedium {
    fn drop(&mut self) {
        self.handle.device().unmap(self.address);
    }
}

/// What memory answered: with the statuses of a device that it is.
fn answered(status: Status) -> MediumError {
    let error = DeviceError { operation: Operation::Flush, lba: Lba(0), status, fault: None };
    MediumError { errno: error.errno().raw_os_error() }
}

fn failed(error: IoError) -> MediumError {
    MediumError { errno: error.errno().raw_os_error() }
}

impl Medium for DeviceMedium {
    fn blocks(&self) -> u64 {
        self.runs().iter().map(|run| run.end - run.start).sum()
    }

    fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
        if let Some(bytes) = &self.bytes {
            return self.pieces(block, into.len(), &mut |at, range| {
                bytes.read(at, &mut into[range]).map_err(answered)
            });
        }
        let (offset, _guard) = self.area();
        self.parts(block, into.len(), &mut |lba, range| {
            self.handle.read(lba, &self.segment(offset, range.len())).map_err(failed)?;
            self.memory.read(offset, &mut into[range]);
            Ok(())
        })
    }

    fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError> {
        let (offset, _guard) = self.area();
        self.parts(block, data.len(), &mut |lba, range| {
            let bytes = &data[range];
            self.memory.write(offset, bytes);
            self.handle.write(lba, &self.segment(offset, bytes.len()), fua).map_err(failed)
        })
    }

    fn flush(&self) -> Result<(), MediumError> {
        match &self.bytes {
            // The engine settles what it writes before it says so: this covers it.
            Some(bytes) => bytes.fence().map_err(answered),
            None => self.handle.flush().map_err(failed),
        }
    }

    fn stores_bytes(&self) -> bool {
        self.bytes.is_some()
    }

    fn store(&self, block: Block, within: usize, data: &[u8]) -> Result<(), MediumError> {
        let Some(bytes) = &self.bytes else {
            return Err(MediumError { errno: rustix::io::Errno::OPNOTSUPP.raw_os_error() });
        };
        let inside = within.checked_add(data.len()).is_some_and(|end| end <= BLOCK_BYTES);
        let (found, _) = self.locate(block).filter(|_| inside).ok_or(OUTSIDE)?;
        bytes.store(found.0 * BLOCK_BYTES as u64 + within as u64, data).map_err(answered)
    }

    fn has_urgent(&self) -> bool {
        self.handle.device().has_urgent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_engine::nvme::NvmeEngine;
    use nvmed_io::caller::{self, Urgency};
    use nvmed_io::{Binding, DeviceOptions, Source};
    use nvmed_vdev::{Controller, ControllerConfig, InProcess, Media};

    /// While requests of others keep all areas that they may have, an urgent caller has one all the same.
    #[test]
    fn an_urgent_caller_waits_for_no_area_of_others() {
        let controller =
            Controller::new(ControllerConfig::default(), Media::ram(1 << 20, Pages::Base).unwrap());
        let engine = NvmeEngine::open(Arc::new(InProcess::new(controller).unwrap())).unwrap();
        let device = Device::open(Arc::new(engine), DeviceOptions { queues: 1, depth: 8 }).unwrap();
        let handle = device.handle(Binding::Queue(0));
        let medium = DeviceMedium::new(&device, handle, Block(0)..Block(200)).unwrap();
        device.expect_urgent(Source::Told);
        let last = (AREAS - FOR_URGENT) * AREA_BYTES;
        let others: Vec<_> = (0..AREAS - FOR_URGENT).map(|_| medium.area()).collect();
        assert!(others.iter().all(|(offset, _)| *offset < last), "they leave the last one free");
        let (offset, guard) = caller::with(Urgency::Urgent, || medium.area());
        assert_eq!(offset, last);
        drop(guard);
        // The record itself goes by it: this would wait for ever for any other.
        caller::with(Urgency::Urgent, || medium.write(Block(3), &[7; BLOCK_BYTES], true)).unwrap();
    }
}
