//! Time, and sleeping on words that two processes have until the other one changes them.

use crate::memory::timespec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use rustix::io::Errno;
use rustix::thread::futex::{self, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::ClockId;

/// How long a wait on one word lasts, before one on two or instead of it (before Linux 5.16).
pub(crate) const ALONE: Duration = Duration::from_millis(20);

/// Nanoseconds of the monotonic clock; costs no system call.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sleeps until `word` is no longer `seen` and [`wake`] is called, or `timeout` is over; it may also end for no reason.
///
/// # Errors
/// What the kernel answers, `TIMEDOUT` and `INTR` among it.
#[inline]
pub(crate) fn sleep(word: &AtomicU32, seen: u32, timeout: Duration) -> Result<(), Errno> {
    futex::wait(word, futex::Flags::empty(), seen, Some(&timespec(timeout)))
}

/// Wakes so many at most who sleep on a word.
#[inline]
pub(crate) fn wake(word: &AtomicU32, most: u32) {
    // It fails only for memory that is not there.
    let _ = futex::wake(word, futex::Flags::empty(), most);
}

/// Wakes all who sleep on a word.
#[inline]
pub(crate) fn wake_all(word: &AtomicU32) {
    wake(word, i32::MAX as u32);
}

/// Waits until `word` is no longer `seen`, a signal comes, or [`ALONE`] is over; it may also end for no reason.
pub(crate) fn wait(word: &AtomicU32, seen: u32) {
    let _ = sleep(word, seen, ALONE);
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
