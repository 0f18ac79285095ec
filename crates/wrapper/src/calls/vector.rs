//! readv, writev and their kin. One vector goes straight through; several are gathered, so that a call
//! is one read or one write of the file as POSIX wants it.

use crate::calls::data::{At, cut, fits, nothing_there, read_at, read_into, write_at, write_from};
use crate::calls::descriptor::on_descriptor;
use crate::edge::{Answer, TRANSFER_BYTES_MAX, fail, given, is_possible, offset};
use crate::find::backend::File;
use crate::find::table::Body;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use libc::{iovec, off_t, ssize_t};
use nvmed_fs::{FileType, OpenFlags};

/// The kernel's `IOV_MAX`.
const VECTORS_MAX: usize = 1024;
/// Vectors up to this many bytes are gathered and moved as one; longer calls go vector by vector, as
/// each of them is a large transfer anyway.
const GATHER_BYTES_MAX: usize = 1 << 20;

/// Vectors that are copied without memory of the heap.
const NEAR: usize = 8;

/// Room for a copy of a call's vectors.
struct Room {
    near: [MaybeUninit<iovec>; NEAR],
    far: Vec<iovec>,
}

impl Room {
    const fn new() -> Self {
        Self { near: [const { MaybeUninit::uninit() }; NEAR], far: Vec::new() }
    }

    /// The vectors of a call, each of which a program may have.
    ///
    /// # Errors
    /// `EINVAL` for more than there may be, and for lengths that are none; `EFAULT`.
    fn vectors(&mut self, list: *const iovec, count: c_int) -> Answer<&[iovec]> {
        let vectors = match usize::try_from(count) {
            Ok(count @ ..=NEAR) => given::fill(&mut self.near[..count], list)?,
            Ok(count @ ..=VECTORS_MAX) => {
                self.far = given::list(list, count)?;
                &self.far
            }
            _ => return fail(libc::EINVAL),
        };
        if vectors.iter().any(|vector| vector.iov_len > isize::MAX as usize) {
            return fail(libc::EINVAL);
        }
        // The kernel cuts a single one before it looks.
        let is_one = vectors.len() == 1;
        let looked_at = |len: usize| if is_one { len.min(TRANSFER_BYTES_MAX) } else { len };
        if vectors.iter().any(|vector| !is_possible(vector.iov_base, looked_at(vector.iov_len))) {
            return fail(libc::EFAULT);
        }
        Ok(vectors)
    }
}

fn total(vectors: &[iovec]) -> usize {
    let sum = vectors.iter().fold(0usize, |sum, vector| sum.saturating_add(vector.iov_len));
    sum.min(TRANSFER_BYTES_MAX)
}

fn advanced(at: At, by: usize) -> At {
    match at {
        At::Shared => At::Shared,
        At::Offset(offset) => At::Offset(offset.saturating_add(by as u64)),
    }
}

/// The vectors of a call and their bytes together. Where there are none to move nothing more is looked at.
///
/// # Errors
/// Those of [`Room::vectors`], [`fits`] and [`check_flags`], in the kernel's order.
fn checked<'a>(
    room: &'a mut Room,
    body: &Body,
    (list, count): (*const iovec, c_int),
    at: At,
    flags: c_int,
) -> Answer<(&'a [iovec], usize)> {
    let list = room.vectors(list, count)?;
    let bytes = total(list);
    if bytes > 0 {
        fits(at, bytes)?;
        check_flags(body, flags)?;
    }
    Ok((list, bytes))
}

unsafe fn read_vectors(body: &Body, list: *const iovec, count: c_int, at: At, flags: c_int) -> Answer {
    let file = body.file()?;
    if !file.flags().reads() {
        return fail(libc::EBADF);
    }
    let mut room = Room::new();
    let (list, bytes) = checked(&mut room, body, (list, count), at, flags)?;
    if bytes == 0 {
        return Ok(0);
    }
    if let [one] = list {
        // SAFETY: the program's buffers, under `edge`'s contract, here and below.
        return Ok(unsafe { read_into(file, one.iov_base, bytes, at) }? as isize);
    }
    if bytes <= GATHER_BYTES_MAX {
        // SAFETY: as above.
        return Ok(unsafe { read_gathered(file, (list, bytes), at) }? as isize);
    }
    each(list, |vector, done| {
        // SAFETY: as above.
        unsafe { read_into(file, vector.iov_base, vector.iov_len, advanced(at, done)) }
    })
}

/// Moves vector by vector, until one is not moved whole; an error after the first byte is the next call's.
fn each(list: &[iovec], mut transfer: impl FnMut(&iovec, usize) -> Answer<usize>) -> Answer {
    let mut done = 0;
    for vector in list {
        match transfer(vector, done) {
            Ok(moved) => {
                done += moved;
                if moved < vector.iov_len {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(failure) => return Err(failure),
        }
    }
    Ok(done as isize)
}

unsafe fn read_gathered(file: &File, (list, bytes): (&[iovec], usize), at: At) -> Answer<usize> {
    let mut whole = vec![0; bytes];
    let got = read_at(file, &mut whole, at)?;
    let mut rest = &whole[..got];
    for vector in list {
        let (now, later) = rest.split_at(rest.len().min(vector.iov_len));
        // SAFETY: the caller's contract.
        let put = unsafe { given::put_some(vector.iov_base.cast(), now) };
        if put < now.len() {
            return cut(file, at, got, got - rest.len() + put);
        }
        rest = later;
    }
    Ok(got)
}

unsafe fn write_vectors(body: &Body, list: *const iovec, count: c_int, at: At, flags: c_int) -> Answer {
    let file = body.file()?;
    if !file.flags().writes() {
        return fail(libc::EBADF);
    }
    let mut room = Room::new();
    let (list, bytes) = checked(&mut room, body, (list, count), at, flags)?;
    if bytes == 0 {
        return Ok(0);
    }
    check_append(file, flags)?;
    if let [one] = list {
        // SAFETY: the program's buffers, under `edge`'s contract, here and below.
        return Ok(unsafe { write_from(file, one.iov_base, bytes, at) }? as isize);
    }
    if bytes <= GATHER_BYTES_MAX {
        return Ok(write_gathered(file, (list, bytes), at)? as isize);
    }
    each(list, |vector, done| {
        // SAFETY: as above.
        unsafe { write_from(file, vector.iov_base, vector.iov_len, advanced(at, done)) }
    })
}

fn write_gathered(file: &File, (list, bytes): (&[iovec], usize), at: At) -> Answer<usize> {
    let mut whole = Vec::with_capacity(bytes);
    for vector in list {
        if given::append(&mut whole, vector.iov_base.cast(), vector.iov_len) < vector.iov_len {
            break;
        }
    }
    let done = write_at(file, &whole, at)?;
    if whole.is_empty() { nothing_there(bytes, at) } else { Ok(done) }
}

hook! {
    /// readv(2)
    fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_readv, fd, list, count), |body| {
            read_vectors(body, list, count, At::Shared, 0)
        })
    }
}

hook! {
    /// writev(2)
    fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_writev, fd, list, count), |body| {
            write_vectors(body, list, count, At::Shared, 0)
        })
    }
}

hook! {
    /// preadv(2)
    fn preadv(fd: c_int, list: *const iovec, count: c_int, at: off_t) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_preadv, fd, list, count, at, 0), |body| {
            read_vectors(body, list, count, At::Offset(offset(at)?), 0)
        })
    }
}

hook! {
    /// pwritev(2)
    fn pwritev(fd: c_int, list: *const iovec, count: c_int, at: off_t) -> ssize_t {
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
/// `EOPNOTSUPP` for what is unknown, as of file systems without; of directories only one is known. `EINVAL` for both of
/// two that exclude each other.
fn check_flags(body: &Body, flags: c_int) -> Answer<()> {
    if flags == 0 {
        return Ok(());
    }
    let known = if body.node.kind() == FileType::File { KNOWN } else { libc::RWF_HIPRI };
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
/// `EOPNOTSUPP` for `RWF_APPEND` and `RWF_NOAPPEND` where they mean the other than the description's own flag: that
/// would need an append that is atomic beside it.
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
    fn preadv2(fd: c_int, list: *const iovec, count: c_int, from: off_t, flags: c_int) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_preadv2, fd, list, count, from, 0, flags), |body| {
            read_with(body, list, count, from, flags)
        })
    }
}

hook! {
    /// pwritev2(2)
    fn pwritev2(fd: c_int, list: *const iovec, count: c_int, to: off_t, flags: c_int) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_pwritev2, fd, list, count, to, 0, flags), |body| {
            write_with(body, list, count, to, flags)
        })
    }
}
