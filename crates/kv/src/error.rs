//! What can go wrong, with the numbers in it.

use nvmed_units::Block;
use thiserror::Error;

/// The medium refused or failed a read, write or flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}", std::io::Error::from_raw_os_error(*errno))]
pub struct MediumError {
    /// The positive errno that describes it best; `EIO` (5) when nothing better is known.
    pub errno: i32,
}

/// What a medium is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumCall {
    /// To read blocks.
    Read,
    /// To write blocks.
    Write,
    /// To make durable what it has taken.
    Flush,
}

impl core::fmt::Display for MediumCall {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
        })
    }
}

/// Why a medium could not be opened.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Error)]
pub enum OpenError {
    /// The host refused.
    #[error("the host refused {what}: {}", std::io::Error::from_raw_os_error(*errno))]
    Host {
        /// What was asked for.
        what: &'static str,
        /// The positive errno.
        errno: i32,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] nvmed_io::IoError),
    /// The device's LBAs do not divide a block.
    #[error(
        "the device has LBAs of {bytes} bytes; a store needs a size that divides 4096: format the namespace anew"
    )]
    LbaBytes {
        /// Their size.
        bytes: usize,
    },
}

impl OpenError {
    /// The positive errno that a program should see.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Host { errno, .. } => *errno,
            Self::Device(error) => error.errno().raw_os_error(),
            Self::LbaBytes { .. } => EOPNOTSUPP,
        }
    }
}

/// Why a call on a store failed.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KvError {
    /// The medium failed.
    #[error("{operation} of metadata block {block} failed: {source}")]
    Medium {
        /// What it was asked for.
        operation: MediumCall,
        /// The first block of the transfer; 0 for a flush.
        block: Block,
        /// What the medium said.
        source: MediumError,
    },
    /// A block does not hold what its place says: damage, or a bug.
    #[error("metadata block {block} ({structure}) is damaged: {reason}")]
    Corrupt {
        /// The block.
        block: Block,
        /// What should be there: `superblock`, `tree node`, `bitmap page`, `log`.
        structure: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Neither superblock is one of ours.
    #[error("no key-value store here: neither block 0 nor block {last} holds a superblock")]
    NotAStore {
        /// The last block looked at.
        last: Block,
    },
    /// The store was written by another version.
    #[error(
        "the key-value store has format version {found}; this program reads version {known}: {}",
        if found > known {
            "use a newer program"
        } else {
            "copy the data out with the program that made it, then format anew"
        }
    )]
    Version {
        /// On the medium.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The medium is smaller than the store on it.
    #[error("the key-value store has {stored} blocks but the medium only {medium}: truncated?")]
    Truncated {
        /// Blocks by the superblock.
        stored: u64,
        /// Blocks of the medium.
        medium: u64,
    },
    /// The medium cannot hold a store with these options.
    #[error("a key-value store needs {needed} blocks of 4096 bytes; the medium has {found}")]
    TooSmall {
        /// Blocks needed at least.
        needed: u64,
        /// Blocks there are.
        found: u64,
    },
    /// The memory for the pending log is too small.
    #[error("the pending log needs {needed} bytes of memory at an offset divisible by 8; it got {found}")]
    PendingTooSmall {
        /// Bytes needed at least.
        needed: usize,
        /// Bytes given.
        found: usize,
    },
    /// A key is longer than [`crate::KEY_BYTES_MAX`].
    #[error("a key of {bytes} bytes is longer than 1024")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A value is longer than [`crate::VALUE_BYTES_MAX`].
    #[error("a value of {bytes} bytes is longer than 32768")]
    ValueTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A batch does not fit the log.
    #[error("a batch of {bytes} bytes is larger than {max}; split it")]
    BatchTooLarge {
        /// Encoded bytes of the batch.
        bytes: usize,
        /// The limit of this store, see [`crate::Store::batch_bytes_max`].
        max: usize,
    },
    /// The snapshot was cut off: it kept more of the past than the store's options allow.
    #[error(
        "the snapshot of batch {sequence} is too old: {checkpoints} checkpoints (at most {checkpoints_max}) and \
         {blocks} blocks freed since (at most {blocks_max}); take a new one"
    )]
    SnapshotTooOld {
        /// The last batch that it saw.
        sequence: crate::Sequence,
        /// Checkpoints written since.
        checkpoints: u64,
        /// [`crate::Options::snapshot_checkpoints_max`].
        checkpoints_max: u64,
        /// Blocks freed that snapshots kept from being used.
        blocks: u64,
        /// The bound on them: [`crate::Options::snapshot_blocks_max`], or less when the region was full.
        blocks_max: u64,
    },
    /// No room for new keys; deleting still works.
    #[error("the metadata region is full: delete something")]
    Full,
    /// An earlier flush, or write of the log or a superblock, failed; nothing later can be made durable.
    #[error(
        "an earlier metadata write or flush failed (errno {errno}); remount to go on from what is durable"
    )]
    Failed {
        /// The errno of that call.
        errno: i32,
    },
}

impl KvError {
    /// The positive errno that a program should see.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Medium { source, .. } => source.errno,
            Self::Full => ENOSPC,
            Self::SnapshotTooOld { .. } => ESTALE,
            Self::KeyTooLong { .. } => ENAMETOOLONG,
            Self::ValueTooLong { .. } | Self::BatchTooLarge { .. } => E2BIG,
            Self::NotAStore { .. } | Self::Version { .. } => EINVAL,
            Self::TooSmall { .. } | Self::PendingTooSmall { .. } => EINVAL,
            Self::Corrupt { .. } | Self::Truncated { .. } | Self::Failed { .. } => EIO,
        }
    }
}

const EIO: i32 = 5;
const E2BIG: i32 = 7;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const ENAMETOOLONG: i32 = 36;
const EOPNOTSUPP: i32 = 95;
const ESTALE: i32 = 116;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_medium_tells_its_errno_in_the_hosts_words() {
        let source = MediumError { errno: 5 };
        assert_eq!(source.to_string(), "Input/output error (os error 5)");
        let error = KvError::Medium { operation: MediumCall::Write, block: nvmed_units::Block(7), source };
        assert_eq!(error.to_string(), "write of metadata block 7 failed: Input/output error (os error 5)");
    }
}
