//! Who uses a block device: mounts, swap, devices stacked on it, processes.

use crate::host::Host;
use core::fmt;

/// One use of a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// A file system is mounted from it.
    Mounted {
        /// The disk or partition, as `nvme0n1p2`.
        device: String,
        /// Where.
        at: String,
    },
    /// It is swap space.
    Swap {
        /// The disk or partition.
        device: String,
    },
    /// Another block device lies on it: RAID, LVM, dm-crypt.
    Holder {
        /// The disk or partition.
        device: String,
        /// What lies on it, as `dm-0`.
        holder: String,
    },
    /// Somebody has it for himself alone: a mount in another container, a program.
    Claimed {
        /// The disk.
        device: String,
    },
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted { device, at } => write!(f, "/dev/{device} is mounted at {at}"),
            Self::Swap { device } => write!(f, "/dev/{device} is swap space"),
            Self::Holder { device, holder } => write!(f, "{holder} lies on /dev/{device}"),
            Self::Claimed { device } => {
                write!(f, "/dev/{device} is held by a program or by a mount in another container")
            }
        }
    }
}

/// A line of `/proc/self/mountinfo` (proc(5)): device number, mount point and source.
struct Mount {
    number: String,
    at: String,
    source: String,
}

fn mounts(host: &Host) -> Vec<Mount> {
    let text = host.text("proc/self/mountinfo").unwrap_or_default();
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ');
        let number = left.nth(2)?.to_owned();
        let at = unescaped(left.nth(1)?);
        let source = unescaped(right.split(' ').nth(1)?);
        Some(Mount { number, at, source })
    };
    text.lines().filter_map(parse).collect()
}

/// Octal escapes of `/proc`: `\040` is a blank.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                plain.push(byte as char);
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

/// Every use of disk `disk` (as `nvme0n1`) and its partitions.
pub(crate) fn uses(host: &Host, disk: &str) -> Vec<Use> {
    let dir = format!("sys/class/block/{disk}");
    let partitions = host.names(&dir).into_iter().filter(|name| name.starts_with(disk));
    let mut found = Vec::new();
    let (mounts, swaps) = (mounts(host), host.text("proc/swaps").unwrap_or_default());
    for device in std::iter::once(disk.to_owned()).chain(partitions) {
        let number = host.text(&format!("sys/class/block/{device}/dev")).unwrap_or_default();
        let node = format!("/dev/{device}");
        let ours = |mount: &&Mount| mount.number == number || mount.source == node;
        found.extend(
            mounts
                .iter()
                .filter(ours)
                .map(|mount| Use::Mounted { device: device.clone(), at: mount.at.clone() }),
        );
        if swaps.lines().any(|line| line.split_whitespace().next() == Some(node.as_str())) {
            found.push(Use::Swap { device: device.clone() });
        }
        let holders = host.names(&format!("sys/class/block/{device}/holders"));
        found.extend(holders.into_iter().map(|holder| Use::Holder { device: device.clone(), holder }));
    }
    if found.is_empty() && is_claimed(host, disk) {
        found.push(Use::Claimed { device: disk.to_owned() });
    }
    found
}

/// Whether somebody has the disk or one of its partitions for himself: then nobody else gets it exclusively.
fn is_claimed(host: &Host, disk: &str) -> bool {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    host.is_live()
        && rustix::fs::open(host.path(&format!("dev/{disk}")), flags, Mode::empty()).err()
            == Some(rustix::io::Errno::BUSY)
}

/// Who has `path` open, as `name (pid N)`; only root sees the processes of others.
pub(crate) fn holder(host: &Host, path: &str) -> Option<String> {
    let pids = host.names("proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    pids.into_iter().find_map(|pid| {
        let open = host.names(&format!("proc/{pid}/fd")).into_iter().any(|fd| {
            let target = std::fs::read_link(host.path(&format!("proc/{pid}/fd/{fd}")));
            target.is_ok_and(|target| target.as_os_str() == path)
        });
        let name = || host.text(&format!("proc/{pid}/comm")).unwrap_or_default();
        open.then(|| format!("{} (pid {pid})", name()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_in_mount_points_are_read() {
        assert_eq!(unescaped(r"/a\040b\134"), r"/a b\");
        assert_eq!(unescaped(r"\9\é"), r"\9\é");
    }
}
