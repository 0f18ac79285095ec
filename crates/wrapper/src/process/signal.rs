//! sigaction(2) and its kin: the kernel gets a handler of ours, which calls the program's (`edge::inside`); for
//! SIGSEGV and SIGBUS it is another one of ours (`edge::fault`).

use crate::edge::inside::{self, SIGNALS, libc_sigaction};
use crate::edge::{fail, fault, finish, sigsys};
use crate::find::setting;
use core::ffi::c_int;
use libc::sighandler_t;

/// The program jumps (`longjmp`). From within the file system only the handler of a fault can, and then the thread
/// is outside.
pub(crate) extern "C" fn left() {
    inside::left();
    fault::left();
    crate::watch::left();
}

/// Signals that the thread itself caused, which cannot wait: their handlers run where they occur.
fn is_own_fault(signal: c_int) -> bool {
    matches!(
        signal,
        libc::SIGSEGV
            | libc::SIGBUS
            | libc::SIGFPE
            | libc::SIGILL
            | libc::SIGTRAP
            | libc::SIGSYS
            | libc::SIGABRT
    )
}

/// An action whose handler runs with the signals open that carry faults, and system calls where SIGSYS does.
unsafe fn cleaned(new: *const libc::sigaction, room: &mut libc::sigaction) -> *const libc::sigaction {
    if new.is_null() || !sigsys::is_taken() && !fault::is_on() {
        return new;
    }
    // SAFETY: the program's structure.
    unsafe {
        *room = new.read();
        if sigsys::is_taken() {
            libc::sigdelset(&raw mut room.sa_mask, libc::SIGSYS);
        }
    }
    fault::clean(room);
    room
}

hook! {
    /// sigaction(2)
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction)
        -> c_int {
        if signal == libc::SIGSYS && sigsys::is_taken() {
            sigsys::action(new, old);
            return 0;
        }
        if fault::is_ours(signal) {
            return fault::action(signal, new, old);
        }
        let mut room: libc::sigaction = core::mem::zeroed();
        let new = cleaned(new, &mut room);
        let numbered = (1..SIGNALS as c_int).contains(&signal) && !is_own_fault(signal);
        if !numbered || setting::setting().is_none() {
            return libc_sigaction(signal, new, old);
        }
        let mut before: libc::sigaction = core::mem::zeroed();
        let answer = inside::install(signal, new, &mut before);
        if answer == 0 && !old.is_null() {
            *old = before;
        }
        answer
    }
}

/// `signal` in its two historic forms.
unsafe fn historic(number: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    if handler == libc::SIG_ERR {
        let _: c_int = finish(fail(libc::EINVAL));
        return libc::SIG_ERR;
    }
    // SAFETY: structures of ours; the handler is the program's.
    unsafe {
        let mut new: libc::sigaction = core::mem::zeroed();
        let mut old: libc::sigaction = core::mem::zeroed();
        (new.sa_sigaction, new.sa_flags) = (handler, flags);
        match sigaction(number, &raw const new, &raw mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

hook! {
    /// signal(2), BSD's: the handler stays, calls go on
    fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        historic(number, handler, libc::SA_RESTART)
    }
}

hook! {
    /// signal(2), System V's: the handler is used once, calls are interrupted
    fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        historic(number, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
    }
}
