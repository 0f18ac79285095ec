//! Status and times as the protocol has them.

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use nvmed_fs::{Stat, Time};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the kernel may believe an answer. It is the only way to the file system, and forgets by itself
/// what its own calls change: a year stands for ever.
pub(crate) const BELIEF: Duration = Duration::from_secs(365 * 86400);

/// `S_IFMT` and below.
const KIND_SHIFT: u32 = 12;
const NS_PER_S: i128 = 1_000_000_000;

/// The kind that a `d_type` (the upper bits of `st_mode`) names.
pub(crate) fn kind(d_type: u32) -> FileType {
    match d_type {
        1 => FileType::NamedPipe,
        2 => FileType::CharDevice,
        4 => FileType::Directory,
        6 => FileType::BlockDevice,
        10 => FileType::Symlink,
        12 => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

/// A status as the protocol tells it.
pub(crate) fn attribute(stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(stat.ino),
        size: stat.size,
        blocks: stat.blocks_512,
        atime: moment(stat.atime_ns),
        mtime: moment(stat.mtime_ns),
        ctime: moment(stat.ctime_ns),
        crtime: moment(stat.btime_ns),
        kind: kind(stat.mode >> KIND_SHIFT),
        perm: (stat.mode & 0o7777) as u16,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        // Major below 4096 and minor below 2^20, as the protocol can carry, lie in the lower half.
        rdev: stat.rdev as u32,
        blksize: stat.block_bytes,
        flags: 0,
    }
}

/// Nothing has that name: the kernel remembers it, too, by an inode number of 0.
pub(crate) fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn moment(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// A time to set; none leaves the one that is there.
pub(crate) fn time(asked: Option<TimeOrNow>) -> Time {
    match asked {
        None => Time::Omit,
        Some(TimeOrNow::Now) => Time::Now,
        Some(TimeOrNow::SpecificTime(moment)) => Time::At(nanoseconds(moment)),
    }
}

/// Nanoseconds since 1970, as far as 64 bits reach (1677 to 2262).
fn nanoseconds(moment: SystemTime) -> i64 {
    let ns = match moment.duration_since(UNIX_EPOCH) {
        Ok(after) => i128::from(after.as_secs()) * NS_PER_S + i128::from(after.subsec_nanos()),
        // fuser 0.18 subtracts the nanoseconds of a time before 1970, which the kernel counts forward from the
        // second before (its src/time.rs says "TODO"): they are added back here.
        Err(before) => {
            let before = before.duration();
            i128::from(before.subsec_nanos()) - i128::from(before.as_secs()) * NS_PER_S
        }
    };
    ns.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_come_back() {
        for ns in [0, 1, 1_500_000_000, -1, -1_500_000_000, i64::MAX, i64::MIN + 1] {
            let kernel = (ns.div_euclid(NS_PER_S as i64), ns.rem_euclid(NS_PER_S as i64) as u32);
            // As fuser makes it of what the kernel sends.
            let moment = if kernel.0 >= 0 {
                UNIX_EPOCH + Duration::new(kernel.0 as u64, kernel.1)
            } else {
                UNIX_EPOCH - Duration::new(kernel.0.unsigned_abs(), kernel.1)
            };
            assert_eq!(nanoseconds(moment), ns);
        }
        assert_eq!(moment(-1_500_000_000), UNIX_EPOCH - Duration::from_millis(1500));
    }

    #[test]
    fn kinds_are_those_of_the_mode() {
        for (mode, want) in [
            (0o010_000, FileType::NamedPipe),
            (0o020_000, FileType::CharDevice),
            (0o040_000, FileType::Directory),
            (0o060_000, FileType::BlockDevice),
            (0o100_000, FileType::RegularFile),
            (0o120_000, FileType::Symlink),
            (0o140_000, FileType::Socket),
        ] {
            assert_eq!(kind(mode >> KIND_SHIFT), want);
        }
    }
}
