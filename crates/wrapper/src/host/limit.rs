//! `RLIMIT_FSIZE`: how large the program lets files become. The kernel compares where it writes; for ours we do.
//!
//! Known from the start and from the program's own calls. A limit that another process sets (prlimit(2)) is not seen.

use crate::edge::reply;
use core::ffi::{c_int, c_long, c_uint};
use core::sync::atomic::{AtomicU64, Ordering};
use libc::{pid_t, rlimit};
use nvmed_fs::FsError;
use rustix::io::Errno;

/// Bytes of a file at most; all ones is no limit, as the kernel has it.
static FILE_BYTES_MAX: AtomicU64 = AtomicU64::new(u64::MAX);

/// Asks the kernel.
pub(crate) fn learn() {
    let mut now = rlimit { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let none: *const rlimit = core::ptr::null();
    sys!(SYS_prlimit64, 0, libc::RLIMIT_FSIZE, none, &raw mut now);
    FILE_BYTES_MAX.store(now.rlim_cur, Ordering::Relaxed);
}

/// How many descriptors the process may have (`RLIMIT_NOFILE`), now.
pub(crate) fn descriptors() -> u64 {
    let mut now = rlimit { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let none: *const rlimit = core::ptr::null();
    sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, none, &raw mut now);
    now.rlim_cur
}

/// The limit, if there is one.
#[inline(always)]
pub(crate) fn limit() -> Option<u64> {
    Some(FILE_BYTES_MAX.load(Ordering::Relaxed)).filter(|&limit| limit != u64::MAX)
}

/// What of `from` may be written at the offset that `at` answers, which is asked only under a limit.
///
/// # Errors
/// `EFBIG` at or behind the limit, with SIGXFSZ; what `at` answers.
#[inline(always)]
pub(crate) fn within(from: &[u8], at: impl FnOnce() -> Result<u64, FsError>) -> Result<&[u8], FsError> {
    match limit() {
        Some(limit) if !from.is_empty() => cut(from, at()?, limit),
        _ => Ok(from),
    }
}

#[cold]
fn cut(from: &[u8], at: u64, limit: u64) -> Result<&[u8], FsError> {
    if at >= limit {
        return Err(exceeded());
    }
    let room = usize::try_from(limit - at).unwrap_or(usize::MAX);
    Ok(&from[..from.len().min(room)])
}

/// Whether a file may get this size; what it has, `now`, is asked only where that matters.
///
/// # Errors
/// `EFBIG` where it would grow beyond the limit, with SIGXFSZ; what `now` answers.
#[inline]
pub(crate) fn may_have(bytes: u64, now: impl FnOnce() -> Result<u64, FsError>) -> Result<(), FsError> {
    match limit() {
        Some(limit) if bytes > limit && bytes > now()? => Err(exceeded()),
        _ => Ok(()),
    }
}

/// The signal waits until the thread has left the file system, if the program handles it.
#[cold]
fn exceeded() -> FsError {
    sys!(SYS_tgkill, sys!(SYS_getpid), sys!(SYS_gettid), libc::SIGXFSZ);
    FsError::Host(Errno::FBIG)
}

/// Looks again after a call that may have set a limit; answers what the kernel answered.
pub(crate) fn after(resource: usize, answer: isize) -> isize {
    if answer >= 0 && resource == libc::RLIMIT_FSIZE as usize {
        learn();
    }
    answer
}

hook! {
    /// setrlimit(2)
    fn setrlimit(resource: c_uint, new: *const rlimit) -> c_int {
        reply(after(resource as usize, sys!(SYS_setrlimit, resource, new)))
    }
}

hook! {
    /// prlimit(2)
    fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        reply(after(resource as usize, sys!(SYS_prlimit64, pid, resource, new, old)))
    }
}

hook! {
    /// ulimit(3): variadic in C; what is not passed is not looked at
    fn ulimit(command: c_int, value: c_long) -> c_long, next libc_ulimit {
        let answer = libc_ulimit(command, value);
        learn();
        answer
    }
}
