//! What a thread needs for the second tier: it is armed when it begins, and has a stack on which the file
//! system has room, because a program of its own kind (Go) handles signals on small ones.

use crate::edge::{fault, sigsys};
use crate::tier::dispatch;
use core::arch::{asm, naked_asm};
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use libc::{pthread_attr_t, pthread_t, sigset_t, ucontext_t};

/// A stack for calls of ours: what a thread of musl's has, and far more than any of them takes.
const STACK_BYTES: usize = 512 << 10;

thread_local! {
    /// The top of this thread's; 0 until it is needed. It is not given back before the process ends: no code of
    /// ours runs at a thread's very end.
    static STACK: Cell<usize> = const { Cell::new(0) };
}

/// Signals that stay open on the large stack: the thread's own faults.
const FAULTS: u64 = 1 << (libc::SIGSEGV - 1)
    | 1 << (libc::SIGBUS - 1)
    | 1 << (libc::SIGFPE - 1)
    | 1 << (libc::SIGILL - 1)
    | 1 << (libc::SIGTRAP - 1)
    | sigsys::BIT;

/// Runs a call of ours within a signal's handler. On an alternate stack the thread changes to its large one
/// first, with signals blocked, because the kernel would take the alternate stack for free; the handler's
/// return opens them again.
pub(crate) fn on_large_stack<T>(context: &ucontext_t, call: impl FnOnce() -> T) -> T {
    let alternate = &context.uc_stack;
    let here = (&raw const alternate).addr();
    let bottom = alternate.ss_sp as usize;
    let is_on_it = alternate.ss_flags & libc::SS_DISABLE == 0
        && (bottom..bottom.saturating_add(alternate.ss_size)).contains(&here);
    match if is_on_it && alternate.ss_size < STACK_BYTES { stack() } else { None } {
        Some(top) => {
            let mask = !FAULTS;
            let none: *const u64 = core::ptr::null();
            sys!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const mask, none, size_of::<u64>());
            change(top, || {
                if fault::is_on() {
                    // So a fault of this call is handled here and not at the top of the alternate stack, where the
                    // handler's frame is; its return brings the alternate stack back.
                    let away = libc::stack_t { ss_flags: libc::SS_DISABLE, ..*alternate };
                    sys!(SYS_sigaltstack, &raw const away, core::ptr::null_mut::<u8>());
                }
                call()
            })
        }
        None => call(),
    }
}

fn stack() -> Option<usize> {
    STACK.with(|stack| {
        if stack.get() == 0 {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let made = sys!(SYS_mmap, 0usize, STACK_BYTES, protection, flags, -1, 0usize);
            if made < 0 {
                return None;
            }
            stack.set(made as usize + STACK_BYTES);
        }
        Some(stack.get())
    })
}

/// Calls `call` on another stack.
fn change<T, F: FnOnce() -> T>(top: usize, call: F) -> T {
    struct Both<T, F> {
        call: Option<F>,
        answer: Option<T>,
    }
    unsafe extern "C" fn run<T, F: FnOnce() -> T>(both: *mut c_void) {
        // SAFETY: the structure below, which nobody else has.
        let both = unsafe { &mut *both.cast::<Both<T, F>>() };
        both.answer = both.call.take().map(|call| call());
    }
    let mut both = Both { call: Some(call), answer: None };
    // SAFETY: the stack is this thread's own and not in use: a handler on it would have found itself off the
    // alternate stack. r12 is kept by the function that is called.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {run}",
            "mov rsp, r12",
            top = in(reg) top & !15,
            run = sym run::<T, F>,
            out("r12") _,
            in("rdi") &raw mut both,
            clobber_abi("C"),
        );
    }
    match both.answer {
        Some(answer) => answer,
        // `run` has put it there.
        None => unreachable!("the call has run"),
    }
}

type Start = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// What a thread of the program's is to run.
#[repr(C)]
struct Begin {
    start: Start,
    argument: *mut c_void,
}

/// Arms the new thread; answers its function and argument in two registers.
unsafe extern "C" fn armed(begin: *mut Begin) -> Begin {
    // SAFETY: the box of `create`, handed to this thread alone.
    let begin = unsafe { Box::from_raw(begin) };
    // What worked in the first thread works here.
    let _ = dispatch::arm();
    *begin
}

/// The first function of a thread: it leaves no frame behind, so that `pthread_exit` unwinds as ever.
#[unsafe(naked)]
unsafe extern "C" fn first(_begin: *mut c_void) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {armed}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "mov rdi, rdx",
        "jmp rax",
        ".cfi_endproc",
        armed = sym armed,
    )
}

type Create = unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Start, *mut c_void) -> c_int;

unsafe fn create(
    libc: Create,
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    begin: Begin,
) -> c_int {
    let begin = Box::into_raw(Box::new(begin));
    // SAFETY: the program's arguments; the box is the new thread's.
    unsafe {
        let answer = libc(thread, attributes, first, begin.cast());
        if answer != 0 {
            drop(Box::from_raw(begin));
        }
        answer
    }
}

hook! {
    /// pthread_create(3)
    fn pthread_create(
        thread: *mut pthread_t, attributes: *const pthread_attr_t, start: Start, argument: *mut c_void,
    ) -> c_int, next libc_pthread_create {
        if !sigsys::is_taken() {
            return libc_pthread_create(thread, attributes, start, argument);
        }
        create(libc_pthread_create, thread, attributes, Begin { start, argument })
    }
}

hook! {
    /// thrd_create(3), whose function answers an int, in the same register
    fn thrd_create(thread: *mut pthread_t, start: Start, argument: *mut c_void) -> c_int, next libc_thrd_create {
        if !sigsys::is_taken() {
            return libc_thrd_create(thread, start, argument);
        }
        let begin = Box::into_raw(Box::new(Begin { start, argument }));
        let answer = libc_thrd_create(thread, first, begin.cast());
        if answer != 0 {
            drop(Box::from_raw(begin));
        }
        answer
    }
}

type Mask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

/// Changes the thread's mask: SIGSYS stays open where calls are dispatched, and what carries faults always.
unsafe fn mask(libc: Mask, how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    if !sigsys::is_taken() && !fault::is_on() {
        // SAFETY: the program's arguments.
        return unsafe { libc(how, set, old) };
    }
    let blocked = fault::blocked();
    // SAFETY: the program's sets, null or whole; a structure of words.
    unsafe {
        let room = set.as_ref().map(|set| {
            let mut room = *set;
            if sigsys::is_taken() && how != libc::SIG_UNBLOCK {
                libc::sigdelset(&raw mut room, libc::SIGSYS);
            }
            fault::masked(how, &mut room);
            room
        });
        let given = room.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        let answer = libc(how, given, old);
        if let Some(old) = old.as_mut().filter(|_| answer == 0 && blocked != 0) {
            fault::tell(old, blocked);
        }
        answer
    }
}

hook! {
    /// sigprocmask(2)
    fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int, next libc_sigprocmask {
        mask(libc_sigprocmask, how, set, old)
    }
}

hook! {
    /// pthread_sigmask(3), which answers the error itself
    fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int, next libc_pthread_sigmask {
        mask(libc_pthread_sigmask, how, set, old)
    }
}
