//! fork in a shared mount: the child goes on with a session of its own, which holds what its parent's session holds.
//!
//! Before the fork the parent asks the server for the child's session (the heir), and takes the locks under which other
//! threads could be in the middle of a change. libc runs the three functions below around its own forks
//! (pthread_atfork); our hooks run them around the other calls that fork. Where nothing is mounted, no thread mounts
//! during the fork, and the child mounts at its first call that needs it. A child that was made without these functions
//! finds the mark of `fence` wiped if its parent had mounted, and then its calls fail with EIO.

use crate::calls::{aio, descriptor, fcntl, in_place, mapping};
use crate::edge::{given, inside};
use crate::find::backend::Handle;
use crate::find::table::{self, Pinned};
use crate::find::{cwd, mount, setting, waiting};
use crate::process::heir::{self, Becomes, Heir};
use crate::raw;
use crate::stdio;
use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_char, c_int, c_long, c_void};
use libc::pid_t;
use nvmed_sys::sync::{Mutex, MutexGuard};

/// A fork that has begun: what the forking thread holds from before it until after it.
struct PendingFork {
    /// What the table led to when the heir was made.
    pins: Vec<Pinned>,
    goes_on: GoesOn,
    locks: Locks,
}

/// How the child goes on.
enum GoesOn {
    /// With an heir's session.
    As(Heir),
    /// With an heir's session at its first touch, because that holds the working directory and nothing else.
    Later(Heir),
    /// With a session of its own at its first touch, because there is nothing to inherit.
    Afresh,
    /// Not at all: the server made no heir.
    Fenced,
}

/// Dropped in this order: no allocator may run while the first is held.
struct Locks {
    _ranges: mapping::Ranges,
    _making: MutexGuard<'static, ()>,
    _streams: stdio::Streams,
    _pool: table::Pool,
    _requests: aio::Quiet,
    _alone: MutexGuard<'static, ()>,
}

/// One fork at a time: the thread that holds this one owns `PENDING`.
static ALONE: Mutex<()> = Mutex::new(());
static PENDING: Slot<PendingFork> = Slot(UnsafeCell::new(None));
/// As `PENDING`, in a private mount, of what is mapped in place; the table of ranges is locked with it.
static MAPPED: Slot<in_place::Forking> = Slot(UnsafeCell::new(None));

struct Slot<T>(UnsafeCell<Option<T>>);

// SAFETY: used by the thread alone that holds `ALONE`, or the table of ranges, and by the only thread of a child.
unsafe impl<T> Sync for Slot<T> {}

/// What a thread holds between `before` and what follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Nothing,
    /// Nothing is mounted, and no thread mounts.
    Unmounted,
    /// `PENDING`.
    Session,
    /// `MAPPED`.
    Maps,
}

thread_local! {
    static STAGE: Cell<Stage> = const { Cell::new(Stage::Nothing) };
}

/// Has libc run the functions around its forks. Called when the library is loaded: what the program registers later
/// runs outside of ours, and may make file calls.
pub(crate) fn watch() {
    // SAFETY: functions that live as long as the process.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn before() {
    if STAGE.get() != Stage::Nothing || setting::setting().is_none_or(|setting| setting.hosted.is_some()) {
        return;
    }
    // Handlers of the program wait: they could want what is held.
    inside::enter();
    mount::wake();
    if mount::hold_unmounted() {
        STAGE.set(Stage::Unmounted);
    } else if setting::is_shared() && mount::is_mounted() {
        hold_session();
        STAGE.set(Stage::Session);
    } else {
        if mount::is_mounted() {
            // The child is behind the fence.
            cwd::remember();
            if let Some(forking) = in_place::before_fork() {
                // SAFETY: this thread holds the table of ranges, by what it puts there.
                unsafe { *MAPPED.0.get() = Some(forking) };
                STAGE.set(Stage::Maps);
                return;
            }
        }
        inside::leave();
    }
}

fn hold_session() {
    let alone = ALONE.lock();
    // A pin that lost a race with a close may be the last, and goes back to the pool: this thread must not hold it yet.
    let pins = table::pins();
    let pool = table::pool();
    let streams = stdio::open_streams();
    let making = mapping::making();
    let goes_on = way_of_child(&everything(&pins));
    mount::before_fork();
    let requests = aio::quiet();
    let ranges = mapping::ranges();
    let locks = Locks {
        _ranges: ranges,
        _making: making,
        _streams: streams,
        _pool: pool,
        _requests: requests,
        _alone: alone,
    };
    // SAFETY: this thread holds `ALONE`.
    unsafe { *PENDING.0.get() = Some(PendingFork { pins, goes_on, locks }) };
}

fn way_of_child(held: &[(c_int, Handle)]) -> GoesOn {
    let cwd = cwd::entered();
    if held.is_empty() && cwd.is_none() {
        return GoesOn::Afresh;
    }
    match heir::of(held, cwd.as_ref(), Becomes::Child) {
        Ok(heir) if held.is_empty() => GoesOn::Later(heir),
        Ok(heir) => GoesOn::As(heir),
        Err(failure) => {
            raw::say(format_args!(
                "the server made no session for the child of a fork, so the child's calls on files of the mount fail \
                 with EIO: {}",
                crate::edge::words_of(&failure)
            ));
            cwd::remember();
            GoesOn::Fenced
        }
    }
}

/// What this process holds at the server, each once.
fn everything(pins: &[Pinned]) -> Vec<(c_int, Handle)> {
    let mut held: Vec<(c_int, Handle)> = Vec::with_capacity(pins.len());
    for pinned in pins {
        if let Some(file) = &pinned.file {
            file.share();
        }
        held.extend(pinned.node.handle().map(|handle| (-1, handle)));
    }
    for file in mapping::files() {
        held.extend(file.node().handle().map(|handle| (-1, handle)));
    }
    held.sort_unstable();
    held.dedup();
    held
}

/// What `before` held for the session of this thread's process.
fn held() -> Option<PendingFork> {
    // SAFETY: `before` ran in this thread, or in the one of which the child is a copy, and `ALONE` is let go of with
    // the answer.
    unsafe { (*PENDING.0.get()).take() }
}

unsafe extern "C" fn in_parent() {
    match STAGE.replace(Stage::Nothing) {
        Stage::Nothing => return,
        Stage::Unmounted => mount::let_mount(),
        Stage::Maps => {
            // SAFETY: `before` ran in this thread, which holds the table of ranges.
            if let Some(forking) = unsafe { (*MAPPED.0.get()).take() } {
                forking.end();
            }
        }
        Stage::Session => {
            if let Some(PendingFork { pins, goes_on, locks }) = held() {
                drop(locks);
                mount::after_fork();
                // Now their descriptions may return to the pool.
                drop((goes_on, pins));
            }
        }
    }
    inside::leave();
}

unsafe extern "C" fn in_child() {
    match STAGE.replace(Stage::Nothing) {
        Stage::Nothing => return mount::forget_mounting(),
        Stage::Unmounted => {
            mount::let_mount();
            inside::forget_waiting();
        }
        Stage::Maps => {
            // SAFETY: `before` ran in the thread of which this one is a copy, and no other is here.
            if let Some(forking) = unsafe { (*MAPPED.0.get()).take() } {
                forking.end_in_child();
            }
            inside::forget_waiting();
            mount::forget_mounting();
        }
        Stage::Session => held().into_iter().for_each(go_on),
    }
    inside::leave();
}

/// The child of a process that has a session.
fn go_on(PendingFork { pins, goes_on, locks }: PendingFork) {
    drop(locks);
    inside::forget_waiting();
    fcntl::begin_without_locks();
    let goes = match goes_on {
        GoesOn::As(heir) => mount::become_heir(Some(heir.0)),
        GoesOn::Later(heir) => {
            mount::begin_afresh();
            waiting::leave(heir.0);
            cwd::leave_to_heir();
            Ok(())
        }
        GoesOn::Afresh => {
            mount::begin_afresh();
            Ok(())
        }
        // It stays behind the fence.
        GoesOn::Fenced => mount::become_heir(None),
    };
    match goes {
        Ok(()) => table::recount(&pins),
        Err(_) => core::mem::forget(pins),
    }
}

/// Runs a call that makes a process as fork does, below libc's own functions around it.
pub(crate) fn forking<R: Copy + PartialEq + Default>(call: impl FnOnce() -> R) -> R {
    // SAFETY: the functions that libc would run, in its order.
    unsafe {
        before();
        let answer = call();
        if answer == R::default() {
            in_child()
        } else {
            in_parent()
        };
        answer
    }
}

/// `struct clone_args` (linux/sched.h), as far as it matters here: the flags, and where the child's stack is.
#[repr(C)]
#[derive(Clone, Copy)]
struct CloneArgs {
    flags: u64,
    between: [u64; 4],
    stack: u64,
}

// SAFETY: numbers.
unsafe impl given::Plain for CloneArgs {}

/// Whether a call by number makes a process that goes on here with a copy of our memory.
///
/// # Safety
/// The words are a program's arguments for the call of this number.
pub(crate) unsafe fn by_number(number: c_long, words: [usize; 6]) -> bool {
    let (flags, stack) = match number {
        libc::SYS_fork => return true,
        libc::SYS_clone => (words[0] as u64, words[1] as u64),
        libc::SYS_clone3 if words[1] >= size_of::<CloneArgs>() => {
            // What is not there the kernel tells.
            let Ok(arguments) = given::get(words[0] as *const CloneArgs) else { return false };
            (arguments.flags, arguments.stack)
        }
        _ => return false,
    };
    // On another stack the child does not come back here.
    flags & libc::CLONE_VM as u64 == 0 && stack == 0
}

/// Whether a call by number makes a process as fork or vfork do, which libc's fork can stand for.
pub(crate) fn is_plain(number: c_long, words: [usize; 6]) -> bool {
    let (flags, stack) = (words[0], words[1]);
    match number {
        libc::SYS_fork => true,
        libc::SYS_vfork => is_vfork(libc::CLONE_VM | libc::CLONE_VFORK),
        // Go's runtime makes processes so, with or without a descriptor of the child. The lowest byte is a signal.
        libc::SYS_clone if stack == 0 => {
            let rest = flags & !(libc::CLONE_PIDFD as usize);
            let vfork = libc::CLONE_VM | libc::CLONE_VFORK;
            let chld = libc::SIGCHLD as usize;
            rest == chld || rest == vfork as usize | chld && is_vfork(vfork)
        }
        _ => false,
    }
}

/// libc's fork(2), which is no hook: libc runs our functions of pthread_atfork around it.
pub(crate) fn libc_fork() -> pid_t {
    // SAFETY: fork takes nothing.
    unsafe { next!(fork, fn() -> pid_t)() }
}

hook! {
    /// vfork(2), as fork: a child that shares our memory would change the parent's descriptor table
    fn vfork() -> pid_t {
        libc_fork()
    }
}

hook! {
    /// _Fork(3): no functions of pthread_atfork
    #[allow(non_snake_case)]
    fn _Fork() -> pid_t, next libc_fork_alone {
        forking(|| libc_fork_alone())
    }
}

/// What a child of clone(2) runs.
struct Start {
    run: unsafe extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
}

/// The first function of a child of [`clone`].
unsafe extern "C" fn begin(start: *mut c_void) -> c_int {
    // SAFETY: `clone` made it of a box, and this process has a copy of its own.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: the first thing in a new process; then the program's own function with its own argument.
    unsafe {
        in_child();
        (start.run)(start.argument)
    }
}

/// Whether a child with descriptors of its own would share our table of them until it is another program.
fn is_vfork(flags: c_int) -> bool {
    let both = libc::CLONE_VM | libc::CLONE_VFORK;
    flags & (both | libc::CLONE_FILES | libc::CLONE_SIGHAND) == both
        && setting::setting().is_some_and(|setting| setting.hosted.is_none())
}

hook! {
    /// clone(2); what vfork does is a fork. Variadic in C; a seventh word is read from the stack, where the caller's
    /// frame is
    fn clone(
        run: Option<unsafe extern "C" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int,
        argument: *mut c_void, parent: *mut c_void, tls: *mut c_void, child: *mut c_void,
    ) -> c_int, next libc_clone {
        let flags = if is_vfork(flags) { flags & !(libc::CLONE_VM | libc::CLONE_VFORK) } else { flags };
        let Some(first) = run.filter(|_| flags & libc::CLONE_VM == 0) else {
            // A thread, or a process that shares all memory and so our session.
            return libc_clone(run, stack, flags, argument, parent, tls, child);
        };
        let start = Box::into_raw(Box::new(Start { run: first, argument }));
        before();
        let answer = libc_clone(Some(begin), stack, flags, start.cast(), parent, tls, child);
        let errno = raw::errno();
        in_parent();
        drop(Box::from_raw(start));
        raw::set_errno(errno);
        answer
    }
}

/// libc has put something else behind 0, 1 and 2, below every hook.
fn standard_replaced() {
    (libc::STDIN_FILENO..=libc::STDERR_FILENO).for_each(descriptor::replaced);
}

hook! {
    /// daemon(3): libc forks, changes directory and puts /dev/null behind 0, 1 and 2 below every hook
    fn daemon(keep_directory: c_int, keep_streams: c_int) -> c_int, next libc_daemon {
        mount::settle();
        let answer = libc_daemon(keep_directory, keep_streams);
        if answer == 0 && keep_streams == 0 {
            standard_replaced();
        }
        if answer == 0 && keep_directory == 0 {
            cwd::entered_host();
        }
        answer
    }
}

hook! {
    /// login_tty(3)
    fn login_tty(fd: c_int) -> c_int, next libc_login_tty {
        let answer = libc_login_tty(fd);
        if answer == 0 {
            standard_replaced();
        }
        answer
    }
}

hook! {
    /// forkpty(3)
    fn forkpty(
        main: *mut c_int, name: *mut c_char, settings: *const libc::termios, size: *const libc::winsize,
    ) -> pid_t, next libc_forkpty {
        let answer = libc_forkpty(main, name, settings, size);
        if answer == 0 {
            standard_replaced();
        }
        answer
    }
}
