//! Calls that change the program's user and group ids.

use crate::find::{credentials, mount};
use crate::raw;
use core::ffi::{c_char, c_int};
use libc::{gid_t, size_t, uid_t};

/// The kernel is asked again who the program is, and a server of ours asks it too.
pub(crate) fn changed() {
    mount::identity_changed();
    credentials::refresh_if_known();
}

macro_rules! identity {
    ($($name:ident($($argument:ident: $ty:ty),*) = $libc:ident;)*) => { $(
        hook! {
            fn $name($($argument: $ty),*) -> c_int, next $libc {
                let answer = $libc($($argument),*);
                let errno = raw::errno();
                changed();
                raw::set_errno(errno);
                answer
            }
        }
    )* };
}

identity! {
    setuid(uid: uid_t) = libc_setuid;
    setgid(gid: gid_t) = libc_setgid;
    seteuid(uid: uid_t) = libc_seteuid;
    setegid(gid: gid_t) = libc_setegid;
    setreuid(real: uid_t, effective: uid_t) = libc_setreuid;
    setregid(real: gid_t, effective: gid_t) = libc_setregid;
    setresuid(real: uid_t, effective: uid_t, saved: uid_t) = libc_setresuid;
    setresgid(real: gid_t, effective: gid_t, saved: gid_t) = libc_setresgid;
    setgroups(count: size_t, groups: *const gid_t) = libc_setgroups;
    initgroups(user: *const c_char, group: gid_t) = libc_initgroups;
}
