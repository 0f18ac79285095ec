//! readv, writev and their kin. One vector goes straight through; several are gathered, so that a call
//! is one read or one write of the file as POSIX wants it.

use crate::backend::File;
use crate::descriptor::on_descriptor;
use crate::edge::{Answer, TRANSFER_BYTES_MAX, bytes_mut, bytes_ref, fail, offset, within};
use crate::table::Body;
use core::ffi::c_int;
use libc::{iovec, off_t, ssize_t};
use nvmed_fs::{Kind, OpenFlags};

/// The kernel's `IOV_MAX`.
const VECTORS_MAX: c_int = 1024;
/// Vectors up to this many bytes are gathered and moved as one; longer calls go vector by vector, as
/// each of them is a large transfer anyway.
const GATHER_BYTES_MAX: usize = 1 << 20;

/// The buffer of one vector, of which `count` bytes matter.
#[expect(clippy::mut_from_ref, reason = "a vector points to bytes that are not its own")]
fn room(vector: &iovec, count: usize) -> Answer<&mut [u8]> {
    // SAFETY: the program's vectors are valid for the call, under `edge`'s contract; they may overlap,
    // and only one is looked at at a time.
    unsafe { bytes_mut(vector.iov_base, count) }
}

/// The bytes of one vector.
fn bytes(vector: &iovec) -> Answer<&[u8]> {
    // SAFETY: as in `room`.
    unsafe { bytes_ref(vector.iov_base, vector.iov_len) }
}

/// Where a vector call reads or writes.
#[derive(Clone, Copy)]
enum At {
    Shared,
    Offset(u64),
}

unsafe fn vectors<'a>(vectors: *const iovec, count: c_int) -> Answer<&'a [iovec]> {
    match count {
        0 => Ok(&[]),
        1..=VECTORS_MAX if vectors.is_null() => fail(libc::EFAULT),
        // SAFETY: the program passes `count` vectors, under `edge`'s contract.
        1..=VECTORS_MAX => Ok(unsafe { core::slice::from_raw_parts(vectors, count as usize) }),
        _ => fail(libc::EINVAL),
    }
}

fn total(vectors: &[iovec]) -> Answer<usize> {
    let sum = vectors.iter().try_fold(0usize, |sum, vector| sum.checked_add(vector.iov_len));
    match sum {
        Some(sum) if sum <= isize::MAX as usize => Ok(sum.min(TRANSFER_BYTES_MAX)),
        _ => fail(libc::EINVAL),
    }
}

/// Whether `count` bytes from there on end where offsets do.
fn check_end(at: At, count: usize) -> Answer<()> {
    match at {
        At::Offset(start) => within(start, count).map(drop),
        At::Shared => Ok(()),
    }
}

fn read_at(body: &Body, into: &mut [u8], at: At) -> Answer<usize> {
    let file = body.file()?;
    Ok(match at {
        At::Shared => file.read(into)?,
        At::Offset(offset) => file.pread(into, offset)?,
    })
}

fn write_at(body: &Body, from: &[u8], at: At) -> Answer<usize> {
    let file = body.file()?;
    Ok(match at {
        At::Shared => file.write(from)?,
        At::Offset(offset) => file.pwrite(from, offset)?,
    })
}

fn advanced(at: At, by: usize) -> At {
    match at {
        At::Shared => At::Shared,
        At::Offset(offset) => At::Offset(offset.saturating_add(by as u64)),
    }
}

unsafe fn read_vectors(body: &Body, list: *const iovec, count: c_int, at: At, flags: c_int) -> Answer {
    if !body.file()?.flags().reads() {
        return fail(libc::EBADF);
    }
    // SAFETY: the program's vectors, under `edge`'s contract.
    let list = unsafe { vectors(list, count) }?;
    let count_all = total(list)?;
    if count_all == 0 {
        return Ok(0);
    }
    check_end(at, count_all)?;
    check_flags(body, flags)?;
    if let [one] = list {
        return Ok(read_at(body, room(one, one.iov_len)?, at)? as isize);
    }
    if count_all <= GATHER_BYTES_MAX {
        let mut whole = vec![0; count_all];
        let got = read_at(body, &mut whole, at)?;
        let mut rest = &whole[..got];
        for vector in list {
            let (now, later) = rest.split_at(rest.len().min(vector.iov_len));
            room(vector, now.len())?.copy_from_slice(now);
            rest = later;
        }
        return Ok(got as isize);
    }
    let mut done = 0;
    for vector in list {
        match read_at(body, room(vector, vector.iov_len)?, advanced(at, done)) {
            Ok(got) => {
                done += got;
                if got < vector.iov_len {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(failure) => return Err(failure),
        }
    }
    Ok(done as isize)
}

unsafe fn write_vectors(body: &Body, list: *const iovec, count: c_int, at: At, flags: c_int) -> Answer {
    if !body.file()?.flags().writes() {
        return fail(libc::EBADF);
    }
    // SAFETY: the program's vectors, under `edge`'s contract.
    let list = unsafe { vectors(list, count) }?;
    let count_all = total(list)?;
    if count_all == 0 {
        return Ok(0);
    }
    check_end(at, count_all)?;
    check_flags(body, flags)?;
    check_append(body.file()?, flags)?;
    if let [one] = list {
        return Ok(write_at(body, bytes(one)?, at)? as isize);
    }
    if count_all <= GATHER_BYTES_MAX {
        let mut whole = Vec::with_capacity(count_all);
        for vector in list {
            whole.extend_from_slice(bytes(vector)?);
        }
        return Ok(write_at(body, &whole, at)? as isize);
    }
    let mut done = 0;
    for vector in list {
        match write_at(body, bytes(vector)?, advanced(at, done)) {
            Ok(put) => {
                done += put;
                if put < vector.iov_len {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(failure) => return Err(failure),
        }
    }
    Ok(done as isize)
}

hook! {
    /// readv(2)
    inner fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_readv, fd, list, count), |body| {
            read_vectors(body, list, count, At::Shared, 0)
        })
    }
}

hook! {
    /// writev(2)
    inner fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_writev, fd, list, count), |body| {
            write_vectors(body, list, count, At::Shared, 0)
        })
    }
}

hook! {
    /// preadv(2)
    inner fn preadv(fd: c_int, list: *const iovec, count: c_int, at: off_t) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_preadv, fd, list, count, at, 0), |body| {
            read_vectors(body, list, count, At::Offset(offset(at)?), 0)
        })
    }
}

hook! {
    /// pwritev(2)
    inner fn pwritev(fd: c_int, list: *const iovec, count: c_int, at: off_t) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_pwritev, fd, list, count, at, 0), |body| {
            write_vectors(body, list, count, At::Offset(offset(at)?), 0)
        })
    }
}

/// `preadv2` and `pwritev2` take -1 for the shared offset.
fn at(value: off_t) -> Answer<At> {
    if value == -1 { Ok(At::Shared) } else { Ok(At::Offset(offset(value)?)) }
}

/// Flags that a call with vectors knows. `RWF_ATOMIC` promises something about power cuts, which ours does not.
const KNOWN: c_int = libc::RWF_HIPRI
    | libc::RWF_DSYNC
    | libc::RWF_SYNC
    | libc::RWF_NOWAIT
    | libc::RWF_APPEND
    | RWF_NOAPPEND
    | RWF_DONTCACHE
    | RWF_NOSIGNAL;

/// # Errors
/// `EOPNOTSUPP` for what is unknown, as of file systems without; of directories only one is known. `EINVAL` for both of two
/// that exclude each other.
fn check_flags(body: &Body, flags: c_int) -> Answer<()> {
    if flags == 0 {
        return Ok(());
    }
    let known = if body.node.kind() == Kind::File { KNOWN } else { libc::RWF_HIPRI };
    if flags & !known != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    let both = libc::RWF_APPEND | RWF_NOAPPEND;
    if flags & both == both { fail(libc::EINVAL) } else { Ok(()) }
}

/// `preadv2` with flags: reads of ours never wait for a device that is not asked for, so `RWF_HIPRI`, `RWF_NOWAIT` and
/// `RWF_DONTCACHE` are hints that change nothing; the others mean something for writes.
///
/// # Safety
/// The program's vectors, under `edge`'s contract.
pub(crate) unsafe fn read_with(
    body: &Body,
    list: *const iovec,
    count: c_int,
    from: off_t,
    flags: c_int,
) -> Answer {
    // SAFETY: the caller's contract.
    unsafe { read_vectors(body, list, count, at(from)?, flags) }
}

/// # Errors
/// `EOPNOTSUPP` for `RWF_APPEND` and `RWF_NOAPPEND` where they mean the other than the description's own flag: that would need
/// an append that is atomic beside it.
fn check_append(file: &File, flags: c_int) -> Answer<()> {
    let other = if file.flags().has(OpenFlags::APPEND) { RWF_NOAPPEND } else { libc::RWF_APPEND };
    if flags & other != 0 { fail(libc::EOPNOTSUPP) } else { Ok(()) }
}

/// `pwritev2` with flags.
///
/// # Safety
/// As in [`read_with`].
pub(crate) unsafe fn write_with(
    body: &Body,
    list: *const iovec,
    count: c_int,
    to: off_t,
    flags: c_int,
) -> Answer {
    // SAFETY: the caller's contract.
    let done = unsafe { write_vectors(body, list, count, at(to)?, flags) }?;
    if flags & libc::RWF_SYNC != 0 {
        body.file()?.fsync()?;
    } else if flags & libc::RWF_DSYNC != 0 {
        body.file()?.fdatasync()?;
    }
    Ok(done)
}

/// linux/fs.h, since Linux 6.9.
const RWF_NOAPPEND: c_int = 0x20;
/// No SIGPIPE, which a file never sends; since Linux 6.18.
const RWF_NOSIGNAL: c_int = 0x100;
/// linux/fs.h, since Linux 6.14.
const RWF_DONTCACHE: c_int = 0x80;

hook! {
    /// preadv2(2)
    inner fn preadv2(fd: c_int, list: *const iovec, count: c_int, from: off_t, flags: c_int) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_preadv2, fd, list, count, from, 0, flags), |body| {
            read_with(body, list, count, from, flags)
        })
    }
}

hook! {
    /// pwritev2(2)
    inner fn pwritev2(fd: c_int, list: *const iovec, count: c_int, to: off_t, flags: c_int) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_pwritev2, fd, list, count, to, 0, flags), |body| {
            write_with(body, list, count, to, flags)
        })
    }
}
