//! ioctl(2), by the kernel itself: libc's may be somebody's who stands between.

use core::ffi::{c_int, c_void};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::ioctl::{IoctlOutput, Opcode};

/// A call with a number or a pointer, which answers a number.
struct Call {
    opcode: Opcode,
    argument: *mut c_void,
}

// SAFETY: both are handed on as they are, and the answer is the return value alone. Whether the argument fits the
// opcode is the duty of each caller of `ioctl`.
unsafe impl rustix::ioctl::Ioctl for Call {
    type Output = c_int;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<c_int> {
        Ok(out)
    }
}

/// Makes a call with a number or a pointer as its argument.
///
/// # Errors
/// What the kernel answers.
///
/// # Safety
/// `argument` is what the kernel takes for `opcode` on this descriptor: a number, or a pointer to memory that it may
/// read and write as far as the call does.
pub unsafe fn ioctl(fd: BorrowedFd<'_>, opcode: Opcode, argument: *mut c_void) -> Result<c_int, Errno> {
    // SAFETY: the caller's promise.
    unsafe { rustix::ioctl::ioctl(fd, Call { opcode, argument }) }
}
