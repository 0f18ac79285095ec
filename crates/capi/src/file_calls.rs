//! Synchronous calls of open files.

use crate::buffer;
use crate::calls::{Direction, check, offset_of, pieces, piecewise};
use crate::descriptors::Open;
use crate::error::{Failure, call};
use crate::paths::{bytes, id, times};
use libc::{gid_t, iovec, mode_t, off_t, timespec, uid_t};
use nvmed_files::{Allocate, OpenFile, Whence};
use nvmed_fs::Object;
use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Moves bytes between a piece of memory and a file, at an offset or at the file's.
///
/// # Safety
/// `len` bytes at `address` can be read, and for [`Direction::Read`] written, and nobody else uses them meanwhile in a
/// way that C would not allow beside `read` or `write`.
pub(crate) unsafe fn transfer(
    file: &Arc<OpenFile>,
    direction: Direction,
    address: *mut c_void,
    len: usize,
    offset: Option<u64>,
) -> Result<usize, Failure> {
    check(address as usize, len)?;
    if let Some((buffer, at)) = buffer::find(address as usize, len).filter(|_| len > 0) {
        let range = at..at + len;
        return Ok(match direction {
            Direction::Read => file.read_buffer(&buffer, range, offset)?,
            Direction::Write => file.write_buffer(&buffer, range, offset)?,
        });
    }
    // A slice is never NULL; of no bytes, any other address will do.
    let address = if len == 0 { core::ptr::NonNull::<u8>::dangling().as_ptr() } else { address.cast::<u8>() };
    match direction {
        Direction::Read => {
            // SAFETY: not NULL, at most isize::MAX long; the caller vouches that the bytes are there, writable and used
            // by nobody else. It is no memory that the device writes: that is found in `buffer::find`. u8 needs no
            // alignment.
            let into = unsafe { std::slice::from_raw_parts_mut(address, len) };
            Ok(match offset {
                Some(offset) => file.pread(into, offset)?,
                None => file.read(into)?,
            })
        }
        Direction::Write => {
            // SAFETY: as above, for reading.
            let from = unsafe { std::slice::from_raw_parts(address, len) };
            Ok(match offset {
                Some(offset) => file.pwrite(from, offset)?,
                None => file.write(from)?,
            })
        }
    }
}

/// One piece at the file's offset, or at one that C gives.
///
/// # Safety
/// As [`transfer`].
unsafe fn single(
    fd: c_int,
    direction: Direction,
    buf: *mut c_void,
    count: usize,
    offset: Option<off_t>,
) -> isize {
    call(-1, || {
        let (open, offset) = (Open::of(fd)?, offset.map(offset_of).transpose()?);
        // SAFETY: as the caller vouches.
        unsafe { transfer(&open.file, direction, buf, count, offset) }.map(|done| done as isize)
    })
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `count` bytes at `buf` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_read(fd: c_int, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { single(fd, Direction::Read, buf, count, None) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `count` bytes at `buf` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_write(fd: c_int, buf: *const c_void, count: usize) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { single(fd, Direction::Write, buf.cast_mut(), count, None) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `count` bytes at `buf` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_pread(fd: c_int, buf: *mut c_void, count: usize, offset: off_t) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { single(fd, Direction::Read, buf, count, Some(offset)) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `count` bytes at `buf` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_pwrite(fd: c_int, buf: *const c_void, count: usize, offset: off_t) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { single(fd, Direction::Write, buf.cast_mut(), count, Some(offset)) }
}

/// A vectored call: pieces of foreign memory go together, with a registered one among them each goes by itself.
///
/// # Safety
/// `iov` is NULL or points to `iovcnt` pieces, each of which can be read or written to as `direction` needs.
unsafe fn vectored(
    fd: c_int,
    direction: Direction,
    iov: *const iovec,
    iovcnt: c_int,
    offset: Option<off_t>,
) -> isize {
    call(-1, || {
        let (open, offset) = (Open::of(fd)?, offset.map(offset_of).transpose()?);
        let file = &open.file;
        // SAFETY: as the caller vouches.
        let mut pieces = unsafe { pieces(iov, iovcnt) }?;
        pieces.retain(|piece| piece.iov_len > 0);
        if pieces.iter().any(|piece| buffer::find(piece.iov_base as usize, piece.iov_len).is_some()) {
            let done = piecewise(&pieces, offset, |piece, at| {
                // SAFETY: as the caller vouches.
                unsafe { transfer(file, direction, piece.iov_base, piece.iov_len, at) }
            })?;
            return Ok(done as isize);
        }
        let done = match direction {
            Direction::Read => {
                let slice = |piece: &iovec| {
                    // SAFETY: as in `transfer`; pieces that overlap are C's mistake as they are for readv.
                    IoSliceMut::new(unsafe {
                        std::slice::from_raw_parts_mut(piece.iov_base.cast::<u8>(), piece.iov_len)
                    })
                };
                file.readv(&mut pieces.iter().map(slice).collect::<Vec<_>>(), offset)?
            }
            Direction::Write => {
                let slice = |piece: &iovec| {
                    // SAFETY: as in `transfer`, for reading.
                    IoSlice::new(unsafe {
                        std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
                    })
                };
                file.writev(&pieces.iter().map(slice).collect::<Vec<_>>(), offset)?
            }
        };
        Ok(done as isize)
    })
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `iov` points to `iovcnt` pieces that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_readv(fd: c_int, iov: *const iovec, iovcnt: c_int) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { vectored(fd, Direction::Read, iov, iovcnt, None) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `iov` points to `iovcnt` pieces that can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_writev(fd: c_int, iov: *const iovec, iovcnt: c_int) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { vectored(fd, Direction::Write, iov, iovcnt, None) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `iov` points to `iovcnt` pieces that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_preadv(fd: c_int, iov: *const iovec, iovcnt: c_int, offset: off_t) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { vectored(fd, Direction::Read, iov, iovcnt, Some(offset)) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `iov` points to `iovcnt` pieces that can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_pwritev(
    fd: c_int,
    iov: *const iovec,
    iovcnt: c_int,
    offset: off_t,
) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { vectored(fd, Direction::Write, iov, iovcnt, Some(offset)) }
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    call(-1, || {
        let open = Open::of(fd)?;
        let whence = match whence {
            libc::SEEK_SET => Whence::Set,
            libc::SEEK_CUR => Whence::Current,
            libc::SEEK_END => Whence::End,
            libc::SEEK_DATA => Whence::Data,
            libc::SEEK_HOLE => Whence::Hole,
            _ => return Err(Failure::invalid(format!("whence {whence} is no SEEK_*"))),
        };
        Ok(open.file.seek(offset, whence)? as off_t)
    })
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_fsync(fd: c_int) -> c_int {
    call(-1, || Ok(Open::of(fd)?.file.fsync().map(|()| 0)?))
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_fdatasync(fd: c_int) -> c_int {
    call(-1, || Ok(Open::of(fd)?.file.file().fdatasync().map(|()| 0)?))
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_ftruncate(fd: c_int, length: off_t) -> c_int {
    call(-1, || {
        let open = Open::of(fd)?;
        Ok(open.file.file().truncate(bytes(length)?).map(|()| 0)?)
    })
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
    call(-1, || {
        let open = Open::of(fd)?;
        let has = |flag| mode & flag != 0;
        let how = Allocate {
            keep_size: has(libc::FALLOC_FL_KEEP_SIZE),
            punch_hole: has(libc::FALLOC_FL_PUNCH_HOLE),
            zero_range: has(libc::FALLOC_FL_ZERO_RANGE),
        };
        let known = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & !known != 0 {
            return Err(Failure::new(libc::EOPNOTSUPP, format!("fallocate mode {mode:#x} is not offered")));
        }
        Ok(open.file.file().fallocate(how, bytes(offset)?, bytes(len)?).map(|()| 0)?)
    })
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_fchmod(fd: c_int, mode: mode_t) -> c_int {
    call(-1, || {
        let open = Open::of(fd)?;
        let files = open.file.files();
        files.system().chmod(Object::Open(open.file.file()), mode, &files.who())?;
        Ok(0)
    })
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_fchown(fd: c_int, owner: uid_t, group: gid_t) -> c_int {
    call(-1, || {
        let open = Open::of(fd)?;
        let files = open.file.files();
        files.system().chown(Object::Open(open.file.file()), id(owner), id(group), &files.who())?;
        Ok(0)
    })
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `pair` is NULL or points to two times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_futimens(fd: c_int, pair: *const timespec) -> c_int {
    call(-1, || {
        let open = Open::of(fd)?;
        // SAFETY: as the caller vouches.
        let times = unsafe { times(pair) }?;
        let files = open.file.files();
        files.system().utimens(Object::Open(open.file.file()), times, &files.who())?;
        Ok(0)
    })
}
