//! Extended attributes; and file handles, which are not offered.

use crate::backend::{Files, Node};
use crate::descriptor::on_descriptor;
use crate::edge::{Answer, fail, host};
use crate::given::{self, Room};
use crate::place::{Place, on_path};
use crate::stat::look;
use core::ffi::{c_char, c_int, c_uint, c_void};
use libc::{size_t, ssize_t};
use nvmed_fs::{Follow, SetXattr};

/// What a call does to an inode.
enum Call {
    Get { name: *const c_char, value: *mut c_void, size: size_t },
    Set { name: *const c_char, value: *const c_void, size: size_t, flags: c_int },
    List { list: *mut c_char, size: size_t },
    Remove { name: *const c_char },
}

/// Copies an answer out; with size 0 the program only asks how long it is.
///
/// # Safety
/// The program wants the answer at `into`, up to `size` bytes.
unsafe fn copy_out(bytes: &[u8], into: *mut u8, size: size_t) -> Answer {
    if size > 0 {
        if bytes.len() > size {
            return fail(libc::ERANGE);
        }
        // SAFETY: the program wants up to `size` bytes there, which is no less.
        unsafe { given::put_bytes(into, bytes) }?;
    }
    Ok(bytes.len() as isize)
}

fn run(files: Files, node: &Node, call: &Call) -> Answer {
    let who = crate::credentials::who();
    let mut room = Room::new();
    match *call {
        Call::Get { name, value, size } => {
            let found = files.get_xattr_node(node, room.attribute(name)?, &who)?;
            // SAFETY: the program's arguments, under `edge`'s contract, here and below.
            unsafe { copy_out(&found, value.cast(), size) }
        }
        Call::List { list, size } => {
            let names = files.list_xattr_node(node, &who)?;
            // SAFETY: as above.
            unsafe { copy_out(&names, list.cast(), size) }
        }
        Call::Remove { name } => {
            files.remove_xattr_node(node, room.attribute(name)?, &who)?;
            Ok(0)
        }
        Call::Set { name, value, size, flags } => {
            let how = match flags {
                0 => SetXattr::Any,
                libc::XATTR_CREATE => SetXattr::Create,
                libc::XATTR_REPLACE => SetXattr::Replace,
                _ => return fail(libc::EINVAL),
            };
            let name = room.attribute(name)?;
            if size > nvmed_fs::XATTR_VALUE_BYTES_MAX {
                return fail(libc::E2BIG);
            }
            let value = given::bytes(value.cast(), size)?;
            files.set_xattr_node(node, name, &value, how, &who)?;
            Ok(0)
        }
    }
}

macro_rules! attribute_calls {
    ($(
        $name:ident($($argument:ident: $ty:ty),*) -> $ret:ty = $number:ident, $flags:expr, $follow:ident, $call:ident;
    )*) => { $(
        hook! {
            fn $name(path: *const c_char $(, $argument: $ty)*) -> $ret {
                on_path(libc::AT_FDCWD, path, look($flags), |place| match place {
                    Place::Host { path, .. } => host(sys!($number, path $(, $argument)*)),
                    Place::Ours(spot) => {
                        run(spot.files, &spot.node(Follow::$follow)?, &Call::$call { $($argument),* })
                    }
                })
            }
        }
    )* };
}

attribute_calls! {
    getxattr(name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t = SYS_getxattr, 0, Yes, Get;
    lgetxattr(name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t
        = SYS_lgetxattr, libc::AT_SYMLINK_NOFOLLOW, No, Get;
    setxattr(name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int
        = SYS_setxattr, 0, Yes, Set;
    lsetxattr(name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int
        = SYS_lsetxattr, libc::AT_SYMLINK_NOFOLLOW, No, Set;
    listxattr(list: *mut c_char, size: size_t) -> ssize_t = SYS_listxattr, 0, Yes, List;
    llistxattr(list: *mut c_char, size: size_t) -> ssize_t
        = SYS_llistxattr, libc::AT_SYMLINK_NOFOLLOW, No, List;
    removexattr(name: *const c_char) -> c_int = SYS_removexattr, 0, Yes, Remove;
    lremovexattr(name: *const c_char) -> c_int = SYS_lremovexattr, libc::AT_SYMLINK_NOFOLLOW, No, Remove;
}

macro_rules! descriptor_calls {
    ($($name:ident($($argument:ident: $ty:ty),*) -> $ret:ty = $number:ident, $call:ident;)*) => { $(
        hook! {
            fn $name(fd: c_int $(, $argument: $ty)*) -> $ret {
                on_descriptor(fd, || sys!($number, fd $(, $argument)*), |body| {
                    let file = body.file()?;
                    // O_PATH (open(2)): EBADF.
                    file.list_xattr(&crate::credentials::who())?;
                    run(crate::mount::files()?, &body.node, &Call::$call { $($argument),* })
                })
            }
        }
    )* };
}

descriptor_calls! {
    fgetxattr(name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t = SYS_fgetxattr, Get;
    fsetxattr(name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int
        = SYS_fsetxattr, Set;
    flistxattr(list: *mut c_char, size: size_t) -> ssize_t = SYS_flistxattr, List;
    fremovexattr(name: *const c_char) -> c_int = SYS_fremovexattr, Remove;
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
