//! Synchronous calls.

use crate::buffer;
use crate::error::{Failure, call};
use crate::handle::{Handle, NvmedHandle};
use libc::{iovec, off_t};
use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut, SeekFrom};

/// Pieces of one vectored call (`IOV_MAX` of Linux).
const PIECES_MAX: usize = 1024;
/// Ranges that one call of `nvmed_advise` looks at; the handle keeps as many.
const RANGES_MAX: usize = nvmed_block::ADVICE_MAX;

/// Whether a call reads or writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// `struct nvmed_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

pub(crate) fn offset_of(offset: off_t) -> Result<u64, Failure> {
    u64::try_from(offset).map_err(|_| Failure::invalid(format!("offset {offset} is negative")))
}

/// Checks that memory of C's can exist.
pub(crate) fn check(address: usize, len: usize) -> Result<(), Failure> {
    if len > isize::MAX as usize || (address == 0 && len > 0) || address.checked_add(len).is_none() {
        return Err(Failure::new(libc::EFAULT, format!("{len} bytes at {address:#x} are no memory")));
    }
    Ok(())
}

/// Moves bytes between a piece of memory and the position, or an offset, of a handle.
///
/// # Safety
/// `len` bytes at `address` can be read, and for [`Direction::Read`] written, and nobody else uses them meanwhile in a
/// way that C would not allow beside `read` or `write`.
unsafe fn transfer(
    handle: &Handle,
    direction: Direction,
    address: *mut c_void,
    len: usize,
    offset: Option<u64>,
) -> Result<usize, Failure> {
    check(address as usize, len)?;
    if len == 0 {
        return Ok(0);
    }
    let bytes = &handle.bytes;
    if let Some((buffer, at)) = buffer::find(address as usize, len) {
        let range = at..at + len;
        return Ok(match (direction, offset) {
            (Direction::Read, Some(offset)) => bytes.read_buffer(&buffer, range, offset)?,
            (Direction::Write, Some(offset)) => bytes.write_buffer(&buffer, range, offset)?,
            (Direction::Read, None) => bytes.read_buffer_next(&buffer, range)?,
            (Direction::Write, None) => bytes.write_buffer_next(&buffer, range)?,
        });
    }
    match direction {
        Direction::Read => {
            // SAFETY: not NULL, at most isize::MAX long; the caller vouches that the bytes are there, writable and used
            // by nobody else. It is no memory that the device writes: that is found in `buffer::find`. u8 needs no
            // alignment.
            let into = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), len) };
            Ok(match offset {
                Some(offset) => bytes.pread(into, offset)?,
                None => bytes.read(into)?,
            })
        }
        Direction::Write => {
            // SAFETY: as above, for reading.
            let from = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) };
            Ok(match offset {
                Some(offset) => bytes.pwrite(from, offset)?,
                None => bytes.write(from)?,
            })
        }
    }
}

/// The pieces of a vectored call.
///
/// # Safety
/// `iov` is NULL or points to `iovcnt` pieces.
pub(crate) unsafe fn pieces(iov: *const iovec, iovcnt: c_int) -> Result<Vec<iovec>, Failure> {
    let count = usize::try_from(iovcnt).ok().filter(|count| *count <= PIECES_MAX);
    let count =
        count.ok_or_else(|| Failure::invalid(format!("{iovcnt} pieces; a call takes 0 to {PIECES_MAX}")))?;
    if count == 0 {
        return Ok(Vec::new());
    }
    check(iov as usize, count * size_of::<iovec>())?;
    // SAFETY: not NULL; the caller vouches for `count` pieces, aligned as C aligns them.
    let pieces: Vec<iovec> = (0..count).map(|at| unsafe { iov.add(at).read() }).collect();
    let mut total = 0usize;
    for piece in &pieces {
        check(piece.iov_base as usize, piece.iov_len)?;
        total = total
            .checked_add(piece.iov_len)
            .filter(|total| *total <= isize::MAX as usize)
            .ok_or_else(|| Failure::invalid("the pieces are together longer than a call can answer"))?;
    }
    Ok(pieces)
}

/// Moves bytes between several pieces of memory and a handle. Foreign pieces go in one call; with a registered one
/// among them, each piece is a call of its own.
///
/// # Safety
/// As [`transfer`], for each piece.
unsafe fn transfer_all(
    handle: &Handle,
    direction: Direction,
    pieces: &[iovec],
    offset: Option<u64>,
) -> Result<usize, Failure> {
    let registered = |piece: &iovec| buffer::find(piece.iov_base as usize, piece.iov_len).is_some();
    if pieces.iter().any(registered) {
        return piecewise(pieces, offset, |piece, at| {
            // SAFETY: as the caller vouches.
            unsafe { transfer(handle, direction, piece.iov_base, piece.iov_len, at) }
        });
    }
    let some = pieces.iter().filter(|piece| piece.iov_len > 0);
    let bytes = &handle.bytes;
    match direction {
        Direction::Read => {
            let slice = |piece: &iovec| {
                // SAFETY: as in `transfer`; pieces that overlap are C's mistake as they are for readv.
                IoSliceMut::new(unsafe {
                    std::slice::from_raw_parts_mut(piece.iov_base.cast::<u8>(), piece.iov_len)
                })
            };
            let mut into: Vec<_> = some.map(slice).collect();
            Ok(match offset {
                Some(offset) => bytes.preadv(&mut into, offset)?,
                None => bytes.readv(&mut into)?,
            })
        }
        Direction::Write => {
            let slice = |piece: &iovec| {
                // SAFETY: as in `transfer`, for reading.
                IoSlice::new(unsafe {
                    std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
                })
            };
            let from: Vec<_> = some.map(slice).collect();
            Ok(match offset {
                Some(offset) => bytes.pwritev(&from, offset)?,
                None => bytes.writev(&from)?,
            })
        }
    }
}

/// Piece by piece by `transfer`, until one is cut short; an error counts if nothing was moved before it.
pub(crate) fn piecewise(
    pieces: &[iovec],
    offset: Option<u64>,
    mut transfer: impl FnMut(&iovec, Option<u64>) -> Result<usize, Failure>,
) -> Result<usize, Failure> {
    let mut done = 0;
    for piece in pieces {
        match transfer(piece, offset.map(|offset| offset.saturating_add(done as u64))) {
            Ok(moved) => {
                done += moved;
                if moved < piece.iov_len {
                    break;
                }
            }
            Err(failure) if done == 0 => return Err(failure),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_lseek(handle: *mut NvmedHandle, offset: off_t, whence: c_int) -> off_t {
    call(-1, || {
        let handle = Handle::of(handle)?;
        let to = match whence {
            libc::SEEK_SET => SeekFrom::Start(offset_of(offset)?),
            libc::SEEK_CUR => SeekFrom::Current(offset),
            libc::SEEK_END => SeekFrom::End(offset),
            _ => {
                return Err(Failure::invalid(format!(
                    "whence {whence} is none of SEEK_SET, SEEK_CUR, SEEK_END"
                )));
            }
        };
        let position = handle.bytes.seek(to)?;
        off_t::try_from(position)
            .map_err(|_| Failure::new(libc::EOVERFLOW, "the position does not fit off_t"))
    })
}

/// See `nvmed.h`.
///
/// # Safety
/// `count` bytes at `buf` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_read(handle: *mut NvmedHandle, buf: *mut c_void, count: usize) -> isize {
    call(-1, || {
        let handle = Handle::of(handle)?;
        // SAFETY: as the caller vouches.
        unsafe { transfer(&handle, Direction::Read, buf, count, None) }.map(|done| done as isize)
    })
}

/// See `nvmed.h`.
///
/// # Safety
/// `count` bytes at `buf` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_write(handle: *mut NvmedHandle, buf: *const c_void, count: usize) -> isize {
    let buf = buf.cast_mut();
    call(-1, || {
        let handle = Handle::of(handle)?;
        // SAFETY: as the caller vouches.
        unsafe { transfer(&handle, Direction::Write, buf, count, None) }.map(|done| done as isize)
    })
}

/// See `nvmed.h`.
///
/// # Safety
/// `count` bytes at `buf` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_pread(
    handle: *mut NvmedHandle,
    buf: *mut c_void,
    count: usize,
    offset: off_t,
) -> isize {
    call(-1, || {
        let (handle, offset) = (Handle::of(handle)?, offset_of(offset)?);
        // SAFETY: as the caller vouches.
        unsafe { transfer(&handle, Direction::Read, buf, count, Some(offset)) }.map(|done| done as isize)
    })
}

/// See `nvmed.h`.
///
/// # Safety
/// `count` bytes at `buf` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_pwrite(
    handle: *mut NvmedHandle,
    buf: *const c_void,
    count: usize,
    offset: off_t,
) -> isize {
    call(-1, || {
        let (handle, offset) = (Handle::of(handle)?, offset_of(offset)?);
        // SAFETY: as the caller vouches.
        unsafe { transfer(&handle, Direction::Write, buf.cast_mut(), count, Some(offset)) }
            .map(|done| done as isize)
    })
}

/// A vectored call.
///
/// # Safety
/// `iov` is NULL or points to `iovcnt` pieces, each of which can be read or written to as `direction` needs.
unsafe fn vectored(
    handle: *mut NvmedHandle,
    direction: Direction,
    iov: *const iovec,
    iovcnt: c_int,
    offset: Option<off_t>,
) -> isize {
    call(-1, || {
        let (handle, offset) = (Handle::of(handle)?, offset.map(offset_of).transpose()?);
        // SAFETY: as the caller vouches.
        let pieces = unsafe { pieces(iov, iovcnt) }?;
        // SAFETY: as the caller vouches.
        unsafe { transfer_all(&handle, direction, &pieces, offset) }.map(|done| done as isize)
    })
}

/// See `nvmed.h`.
///
/// # Safety
/// `iov` points to `iovcnt` pieces that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_readv(handle: *mut NvmedHandle, iov: *const iovec, iovcnt: c_int) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { vectored(handle, Direction::Read, iov, iovcnt, None) }
}

/// See `nvmed.h`.
///
/// # Safety
/// `iov` points to `iovcnt` pieces that can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_writev(handle: *mut NvmedHandle, iov: *const iovec, iovcnt: c_int) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { vectored(handle, Direction::Write, iov, iovcnt, None) }
}

/// See `nvmed.h`.
///
/// # Safety
/// `iov` points to `iovcnt` pieces that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_preadv(
    handle: *mut NvmedHandle,
    iov: *const iovec,
    iovcnt: c_int,
    offset: off_t,
) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { vectored(handle, Direction::Read, iov, iovcnt, Some(offset)) }
}

/// See `nvmed.h`.
///
/// # Safety
/// `iov` points to `iovcnt` pieces that can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_pwritev(
    handle: *mut NvmedHandle,
    iov: *const iovec,
    iovcnt: c_int,
    offset: off_t,
) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { vectored(handle, Direction::Write, iov, iovcnt, Some(offset)) }
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_flush(handle: *mut NvmedHandle) -> c_int {
    call(-1, || Ok(Handle::of(handle)?.bytes.flush().map(|()| 0)?))
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_discard(handle: *mut NvmedHandle, start: u64, len: u64) -> c_int {
    call(-1, || Ok(Handle::of(handle)?.bytes.discard(start, len).map(|()| 0)?))
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_write_zeroes(handle: *mut NvmedHandle, start: u64, len: u64) -> c_int {
    call(-1, || Ok(Handle::of(handle)?.bytes.write_zeroes(start, len).map(|()| 0)?))
}

/// See `nvmed.h`.
///
/// # Safety
/// `count` bytes at `buf` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_compare(
    handle: *mut NvmedHandle,
    buf: *const c_void,
    count: usize,
    offset: off_t,
) -> c_int {
    call(-1, || {
        let (handle, offset) = (Handle::of(handle)?, offset_of(offset)?);
        check(buf as usize, count)?;
        if count == 0 {
            return Ok(0);
        }
        if let Some((buffer, at)) = buffer::find(buf as usize, count) {
            handle.bytes.compare_buffer(&buffer, at..at + count, offset)?;
        } else {
            // SAFETY: as in `transfer`, for reading.
            let with = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), count) };
            handle.bytes.compare(with, offset)?;
        }
        Ok(0)
    })
}

/// See `nvmed.h`.
///
/// # Safety
/// `ranges` is NULL or points to `count` ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_advise(handle: *mut NvmedHandle, ranges: *const Range, count: usize) -> c_int {
    call(-1, || {
        let handle = Handle::of(handle)?;
        let count = count.min(RANGES_MAX);
        check(ranges as usize, count * size_of::<Range>())?;
        let advice = (0..count).map(|at| {
            // SAFETY: not NULL; the caller vouches for `count` ranges, aligned as C aligns them.
            let Range { start, len } = unsafe { ranges.add(at).read() };
            start..start.saturating_add(len)
        });
        handle.bytes.advise(&advice.collect::<Vec<_>>());
        Ok(0)
    })
}
