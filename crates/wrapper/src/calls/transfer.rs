//! Copies inside the kernel, which has no data of ours: a read and a write do them. Between a file of ours and one of
//! the host's, copy_file_range(2) fails as between two file systems that cannot do it, so that callers fall back.

use crate::calls::splice::{Side, check_range, into_pipe, number};
use crate::edge::{Answer, TRANSFER_BYTES_MAX, fail, finish, reply};
use crate::find::mount;
use crate::find::table::is_ours;
use core::ffi::{c_int, c_uint};
use libc::{off_t, off64_t, size_t, ssize_t};
use nvmed_fs::FileType;

/// Moved at once: a page cache's window.
const PIECE_BYTES: usize = 128 << 10;

/// Moves up to `count` bytes from one side's offset to the other's, or to where that stands; how many arrived. A
/// failure after the first byte is the next call's.
fn pump(
    (from, source): (&Side, off64_t),
    (to, target): (&Side, Option<off64_t>),
    count: usize,
) -> Answer<usize> {
    let count = count.min(TRANSFER_BYTES_MAX);
    let mut piece = vec![0u8; count.min(PIECE_BYTES)];
    let mut done = 0;
    let mut one = |done: usize| -> Answer<(usize, usize)> {
        let want = (count - done).min(piece.len());
        let got = from.read(&mut piece[..want], source + done as i64)?;
        let put = match got {
            0 => 0,
            got => to.write(&piece[..got], target.map(|target| target + done as i64))?,
        };
        Ok((got, put))
    };
    while done < count {
        match one(done) {
            Err(failure) if done == 0 => return Err(failure),
            Err(_) | Ok((_, 0)) => break,
            Ok((got, put)) => {
                done += put;
                if put < got {
                    break;
                }
            }
        }
    }
    Ok(done)
}

/// Whether descriptors are what copies are made between, in the kernel's order of errors (`generic_file_rw_checks`).
fn check_files(from: &Side, to: &Side) -> Answer<()> {
    let kinds = [from.kind()?, to.kind()?];
    if kinds.contains(&Some(FileType::Directory)) {
        return fail(libc::EISDIR);
    }
    if kinds != [Some(FileType::File); 2] {
        return fail(libc::EINVAL);
    }
    if !from.reads || !to.writes || to.appends { fail(libc::EBADF) } else { Ok(()) }
}

/// How many bytes are to be copied from one place of a file to another one (`generic_copy_file_checks`).
fn check_places(
    (from, source): (&Side, off64_t),
    (to, target): (&Side, off64_t),
    count: size_t,
) -> Answer<usize> {
    // The kernel adds without a sign.
    let wraps = |at: off64_t| (at as u64).checked_add(count as u64).is_none();
    if wraps(source) || wraps(target) {
        return fail(libc::EOVERFLOW);
    }
    let holds = from.with_file(|file| Ok(file.stat()?))?;
    let count = (count as u64).min((holds.size as i64).saturating_sub(source).max(0) as u64);
    if target >= nvmed_fs::FILE_BYTES_MAX as i64 {
        return fail(libc::EFBIG);
    }
    let overlaps =
        target.saturating_add(count as i64) > source && target < source.saturating_add(count as i64);
    if overlaps && to.with_file(|file| Ok(file.node().ino()))? == holds.ino {
        return fail(libc::EINVAL);
    }
    let count = count as usize;
    check_range(source, count)?;
    check_range(target, count)?;
    Ok(count)
}

fn copy_ours(
    (from, from_at): (c_int, *mut off64_t),
    (to, to_at): (c_int, *mut off64_t),
    count: size_t,
    flags: c_uint,
) -> Answer {
    let (from, to) = (Side::of(from)?, Side::of(to)?);
    let (source, target) = (number(from_at)?, number(to_at)?);
    if flags != 0 {
        return fail(libc::EINVAL);
    }
    check_files(&from, &to)?;
    if !from.is_ours() || !to.is_ours() {
        return fail(libc::EXDEV);
    }
    mount::count();
    let (source, target) = (from.start(source)?, to.start(target)?);
    let count = check_places((&from, source), (&to, target), count)?;
    let done = pump((&from, source), (&to, Some(target)), count)?;
    from.moved(from_at, source + done as i64)?;
    to.moved(to_at, target + done as i64)?;
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

/// In the kernel's order of errors (`do_sendfile`).
fn send_ours(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> Answer {
    let given = number(at)?;
    let from = Side::of(from)?;
    if !from.reads {
        return fail(libc::EBADF);
    }
    let source = from.start(given)?;
    check_range(source, count)?;
    let to = Side::of(to)?;
    if !to.writes {
        return fail(libc::EBADF);
    }
    if source as u64 >= nvmed_fs::FILE_BYTES_MAX {
        return fail(libc::EOVERFLOW);
    }
    let kind = from.kind()?;
    let sent = matches!(kind, Some(FileType::File | FileType::BlockDevice | FileType::CharDevice))
        || kind == Some(FileType::Directory) && count == 0;
    if !sent || to.appends && !to.is_pipe() {
        return fail(libc::EINVAL);
    }
    if count == 0 {
        return Ok(0);
    }
    mount::count();
    let done = if to.is_pipe() && from.is_ours() {
        into_pipe(&from, source as u64, &to, count, 0)?
    } else {
        pump((&from, source), (&to, None), count)?
    };
    from.moved(at, source + done as i64)?;
    Ok(done as isize)
}

hook! {
    /// sendfile(2)
    fn sendfile(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t {
        if is_ours(from) || is_ours(to) {
            return finish(send_ours(to, from, at, count));
        }
        reply(sys!(SYS_sendfile, to, from, at, count))
    }
}
