//! fork, exec and their kin: a private mount stays with the process that made it.

use crate::descriptor;
use crate::edge::{Answer, caught, errno_of, fail, finish, reply};
use crate::place::{self, Touch};
use crate::walk::Last;
use crate::{cwd, mount, raw, table};
use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use libc::{mode_t, pid_t};
use std::ffi::CString;

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
    // SAFETY: as above.
    let told = unsafe { Environment::new(environment) };
    reply(sys!(SYS_execve, path, argv, told.list(environment)))
}

/// The environment of a program that is executed: with our working directory, which the kernel cannot
/// hand on.
struct Environment {
    /// Null-terminated; empty when the program's own environment serves.
    list: Vec<*const c_char>,
    _entry: Option<CString>,
}

impl Environment {
    unsafe fn new(given: *const *const c_char) -> Self {
        let entry = mount::setting().and_then(|_| cwd::entry());
        let mut list: Vec<_> = entry.iter().map(|entry| entry.as_ptr()).collect();
        let mut stale = false;
        // SAFETY: null, or a null-terminated list of C strings, under `edge`'s contract.
        unsafe {
            let mut at = given;
            while !at.is_null() && !(*at).is_null() {
                if cwd::is_entry(raw::bytes(*at)) {
                    stale = true;
                } else {
                    list.push(*at);
                }
                at = at.add(1);
            }
        }
        if given.is_null() || entry.is_none() && !stale {
            return Self { list: Vec::new(), _entry: None };
        }
        list.push(core::ptr::null());
        Self { list, _entry: entry }
    }

    fn list(&self, given: *const *const c_char) -> *const *const c_char {
        if self.list.is_empty() { given } else { self.list.as_ptr() }
    }
}

/// For programs that libc starts with the environment of this process.
fn tell_environment() {
    match mount::setting().and_then(|_| cwd::entry()) {
        // SAFETY: a C string that is leaked, as putenv wants; the calls that come here say of themselves
        // that they use the environment.
        Some(entry) => unsafe { libc::putenv(entry.into_raw()) },
        // SAFETY: a C string.
        None => unsafe { libc::unsetenv(cwd::VARIABLE.as_ptr()) },
    };
}

hook! {
    /// system(3)
    fn system(command: *const c_char) -> c_int {
        tell_environment();
        next!(c"system", fn(*const c_char) -> c_int)(command)
    }
}

hook! {
    /// popen(3)
    fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        tell_environment();
        next!(c"popen", fn(*const c_char, *const c_char) -> *mut libc::FILE)(command, mode)
    }
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
        let told = Environment::new(environment);
        next!(c"execvpe", fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int)
            (file, argv, told.list(environment))
    }
}

hook! {
    /// fexecve(3)
    fn fexecve(fd: c_int, argv: *const *const c_char, environment: *const *const c_char) -> c_int {
        if table::is_ours(fd) {
            return finish(fail(libc::EACCES));
        }
        leave();
        let told = Environment::new(environment);
        next!(c"fexecve", fn(c_int, *const *const c_char, *const *const c_char) -> c_int)
            (fd, argv, told.list(environment))
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
        let told = Environment::new(environment);
        reply(sys!(SYS_execveat, dirfd, path, argv, told.list(environment), flags))
    }
}

extern "C" fn before_execl() -> *mut c_void {
    leave();
    tell_environment();
    static NEXT: raw::Next = raw::Next::new(c"execl");
    NEXT.address()
}

extern "C" fn before_execlp() -> *mut c_void {
    leave();
    tell_environment();
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
        argv: *const *mut c_char, environment: *const *const c_char,
    ) -> c_int {
        if let Err(failure) = check(libc::AT_FDCWD, path) {
            return errno_of(&failure);
        }
        let told = Environment::new(environment);
        next!(c"posix_spawn", fn(*mut pid_t, *const c_char, *const c_void, *const c_void, *const *mut c_char,
            *const *const c_char) -> c_int)(pid, path, actions, attributes, argv, told.list(environment))
    }
}

hook! {
    /// posix_spawnp(3): answers the error itself
    fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: *const *mut c_char, environment: *const *const c_char,
    ) -> c_int {
        if !file.is_null() && raw::bytes(file).contains(&b'/')
            && let Err(failure) = check(libc::AT_FDCWD, file)
        {
            return errno_of(&failure);
        }
        let told = Environment::new(environment);
        next!(c"posix_spawnp", fn(*mut pid_t, *const c_char, *const c_void, *const c_void, *const *mut c_char,
            *const *const c_char) -> c_int)(pid, file, actions, attributes, argv, told.list(environment))
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
        next!(
            c"posix_spawn_file_actions_addopen",
            fn(*mut c_void, c_int, *const c_char, c_int, mode_t) -> c_int
        )(actions, fd, path, flags, mode)
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
