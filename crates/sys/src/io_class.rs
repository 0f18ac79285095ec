//! The I/O scheduling class of a thread, as `ionice` sets it.

use core::ffi::c_long;
use rustix::io::Errno;

/// `ioprio_get`'s kind of whom: one thread, by its number; 0 is the caller (ioprio_set(2)).
const ONE_THREAD: usize = 1;
/// All threads of all processes of a process group, of which the most urgent counts; 0 is the caller's.
const A_GROUP: usize = 2;
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
    ask(ONE_THREAD, thread as usize)
}

/// The most urgent class of all threads of the caller's process group, its own process's among them. A thread of the
/// processor's real-time class that has no class of its own counts as [`IoClass::RealTime`]. One system call.
///
/// # Errors
/// What the kernel answers.
pub fn io_class_of_group() -> Result<IoClass, Errno> {
    ask(A_GROUP, 0)
}

/// Takes from the calling thread, and so from those that it starts, the class that it has inherited or was given. It
/// needs no privilege. One system call.
///
/// # Errors
/// What the kernel answers.
pub fn unset_io_class() -> Result<(), Errno> {
    checked(ioprio(libc::SYS_ioprio_set, ONE_THREAD, 0, 0)).map(drop)
}

fn ask(which: usize, who: usize) -> Result<IoClass, Errno> {
    let answer = checked(ioprio(libc::SYS_ioprio_get, which, who, 0))?;
    Ok(match answer >> CLASS_SHIFT & CLASS_MASK {
        1 => IoClass::RealTime,
        2 => IoClass::BestEffort,
        3 => IoClass::Idle,
        _ => IoClass::Unset,
    })
}

fn checked(answer: isize) -> Result<isize, Errno> {
    if answer < 0 { Err(Errno::from_raw_os_error(-answer as i32)) } else { Ok(answer) }
}

/// ioprio_get(2), which takes no `value`, or ioprio_set(2); `-errno` on failure. Not libc's `syscall`, which a
/// preloaded library of ours interposes.
#[cfg(target_arch = "x86_64")]
fn ioprio(number: c_long, which: usize, who: usize, value: usize) -> isize {
    let answer: isize;
    // SAFETY: both calls take numbers and no pointer, so the kernel reaches no memory of the process; the instruction
    // clobbers rcx and r11 only.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") which, in("rsi") who, in("rdx") value,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    answer
}

/// As on the other architecture; there the library that interposes libc's `syscall` does not exist.
#[cfg(not(target_arch = "x86_64"))]
fn ioprio(number: c_long, which: usize, who: usize, value: usize) -> isize {
    // SAFETY: both calls take numbers and no pointer, so the kernel reaches no memory of the process.
    let answer = unsafe { libc::syscall(number, which, who, value) };
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
            let set = [class(2), class(3)];
            unset_io_class().expect("taking a class away needs no privilege");
            (set, io_class_of(0))
        });
        let (set, unset) = told.join().expect("a thread");
        assert_eq!(set, [Ok(IoClass::BestEffort), Ok(IoClass::Idle)]);
        assert_eq!(unset, Ok(IoClass::Unset));
        assert!(io_class_of_group().is_ok(), "this process is in its group");
    }
}
