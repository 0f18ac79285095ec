//! The open calls.

use crate::calls::descriptor;
use crate::edge::{Answer, Fail, errno_of, fail, host};
use crate::find::credentials;
use crate::find::route::{FsPath, Route, Touch, on_path};
use crate::find::setting::{self, Setting};
use crate::find::table::Body;
use crate::find::walk::Last;
use crate::host::{end, hosted, mounts};
use crate::raw::O_LARGEFILE;
use core::ffi::{c_char, c_int};
use libc::mode_t;
use nvmed_fs::{FileType, Follow, OpenFlags};

/// What an `O_PATH` descriptor keeps of its flags (Linux, `O_PATH_FLAGS` without `O_CLOEXEC`, which is the number's).
const PATH_FLAGS: c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;

/// `O_TMPFILE` without the `O_DIRECTORY` in it.
pub(crate) const TMPFILE: c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;
/// `O_SYNC` without the `O_DSYNC` in it, which it means with it.
const SYNC: c_int = libc::O_SYNC & !libc::O_DSYNC;

/// # Errors
/// `EINVAL` for what nothing is opened by (Linux, `build_open_flags`): `O_CREAT` of a directory, `O_TMPFILE` of no
/// directory or not to be written.
pub(crate) fn check(flags: c_int) -> Answer<()> {
    let is_directory = flags & libc::O_DIRECTORY != 0;
    let is_read_only = flags & libc::O_ACCMODE == libc::O_RDONLY;
    let creates_directory = is_directory && flags & libc::O_CREAT != 0;
    let is_no_tmpfile = flags & TMPFILE != 0 && (!is_directory || is_read_only);
    if creates_directory || is_no_tmpfile { fail(libc::EINVAL) } else { Ok(()) }
}

/// What opening does to the path's last component.
pub(crate) fn touch(flags: c_int) -> Touch {
    let exclusive = flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0;
    let last = if exclusive || flags & libc::O_NOFOLLOW != 0 { Last::Keep } else { Last::Follow };
    if flags & libc::O_CREAT != 0 { Touch::Change(last) } else { Touch::Look(last) }
}

/// Opens what the path of `route` names; answers the descriptor.
pub(crate) fn open_at(route: Route<'_>, flags: c_int, mode: mode_t) -> Answer {
    match route {
        Route::Ours(ours) => open_ours(&ours, flags, mode),
        Route::Host { dirfd, path } => {
            let setting = setting::setting();
            if setting.is_some()
                // SAFETY: the path of a call that goes to the host.
                && let Some(list) = unsafe { mounts::opened(path, flags) }
            {
                return Ok(list as isize);
            }
            let fd = host(sys!(SYS_openat, dirfd, path, flags | O_LARGEFILE, mode))?;
            hosted::opened(fd as c_int);
            match setting {
                Some(setting) => unless_hidden(setting, fd as c_int, flags),
                None => Ok(fd),
            }
        }
    }
}

/// A host descriptor, unless it is of the directory that `wrap_dir` hides.
fn unless_hidden(setting: &Setting, fd: c_int, flags: c_int) -> Answer {
    let may_be = flags & libc::O_ACCMODE == libc::O_RDONLY && flags & libc::O_CREAT == 0;
    if may_be && setting.prefix.hides() {
        let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
        if sys!(SYS_fstat, fd, stat.as_mut_ptr()) >= 0 {
            // SAFETY: the kernel filled it, and all its fields are integers anyway.
            let stat = unsafe { stat.assume_init() };
            if setting.prefix.is_hidden(stat.st_dev, stat.st_ino) {
                sys!(SYS_close, fd);
                return Err(Fail::Root);
            }
        }
    }
    Ok(fd as isize)
}

fn open_ours(ours: &FsPath<'_>, flags: c_int, mode: mode_t) -> Answer {
    let fd = descriptor::reserve(flags & libc::O_CLOEXEC != 0)?;
    match describe(ours, flags, mode) {
        Ok(body) => descriptor::publish(fd, body),
        Err(failure) => {
            descriptor::give_back(fd);
            // A file system of ours has nothing behind the name of a special file.
            if errno_of(&failure) == libc::ENXIO { end::open(ours, flags) } else { Err(failure) }
        }
    }
}

fn describe(ours: &FsPath<'_>, flags: c_int, mode: mode_t) -> Answer<Body> {
    if flags & libc::O_PATH != 0 {
        return path_only(ours, flags);
    }
    check(flags)?;
    let synced = if flags & SYNC != 0 { libc::O_DSYNC } else { 0 };
    let flags = OpenFlags((flags & !O_LARGEFILE | synced) as u32);
    let file = match &ours.exact {
        Some(node) => ours.files.open_node(node, flags, &ours.who())?,
        None => ours.files.open(&ours.at, ours.path(), flags, credentials::masked(mode), &ours.who())?,
    };
    Ok(Body { node: file.node(), file: Some(file), path_flags: 0 })
}

/// `O_PATH`: a node without an open file.
fn path_only(ours: &FsPath<'_>, flags: c_int) -> Answer<Body> {
    let follow = if flags & libc::O_NOFOLLOW != 0 { Follow::No } else { Follow::Yes };
    let node = ours.node(follow)?;
    if flags & libc::O_DIRECTORY != 0 && node.kind() != FileType::Directory {
        return fail(libc::ENOTDIR);
    }
    Ok(Body { file: None, node, path_flags: flags & PATH_FLAGS })
}

#[inline]
fn open_path(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    on_path(dirfd, path, touch(flags), |route| open_at(route, flags, mode))
}

// `open` and its kin are variadic in C; on x86-64 an absent argument is a register of any value, which
// is looked at only when the flags say that it is there.
hook! {
    /// open(2)
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_path(libc::AT_FDCWD, path, flags, mode)
    }
}

hook! {
    /// openat(2)
    fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_path(dirfd, path, flags, mode)
    }
}

hook! {
    /// open(2), as compiled with _FORTIFY_SOURCE
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        open_path(libc::AT_FDCWD, path, flags, 0)
    }
}

hook! {
    /// openat(2), as compiled with _FORTIFY_SOURCE
    fn __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_path(dirfd, path, flags, 0)
    }
}

hook! {
    /// creat(2)
    fn creat(path: *const c_char, mode: mode_t) -> c_int {
        open_path(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }
}
