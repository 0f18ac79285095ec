//! Shells that libc starts for a program: system, popen, wordexp. libc spawns them by calls that no hook sees, so where
//! a file or a directory of ours takes part we start them here.

use crate::edge::{errno_of, fail, finish};
use crate::find::cwd;
use crate::find::setting;
use crate::process::actions::Action;
use crate::process::exec::{List, Lookup};
use crate::process::spawn::{self, Attributes, Disposition, Plan};
use crate::raw;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use libc::{FILE, pid_t};

unsafe extern "C" {
    static environ: List;
}

/// The exit status of a shell that could not be started, as system(3) has it.
const STATUS_NO_SHELL: c_int = 127 << 8;

/// Whether libc's own function does what it should.
fn is_libcs() -> bool {
    setting::setting().is_none()
}

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Spawns `sh -c command`.
unsafe fn shell(
    command: *const c_char,
    actions: &[Action],
    attributes: Attributes,
) -> crate::edge::Answer<pid_t> {
    let argv = [c"sh".as_ptr(), c"-c".as_ptr(), command, ptr::null()];
    let plan = Plan {
        attributes,
        actions,
        argv: argv.as_ptr(),
        // SAFETY: the program's own environment, which these calls use.
        environment: unsafe { environ },
        name: c"/bin/sh".as_ptr(),
        lookup: Lookup::Path,
    };
    // SAFETY: the program's command, under `edge`'s contract.
    unsafe { spawn::spawn(&plan, None) }
}

fn wait(pid: pid_t) -> c_int {
    let mut status: c_int = 0;
    loop {
        let answer = sys!(SYS_wait4, pid, &raw mut status, 0, ptr::null::<u8>());
        if answer >= 0 {
            return status;
        }
        if answer != -libc::EINTR as isize {
            raw::set_errno(-answer as c_int);
            return -1;
        }
    }
}

unsafe fn run_and_wait(command: *const c_char) -> c_int {
    let ignored = Disposition { handler: libc::SIG_IGN, ..Disposition::default() };
    let quiet = [libc::SIGINT, libc::SIGQUIT];
    let before = quiet.map(|signal| spawn::dispose(signal, Some(&ignored)));
    let default = quiet.iter().zip(&before).filter(|(_, before)| before.handler != libc::SIG_IGN);
    let default = default.fold(0, |set, (&signal, _)| set | bit(signal));
    let mask = spawn::block_also(bit(libc::SIGCHLD));
    let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
    let attributes = Attributes { flags, mask, default, ..Attributes::default() };
    // SAFETY: the program's command.
    let status = match unsafe { shell(command, &[], attributes) } {
        Ok(pid) => wait(pid),
        Err(failure) if errno_of(&failure) == libc::EAGAIN || errno_of(&failure) == libc::ENOMEM => {
            raw::set_errno(errno_of(&failure));
            -1
        }
        Err(_) => STATUS_NO_SHELL,
    };
    for (signal, before) in quiet.iter().zip(&before) {
        spawn::dispose(*signal, Some(before));
    }
    spawn::block(mask);
    status
}

hook! {
    /// system(3)
    fn system(command: *const c_char) -> c_int, next libc_system {
        if command.is_null() || is_libcs() {
            return libc_system(command);
        }
        run_and_wait(command)
    }
}

/// Streams of popen that are ours, at once.
const STREAMS_MAX: usize = 256;

/// A stream and the shell at its other end; a null stream is a free place.
struct Piped {
    stream: AtomicPtr<FILE>,
    pid: AtomicI32,
}

static PIPED: [Piped; STREAMS_MAX] =
    [const { Piped { stream: AtomicPtr::new(ptr::null_mut()), pid: AtomicI32::new(0) } }; STREAMS_MAX];

/// Remembers a stream; the stream is stored last, so that a thread which finds it finds its shell too.
fn remember(stream: *mut FILE, pid: pid_t) -> bool {
    // A stream that was closed by fclose left its place behind; libc makes new ones at the same addresses.
    forget(stream);
    let claimed = PIPED
        .iter()
        .find(|place| place.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok());
    claimed.is_some_and(|place| {
        place.stream.store(stream, Ordering::Release);
        true
    })
}

fn forget(stream: *mut FILE) -> Option<pid_t> {
    let place = PIPED.iter().find(|place| {
        place.stream.compare_exchange(stream, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })?;
    Some(place.pid.swap(0, Ordering::AcqRel))
}

/// What a mode string of popen(3) asks for: whether the program reads, and whether exec closes its end.
fn mode_of(mode: &[u8]) -> Option<(bool, bool)> {
    let has = |letter| mode.contains(&letter);
    let known = mode.iter().all(|letter| b"rwe".contains(letter));
    (known && has(b'r') != has(b'w')).then(|| (has(b'r'), has(b'e')))
}

unsafe fn piped(command: *const c_char, reads: bool, close_on_exec: bool) -> crate::edge::Answer {
    let mut ends = [0 as c_int; 2];
    crate::edge::host(sys!(SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC))?;
    let (own, theirs, target) = if reads { (ends[0], ends[1], 1) } else { (ends[1], ends[0], 0) };
    // POSIX: streams of earlier calls are closed in the child. Ours are, by exec; what libc does about its own, it
    // does in its own children alone.
    let actions = [Action::Duplicate { from: theirs, to: target }];
    // SAFETY: the program's command; descriptors made here.
    unsafe {
        let spawned = shell(command, &actions, Attributes::default());
        sys!(SYS_close, theirs);
        let mode = if reads { c"r" } else { c"w" };
        let stream = spawned.map(|pid| (crate::stdio::fdopen(own, mode.as_ptr()), pid));
        match stream {
            Ok((stream, pid)) if !stream.is_null() && remember(stream, pid) => {
                // Without `e` other programs inherit it, as they would libc's.
                if !close_on_exec {
                    sys!(SYS_fcntl, own, libc::F_SETFD, 0);
                }
                Ok(stream as isize)
            }
            Ok(_) => {
                sys!(SYS_close, own);
                fail(libc::EMFILE)
            }
            Err(failure) => {
                sys!(SYS_close, own);
                Err(failure)
            }
        }
    }
}

hook! {
    /// popen(3)
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE, next libc_popen {
        if is_libcs() || mode.is_null() {
            return libc_popen(command, mode);
        }
        match mode_of(raw::bytes(mode)) {
            Some((reads, close_on_exec)) => finish(piped(command, reads, close_on_exec)),
            None => finish(fail(libc::EINVAL)),
        }
    }
}

hook! {
    /// pclose(3)
    fn pclose(stream: *mut FILE) -> c_int, next libc_pclose {
        match forget(stream) {
            Some(pid) => {
                libc::fclose(stream);
                wait(pid)
            }
            None => libc_pclose(stream),
        }
    }
}

/// For a program that libc starts with this process's environment and that cannot be given another: what is missing in
/// it.
fn tell_directory() {
    let Some(entry) = setting::setting().and_then(|_| cwd::entry()) else {
        // SAFETY: a C string; the calls that come here say of themselves that they use the environment.
        unsafe { libc::unsetenv(cwd::VARIABLE.as_ptr()) };
        return;
    };
    // SAFETY: a C string that is leaked, as putenv wants.
    unsafe { libc::putenv(entry.into_raw()) };
}

hook! {
    /// wordexp(3): the shell that expands a command starts where the program is
    fn wordexp(words: *const c_char, expanded: *mut c_void, flags: c_int) -> c_int, next libc_wordexp {
        tell_directory();
        libc_wordexp(words, expanded, flags)
    }
}
