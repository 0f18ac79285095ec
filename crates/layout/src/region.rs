//! The blocks of a device that are no file's: single ones, and those of the metadata store.

use crate::error::LayoutError;
use crate::superblock::Superblock;
use nvmed_io::{Binding, Device};
use nvmed_kv::{DeviceMedium, Medium, MediumError};
use nvmed_nvm::Memory;
use nvmed_units::Block;
use rustix::io::Errno;
use std::sync::Arc;

/// Reads blocks.
///
/// # Errors
/// The device's.
pub fn fetch(medium: &DeviceMedium, block: Block, into: &mut [u8]) -> Result<(), LayoutError> {
    Ok(medium.read(block, into)?)
}

/// Writes blocks, durably.
///
/// # Errors
/// The device's.
pub fn store(medium: &DeviceMedium, block: Block, data: &[u8]) -> Result<(), LayoutError> {
    Ok(medium.write(block, data, true)?)
}

impl From<MediumError> for LayoutError {
    fn from(error: MediumError) -> Self {
        Self::Host(Errno::from_raw_os_error(error.errno))
    }
}

/// The blocks of a file system's metadata, those that it took from the data region included; with `bytes`, the device's
/// own, they are read, and their log is written, without commands.
///
/// # Errors
/// No memory, or no room in the device's address space.
pub fn metadata(
    device: &Arc<Device>,
    bytes: Option<Arc<Memory>>,
    superblock: &Superblock,
) -> Result<DeviceMedium, LayoutError> {
    let first = Block(superblock.meta_first)..Block(superblock.data_first);
    let medium = DeviceMedium::new(device, device.handle(Binding::Spread), first)?.with_bytes(bytes);
    for run in superblock.taken_runs() {
        medium.extend(Block(run.start)..Block(run.end))?;
    }
    Ok(medium)
}
