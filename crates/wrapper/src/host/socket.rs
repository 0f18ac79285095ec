//! Sockets named by a path of ours: the name is our inode, the socket the program's own. The host binds it to a name
//! that is removed at once, and a process that may write to our inode can connect to the socket.

use crate::calls::terminal::or_stand_in;
use crate::edge::{Answer, Fail, Reply, errno_of, fail, finish, given, host, inside, reply};
use crate::find::backend::Node;
use crate::find::credentials;
use crate::find::magic_link::MagicLink;
use crate::find::route::{FsPath, Route, Touch, answer_on_path};
use crate::find::setting;
use crate::find::walk::Last;
use crate::host::address::{self, Address};
use crate::host::end;
use core::ffi::{CStr, c_int, c_void};
use core::mem::{MaybeUninit, size_of};
use libc::{size_t, sockaddr, socklen_t, ssize_t};
use nvmed_fs::{Follow, OpenFlags};
use nvmed_sys::{Nursery, QuietFd};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::Mode;

/// Makes a call with an address; if it is a path of ours, with one by which the kernel finds the socket.
///
/// # Safety
/// The address is the program's.
pub(crate) unsafe fn to<R: Reply>(
    address: *const sockaddr,
    len: socklen_t,
    call: impl Fn(*const sockaddr, socklen_t) -> isize,
) -> R {
    let path = setting::setting().and_then(|_| address::path(address, len));
    let Some(path) = path else { return reply(call(address, len)) };
    let touch = Touch::Look(Last::Follow);
    let answer = answer_on_path(libc::AT_FDCWD, path.as_ptr(), touch, &mut |route| match route {
        Route::Host { path, .. } => {
            // SAFETY: a C string of ours.
            let path = unsafe { CStr::from_ptr(path) };
            if address::is(address, len, path) {
                return host(call(address, len));
            }
            let found = Address::of(path.to_bytes()).ok_or(Fail::Errno(libc::ENAMETOOLONG))?;
            host(call(found.as_ptr(), found.len()))
        }
        Route::Ours(ours) => {
            let end = match behind(&ours) {
                Ok(end) => end,
                Err(failure) => return unless_no_socket(failure, &call),
            };
            let path = MagicLink::of(end.as_raw_fd());
            let found = Address::of(path.to_bytes()).ok_or(Fail::Errno(libc::ENAMETOOLONG))?;
            end::known(inside::outside(|| call(found.as_ptr(), found.len())))
        }
    });
    finish(answer)
}

/// Why a call with an address fails: that its descriptor is no socket of the kind comes first, as a call with an
/// address where nothing is tells.
fn unless_no_socket(failure: Fail, call: &impl Fn(*const sockaddr, socklen_t) -> isize) -> Answer {
    let nothing = Address::of(MagicLink::of(-1).to_bytes()).ok_or(Fail::Errno(libc::ENAMETOOLONG))?;
    match call(nothing.as_ptr(), nothing.len()) {
        answer if answer == -libc::ENOENT as isize => Err(failure),
        answer => host(answer),
    }
}

/// The socket that was bound to a path.
fn behind(ours: &FsPath<'_>) -> Answer<QuietFd> {
    let node = ours.node(Follow::Yes)?;
    Ok(ours.files.connect(&node, &ours.who())?)
}

/// The mode of a descriptor that is a socket of this family; the kernel refuses others itself.
fn mode_of(fd: c_int) -> Option<u32> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    let (mut domain, mut bytes) = (0 as c_int, size_of::<c_int>() as socklen_t);
    if sys!(SYS_fstat, fd, status.as_mut_ptr()) < 0 {
        return None;
    }
    let asked = sys!(SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_DOMAIN, &raw mut domain, &raw mut bytes);
    // SAFETY: the kernel filled it.
    (asked >= 0 && domain == libc::AF_UNIX).then(|| unsafe { status.assume_init() }.st_mode)
}

/// The name first, as the kernel does: who finds it meanwhile is refused.
fn bind_ours(fd: c_int, mode: u32, path: &CStr, ours: &FsPath<'_>) -> Answer {
    let mode = libc::S_IFSOCK | credentials::masked(mode) & 0o777;
    if ours.is_root() {
        return fail(libc::EADDRINUSE);
    }
    let made = ours.files.mknod(&ours.at, ours.path(), mode, 0, &ours.who()).map_err(Fail::from);
    made.map_err(|failure| match errno_of(&failure) {
        libc::EEXIST => Fail::Errno(libc::EADDRINUSE),
        _ => failure,
    })?;
    let (node, ino) = just_made(mode, ours)?;
    let bound = on_host(fd, path).and_then(|end| Ok(ours.files.bind(&node, end, &ours.who())?));
    if bound.is_err() {
        // While its node is held, no other file gets its number.
        let there = ours.files.stat(&ours.at, ours.path(), Follow::No, &ours.who());
        if there.is_ok_and(|status| status.ino == ino) {
            let _ = ours.files.unlink(&ours.at, ours.path(), &ours.who());
        }
    }
    bound.map(|()| 0)
}

/// The socket that was just made, and its inode number. What another process has put in its place meanwhile is not
/// bound to: whose it is would decide who gets there.
fn just_made(mode: u32, ours: &FsPath<'_>) -> Answer<(Node, u64)> {
    let node = ours.files.lookup(&ours.at, ours.path(), Follow::No, &ours.who())?;
    let status = node.stat()?;
    let is_own = || status.uid == ours.who().uid || whose_here(ours) == Some(status.uid);
    let is_it = status.mode == mode && status.nlink == 1 && is_own();
    if is_it { Ok((node, status.ino)) } else { fail(libc::EADDRINUSE) }
}

/// The owner of files that this process makes in the directory of a path: in a user namespace of its own a server knows
/// it by another number.
fn whose_here(ours: &FsPath<'_>) -> Option<u32> {
    let path = ours.path();
    let above = path.iter().rposition(|&byte| byte == b'/').map_or(&b"."[..], |slash| &path[..=slash]);
    let flags = OpenFlags((libc::O_TMPFILE | libc::O_WRONLY) as u32);
    let file = ours.files.open(&ours.at, above, flags, 0, &ours.who()).ok()?;
    file.stat().ok().map(|status| status.uid)
}

/// Binds a socket to a name of the host's that is gone at once: the descriptor that names it.
fn on_host(fd: c_int, path: &CStr) -> Answer<OwnedFd> {
    let nursery = Nursery::make()?;
    let directory = nursery.as_fd().as_raw_fd();
    let (address, name) =
        Address::to_bind(directory, path.to_bytes()).ok_or(Fail::Errno(libc::ENAMETOOLONG))?;
    end::known(sys!(SYS_bind, fd, address.as_ptr(), address.len()))?;
    Ok(nursery.take(&name, Mode::RWXU | Mode::RWXG | Mode::RWXO)?)
}

hook! {
    /// bind(2)
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        let fd = or_stand_in(fd);
        let path = setting::setting().and_then(|_| address::path(address, len));
        let call = || sys!(SYS_bind, fd, address, len);
        let Some((path, mode)) = path.and_then(|path| Some((path, mode_of(fd)?))) else { return reply(call()) };
        let touch = Touch::Change(Last::Keep);
        finish(answer_on_path(libc::AT_FDCWD, path.as_ptr(), touch, &mut |route| match route {
            Route::Host { path: found, .. } if !address::is(address, len, CStr::from_ptr(found)) => {
                let found = Address::of(CStr::from_ptr(found).to_bytes());
                let found = found.ok_or(Fail::Errno(libc::ENAMETOOLONG))?;
                host(sys!(SYS_bind, fd, found.as_ptr(), found.len()))
            }
            Route::Host { .. } => host(call()),
            Route::Ours(ours) => bind_ours(fd, mode, &path, &ours),
        }))
    }
}

hook! {
    /// connect(2)
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        let fd = or_stand_in(fd);
        to(address, len, |address, len| sys!(SYS_connect, fd, address, len))
    }
}

hook! {
    /// sendto(2): `gate` leads past it what is sent to no path
    fn sendto(
        fd: c_int, bytes: *const c_void, count: size_t, flags: c_int, address: *const sockaddr, len: socklen_t,
    ) -> ssize_t {
        let fd = or_stand_in(fd);
        to(address, len, |address, len| sys!(SYS_sendto, fd, bytes, count, flags, address, len))
    }
}

/// Asks the kernel for an address of a socket, and tells the path that a program bound.
unsafe fn asked(address: *mut sockaddr, len: *mut socklen_t, call: impl FnOnce() -> isize) -> c_int {
    let room = room(len);
    let answer = call();
    if !address.is_null() {
        // SAFETY: the kernel has filled both, unless it refused.
        unsafe { told(address, room, len, answer as c_int) };
    }
    reply(answer)
}

/// The room that a program says it has for an address; what it cannot say the kernel refuses.
pub(crate) extern "C" fn room(len: *const socklen_t) -> socklen_t {
    given::get(len).unwrap_or(0)
}

/// After a call of libc's that answered an address, for which there was so much room: the path that a program bound.
///
/// # Safety
/// libc has filled both, unless the answer is negative.
pub(crate) unsafe extern "C" fn told(
    address: *mut sockaddr,
    room: socklen_t,
    len: *mut socklen_t,
    answer: c_int,
) {
    if answer >= 0 && setting::setting().is_some() {
        // SAFETY: the caller's contract.
        unsafe { address::tell(address, room, len) };
    }
}

hook! {
    /// getsockname(2)
    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let fd = or_stand_in(fd);
        asked(address, len, || sys!(SYS_getsockname, fd, address, len))
    }
}

hook! {
    /// getpeername(2)
    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let fd = or_stand_in(fd);
        asked(address, len, || sys!(SYS_getpeername, fd, address, len))
    }
}

/// What the gates ask: whether a call names a path, or a descriptor of ours.
pub(crate) mod looks {
    use crate::find::{setting, table};
    use crate::host::address;
    use core::ffi::{c_int, c_void};
    use libc::{size_t, sockaddr, socklen_t};

    /// Whether an address may be a path of ours.
    pub(crate) fn is_path(address: *const sockaddr, len: socklen_t) -> bool {
        !address.is_null() && setting::setting().is_some() && address::is_path(address, len)
    }

    pub(crate) unsafe extern "C" fn sendto(
        fd: c_int,
        _bytes: *const c_void,
        _count: size_t,
        _flags: c_int,
        address: *const sockaddr,
        len: socklen_t,
    ) -> bool {
        table::is_ours(fd) || is_path(address, len)
    }
}
