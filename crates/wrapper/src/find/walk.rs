//! The slow way to find out whether a path is ours: component by component, following the host's symbolic links.
//!
//! Taken only after the host has said that a path does not exist, or before a call that would create
//! something, or when a `..` makes the text ambiguous.

use crate::find::magic_link::MagicLink;
use crate::find::prefix::component;
use crate::find::setting::{self, Setting};
use crate::raw::PATH_BYTES_MAX;
use core::ffi::{c_char, c_int};
use std::ffi::CString;

/// Symbolic links followed before a path is a loop: the kernel's own limit.
pub(crate) const LINKS_MAX: usize = 40;
/// Whether a symbolic link as the last component is followed by the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// To its target.
    Follow,
    /// The link itself is meant.
    Keep,
}

/// `struct open_how` of openat2.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// `RESOLVE_NO_SYMLINKS` of linux/openat2.h.
const RESOLVE_NO_SYMLINKS: u64 = 4;

/// The path behind a descriptor of the host's, as the kernel tells it.
pub(crate) fn path_of_descriptor(fd: c_int) -> Option<Vec<u8>> {
    read_link(&MagicLink::of(fd)).ok().filter(|path| path.first() == Some(&b'/'))
}

/// The target of the host's symbolic link `path`.
///
/// # Errors
/// Those of readlink(2): `EINVAL` for what is there and is no link.
fn read_link(path: &core::ffi::CStr) -> Result<Vec<u8>, c_int> {
    let mut target = vec![0u8; PATH_BYTES_MAX];
    let len = sys!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), target.as_mut_ptr(), target.len());
    target.truncate(usize::try_from(len).map_err(|_| -len as c_int)?);
    Ok(target)
}

/// The kernel's working directory.
pub(crate) fn kernel_cwd() -> Option<Vec<u8>> {
    let mut path = vec![0u8; PATH_BYTES_MAX];
    let len = sys!(SYS_getcwd, path.as_mut_ptr(), path.len());
    path.truncate(usize::try_from(len).ok()?.checked_sub(1)?);
    (path.first() == Some(&b'/')).then_some(path)
}

/// Where the host's path leads into `wrap_dir`, if it does: what is left below it.
pub(crate) fn leads_in(setting: &Setting, dirfd: c_int, path: &[u8], last: Last) -> Option<Vec<u8>> {
    if setting.hosted.is_some() {
        return None;
    }
    let relative = path.first() != Some(&b'/');
    let by_name = relative && dirfd != libc::AT_FDCWD && has_component(path, setting.prefix.name());
    if !by_name && !has_symlink(dirfd, path) {
        return None;
    }
    let base = match (relative, dirfd) {
        (false, _) => b"/".to_vec(),
        (true, libc::AT_FDCWD) => kernel_cwd()?,
        (true, _) => path_of_descriptor(dirfd)?,
    };
    enter(setting, base, path, last)
}

fn has_component(path: &[u8], name: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(|part| part == name)
}

/// Whether the kernel meets a symbolic link on the path; yes if it cannot tell.
pub(crate) fn has_symlink(dirfd: c_int, path: &[u8]) -> bool {
    let Ok(path) = CString::new(path) else { return false };
    let flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    let how = OpenHow { flags, mode: 0, resolve: RESOLVE_NO_SYMLINKS };
    let fd = sys!(SYS_openat2, dirfd, path.as_ptr(), &raw const how, size_of::<OpenHow>());
    if fd >= 0 {
        sys!(SYS_close, fd);
        return false;
    }
    matches!(-fd as c_int, libc::ELOOP | libc::ENOSYS | libc::EPERM | libc::EMFILE)
}

/// Follows `path` from the directory `base` as the kernel would, until it enters `wrap_dir`.
pub(crate) fn enter(setting: &Setting, base: Vec<u8>, path: &[u8], last: Last) -> Option<Vec<u8>> {
    let prefix = &setting.prefix;
    let mut here = base;
    let mut todo = path.to_vec();
    let mut links = 0;
    while let Some((name, rest)) = component(&todo) {
        let (name, rest) = (name.to_vec(), rest.to_vec());
        let parent = here.len();
        step(&mut here, &name);
        if name == b".." {
            todo = rest;
            continue;
        }
        if prefix.is(&here) {
            let start = rest.iter().position(|&byte| byte != b'/').unwrap_or(rest.len());
            return Some(rest[start..].to_vec());
        }
        let is_last = component(&rest).is_none();
        if is_last && rest.is_empty() && last == Last::Keep {
            return None;
        }
        match link_at(&here) {
            Ok(target) => {
                links += 1;
                if links > LINKS_MAX {
                    return None;
                }
                here.truncate(if target.first() == Some(&b'/') { 1 } else { parent.max(1) });
                todo = [target.as_slice(), rest.as_slice()].concat();
            }
            Err(errno) if errno == libc::EINVAL || prefix.is_above(&here) => todo = rest,
            Err(_) => return None,
        }
    }
    None
}

fn link_at(path: &[u8]) -> Result<Vec<u8>, c_int> {
    read_link(&CString::new(path).map_err(|_| libc::ENOENT)?)
}

/// Whether `path` from the directory `base` comes by `wrap_dir` where no symbolic link is on the way.
pub(crate) fn comes_by(setting: &Setting, base: &[u8], path: &[u8]) -> bool {
    let mut here = base.to_vec();
    let mut todo = path;
    while let Some((name, rest)) = component(todo) {
        step(&mut here, name);
        if setting.prefix.is(&here) {
            return true;
        }
        todo = rest;
    }
    false
}

/// From a directory to what it calls `name`, or to the directory above it.
fn step(here: &mut Vec<u8>, name: &[u8]) {
    if name == b".." {
        let cut = here.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        return here.truncate(cut.max(1));
    }
    if here.last() != Some(&b'/') {
        here.push(b'/');
    }
    here.extend_from_slice(name);
}

/// The host path at which a path that left our file system goes on: absolute as it is, `../rest` from
/// our root.
pub(crate) fn outside(rest: &[u8]) -> Vec<u8> {
    if rest.first() == Some(&b'/') {
        return rest.to_vec();
    }
    let mut here = setting::setting().map(|setting| setting.prefix.text.clone()).unwrap_or_default();
    let mut todo = rest;
    while let Some((b"..", after)) = component(todo) {
        let cut = here.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        here.truncate(cut);
        todo = after;
    }
    here.push(b'/');
    let start = todo.iter().position(|&byte| byte != b'/').unwrap_or(todo.len());
    here.extend_from_slice(&todo[start..]);
    here
}

/// A path without the slashes that it begins with.
pub(crate) fn without_slashes(path: &[u8]) -> &[u8] {
    &path[path.iter().take_while(|&&byte| byte == b'/').count()..]
}

/// A path argument as the C string that raw system calls take.
pub(crate) fn c_path(path: &[u8]) -> Option<CString> {
    CString::new(path).ok()
}

/// The bytes of a path argument up to its end.
///
/// # Safety
/// `path` is a C string for `'a`.
pub(crate) unsafe fn argument<'a>(path: *const c_char) -> &'a [u8] {
    // SAFETY: the caller's contract.
    unsafe { crate::raw::bytes(path) }
}
