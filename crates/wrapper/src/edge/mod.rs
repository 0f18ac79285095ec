//! What every entry point shares: how a call of ours ends, and what never crosses the edge.
//!
//! Contract for the bodies of `hook!`: a function that libc documents is called with the arguments
//! that libc documents for it. What the host program passes (pointers valid for the sizes passed with
//! them, C strings that end, buffers nobody else frees) is all that the bodies rely on.

pub(crate) mod fault;
pub(crate) mod flags;
pub(crate) mod given;
pub(crate) mod inside;
pub(crate) mod sigsys;

use crate::find::private;
use crate::raw;
use core::any::Any;
use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_fs::{FsError, Trouble, Whence};
use nvmed_sys::door;
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call of ours did not succeed.
#[derive(Debug)]
pub(crate) enum Fail {
    /// The program gets this errno.
    Errno(c_int),
    /// The path left our file system; the rest is resolved further.
    Away(Box<[u8]>),
    /// The host's answer was about the directory that `wrap_dir` hides: ask our root instead.
    Root,
}

/// How a call of ours ends.
pub(crate) type Answer<T = isize> = Result<T, Fail>;

impl From<FsError> for Fail {
    fn from(error: FsError) -> Self {
        match error {
            FsError::Away(rest) => Self::Away(rest),
            FsError::ReadOnly => {
                private::tell_trouble();
                Self::Errno(libc::EROFS)
            }
            other => Self::Errno(other.errno().raw_os_error()),
        }
    }
}

impl From<Errno> for Fail {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno.raw_os_error())
    }
}

/// `Err` with an errno.
pub(crate) fn fail<T>(errno: c_int) -> Answer<T> {
    Err(Fail::Errno(errno))
}

/// A raw system call's answer as ours.
#[inline]
pub(crate) fn host(answer: isize) -> Answer {
    if answer < 0 { Err(Fail::Errno(-answer as c_int)) } else { Ok(answer) }
}

/// What a libc function answers.
pub(crate) trait Reply: Copy {
    /// What it answers on failure, beside errno.
    const FAILED: Self;
    /// What it answers on success.
    fn done(value: isize) -> Self;
}

macro_rules! replies {
    ($($ty:ty),*) => { $(impl Reply for $ty {
        const FAILED: Self = -1;
        #[inline(always)]
        fn done(value: isize) -> Self { value as $ty }
    })* };
}
replies!(c_int, c_long, isize);

/// What a function that answers a pointer answers on failure, by what it points to. A type needs an entry before a hook
/// can answer it: here, or in the module that defines it.
macro_rules! pointer_replies {
    ($($ty:ty => $failed:expr;)*) => { $(impl $crate::edge::Reply for *mut $ty {
        const FAILED: Self = $failed;
        #[inline(always)]
        fn done(value: isize) -> Self { value as *mut $ty }
    })* };
}
pointer_replies! {
    // Addresses of memory: mmap(2), mremap(2).
    c_void => libc::MAP_FAILED;
    // Names: getcwd(3), realpath(3), mkdtemp(3), tempnam(3).
    c_char => core::ptr::null_mut();
    libc::FILE => core::ptr::null_mut();
    libc::DIR => core::ptr::null_mut();
    libc::dirent => core::ptr::null_mut();
}

/// A raw system call's answer as libc gives it: errno set on failure.
#[inline(always)]
pub(crate) fn reply<R: Reply>(answer: isize) -> R {
    if (-4095..0).contains(&answer) {
        raw::set_errno(-answer as c_int);
        return R::FAILED;
    }
    R::done(answer)
}

/// An answer of ours as libc gives it.
#[inline(always)]
pub(crate) fn finish<R: Reply>(answer: Answer) -> R {
    match answer {
        Ok(value) => R::done(value),
        Err(failure) => {
            raw::set_errno(errno_of(&failure));
            R::FAILED
        }
    }
}

/// The errno of a failure that nobody resolves further.
pub(crate) fn errno_of(failure: &Fail) -> c_int {
    match failure {
        Fail::Errno(errno) => *errno,
        Fail::Away(_) | Fail::Root => libc::ENOENT,
    }
}

/// The errno of a failure in the host's words, for a message: `No such file or directory (os error 2)`.
pub(crate) fn words_of(failure: &Fail) -> Errno {
    Errno::from_raw_os_error(errno_of(failure))
}

/// Runs the body of an entry point: a panic becomes `EIO` and one line.
#[inline(always)]
pub(crate) fn guard<R: Reply>(body: impl FnOnce() -> Answer) -> R {
    finish(caught(body))
}

/// Runs `body`; a panic becomes `EIO`.
#[inline(always)]
pub(crate) fn caught<T>(body: impl FnOnce() -> Answer<T>) -> Answer<T> {
    // The state behind is the file system's, which has its own locks; a poisoned one panics again
    // and ends here again.
    inside::enter();
    let answer = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| broken(&*panic));
    inside::leave();
    answer
}

/// Waits by `call` until a signal with a handler comes. The handlers run once `call` holds no lock any more: they may
/// jump out and never return. Where `SA_RESTART` says so it is called again behind them, as the kernel's waits go on.
pub(crate) fn restarting(mut call: impl FnMut() -> Answer) -> Answer {
    loop {
        let mut goes_on = false;
        let answer = caught(|| {
            let answer = call();
            goes_on = matches!(answer, Err(Fail::Errno(libc::EINTR)))
                && inside::is_waiting()
                && inside::all_restart();
            answer
        });
        if !goes_on {
            return answer;
        }
    }
}

/// A check of our own memory failed: a file system of this process is not changed any more.
#[cold]
fn broken<T>(panic: &(dyn Any + Send)) -> Answer<T> {
    if let Some(mount) = private::mount() {
        mount.turn_read_only(Trouble::of_panic(panic));
    }
    // What the call has met is not the next call's.
    let _ = door::lost();
    fail(libc::EIO)
}

/// Installed at the first mount: our own defect is one line on stderr, not Rust's page, and not a line for each call
/// that the same memory ends from then on.
pub(crate) fn panic_hook() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    nvmed_fs::tell_panics(|line| {
        if !TOLD.swap(true, Ordering::Relaxed) {
            raw::say(line);
        }
    });
}

/// For libc functions that answer the error itself and leave errno alone (`posix_*`).
pub(crate) fn posix(answer: Answer) -> c_int {
    match answer {
        Ok(_) => 0,
        Err(failure) => errno_of(&failure),
    }
}

/// Above is no memory of a program's: the end of the user's half with five levels of page tables.
const MEMORY_END: usize = 1 << 56;

/// Whether a buffer lies where a program may have memory; else the kernel refuses it unseen.
#[inline(always)]
pub(crate) fn is_possible(buffer: *const c_void, count: usize) -> bool {
    buffer.addr().checked_add(count).is_some_and(|end| end <= MEMORY_END)
}

/// A buffer's address and how many of its bytes the kernel would move. Null is an address where nothing is.
///
/// # Errors
/// `EFAULT` for a buffer that no program can have.
#[inline(always)]
fn extent(buffer: *const c_void, count: usize) -> Answer<(NonNull<u8>, usize)> {
    match NonNull::new(buffer.cast::<u8>().cast_mut()) {
        // One look says all of this of most.
        Some(start) if buffer.addr() >> USUAL_BITS | count >> COUNT_BITS == 0 => Ok((start, count)),
        start => unusual(start, buffer, count),
    }
}

/// No address of a process with four levels of page tables has more bits, and no usual call moves as many bytes.
const USUAL_BITS: u32 = 47;
const COUNT_BITS: u32 = 30;

#[cold]
fn unusual(start: Option<NonNull<u8>>, buffer: *const c_void, count: usize) -> Answer<(NonNull<u8>, usize)> {
    if !is_possible(buffer, count) {
        return fail(libc::EFAULT);
    }
    Ok((start.unwrap_or(NonNull::dangling()), count.min(TRANSFER_BYTES_MAX)))
}

/// The bytes that a program wants filled. They need not be there: only the door's routines touch them, and
/// [`door::lost`] tells what was not.
///
/// # Errors
/// `EFAULT` for a buffer that no program can have.
///
/// # Safety
/// The program wants `count` bytes written at `buffer`, which nobody else frees for `'a`; what is there may be gone.
#[inline(always)]
pub(crate) unsafe fn bytes_mut<'a>(buffer: *mut c_void, count: usize) -> Answer<&'a mut [u8]> {
    let (start, count) = extent(buffer, count)?;
    // SAFETY: the caller's contract. The bytes may be uninitialised; they are only written before
    // the program reads them, and `u8` has no invalid value.
    Ok(unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), count) })
}

/// The bytes that a program wants written, as far as they are there; another thread may take them away until they are
/// copied.
///
/// # Errors
/// As [`bytes_mut`].
///
/// # Safety
/// As [`bytes_mut`], for reads.
#[inline(always)]
pub(crate) unsafe fn bytes_ref<'a>(buffer: *const c_void, count: usize) -> Answer<&'a [u8]> {
    let (start, count) = extent(buffer, count)?;
    let there = door::there(buffer.addr(), count);
    // SAFETY: the caller's contract.
    Ok(unsafe { core::slice::from_raw_parts(start.as_ptr(), there) })
}

/// What the kernel moves at most in one call (`MAX_RW_COUNT`).
pub(crate) const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// A file offset argument.
#[inline(always)]
pub(crate) fn offset(value: i64) -> Answer<u64> {
    if value < 0 { fail(libc::EINVAL) } else { Ok(value as u64) }
}

/// `SEEK_*` as the file system has it.
pub(crate) fn whence(value: c_int) -> Answer<Whence> {
    match value {
        libc::SEEK_SET => Ok(Whence::Set),
        libc::SEEK_CUR => Ok(Whence::Current),
        libc::SEEK_END => Ok(Whence::End),
        libc::SEEK_DATA => Ok(Whence::Data),
        libc::SEEK_HOLE => Ok(Whence::Hole),
        _ => fail(libc::EINVAL),
    }
}
