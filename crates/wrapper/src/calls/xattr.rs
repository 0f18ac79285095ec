//! Extended attributes; and file handles, which are not offered.

use crate::calls::stat::{follow, look, or_empty};
use crate::calls::terminal::or_stand_in;
use crate::edge::flags::XATTRAT;
use crate::edge::given::{self, Room};
use crate::edge::{Answer, Reply, fail, finish, host, reply};
use crate::find::backend::{Files, Object};
use crate::find::route::{self, Route, on_itself, on_path};
use crate::find::{credentials, cwd, mount, table};
use crate::raw::{self, SYS_GETXATTRAT, SYS_LISTXATTRAT, SYS_REMOVEXATTRAT, SYS_SETXATTRAT, Word};
use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use libc::{size_t, ssize_t};
use nvmed_fs::{Follow, SetXattr};

/// What a call does to an inode, with the program's arguments.
#[derive(Clone, Copy)]
enum Call {
    Get { name: *const c_char, value: *mut c_void, size: size_t },
    Set { name: *const c_char, value: *const c_void, size: size_t, flags: c_int },
    List { list: *mut c_char, size: size_t },
    Remove { name: *const c_char },
}

/// The same call with names and values copied from the program's memory: the kernel copies them before it looks at
/// paths and descriptors.
enum CopiedCall<'a> {
    Get { name: &'a [u8], value: *mut u8, size: size_t },
    Set { name: &'a [u8], value: Vec<u8>, how: SetMode },
    List { list: *mut u8, size: size_t },
    Remove { name: &'a [u8] },
}

/// Whether an attribute that is set must exist, or must not.
enum SetMode {
    As(SetXattr),
    /// `XATTR_CREATE` with `XATTR_REPLACE`: what is there is in the way of one, what is not of the other.
    Neither,
}

impl Call {
    /// # Errors
    /// `EINVAL` for flags, `EFAULT`, `ERANGE` for a name, `E2BIG` for a value.
    fn ask(self, room: &mut Room) -> Answer<CopiedCall<'_>> {
        Ok(match self {
            Self::Get { name, value, size } => {
                CopiedCall::Get { name: room.attribute(name)?, value: value.cast(), size }
            }
            Self::List { list, size } => CopiedCall::List { list: list.cast(), size },
            Self::Remove { name } => CopiedCall::Remove { name: room.attribute(name)? },
            Self::Set { name, value, size, flags } => {
                let how = match flags {
                    0 => SetMode::As(SetXattr::Any),
                    libc::XATTR_CREATE => SetMode::As(SetXattr::Create),
                    libc::XATTR_REPLACE => SetMode::As(SetXattr::Replace),
                    BOTH => SetMode::Neither,
                    _ => return fail(libc::EINVAL),
                };
                let name = room.attribute(name)?;
                if size > VALUE_BYTES_MAX {
                    return fail(libc::E2BIG);
                }
                CopiedCall::Set { name, value: given::bytes(value.cast(), size)?, how }
            }
        })
    }
}

const BOTH: c_int = libc::XATTR_CREATE | libc::XATTR_REPLACE;
/// What any file system takes (`XATTR_SIZE_MAX`); ours may say later that it is too much for it.
const VALUE_BYTES_MAX: usize = 65536;

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

fn run(files: Files, object: Object<'_>, asked: &CopiedCall<'_>) -> Answer {
    let who = credentials::who();
    match asked {
        CopiedCall::Get { name, value, size } => {
            let found = files.get_xattr(object, name, &who)?;
            // SAFETY: the program's arguments, under `edge`'s contract, here and below.
            unsafe { copy_out(&found, *value, *size) }
        }
        CopiedCall::List { list, size } => {
            let names = files.list_xattr(object, &who)?;
            // SAFETY: as above.
            unsafe { copy_out(&names, *list, *size) }
        }
        CopiedCall::Remove { name } => {
            files.remove_xattr(object, name, &who)?;
            Ok(0)
        }
        CopiedCall::Set { name, value, how } => {
            let held = match (how, object) {
                // It is asked twice, of one inode.
                (SetMode::Neither, Object::At(at, path, follow)) => {
                    Some(files.lookup(at, path, follow, &who)?)
                }
                _ => None,
            };
            let object = held.as_ref().map_or(object, Object::Held);
            let how = match how {
                SetMode::As(how) => *how,
                SetMode::Neither if files.get_xattr(object, name, &who).is_ok() => SetXattr::Create,
                SetMode::Neither => SetXattr::Replace,
            };
            files.set_xattr(object, name, value, how, &who)?;
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
                on_path(libc::AT_FDCWD, path, look($flags), |route| match route {
                    Route::Host { path, .. } => host(sys!($number, path $(, $argument)*)),
                    Route::Ours(ours) => {
                        let mut room = Room::new();
                        let asked = Call::$call { $($argument),* }.ask(&mut room)?;
                        run(ours.files, ours.object(Follow::$follow), &asked)
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

/// A call on a descriptor. Two of them the kernel takes for the working directory too, since it knows the calls by path
/// and descriptor (Linux 6.13).
fn on_descriptor<R: Reply>(fd: c_int, call: Call, of_host: impl FnOnce() -> isize) -> R {
    let takes_directory = matches!(call, Call::Get { .. } | Call::Set { .. });
    if table::is_ours(fd) || takes_directory && fd == libc::AT_FDCWD && cwd::is_ours() {
        return on_held(fd, call);
    }
    reply(of_host())
}

/// A call on what a descriptor of ours is of, or on a working directory of ours.
fn on_held<R: Reply>(fd: c_int, call: Call) -> R {
    let mut room = Room::new();
    let asked = match call.ask(&mut room) {
        Ok(asked) => asked,
        Err(failure) => return finish(Err(failure)),
    };
    on_itself(fd, |node, file| {
        // O_PATH (open(2)): EBADF.
        if file.is_none() && fd != libc::AT_FDCWD {
            return fail(libc::EBADF);
        }
        run(mount::files()?, Object::Held(node), &asked)
    })
}

macro_rules! descriptor_calls {
    ($($name:ident($($argument:ident: $ty:ty),*) -> $ret:ty = $number:ident, $call:ident;)*) => { $(
        hook! {
            fn $name(fd: c_int $(, $argument: $ty)*) -> $ret {
                on_descriptor(fd, Call::$call { $($argument),* }, || sys!($number, fd $(, $argument)*))
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

/// `struct xattr_args` (linux/xattr.h), of its first version: an address, a size, flags.
const ARGUMENTS_BYTES: usize = 16;
/// The kernel's limit for later versions: a page.
const ARGUMENTS_BYTES_MAX: usize = 4096;

/// The value's address, its size and flags.
///
/// # Errors
/// `EINVAL`; `E2BIG` for what later versions may ask; `EFAULT`.
fn arguments(from: usize, size: usize) -> Answer<(usize, usize, c_int)> {
    match size {
        ..ARGUMENTS_BYTES => return fail(libc::EINVAL),
        ARGUMENTS_BYTES..=ARGUMENTS_BYTES_MAX => {}
        _ => return fail(libc::E2BIG),
    }
    let bytes = given::bytes(from as *const u8, size)?;
    let Some((first, later)) = bytes.split_first_chunk::<ARGUMENTS_BYTES>() else {
        return fail(libc::EINVAL);
    };
    if later.iter().any(|&byte| byte != 0) {
        return fail(libc::E2BIG);
    }
    let [value, rest] = [0, 8].map(|at| {
        let mut word = [0; 8];
        word.copy_from_slice(&first[at..at + 8]);
        u64::from_ne_bytes(word)
    });
    Ok((value as usize, rest as u32 as usize, (rest >> 32) as c_int))
}

/// setxattrat(2), getxattrat(2), listxattrat(2) and removexattrat(2), which libc has no functions for.
///
/// # Safety
/// The words are a program's arguments for the call of this number.
pub(crate) unsafe fn at_by_number(number: c_long, words: [usize; 6]) -> c_long {
    let name = words[3] as *const c_char;
    let call = match number {
        SYS_LISTXATTRAT => Ok(Call::List { list: words[3] as *mut c_char, size: words[4] }),
        SYS_REMOVEXATTRAT => Ok(Call::Remove { name }),
        _ => arguments(words[4], words[5]).and_then(|(value, size, flags)| match number {
            SYS_SETXATTRAT => Ok(Call::Set { name, value: value as *const c_void, size, flags }),
            SYS_GETXATTRAT if flags == 0 => Ok(Call::Get { name, value: value as *mut c_void, size }),
            _ => fail(libc::EINVAL),
        }),
    };
    match call {
        Ok(call) => at(number, words, call),
        // The kernel says the same, or knows more.
        Err(_) => reply(raw::call(number, words)),
    }
}

fn at(number: c_long, words: [usize; 6], call: Call) -> c_long {
    let (dirfd, path, flags) = (words[0] as c_int, words[1] as *const c_char, words[2] as c_int);
    if route::is_itself(dirfd, or_empty(path), flags) {
        return match XATTRAT.check(flags) {
            Ok(()) => on_held(dirfd, call),
            Err(failure) => finish(Err(failure)),
        };
    }
    let follow = follow(flags);
    XATTRAT.on_path(flags, (dirfd, path), look(flags), |route| match route {
        Route::Host { dirfd, path } => {
            let [_, _, flags, third, fourth, fifth] = words;
            host(raw::call(number, [dirfd.word(), path.word(), flags, third, fourth, fifth]))
        }
        Route::Ours(ours) => {
            let mut room = Room::new();
            let asked = call.ask(&mut room)?;
            run(ours.files, ours.object(follow), &asked)
        }
    })
}

hook! {
    /// name_to_handle_at(2)
    fn name_to_handle_at(
        dirfd: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int,
    ) -> c_int {
        // Its AT_SYMLINK_FOLLOW is the reverse of the others' flag.
        let looks = if flags & libc::AT_SYMLINK_FOLLOW != 0 { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        on_path(dirfd, path, look(looks), |route| match route {
            Route::Host { dirfd, .. } if crate::find::table::is_ours(dirfd) => fail(libc::EOPNOTSUPP),
            Route::Host { dirfd, path } => {
                host(sys!(SYS_name_to_handle_at, dirfd, path, handle, mount, flags))
            }
            Route::Ours(_) => fail(libc::EOPNOTSUPP),
        })
    }
}

hook! {
    /// inotify_add_watch(2): nothing here tells of changes
    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: c_uint) -> c_int {
        let fd = or_stand_in(fd);
        on_path(libc::AT_FDCWD, path, look(0), |route| match route {
            Route::Host { path, .. } => host(sys!(SYS_inotify_add_watch, fd, path, mask)),
            Route::Ours(_) => fail(libc::ENOSYS),
        })
    }
}
