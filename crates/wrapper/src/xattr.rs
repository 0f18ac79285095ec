//! Extended attributes and file handles: not offered, in the way that `ls -l` and `cp -a` take quietly.

use crate::descriptor::on_descriptor;
use crate::edge::{fail, host};
use crate::place::{Place, Spot, on_path};
use crate::stat::{look, of};
use core::ffi::{c_char, c_int, c_uint, c_void};
use libc::{size_t, ssize_t};
use nvmed_fs::Follow;

/// The path must exist; then it has no attributes.
fn none(spot: &Spot<'_>, follow: Follow) -> crate::edge::Answer {
    of(spot, follow)?;
    fail(libc::EOPNOTSUPP)
}

macro_rules! attribute_calls {
    ($(
        $name:ident($($argument:ident: $ty:ty),*) -> $ret:ty = $number:ident, $flags:expr, $follow:ident;
    )*) => { $(
        hook! {
            fn $name(path: *const c_char $(, $argument: $ty)*) -> $ret {
                on_path(libc::AT_FDCWD, path, look($flags), |place| match place {
                    Place::Host { path, .. } => host(sys!($number, path $(, $argument)*)),
                    Place::Ours(spot) => none(&spot, Follow::$follow),
                })
            }
        }
    )* };
}

attribute_calls! {
    getxattr(name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t = SYS_getxattr, 0, Yes;
    lgetxattr(name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t
        = SYS_lgetxattr, libc::AT_SYMLINK_NOFOLLOW, No;
    setxattr(name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int
        = SYS_setxattr, 0, Yes;
    lsetxattr(name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int
        = SYS_lsetxattr, libc::AT_SYMLINK_NOFOLLOW, No;
    listxattr(list: *mut c_char, size: size_t) -> ssize_t = SYS_listxattr, 0, Yes;
    llistxattr(list: *mut c_char, size: size_t) -> ssize_t = SYS_llistxattr, libc::AT_SYMLINK_NOFOLLOW, No;
    removexattr(name: *const c_char) -> c_int = SYS_removexattr, 0, Yes;
    lremovexattr(name: *const c_char) -> c_int = SYS_lremovexattr, libc::AT_SYMLINK_NOFOLLOW, No;
}

macro_rules! descriptor_calls {
    ($($name:ident($($argument:ident: $ty:ty),*) -> $ret:ty = $number:ident;)*) => { $(
        hook! {
            fn $name(fd: c_int $(, $argument: $ty)*) -> $ret {
                on_descriptor(fd, || sys!($number, fd $(, $argument)*), |_| fail(libc::EOPNOTSUPP))
            }
        }
    )* };
}

descriptor_calls! {
    fgetxattr(name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t = SYS_fgetxattr;
    fsetxattr(name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int = SYS_fsetxattr;
    flistxattr(list: *mut c_char, size: size_t) -> ssize_t = SYS_flistxattr;
    fremovexattr(name: *const c_char) -> c_int = SYS_fremovexattr;
}

hook! {
    /// name_to_handle_at(2)
    fn name_to_handle_at(
        dirfd: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int,
    ) -> c_int {
        // Its AT_SYMLINK_FOLLOW is the reverse of the others' flag.
        let looks = if flags & libc::AT_SYMLINK_FOLLOW != 0 { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        on_path(dirfd, path, look(looks), |place| match place {
            Place::Host { dirfd, .. } if crate::table::is_ours(dirfd) => fail(libc::EOPNOTSUPP),
            Place::Host { dirfd, path } => {
                host(sys!(SYS_name_to_handle_at, dirfd, path, handle, mount, flags))
            }
            Place::Ours(_) => fail(libc::EOPNOTSUPP),
        })
    }
}

hook! {
    /// inotify_add_watch(2): nothing here tells of changes
    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: c_uint) -> c_int {
        on_path(libc::AT_FDCWD, path, look(0), |place| match place {
            Place::Host { path, .. } => host(sys!(SYS_inotify_add_watch, fd, path, mask)),
            Place::Ours(_) => fail(libc::ENOSYS),
        })
    }
}
