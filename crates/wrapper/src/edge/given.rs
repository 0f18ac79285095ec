//! Names and structures that a program passes by address, and addresses at which it wants an answer. We copy all of
//! them through the one door ([`nvmed_sys::door`]) before we take any lock. Memory that is not there is EFAULT.

use crate::edge::{Answer, Fail, fail};
use crate::raw::PATH_BYTES_MAX;
use core::ffi::{CStr, c_char};
use core::mem::{MaybeUninit, size_of};
use nvmed_sys::door::{self, STRING_SLACK};
use std::ffi::CString;

/// An address at which no process has memory: the kernel answers a call with it as one with a name that is not there,
/// in its own order of errors, though there may be one by then.
pub(crate) const NO_MEMORY: *const c_char = core::ptr::without_provenance(usize::MAX);

/// Most names fit on the stack, of which a signal's handler may have little. Of an attribute's name the kernel looks at
/// so many bytes (`XATTR_NAME_MAX` and the NUL).
const NEAR_BYTES: usize = 256;

/// Room for a copy of a name.
pub(crate) struct Room {
    near: [MaybeUninit<u8>; NEAR_BYTES + STRING_SLACK],
    /// For a name that is longer.
    far: Vec<MaybeUninit<u8>>,
}

impl Room {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self { near: [const { MaybeUninit::uninit() }; NEAR_BYTES + STRING_SLACK], far: Vec::new() }
    }

    /// Copies a C string of the program's. One that is too long for any path (`PATH_MAX`) is cut to that length, at
    /// which the kernel and the file system refuse it.
    ///
    /// # Errors
    /// `EFAULT`.
    #[inline(always)]
    pub(crate) fn name(&mut self, from: *const c_char) -> Answer<&CStr> {
        let Some(end) = door::string(from.addr(), &mut self.near) else { return fail(libc::EFAULT) };
        if end >= NEAR_BYTES {
            return self.long_name(from);
        }
        // SAFETY: the first NUL is at `end`, and what is before it was written.
        Ok(unsafe {
            CStr::from_bytes_with_nul_unchecked(core::slice::from_raw_parts(
                self.near.as_ptr().cast(),
                end + 1,
            ))
        })
    }

    /// The same of the name of an attribute, of which no more than 255 bytes are looked at.
    ///
    /// # Errors
    /// `EFAULT`; `ERANGE` for one that is longer, or empty (xattr(7)).
    pub(crate) fn attribute(&mut self, from: *const c_char) -> Answer<&[u8]> {
        match door::string(from.addr(), &mut self.near) {
            None => fail(libc::EFAULT),
            Some(0 | NEAR_BYTES..) => fail(libc::ERANGE),
            // SAFETY: what is before the NUL was written.
            Some(end) => Ok(unsafe { core::slice::from_raw_parts(self.near.as_ptr().cast(), end) }),
        }
    }

    #[cold]
    fn long_name(&mut self, from: *const c_char) -> Answer<&CStr> {
        self.far = vec![MaybeUninit::uninit(); PATH_BYTES_MAX + STRING_SLACK];
        let Some(end) = door::string(from.addr(), &mut self.far) else { return fail(libc::EFAULT) };
        let end = end.min(PATH_BYTES_MAX);
        self.far[end].write(0);
        // SAFETY: the bytes before `end` were written and hold no NUL, and there is one now.
        Ok(unsafe {
            CStr::from_bytes_with_nul_unchecked(core::slice::from_raw_parts(
                self.far.as_ptr().cast(),
                end + 1,
            ))
        })
    }
}

/// Whether a name is there and empty.
pub(crate) fn is_empty_name(name: *const c_char) -> bool {
    !name.is_null() && get(name).is_ok_and(|first| first == 0)
}

/// A value of the program's; it need not be aligned.
///
/// # Errors
/// `EFAULT`.
#[inline]
pub(crate) fn get<T: Plain>(from: *const T) -> Answer<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `value` has room for so many bytes.
    let got = unsafe { door::copy(value.as_mut_ptr().cast(), from.cast(), size_of::<T>()) };
    if got < size_of::<T>() {
        return fail(libc::EFAULT);
    }
    // SAFETY: all of it was written, and any bytes are a value of a plain type.
    Ok(unsafe { value.assume_init() })
}

/// Puts a value where the program wants it; that need not be aligned.
///
/// # Safety
/// The program wants it there.
///
/// # Errors
/// `EFAULT`; a part of it may be there then, as with the kernel.
#[inline]
pub(crate) unsafe fn put<T: Plain>(into: *mut T, value: &T) -> Answer<()> {
    // SAFETY: `value` is so many bytes of ours; the caller's contract.
    let put = unsafe { door::copy(into.cast(), core::ptr::from_ref(value).cast(), size_of::<T>()) };
    if put < size_of::<T>() { fail(libc::EFAULT) } else { Ok(()) }
}

/// Puts bytes where the program wants them, as far as it has room there; how many.
///
/// # Safety
/// The program wants so many bytes there.
pub(crate) unsafe fn put_some(into: *mut u8, bytes: &[u8]) -> usize {
    // SAFETY: as in `put`.
    unsafe { door::copy(into, bytes.as_ptr(), bytes.len()) }
}

/// Appends a copy of bytes of the program's, as far as they are there; how many.
pub(crate) fn append(whole: &mut Vec<u8>, from: *const u8, bytes: usize) -> usize {
    whole.reserve(bytes);
    // SAFETY: behind what is in `whole` there is room for them.
    let got = unsafe { door::copy(whole.as_mut_ptr().add(whole.len()), from, bytes) };
    // SAFETY: so many more were written.
    unsafe { whole.set_len(whole.len() + got) };
    got
}

/// Puts bytes where the program wants them.
///
/// # Safety
/// The program wants so many bytes there.
///
/// # Errors
/// As [`put`].
pub(crate) unsafe fn put_bytes(into: *mut u8, bytes: &[u8]) -> Answer<()> {
    // SAFETY: the caller's contract.
    let put = unsafe { put_some(into, bytes) };
    if put < bytes.len() { fail(libc::EFAULT) } else { Ok(()) }
}

/// A copy of bytes of the program's, which are few.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn bytes(from: *const u8, bytes: usize) -> Answer<Vec<u8>> {
    let mut copy = vec![0; bytes];
    // SAFETY: `copy` has room for them.
    let got = unsafe { door::copy(copy.as_mut_ptr(), from, bytes) };
    if got < bytes { fail(libc::EFAULT) } else { Ok(copy) }
}

/// Copies as many values of the program's as there is room for.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn fill<T: Plain>(room: &mut [MaybeUninit<T>], from: *const T) -> Answer<&[T]> {
    let bytes = size_of_val(room);
    // SAFETY: `room` has so many.
    if unsafe { door::copy(room.as_mut_ptr().cast(), from.cast(), bytes) } < bytes {
        return fail(libc::EFAULT);
    }
    // SAFETY: all of them were written, and any bytes are a value of a plain type.
    Ok(unsafe { core::slice::from_raw_parts(room.as_ptr().cast(), room.len()) })
}

/// A copy of a list of the program's.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn list<T: Plain>(from: *const T, count: usize) -> Answer<Vec<T>> {
    let mut copy = Vec::with_capacity(count);
    fill(&mut copy.spare_capacity_mut()[..count], from)?;
    // SAFETY: all of them were written.
    unsafe { copy.set_len(count) };
    Ok(copy)
}

/// What a program that is executed gets at most of lists and strings, in bytes: three quarters of the stack that it
/// begins with (exec.c of Linux, `_STK_LIM`).
pub(crate) const LIST_BYTES_MAX: usize = 6 << 20;

/// The addresses of a list that ends with a null; none of a null list.
///
/// # Errors
/// `EFAULT`; `E2BIG` for more than any program may be given.
pub(crate) fn words(list: *const *const c_char) -> Answer<Vec<*const c_char>> {
    let mut words = Vec::new();
    while !list.is_null() {
        let word = get(list.wrapping_add(words.len()))?;
        if word.is_null() {
            break;
        }
        if words.len() == LIST_BYTES_MAX / size_of::<*const c_char>() {
            return fail(libc::E2BIG);
        }
        words.push(word);
    }
    Ok(words)
}

/// A C string of the program's, which may be long.
///
/// # Errors
/// `EFAULT`; `E2BIG` for more than `bytes_max` bytes with its NUL.
pub(crate) fn string(from: *const c_char, bytes_max: usize) -> Answer<CString> {
    let mut bytes = NEAR_BYTES;
    loop {
        let mut copy = vec![MaybeUninit::uninit(); bytes + STRING_SLACK];
        let Some(end) = door::string(from.addr(), &mut copy) else { return fail(libc::EFAULT) };
        if end < bytes {
            // SAFETY: the first NUL is at `end`, and what is before it was written.
            let found = unsafe { core::slice::from_raw_parts(copy.as_ptr().cast::<u8>(), end + 1) };
            return CStr::from_bytes_with_nul(found)
                .map(CStr::to_owned)
                .map_err(|_| Fail::Errno(libc::EFAULT));
        }
        if bytes >= bytes_max {
            return fail(libc::E2BIG);
        }
        bytes = (bytes * 8).min(bytes_max);
    }
}

/// Any bytes of its size are a value of it.
///
/// # Safety
/// As said.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($ty:ty),* $(,)?) => { $(
        // SAFETY: integers, and C structures and arrays of them.
        unsafe impl Plain for $ty {}
    )* };
}
plain!(u8, i8, u16, i16, u32, i32, u64, i64, usize, libc::stat, libc::statx, libc::statfs, libc::timespec);
plain!(libc::timeval, libc::utimbuf, libc::flock, libc::pollfd, libc::iovec, libc::msghdr, libc::cmsghdr);

// SAFETY: an address, which may lead anywhere.
unsafe impl<T> Plain for *const T {}
// SAFETY: as above.
unsafe impl<T> Plain for *mut T {}

// SAFETY: an array of plain values.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
