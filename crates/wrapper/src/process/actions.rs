//! The file actions of posix_spawn, which the child does before it runs the program. We record each as the program adds
//! it, because libc would do them by calls that no hook sees.

use crate::calls::{descriptor, open, real};
use crate::edge::{Answer, host};
use crate::find::redirect;
use crate::find::route;
use crate::find::setting;
use crate::raw;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::zeroed;
use libc::mode_t;
use std::ffi::CString;

/// One action.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Close(c_int),
    Duplicate { from: c_int, to: c_int },
    Open { to: c_int, path: CString, flags: c_int, mode: mode_t },
    Enter(CString),
    EnterOpen(c_int),
    CloseFrom(c_int),
    Foreground(c_int),
}

/// Offset of `__pad` in `posix_spawn_file_actions_t` (spawn.h), which libc only ever sets to zeroes: the record is kept
/// there, so that it goes where the object goes, without a table or a lock.
const RECORD_OFFSET: usize = 16;

type Record = *mut Vec<Action>;

unsafe fn record(actions: *mut c_void) -> *mut Record {
    // SAFETY: an initialised object, under `edge`'s contract.
    unsafe { actions.byte_add(RECORD_OFFSET).cast() }
}

/// What was recorded.
///
/// # Safety
/// Null, or an object that `posix_spawn_file_actions_init` made.
pub(crate) unsafe fn recorded<'a>(actions: *const c_void) -> &'a [Action] {
    if actions.is_null() {
        return &[];
    }
    // SAFETY: the caller's contract; the record lives until the object is destroyed.
    unsafe { (*record(actions.cast_mut())).as_ref() }.map_or(&[], Vec::as_slice)
}

/// Remembers an action that libc took.
unsafe fn remember(actions: *mut c_void, answer: c_int, action: impl FnOnce() -> Action) -> c_int {
    if answer == 0 && setting::setting().is_some() {
        // SAFETY: libc took the object.
        unsafe {
            let record = record(actions);
            if (*record).is_null() {
                *record = Box::into_raw(Box::new(Vec::new()));
            }
            (**record).push(action());
        }
    }
    answer
}

/// A path argument that libc has copied already.
unsafe fn text(path: *const c_char) -> CString {
    // SAFETY: the program's C string.
    unsafe { CStr::from_ptr(path) }.to_owned()
}

hook! {
    /// posix_spawn_file_actions_init(3)
    fn posix_spawn_file_actions_init(actions: *mut c_void) -> c_int, next libc_init {
        let answer = libc_init(actions);
        if answer == 0 {
            *record(actions) = core::ptr::null_mut();
        }
        answer
    }
}

hook! {
    /// posix_spawn_file_actions_destroy(3)
    fn posix_spawn_file_actions_destroy(actions: *mut c_void) -> c_int, next libc_destroy {
        let kept = core::mem::replace(&mut *record(actions), core::ptr::null_mut());
        if !kept.is_null() {
            drop(Box::from_raw(kept));
        }
        libc_destroy(actions)
    }
}

hook! {
    /// posix_spawn_file_actions_addclose(3): answers the error itself, as all of these
    fn posix_spawn_file_actions_addclose(actions: *mut c_void, fd: c_int) -> c_int, next libc_addclose {
        let answer = libc_addclose(actions, fd);
        remember(actions, answer, || Action::Close(fd))
    }
}

hook! {
    /// posix_spawn_file_actions_adddup2(3)
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, from: c_int, to: c_int) -> c_int, next libc_adddup2 {
        remember(actions, libc_adddup2(actions, from, to), || Action::Duplicate { from, to })
    }
}

hook! {
    /// posix_spawn_file_actions_addopen(3)
    fn posix_spawn_file_actions_addopen(
        actions: *mut c_void, fd: c_int, path: *const c_char, flags: c_int, mode: mode_t,
    ) -> c_int, next libc_addopen {
        if refused(path, "posix_spawn's open") {
            return libc::ENOTSUP;
        }
        let behind = behind(actions, path);
        let path = behind.as_ref().map_or(path, |behind| behind.as_ptr());
        let answer = libc_addopen(actions, fd, path, flags, mode);
        remember(actions, answer, || Action::Open { to: fd, path: text(path), flags, mode })
    }
}

hook! {
    /// posix_spawn_file_actions_addchdir_np(3)
    fn posix_spawn_file_actions_addchdir_np(actions: *mut c_void, path: *const c_char) -> c_int, next libc_addchdir {
        if refused(path, "posix_spawn's chdir") {
            return libc::ENOTSUP;
        }
        let behind = behind(actions, path);
        let path = behind.as_ref().map_or(path, |behind| behind.as_ptr());
        remember(actions, libc_addchdir(actions, path), || Action::Enter(text(path)))
    }
}

hook! {
    /// posix_spawn_file_actions_addfchdir_np(3)
    fn posix_spawn_file_actions_addfchdir_np(actions: *mut c_void, fd: c_int) -> c_int, next libc_addfchdir {
        remember(actions, libc_addfchdir(actions, fd), || Action::EnterOpen(fd))
    }
}

hook! {
    /// posix_spawn_file_actions_addclosefrom_np(3)
    fn posix_spawn_file_actions_addclosefrom_np(actions: *mut c_void, from: c_int) -> c_int, next libc_addclosefrom {
        remember(actions, libc_addclosefrom(actions, from), || Action::CloseFrom(from))
    }
}

hook! {
    /// posix_spawn_file_actions_addtcsetpgrp_np(3)
    fn posix_spawn_file_actions_addtcsetpgrp_np(actions: *mut c_void, fd: c_int) -> c_int, next libc_addtcsetpgrp {
        remember(actions, libc_addtcsetpgrp(actions, fd), || Action::Foreground(fd))
    }
}

/// The host's path where `filesystem = host` has it in another directory. What is relative to a directory that the
/// child enters before is left as it is.
unsafe fn behind(actions: *const c_void, path: *const c_char) -> Option<CString> {
    // SAFETY: the program's object and C string, under `edge`'s contract.
    let (before, path) = unsafe { (recorded(actions), raw::bytes(path)) };
    let here = path.first() == Some(&b'/') || !before.iter().any(Action::moves);
    if here { redirect::behind(path) } else { None }
}

/// Whether a path that a child would open is ours in a private mount, which the child cannot share.
unsafe fn refused(path: *const c_char, what: &str) -> bool {
    if setting::setting().is_none() || setting::is_shared() {
        return false;
    }
    // SAFETY: the program's C string, under `edge`'s contract.
    let path = unsafe { CStr::from_ptr(path) };
    let ours = route::leads_to_us(libc::AT_FDCWD, path);
    if ours {
        raw::say(format_args!(
            "{what} of {}: a spawned program cannot share this process's private mount; use a shared mount (nvmed run)",
            path.to_string_lossy()
        ));
    }
    ours
}

/// The same actions for libc, and one more: its child keeps an heir's descriptor, which exec closes in other children.
pub(crate) struct Libcs(Box<libc::posix_spawn_file_actions_t>);

impl Libcs {
    /// # Errors
    /// What libc answers, which took the actions before: `ENOMEM`.
    pub(crate) fn with_heir(actions: &[Action], heir: c_int) -> Answer<Self> {
        // SAFETY: an object of libc's, made here, which it initialises; libc copies the paths.
        unsafe {
            let mut copy = Self(Box::new(zeroed()));
            let at = (&raw mut *copy.0).cast();
            answered_by_libc(libc_init(at))?;
            for action in actions {
                answered_by_libc(match action {
                    Action::Close(fd) => libc_addclose(at, *fd),
                    Action::Duplicate { from, to } => libc_adddup2(at, *from, *to),
                    Action::Open { to, path, flags, mode } => {
                        libc_addopen(at, *to, path.as_ptr(), *flags, *mode)
                    }
                    Action::Enter(path) => libc_addchdir(at, path.as_ptr()),
                    Action::EnterOpen(fd) => libc_addfchdir(at, *fd),
                    Action::CloseFrom(from) => libc_addclosefrom(at, *from),
                    Action::Foreground(fd) => libc_addtcsetpgrp(at, *fd),
                })?;
            }
            // A descriptor that is put in its own place is left open by exec (POSIX.1-2024, adddup2).
            answered_by_libc(libc_adddup2(at, heir, heir))?;
            Ok(copy)
        }
    }

    pub(crate) fn as_ptr(&self) -> *const c_void {
        (&raw const *self.0).cast()
    }
}

impl Drop for Libcs {
    fn drop(&mut self) {
        // SAFETY: made by `with_heir`.
        unsafe { libc_destroy((&raw mut *self.0).cast()) };
    }
}

fn answered_by_libc(errno: c_int) -> Answer<()> {
    if errno == 0 { Ok(()) } else { crate::edge::fail(errno) }
}

impl Action {
    /// Whether something of ours takes part, so that libc cannot do it.
    pub(crate) fn is_ours(&self) -> bool {
        match self {
            Self::Duplicate { from: fd, .. } | Self::EnterOpen(fd) => crate::find::table::is_ours(*fd),
            Self::Open { path, .. } | Self::Enter(path) => route::leads_to_us(libc::AT_FDCWD, path),
            Self::Close(_) | Self::CloseFrom(_) | Self::Foreground(_) => false,
        }
    }

    /// Whether it closes a descriptor, of which it knows nothing.
    pub(crate) fn closes(&self, number: c_int) -> bool {
        match self {
            Self::Close(fd) | Self::Duplicate { to: fd, .. } | Self::Open { to: fd, .. } => *fd == number,
            Self::CloseFrom(from) => *from <= number,
            Self::Enter(_) | Self::EnterOpen(_) | Self::Foreground(_) => false,
        }
    }

    /// Whether relative paths mean something else after it.
    pub(crate) fn moves(&self) -> bool {
        matches!(self, Self::Enter(_) | Self::EnterOpen(_))
    }

    /// Does it, in the child.
    ///
    /// # Errors
    /// The errno that posix_spawn answers.
    pub(crate) fn run(&self) -> Answer<()> {
        // SAFETY: descriptors and C strings.
        unsafe {
            match self {
                // libc tells of a number that no descriptor can have when the action is added.
                Self::Close(fd) => {
                    descriptor::close(*fd);
                }
                Self::Duplicate { from, to } if from == to => {
                    let flags = host(sys!(SYS_fcntl, *from, libc::F_GETFD))?;
                    host(sys!(SYS_fcntl, *from, libc::F_SETFD, flags & !(libc::FD_CLOEXEC as isize)))?;
                }
                Self::Duplicate { from, to } => answered(descriptor::dup2(*from, *to))?,
                Self::Open { to, path, flags, mode } => {
                    descriptor::close(*to);
                    let fd = open::open(path.as_ptr(), *flags, *mode);
                    answered(fd)?;
                    if fd != *to {
                        answered(descriptor::dup2(fd, *to))?;
                        descriptor::close(fd);
                    }
                }
                Self::Enter(path) => answered(real::chdir(path.as_ptr()))?,
                Self::EnterOpen(fd) => answered(real::fchdir(*fd))?,
                Self::CloseFrom(from) => descriptor::closefrom(*from),
                Self::Foreground(fd) => {
                    let group = sys!(SYS_getpgid, 0) as c_int;
                    host(sys!(SYS_ioctl, *fd, libc::TIOCSPGRP, &raw const group))?;
                }
            }
        }
        Ok(())
    }
}

/// An answer of a hook's.
fn answered(answer: c_int) -> Answer<()> {
    if answer < 0 { crate::edge::fail(raw::errno()) } else { Ok(()) }
}
