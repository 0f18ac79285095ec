//! Signal handlers of the program wait until its thread has left the file system.
//!
//! A handler may make any call that POSIX lists as safe in one: open, write, unlink, _exit. Were it run
//! while its thread holds a lock of the file system, such a call would wait for itself. So handlers are
//! installed behind one of ours, which keeps the signal for later if the thread is inside, and queues it
//! anew, with what the kernel told of it, when the thread leaves.

use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering, compiler_fence};
use libc::siginfo_t;

/// Signals of Linux are numbered from 1 to 64.
pub(crate) const SIGNALS: usize = 65;
/// Signals of one thread that are kept with their details; a call of ours lasts microseconds, and more
/// than these at once are merged by number, as the kernel merges ordinary signals.
const KEPT_MAX: usize = 4;

/// What one thread has to do with it. No destructor: it is used until the thread's very end.
struct Thread {
    /// Calls of ours that the thread is in.
    depth: Cell<u32>,
    /// How many of `kept` are waiting, and a bit for each signal that found no room there.
    waiting: Cell<usize>,
    merged: Cell<u64>,
    kept: UnsafeCell<[MaybeUninit<siginfo_t>; KEPT_MAX]>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            depth: Cell::new(0),
            waiting: Cell::new(0),
            merged: Cell::new(0),
            kept: UnsafeCell::new([const { MaybeUninit::uninit() }; KEPT_MAX]),
        }
    };
}

/// The thread enters the file system.
#[inline(always)]
pub(crate) fn enter() {
    THREAD.with(|thread| thread.depth.set(thread.depth.get() + 1));
    // A handler of this thread's sees it before anything is locked.
    compiler_fence(Ordering::SeqCst);
}

/// The program has jumped: the thread is outside.
pub(crate) fn left() {
    THREAD.with(|thread| thread.depth.set(0));
}

/// The thread leaves it; handlers that waited run now.
#[inline(always)]
pub(crate) fn leave() {
    // Everything is unlocked before a handler may run, and one that came before that is seen below.
    compiler_fence(Ordering::SeqCst);
    THREAD.with(|thread| {
        thread.depth.set(thread.depth.get() - 1);
        compiler_fence(Ordering::SeqCst);
        if thread.waiting.get() != 0 || thread.merged.get() != 0 {
            deliver_waiting(thread);
        }
    });
}

/// Runs a call of the host's from within a call of ours: it may wait, and handlers run as they come.
#[inline]
pub(crate) fn outside<T>(call: impl FnOnce() -> T) -> T {
    let depth = THREAD.with(|thread| {
        let depth = thread.depth.replace(0);
        if is_waiting() {
            deliver_waiting(thread);
        }
        depth
    });
    let answer = call();
    THREAD.with(|thread| thread.depth.set(depth));
    answer
}

/// Whether a signal waits for the thread to leave: a wait for a lock then ends with `EINTR`.
pub(crate) fn is_waiting() -> bool {
    THREAD.with(|thread| thread.waiting.get() != 0 || thread.merged.get() != 0)
}

/// In a forked child: what waits was for its parent.
pub(crate) fn forget_waiting() {
    THREAD.with(|thread| {
        thread.waiting.set(0);
        thread.merged.set(0);
    });
}

/// Whether every handler that waits was installed with `SA_RESTART`.
pub(crate) fn all_restart() -> bool {
    let restarts = |signal: usize| HANDLERS[signal].flags.load(Ordering::Acquire) & libc::SA_RESTART != 0;
    THREAD.with(|thread| {
        let merged = thread.merged.get();
        // SAFETY: entries below `waiting` are written, and only this thread has them.
        let kept = |index: usize| unsafe { (*thread.kept.get())[index].assume_init_ref().si_signo as usize };
        (0..thread.waiting.get()).all(|index| restarts(kept(index)))
            && (1..SIGNALS).filter(|signal| merged >> (signal - 1) & 1 != 0).all(restarts)
    })
}

#[cold]
fn deliver_waiting(thread: &Thread) {
    if thread.depth.get() != 0 {
        return;
    }
    let (pid, tid) = (sys!(SYS_getpid), sys!(SYS_gettid));
    while let Some(last) = thread.waiting.get().checked_sub(1) {
        // SAFETY: entries below `waiting` are written; a handler that interrupts here only adds above,
        // and takes its own away before it returns.
        let info = unsafe { (*thread.kept.get())[last].assume_init_read() };
        thread.waiting.set(last);
        install_again(info.si_signo);
        sys!(SYS_rt_tgsigqueueinfo, pid, tid, info.si_signo, &raw const info);
    }
    let merged = thread.merged.replace(0);
    for signal in (1..SIGNALS as c_int).filter(|signal| merged >> (signal - 1) & 1 != 0) {
        install_again(signal);
        sys!(SYS_tgkill, pid, tid, signal);
    }
}

/// The program's handlers behind ours, by signal. No lock: a handler may install handlers, and a forked
/// child may too.
static HANDLERS: [Handler; SIGNALS] =
    [const { Handler { address: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; SIGNALS];

struct Handler {
    address: AtomicUsize,
    flags: AtomicI32,
}

/// The handler that the kernel knows.
unsafe extern "C" fn deliver(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let inside = THREAD.with(|thread| {
        if thread.depth.get() == 0 {
            return false;
        }
        let waiting = thread.waiting.get();
        // SAFETY: the slot is above what is in use, and only this thread has it. The kernel's `info` is
        // valid while its handler runs.
        unsafe {
            match (*thread.kept.get()).get_mut(waiting) {
                Some(slot) => {
                    slot.write(*info);
                    thread.waiting.set(waiting + 1);
                }
                None => thread.merged.set(thread.merged.get() | 1 << (signal - 1)),
            }
        }
        true
    });
    if inside {
        return;
    }
    let handler = HANDLERS.get(signal as usize).map_or(0, |handler| handler.address.load(Ordering::Acquire));
    if handler > libc::SIG_IGN {
        // SAFETY: the program installed it. A handler that takes the signal alone ignores the rest, which
        // is in registers.
        unsafe {
            core::mem::transmute::<usize, unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(handler)(
                signal, info, context,
            );
        }
    }
}

/// libc's sigaction on structures of ours.
pub(crate) fn libc_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: null, or structures of the caller's or of ours.
    unsafe {
        let function = next!(sigaction, fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int);
        function(signal, new, old)
    }
}

/// `SA_RESETHAND` has put the default action back although the handler has not run yet.
fn install_again(signal: c_int) {
    // SAFETY: a struct of integers and a null pointer.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    let known = libc_sigaction(signal, core::ptr::null(), &raw mut action) == 0;
    if known && action.sa_flags & libc::SA_RESETHAND != 0 && action.sa_sigaction == libc::SIG_DFL {
        action.sa_sigaction = deliver as *const () as usize;
        libc_sigaction(signal, &raw const action, core::ptr::null_mut());
    }
}

/// Puts a handler of the program behind ours; what was there before is as the program knows it.
pub(crate) unsafe fn install(signal: c_int, new: *const libc::sigaction, old: &mut libc::sigaction) -> c_int {
    let handler = &HANDLERS[signal as usize];
    let before = (handler.address.load(Ordering::Acquire), handler.flags.load(Ordering::Acquire));
    // SAFETY: null or the program's structure.
    let mut wanted = unsafe { new.as_ref() }.copied();
    if let Some(wanted) = wanted.as_mut().filter(|wanted| wanted.sa_sigaction > libc::SIG_IGN) {
        // Before the kernel's entry: the signal may come at once.
        handler.address.store(wanted.sa_sigaction, Ordering::Release);
        handler.flags.store(wanted.sa_flags, Ordering::Release);
        wanted.sa_sigaction = deliver as *const () as usize;
        wanted.sa_flags |= libc::SA_SIGINFO;
    }
    let wanted = wanted.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let answer = libc_sigaction(signal, wanted, old);
    if answer != 0 {
        handler.address.store(before.0, Ordering::Release);
        handler.flags.store(before.1, Ordering::Release);
    }
    if old.sa_sigaction == deliver as *const () as usize {
        old.sa_sigaction = before.0;
        old.sa_flags = (old.sa_flags & !libc::SA_SIGINFO) | (before.1 & libc::SA_SIGINFO);
    }
    answer
}
