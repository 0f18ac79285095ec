//! Sizes and ranges: truncation, allocation, advice.

use crate::calls::descriptor::on_descriptor;
use crate::edge::flags::check_range;
use crate::edge::{Answer, caught, fail, host, offset, posix};
use crate::find::backend::File;
use crate::find::route::{Route, Touch, on_path};
use crate::find::table;
use crate::find::walk::Last;
use core::ffi::{c_char, c_int, c_uint};
use libc::{off_t, off64_t, size_t, ssize_t};
use nvmed_fs::{Advice, Allocate, FileType, Follow};

hook! {
    /// ftruncate(2)
    fn ftruncate(fd: c_int, size: off_t) -> c_int {
        on_descriptor(fd, || sys!(SYS_ftruncate, fd, size), |body| {
            let bytes = offset(size)?;
            let file = body.file()?;
            if !file.flags().writes() {
                return fail(libc::EINVAL);
            }
            file.truncate(bytes)?;
            Ok(0)
        })
    }
}

hook! {
    /// truncate(2)
    fn truncate(path: *const c_char, size: off_t) -> c_int {
        on_path(libc::AT_FDCWD, path, Touch::Look(Last::Follow), |route| match route {
            Route::Host { path, .. } => host(sys!(SYS_truncate, path, size)),
            Route::Ours(ours) => {
                ours.files.truncate(ours.object(Follow::Yes), offset(size)?, &ours.who())?;
                Ok(0)
            }
        })
    }
}

fn how(mode: c_int) -> Answer<Allocate> {
    let known = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
    if mode & !known != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    Ok(Allocate {
        keep_size: mode & libc::FALLOC_FL_KEEP_SIZE != 0,
        punch_hole: mode & libc::FALLOC_FL_PUNCH_HOLE != 0,
        zero_range: mode & libc::FALLOC_FL_ZERO_RANGE != 0,
    })
}

/// What Linux knows, and asks a file system for last.
const NOT_HERE: c_int = libc::FALLOC_FL_UNSHARE_RANGE | FALLOC_FL_WRITE_ZEROES;
const FALLOC_FL_WRITE_ZEROES: c_int = 0x80;

fn allocate(body: &table::Body, mode: c_int, start: off_t, len: off_t) -> Answer {
    let file = body.file()?;
    if len <= 0 {
        return fail(libc::EINVAL);
    }
    let start = offset(start)?;
    if mode == libc::FALLOC_FL_PUNCH_HOLE {
        return fail(libc::EOPNOTSUPP);
    }
    let kind = mode & !libc::FALLOC_FL_KEEP_SIZE;
    if kind & NOT_HERE != 0 && kind.count_ones() == 1 {
        let is_beyond = start.saturating_add(len as u64) > i64::MAX as u64;
        return fail(match file.flags().writes() {
            false => libc::EBADF,
            true if is_beyond => libc::EFBIG,
            true => libc::EOPNOTSUPP,
        });
    }
    file.fallocate(how(mode)?, start, len as u64)?;
    Ok(0)
}

hook! {
    /// fallocate(2)
    fn fallocate(fd: c_int, mode: c_int, start: off_t, len: off_t) -> c_int {
        on_descriptor(
            fd,
            || sys!(SYS_fallocate, fd, mode, start, len),
            |body| allocate(body, mode, start, len),
        )
    }
}

hook! {
    /// posix_fallocate(3): answers the error itself
    fn posix_fallocate(fd: c_int, start: off_t, len: off_t) -> c_int, next libc_posix_fallocate {
        if !table::is_ours(fd) {
            return libc_posix_fallocate(fd, start, len);
        }
        posix(caught(|| allocate(&*table::pin(fd)?, 0, start, len)))
    }
}

hook! {
    /// posix_fadvise(2): answers the error itself.
    fn posix_fadvise(fd: c_int, start: off_t, len: off_t, advice: c_int) -> c_int {
        if !table::is_ours(fd) {
            return -sys!(SYS_fadvise64, fd, start, len, advice) as c_int;
        }
        posix(caught(|| {
            let file = table::pin(fd)?;
            let file = file.file()?;
            let bytes = offset(len)?;
            let advice = match advice {
                libc::POSIX_FADV_NORMAL => Advice::Normal,
                libc::POSIX_FADV_SEQUENTIAL => Advice::Sequential,
                libc::POSIX_FADV_RANDOM => Advice::Random,
                libc::POSIX_FADV_WILLNEED => Advice::WillNeed,
                libc::POSIX_FADV_DONTNEED => Advice::DontNeed,
                // The cache forgets first what was used once.
                libc::POSIX_FADV_NOREUSE => return Ok(0),
                _ => return fail(libc::EINVAL),
            };
            advise(file, advice, start, bytes);
            Ok(0)
        }))
    }
}

/// Advice: what could not be read or written now is told when it matters. A directory takes it too, and so does what no
/// file has, before its beginning (Linux, `generic_fadvise`).
fn advise(file: &File, advice: Advice, start: i64, bytes: u64) {
    if let Ok(start) = u64::try_from(start) {
        let _ = file.advise(advice, start, bytes);
    }
}

hook! {
    /// readahead(2)
    fn readahead(fd: c_int, start: off64_t, count: size_t) -> ssize_t {
        on_descriptor(fd, || sys!(SYS_readahead, fd, start, count), |body| {
            let file = body.file()?;
            if !file.flags().reads() {
                return fail(libc::EBADF);
            }
            // The kernel takes the count for a length with a sign.
            if body.node.kind() != FileType::File || (count as i64) < 0 {
                return fail(libc::EINVAL);
            }
            if count > 0 {
                advise(file, Advice::WillNeed, start, count as u64);
            }
            Ok(0)
        })
    }
}

hook! {
    /// sync_file_range(2)
    fn sync_file_range(fd: c_int, start: off64_t, len: off64_t, flags: c_uint) -> c_int {
        on_descriptor(fd, || sys!(SYS_sync_file_range, fd, start, len, flags), |body| {
            let file = body.file()?;
            check_range(flags)?;
            // To the end of the file where the length is 0.
            let end = start.wrapping_add(len);
            if start < 0 || end < start {
                return fail(libc::EINVAL);
            }
            let bytes = if len == 0 { i64::MAX - start } else { len };
            if flags != 0 && body.node.kind() == FileType::File {
                file.sync_range(start as u64, bytes as u64)?;
            }
            Ok(0)
        })
    }
}
