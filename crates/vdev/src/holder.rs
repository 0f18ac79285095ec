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
    let wanted = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let locks = read("/proc/locks").ok()?;
    let line = locks.lines().find(|line| line.contains("FLOCK") && line.contains(&wanted))?;
    let pid = line.split_whitespace().skip_while(|word| !matches!(*word, "WRITE" | "READ")).nth(1)?;
    let name = read(&format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.trim();
    Some(if name.is_empty() { format!("pid {pid}") } else { format!("{name} (pid {pid})") })
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
