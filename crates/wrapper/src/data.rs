//! read, write and their kin: the hot path. A lookup, a pin, the file system's own copy.

use crate::descriptor::on_descriptor;
use crate::edge::{bytes_mut, bytes_ref, offset, within};
use core::ffi::{c_int, c_void};
use libc::{off_t, size_t, ssize_t};

hook! {
    /// read(2)
    inner fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_read, fd, buffer, count), |body| {
            Ok(body.file()?.read(bytes_mut(buffer, count)?)? as isize)
        })
    }
}

hook! {
    /// write(2)
    inner fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_write, fd, buffer, count), |body| {
            Ok(body.file()?.write(bytes_ref(buffer, count)?)? as isize)
        })
    }
}

hook! {
    /// pread(2)
    inner fn pread(fd: c_int, buffer: *mut c_void, count: size_t, at: off_t) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_pread64, fd, buffer, count, at), |body| {
            let start = offset(at)?;
            Ok(body.file()?.pread(bytes_mut(buffer, count)?, within(start, count)?)? as isize)
        })
    }
}

hook! {
    /// pwrite(2)
    inner fn pwrite(fd: c_int, buffer: *const c_void, count: size_t, at: off_t) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_pwrite64, fd, buffer, count, at), |body| {
            let start = offset(at)?;
            Ok(body.file()?.pwrite(bytes_ref(buffer, count)?, within(start, count)?)? as isize)
        })
    }
}

/// What glibc does when a program asks for more than its buffer holds.
pub(crate) extern "C" fn overflow() -> ! {
    crate::raw::say(format_args!("buffer overflow detected: terminated"));
    // SAFETY: abort takes nothing and does not return.
    unsafe { libc::abort() }
}

hook! {
    /// read(2), as compiled with _FORTIFY_SOURCE
    inner fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t) -> ssize_t {
        if count > size {
            overflow();
        }
        read(fd, buffer, count)
    }
}

hook! {
    /// pread(2), as compiled with _FORTIFY_SOURCE
    inner fn __pread_chk(fd: c_int, buffer: *mut c_void, count: size_t, at: off_t, size: size_t) -> ssize_t {
        if count > size {
            overflow();
        }
        pread(fd, buffer, count, at)
    }
}

hook! {
    /// lseek(2)
    inner fn lseek(fd: c_int, by: off_t, whence: c_int) -> off_t {
        on_descriptor(fd, || sys!(SYS_lseek, fd, by, whence), |body| {
            Ok(body.file()?.seek(by, crate::extent::whence(whence)?)? as isize)
        })
    }
}
