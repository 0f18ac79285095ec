//! The flags that each call knows, in one table. The kernel looks at them before names and descriptors: what is unknown
//! is `EINVAL`, whatever else is wrong. The hooks and the system calls by number ask here.

use crate::edge::{Answer, Reply, fail, finish};
use crate::find::route::{self, Route, Touch};
use crate::raw::{self, SYS_FCHMODAT2, SYS_REMOVEXATTRAT, Word};
use core::ffi::{CStr, c_char, c_int, c_uint};
use libc::mode_t;

// linux/stat.h; not in the `libc` crate.
const STATX_RESERVED: c_uint = 1 << 31;
/// What sync_file_range(2) waits for and writes.
const SYNC_FILE_RANGE: c_uint =
    libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
/// Bits of access(2)'s mode.
pub(crate) const ACCESS: c_int = libc::R_OK | libc::W_OK | libc::X_OK;

/// A name that is looked for from no directory: calls that got beyond their flags fail with `EBADF`.
pub(crate) const NAME: &CStr = c"name";
pub(crate) const NOWHERE: c_int = -1;

/// libc's function emulates the flag that older kernels' call does not take.
pub(crate) fn fchmodat_of_libc(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> isize {
    // SAFETY: the program's arguments, under `edge`'s contract.
    let answer = unsafe {
        next!(fchmodat, fn(c_int, *const c_char, mode_t, c_int) -> c_int)(dirfd, path, mode, flags)
    };
    if answer == -1 { -raw::errno() as isize } else { answer as isize }
}

/// fchmodat2 is the call that takes flags, Linux 6.6.
pub(crate) fn fchmodat2_of_host(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> isize {
    raw::call(SYS_FCHMODAT2, [dirfd.word(), path.word(), mode.word(), flags.word()])
}

/// What a call knows.
pub(crate) struct Known {
    flags: c_int,
    /// The host's answer to flags, for a name that is nowhere: newer kernels know more, for their own files.
    host: fn(c_int) -> isize,
}

pub(crate) const FSTATAT: Known = Known {
    flags: libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH | libc::AT_STATX_SYNC_TYPE,
    host: |flags| sys!(SYS_newfstatat, NOWHERE, NAME.as_ptr(), 0usize, flags),
};
pub(crate) const STATX: Known =
    Known { flags: FSTATAT.flags, host: |flags| sys!(SYS_statx, NOWHERE, NAME.as_ptr(), flags, 0, 0usize) };
pub(crate) const FACCESSAT2: Known = Known {
    flags: libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH,
    host: |flags| sys!(SYS_faccessat2, NOWHERE, NAME.as_ptr(), libc::F_OK, flags),
};
/// The system call.
pub(crate) const FCHMODAT2: Known = Known {
    flags: libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH,
    host: |flags| fchmodat2_of_host(NOWHERE, NAME.as_ptr(), 0, flags),
};
/// The function: libc knew one flag of its own before the kernel knew any.
pub(crate) const FCHMODAT: Known = Known {
    flags: libc::AT_SYMLINK_NOFOLLOW,
    host: |flags| fchmodat_of_libc(NOWHERE, NAME.as_ptr(), 0, flags),
};
pub(crate) const FCHOWNAT: Known = Known {
    flags: libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH,
    host: |flags| sys!(SYS_fchownat, NOWHERE, NAME.as_ptr(), 0, 0, flags),
};
pub(crate) const UTIMENSAT: Known = Known {
    flags: libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH,
    host: |flags| sys!(SYS_utimensat, NOWHERE, NAME.as_ptr(), 0usize, flags),
};
/// setxattrat(2) and its kin; one that only removes is asked.
pub(crate) const XATTRAT: Known = Known {
    flags: libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH,
    host: |flags| {
        raw::call(
            SYS_REMOVEXATTRAT,
            [NOWHERE.word(), NAME.as_ptr().word(), flags.word(), NAME.as_ptr().word()],
        )
    },
};
pub(crate) const UNLINKAT: Known =
    Known { flags: libc::AT_REMOVEDIR, host: |flags| sys!(SYS_unlinkat, NOWHERE, NAME.as_ptr(), flags) };
pub(crate) const LINKAT: Known = Known {
    flags: libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH,
    host: |flags| sys!(SYS_linkat, NOWHERE, NAME.as_ptr(), NOWHERE, NAME.as_ptr(), flags),
};
pub(crate) const RENAMEAT2: Known = Known {
    flags: (libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT) as c_int,
    host: |flags| sys!(SYS_renameat2, NOWHERE, NAME.as_ptr(), NOWHERE, NAME.as_ptr(), flags),
};

impl Known {
    /// What a call of ours takes.
    pub(crate) fn flags(&self) -> c_int {
        self.flags
    }

    /// Whether a call of ours takes `flags`.
    #[inline(always)]
    fn has(&self, flags: c_int) -> bool {
        flags & !self.flags == 0
    }

    /// Whether the host takes `flags`, beyond what ours knows.
    #[cold]
    pub(crate) fn host_has(&self, flags: c_int) -> bool {
        (self.host)(flags) != -libc::EINVAL as isize
    }

    /// # Errors
    /// `EINVAL` for flags that ours does not know.
    #[inline(always)]
    pub(crate) fn check(&self, flags: c_int) -> Answer<()> {
        if self.has(flags) { Ok(()) } else { fail(libc::EINVAL) }
    }

    /// As [`route::on_path`], once the flags are known: to ours, or to the host whose path it is.
    #[inline]
    pub(crate) fn on_path<R: Reply>(
        &self,
        flags: c_int,
        (dirfd, path): (c_int, *const c_char),
        touch: Touch,
        mut run: impl FnMut(Route<'_>) -> Answer,
    ) -> R {
        if self.has(flags) {
            return route::on_path(dirfd, path, touch, run);
        }
        if !self.host_has(flags) {
            return finish(fail(libc::EINVAL));
        }
        route::on_path(dirfd, path, touch, |route| match route {
            Route::Ours(_) => fail(libc::EINVAL),
            host => run(host),
        })
    }
}

/// # Errors
/// `EINVAL` for what no statx(2) takes.
pub(crate) fn check_statx(flags: c_int, mask: c_uint) -> Answer<()> {
    let is_both = flags & libc::AT_STATX_SYNC_TYPE == libc::AT_STATX_SYNC_TYPE;
    if is_both || mask & STATX_RESERVED != 0 { fail(libc::EINVAL) } else { Ok(()) }
}

/// # Errors
/// `EINVAL` for flags that sync_file_range(2) does not know.
pub(crate) fn check_range(flags: c_uint) -> Answer<()> {
    if flags & !SYNC_FILE_RANGE == 0 { Ok(()) } else { fail(libc::EINVAL) }
}

/// # Errors
/// `EINVAL` for a mode that access(2) has no meaning for.
#[inline(always)]
pub(crate) fn check_access(mode: c_int) -> Answer<()> {
    if mode & !ACCESS == 0 { Ok(()) } else { fail(libc::EINVAL) }
}

/// The size of readlink(2)'s buffer, which is an `int` of the kernel's.
///
/// # Errors
/// `EINVAL` for none.
pub(crate) fn buffer_bytes(size: usize) -> Answer<usize> {
    match size as c_int {
        1.. => Ok(size as c_int as usize),
        _ => fail(libc::EINVAL),
    }
}
