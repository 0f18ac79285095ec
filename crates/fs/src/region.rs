//! Single blocks of a device, as the file system's own structures need them.

use crate::error::FsError;
use nvmed_kv::{DeviceMedium, Medium, MediumError};
use rustix::io::Errno;

/// Reads blocks.
pub(crate) fn fetch(medium: &DeviceMedium, block: u64, into: &mut [u8]) -> Result<(), FsError> {
    medium.read(block, into).map_err(failed)
}

/// Writes blocks, durably.
pub(crate) fn store(medium: &DeviceMedium, block: u64, data: &[u8]) -> Result<(), FsError> {
    medium.write(block, data, true).map_err(failed)
}

fn failed(error: MediumError) -> FsError {
    FsError::Host(errno(error))
}

/// The errno of a medium's error.
pub(crate) fn errno(error: MediumError) -> Errno {
    Errno::from_raw_os_error(error.errno)
}
