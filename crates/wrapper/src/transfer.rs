//! Copies inside the kernel, which has no data of ours: each fails as between two file systems that
//! cannot do it, so that callers fall back to read and write.

use crate::edge::{fail, finish, reply};
use crate::table::is_ours;
use core::ffi::{c_int, c_uint};
use libc::{iovec, off_t, off64_t, size_t, ssize_t};

hook! {
    /// copy_file_range(2)
    fn copy_file_range(
        from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, count: size_t, flags: c_uint,
    ) -> ssize_t {
        if is_ours(from) || is_ours(to) {
            return finish(fail(libc::EXDEV));
        }
        reply(sys!(SYS_copy_file_range, from, from_at, to, to_at, count, flags))
    }
}

hook! {
    /// sendfile(2)
    fn sendfile(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t, as [sendfile64] {
        if is_ours(from) || is_ours(to) {
            return finish(fail(libc::EINVAL));
        }
        reply(sys!(SYS_sendfile, to, from, at, count))
    }
}

hook! {
    /// splice(2)
    fn splice(
        from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, count: size_t, flags: c_uint,
    ) -> ssize_t {
        if is_ours(from) || is_ours(to) {
            return finish(fail(libc::EINVAL));
        }
        reply(sys!(SYS_splice, from, from_at, to, to_at, count, flags))
    }
}

hook! {
    /// tee(2)
    fn tee(from: c_int, to: c_int, count: size_t, flags: c_uint) -> ssize_t {
        if is_ours(from) || is_ours(to) {
            return finish(fail(libc::EINVAL));
        }
        reply(sys!(SYS_tee, from, to, count, flags))
    }
}

hook! {
    /// vmsplice(2)
    fn vmsplice(fd: c_int, vectors: *const iovec, count: size_t, flags: c_uint) -> ssize_t {
        if is_ours(fd) {
            return finish(fail(libc::EBADF));
        }
        reply(sys!(SYS_vmsplice, fd, vectors, count, flags))
    }
}
