//! The I/O scheduling class of a thread, as `ionice` sets it.

use core::ffi::c_long;
use rustix::io::Errno;

/// `ioprio_get`'s kind of whom: one thread, by its number; 0 is the caller (ioprio_set(2)).
const ONE_THREAD: usize = 1;
/// The class is above this bit of the answer, and the level within the class below.
const CLASS_SHIFT: u32 = 13;
/// Bits of the class.
const CLASS_MASK: isize = 7;

/// What a thread's I/O is to the host's schedulers (ioprio_set(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoClass {
    /// Nobody has set one: what the processor's scheduler makes of the thread decides.
    Unset,
    /// `ionice -c 1`; setting it needs CAP_SYS_NICE or CAP_SYS_ADMIN.
    RealTime,
    /// `ionice -c 2`.
    BestEffort,
    /// `ionice -c 3`.
    Idle,
}

/// The class of a thread by its number, which for the first thread of a process is that of the process; 0 is the
/// caller's own. One system call.
///
/// # Errors
/// [`Errno::SRCH`] when there is none, or what else the kernel answers.
pub fn io_class_of(thread: u32) -> Result<IoClass, Errno> {
    let answer = ioprio_get(ONE_THREAD, thread as usize);
    if answer < 0 {
        return Err(Errno::from_raw_os_error(-answer as i32));
    }
    Ok(match answer >> CLASS_SHIFT & CLASS_MASK {
        1 => IoClass::RealTime,
        2 => IoClass::BestEffort,
        3 => IoClass::Idle,
        _ => IoClass::Unset,
    })
}

/// ioprio_get(2); `-errno` on failure. Not libc's `syscall`, which a preloaded library of ours interposes.
#[cfg(target_arch = "x86_64")]
fn ioprio_get(which: usize, who: usize) -> isize {
    const NUMBER: c_long = libc::SYS_ioprio_get;
    let answer: isize;
    // SAFETY: the call takes two numbers and no pointer, so the kernel reaches no memory of the process; the
    // instruction clobbers rcx and r11 only.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") NUMBER as isize => answer,
            in("rdi") which, in("rsi") who,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    answer
}

/// As on the other architecture; there the library that interposes libc's `syscall` does not exist.
#[cfg(not(target_arch = "x86_64"))]
fn ioprio_get(which: usize, who: usize) -> isize {
    const NUMBER: c_long = libc::SYS_ioprio_get;
    // SAFETY: the call takes two numbers and no pointer, so the kernel reaches no memory of the process.
    let answer = unsafe { libc::syscall(NUMBER, which, who) };
    if answer >= 0 {
        return answer as isize;
    }
    -(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) as isize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_not_there_has_no_class() {
        // Above the kernel's largest pid (2^22).
        assert_eq!(io_class_of(1 << 30), Err(Errno::SRCH));
    }

    #[test]
    fn the_class_that_was_set_is_told() {
        // Best effort and idle need no privilege; a thread of its own, since it stays so.
        let told = std::thread::spawn(|| {
            let class = |class: usize| {
                // SAFETY: the call takes three numbers and no pointer.
                let set =
                    unsafe { libc::syscall(libc::SYS_ioprio_set, ONE_THREAD, 0_usize, class << CLASS_SHIFT) };
                assert_eq!(set, 0);
                io_class_of(0)
            };
            [class(2), class(3)]
        });
        assert_eq!(told.join().expect("a thread"), [Ok(IoClass::BestEffort), Ok(IoClass::Idle)]);
    }
}
