//! A file that some process still has mapped: a lock that lives as long as the open description, which each mapping of
//! it keeps, also in a process that was forked and has no descriptor of it.

use core::ffi::c_int;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;

/// The byte that is locked, behind the end of every file.
const BYTE: i64 = i64::MAX - 1;

/// Keeps [`is_held`] true of a file, through any description of it, until the last descriptor and the last mapping of
/// this description are gone. It is open to be read.
///
/// # Errors
/// What fcntl(2) answers to `F_OFD_SETLK`.
pub fn hold(fd: impl AsFd) -> Result<(), Errno> {
    let mut lock = lock_of(libc::F_RDLCK);
    checked(fcntl(fd.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &mut lock))
}

/// Whether another description of the file is held ([`hold`]).
///
/// # Errors
/// What fcntl(2) answers to `F_OFD_GETLK`.
pub fn is_held(fd: impl AsFd) -> Result<bool, Errno> {
    let mut lock = lock_of(libc::F_WRLCK);
    checked(fcntl(fd.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &mut lock))?;
    Ok(c_int::from(lock.l_type) != libc::F_UNLCK)
}

fn lock_of(kind: c_int) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: BYTE, l_len: 1, l_pid: 0 }
}

fn checked(answer: isize) -> Result<(), Errno> {
    if answer < 0 { Err(Errno::from_raw_os_error(-answer as i32)) } else { Ok(()) }
}

/// fcntl(2) about a lock; `-errno` on failure. Not libc's, which a preloaded library of ours interposes.
#[cfg(target_arch = "x86_64")]
fn fcntl(fd: c_int, command: c_int, lock: &mut libc::flock) -> isize {
    let answer: isize;
    // SAFETY: the kernel reads and writes one `flock`, which the exclusive reference is valid and aligned for until the
    // call ends; the instruction clobbers rcx and r11 only.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_fcntl as isize => answer,
            in("rdi") fd as isize, in("rsi") command as isize, in("rdx") core::ptr::from_mut(lock),
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    answer
}

/// As on the other architecture; there the library that interposes libc's does not exist.
#[cfg(not(target_arch = "x86_64"))]
fn fcntl(fd: c_int, command: c_int, lock: &mut libc::flock) -> isize {
    // SAFETY: the kernel reads and writes one `flock`, which the exclusive reference is valid and aligned for.
    let answer = unsafe { libc::fcntl(fd, command, core::ptr::from_mut(lock)) };
    if answer >= 0 {
        return answer as isize;
    }
    -(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) as isize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, Pages};
    use rustix::fd::OwnedFd;
    use rustix::fs::{MemfdFlags, Mode, OFlags};

    fn again(file: &OwnedFd) -> OwnedFd {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn a_file_is_held_until_its_last_mapping_is_gone() {
        let file = rustix::fs::memfd_create("held", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let held = again(&file);
        assert_eq!(is_held(&file), Ok(false));
        hold(&held).unwrap();
        assert_eq!((is_held(&file), is_held(&held)), (Ok(true), Ok(false)));
        let mapping = Mapping::shared(held.as_fd(), 0, 4096, Pages::Base).unwrap();
        drop(held);
        assert_eq!(is_held(&file), Ok(true), "by the mapping");
        drop(mapping);
        assert_eq!(is_held(&file), Ok(false));
    }
}
