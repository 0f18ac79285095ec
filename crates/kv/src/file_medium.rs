//! A plain file, or a block device by its path, as a medium.

use crate::{Medium, MediumError, OpenError};
use nvmed_sys::sync::{Mutex, MutexGuard};
use nvmed_units::{BLOCK_BYTES, Block};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use std::io::IoSlice;
use std::path::Path;

/// Staging buffers of a file opened for direct I/O, and the bytes of each.
const AREAS: usize = 8;
const AREA_BYTES: usize = 64 << 10;

/// How a [`FileMedium`] opens its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Past the kernel's page cache (`O_DIRECT`). The file system of the file must allow it.
    pub direct: bool,
}

/// A file of the host. `flush` is `fdatasync`; a write with FUA is `pwritev2` with `RWF_DSYNC`.
///
/// The file is locked (`flock`) while it is open: two stores on one file would destroy each other.
///
/// ```no_run
/// use nvmed_kv::{FileMedium, FileOptions, Options, PendingMemory, Store};
/// use std::{path::Path, sync::Arc};
///
/// let medium = FileMedium::create(Path::new("fruit.kv"), 25_600, &FileOptions::default())?; // 100 MiB
/// Store::format(&medium, &Options::default())?;
/// let store = Store::open(Arc::new(medium), PendingMemory::private()?, &Options::default())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileMedium {
    fd: OwnedFd,
    /// Aligned memory that direct I/O goes through; none without.
    areas: Vec<Mutex<Area>>,
}

impl FileMedium {
    /// Opens the file at `path`, which exists.
    ///
    /// # Errors
    /// What the host answered; `EWOULDBLOCK` when another process has it open as a medium.
    pub fn open(path: &Path, options: &FileOptions) -> Result<Self, OpenError> {
        Self::at(path, OFlags::empty(), options)
    }

    /// Makes a file of `blocks` zeroed blocks at `path`; an existing one is kept and given that size.
    ///
    /// The space is reserved where the file system can do so, so that no later write finds the disk full.
    ///
    /// # Errors
    /// As [`FileMedium::open`]; `ENOSPC`.
    pub fn create(path: &Path, blocks: u64, options: &FileOptions) -> Result<Self, OpenError> {
        let this = Self::at(path, OFlags::CREATE, options)?;
        this.resize(blocks)
            .map_err(|error| OpenError::Host { what: "the file's size", errno: error.errno })?;
        Ok(this)
    }

    fn at(path: &Path, flags: OFlags, options: &FileOptions) -> Result<Self, OpenError> {
        let direct = if options.direct { OFlags::DIRECT } else { OFlags::empty() };
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = rustix::fs::open(path, flags | direct | OFlags::RDWR | OFlags::CLOEXEC, mode)
            .map_err(|errno| OpenError::Host { what: "the file", errno: errno.raw_os_error() })?;
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| OpenError::Host { what: "the file's lock", errno: errno.raw_os_error() })?;
        let areas = (0..if options.direct { AREAS } else { 0 }).map(|_| Mutex::new(Area::new())).collect();
        Ok(Self { fd, areas })
    }

    /// Gives the file `blocks` blocks; [`crate::Store::grow`] then takes new ones into use.
    ///
    /// # Errors
    /// What the host answered.
    pub fn resize(&self, blocks: u64) -> Result<(), MediumError> {
        let bytes = blocks.checked_mul(BLOCK_BYTES as u64).ok_or(MediumError { errno: EFBIG })?;
        rustix::fs::ftruncate(&self.fd, bytes).map_err(failed)?;
        match rustix::fs::fallocate(&self.fd, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }

    fn read_at(&self, mut offset: u64, mut into: &mut [u8]) -> Result<(), MediumError> {
        while !into.is_empty() {
            match rustix::io::pread(&self.fd, &mut *into, offset) {
                Ok(0) => return Err(failed(Errno::IO)), // the file became shorter
                Ok(count) => {
                    into = &mut into[count..];
                    offset += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }

    fn write_at(&self, mut offset: u64, mut data: &[u8], fua: bool) -> Result<(), MediumError> {
        let mut flags = if fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let mut sync = false;
        while !data.is_empty() {
            let written = match flags.is_empty() {
                true => rustix::io::pwrite(&self.fd, data, offset),
                false => rustix::io::pwritev2(&self.fd, &[IoSlice::new(data)], offset, flags),
            };
            match written {
                Ok(0) => return Err(failed(Errno::IO)),
                Ok(count) => {
                    data = &data[count..];
                    offset += count as u64;
                }
                Err(Errno::INTR) => {}
                // A kernel or file system without it: the long way.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) if !flags.is_empty() => {
                    (flags, sync) = (ReadWriteFlags::empty(), true);
                }
                Err(errno) => return Err(failed(errno)),
            }
        }
        if sync { self.flush() } else { Ok(()) }
    }

    fn area(&self) -> Option<MutexGuard<'_, Area>> {
        for area in &self.areas {
            if let Some(guard) = area.try_lock() {
                return Some(guard);
            }
        }
        self.areas.first().map(|area| area.lock())
    }
}

/// Bytes at an address that direct I/O accepts.
#[derive(Debug)]
struct Area {
    bytes: Vec<u8>,
    start: usize,
}

impl Area {
    fn new() -> Self {
        let bytes = vec![0u8; AREA_BYTES + BLOCK_BYTES];
        let start = bytes.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        Self { bytes, start }
    }

    fn slice(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + len]
    }
}

const EFBIG: i32 = 27;

fn failed(errno: Errno) -> MediumError {
    MediumError { errno: errno.raw_os_error() }
}

/// The byte offset of a block.
fn offset(block: Block, bytes: usize) -> Result<u64, MediumError> {
    let start = block.0.checked_mul(BLOCK_BYTES as u64).filter(|_| bytes.is_multiple_of(BLOCK_BYTES));
    start.ok_or(failed(Errno::INVAL))
}

impl Medium for FileMedium {
    /// By the file's size now; 0 when it cannot be told.
    fn blocks(&self) -> u64 {
        // Unlike fstat, this tells the size of a block device too.
        rustix::fs::seek(&self.fd, SeekFrom::End(0)).unwrap_or(0) / BLOCK_BYTES as u64
    }

    fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
        let start = offset(block, into.len())?;
        let Some(mut area) = self.area() else {
            return self.read_at(start, into);
        };
        for (index, part) in into.chunks_mut(AREA_BYTES).enumerate() {
            let staged = area.slice(part.len());
            self.read_at(start + (index * AREA_BYTES) as u64, staged)?;
            part.copy_from_slice(staged);
        }
        Ok(())
    }

    fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError> {
        let start = offset(block, data.len())?;
        let Some(mut area) = self.area() else {
            return self.write_at(start, data, fua);
        };
        for (index, part) in data.chunks(AREA_BYTES).enumerate() {
            let staged = area.slice(part.len());
            staged.copy_from_slice(part);
            self.write_at(start + (index * AREA_BYTES) as u64, staged, fua)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), MediumError> {
        rustix::fs::fdatasync(&self.fd).map_err(failed)
    }
}
