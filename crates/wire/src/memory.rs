//! Memory files that two processes have.

use core::time::Duration;
use nvmed_sys::{Mapping, QuietFd};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

/// The host's form of a duration.
pub(crate) fn timespec(span: Duration) -> Timespec {
    let tv_sec = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(span.subsec_nanos()) }
}

/// Processors that this thread may run on.
pub(crate) fn processors() -> u32 {
    rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count())
}

/// Refuses a descriptor whose file is shorter than what is to be mapped: its end would be a SIGBUS.
///
/// # Errors
/// `EINVAL`; what `fstat` answers.
pub(crate) fn check_bytes(fd: BorrowedFd<'_>, bytes: usize) -> Result<(), Errno> {
    let there = rustix::fs::fstat(fd)?.st_size;
    if u64::try_from(there).is_ok_and(|there| there >= bytes as u64) { Ok(()) } else { Err(Errno::INVAL) }
}

/// A descriptor of a mapping's memory that cannot be written through, and that only a process of the server's user
/// could open again for writing.
///
/// # Errors
/// What the host answers; `EINVAL` for memory that has no file.
pub(crate) fn read_only(memory: &Mapping) -> Result<QuietFd, Errno> {
    let (fd, _) = memory.backing().ok_or(Errno::INVAL)?;
    rustix::fs::fchmod(fd, Mode::RUSR)?;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(QuietFd::new)
}
