//! Calls of the kernel's own file systems: mounts, accounting, swap, quotas, watches. A path of ours is none
//! of the kernel's, so each is refused with an errno that its manual page has, and a line where a program
//! would go on as if it had worked.

use crate::calls::stat::look;
use crate::edge::given::Room;
use crate::edge::{Answer, host};
use crate::find::route::{Route, on_path};
use crate::find::table;
use crate::raw;
use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use libc::size_t;

fn refuse(what: &str, path: *const c_char, errno: c_int) -> Answer {
    let mut room = Room::new();
    let path = room.name(path)?.to_string_lossy();
    raw::say(format_args!(
        "{what} {path}: the kernel knows no file system at this path, only nvmed does; use a path of the host"
    ));
    crate::edge::fail(errno)
}

/// Calls whose first argument is a path: refused with an errno if it is ours.
macro_rules! of_path {
    ($($name:ident($($argument:ident: $ty:ty),*) = $number:ident, $errno:ident, $doc:literal;)*) => { $(
        hook! {
            #[doc = $doc]
            fn $name(path: *const c_char $(, $argument: $ty)*) -> c_int {
                on_path(libc::AT_FDCWD, path, look(0), |route| match route {
                    Route::Host { path, .. } => host(sys!($number, path $(, $argument)*)),
                    Route::Ours(_) => refuse(stringify!($name), path, libc::$errno),
                })
            }
        }
    )* };
}

of_path! {
    umount2(flags: c_int) = SYS_umount2, EINVAL, "umount2(2): nothing of the kernel's is mounted there";
    chroot() = SYS_chroot, EOPNOTSUPP, "chroot(2)";
    swapon(flags: c_int) = SYS_swapon, EINVAL, "swapon(2)";
    swapoff() = SYS_swapoff, EINVAL, "swapoff(2)";
    acct() = SYS_acct, EACCES, "acct(2)";
}

hook! {
    /// umount(2)
    fn umount(path: *const c_char) -> c_int {
        umount2(path, 0)
    }
}

/// Calls with a directory descriptor and a path.
macro_rules! at_path {
    ($($name:ident($($argument:ident: $ty:ty),*) = $number:ident, $doc:literal;)*) => { $(
        hook! {
            #[doc = $doc]
            fn $name(dirfd: c_int, path: *const c_char $(, $argument: $ty)*) -> c_int {
                if table::is_ours(dirfd) {
                    return refuse_held(stringify!($name));
                }
                on_path(dirfd, path, look(0), |route| match route {
                    Route::Host { dirfd, path } => host(sys!($number, dirfd, path $(, $argument)*)),
                    Route::Ours(_) => refuse(stringify!($name), path, libc::EOPNOTSUPP),
                })
            }
        }
    )* };
}

fn refuse_held(what: &str) -> c_int {
    crate::edge::finish(refuse(what, c"".as_ptr(), libc::EOPNOTSUPP))
}

at_path! {
    open_tree(flags: c_uint) = SYS_open_tree, "open_tree(2)";
    fspick(flags: c_uint) = SYS_fspick, "fspick(2)";
    mount_setattr(flags: c_uint, attributes: *mut c_void, size: size_t) = SYS_mount_setattr, "mount_setattr(2)";
}

hook! {
    /// mount(2): neither on a path of ours nor of one
    fn mount(
        source: *const c_char, target: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void,
    ) -> c_int {
        let on_target = || {
            on_path(libc::AT_FDCWD, target, look(0), |route| match route {
                Route::Host { path, .. } => host(sys!(SYS_mount, source, path, kind, flags, data)),
                Route::Ours(_) => refuse("mount", target, libc::EOPNOTSUPP),
            })
        };
        // A source is a path only if it is written as one: `proc` and `none` are names.
        let mut room = Room::new();
        let is_path = room.name(source).is_ok_and(|source| source.to_bytes().contains(&b'/'));
        if !is_path {
            return on_target();
        }
        let mut is_host = true;
        let refused: c_int = on_path(libc::AT_FDCWD, source, look(0), |route| match route {
            Route::Host { .. } => Ok(0),
            Route::Ours(_) => {
                is_host = false;
                refuse("mount", source, libc::EOPNOTSUPP)
            }
        });
        if is_host { on_target() } else { refused }
    }
}

hook! {
    /// pivot_root(2)
    fn pivot_root(new: *const c_char, old: *const c_char) -> c_int {
        on_path(libc::AT_FDCWD, new, look(0), |route| match route {
            Route::Host { path, .. } => host(sys!(SYS_pivot_root, path, old)),
            Route::Ours(_) => refuse("pivot_root", new, libc::EINVAL),
        })
    }
}

hook! {
    /// quotactl(2)
    fn quotactl(command: c_int, device: *const c_char, id: c_int, address: *mut c_char) -> c_int {
        if device.is_null() {
            return crate::edge::reply(sys!(SYS_quotactl, command, device, id, address));
        }
        on_path(libc::AT_FDCWD, device, look(0), |route| match route {
            Route::Host { path, .. } => host(sys!(SYS_quotactl, command, path, id, address)),
            Route::Ours(_) => refuse("quotactl", device, libc::ENOTBLK),
        })
    }
}

hook! {
    /// move_mount(2)
    fn move_mount(
        from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, flags: c_uint,
    ) -> c_int {
        if table::is_ours(from_fd) || table::is_ours(to_fd) {
            return refuse_held("move_mount");
        }
        on_path(to_fd, to, look(0), |route| match route {
            Route::Host { dirfd, path } => host(sys!(SYS_move_mount, from_fd, from, dirfd, path, flags)),
            Route::Ours(_) => refuse("move_mount", to, libc::EOPNOTSUPP),
        })
    }
}

hook! {
    /// fanotify_mark(2): nothing here tells of changes
    fn fanotify_mark(fd: c_int, flags: c_uint, mask: u64, dirfd: c_int, path: *const c_char) -> c_int {
        if table::is_ours(dirfd) {
            return refuse_held("fanotify_mark");
        }
        on_path(dirfd, path, look(0), |route| match route {
            Route::Host { dirfd, path } => host(sys!(SYS_fanotify_mark, fd, flags, mask, dirfd, path)),
            Route::Ours(_) => refuse("fanotify_mark", path, libc::EOPNOTSUPP),
        })
    }
}
