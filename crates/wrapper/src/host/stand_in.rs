//! Descriptors of the host's that we hand to the kernel in the place of ours: made when one is first needed, and kept.

use crate::edge::{Answer, caught, host};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_sys::QuietFd;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A descriptor with the number of the process that made it: a child has its own, whether it closed its parent's (fork)
/// or shares our memory and not our descriptors (clone with CLONE_VM).
struct StandIn(AtomicU64);

/// A process in the upper half, a descriptor in the lower one. No process is 0.
const PROCESS_SHIFT: u32 = 32;

impl StandIn {
    const fn none() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The descriptor, which `make` makes where this process has none yet.
    ///
    /// # Errors
    /// Those of `make`.
    fn get(&self, make: impl FnOnce() -> isize) -> Answer<c_int> {
        let process = sys!(SYS_getpid) as u64;
        let of_process = |word: u64| (word >> PROCESS_SHIFT == process).then_some(word as u32 as c_int);
        let mut known = self.0.load(Ordering::Acquire);
        if let Some(fd) = of_process(known) {
            return Ok(fd);
        }
        caught(|| {
            // SAFETY: the kernel's answer to a call that makes a descriptor, which nobody else knows.
            let made = QuietFd::new(unsafe { OwnedFd::from_raw_fd(host(make())? as c_int) });
            let word = process << PROCESS_SHIFT | made.as_raw_fd() as u64;
            while let Err(other) = self.0.compare_exchange(known, word, Ordering::AcqRel, Ordering::Acquire) {
                // Another thread was faster, or another process that shares our memory.
                if let Some(fd) = of_process(other) {
                    return Ok(fd);
                }
                known = other;
            }
            let fd = made.as_raw_fd();
            core::mem::forget(made);
            Ok(fd)
        })
    }
}

static NULL: StandIn = StandIn::none();
static FILE: StandIn = StandIn::none();

/// `/dev/null`, to be written to.
///
/// # Errors
/// The host's.
pub(crate) fn null() -> Answer<c_int> {
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    NULL.get(|| sys!(SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), flags, 0))
}

/// A file, in which nothing is.
///
/// # Errors
/// The host's.
pub(crate) fn file() -> Answer<c_int> {
    FILE.get(|| sys!(SYS_memfd_create, c"nvmed-file".as_ptr(), libc::MFD_CLOEXEC))
}
