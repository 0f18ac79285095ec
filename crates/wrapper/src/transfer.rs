//! Copies inside the kernel, which has no data of ours. Where a read and a write do the same, they do it;
//! the others fail as between two file systems that cannot do it, so that callers fall back.

use crate::edge::{Answer, TRANSFER_BYTES_MAX, errno_of, fail, finish, reply};
use crate::table::{self, is_ours};
use crate::{data, given, raw};
use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, off_t, off64_t, size_t, ssize_t};
use nvmed_fs::{Kind, OpenFlags};

/// Moved at once: a page cache's window, and little enough for a thread's stack of any program that has a heap.
const PIECE_BYTES: usize = 128 << 10;

/// Moves up to `count` bytes by `read` and `write`, which answer as the calls of these names; how many arrived.
/// A failure after the first byte is the next call's.
fn pump(
    count: usize,
    mut read: impl FnMut(*mut c_void, usize, usize) -> isize,
    mut write: impl FnMut(*const c_void, usize, usize) -> isize,
) -> Answer<usize> {
    let count = count.min(TRANSFER_BYTES_MAX);
    let mut piece = vec![0u8; count.min(PIECE_BYTES)];
    let mut done = 0;
    while done < count {
        let want = (count - done).min(piece.len());
        let got = read(piece.as_mut_ptr().cast(), want, done);
        let put = if got > 0 { write(piece.as_ptr().cast(), got as usize, done) } else { got };
        if put < 0 && done == 0 {
            return fail(raw::errno());
        }
        if put <= 0 {
            break;
        }
        done += put as usize;
        if put < got {
            break;
        }
    }
    Ok(done)
}

/// The file of ours behind a descriptor, for one side of a copy of files.
fn check(fd: c_int, writes: bool) -> Answer<()> {
    let pinned = table::pin(fd)?;
    let flags = pinned.file()?.flags();
    match pinned.node.kind() {
        Kind::Directory => fail(libc::EISDIR),
        Kind::File if writes && (!flags.writes() || flags.has(OpenFlags::APPEND)) => fail(libc::EBADF),
        Kind::File if !writes && !flags.reads() => fail(libc::EBADF),
        Kind::File => Ok(()),
        _ => fail(libc::EINVAL),
    }
}

/// The position that the program gives for one side of a copy; none: the descriptor's own.
fn given_position(at: *const off64_t) -> Answer<Option<off64_t>> {
    if at.is_null() { Ok(None) } else { given::get(at).map(Some) }
}

/// Where one side of a copy stands.
fn position(fd: c_int, given: Option<off64_t>) -> Answer<off64_t> {
    // SAFETY: a descriptor and numbers.
    let here = given.unwrap_or_else(|| unsafe { data::lseek(fd, 0, libc::SEEK_CUR) });
    match here {
        0.. => Ok(here),
        _ if given.is_none() => fail(raw::errno()),
        _ => fail(libc::EINVAL),
    }
}

unsafe fn advance(fd: c_int, at: *mut off64_t, to: off64_t) -> Answer<()> {
    // SAFETY: a descriptor; the address of the program's number, under `edge`'s contract.
    unsafe {
        if !at.is_null() {
            return given::put(at, &to);
        }
        data::lseek(fd, to, libc::SEEK_SET);
    }
    Ok(())
}

unsafe fn copy_ours(
    (from, from_at): (c_int, *mut off64_t),
    (to, to_at): (c_int, *mut off64_t),
    count: size_t,
    flags: c_uint,
) -> Answer {
    if !is_ours(from) || !is_ours(to) {
        return fail(libc::EXDEV);
    }
    let given = (given_position(from_at)?, given_position(to_at)?);
    if flags != 0 {
        return fail(libc::EINVAL);
    }
    check(from, false)?;
    check(to, true)?;
    let (source, target) = (position(from, given.0)?, position(to, given.1)?);
    let overlaps = source.abs_diff(target) < count as u64;
    if overlaps && table::pin(from)?.node.stat()?.ino == table::pin(to)?.node.stat()?.ino {
        return fail(libc::EINVAL);
    }
    // SAFETY: the piece's own memory.
    let done = unsafe {
        pump(
            count,
            |into, want, done| data::pread(from, into, want, source + done as i64),
            |bytes, want, done| data::pwrite(to, bytes, want, target + done as i64),
        )?
    };
    // SAFETY: the program's numbers, under `edge`'s contract.
    unsafe {
        advance(from, from_at, source + done as i64)?;
        advance(to, to_at, target + done as i64)?;
    }
    Ok(done as isize)
}

hook! {
    /// copy_file_range(2)
    fn copy_file_range(
        from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, count: size_t, flags: c_uint,
    ) -> ssize_t {
        if is_ours(from) || is_ours(to) {
            return finish(copy_ours((from, from_at), (to, to_at), count, flags));
        }
        reply(sys!(SYS_copy_file_range, from, from_at, to, to_at, count, flags))
    }
}

unsafe fn send_ours(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> Answer {
    let given = given_position(at)?;
    if is_ours(from) {
        match check(from, false) {
            Err(failure) if errno_of(&failure) == libc::EISDIR => return fail(libc::EINVAL),
            checked => checked?,
        }
    }
    // A host's pipe or socket has no position: ESPIPE, and the kernel, too, wants a file here.
    let source = position(from, given).map_err(|_| crate::edge::Fail::Errno(libc::EINVAL))?;
    // SAFETY: the piece's own memory.
    let done = unsafe {
        pump(
            count,
            |into, want, done| data::pread(from, into, want, source + done as i64),
            |bytes, want, _| data::write(to, bytes, want),
        )?
    };
    // SAFETY: the program's number, under `edge`'s contract.
    unsafe { advance(from, at, source + done as i64) }?;
    Ok(done as isize)
}

hook! {
    /// sendfile(2)
    fn sendfile(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t, as [sendfile64] {
        if is_ours(from) || is_ours(to) {
            return finish(send_ours(to, from, at, count));
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
