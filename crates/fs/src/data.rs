//! Reading and writing files (stub of the seam; the data path fills it).

use crate::core::{Core, MountOptions};
use crate::error::FsError;
use crate::file::File;
use crate::filesystem::FileSystem;
use crate::inode::Inode;
use crate::memory::Memory;
use crate::status::Allocate;
use nvmed_io::Device;
use rustix::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The data path's part of a mount: cache, frames and their device addresses.
pub(crate) struct DataPath {}

/// The data path's part of an inode.
pub(crate) struct FileData {
    io: Mutex<()>,
}

/// The data path's part of an open description.
pub(crate) struct Stream {}

impl Stream {
    pub(crate) fn new(_inode: &Inode) -> Self {
        Self {}
    }
}

impl FileData {
    pub(crate) fn new(_ino: u64) -> Self {
        Self { io: Mutex::new(()) }
    }

    /// Keeps write-back of this inode from beginning, after one under way has ended.
    pub(crate) fn quiet(&self) -> MutexGuard<'_, ()> {
        self.io.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DataPath {
    pub(crate) fn new(_device: &Device, _memory: &Memory, _options: &MountOptions) -> Result<Self, FsError> {
        Ok(Self {})
    }

    /// Whether nothing of the inode waits to be written.
    pub(crate) fn is_clean(&self, _inode: &Inode) -> bool {
        true
    }

    /// Data blocks that the inode will need for what is not allocated yet.
    pub(crate) fn blocks_promised(&self, _inode: &Inode) -> u64 {
        0
    }

    /// The inode leaves memory: its pages go, promises and preallocation are given back.
    pub(crate) fn forget(&self, _core: &Core, _inode: &Arc<Inode>) {}
}

impl Core {
    /// Sets the size of a file, which the caller may write.
    pub(crate) fn truncate(&self, inode: &Arc<Inode>, bytes: u64) -> Result<(), FsError> {
        let _ = (inode, bytes);
        Err(FsError::NotSupported)
    }

    /// Writes all dirty data back.
    pub(crate) fn write_back_all(&self) -> Result<(), FsError> {
        Ok(())
    }

    /// A description is being closed.
    pub(crate) fn closing(&self, _file: &File) {}
}

impl File {
    /// The next data, or hole, at or after an offset.
    pub(crate) fn data_or_hole(&self, offset: u64, data: bool) -> Result<u64, FsError> {
        let _ = (offset, data);
        Err(FsError::NoData)
    }
}

/// A mapped file: map `fd`, shared; it holds the file's bytes as long as this lives.
pub struct MappedFile {
    /// The per-inode memfd.
    pub fd: Arc<OwnedFd>,
}

impl FileSystem {
    /// Writes back data that has been dirty for longer than `age`.
    ///
    /// # Errors
    /// What could not be written; it stays dirty.
    pub fn write_back_older_than(&self, age: Duration) -> Result<(), FsError> {
        let _ = age;
        Ok(())
    }
}

/// Writes what a dead process left in `memory` into the file system.
///
/// # Errors
/// What could not be written.
pub fn salvage(files: &FileSystem, memory: &Memory) -> Result<(), FsError> {
    let _ = (files, memory);
    Err(FsError::NotSupported)
}

impl File {
    /// Reads at an offset; fewer bytes only at the end of the file.
    pub fn pread(&self, into: &mut [u8], offset: u64) -> Result<usize, FsError> {
        let _ = (into, offset);
        Err(FsError::NotSupported)
    }
    /// Writes at an offset (with `O_APPEND` at the end, as Linux does).
    pub fn pwrite(&self, from: &[u8], offset: u64) -> Result<usize, FsError> {
        let _ = (from, offset);
        Err(FsError::NotSupported)
    }
    /// Reads at the shared offset and moves it.
    pub fn read(&self, into: &mut [u8]) -> Result<usize, FsError> {
        let _ = into;
        Err(FsError::NotSupported)
    }
    /// Writes at the shared offset (with `O_APPEND` at the end, atomically) and moves it.
    pub fn write(&self, from: &[u8]) -> Result<usize, FsError> {
        let _ = from;
        Err(FsError::NotSupported)
    }
    /// Sets the size.
    pub fn truncate(&self, bytes: u64) -> Result<(), FsError> {
        let _ = bytes;
        Err(FsError::NotSupported)
    }
    /// Allocates, punches or zeroes a range.
    pub fn fallocate(&self, how: Allocate, offset: u64, bytes: u64) -> Result<(), FsError> {
        let _ = (how, offset, bytes);
        Err(FsError::NotSupported)
    }
    /// Makes data and metadata of the file durable, and every metadata operation before this call.
    pub fn fsync(&self) -> Result<(), FsError> {
        self.core.write_all_late()?;
        self.core.commit_all()
    }
    /// As `fsync` without times.
    pub fn fdatasync(&self) -> Result<(), FsError> {
        self.core.commit_all()
    }
    /// Writes a range of dirty pages back, without making it durable (`sync_file_range`).
    pub fn sync_range(&self, offset: u64, bytes: u64) -> Result<(), FsError> {
        let _ = (offset, bytes);
        Err(FsError::NotSupported)
    }
    /// The file's memory for mmap.
    pub fn map(&self, write: bool) -> Result<MappedFile, FsError> {
        let _ = write;
        Err(FsError::NotSupported)
    }
    /// One mapping fewer.
    pub fn unmap(&self, write: bool) -> Result<(), FsError> {
        let _ = write;
        Err(FsError::NotSupported)
    }
    /// Makes a mapped range durable.
    pub fn msync(&self, offset: u64, bytes: u64) -> Result<(), FsError> {
        let _ = (offset, bytes);
        Err(FsError::NotSupported)
    }
}
