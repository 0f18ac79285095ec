//! What can be wrong with grants.

use nvmed_fs::FsError;
use nvmed_stack::StackError;
use rustix::io::Errno;

/// What the host did not do with the table or its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileCall {
    /// Open it.
    Open,
    /// Tell whose it is.
    Status,
    /// Write it anew.
    Write,
}

impl core::fmt::Display for FileCall {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Open => "cannot be opened",
            Self::Status => "does not tell its owner and mode",
            Self::Write => "cannot be written",
        })
    }
}

/// Why others than the server's user could have written a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Untrusted {
    /// It leads elsewhere.
    #[error("it is a symbolic link")]
    Link,
    /// A directory, a device, a FIFO.
    #[error("it is no regular file")]
    NotAFile,
    /// It belongs to neither root nor the server's user.
    #[error("it belongs to user {uid}")]
    Owner {
        /// The owner.
        uid: u32,
    },
    /// Others than its owner may write it.
    #[error("its mode is {mode:o}, by which others may write it")]
    Mode {
        /// The mode's permission bits.
        mode: u32,
    },
}

/// Why a grant makes no sense. The text goes on after its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidGrant {
    /// The name could not be part of a file's name and of a line.
    #[error(
        "cannot have this name; a name has 1 to {} letters, digits, `.`, `_`, `-`, and begins with none of `.-`",
        crate::check::NAME_BYTES_MAX
    )]
    Name,
    /// Two grants of one name.
    #[error("has the name of another grant; choose another name")]
    NameTaken,
    /// A relative path, or one with dots.
    #[error("has the path `{path}`; give one that begins with `/` and has no `.` or `..` in it")]
    Path {
        /// As written.
        path: String,
    },
    /// No users and no groups.
    #[error("names neither users nor groups, so nobody could use it; name some")]
    Nobody,
    /// Less than a block.
    #[error("has a capacity of {bytes} bytes; a capacity is at least 4K")]
    Capacity {
        /// The capacity.
        bytes: u64,
    },
    /// Two trees with limits, one inside the other.
    #[error("has a capacity and so has `{other}`, which would count the same files; limit one of them")]
    CountedTwice {
        /// The other grant.
        other: String,
    },
    /// Not whole blocks.
    #[error(
        "begins at byte {first} and has {bytes} bytes; both are multiples of 4096, and the size is not 0"
    )]
    Blocks {
        /// The first byte.
        first: u64,
        /// The size.
        bytes: u64,
    },
    /// No such number of queues.
    #[error("cannot have {queues} queues; a partition has 1 to 255")]
    Queues {
        /// The number.
        queues: u16,
    },
    /// A rate at which one command would take minutes.
    #[error(
        "cannot have a rate of {bytes_per_s} bytes a second; a rate is at least {}",
        nvmed_stack::PartitionOptions::RATE_MIN
    )]
    Rate {
        /// The rate.
        bytes_per_s: u64,
    },
    /// Two partitions have the same bytes.
    #[error("overlaps the partition `{other}`; move one of them")]
    Overlap {
        /// The other grant.
        other: String,
    },
    /// It has bytes of the file system.
    #[error(
        "overlaps the file system, which has the first {fs_bytes} bytes of the device; `nvmed format --fs-size` \
         leaves room behind it"
    )]
    OverFileSystem {
        /// Where the file system ends.
        fs_bytes: u64,
    },
    /// It leaves the device.
    #[error("ends past the end of the device, which has {device_bytes} bytes; make it smaller")]
    OutOfRange {
        /// The size of the device.
        device_bytes: u64,
    },
    /// A rate for a tree.
    #[error("is of a tree, which has no rate; limit its capacity or its inodes")]
    TreeRate,
    /// A capacity or a number of inodes for a partition.
    #[error("is of a partition, whose size does not change; revoke it and grant another")]
    PartitionSize,
}

/// Why grants cannot be had, kept or changed. The text is one line: what, where, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The table cannot be opened, read or written.
    #[error("{path} {call}: {errno}")]
    File {
        /// Which.
        path: String,
        /// What the host did not do with it.
        call: FileCall,
        /// What the host answered.
        errno: Errno,
    },
    /// Somebody else could have written the table.
    #[error(
        "{path} is not to be trusted: {reason}; it must be root's or the server's own, and only its owner may write it"
    )]
    Untrusted {
        /// The table, or its directory.
        path: String,
        /// What is wrong with it.
        reason: Untrusted,
    },
    /// The table makes no sense.
    #[error("the table {path} cannot be understood: {reason}")]
    Syntax {
        /// Which.
        path: String,
        /// Where and why, in the words of the parser or the host.
        reason: String,
    },
    /// A grant makes no sense, or not beside the others.
    #[error("the grant `{name}` {error}")]
    Grant {
        /// Which.
        name: String,
        /// What is wrong with it.
        error: InvalidGrant,
    },
    /// No grant has this name.
    #[error("no grant has the name `{name}`; `nvmed admin grants` lists them")]
    Unknown {
        /// The name.
        name: String,
    },
    /// A directory, or what is counted in it.
    #[error("the directory {path} of the grant `{name}` cannot be used: {error}")]
    Tree {
        /// The grant.
        name: String,
        /// Its directory.
        path: String,
        /// What the file system answered.
        error: FsError,
    },
    /// The device or a socket.
    #[error(transparent)]
    Stack(#[from] StackError),
}
