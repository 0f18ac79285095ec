//! Mappings of files that somebody else may cut short: a touch past their end is a signal (`SIGBUS`), which
//! ends the process unless somebody answers it.

use crate::sync::Mutex;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};
use rustix::mm::{MapFlags, ProtFlags};
use std::io::Error;

/// Ranges that can be guarded at once: as many as a served device lets its client map.
const RANGES: usize = 4096;
/// What is put in place of memory that is gone.
const PAGE: usize = 4096;

/// One guarded range; `begin` 0 is a free place, 1 one that is being filled.
#[derive(Debug)]
struct Range {
    begin: AtomicUsize,
    end: AtomicUsize,
    /// Touches that met nothing.
    cuts: AtomicUsize,
}

static GUARDED: [Range; RANGES] =
    [const { Range { begin: AtomicUsize::new(0), end: AtomicUsize::new(0), cuts: AtomicUsize::new(0) } };
        RANGES];

/// What the process did about `SIGBUS` before; null until our handler is there.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(core::ptr::null_mut());

/// A place in the table, freed with the value.
#[derive(Debug)]
pub(crate) struct Guard(&'static Range);

impl Guard {
    /// Guards `[begin, begin + len)`; None when the table is full.
    pub fn new(begin: usize, len: usize) -> Option<Self> {
        let free =
            |range: &Range| range.begin.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let place = GUARDED.iter().find(|range| free(range))?;
        place.cuts.store(0, Ordering::Relaxed);
        place.end.store(begin + len, Ordering::Release);
        place.begin.store(begin, Ordering::Release);
        Some(Self(place))
    }

    /// Whether somebody has touched what was not there. What was copied before this call may then be zeroes of ours.
    #[inline]
    pub fn is_cut(&self) -> bool {
        // Pairs with the count before the new page in `on_bus_error`: who has seen that page sees the count.
        fence(Ordering::Acquire);
        self.0.cuts.load(Ordering::Relaxed) != 0
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.begin.store(0, Ordering::Release);
    }
}

fn guarding(address: usize) -> Option<&'static Range> {
    GUARDED.iter().find(|range| {
        let begin = range.begin.load(Ordering::Acquire);
        begin > 1 && (begin..range.end.load(Ordering::Acquire)).contains(&address)
    })
}

/// Lets this process outlive files that are cut short, or that the host cannot read, under
/// [`crate::Mapping::foreign`]: from the first touch of what is not there on, there is a page of zeroes of our own, and
/// [`crate::Mapping::is_cut`] says so. Every other `SIGBUS` does what it did before: a handler that the process had is
/// called, and without one the process ends. A handler that a program installs later takes the place of ours.
///
/// # Errors
/// What `sigaction` answers.
pub fn survive_cut_files() -> Result<(), Error> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock();
    if !BEFORE.load(Ordering::Relaxed).is_null() {
        return Ok(());
    }
    let mut before = Box::new(MaybeUninit::<libc::sigaction>::zeroed());
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: null asks for what is there, which is written to `before`.
    if unsafe { libc::sigaction(libc::SIGBUS, core::ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(Error::last_os_error());
    }
    // Before the handler is there, which looks at it at any time from then on: it is never freed.
    BEFORE.store(Box::leak(before).as_mut_ptr(), Ordering::Release);
    // SAFETY: zeroed is a valid `sigaction` (default handler, empty mask, no flags); `action` lives on this
    // stack. `on_bus_error` has the signature that SA_SIGINFO asks for, and does only what a handler may:
    // atomics, and system calls.
    let set = unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, action, core::ptr::null_mut())
    };
    if set == 0 {
        return Ok(());
    }
    let error = Error::last_os_error();
    // No handler is there, and the next call tries again.
    BEFORE.store(core::ptr::null_mut(), Ordering::Release);
    Err(error)
}

/// Whether a `SIGBUS` with this `si_code` (sigaction(2)) is about memory that is not there or cannot be read. One that
/// a process sends has a code that is not positive, and no address.
fn is_about_memory(code: c_int) -> bool {
    matches!(code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR | libc::BUS_MCEERR_AO)
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives an SA_SIGINFO handler a valid `siginfo_t`, and every one has a code.
    let code = unsafe { (*info).si_code };
    // SAFETY: as above; for these codes it holds an address, and for the others it is not looked at.
    let address = is_about_memory(code).then(|| unsafe { (*info).si_addr() } as usize);
    if let Some((address, range)) = address.and_then(|address| Some((address, guarding(address)?))) {
        range.cuts.fetch_add(1, Ordering::Release);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let page = core::ptr::without_provenance_mut(address & !(PAGE - 1));
        // SAFETY: the page lies in a guarded mapping of ours, which lives while it is guarded: the thread that
        // faulted is inside an access to it. Only raw copies and atomics reach its bytes, and they go on on
        // the new page of the same size and protection.
        if unsafe { rustix::mm::mmap_anonymous(page, PAGE, protection, flags) }.is_ok() {
            return;
        }
    }
    // Not ours to answer.
    // SAFETY: null, or what `survive_cut_files` has leaked, initialised and not written since.
    let before = unsafe { BEFORE.load(Ordering::Acquire).as_ref() };
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let sent = code <= 0;
    if sent && handler == libc::SIG_IGN {
        return;
    }
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // The touch is made again, and ends the process.
        // SAFETY: sets the default action of a signal, which takes no pointer that outlives the call.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        if sent {
            again();
        }
        return;
    }
    type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    // SAFETY: the process had installed it for this signal. One that takes the signal alone ignores the rest, which is
    // in registers; the arguments are the kernel's.
    unsafe { core::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: null changes nothing; what is there is written to `now`, which lives on this stack, and of which zeroes
    // are a valid value too.
    let left = unsafe {
        libc::sigaction(libc::SIGBUS, core::ptr::null(), now.as_mut_ptr());
        now.assume_init().sa_sigaction
    };
    if sent && left == libc::SIG_DFL {
        // As Rust's own handler does, which leaves the end to a second touch.
        again();
    }
}

/// Of a signal that was sent there is no touch that is made again: it is sent again, and ends the process when the
/// handler, which keeps it off, has returned.
fn again() {
    // SAFETY: takes no pointer, and is among what a handler may call (signal-safety(7)).
    unsafe { libc::raise(libc::SIGBUS) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;
    use rustix::fs::MemfdFlags;

    #[test]
    fn a_file_that_is_cut_short_reads_as_zeroes_and_can_be_written() {
        survive_cut_files().unwrap();
        let fd = rustix::fs::memfd_create("cut", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 16_384).unwrap();
        let memory = Mapping::foreign(rustix::fd::AsFd::as_fd(&fd), 0, 16_384).unwrap();
        memory.fill(0, 16_384, 7);
        assert!(!memory.is_cut());
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        let mut bytes = [9; 8192];
        memory.read(2048, &mut bytes);
        assert!(bytes[..2048].iter().all(|&byte| byte == 7) && bytes[2048..].iter().all(|&byte| byte == 0));
        memory.write(12_000, b"into the void");
        assert!(memory.is_cut());
        drop(memory);
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size, 4096);
    }

    /// Its "address" is the sender's user and process, which may well lie in a guarded range.
    #[test]
    fn a_signal_that_a_process_sends_is_no_cut_file() {
        survive_cut_files().unwrap();
        // SAFETY: the child writes into the table and makes system calls, until it ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // The child's alone: other tests run beside this one.
            let guard = Guard::new(2, usize::MAX >> 1).unwrap();
            // SAFETY: takes no pointers.
            unsafe {
                libc::kill(libc::getpid(), libc::SIGBUS);
                libc::_exit(i32::from(guard.is_cut()));
            }
        }
        let mut status = 0;
        // SAFETY: `status` lives on this stack.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((libc::WIFSIGNALED(status), libc::WTERMSIG(status)), (true, libc::SIGBUS));
    }

    #[test]
    fn a_place_in_the_table_is_free_again() {
        let begin = 0x7000_0000_0000;
        for _ in 0..2 * RANGES {
            let guard = Guard::new(begin, 8192).unwrap();
            let is_guarded = |address| guarding(address).is_some();
            assert!(is_guarded(begin) && is_guarded(begin + 8191) && !is_guarded(begin + 8192));
            drop(guard);
            assert!(guarding(begin).is_none());
        }
    }
}
