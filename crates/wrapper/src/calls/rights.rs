//! Descriptors in messages (SCM_RIGHTS): one of ours goes as a token, which the receiver's wrapper exchanges for a
//! placeholder.

use crate::calls::descriptor;
use crate::edge::{Answer, Fail, caught, fail, finish, given, reply, words_of};
use crate::find::{mount, setting, table};
use crate::host::socket;
use crate::raw;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};
use libc::{cmsghdr, mmsghdr, msghdr, ssize_t, timespec};
use nvmed_client::Token;
use nvmed_sys::{door, is_quiet};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// A descriptor in a message.
const NUMBER_BYTES: usize = size_of::<c_int>();
/// Where the data of a control message begin, and its header's size (`CMSG_LEN(0)`).
const HEADER_BYTES: usize = size_of::<cmsghdr>();
const _: () = assert!(offset_of!(mmsghdr, msg_hdr) == 0, "one of several is a message, and its length");
/// What the kernel sends or receives in one call (`UIO_MAXIOV`).
const MESSAGES_MAX: c_uint = 1024;
/// `SCM_MAX_FD` of the kernel.
const DESCRIPTORS_MAX: usize = 253;
/// Control data of one message, in bytes: eight times what the kernel takes (`net.core.optmem_max`, 128 KiB) unless
/// somebody has raised it.
const CONTROL_BYTES_MAX: usize = 1 << 20;

/// Where descriptors lie in the control messages of `control`, which holds `bytes` bytes, as far as it is there.
fn descriptors(control: *mut c_void, bytes: usize) -> impl Iterator<Item = *mut c_int> {
    let start = control.cast::<u8>();
    let mut at = if control.is_null() { bytes } else { 0 };
    let mut rest = (0usize, 0usize);
    core::iter::from_fn(move || {
        loop {
            let (from, count) = rest;
            if count > 0 {
                rest = (from + NUMBER_BYTES, count - 1);
                return Some(start.wrapping_add(from).cast());
            }
            if at.checked_add(HEADER_BYTES)? > bytes {
                return None;
            }
            let header = given::get(start.wrapping_add(at).cast::<cmsghdr>()).ok()?;
            let len = header.cmsg_len;
            if len < HEADER_BYTES || len > bytes - at {
                return None;
            }
            if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
                rest = (at + HEADER_BYTES, (len - HEADER_BYTES) / NUMBER_BYTES);
            }
            at = at.checked_add(len.checked_next_multiple_of(size_of::<usize>())?)?;
        }
    })
}

/// Whether a message names a descriptor that is ours, or the stack's. Control data of a length that the kernel refuses
/// unseen (more than `INT_MAX`, `ENOBUFS`) are not looked at.
fn has_ours(message: &msghdr) -> bool {
    message.msg_controllen <= c_int::MAX as usize
        && descriptors(message.msg_control, message.msg_controllen)
            .map_while(|at| given::get(at).ok())
            .any(|fd| table::is_ours(fd) || is_quiet(fd))
}

/// Whether a message goes to a path, or [`has_ours`]. One that is not there is the kernel's to refuse.
fn concerns_us(message: *const msghdr) -> bool {
    given::get(message).is_ok_and(|message| {
        socket::looks::is_path(message.msg_name.cast(), message.msg_namelen) || has_ours(&message)
    })
}

/// A message's control data with tokens in place of our descriptors.
struct Outgoing {
    /// In words, so that it is aligned as the program's.
    control: Vec<u64>,
    /// Open until the kernel has its own references.
    _tokens: Vec<OwnedFd>,
}

impl Outgoing {
    /// # Errors
    /// `ENOBUFS` for more control data than [`CONTROL_BYTES_MAX`], as the kernel says it; `EFAULT`; those of
    /// [`token_of`].
    fn new(message: &msghdr) -> Answer<Self> {
        let bytes = message.msg_controllen;
        if bytes > CONTROL_BYTES_MAX {
            return fail(libc::ENOBUFS);
        }
        let mut control = vec![0u64; bytes.div_ceil(size_of::<u64>())];
        let copy: *mut c_void = control.as_mut_ptr().cast();
        let mut tokens = Vec::new();
        // SAFETY: as much room of our own.
        if unsafe { door::copy(copy.cast(), message.msg_control.cast(), bytes) } < bytes {
            return fail(libc::EFAULT);
        }
        for at in descriptors(copy, bytes) {
            let fd = given::get(at)?;
            if is_quiet(fd) || tokens.len() > DESCRIPTORS_MAX {
                return fail(libc::EBADF);
            }
            if table::is_ours(fd) {
                let token = token_of(fd)?;
                // SAFETY: within our copy.
                unsafe { given::put(at, &token.as_raw_fd()) }?;
                tokens.push(token);
            }
        }
        Ok(Self { control, _tokens: tokens })
    }
}

/// What stands for a descriptor of ours on its way.
fn token_of(fd: c_int) -> Answer<OwnedFd> {
    let pinned = table::pin(fd)?;
    let Some((session, handle)) = mount::session().zip(pinned.node.handle()) else {
        raw::say(format_args!(
            "descriptor {fd} is a file of this process's private mount: it cannot be sent to another process (Bad \
             file descriptor)"
        ));
        return fail(libc::EBADF);
    };
    // From now on its offset is not this process's alone.
    if let Some(file) = &pinned.file {
        file.share();
    }
    Ok(session.send(handle)?)
}

/// Whether received descriptors may be tokens.
fn may_receive() -> bool {
    setting::is_shared()
}

/// What was received: tokens become placeholders. A message that is only looked at (`MSG_PEEK`) brings copies, which
/// are as good.
fn receive(message: *const msghdr) {
    let Ok(message) = given::get(message) else { return };
    let errno = raw::errno();
    for at in descriptors(message.msg_control, message.msg_controllen) {
        let Ok(fd) = given::get(at) else { break };
        // SAFETY: a descriptor that the kernel just made, which nobody else knows yet.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        if Token::of(borrowed).is_some()
            && let Err(failure) = caught(|| exchange(fd, borrowed))
        {
            raw::say(format_args!(
                "descriptor {fd} came in a message, and the server did not give its file to this process, so calls on \
                 it fail: {}",
                words_of(&failure)
            ));
        }
    }
    raw::set_errno(errno);
}

fn exchange(fd: c_int, token: BorrowedFd<'_>) -> Answer<()> {
    // This may be the first that the process has to do with the mount.
    mount::files()?;
    let session = mount::session().ok_or(Fail::Errno(libc::EIO))?;
    let held = session.receive(token)?;
    descriptor::exchange(fd, held.into())
}

/// One message of a call, as the program gave it, with tokens where that is needed.
struct Prepared {
    message: msghdr,
    _outgoing: Option<Outgoing>,
}

fn prepared(message: &msghdr) -> Answer<Prepared> {
    let mut copy = *message;
    let outgoing = if has_ours(message) { Some(Outgoing::new(message)?) } else { None };
    if let Some(outgoing) = &outgoing {
        copy.msg_control = outgoing.control.as_ptr().cast_mut().cast();
    }
    Ok(Prepared { message: copy, _outgoing: outgoing })
}

hook! {
    /// sendmsg(2): `gate` leads past it what has nothing of ours
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        if table::is_ours(fd) {
            return finish(fail(libc::ENOTSOCK));
        }
        let Ok(given) = given::get(message) else { return reply(sys!(SYS_sendmsg, fd, message, flags)) };
        match caught(|| prepared(&given)) {
            Ok(ready) => {
                socket::to(given.msg_name.cast(), given.msg_namelen, |address, len| {
                    let mut message = ready.message;
                    (message.msg_name, message.msg_namelen) = (address.cast_mut().cast(), len);
                    sys!(SYS_sendmsg, fd, &raw const message, flags)
                })
            }
            Err(failure) => finish(Err(failure)),
        }
    }
}

hook! {
    /// sendmmsg(2), as sendmsg: messages before one that cannot go are sent
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if table::is_ours(fd) {
            return finish(fail(libc::ENOTSOCK));
        }
        let mut sent = 0;
        while sent < count.min(MESSAGES_MAX) {
            let at = messages.wrapping_add(sent as usize);
            let answer = sendmsg(fd, at.cast(), flags);
            let length = at.wrapping_byte_add(offset_of!(mmsghdr, msg_len)).cast();
            if answer >= 0 && given::put(length, &(answer as c_uint)).is_err() {
                raw::set_errno(libc::EFAULT);
            } else if answer >= 0 {
                sent += 1;
                continue;
            }
            return if sent > 0 { sent as c_int } else { -1 };
        }
        sent as c_int
    }
}

/// Whether a message has room for a descriptor.
fn has_room(message: *const msghdr) -> bool {
    given::get(message).is_ok_and(|message| {
        !message.msg_control.is_null() && message.msg_controllen >= HEADER_BYTES + NUMBER_BYTES
    })
}

hook! {
    /// recvmsg(2): `gate` leads past it what has no room for descriptors
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        if table::is_ours(fd) {
            return finish(fail(libc::ENOTSOCK));
        }
        let answer = sys!(SYS_recvmsg, fd, message, flags);
        if answer >= 0 && may_receive() {
            receive(message);
        }
        reply(answer)
    }
}

hook! {
    /// recvmmsg(2), as recvmsg
    fn recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec,
    ) -> c_int {
        if table::is_ours(fd) {
            return finish(fail(libc::ENOTSOCK));
        }
        let answer = sys!(SYS_recvmmsg, fd, messages, count, flags, timeout);
        if answer > 0 && may_receive() {
            for at in 0..answer as usize {
                receive(messages.wrapping_add(at).cast());
            }
        }
        reply(answer)
    }
}

/// The questions of `gate`: whether a call has something of ours.
pub(crate) mod looks {
    use super::{MESSAGES_MAX, concerns_us, has_room, may_receive};
    use crate::find::table;
    use core::ffi::{c_int, c_uint};
    use libc::{mmsghdr, msghdr};

    pub(crate) unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr) -> bool {
        table::is_ours(fd) || concerns_us(message)
    }

    pub(crate) unsafe extern "C" fn sendmmsg(fd: c_int, messages: *const mmsghdr, count: c_uint) -> bool {
        let mut each = 0..count.min(MESSAGES_MAX) as usize;
        table::is_ours(fd) || each.any(|at| concerns_us(messages.wrapping_add(at).cast()))
    }

    pub(crate) unsafe extern "C" fn recvmsg(fd: c_int, message: *const msghdr) -> bool {
        table::is_ours(fd) || may_receive() && has_room(message)
    }

    pub(crate) unsafe extern "C" fn recvmmsg(fd: c_int, messages: *const mmsghdr, count: c_uint) -> bool {
        let mut each = 0..count.min(MESSAGES_MAX) as usize;
        table::is_ours(fd) || may_receive() && each.any(|at| has_room(messages.wrapping_add(at).cast()))
    }
}
