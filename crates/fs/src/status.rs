//! What callers say about files and what they are told: flags, credentials, status.

use nvmed_layout::FileType;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

/// The bits of `st_mode` that `chmod` sets.
pub(crate) const MODE_BITS: u32 = 0o7777;
/// `S_ISUID`.
pub(crate) const MODE_SETUID: u32 = 0o4000;
/// `S_ISGID`.
pub(crate) const MODE_SETGID: u32 = 0o2000;
/// `S_ISVTX`.
pub(crate) const MODE_STICKY: u32 = 0o1000;
/// `S_IXGRP`.
pub(crate) const MODE_GROUP_EXECUTE: u32 = 0o010;

/// Who asks: the effective ids that permissions are checked against.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// User; 0 bypasses the mode bits.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
    /// Somebody above, a kernel, has found that the call is permitted: only whose a new file is
    /// is still of interest.
    pub permitted: bool,
}

impl Credentials<'static> {
    /// User and group 0.
    pub const ROOT: Self = Self { uid: 0, gid: 0, groups: &[], permitted: false };

    /// A user and a group for whom somebody above has found that the call is permitted.
    #[must_use]
    pub const fn permitted(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: &[], permitted: true }
    }
}

impl Credentials<'_> {
    /// Whether `gid` is one of the asker's groups.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the mode bits are no obstacle.
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.uid == 0 || self.permitted
    }
}

/// Whether a symbolic link as the last component is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Follow {
    /// To its target.
    Yes,
    /// The link itself is meant.
    No,
}

/// The `O_*` bits of an open call, as the host's headers define them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFlags(pub u32);

// Both architectures that we run on have the asm-generic value (open(2), O_DSYNC).
const _: () =
    assert!(OpenFlags::SYNC.has(OpenFlags::DSYNC) && OpenFlags::SYNC.bits() != OpenFlags::DSYNC.bits());

impl OpenFlags {
    /// `O_RDONLY`.
    pub const READ: Self = Self(OFlags::RDONLY.bits());
    /// `O_WRONLY`.
    pub const WRITE: Self = Self(OFlags::WRONLY.bits());
    /// `O_RDWR`.
    pub const READ_WRITE: Self = Self(OFlags::RDWR.bits());
    /// `O_CREAT`.
    pub const CREATE: Self = Self(OFlags::CREATE.bits());
    /// `O_EXCL`.
    pub const EXCLUSIVE: Self = Self(OFlags::EXCL.bits());
    /// `O_TRUNC`.
    pub const TRUNCATE: Self = Self(OFlags::TRUNC.bits());
    /// `O_APPEND`.
    pub const APPEND: Self = Self(OFlags::APPEND.bits());
    /// `O_DIRECTORY`.
    pub const DIRECTORY: Self = Self(OFlags::DIRECTORY.bits());
    /// `O_NOFOLLOW`.
    pub const NOFOLLOW: Self = Self(OFlags::NOFOLLOW.bits());
    /// `O_PATH`.
    pub const PATH: Self = Self(OFlags::PATH.bits());
    /// `O_NOATIME`.
    pub const NOATIME: Self = Self(OFlags::NOATIME.bits());
    /// `O_DIRECT`.
    pub const DIRECT: Self = Self(OFlags::DIRECT.bits());
    /// `O_DSYNC`; rustix's constant of that name has `O_SYNC`'s bits, as kernels before 2.6.33 had.
    pub const DSYNC: Self = Self(0o10_000);
    /// A write waits for the device: `O_SYNC`, `O_DSYNC`, `O_DIRECT`.
    pub const WAITING: Self = Self::SYNC.with(Self::DIRECT);
    /// `O_SYNC`; holds the bits of `O_DSYNC` too.
    pub const SYNC: Self = Self(OFlags::SYNC.bits());
    /// `O_NONBLOCK`.
    pub const NONBLOCK: Self = Self(OFlags::NONBLOCK.bits());
    /// `O_TMPFILE`; holds the bits of `O_DIRECTORY` too.
    pub const TMPFILE: Self = Self(OFlags::TMPFILE.bits());

    /// The bits that `F_SETFL` may change.
    pub const SETTABLE: Self = Self::APPEND.with(Self::NONBLOCK).with(Self::NOATIME).with(Self::DIRECT);
    /// The bits that act once, at open, and that `F_GETFL` does not show.
    pub const ONCE: Self = Self(OFlags::CLOEXEC.union(OFlags::NOCTTY).bits())
        .with(Self::CREATE)
        .with(Self::EXCLUSIVE)
        .with(Self::TRUNCATE);

    /// Both sets of bits.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        let Self(others) = other;
        Self(self.0 | others)
    }

    /// Without the bits of others.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        let Self(others) = other;
        Self(self.0 & !others)
    }

    /// All bits, as the host defines them.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether it has one bit of another at least.
    #[must_use]
    #[inline]
    pub const fn has_any(self, other: Self) -> bool {
        let Self(others) = other;
        self.0 & others != 0
    }

    /// With the bits of [`OpenFlags::SETTABLE`] that another has, and without those that it has not.
    #[must_use]
    pub const fn with_settable_of(self, other: Self) -> Self {
        self.without(Self::SETTABLE).with(Self(other.0 & Self::SETTABLE.0))
    }

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        let Self(others) = other;
        self.0 & others == others
    }

    /// Whether the access mode lets one read, with nothing to look at besides.
    #[must_use]
    #[inline]
    pub(crate) const fn reads_plainly(self) -> bool {
        let special = Self::PATH.with(Self::DIRECT);
        // `O_RDONLY` is 0, `O_RDWR` 2.
        self.0 & (Self::WRITE.0 | special.0) == 0
    }

    /// Whether the access mode lets one read.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(Self(self.0 & 3), Self::READ | Self::READ_WRITE) && !self.has(Self::PATH)
    }

    /// Whether the access mode lets one write.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(Self(self.0 & 3), Self::WRITE | Self::READ_WRITE) && !self.has(Self::PATH)
    }
}

/// How a rename treats a taken new name (`renameat2`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameFlags {
    /// It is replaced.
    #[default]
    Replace,
    /// `RENAME_NOREPLACE`: it is an error.
    NoReplace,
    /// `RENAME_EXCHANGE`: the two change places.
    Exchange,
}

/// A time given to `utimens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Time {
    /// `UTIME_NOW`.
    Now,
    /// `UTIME_OMIT`.
    Omit,
    /// Nanoseconds since 1970.
    At(i64),
}

/// From where a seek counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whence {
    /// The start of the file.
    Set,
    /// The current offset.
    Current,
    /// The end of the file.
    End,
    /// The next data at or after.
    Data,
    /// The next hole at or after; the end of the file counts as one.
    Hole,
}

/// Status of an inode, as `stat` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Device number of the file system, encoded as the kernel's `st_dev`.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Kind and mode bits.
    pub mode: u32,
    /// Names, or for a directory 2 plus its subdirectories; 0 once unlinked.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a character or block device, encoded as the kernel's `st_rdev`; else 0.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes allocated or promised.
    pub blocks_512: u64,
    /// Preferred I/O size in bytes.
    pub block_bytes: u32,
    /// Last read, nanoseconds since 1970.
    pub atime_ns: i64,
    /// Last change of the bytes.
    pub mtime_ns: i64,
    /// Last change of the inode.
    pub ctime_ns: i64,
    /// Creation.
    pub btime_ns: i64,
}

impl Stat {
    /// The kind.
    #[must_use]
    pub fn kind(&self) -> FileType {
        FileType::of_mode(self.mode).expect("we made the mode from a kind")
    }
}

/// Status of the file system, as `statfs` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatFs {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Data blocks.
    pub blocks: u64,
    /// Free ones, less those promised to data that is not yet allocated.
    pub blocks_free: u64,
    /// All inodes: those in use and those that are free.
    pub files: u64,
    /// Of them free: how many more fit into the metadata region, estimated.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
    /// From the superblock's UUID.
    pub id: u64,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

/// The magic of `statfs.f_type`: `NVMD` in ASCII.
pub const STATFS_MAGIC: u32 = 0x4e56_4d44;

/// One name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: u64,
    /// Where the listing continues after this entry (`d_off`, `telldir`).
    pub cookie: u64,
    /// What it is.
    pub kind: FileType,
    /// The name.
    pub name: &'a [u8],
}

/// What `fallocate` does to a range. Without any: allocate, and extend the file if the range does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocate {
    /// `FALLOC_FL_KEEP_SIZE`.
    pub keep_size: bool,
    /// `FALLOC_FL_PUNCH_HOLE`; needs `keep_size`.
    pub punch_hole: bool,
    /// `FALLOC_FL_ZERO_RANGE`.
    pub zero_range: bool,
}
