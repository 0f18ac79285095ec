//! fork, exec and their kin: a private mount stays with the process that made it.

use crate::descriptor;
use crate::edge::{Answer, caught, errno_of, fail, finish, reply};
use crate::place::{self, Touch};
use crate::walk::Last;
use crate::{mount, raw, table};
use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use libc::{mode_t, pid_t};

hook! {
    /// vfork(2), as fork: a child that shares our memory would change the parent's descriptor table
    fn vfork() -> pid_t, as [__vfork] {
        next!(c"fork", fn() -> pid_t)()
    }
}

hook! {
    /// daemon(3): libc ends the parent below every hook
    fn daemon(keep_directory: c_int, keep_streams: c_int) -> c_int {
        mount::settle();
        next!(c"daemon", fn(c_int, c_int) -> c_int)(keep_directory, keep_streams)
    }
}

/// Before the program is replaced by another: what it wrote must be on the device, because the next
/// program mounts anew.
fn leave() {
    let Some(_) = mount::setting() else { return };
    mount::settle();
    if let Some(fd) = descriptor::first_inherited().filter(|&fd| fd <= libc::STDERR_FILENO) {
        raw::say(format_args!(
            "descriptor {fd} is a file of this process's private mount; the program that it executes cannot \
             use it (Bad file descriptor)"
        ));
    }
}

/// `EACCES` for a program that lies in our file system, as on a mount with `noexec`.
unsafe fn check(dirfd: c_int, path: *const c_char) -> Answer<()> {
    let Some(setting) = mount::setting() else { return Ok(()) };
    if path.is_null() {
        return Ok(());
    }
    // SAFETY: the program's C string, under `edge`'s contract.
    let path = unsafe { raw::bytes(path) };
    let touch = Touch::Look(Last::Follow);
    if path.is_empty() {
        return if table::is_ours(dirfd) { fail(libc::EACCES) } else { Ok(()) };
    }
    match caught(|| place::find(setting, dirfd, path, touch))? {
        Some(spot) => {
            spot.files.lookup(&spot.at, spot.path(), nvmed_fs::Follow::Yes, &spot.who())?;
            raw::say(format_args!(
                "{} cannot be executed: programs do not run from this file system yet; copy it to the host",
                String::from_utf8_lossy(path)
            ));
            fail(libc::EACCES)
        }
        None => Ok(()),
    }
}

unsafe fn exec(path: *const c_char, argv: *const *const c_char, environment: *const *const c_char) -> c_int {
    // SAFETY: the program's arguments, under `edge`'s contract.
    if let Err(failure) = unsafe { check(libc::AT_FDCWD, path) } {
        return finish(Err(failure));
    }
    leave();
    reply(sys!(SYS_execve, path, argv, environment))
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

hook! {
    /// execve(2)
    fn execve(path: *const c_char, argv: *const *const c_char, environment: *const *const c_char) -> c_int {
        exec(path, argv, environment)
    }
}

hook! {
    /// execv(3)
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
        exec(path, argv, environ)
    }
}

hook! {
    /// execvp(3)
    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int {
        execvpe(file, argv, environ)
    }
}

hook! {
    /// execvpe(3)
    fn execvpe(file: *const c_char, argv: *const *const c_char, environment: *const *const c_char) -> c_int {
        if !file.is_null() && raw::bytes(file).contains(&b'/')
            && let Err(failure) = check(libc::AT_FDCWD, file)
        {
            return finish(Err(failure));
        }
        leave();
        next!(c"execvpe", fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int)
            (file, argv, environment)
    }
}

hook! {
    /// fexecve(3)
    fn fexecve(fd: c_int, argv: *const *const c_char, environment: *const *const c_char) -> c_int {
        if table::is_ours(fd) {
            return finish(fail(libc::EACCES));
        }
        leave();
        next!(c"fexecve", fn(c_int, *const *const c_char, *const *const c_char) -> c_int)(fd, argv, environment)
    }
}

hook! {
    /// execveat(2)
    fn execveat(
        dirfd: c_int, path: *const c_char, argv: *const *const c_char, environment: *const *const c_char,
        flags: c_int,
    ) -> c_int {
        if let Err(failure) = check(dirfd, path) {
            return finish(Err(failure));
        }
        leave();
        reply(sys!(SYS_execveat, dirfd, path, argv, environment, flags))
    }
}

extern "C" fn before_execl() -> *mut c_void {
    leave();
    static NEXT: raw::Next = raw::Next::new(c"execl");
    NEXT.address()
}

extern "C" fn before_execlp() -> *mut c_void {
    leave();
    static NEXT: raw::Next = raw::Next::new(c"execlp");
    NEXT.address()
}

extern "C" fn before_execle() -> *mut c_void {
    leave();
    static NEXT: raw::Next = raw::Next::new(c"execle");
    NEXT.address()
}

/// Variadic functions: the arguments are left as they are, and libc's function takes over.
macro_rules! variadic {
    ($($name:ident $before:ident)*) => { $(
        /// An exec call with its arguments in a list.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            // Seven words keep the stack aligned for the call; rax counts vector registers.
            naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "call {before}",
                "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                before = sym $before,
            )
        }
    )* };
}
variadic! {
    execl before_execl
    execlp before_execlp
    execle before_execle
}

hook! {
    /// posix_spawn(3): answers the error itself
    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: *const *mut c_char, environment: *const *mut c_char,
    ) -> c_int {
        if let Err(failure) = check(libc::AT_FDCWD, path) {
            return errno_of(&failure);
        }
        next!(c"posix_spawn", fn(*mut pid_t, *const c_char, *const c_void, *const c_void, *const *mut c_char,
            *const *mut c_char) -> c_int)(pid, path, actions, attributes, argv, environment)
    }
}

hook! {
    /// posix_spawnp(3): answers the error itself
    fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: *const *mut c_char, environment: *const *mut c_char,
    ) -> c_int {
        if !file.is_null() && raw::bytes(file).contains(&b'/')
            && let Err(failure) = check(libc::AT_FDCWD, file)
        {
            return errno_of(&failure);
        }
        next!(c"posix_spawnp", fn(*mut pid_t, *const c_char, *const c_void, *const c_void, *const *mut c_char,
            *const *mut c_char) -> c_int)(pid, file, actions, attributes, argv, environment)
    }
}

/// Whether a path that a child would open below every hook is ours.
unsafe fn refused(path: *const c_char, what: &str) -> bool {
    let Some(setting) = mount::setting() else { return false };
    // SAFETY: the program's C string, under `edge`'s contract.
    let text = unsafe { raw::bytes(path) };
    let touch = Touch::Look(Last::Follow);
    let found = caught(|| place::find(setting, libc::AT_FDCWD, text, touch).map(|spot| spot.is_some()));
    let ours = found.unwrap_or(true);
    if ours {
        raw::say(format_args!(
            "{what} of {}: a spawned program cannot share this process's private mount",
            String::from_utf8_lossy(text)
        ));
    }
    ours
}

hook! {
    /// posix_spawn_file_actions_addopen(3): answers the error itself
    fn posix_spawn_file_actions_addopen(
        actions: *mut c_void, fd: c_int, path: *const c_char, flags: c_int, mode: mode_t,
    ) -> c_int {
        if refused(path, "posix_spawn's open") {
            return libc::ENOTSUP;
        }
        next!(c"posix_spawn_file_actions_addopen", fn(*mut c_void, c_int, *const c_char, c_int, mode_t) -> c_int)
            (actions, fd, path, flags, mode)
    }
}

hook! {
    /// posix_spawn_file_actions_addchdir_np(3): answers the error itself
    fn posix_spawn_file_actions_addchdir_np(actions: *mut c_void, path: *const c_char) -> c_int {
        if refused(path, "posix_spawn's chdir") {
            return libc::ENOTSUP;
        }
        next!(c"posix_spawn_file_actions_addchdir_np", fn(*mut c_void, *const c_char) -> c_int)(actions, path)
    }
}
