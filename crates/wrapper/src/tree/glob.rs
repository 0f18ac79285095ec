//! glob(3): libc's own function, which is handed our functions to list and look at directories (`GLOB_ALTDIRFUNC`).

use crate::calls::stat::{lstat, stat};
use crate::find::setting;
use crate::tree::directory::{closedir, opendir, readdir};
use core::ffi::{c_char, c_int, c_void};
use libc::{DIR, dirent, size_t};

type ErrorFn = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;

/// `glob_t` of glibc.
#[repr(C)]
pub(crate) struct Glob {
    pathc: size_t,
    pathv: *mut *mut c_char,
    offs: size_t,
    flags: c_int,
    closedir: Option<unsafe extern "C" fn(*mut DIR) -> c_int>,
    readdir: Option<unsafe extern "C" fn(*mut DIR) -> *mut dirent>,
    opendir: Option<unsafe extern "C" fn(*const c_char) -> *mut DIR>,
    lstat: Option<unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int>,
    stat: Option<unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int>,
}

/// `GLOB_ALTDIRFUNC` of glob.h: the functions in the `glob_t` are used.
const GLOB_ALTDIRFUNC: c_int = 1 << 9;

/// A void function in C, whose answer nobody reads.
unsafe extern "C" fn close_stream(dir: *mut DIR) -> c_int {
    // SAFETY: libc passes the stream that it opened by `opendir` below.
    unsafe { closedir(dir) }
}

hook! {
    /// glob(3)
    fn glob(pattern: *const c_char, flags: c_int, error: ErrorFn, found: *mut Glob) -> c_int, next libc_glob {
        if setting::setting().is_none() || flags & GLOB_ALTDIRFUNC != 0 {
            return libc_glob(pattern, flags, error, found);
        }
        let found_at = &mut *found;
        found_at.closedir = Some(close_stream);
        found_at.readdir = Some(readdir);
        found_at.opendir = Some(opendir);
        found_at.lstat = Some(lstat);
        found_at.stat = Some(stat);
        let answer = libc_glob(pattern, flags | GLOB_ALTDIRFUNC, error, found);
        found_at.flags &= !GLOB_ALTDIRFUNC;
        answer
    }
}

/// The functions are passed as `void *` streams in C; both are one pointer.
const _: () = assert!(size_of::<*mut DIR>() == size_of::<*mut c_void>());
