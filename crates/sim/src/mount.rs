//! A file system on a device, in memory that is small.

use nvmed_disk::Disk;
use nvmed_fs::{FileSystem, FsError, Memory, MemoryLayout, MountOptions, MountParts};
use nvmed_sys::sync::Arc;
use nvmed_sys::{Mapping, Pages};

/// Bytes of cache of each mount: small, so that pages are written back and read again.
const CACHE_BYTES: u64 = 512 << 10;

/// The file system of a device, mounted.
///
/// # Errors
/// Those of the mount.
pub(crate) fn mount(disk: &Arc<Disk>, options: MountOptions) -> Result<FileSystem, FsError> {
    FileSystem::mount(parts(disk, memory()?, options)?)
}

/// What a mount of a device is made of.
///
/// # Errors
/// The host has no memory.
pub(crate) fn parts(disk: &Arc<Disk>, memory: Memory, options: MountOptions) -> Result<MountParts, FsError> {
    // All buffers are there: nobody has to look after them, which the kernel would do at a call for each copy.
    nvmed_sys::door::set_watched(true);
    Ok(MountParts { device: disk.open(1)?, bytes: disk.bytes(), memory, options })
}

/// Zeroed memory for a mount.
///
/// # Errors
/// The host has none.
pub(crate) fn memory() -> Result<Memory, FsError> {
    let total = MemoryLayout::new(CACHE_BYTES).total_bytes();
    Ok(laid_out(Arc::new(Mapping::anonymous(total, Pages::Base).map_err(FsError::Host)?)))
}

/// What [`memory`] answered, or a copy of it.
pub(crate) fn laid_out(mapping: Arc<Mapping>) -> Memory {
    Memory { mapping, layout: MemoryLayout::new(CACHE_BYTES) }
}
