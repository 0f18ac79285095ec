//! What is asked of a device, and what comes back.

use crate::DeviceError;
use nvmed_units::{DeviceAddress, Lba};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write {
        /// Done only when the data is durable (Force Unit Access).
        fua: bool,
    },
    /// Makes every write that completed before durable.
    Flush,
    /// The blocks read as zeroes from then on.
    WriteZeroes {
        /// Done only when that is durable.
        fua: bool,
    },
    /// The blocks' contents are no longer needed (Dataset Management, deallocate).
    Discard,
    /// Compares memory with the device; a difference is an error.
    Compare,
}

impl Operation {
    /// The operation's name, for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write { .. } => "write",
            Self::Flush => "flush",
            Self::WriteZeroes { .. } => "write zeroes",
            Self::Discard => "discard",
            Self::Compare => "compare",
        }
    }

    /// Whether memory takes part.
    #[must_use]
    pub const fn has_data(self) -> bool {
        matches!(self, Self::Read | Self::Write { .. } | Self::Compare)
    }
}

/// A range of device-visible memory.
///
/// Several in one request follow the rule of PRP lists (NVMe Base 2.0, 4.1.1): all but the first
/// start on a page, all but the last end on one. The first starts on 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: DeviceAddress,
    /// Its length.
    pub bytes: u32,
}

/// One request. Longer than the device's transfer limit, it becomes several commands and completes once.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What to do.
    pub operation: Operation,
    /// The first logical block; ignored by a flush.
    pub lba: Lba,
    /// Logical blocks; 0 for a flush, at least 1 otherwise.
    pub blocks: u32,
    /// Memory, of together exactly `blocks` logical blocks; empty where none takes part.
    pub data: &'a [Segment],
    /// Comes back in the [`Completion`].
    pub tag: u64,
}

/// The end of one request.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// Whether it worked. Of a request that became several commands: the first error that arrived.
    pub result: Result<(), DeviceError>,
}
