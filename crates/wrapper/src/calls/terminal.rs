//! Calls on terminals and sockets that a program makes on descriptors of ours, which are neither. libc's function runs
//! on a regular file of the host instead, which is neither too: so libc and the kernel check the arguments in their own
//! order, and the program gets their errors. Descriptors of the host never come here: `gate` leads them past.
//!
//! On the placeholder itself, which is the inode of a socket, the kernel would answer as for a socket, or EBADF.

use crate::find::table;
use crate::host::stand_in;
use crate::raw;
use core::ffi::c_int;

/// The number that libc and the kernel are told in the place of one of ours: for `O_PATH` the placeholder, which is
/// that too. So it is where there is no file, or the process may not use ours.
pub(crate) extern "C" fn stand_in(fd: c_int) -> c_int {
    if is_open(fd) { stand_in::file().unwrap_or(fd) } else { fd }
}

/// The same for any descriptor: the host's are themselves.
pub(crate) fn or_stand_in(fd: c_int) -> c_int {
    if table::is_ours(fd) { stand_in(fd) } else { fd }
}

/// Whether a descriptor of ours is of an open file, and not `O_PATH`.
fn is_open(fd: c_int) -> bool {
    table::pin(fd).is_ok_and(|body| body.file.is_some())
}

/// isatty(3): asked of each file that a program opens, so it is answered without the kernel.
pub(crate) extern "C" fn isatty(fd: c_int) -> c_int {
    raw::set_errno(if is_open(fd) { libc::ENOTTY } else { libc::EBADF });
    0
}

/// isfdtype(3)
pub(crate) extern "C" fn isfdtype(fd: c_int, kind: c_int) -> c_int {
    // SAFETY: a struct of integers, and its address.
    unsafe {
        let mut status: libc::stat = core::mem::zeroed();
        match crate::calls::stat::fstat(fd, &raw mut status) {
            0 => c_int::from(status.st_mode & libc::S_IFMT == kind as libc::mode_t),
            failed => failed,
        }
    }
}
