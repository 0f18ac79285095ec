//! The host's directory above `wrap_dir`. Where the host has nothing by the name of `wrap_dir` in it, we add that name
//! to listings of the directory, as a mount point would be in them: a directory stream gets it after the host's
//! entries, a listing by descriptor before them. So a program that climbs from a directory of ours by `..`, and looks
//! for the name that it comes from, finds it.

use crate::edge::{Answer, Fail, caught, errno_of, given, host};
use crate::find::route::concerns_us;
use crate::find::setting::{self, Setting};
use crate::find::walk::{c_path, path_of_descriptor};
use crate::tree::record::{RECORD_BYTES_MAX, record};
use core::ffi::{c_char, c_int};
use core::mem::MaybeUninit;
use nvmed_fs::{DirEntry, FileType};

/// Where a listing stands that has told of ours: behind every position of the host's, none of which is negative.
pub(crate) const END: u64 = u64::MAX - 1;

/// Not 0, which is the number of no entry. At a mount point it is not the number that `stat` answers either.
const INO: u64 = 1;

/// Where a listing stands that has told nothing.
const START: u64 = 0;
/// Room for an entry that every directory has.
const DOT_BYTES: usize = 24;

fn setting() -> Option<&'static Setting> {
    setting::setting().filter(|setting| setting.hosted.is_none())
}

/// The same where the host has nothing of ours' name, which it would list itself.
fn unlisted() -> Option<&'static Setting> {
    setting().filter(|setting| !setting.prefix.hides())
}

/// Whether there may be such a directory, so that a listing by descriptor is to be looked at.
pub(crate) fn is_possible() -> bool {
    unlisted().is_some()
}

/// What the kernel tells of a descriptor.
pub(crate) fn status(fd: c_int) -> Option<libc::stat> {
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel filled it, and all its fields are integers anyway.
    (sys!(SYS_fstat, fd, status.as_mut_ptr()) >= 0).then(|| unsafe { status.assume_init() })
}

/// Whether a descriptor of the host's is of the directory above `wrap_dir`, and ours is none that the host lists
/// itself.
pub(crate) fn is_descriptor(fd: c_int) -> bool {
    is_possible() && status(fd).is_some_and(|status| is(&status))
}

/// Whether a directory is one of ours, or the host's above it.
pub(crate) fn lists_ours(dirfd: c_int, path: *const c_char) -> bool {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    concerns_us(dirfd, path)
        || unlisted().is_some()
        && sys!(SYS_newfstatat, dirfd, path, status.as_mut_ptr(), 0) >= 0
        // SAFETY: all its fields are integers.
        && is(unsafe { status.assume_init_ref() })
}

/// Whether a walk from a path is ours, or comes by `wrap_dir`.
pub(crate) fn leads_to_us(path: *const c_char) -> bool {
    let is_above = |real: &[u8]| setting().is_some_and(|setting| setting.prefix.is_above(real));
    concerns_us(libc::AT_FDCWD, path)
        || setting().is_some() && caught(|| real_path(path)).is_ok_and(|real| is_above(&real))
}

/// A directory's path as the kernel tells it.
fn real_path(path: *const c_char) -> Answer<Vec<u8>> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let directory = host(sys!(SYS_openat, libc::AT_FDCWD, path, flags, 0))? as c_int;
    let real = path_of_descriptor(directory);
    sys!(SYS_close, directory);
    real.ok_or(Fail::Errno(libc::ENOENT))
}

/// Whether a directory of the host's is the one above `wrap_dir`, and ours is none that the host lists itself.
pub(crate) fn is(status: &libc::stat) -> bool {
    unlisted().is_some_and(|setting| setting.prefix.is_host_above(status.st_dev, status.st_ino))
}

/// Writes the next entries of such a directory, which stands at `position`, as `struct dirent`s; the bytes written.
pub(crate) fn fill(fd: c_int, buffer: &mut [u8], position: u64) -> Answer<usize> {
    if position == END {
        return Ok(0);
    }
    let told = host(sys!(SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len()))?;
    if told > 0 || has(fd, name()) {
        return Ok(told as usize);
    }
    let mut room = [0; RECORD_BYTES_MAX];
    let record = ours(END, &mut room);
    buffer[..record.len()].copy_from_slice(record);
    Ok(record.len())
}

/// getdents64(2) of such a directory by a descriptor, of which the kernel keeps where its own listing stands and
/// nothing of ours: so ours is told when that begins, where there is room for it and one more.
///
/// # Safety
/// The program wants `bytes` bytes at `buffer`.
pub(crate) unsafe fn list(fd: c_int, buffer: *mut u8, bytes: usize) -> isize {
    let mut room = [0; RECORD_BYTES_MAX];
    let record = ours(START, &mut room);
    let begins = sys!(SYS_lseek, fd, 0, libc::SEEK_CUR) == START as isize;
    if !begins || bytes < record.len() + DOT_BYTES || has(fd, name()) {
        return sys!(SYS_getdents64, fd, buffer, bytes);
    }
    let told = sys!(SYS_getdents64, fd, buffer.wrapping_add(record.len()), bytes - record.len());
    if told <= 0 {
        return told;
    }
    // SAFETY: the caller's contract.
    match unsafe { given::put_bytes(buffer, record) } {
        Ok(()) => told + record.len() as isize,
        Err(failure) => -(errno_of(&failure) as isize),
    }
}

fn name() -> &'static [u8] {
    setting().map_or(&[], |setting| setting.prefix.name())
}

/// The record of ours; the listing goes on at `cookie`.
fn ours(cookie: u64, room: &mut [u8; RECORD_BYTES_MAX]) -> &[u8] {
    record(&DirEntry { ino: INO, kind: FileType::Directory, name: name(), cookie }, room)
}

/// Whether the host has something of this name by now.
fn has(directory: c_int, name: &[u8]) -> bool {
    let Some(name) = c_path(name) else { return true };
    let mut status = MaybeUninit::<libc::stat>::uninit();
    sys!(SYS_newfstatat, directory, name.as_ptr(), status.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW) >= 0
}
