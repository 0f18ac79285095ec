//! The second tier: system calls that a program makes by its own instructions, below libc.
//!
//! The kernel sends SIGSYS for each (`PR_SET_SYSCALL_USER_DISPATCH`, Linux 5.11) but those from one range of
//! addresses, which spans our library, libc and the loader: what they and libraries between them do passes
//! untouched. The handler carries out calls on our paths and descriptors by the hooks. Every other call goes
//! on behind the handler, at an instruction of ours that is followed by a jump back: so it waits, restarts, is
//! interrupted, makes threads and returns from signals as if the program's own instruction had made it.
//!
//! The setting is per thread and does not survive a fork: `thread` arms new ones. SIGSYS must never be blocked
//! where such an instruction may come, or the kernel kills; so masks that block it are cleaned of it.

use crate::calls::{poll, rights};
use crate::edge::{fault, given, inside, sigsys};
use crate::find::{above, table};
use crate::host::socket;
use crate::process::fork;
use crate::raw;
use crate::tier::{syscall, thread};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use libc::{siginfo_t, ucontext_t};
use nvmed_stack::RawSyscalls;
use rustix::io::Errno;

// linux/prctl.h, asm-generic/siginfo.h.
const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
const PR_SYS_DISPATCH_ON: c_int = 1;
const SYS_USER_DISPATCH: c_int = 2;

/// What the kernel looks at: calls from outside the range are dispatched, always.
static SELECTOR: u8 = 1;
/// The range that is let past: its beginning and its length; no length while the tier is off.
static RANGE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Turns the tier on for this thread and those that it makes, if the setting says so.
pub(crate) fn begin(how: RawSyscalls) {
    let wanted = match how {
        RawSyscalls::Off => false,
        RawSyscalls::Dispatch => true,
        RawSyscalls::Detect => crate::tier::instructions::program_has_them(),
    };
    if !wanted {
        return;
    }
    let (start, end) = crate::tier::instructions::range();
    let installed = stubs::prepare().and_then(|()| install());
    RANGE[0].store(start, Ordering::Relaxed);
    RANGE[1].store(end - start, Ordering::Release);
    sigsys::set_taken(true);
    if let Err(errno) = installed.and_then(|()| arm()) {
        RANGE[1].store(0, Ordering::Release);
        sigsys::set_taken(false);
        raw::say(format_args!(
            "raw_syscalls: the kernel does not dispatch system calls ({}; Linux 5.11 does): those that the \
             program makes below libc fail on files of ours",
            Errno::from_raw_os_error(errno)
        ));
        return;
    }
    // SAFETY: a function that lives as long as the process.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

extern "C" fn in_child() {
    // What worked in the parent works here.
    let _ = arm();
}

/// Has this thread's calls dispatched.
pub(crate) fn arm() -> Result<(), c_int> {
    let (start, len) = (RANGE[0].load(Ordering::Relaxed), RANGE[1].load(Ordering::Acquire));
    if len == 0 {
        return Ok(());
    }
    let answer =
        sys!(SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, start, len, &raw const SELECTOR);
    if answer < 0 { Err(-answer as c_int) } else { Ok(()) }
}

fn install() -> Result<(), c_int> {
    // SAFETY: a struct of integers.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = dispatched as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    // libc's own, because its return from signals lies in the range.
    match inside::libc_sigaction(libc::SIGSYS, &raw const action, core::ptr::null_mut()) {
        0 => Ok(()),
        _ => Err(raw::errno()),
    }
}

/// `siginfo_t` of SIGSYS from where its parts differ.
#[repr(C)]
struct SigsysInfo {
    signal: c_int,
    errno: c_int,
    code: c_int,
    _pad: c_int,
    address: usize,
    number: c_int,
}

/// The handler of SIGSYS.
unsafe extern "C" fn dispatched(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's structures for this signal, valid while its handler runs.
    let (told, context) = unsafe { (&*info.cast::<SigsysInfo>(), &mut *context.cast::<ucontext_t>()) };
    if told.code != SYS_USER_DISPATCH {
        // SAFETY: as above.
        return unsafe { pass_on(number, info, context) };
    }
    let errno = raw::errno();
    let call = Call { number: c_long::from(told.number), words: words(context), site: told.address };
    let answer = call.answer(context);
    let registers = &mut context.uc_mcontext.gregs;
    match answer {
        Some(answer) => registers[libc::REG_RAX as usize] = answer as i64,
        None => match stubs::of(call.site) {
            Some(stub) => registers[libc::REG_RIP as usize] = stub as i64,
            // More places in the program than there are stubs: here, though it cannot be interrupted.
            None => registers[libc::REG_RAX as usize] = raw::call(call.number, call.words) as i64,
        },
    }
    raw::set_errno(errno);
}

fn words(context: &ucontext_t) -> [usize; 6] {
    use libc::{REG_R8, REG_R9, REG_R10, REG_RDI, REG_RDX, REG_RSI};
    [REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9]
        .map(|register| context.uc_mcontext.gregs[register as usize] as usize)
}

/// A call that was dispatched.
struct Call {
    number: c_long,
    words: [usize; 6],
    /// Behind the instruction.
    site: usize,
}

impl Call {
    /// What the program gets; `None` if the kernel is to take the call.
    fn answer(&self, context: &mut ucontext_t) -> Option<isize> {
        // SAFETY: the program's arguments for the call of this number, here and below.
        unsafe {
            match self.number {
                libc::SYS_rt_sigaction => action(self.words),
                libc::SYS_rt_sigprocmask => mask(self.words, context),
                number if fork::is_plain(number, self.words) => {
                    Some(thread::on_large_stack(context, || fork(number, self.words)))
                }
                libc::SYS_exit_group => {
                    crate::process::life::_exit(self.words[0] as c_int);
                    None
                }
                // The kernel's: a child that shares memory and has flags which libc's fork does not know.
                libc::SYS_vfork | libc::SYS_exit => None,
                // Not of one form with libc's function, but about descriptors all the same.
                libc::SYS_pselect6 if !self.names_ours() => None,
                number if syscall::is_about_descriptors(number) && !self.names_ours() => None,
                number => thread::on_large_stack(context, || answered(number, self.words)),
            }
        }
    }

    /// Whether a call on descriptors has one of ours among its words, wherever, or one of the stack's own, which are
    /// not there for the program.
    ///
    /// # Safety
    /// The words are the program's arguments for the call of this number.
    unsafe fn names_ours(&self) -> bool {
        // The kernel looks at 32 bits.
        let fd = |index: usize| self.words[index] as c_int;
        let special = |index: usize| table::is_ours(fd(index)) || nvmed_sys::is_quiet(fd(index));
        let [first, second, third, fourth, ..] = self.words;
        match self.number {
            libc::SYS_close_range => true,
            // Others wait behind the handler, where signals reach them.
            // SAFETY: the caller's contract, here and below.
            libc::SYS_poll | libc::SYS_ppoll => unsafe { poll::looks::poll(first as _, second as _) },
            // SAFETY: as above.
            libc::SYS_select | libc::SYS_pselect6 => unsafe {
                poll::looks::select(first as c_int, second as _, third as _, fourth as _)
            },
            // SAFETY: as above.
            libc::SYS_sendmsg => unsafe { rights::looks::sendmsg(first as c_int, second as _) },
            // SAFETY: as above.
            libc::SYS_sendmmsg => unsafe { rights::looks::sendmmsg(first as c_int, second as _, third as _) },
            // SAFETY: as above.
            libc::SYS_recvmsg => unsafe { rights::looks::recvmsg(first as c_int, second as _) },
            // SAFETY: as above.
            libc::SYS_recvmmsg => unsafe { rights::looks::recvmmsg(first as c_int, second as _, third as _) },
            libc::SYS_dup2 | libc::SYS_dup3 | libc::SYS_sendfile | libc::SYS_tee => special(0) || special(1),
            libc::SYS_copy_file_range | libc::SYS_splice | libc::SYS_epoll_ctl => special(0) || special(2),
            libc::SYS_ioctl => special(0) || special(2),
            libc::SYS_getdents64 => special(0) || above::is_possible(),
            // By their addresses.
            libc::SYS_connect | libc::SYS_bind => true,
            libc::SYS_getsockname | libc::SYS_getpeername => true,
            // SAFETY: as above.
            libc::SYS_sendto => unsafe {
                let [.., address, len] = self.words;
                socket::looks::sendto(
                    first as c_int,
                    second as _,
                    third,
                    fourth as c_int,
                    address as _,
                    len as _,
                )
            },
            _ => special(0),
        }
    }
}

/// The answer of a hook as the kernel gives it.
unsafe fn answered(number: c_long, words: [usize; 6]) -> Option<isize> {
    raw::set_errno(0);
    // SAFETY: the caller's contract.
    let answer = unsafe { syscall::by_number(number, words) }?;
    let errno = raw::errno();
    Some(if answer == -1 && errno != 0 { -(errno as isize) } else { answer as isize })
}

/// fork(2), so that libc's preparations for it run; both sides come back here. A descriptor of the child, for which the
/// call's flags ask, is opened and stored afterwards.
///
/// # Safety
/// The words are a program's arguments for the call of this number, of which [`fork::is_plain`] is true.
unsafe fn fork(number: c_long, words: [usize; 6]) -> isize {
    let child = fork::libc_fork();
    if child == -1 {
        return -(raw::errno() as isize);
    }
    if child > 0 && number == libc::SYS_clone && words[0] & libc::CLONE_PIDFD as usize != 0 {
        let fd = (sys!(SYS_pidfd_open, child, 0) as c_int).max(-1);
        // SAFETY: the program wants it there. Where it has no memory the child has begun all the same.
        let _ = unsafe { given::put(words[2] as *mut c_int, &fd) };
    }
    child as isize
}

/// rt_sigaction: the handler of SIGSYS stays ours, and no handler runs with SIGSYS blocked.
unsafe fn action(words: [usize; 6]) -> Option<isize> {
    let [number, new, old, ..] = words;
    // The kernel's structure of four words: handler, flags, restorer, mask.
    let given = match new {
        0 => None,
        new => match given::get(new as *const [usize; 4]) {
            Ok(given) => Some(given),
            Err(_) => return Some(-(libc::EFAULT as isize)),
        },
    };
    if fault::is_ours(number as c_int) {
        return Some(fault_action(number as c_int, given, old as *mut [usize; 4]));
    }
    if number == libc::SIGSYS as usize {
        // SAFETY: as above.
        if let Some(old) = unsafe { (old as *mut [usize; 4]).as_mut() } {
            *old = sigsys::own();
        }
        if let Some(given) = given {
            sigsys::keep(given);
        }
        return Some(0);
    }
    let mut given = given?;
    given[3] &= !(sigsys::BIT as usize);
    if fault::is_on() {
        given[3] &= !(fault::OURS as usize);
    }
    Some(sys!(SYS_rt_sigaction, number, &raw const given, old, words[3]))
}

/// rt_sigaction of a signal that carries faults: the program's handler is put behind ours.
fn fault_action(number: c_int, given: Option<[usize; 4]>, old: *mut [usize; 4]) -> isize {
    // SAFETY: structures of integers.
    let (mut new, mut before): (libc::sigaction, libc::sigaction) = unsafe { core::mem::zeroed() };
    if let Some([handler, flags, _, mask]) = given {
        (new.sa_sigaction, new.sa_flags) = (handler, flags as c_int);
        fault::put_word(&mut new.sa_mask, mask as u64);
    }
    let wanted = if given.is_some() { &raw const new } else { core::ptr::null() };
    // SAFETY: structures of ours.
    if unsafe { fault::action(number, wanted, &raw mut before) } != 0 {
        return -(raw::errno() as isize);
    }
    let told = [before.sa_sigaction, before.sa_flags as usize, 0, fault::word_of(&before.sa_mask) as usize];
    // SAFETY: the program wants it there.
    if !old.is_null() && unsafe { given::put(old, &told) }.is_err() {
        return -(libc::EFAULT as isize);
    }
    0
}

/// A SIGSYS that somebody sent: the program's own handler, or the default.
unsafe fn pass_on(number: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    match sigsys::own()[0] {
        libc::SIG_IGN => {}
        libc::SIG_DFL => {
            // SAFETY: a struct of integers.
            let action: libc::sigaction = unsafe { core::mem::zeroed() };
            inside::libc_sigaction(number, &raw const action, core::ptr::null_mut());
            sys!(SYS_tgkill, sys!(SYS_getpid), sys!(SYS_gettid), number);
        }
        // SAFETY: the program's handler; one that takes the number alone ignores the rest.
        handler => unsafe {
            core::mem::transmute::<usize, unsafe extern "C" fn(c_int, *mut siginfo_t, *mut ucontext_t)>(
                handler,
            )(number, info, context);
        },
    }
}

/// rt_sigprocmask on the mask that the thread gets back when the handler returns.
unsafe fn mask(words: [usize; 6], context: &mut ucontext_t) -> Option<isize> {
    let [how, new, old, size, ..] = words;
    if size != size_of::<u64>() {
        return None;
    }
    let present = (&raw mut context.uc_sigmask).cast::<u64>();
    // SAFETY: the context's set begins with the kernel's. The program's are null or eight bytes.
    unsafe {
        let before = present.read() | fault::blocked();
        if new != 0 {
            let Ok(given) = given::get(new as *const u64) else { return Some(-(libc::EFAULT as isize)) };
            let given = fault::masked_word(how as c_int, given);
            let after = match how as c_int {
                libc::SIG_BLOCK => before | given,
                libc::SIG_UNBLOCK => before & !given,
                libc::SIG_SETMASK => given,
                _ => return Some(-(libc::EINVAL as isize)),
            };
            let open = if fault::is_on() { fault::OURS } else { 0 };
            present.write(after & !sigsys::BIT & !open);
        }
        if old != 0 && given::put(old as *mut u64, &before).is_err() {
            return Some(-(libc::EFAULT as isize));
        }
    }
    Some(0)
}

/// Instructions of ours at which calls of the program go on: `syscall`, then a jump to behind its own.
mod stubs {
    use super::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    use crate::edge::host;
    use core::ffi::c_int;

    /// Places in a program that make system calls: Go's runtime has about thirty.
    const STUBS: usize = 1024;
    const STUB_BYTES: usize = 16;
    const BYTES: usize = STUBS * STUB_BYTES;
    /// `syscall`; `jmp [rip]`; the address follows.
    const CODE: u64 = 0x0000_0000_25ff_050f;

    /// Address space within the allowed range; memory that can be executed is mapped over it.
    #[repr(align(4096))]
    struct Space(core::cell::UnsafeCell<[u8; BYTES]>);

    // SAFETY: nobody looks at the bytes by this name.
    unsafe impl Sync for Space {}

    static SPACE: Space = Space(core::cell::UnsafeCell::new([0; BYTES]));
    /// The same memory, to be written.
    static WRITABLE: AtomicUsize = AtomicUsize::new(0);
    /// The site of each stub; 0 while it is free.
    static SITES: [AtomicUsize; STUBS] = [const { AtomicUsize::new(0) }; STUBS];
    static READY: [AtomicBool; STUBS] = [const { AtomicBool::new(false) }; STUBS];

    /// Maps the memory, once.
    pub(super) fn prepare() -> Result<(), c_int> {
        let map = || {
            let fd = host(sys!(SYS_memfd_create, c"nvmed-stubs".as_ptr(), libc::MFD_CLOEXEC))?;
            host(sys!(SYS_ftruncate, fd, BYTES))?;
            let (write, run) = (libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ | libc::PROT_EXEC);
            let at = host(sys!(SYS_mmap, 0usize, BYTES, write, libc::MAP_SHARED, fd, 0usize))?;
            let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
            host(sys!(SYS_mmap, SPACE.0.get(), BYTES, run, fixed, fd, 0usize))?;
            sys!(SYS_close, fd);
            WRITABLE.store(at as usize, Ordering::Release);
            Ok(())
        };
        map().map_err(|failure| crate::edge::errno_of(&failure))
    }

    /// The stub for a site, made at its first call; `None` when there are no more.
    pub(super) fn of(site: usize) -> Option<usize> {
        let first = (site ^ site >> 10) % STUBS;
        for index in (first..STUBS).chain(0..first) {
            let found = &SITES[index];
            match found.compare_exchange(0, site, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => write(index, site),
                Err(other) if other == site => {
                    while !READY[index].load(Ordering::Acquire) {
                        core::hint::spin_loop();
                    }
                }
                Err(_) => continue,
            }
            return Some(SPACE.0.get() as usize + index * STUB_BYTES);
        }
        None
    }

    fn write(index: usize, site: usize) {
        let at = (WRITABLE.load(Ordering::Acquire) + index * STUB_BYTES) as *const AtomicU64;
        // SAFETY: within the mapping of `prepare`, aligned; the stub is this site's alone.
        unsafe {
            (*at.add(1)).store(site as u64, Ordering::Relaxed);
            (*at).store(CODE, Ordering::Relaxed);
        }
        READY[index].store(true, Ordering::Release);
    }
}
