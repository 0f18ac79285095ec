//! Path calls of file systems.

use crate::calls::check;
use crate::descriptors::{Open, path};
use crate::device::answer_to;
use crate::error::{Failure, call};
use crate::mounts::{Mounted, NvmedFs};
use libc::{gid_t, mode_t, off_t, timespec, uid_t};
use nvmed_files::{Files, Follow, FsError, RenameFlags, SetXattr, Stat, Time};
use std::ffi::{c_char, c_int, c_void};

const NANOSECONDS: i64 = 1_000_000_000;

fn seconds(ns: i64) -> (i64, i64) {
    (ns.div_euclid(NANOSECONDS), ns.rem_euclid(NANOSECONDS))
}

/// A status in C's form.
fn converted(found: &Stat) -> libc::stat {
    // SAFETY: a structure of integers, of which zero is a value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    stat.st_dev = found.dev;
    stat.st_ino = found.ino;
    stat.st_mode = found.mode;
    stat.st_nlink = found.nlink as libc::nlink_t;
    (stat.st_uid, stat.st_gid) = (found.uid, found.gid);
    stat.st_size = found.size as off_t;
    stat.st_blksize = found.block_bytes as libc::blksize_t;
    stat.st_blocks = found.blocks_512 as libc::blkcnt_t;
    (stat.st_atime, stat.st_atime_nsec) = seconds(found.atime_ns);
    (stat.st_mtime, stat.st_mtime_nsec) = seconds(found.mtime_ns);
    (stat.st_ctime, stat.st_ctime_nsec) = seconds(found.ctime_ns);
    stat
}

/// A call with one path.
///
/// # Safety
/// `name` is NULL or a string that ends in a zero byte.
unsafe fn on_path<T>(
    fs: *mut NvmedFs,
    name: *const c_char,
    failed: T,
    body: impl FnOnce(&Files, &[u8]) -> Result<T, Failure>,
) -> T {
    call(failed, || {
        let mounted = Mounted::of(fs)?;
        // SAFETY: as the caller vouches.
        body(&mounted.files, unsafe { path(name) }?)
    })
}

/// A call with one path that answers nothing.
///
/// # Safety
/// As [`on_path`].
unsafe fn act(
    fs: *mut NvmedFs,
    name: *const c_char,
    body: impl FnOnce(&Files, &[u8]) -> Result<(), FsError>,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { on_path(fs, name, -1, |files, path| Ok(body(files, path).map(|()| 0)?)) }
}

/// A call with two paths.
///
/// # Safety
/// Both are NULL or strings that end in a zero byte.
unsafe fn act_on_two(
    fs: *mut NvmedFs,
    from: *const c_char,
    to: *const c_char,
    body: impl FnOnce(&Files, &[u8], &[u8]) -> Result<(), FsError>,
) -> c_int {
    call(-1, || {
        let mounted = Mounted::of(fs)?;
        // SAFETY: as the caller vouches.
        let (from, to) = unsafe { (path(from)?, path(to)?) };
        Ok(body(&mounted.files, from, to).map(|()| 0)?)
    })
}

/// # Safety
/// `name` is NULL or a string that ends in a zero byte; `status` is NULL or can be written to.
unsafe fn stat_at(fs: *mut NvmedFs, name: *const c_char, status: *mut libc::stat, follow: Follow) -> c_int {
    let body = |files: &Files, path: &[u8]| {
        let found = files.stat(path, follow)?;
        // SAFETY: as the caller vouches.
        unsafe { answer_to(status, converted(&found)) }
    };
    // SAFETY: as the caller vouches.
    unsafe { on_path(fs, name, -1, body) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `path` is NULL or a string that ends in a zero byte; `status` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_stat(
    fs: *mut NvmedFs,
    path: *const c_char,
    status: *mut libc::stat,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { stat_at(fs, path, status, Follow::Yes) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `path` is NULL or a string that ends in a zero byte; `status` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_lstat(
    fs: *mut NvmedFs,
    path: *const c_char,
    status: *mut libc::stat,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { stat_at(fs, path, status, Follow::No) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `status` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_fstat(fd: c_int, status: *mut libc::stat) -> c_int {
    call(-1, || {
        let found = Open::of(fd)?.file.file().stat();
        // SAFETY: as the caller vouches.
        unsafe { answer_to(status, converted(&found)) }
    })
}

/// Defines calls with one path and some values.
macro_rules! path_calls {
    ($($name:ident($($value:ident: $type:ty),*) => |$files:ident, $path:ident| $body:expr;)*) => {$(
        /// See `nvmedfs.h`.
        ///
        /// # Safety
        /// `path` is NULL or a string that ends in a zero byte.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fs: *mut NvmedFs, path: *const c_char $(, $value: $type)*) -> c_int {
            // SAFETY: as the caller vouches.
            unsafe { act(fs, path, |$files, $path| $body) }
        }
    )*};
}

path_calls! {
    nvmedfs_access(mode: c_int) => |files, path| files.access(path, mode as u32);
    nvmedfs_mkdir(mode: mode_t) => |files, path| files.mkdir(path, mode);
    nvmedfs_rmdir() => |files, path| files.rmdir(path);
    nvmedfs_unlink() => |files, path| files.unlink(path);
    nvmedfs_truncate(length: off_t) => |files, path| files.truncate(path, bytes(length)?);
    nvmedfs_chmod(mode: mode_t) => |files, path| files.chmod(path, mode);
    nvmedfs_chown(owner: uid_t, group: gid_t) => |files, path| files.chown(path, id(owner), id(group), Follow::Yes);
    nvmedfs_lchown(owner: uid_t, group: gid_t) => |files, path| files.chown(path, id(owner), id(group), Follow::No);
}

/// A length that must not be negative.
pub(crate) fn bytes(length: off_t) -> Result<u64, FsError> {
    u64::try_from(length).map_err(|_| FsError::Invalid)
}

/// An owner or group; -1 leaves it.
pub(crate) fn id(number: u32) -> Option<u32> {
    (number != u32::MAX).then_some(number)
}

/// See `nvmedfs.h`.
///
/// # Safety
/// Both paths are NULL or strings that end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_rename(fs: *mut NvmedFs, from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { act_on_two(fs, from, to, |files, from, to| files.rename(from, to, RenameFlags::default())) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// Both paths are NULL or strings that end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_link(fs: *mut NvmedFs, from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { act_on_two(fs, from, to, |files, from, to| files.link(from, to)) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// Both are NULL or strings that end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_symlink(
    fs: *mut NvmedFs,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { act_on_two(fs, target, path, |files, target, path| files.symlink(target, path)) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `path` is NULL or a string that ends in a zero byte; `size` bytes at `buf` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_readlink(
    fs: *mut NvmedFs,
    path: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> isize {
    let body = |files: &Files, path: &[u8]| {
        if size == 0 {
            return Err(FsError::Invalid.into());
        }
        let target = files.readlink(path)?;
        let count = target.len().min(size);
        if buf.is_null() {
            return Err(Failure::new(libc::EFAULT, "the place for the target is NULL"));
        }
        // SAFETY: not NULL; the caller vouches for `size` bytes, of which `count` is no more; the target is our own
        // memory.
        unsafe { core::ptr::copy_nonoverlapping(target.as_ptr(), buf.cast::<u8>(), count) };
        Ok(count as isize)
    };
    // SAFETY: as the caller vouches.
    unsafe { on_path(fs, path, -1, body) }
}

/// Times of C's: access and change.
///
/// # Safety
/// `times` is NULL, for now, or points to two.
pub(crate) unsafe fn times(times: *const timespec) -> Result<[Time; 2], Failure> {
    if times.is_null() {
        return Ok([Time::Now, Time::Now]);
    }
    let one = |at: usize| {
        // SAFETY: not NULL; the caller vouches for two, aligned as C aligns them.
        let time = unsafe { times.add(at).read() };
        match time.tv_nsec {
            libc::UTIME_NOW => Ok(Time::Now),
            libc::UTIME_OMIT => Ok(Time::Omit),
            ns @ 0..NANOSECONDS => Ok(Time::At(time.tv_sec.saturating_mul(NANOSECONDS).saturating_add(ns))),
            ns => Err(Failure::invalid(format!("{ns} nanoseconds are no part of a second"))),
        }
    };
    Ok([one(0)?, one(1)?])
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `path` is NULL or a string that ends in a zero byte; `pair` is NULL or points to two times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_utimens(
    fs: *mut NvmedFs,
    path: *const c_char,
    pair: *const timespec,
    flags: c_int,
) -> c_int {
    let body = |files: &Files, path: &[u8]| {
        let follow = match flags {
            0 => Follow::Yes,
            libc::AT_SYMLINK_NOFOLLOW => Follow::No,
            _ => return Err(Failure::invalid(format!("nvmedfs_utimens: flags {flags:#x} are not known"))),
        };
        // SAFETY: as the caller vouches.
        let times = unsafe { times(pair) }?;
        Ok(files.utimens(path, times, follow).map(|()| 0)?)
    };
    // SAFETY: as the caller vouches.
    unsafe { on_path(fs, path, -1, body) }
}

/// Copies an answer of bytes to C: all of it, or only its length when C gave no room.
///
/// # Safety
/// `size` bytes at `to` can be written to.
unsafe fn give(answer: &[u8], to: *mut u8, size: usize) -> Result<isize, Failure> {
    if size > 0 {
        if answer.len() > size {
            return Err(Failure::new(libc::ERANGE, format!("the answer has {} bytes", answer.len())));
        }
        if to.is_null() {
            return Err(Failure::new(libc::EFAULT, "the place for the answer is NULL"));
        }
        // SAFETY: not NULL; the caller vouches for `size` bytes, and the answer is no longer; it is our own memory.
        unsafe { core::ptr::copy_nonoverlapping(answer.as_ptr(), to, answer.len()) };
    }
    Ok(answer.len() as isize)
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `path` and `name` are NULL or strings that end in a zero byte; `size` bytes at `value` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_getxattr(
    fs: *mut NvmedFs,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> isize {
    let body = |files: &Files, path: &[u8]| {
        // SAFETY: as the caller vouches.
        let found = files.get_xattr(path, unsafe { self::path(name) }?)?;
        // SAFETY: as the caller vouches.
        unsafe { give(&found, value.cast(), size) }
    };
    // SAFETY: as the caller vouches.
    unsafe { on_path(fs, path, -1, body) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `path` and `name` are NULL or strings that end in a zero byte; `size` bytes at `value` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_setxattr(
    fs: *mut NvmedFs,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    let body = |files: &Files, path: &[u8]| {
        let how = match flags {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Failure::invalid(format!("nvmedfs_setxattr: flags {flags:#x} are not known"))),
        };
        check(value as usize, size)?;
        // A slice is never NULL; of no bytes, any other address will do.
        let from =
            if size == 0 { core::ptr::NonNull::<u8>::dangling().as_ptr() } else { value.cast_mut().cast() };
        // SAFETY: not NULL and not too long, which `check` has seen; the caller vouches for the rest. u8 needs no
        // alignment.
        let bytes = unsafe { core::slice::from_raw_parts(from, size) };
        // SAFETY: as the caller vouches.
        Ok(files.set_xattr(path, unsafe { self::path(name) }?, bytes, how).map(|()| 0)?)
    };
    // SAFETY: as the caller vouches.
    unsafe { on_path(fs, path, -1, body) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `path` is NULL or a string that ends in a zero byte; `size` bytes at `list` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_listxattr(
    fs: *mut NvmedFs,
    path: *const c_char,
    list: *mut c_char,
    size: usize,
) -> isize {
    let body = |files: &Files, path: &[u8]| {
        let found = files.list_xattr(path)?;
        // SAFETY: as the caller vouches.
        unsafe { give(&found, list.cast(), size) }
    };
    // SAFETY: as the caller vouches.
    unsafe { on_path(fs, path, -1, body) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `path` and `name` are NULL or strings that end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_removexattr(
    fs: *mut NvmedFs,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { act_on_two(fs, path, name, |files, path, name| files.remove_xattr(path, name)) }
}
