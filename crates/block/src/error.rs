//! What can go wrong with a call on bytes.

use crate::signature::Signature;
use nvmed_io::IoError;
use rustix::io::Errno;

/// What was asked of a disk, and makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOption {
    /// A buffer of no bytes, or of too many.
    #[error(
        "a buffer cannot have {bytes} bytes; ask for 1 byte to {} bytes (1 GiB)",
        crate::buffer::BUFFER_BYTES_MAX
    )]
    BufferBytes {
        /// The bytes asked for.
        bytes: usize,
    },
    /// A handle bound to an empty list of queues.
    #[error("a handle cannot have an empty list of queues; name at least one")]
    NoQueue,
    /// A command with memory that another device knows.
    #[error(
        "the buffer of a passthrough command belongs to another disk; take one from the disk of the handle"
    )]
    ForeignBuffer,
    /// A passthrough command as an asynchronous call.
    #[error(
        "a passthrough command cannot be submitted as an asynchronous call; use the call for passthrough"
    )]
    AsynchronousPassthrough,
    /// An asynchronous read or write without memory.
    #[error("an asynchronous call that moves data has no buffer; give it one")]
    NoBuffer,
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The device, or the way to it: operation, LBA and status are inside.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A write that begins at or past the end.
    #[error("{bytes} bytes at byte {offset} lie past the end of the device at byte {end}")]
    NoSpace {
        /// First byte asked for.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Bytes of the device.
        end: u64,
    },
    /// A range that leaves the device, of a call that does not shorten.
    #[error("bytes {offset} to {offset} + {bytes} are not all on the device, which ends at byte {end}")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Bytes of the device.
        end: u64,
    },
    /// A position before the start or past the end.
    #[error("a position {distance} bytes from byte {base} is not on the device, which ends at byte {end}")]
    Seek {
        /// Where the distance counts from.
        base: u64,
        /// The distance.
        distance: i64,
        /// Bytes of the device.
        end: u64,
    },
    /// A range that leaves its buffer.
    #[error("{bytes} bytes at byte {start} leave a buffer of {len} bytes")]
    BufferRange {
        /// First byte of the buffer.
        start: usize,
        /// How many.
        bytes: usize,
        /// Bytes of the buffer.
        len: usize,
    },
    /// The host gave no memory, or no more may be shown to the device.
    #[error("no memory for {bytes} bytes of buffer or cache: {errno}; give buffers back, or ask for less")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// The host's answer.
        errno: Errno,
    },
    /// Compared bytes differ.
    #[error("the device holds other bytes than compared, from byte {offset} on")]
    Different {
        /// The first byte of the blocks in which they differ.
        offset: u64,
    },
    /// As many asynchronous calls are under way as a handle takes.
    #[error("{limit} asynchronous calls are under way; reap some, then try again")]
    Busy {
        /// How many a handle takes.
        limit: usize,
    },
    /// Every frame of the cache is dirty and cannot be written back.
    #[error("every frame of the cache is dirty and the device does not take them; see the error of flush")]
    CacheFull,
    /// Data written before did not reach the device. It is still in the cache, and the next flush tries again.
    #[error("{count} write-backs of cached data failed since this handle was last told")]
    WriteBack {
        /// How many failed.
        count: u32,
    },
    /// A write to a device that holds a file system, a volume or the like, by a disk not opened to overwrite it.
    #[error("the device holds {found}, which a write would destroy; `DiskOptions::overwrite` allows that")]
    Holds {
        /// What is there, and where.
        found: Signature,
    },
    /// A write to a device of which nobody can tell what it holds.
    #[error(
        "what the device holds cannot be read ({error}); `DiskOptions::overwrite` allows writing all the same"
    )]
    Unseen {
        /// The failed look.
        error: IoError,
    },
    /// Something was asked for that no disk has.
    #[error(transparent)]
    Options(#[from] InvalidOption),
}

impl BlockError {
    /// The errno of a call that failed so.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Io(error) => error.errno(),
            Self::NoSpace { .. } => Errno::NOSPC,
            Self::Holds { .. } | Self::Unseen { .. } => Errno::PERM,
            Self::OutOfRange { .. } | Self::Seek { .. } | Self::Options(_) => Errno::INVAL,
            Self::BufferRange { .. } => Errno::FAULT,
            Self::Memory { .. } => Errno::NOMEM,
            Self::Different { .. } => Errno::ILSEQ,
            Self::Busy { .. } => Errno::AGAIN,
            Self::CacheFull | Self::WriteBack { .. } => Errno::IO,
        }
    }
}

/// What a call that had moved `done` bytes answers to an error: fewer bytes, if there are any (POSIX `read`, `write`).
pub(crate) fn short(done: usize, error: BlockError) -> Result<usize, BlockError> {
    if done > 0 { Ok(done) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_no_disk_has_is_told_in_a_sentence() {
        for (option, want) in [
            (
                InvalidOption::BufferBytes { bytes: 0 },
                "a buffer cannot have 0 bytes; ask for 1 byte to 1073741824 bytes (1 GiB)",
            ),
            (InvalidOption::NoQueue, "a handle cannot have an empty list of queues; name at least one"),
            (
                InvalidOption::ForeignBuffer,
                "the buffer of a passthrough command belongs to another disk; take one from the disk of the handle",
            ),
            (
                InvalidOption::AsynchronousPassthrough,
                "a passthrough command cannot be submitted as an asynchronous call; use the call for passthrough",
            ),
            (InvalidOption::NoBuffer, "an asynchronous call that moves data has no buffer; give it one"),
        ] {
            assert_eq!(option.to_string(), want);
            assert_eq!(BlockError::from(option).to_string(), want, "a caller sees the same sentence");
        }
    }
}
