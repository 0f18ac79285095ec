//! The working directory and real paths.

use crate::edge::given::{self, Room};
use crate::edge::{Answer, fail, finish, guard, host, reply};
use crate::find::backend::{Node, Object};
use crate::find::route::{FsPath, Route, Touch, on_path};
use crate::find::walk::Last;
use crate::find::{cwd, mount, setting, table};
use crate::raw::{self, PATH_BYTES_MAX};
use core::ffi::{c_char, c_int};
use libc::size_t;
use nvmed_fs::{FileType, Follow};

/// Leaves for a host directory: the kernel's working directory has changed.
fn left(answer: isize) -> Answer {
    host(answer)?;
    if let Some(setting) = setting::setting() {
        cwd::follow_kernel(setting);
    }
    Ok(0)
}

fn enter(ours: &FsPath<'_>) -> Answer {
    enter_node(ours.node(Follow::Yes)?)
}

fn enter_node(node: Node) -> Answer {
    if node.kind() != FileType::Directory {
        return fail(libc::ENOTDIR);
    }
    mount::files()?.access(Object::Held(&node), libc::X_OK as u32, false)?;
    cwd::enter(node);
    Ok(0)
}

hook! {
    /// chdir(2)
    fn chdir(path: *const c_char) -> c_int {
        on_path(libc::AT_FDCWD, path, Touch::Look(Last::Follow), |route| match route {
            Route::Host { path, .. } => {
                left(sys!(SYS_chdir, path))?;
                // Through a link into the directory that `wrap_dir` hides: ours.
                match cwd::current() {
                    Some(cwd::Cwd::Named { .. }) => cwd::node().map(|_| 0),
                    _ => Ok(0),
                }
            }
            Route::Ours(ours) => enter(&ours),
        })
    }
}

hook! {
    /// fchdir(2)
    fn fchdir(fd: c_int) -> c_int {
        if !table::is_ours(fd) {
            return guard(|| left(sys!(SYS_fchdir, fd)));
        }
        guard(|| enter_node(table::pin(fd)?.node.clone()))
    }
}

/// The working directory if it is ours.
fn cwd_of_ours() -> Answer<Option<Vec<u8>>> {
    if cwd::entered().is_some() {
        // A child behind the fence is told why it cannot ask.
        mount::files()?;
    }
    cwd::path()
}

/// Copies a path into the program's buffer, or into one made for it when that is null (glibc's getcwd).
unsafe fn hand_out(path: &[u8], buffer: *mut c_char, size: size_t) -> Answer {
    let needed = path.len() + 1;
    let room = if buffer.is_null() && size == 0 { needed } else { size };
    if room < needed {
        return fail(libc::ERANGE);
    }
    // SAFETY: malloc takes any size.
    let target = if buffer.is_null() { unsafe { libc::malloc(room) }.cast::<c_char>() } else { buffer };
    if target.is_null() {
        return fail(libc::ENOMEM);
    }
    // SAFETY: `target` has `room >= needed` bytes, the program's or fresh.
    unsafe { given::put_bytes(target.cast(), &[path, b"\0"].concat()) }?;
    Ok(target as isize)
}

hook! {
    /// getcwd(3)
    fn getcwd(buffer: *mut c_char, size: size_t) -> *mut c_char, next libc_getcwd {
        let ours = crate::edge::caught(cwd_of_ours);
        match ours {
            Ok(None) => libc_getcwd(buffer, size),
            Ok(Some(_)) if !buffer.is_null() && size == 0 => finish(fail(libc::EINVAL)),
            Ok(Some(path)) => finish(hand_out(&path, buffer, size)),
            Err(failure) => finish(Err(failure)),
        }
    }
}

hook! {
    /// getcwd(3), as compiled with _FORTIFY_SOURCE
    fn __getcwd_chk(buffer: *mut c_char, size: size_t, room: size_t) -> *mut c_char {
        getcwd(buffer, size.min(room))
    }
}

hook! {
    /// getwd(3)
    fn getwd(buffer: *mut c_char) -> *mut c_char {
        getcwd(buffer, PATH_BYTES_MAX)
    }
}

hook! {
    /// get_current_dir_name(3)
    fn get_current_dir_name() -> *mut c_char, next libc_get_current_dir_name {
        if cwd::is_ours() {
            return getcwd(core::ptr::null_mut(), 0);
        }
        libc_get_current_dir_name()
    }
}

hook! {
    /// getwd(3), as compiled with _FORTIFY_SOURCE
    fn __getwd_chk(buffer: *mut c_char, room: size_t) -> *mut c_char {
        getcwd(buffer, room.min(PATH_BYTES_MAX))
    }
}

/// The real path behind a path of ours: the directory's own, then the name.
fn real(ours: &FsPath<'_>) -> Answer<Vec<u8>> {
    Ok(setting::absolute(&ours.files.path_of(&ours.node(Follow::Yes)?)?))
}

unsafe fn real_path(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    if path.is_null() {
        return finish(fail(libc::EINVAL));
    }
    // SAFETY: the program's C string.
    let own = crate::process::program::own()
        .filter(|_| crate::process::program::names_own(unsafe { raw::bytes(path) }));
    let path = own.map_or(path, |own| own.as_ptr());
    on_path(libc::AT_FDCWD, path, Touch::Look(Last::Follow), |route| match route {
        // libc follows what is longer than a path, from the kernel's working directory.
        Route::Host { path, .. } if cwd::is_ours() && is_too_long(path) => fail(libc::ENAMETOOLONG),
        Route::Host { path, .. } => {
            // SAFETY: the program's arguments, under `edge`'s contract.
            let found = unsafe { libc_realpath(path, resolved) };
            if found.is_null() { fail(raw::errno()) } else { Ok(found as isize) }
        }
        Route::Ours(ours) => {
            let path = real(&ours)?;
            let size = if resolved.is_null() { 0 } else { PATH_BYTES_MAX };
            // SAFETY: realpath(3) wants a buffer of PATH_MAX bytes.
            unsafe { hand_out(&path, resolved, size) }
        }
    })
}

/// Whether a relative name is longer than any path.
fn is_too_long(path: *const c_char) -> bool {
    Room::new().name(path).is_ok_and(|path| {
        let path = path.to_bytes();
        path.first() != Some(&b'/') && path.len() >= PATH_BYTES_MAX
    })
}

hook! {
    /// realpath(3)
    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char, next libc_realpath {
        real_path(path, resolved)
    }
}

hook! {
    /// realpath(3), as compiled with _FORTIFY_SOURCE
    fn __realpath_chk(path: *const c_char, resolved: *mut c_char, _room: size_t) -> *mut c_char {
        real_path(path, resolved)
    }
}

hook! {
    /// canonicalize_file_name(3)
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        real_path(path, core::ptr::null_mut())
    }
}

/// The raw `getcwd`, which counts the NUL and answers no pointer.
pub(crate) unsafe fn raw_getcwd(buffer: *mut c_char, size: size_t) -> core::ffi::c_long {
    match crate::edge::caught(cwd_of_ours) {
        Ok(None) => reply(sys!(SYS_getcwd, buffer, size)),
        // The kernel makes no room.
        Ok(Some(path)) if buffer.is_null() => {
            finish(fail(if size <= path.len() { libc::ERANGE } else { libc::EFAULT }))
        }
        // SAFETY: the program's buffer, under `edge`'s contract.
        Ok(Some(path)) => finish(unsafe { hand_out(&path, buffer, size) }.map(|_| path.len() as isize + 1)),
        Err(failure) => finish(Err(failure)),
    }
}
