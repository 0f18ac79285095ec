//! An open description.

use crate::error::FsError;
use crate::filesystem::Node;
use crate::lock::{LockHeld, LockKind, LockOwner, LockRange, Wait};
use crate::status::{Allocate, Credentials, DirEntry, OpenFlags, Stat, Time, Whence};
use core::ops::ControlFlow;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// An open description: an inode, an access mode, an offset.
pub struct File {}

/// A mapped file: map `fd`, shared; it holds the file's bytes as long as this lives.
pub struct MappedFile {
    /// The per-inode memfd.
    pub fd: Arc<OwnedFd>,
}

impl File {
    /// The inode.
    pub fn node(&self) -> Node {
        todo!()
    }
    /// `F_GETFL`: access mode and status flags.
    pub fn flags(&self) -> OpenFlags {
        todo!()
    }
    /// `F_SETFL`: changes the bits of [`OpenFlags::SETTABLE`], ignores others.
    pub fn set_flags(&self, flags: OpenFlags) -> Result<(), FsError> {
        todo!()
    }
    /// Reads at an offset; fewer bytes only at the end of the file.
    pub fn pread(&self, into: &mut [u8], offset: u64) -> Result<usize, FsError> {
        todo!()
    }
    /// Writes at an offset (with `O_APPEND` at the end, as Linux does).
    pub fn pwrite(&self, from: &[u8], offset: u64) -> Result<usize, FsError> {
        todo!()
    }
    /// Reads at the shared offset and moves it.
    pub fn read(&self, into: &mut [u8]) -> Result<usize, FsError> {
        todo!()
    }
    /// Writes at the shared offset (with `O_APPEND` at the end, atomically) and moves it.
    pub fn write(&self, from: &[u8]) -> Result<usize, FsError> {
        todo!()
    }
    /// Moves the shared offset; for a directory, `offset` is a cookie (0 rewinds).
    pub fn seek(&self, offset: i64, whence: Whence) -> Result<u64, FsError> {
        todo!()
    }
    /// The shared offset; for a directory, the cookie of the last entry told.
    pub fn position(&self) -> u64 {
        todo!()
    }
    /// Status of the inode.
    pub fn stat(&self) -> Stat {
        todo!()
    }
    /// Sets the size.
    pub fn truncate(&self, bytes: u64) -> Result<(), FsError> {
        todo!()
    }
    /// Allocates, punches or zeroes a range.
    pub fn fallocate(&self, how: Allocate, offset: u64, bytes: u64) -> Result<(), FsError> {
        todo!()
    }
    /// Makes data and metadata of the file durable, and every metadata operation before this call.
    pub fn fsync(&self) -> Result<(), FsError> {
        todo!()
    }
    /// As `fsync` without times.
    pub fn fdatasync(&self) -> Result<(), FsError> {
        todo!()
    }
    /// Writes a range of dirty pages back, without making it durable (`sync_file_range`).
    pub fn sync_range(&self, offset: u64, bytes: u64) -> Result<(), FsError> {
        todo!()
    }
    /// Tells entries from the current position on until `tell` breaks; an entry at which it breaks is
    /// told again next time.
    pub fn read_dir(&self, tell: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<(), FsError> {
        todo!()
    }
    /// `fchmod`.
    pub fn chmod(&self, mode: u32, who: &Credentials<'_>) -> Result<(), FsError> {
        todo!()
    }
    /// `fchown`.
    pub fn chown(&self, uid: Option<u32>, gid: Option<u32>, who: &Credentials<'_>) -> Result<(), FsError> {
        todo!()
    }
    /// `futimens`.
    pub fn utimens(&self, times: [Time; 2], who: &Credentials<'_>) -> Result<(), FsError> {
        todo!()
    }
    /// `F_SETLK`, `F_SETLKW` for [`LockOwner::Process`]; `kind` none unlocks.
    pub fn posix_lock(
        &self,
        pid: u32,
        range: LockRange,
        kind: Option<LockKind>,
        wait: Wait<'_>,
    ) -> Result<(), FsError> {
        todo!()
    }
    /// `F_GETLK`: the first lock in the way, if any.
    pub fn posix_getlk(&self, pid: u32, range: LockRange, kind: LockKind) -> Option<LockHeld> {
        todo!()
    }
    /// `F_OFD_SETLK`, `F_OFD_SETLKW`.
    pub fn ofd_lock(&self, range: LockRange, kind: Option<LockKind>, wait: Wait<'_>) -> Result<(), FsError> {
        todo!()
    }
    /// `F_OFD_GETLK`.
    pub fn ofd_getlk(&self, range: LockRange, kind: LockKind) -> Option<LockHeld> {
        todo!()
    }
    /// `flock`; `kind` none unlocks.
    pub fn flock(&self, kind: Option<LockKind>, wait: Wait<'_>) -> Result<(), FsError> {
        todo!()
    }
    /// Some descriptor of process `pid` for this file was closed: its POSIX locks go (POSIX, close).
    pub fn closed_by_process(&self, pid: u32) {
        todo!()
    }
    /// The file's memory for mmap.
    pub fn map(&self, write: bool) -> Result<MappedFile, FsError> {
        todo!()
    }
    /// One mapping fewer.
    pub fn unmap(&self, write: bool) -> Result<(), FsError> {
        todo!()
    }
    /// Makes a mapped range durable.
    pub fn msync(&self, offset: u64, bytes: u64) -> Result<(), FsError> {
        todo!()
    }
}
