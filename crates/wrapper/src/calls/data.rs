//! read, write and their kin: the hot path. A lookup, a pin, the file system's own copy.

use crate::calls::descriptor::on_descriptor;
use crate::edge::{Answer, Fail, bytes_mut, bytes_ref, fail, offset};
use crate::find::backend::File;
use core::ffi::{c_int, c_void};
use libc::{off_t, size_t, ssize_t};
use nvmed_fs::Whence;
use nvmed_sys::door;

/// Where a call reads or writes.
#[derive(Clone, Copy)]
pub(crate) enum At {
    /// At the description's own offset.
    Shared,
    Offset(u64),
}

/// Reads into a buffer of the program's, as far as it is there.
///
/// # Errors
/// `EFAULT` when nothing of it is; the file system's.
///
/// # Safety
/// The buffer is the program's, under `edge`'s contract.
#[inline(always)]
pub(crate) unsafe fn read_into(file: &File, buffer: *mut c_void, count: usize, at: At) -> Answer<usize> {
    // SAFETY: the caller's contract.
    let found = unsafe { bytes_mut(buffer, count) }.and_then(|room| fits(at, count).map(|()| room));
    let room = match found {
        Ok(room) => room,
        Err(failure) => return refused(file.flags().reads(), failure),
    };
    let start = room.as_ptr().addr();
    let done = read_at(file, room, at);
    match door::lost() {
        None => done,
        Some(lost) => cut(file, at, done?, lost.wrapping_sub(start)),
    }
}

/// Writes from a buffer of the program's, as far as it is there.
///
/// # Errors
/// As [`read_into`].
///
/// # Safety
/// As [`read_into`].
#[inline(always)]
pub(crate) unsafe fn write_from(file: &File, buffer: *const c_void, count: usize, at: At) -> Answer<usize> {
    // SAFETY: the caller's contract.
    let found = unsafe { bytes_ref(buffer, count) }.and_then(|bytes| fits(at, count).map(|()| bytes));
    let bytes = match found {
        Ok(bytes) => bytes,
        Err(failure) => return refused(file.flags().writes(), failure),
    };
    let done = write_at(file, bytes, at);
    if bytes.is_empty() && count > 0 {
        return done.and_then(|_| nothing_there(count, at));
    }
    match door::lost() {
        None => done,
        // Another thread has taken it away meanwhile.
        Some(lost) => cut(file, at, done?, lost.wrapping_sub(bytes.as_ptr().addr())),
    }
}

/// Whether `count` bytes from there on end where offsets do.
///
/// # Errors
/// `EINVAL`.
#[inline(always)]
pub(crate) fn fits(at: At, count: usize) -> Answer<()> {
    match at {
        At::Offset(start) if start.wrapping_add(count as u64) > i64::MAX as u64 => fail(libc::EINVAL),
        _ => Ok(()),
    }
}

/// The answer of a call whose arguments make no sense; that the descriptor does not allow it comes before that.
#[cold]
fn refused(allowed: bool, failure: Fail) -> Answer<usize> {
    if allowed { Err(failure) } else { fail(libc::EBADF) }
}

/// The answer of a write of bytes of which none are there; that a file cannot have them comes before that.
///
/// # Errors
/// `EFBIG`, `EFAULT`.
#[cold]
pub(crate) fn nothing_there(count: usize, at: At) -> Answer<usize> {
    match at {
        At::Offset(offset) if offset.saturating_add(count as u64) > nvmed_fs::FILE_BYTES_MAX => {
            fail(libc::EFBIG)
        }
        _ => fail(libc::EFAULT),
    }
}

/// Reads into bytes of ours.
///
/// # Errors
/// The file system's.
#[inline(always)]
pub(crate) fn read_at(file: &File, into: &mut [u8], at: At) -> Answer<usize> {
    Ok(match at {
        At::Shared => file.read(into)?,
        At::Offset(offset) => file.pread(into, offset)?,
    })
}

/// Writes bytes of ours.
///
/// # Errors
/// The file system's.
#[inline(always)]
pub(crate) fn write_at(file: &File, bytes: &[u8], at: At) -> Answer<usize> {
    Ok(match at {
        At::Shared => file.write(bytes)?,
        At::Offset(offset) => file.pwrite(bytes, offset)?,
    })
}

/// The answer of a transfer of `done` bytes of which `arrived` were there, or more than that if it was an earlier one
/// that has lost some.
#[cold]
pub(crate) fn cut(file: &File, at: At, done: usize, arrived: usize) -> Answer<usize> {
    if arrived >= done {
        return Ok(done);
    }
    if let At::Shared = at {
        file.seek(-((done - arrived) as i64), Whence::Current)?;
    }
    if arrived == 0 { fail(libc::EFAULT) } else { Ok(arrived) }
}

hook! {
    /// read(2)
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_read, fd, buffer, count), move |body| {
            Ok(read_into(body.file()?, buffer, count, At::Shared)? as isize)
        })
    }
}

hook! {
    /// write(2)
    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_write, fd, buffer, count), move |body| {
            Ok(write_from(body.file()?, buffer, count, At::Shared)? as isize)
        })
    }
}

hook! {
    /// pread(2)
    fn pread(fd: c_int, buffer: *mut c_void, count: size_t, at: off_t) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_pread64, fd, buffer, count, at), move |body| {
            let start = offset(at)?;
            Ok(read_into(body.file()?, buffer, count, At::Offset(start))? as isize)
        })
    }
}

hook! {
    /// pwrite(2)
    fn pwrite(fd: c_int, buffer: *const c_void, count: size_t, at: off_t) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_pwrite64, fd, buffer, count, at), move |body| {
            let start = offset(at)?;
            Ok(write_from(body.file()?, buffer, count, At::Offset(start))? as isize)
        })
    }
}

/// What glibc does when a program asks for more than its buffer holds.
pub(crate) extern "C" fn overflow() -> ! {
    crate::raw::say(format_args!("buffer overflow detected: terminated"));
    // SAFETY: abort takes nothing and does not return.
    unsafe { libc::abort() }
}

hook! {
    /// read(2), as compiled with _FORTIFY_SOURCE
    fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t) -> ssize_t {
        if count > size {
            overflow();
        }
        read(fd, buffer, count)
    }
}

hook! {
    /// pread(2), as compiled with _FORTIFY_SOURCE
    fn __pread_chk(fd: c_int, buffer: *mut c_void, count: size_t, at: off_t, size: size_t) -> ssize_t {
        if count > size {
            overflow();
        }
        pread(fd, buffer, count, at)
    }
}

hook! {
    /// lseek(2)
    fn lseek(fd: c_int, by: off_t, whence: c_int) -> off_t {
        on_descriptor(fd, || sys!(SYS_lseek, fd, by, whence), |body| {
            Ok(body.file()?.seek(by, crate::edge::whence(whence)?)? as isize)
        })
    }
}
