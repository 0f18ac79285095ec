//! Signals as values: read one by one where the reader chooses, instead of interrupting it anywhere.

use core::mem::MaybeUninit;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io::Error;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Signals that this process takes by [`Signals::next`] (signalfd(2)).
pub struct Signals {
    fd: OwnedFd,
    /// What was blocked before.
    before: libc::sigset_t,
}

/// Kills this process, by SIGKILL: the caller does nothing after this.
pub fn kill_here() {
    raise(libc::SIGKILL);
}

/// Stops this process until it gets SIGCONT: the caller goes on after that.
pub fn stop_here() {
    raise(libc::SIGSTOP);
}

fn raise(number: i32) {
    // To the calling thread: sent to the process, another thread may take it, and this one go on until then.
    // SAFETY: a call without pointers; both signals act in the kernel, and no handler runs.
    unsafe { libc::raise(number) };
}

/// One signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Whether a process sent it to this one; the terminal and the kernel send to whole groups.
    pub from_process: bool,
}

fn set_of(numbers: &[i32]) -> Result<libc::sigset_t, Error> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises `set`, which lives on this stack for the whole block.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for &number in numbers {
        // SAFETY: `set` is initialised; a bad number is answered, not acted on.
        if unsafe { libc::sigaddset(set.as_mut_ptr(), number) } != 0 {
            return Err(Error::last_os_error());
        }
    }
    // SAFETY: it was initialised above.
    Ok(unsafe { set.assume_init() })
}

impl AsFd for Signals {
    /// Readable when [`Signals::next`] does not wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Signals {
    /// Blocks `numbers` in the calling thread, and so in threads and programs that it starts later, and
    /// collects them; see [`Signals::release_in`] for programs.
    ///
    /// # Errors
    /// A number is no signal, or the host has no descriptor left.
    pub fn take(numbers: &[i32]) -> Result<Self, Error> {
        let set = set_of(numbers)?;
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `set` is initialised and only read; `before` is writable and lives on this stack.
        let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, before.as_mut_ptr()) };
        if blocked != 0 {
            return Err(Error::from_raw_os_error(blocked));
        }
        // SAFETY: -1 asks for a new descriptor; `set` is initialised and only read.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, is valid, and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the call that blocked succeeded, so it initialised `before`.
        Ok(Self { fd, before: unsafe { before.assume_init() } })
    }

    /// Has the calling thread get `numbers` again, that the process which executed this program has blocked for itself.
    ///
    /// # Errors
    /// A number is no signal.
    pub fn let_through(numbers: &[i32]) -> Result<(), Error> {
        let set = set_of(numbers)?;
        // SAFETY: `set` is initialised and only read.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, core::ptr::null_mut()) };
        if failed == 0 { Ok(()) } else { Err(Error::from_raw_os_error(failed)) }
    }

    /// Lets the program that `command` starts have the signals that are collected here.
    pub fn release_in(&self, command: &mut Command) {
        let before = self.before;
        let release = move || {
            // SAFETY: `before` is an initialised set owned by this closure; it is only read.
            let failed = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, core::ptr::null_mut()) };
            if failed == 0 { Ok(()) } else { Err(Error::from_raw_os_error(failed)) }
        };
        // SAFETY: between fork and exec the closure makes one system call, which is async-signal-safe; it
        // neither allocates nor takes a lock.
        unsafe { command.pre_exec(release) };
    }

    /// Waits for the next signal.
    ///
    /// # Errors
    /// What reading the descriptor answers.
    pub fn next(&self) -> Result<Signal, Error> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let len = size_of::<libc::signalfd_siginfo>();
        loop {
            // SAFETY: `info` is `len` writable bytes on this stack, aligned for its type.
            let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), len) };
            if usize::try_from(read) == Ok(len) {
                break;
            }
            let error = Error::last_os_error();
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        // SAFETY: zeroed, then filled by the kernel; every bit pattern is valid for its integer fields.
        let info = unsafe { info.assume_init() };
        let from_process = info.ssi_code == libc::SI_USER || info.ssi_code == libc::SI_QUEUE;
        Ok(Signal { number: info.ssi_signo.cast_signed(), from_process })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_to_this_thread_is_read_and_not_delivered() {
        let signals = Signals::take(&[libc::SIGUSR2]).unwrap();
        // SAFETY: both calls take no pointer; the signal is blocked here, so nothing is interrupted.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGUSR2) };
        assert_eq!(sent, 0);
        assert_eq!(signals.next().unwrap().number, libc::SIGUSR2);
        assert!(Signals::take(&[9999]).is_err());
        // A program started now is ended by the signal only if it is not blocked there.
        let mut command = Command::new("sh");
        command.args(["-c", "kill -USR2 $$; exit 7"]);
        signals.release_in(&mut command);
        let status = command.status().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGUSR2));
    }
}
