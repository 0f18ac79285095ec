//! Memory files that two processes have, and waiting on words in them.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use nvmed_sys::{Mapping, QuietFd};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::futex::{self, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::{ClockId, Timespec};

/// How long a wait on one word lasts, before one on two or instead of it (before Linux 5.16).
pub(crate) const ALONE: Duration = Duration::from_millis(20);

/// The host's form of a duration.
pub(crate) fn timespec(span: Duration) -> Timespec {
    let tv_sec = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(span.subsec_nanos()) }
}

/// Nanoseconds of the monotonic clock; costs no system call.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
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

/// Waits until `word` is no longer `seen`, a signal comes, or [`ALONE`] is over; it may also end for no reason.
pub(crate) fn wait(word: &AtomicU32, seen: u32) {
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timespec(ALONE)));
}

/// As [`wait`], also until `other` is no longer `other_seen`, and until `timeout` is over. It costs more: a word in
/// memory that this process only reads is looked up twice.
pub(crate) fn wait_either(
    word: &AtomicU32,
    seen: u32,
    other: &AtomicU32,
    other_seen: u32,
    timeout: Duration,
) {
    /// Whether the kernel has no call for two words.
    static ONE_ONLY: AtomicBool = AtomicBool::new(false);
    if !ONE_ONLY.load(Ordering::Relaxed) {
        match wait_two(word, seen, other, other_seen, timeout) {
            Err(Errno::NOSYS) => ONE_ONLY.store(true, Ordering::Relaxed),
            _ => return,
        }
    }
    wait(word, seen);
}

fn wait_two(
    word: &AtomicU32,
    seen: u32,
    other: &AtomicU32,
    other_seen: u32,
    timeout: Duration,
) -> Result<usize, Errno> {
    let one = |word: &AtomicU32, seen: u32| {
        let mut wait = futex::Wait::new();
        wait.val = u64::from(seen);
        wait.uaddr = WaitPtr::new(word.as_ptr().cast());
        wait.flags = WaitFlags::SIZE_U32;
        wait
    };
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let mut end = timespec(timeout);
    end.tv_sec = end.tv_sec.saturating_add(now.tv_sec);
    end.tv_nsec += now.tv_nsec;
    if end.tv_nsec >= 1_000_000_000 {
        end.tv_nsec -= 1_000_000_000;
        end.tv_sec = end.tv_sec.saturating_add(1);
    }
    let waits = [one(word, seen), one(other, other_seen)];
    futex::waitv(&waits, WaitvFlags::empty(), Some(&end), ClockId::Monotonic)
}
