//! Who has an image locked, as far as the host tells (`/proc/locks`).

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

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
