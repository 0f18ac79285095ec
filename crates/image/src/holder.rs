//! Who has an image locked, as far as the host tells (`/proc/locks`).

use crate::error::MediaError;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::time::Duration;

/// How long a process that is just ending may take to let go of what it has mapped: so many looks, so far apart.
const LOOKS: u32 = 20;
const LOOK: Duration = Duration::from_millis(10);

/// Whether a process that an earlier user has forked has files on an image mapped ([`nvmed_sys::hold`]).
///
/// # Errors
/// [`MediaError::Mapped`].
pub fn check_maps(fd: impl AsFd, path: &str) -> Result<(), MediaError> {
    for _ in 0..LOOKS {
        // Where the host has no such locks nobody holds one.
        if !nvmed_sys::is_held(fd.as_fd()).unwrap_or(false) {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    Err(MediaError::Mapped { path: path.to_owned() })
}

/// The process that holds a `flock` on the file behind `fd`, as `name (pid N)`.
pub(crate) fn of(fd: &OwnedFd) -> String {
    holder(fd).unwrap_or_else(|| "another process".to_owned())
}

fn holder(fd: &OwnedFd) -> Option<String> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let pid = locker(&read("/proc/locks").ok()?, &format!("{major:02x}:{minor:02x}:{}", stat.st_ino))?;
    let name = read(&format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.trim();
    Some(if name.is_empty() { format!("pid {pid}") } else { format!("{name} (pid {pid})") })
}

/// The process of the line `N: FLOCK ADVISORY WRITE PID DEVICE:INODE BEGIN END` for a file. One outside our
/// process namespace is 0 or less, and has no name here.
fn locker(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|&word| word != "FLOCK");
        let (pid, inode) = (words.nth(3)?, words.next()?);
        (inode == file).then(|| pid.parse().ok()).flatten().filter(|&pid| pid != 0)
    })
}

fn read(path: &str) -> Result<String, Errno> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match rustix::io::read(&fd, &mut part)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            n => text.extend_from_slice(&part[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_of_this_file_and_no_other_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:12 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 22 fe:00:123 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 33 fe:00:12 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  44 fe:00:7 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 fe:00:8 0 EOF\n5: FLOCK";
        assert_eq!(locker(locks, "fe:00:123"), Some(22));
        assert_eq!(locker(locks, "fe:00:7"), Some(44));
        assert_eq!(locker(locks, "fe:00:8"), None);
        assert_eq!(locker(locks, "fe:00:1"), None);
    }
}
