//! Sockets named by a path: there are none in our file system, and none may land in the host's directory
//! that `wrap_dir` hides.

use crate::edge::{Answer, fail, finish, host, reply};
use crate::mount;
use crate::place::{Place, Touch, answer_on_path};
use crate::stat;
use crate::walk::Last;
use core::ffi::c_int;
use core::mem::offset_of;
use libc::{sockaddr, sockaddr_un, socklen_t};
use nvmed_fs::Follow;
use std::ffi::CString;

/// The path in a socket address, if it has one: neither abstract nor of another family.
unsafe fn path(address: *const sockaddr, len: socklen_t) -> Option<CString> {
    let start = offset_of!(sockaddr_un, sun_path);
    let room = (len as usize).min(size_of::<sockaddr_un>()).checked_sub(start)?;
    // SAFETY: the program says that the address has `len` bytes.
    unsafe {
        if address.is_null() || c_int::from((*address).sa_family) != libc::AF_UNIX {
            return None;
        }
        let bytes = core::slice::from_raw_parts(address.byte_add(start).cast::<u8>(), room);
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(room);
        if end == 0 { None } else { CString::new(&bytes[..end]).ok() }
    }
}

/// Asks the kernel, unless the path is ours.
unsafe fn on_socket(
    address: *const sockaddr,
    len: socklen_t,
    touch: Touch,
    call: impl Fn() -> isize,
    ours: impl Fn(bool) -> c_int,
) -> c_int {
    // SAFETY: the program's address, under `edge`'s contract.
    let path = mount::setting().and_then(|_| unsafe { path(address, len) });
    let Some(path) = path else { return reply(call()) };
    let answer = answer_on_path(libc::AT_FDCWD, path.as_ptr(), touch, &mut |place| -> Answer {
        match place {
            Place::Host { .. } => host(call()),
            Place::Ours(spot) => fail(ours(stat::of(&spot, Follow::Yes).is_ok())),
        }
    });
    finish(answer)
}

hook! {
    /// bind(2): no sockets here, as mknod(2) says
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        on_socket(address, len, Touch::Change(Last::Keep), || sys!(SYS_bind, fd, address, len), |exists| {
            if exists { libc::EADDRINUSE } else { libc::EPERM }
        })
    }
}

hook! {
    /// connect(2): nobody listens here
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        on_socket(address, len, Touch::Look(Last::Follow), || sys!(SYS_connect, fd, address, len), |exists| {
            if exists { libc::ECONNREFUSED } else { libc::ENOENT }
        })
    }
}
