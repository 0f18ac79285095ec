//! Descriptor numbers: the kernel's placeholders for ours, and the calls that copy and close them.
//!
//! A placeholder is a duplicate of one `O_PATH` descriptor of an unlinked socket inode. Whatever slips
//! past the wrapper with it fails: data calls with EBADF, a second open through `/dev/fd` with ENXIO.

use crate::calls::fcntl;
use crate::edge::{self, Answer, Reply, guard, host, reply};
use crate::find::mount;
use crate::find::placeholder;
use crate::find::table::{self, Body, Pinned};
use crate::host::hosted;
use crate::process::fence;
use crate::stdio::standard;
use crate::watch;
use core::ffi::{c_int, c_uint};
use nvmed_sys::{is_quiet, next_quiet};

/// A number for a new description, the lowest that is free, as `open` promises.
///
/// # Errors
/// `EMFILE`.
#[inline]
pub(crate) fn reserve(close_on_exec: bool) -> Answer<c_int> {
    let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    host(sys!(SYS_fcntl, placeholder::original(), command, 0)).map(|fd| fd as c_int)
}

/// Gives a reserved number back.
pub(crate) fn give_back(fd: c_int) {
    sys!(SYS_close, fd);
}

/// Puts a new description behind a reserved number.
///
/// # Errors
/// `EMFILE` when the number is beyond the table; it is then given back.
#[inline]
pub(crate) fn publish(fd: c_int, body: Body) -> Answer {
    put(fd, table::describe(body)).inspect_err(|_| give_back(fd))?;
    Ok(fd as isize)
}

fn put(fd: c_int, pinned: Pinned) -> Answer<()> {
    table::install(fd, pinned)?;
    watch::mark(fd, 0);
    standard::changed(fd);
    Ok(())
}

/// The end of one descriptor of ours: the table first, because the kernel may hand out the number at once.
pub(crate) fn close_ours(fd: c_int) -> Answer {
    let Some(pinned) = table::remove(fd) else { return edge::fail(libc::EBADF) };
    forget_locks(&pinned);
    drop(pinned);
    let answer = host(sys!(SYS_close, fd));
    standard::changed(fd);
    answer
}

/// POSIX: closing any descriptor of a file drops the process's record locks on it.
fn forget_locks(pinned: &Pinned) {
    if let Some(file) = &pinned.file
        && !fence::is_child()
    {
        fcntl::drop_record_locks(file);
    }
}

hook! {
    /// close(2)
    fn close(fd: c_int) -> c_int {
        if table::is_ours(fd) {
            return guard(|| close_ours(fd));
        }
        // The stack's own descriptors are nobody's to close.
        reply(unless_quiet(fd, || hosted::close(fd)))
    }
}

/// A call of the kernel's on a descriptor that is not ours: the stack's own are not there for the program.
#[inline(always)]
pub(crate) fn unless_quiet(fd: c_int, call: impl FnOnce() -> isize) -> isize {
    if is_quiet(fd) { -libc::EBADF as isize } else { call() }
}

/// Makes `new` what `old` is, by `duplicate`, which makes the kernel's part.
fn onto(old: c_int, new: c_int, duplicate: impl FnOnce(c_int) -> isize) -> Answer {
    if is_quiet(old) || is_quiet(new) {
        return edge::fail(if is_quiet(old) { libc::EBADF } else { libc::EBUSY });
    }
    if old == new {
        return host(duplicate(new));
    }
    let source = if table::is_ours(old) { Some(table::pin_unfenced(old)?) } else { None };
    let before = table::remove(new);
    if let Err(failure) = host(duplicate(new)) {
        if let Some(before) = before {
            put(new, before)?;
        }
        return Err(failure);
    }
    if let Some(before) = before {
        forget_locks(&before);
    }
    match source {
        Some(source) => put(new, source)?,
        None => standard::changed(new),
    }
    Ok(new as isize)
}

/// The kernel's part of a `dup2` between descriptors that are not ours: the stack's are not there.
fn between_hosts(old: c_int, new: c_int, duplicate: impl FnOnce() -> isize) -> isize {
    match (is_quiet(old), is_quiet(new)) {
        (true, _) => -libc::EBADF as isize,
        // What the kernel says of a number that is about to be opened.
        (_, true) => -libc::EBUSY as isize,
        _ => duplicate(),
    }
}

hook! {
    /// dup2(2)
    fn dup2(old: c_int, new: c_int) -> c_int {
        if !table::is_ours(old) && !table::is_ours(new) {
            return reply(hosted::copied(old, between_hosts(old, new, || sys!(SYS_dup2, old, new))));
        }
        guard(|| onto(old, new, |new| sys!(SYS_dup2, old, new)))
    }
}

hook! {
    /// dup3(2)
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        if !table::is_ours(old) && !table::is_ours(new) {
            return reply(hosted::copied(old, between_hosts(old, new, || sys!(SYS_dup3, old, new, flags))));
        }
        guard(|| {
            if old == new {
                return edge::fail(libc::EINVAL);
            }
            onto(old, new, |new| sys!(SYS_dup3, old, new, flags))
        })
    }
}

/// `dup` and `F_DUPFD`: the kernel's part is `duplicate`, then the table's.
pub(crate) fn duplicate(old: c_int, duplicate: impl FnOnce() -> isize) -> Answer {
    let source = table::pin_unfenced(old)?;
    let new = host(duplicate())? as c_int;
    put(new, source).inspect_err(|_| give_back(new))?;
    Ok(new as isize)
}

hook! {
    /// dup(2)
    fn dup(old: c_int) -> c_int {
        if !table::is_ours(old) {
            return reply(hosted::copied(old, unless_quiet(old, || sys!(SYS_dup, old))));
        }
        guard(|| duplicate(old, || sys!(SYS_dup, old)))
    }
}

/// `close_range`: ours one by one, the kernel's in the gaps between, the stack's not at all.
fn close_many(first: c_uint, last: c_uint, flags: c_uint) -> Answer {
    // After `CLOSE_RANGE_UNSHARE` other threads would have a table of their own.
    if flags & !libc::CLOSE_RANGE_CLOEXEC != 0 {
        return edge::fail(libc::EINVAL);
    }
    let mark_only = flags != 0;
    let mut start = first;
    while let Some(special) = first_special(start, last) {
        let number = special as c_uint;
        if number > start {
            host(sys!(SYS_close_range, start, number - 1, flags))?;
        }
        if mark_only {
            sys!(SYS_fcntl, special, libc::F_SETFD, libc::FD_CLOEXEC);
        } else if table::is_ours(special) {
            let _ = close_ours(special);
        }
        start = number + 1;
    }
    if start <= last { host(sys!(SYS_close_range, start, last, flags)) } else { Ok(0) }
}

/// The first descriptor from `first` to `last` that is ours or the stack's.
fn first_special(first: c_uint, last: c_uint) -> Option<c_int> {
    let start = c_int::try_from(first).ok()?;
    let quiet = next_quiet(start).filter(|&fd| fd as c_uint <= last);
    let ours = table::first_within(first, last);
    quiet.into_iter().chain(ours).min()
}

/// Whether a range touches nothing of ours: there are only host descriptors in programs that never
/// mounted, unless a child that is becoming another program has something to tell.
fn only_hosts(first: c_uint, last: c_uint) -> bool {
    !placeholder::is_there() && next_quiet(0).is_none() || first > last
}

hook! {
    /// close_range(2)
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if only_hosts(first, last) {
            return reply(hosted::close_range(first, last, flags));
        }
        guard(|| close_many(first, last, flags as c_uint))
    }
}

hook! {
    /// closefrom(3): never fails.
    fn closefrom(first: c_int) -> () {
        let first = first.max(0) as c_uint;
        let _: c_int = if only_hosts(first, c_uint::MAX) {
            reply(hosted::close_range(first, c_uint::MAX, 0))
        } else {
            guard(|| close_many(first, c_uint::MAX, 0))
        };
    }
}

/// libc or the kernel has put something of the host's behind `fd`, below every hook.
pub(crate) fn replaced(fd: c_int) {
    if let Some(pinned) = table::remove(fd) {
        forget_locks(&pinned);
        drop(pinned);
        standard::changed(fd);
    }
}

/// A number that this process inherited with a placeholder of another one: what it stands for.
///
/// # Errors
/// `EMFILE`; the host's.
pub(crate) fn inherit(fd: c_int, pinned: Pinned) -> Answer<()> {
    host(sys!(SYS_dup3, placeholder::original(), fd, 0)).and_then(|_| put(fd, pinned))
}

/// A number that came in a message with a token: a placeholder takes its place.
///
/// # Errors
/// `EMFILE`; the host's.
pub(crate) fn exchange(fd: c_int, body: Body) -> Answer<()> {
    let close = host(sys!(SYS_fcntl, fd, libc::F_GETFD))? as c_int & libc::FD_CLOEXEC != 0;
    let flags = if close { libc::O_CLOEXEC } else { 0 };
    host(sys!(SYS_dup3, placeholder::original(), fd, flags)).and_then(|_| put(fd, table::describe(body)))
}

/// Descriptors of ours that an exec would hand to a program that cannot use them.
pub(crate) fn first_inherited() -> Option<c_int> {
    let mut start = 0;
    while let Some(fd) = table::first_within(start, c_int::MAX as c_uint) {
        let flags = sys!(SYS_fcntl, fd, libc::F_GETFD);
        if flags >= 0 && flags & libc::FD_CLOEXEC as isize == 0 {
            return Some(fd);
        }
        start = fd as c_uint + 1;
    }
    None
}

/// Runs `ours` on a pinned description, or `host` when the descriptor is not ours.
#[inline(always)]
pub(crate) fn on_descriptor<R: Reply>(
    fd: c_int,
    host: impl FnOnce() -> isize,
    ours: impl FnOnce(&Body) -> Answer,
) -> R {
    let Some(slot) = table::ours(fd) else { return reply(host()) };
    // What it needs goes with it: it is run behind a pointer, where a panic is caught.
    guard(move || {
        mount::count();
        ours(&*table::pin_at(slot)?)
    })
}
