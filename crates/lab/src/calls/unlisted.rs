//! File calls of libc's that the standard library does not offer: a wrapper sees these, too.
#![allow(
    unsafe_code,
    reason = "calls of libc's on descriptors and C strings that are borrowed for their time"
)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn answer(status: i64) -> io::Result<u64> {
    u64::try_from(status).map_err(|_| io::Error::last_os_error())
}

fn offset(bytes: u64) -> io::Result<i64> {
    i64::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))
}

/// fallocate(2)
pub(super) fn allocate(file: &File, flags: i32, from: u64, bytes: u64) -> io::Result<()> {
    let (from, bytes) = (offset(from)?, offset(bytes)?);
    // SAFETY: an open descriptor and numbers.
    answer(unsafe { libc::fallocate64(file.as_raw_fd(), flags, from, bytes) }.into()).map(drop)
}

/// sync_file_range(2), of dirty pages that are not being written yet.
pub(super) fn sync_range(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    let (from, bytes) = (offset(from)?, offset(bytes)?);
    // SAFETY: an open descriptor and numbers.
    let status = unsafe { libc::sync_file_range(file.as_raw_fd(), from, bytes, libc::SYNC_FILE_RANGE_WRITE) };
    answer(status.into()).map(drop)
}

/// copy_file_range(2)
pub(super) fn copy_range(
    (from, from_offset): (&File, u64),
    (to, to_offset): (&File, u64),
    bytes: usize,
) -> io::Result<u64> {
    let (mut from_offset, mut to_offset) = (offset(from_offset)?, offset(to_offset)?);
    // SAFETY: open descriptors; the kernel reads and writes the two offsets, which are ours and live as long.
    answer(unsafe {
        libc::copy_file_range(
            from.as_raw_fd(),
            &raw mut from_offset,
            to.as_raw_fd(),
            &raw mut to_offset,
            bytes,
            0,
        )
    } as i64)
}

/// truncate(2)
pub(super) fn truncate(path: &Path, bytes: u64) -> io::Result<()> {
    let (path, bytes) = (text(path)?, offset(bytes)?);
    // SAFETY: a C string that lives as long as the call.
    answer(unsafe { libc::truncate64(path.as_ptr(), bytes) }.into()).map(drop)
}

/// renameat2(2), from the working directory.
pub(super) fn rename(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (text(from)?, text(to)?);
    let here = libc::AT_FDCWD;
    // SAFETY: C strings that live as long as the call.
    answer(unsafe { libc::renameat2(here, from.as_ptr(), here, to.as_ptr(), flags) }.into()).map(drop)
}
