//! What is asked of terminals and sockets, for descriptors of ours, which are neither. Only ours come here:
//! `gate` leads the others past.
//!
//! The kernel would look at the placeholder, which is the inode of a socket, and say so, or EBADF.

use crate::raw;
use core::ffi::{c_char, c_int};
use libc::ssize_t;

macro_rules! no_terminal {
    ($($name:ident)*) => { $(
        /// A call on a terminal: `ENOTTY`.
        pub(crate) extern "C" fn $name(_fd: c_int) -> c_int {
            raw::set_errno(libc::ENOTTY);
            -1
        }
    )* };
}
no_terminal! {
    tcdrain tcflow tcflush tcgetattr tcsetattr tcgetpgrp tcsetpgrp tcgetsid tcsendbreak grantpt unlockpt
}

/// isatty(3)
pub(crate) extern "C" fn isatty(_fd: c_int) -> c_int {
    raw::set_errno(libc::ENOTTY);
    0
}

/// ttyname(3), and ptsname(3)
pub(crate) extern "C" fn ttyname(_fd: c_int) -> *mut c_char {
    raw::set_errno(libc::ENOTTY);
    core::ptr::null_mut()
}

/// ttyname_r(3): answers the error itself; ptsname_r(3) does so too.
pub(crate) extern "C" fn ttyname_r(_fd: c_int) -> c_int {
    raw::set_errno(libc::ENOTTY);
    libc::ENOTTY
}

/// isfdtype(3)
pub(crate) extern "C" fn isfdtype(fd: c_int, kind: c_int) -> c_int {
    // SAFETY: a struct of integers, and its address.
    unsafe {
        let mut status: libc::stat = core::mem::zeroed();
        match crate::stat::fstat(fd, &raw mut status) {
            0 => c_int::from(status.st_mode & libc::S_IFMT == kind as libc::mode_t),
            failed => failed,
        }
    }
}

/// A call on a socket: `ENOTSOCK`, on which programs fall back to `read` and `write`.
pub(crate) extern "C" fn socket_int(_fd: c_int) -> c_int {
    raw::set_errno(libc::ENOTSOCK);
    -1
}

/// A call on a socket that counts bytes.
pub(crate) extern "C" fn socket_size(_fd: c_int) -> ssize_t {
    raw::set_errno(libc::ENOTSOCK);
    -1
}
