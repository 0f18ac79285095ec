//! SIGSEGV and SIGBUS: the kernel knows one handler of ours for each, and the program's are behind it.
//!
//! Where a thread has faulted in the door ([`nvmed_sys::door`]) it goes on there, and the call answers EFAULT. Every
//! other signal does what it would do without us: the program's handler, the default, nothing. So that ours can run at
//! any time neither signal is ever blocked: we take them out of every mask that the program sets, remember that mask
//! and the program's action, tell them when it asks, and do as they say when a signal comes. See `docs/spec/faults.md`.

use crate::edge::inside;
use crate::raw;
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use libc::{siginfo_t, sigset_t, ucontext_t};
use nvmed_sys::door;

/// The two signals as bits of a set.
pub(crate) const OURS: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS);
/// Stands in a handler's flags where the C library has given a way to return; it is told to programs too.
const SA_RESTORER: c_int = 0x0400_0000;

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// The action that the program has set for a signal; the kernel would have it if we were not here.
struct SignalAction {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

static ACTIONS: [SignalAction; 2] = [const {
    SignalAction { handler: AtomicUsize::new(0), flags: AtomicI32::new(0), mask: AtomicU64::new(0) }
}; 2];
static ON: AtomicBool = AtomicBool::new(false);

fn programs_action(signal: c_int) -> &'static SignalAction {
    &ACTIONS[usize::from(signal == libc::SIGBUS)]
}

thread_local! {
    /// The signals that the program has blocked in this thread, and those whose handlers it is in.
    static BLOCKED: Cell<u64> = const { Cell::new(0) };
    static WITHIN: Cell<u64> = const { Cell::new(0) };
}

/// Whether our handlers stand.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Whether a signal is one of the two, and our handler stands for it.
pub(crate) fn is_ours(signal: c_int) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGBUS) && is_on()
}

/// Puts our handlers in place, when the library is loaded. What the process was started with is as if the program had
/// asked for it.
pub(crate) fn begin() {
    let mut before: [libc::sigaction; 2] = [none(), none()];
    for (signal, before) in [libc::SIGSEGV, libc::SIGBUS].into_iter().zip(&mut before) {
        if inside::libc_sigaction(signal, core::ptr::null(), before) != 0 {
            return;
        }
        keep(signal, before);
    }
    ON.store(true, Ordering::Release);
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        settle(signal);
    }
    unblock_inherited();
}

/// A program may be started with the signals blocked.
fn unblock_inherited() {
    let (mine, mut before) = (OURS, 0u64);
    sys!(SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const mine, &raw mut before, size_of::<u64>());
    BLOCKED.set(before & OURS);
}

/// No action: the default.
fn none() -> libc::sigaction {
    // SAFETY: a struct of integers.
    unsafe { core::mem::zeroed() }
}

/// The first word of a set, which is all that the kernel has.
pub(crate) fn word_of(set: &sigset_t) -> u64 {
    // SAFETY: a set is an array of words.
    unsafe { core::ptr::from_ref(set).cast::<u64>().read() }
}

pub(crate) fn put_word(set: &mut sigset_t, word: u64) {
    // SAFETY: as above.
    unsafe { core::ptr::from_mut(set).cast::<u64>().write(word) };
}

fn keep(signal: c_int, action: &libc::sigaction) {
    let asked = programs_action(signal);
    asked.flags.store(action.sa_flags & !SA_RESTORER, Ordering::Relaxed);
    asked.mask.store(word_of(&action.sa_mask), Ordering::Relaxed);
    asked.handler.store(action.sa_sigaction, Ordering::Release);
}

/// Gives the kernel what belongs to what the program has asked for.
fn settle(signal: c_int) -> c_int {
    let asked = programs_action(signal);
    let (handler, flags) = (asked.handler.load(Ordering::Acquire), asked.flags.load(Ordering::Relaxed));
    let mut action = none();
    if handler == libc::SIG_IGN {
        // Inherited over exec: it stands in the kernel, where a fault then kills. The kernel copies for the door.
        action.sa_sigaction = libc::SIG_IGN;
        door::set_watched(false);
        return inside::libc_sigaction(signal, &raw const action, core::ptr::null_mut());
    }
    action.sa_sigaction = on_fault as *const () as usize;
    let own = libc::SA_SIGINFO | libc::SA_NODEFER;
    action.sa_flags = match handler {
        libc::SIG_DFL => own | libc::SA_ONSTACK | libc::SA_RESTART,
        _ => flags & !libc::SA_RESETHAND | own,
    };
    put_word(&mut action.sa_mask, asked.mask.load(Ordering::Relaxed) & !OURS);
    let answer = inside::libc_sigaction(signal, &raw const action, core::ptr::null_mut());
    let other = if signal == libc::SIGBUS { libc::SIGSEGV } else { libc::SIGBUS };
    door::set_watched(answer == 0 && programs_action(other).handler.load(Ordering::Acquire) != libc::SIG_IGN);
    answer
}

/// sigaction(2) of one of the two signals.
///
/// # Safety
/// Null, or structures of the program's.
pub(crate) unsafe fn action(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let asked = programs_action(signal);
    let mut before = none();
    before.sa_sigaction = asked.handler.load(Ordering::Acquire);
    before.sa_flags = asked.flags.load(Ordering::Relaxed) | SA_RESTORER;
    put_word(&mut before.sa_mask, asked.mask.load(Ordering::Relaxed));
    // SAFETY: the caller's contract.
    if let Some(new) = unsafe { new.as_ref() } {
        keep(signal, new);
        if settle(signal) != 0 {
            keep(signal, &before);
            return -1;
        }
    }
    // SAFETY: as above.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = before;
    }
    0
}

/// Another signal's handler does not run with the two blocked.
pub(crate) fn clean(action: &mut libc::sigaction) {
    if is_on() {
        let others = word_of(&action.sa_mask) & !OURS;
        put_word(&mut action.sa_mask, others);
    }
}

/// A set that a thread blocks, without the two; what it says of them is remembered.
pub(crate) fn masked(how: c_int, set: &mut sigset_t) {
    let open = masked_word(how, word_of(set));
    put_word(set, open);
}

/// The same of the word that the kernel has.
pub(crate) fn masked_word(how: c_int, set: u64) -> u64 {
    if !is_on() {
        return set;
    }
    let given = set & OURS;
    let before = BLOCKED.get();
    let after = match how {
        libc::SIG_BLOCK => before | given,
        libc::SIG_UNBLOCK => before & !given,
        libc::SIG_SETMASK => given,
        _ => return set,
    };
    BLOCKED.set(after);
    // Out of a handler that never returned.
    WITHIN.set(WITHIN.get() & after);
    // What `pend` has blocked is opened by a set that opens it.
    if how == libc::SIG_UNBLOCK { set } else { set & !OURS }
}

/// What the thread has blocked of the two.
pub(crate) fn blocked() -> u64 {
    if is_on() { BLOCKED.get() } else { 0 }
}

/// Adds to a set that the kernel has told what the thread has blocked of the two.
pub(crate) fn tell(set: &mut sigset_t, blocked: u64) {
    let whole = word_of(set) | blocked;
    put_word(set, whole);
}

/// The program jumps, perhaps out of a handler: the jump brings back a mask that we do not know.
pub(crate) fn left() {
    if is_on() && BLOCKED.get() | WITHIN.get() != 0 {
        BLOCKED.set(0);
        WITHIN.set(0);
    }
}

/// The handler that the kernel knows.
unsafe extern "C" fn on_fault(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's structures, valid while its handler runs.
    let (code, context) = unsafe { ((*info).si_code, &mut *context.cast::<ucontext_t>()) };
    let at = context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    let sent = code <= 0;
    if !sent && let Some(on) = door::recovery(at) {
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = on as i64;
        return;
    }
    let asked = programs_action(number);
    let (handler, flags) = (asked.handler.load(Ordering::Acquire), asked.flags.load(Ordering::Relaxed));
    let within = if flags & libc::SA_NODEFER == 0 { WITHIN.get() } else { 0 };
    let is_blocked = (BLOCKED.get() | within) & bit(number) != 0;
    match handler {
        _ if sent && is_blocked => pend(number, info, context),
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => end(number, sent),
        // As the kernel ends a thread that faults with the signal blocked.
        _ if is_blocked => end(number, sent),
        handler => {
            if flags & libc::SA_RESETHAND != 0 {
                asked.handler.store(libc::SIG_DFL, Ordering::Release);
            }
            let before = WITHIN.get();
            WITHIN.set(before | bit(number));
            type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            let context = core::ptr::from_mut(context).cast();
            // SAFETY: the program's handler; one that takes the number alone ignores the rest, which is in registers.
            unsafe { core::mem::transmute::<usize, Handler>(handler)(number, info, context) };
            WITHIN.set(before);
        }
    }
}

/// A signal that was sent waits, as the program has blocked it: now the kernel's mask has it, until the program's
/// own unblocks it.
fn pend(number: c_int, info: *mut siginfo_t, context: &mut ucontext_t) {
    let mine = bit(number);
    let none: *const u64 = core::ptr::null();
    sys!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const mine, none, size_of::<u64>());
    let blocked = word_of(&context.uc_sigmask) | mine;
    put_word(&mut context.uc_sigmask, blocked);
    sys!(SYS_rt_tgsigqueueinfo, sys!(SYS_getpid), sys!(SYS_gettid), number, info);
}

/// The default action: the access is made again and ends the process; what was sent is sent again.
fn end(number: c_int, sent: bool) {
    let action = none();
    inside::libc_sigaction(number, &raw const action, core::ptr::null_mut());
    if sent {
        let errno = raw::errno();
        sys!(SYS_tgkill, sys!(SYS_getpid), sys!(SYS_gettid), number);
        raw::set_errno(errno);
    }
}
