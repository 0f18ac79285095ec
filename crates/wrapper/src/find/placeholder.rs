//! What the kernel has in place of our files: an `O_PATH` descriptor of an unlinked socket inode, and duplicates of it.

use crate::edge::{Answer, host};
use crate::find::walk::c_path;
use core::ffi::c_int;
use nvmed_sys::QuietFd;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// The descriptor of which all placeholders are duplicates; made at the first mount.
static ORIGINAL: OnceLock<QuietFd> = OnceLock::new();
/// Where the socket inode may be made, the first that takes it.
const PLACES: [&str; 4] = ["/dev/shm", "/tmp", "/var/tmp", "."];

/// Makes the placeholder, once.
///
/// # Errors
/// The host's errno when it has no descriptor left.
pub(crate) fn prepare() -> Answer<()> {
    if ORIGINAL.get().is_none() {
        let low = PLACES.iter().find_map(|place| socket_inode(place)).map_or_else(any_inode, Ok)?;
        // SAFETY: opened just above, and nobody else knows the number.
        let fd = QuietFd::new(unsafe { OwnedFd::from_raw_fd(low) });
        // One thread mounts; a second value could only be dropped.
        let _ = ORIGINAL.set(fd);
    }
    Ok(())
}

/// The descriptor itself; -1 before it is made.
pub(crate) fn original() -> c_int {
    ORIGINAL.get().map_or(-1, AsRawFd::as_raw_fd)
}

fn socket_inode(place: &str) -> Option<c_int> {
    let pid = sys!(SYS_getpid);
    let path = c_path(format!("{place}/.nvmed-{pid}-{:x}", unique()).as_bytes())?;
    if sys!(SYS_mknodat, libc::AT_FDCWD, path.as_ptr(), libc::S_IFSOCK | 0o600, 0) < 0 {
        return None;
    }
    let flags = libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let fd = sys!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0);
    sys!(SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0);
    (fd >= 0).then_some(fd as c_int)
}

/// Where no socket can be made: the host's root directory, which no data call takes either.
fn any_inode() -> Answer<c_int> {
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    host(sys!(SYS_openat, libc::AT_FDCWD, c"/".as_ptr(), flags, 0)).map(|fd| fd as c_int)
}

/// Bits that differ between two processes with the same number in two containers.
fn unique() -> u64 {
    let mut bits = 0u64;
    sys!(SYS_getrandom, &raw mut bits, 8usize, 0);
    bits
}

/// Whether it was made.
pub(crate) fn is_there() -> bool {
    ORIGINAL.get().is_some()
}
