//! Why a replay does not begin, or ends early.

use nvmed_engine::{DeviceError, EngineError, QueueFault};
use nvmed_io::IoError;
use std::io;
use std::path::PathBuf;

/// Why a replay does not begin, or ends early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The trace is longer than the device.
    #[error(
        "the trace reaches byte {end}, and the target ends at {capacity}: --remap modulo begins again there, --remap \
         scale squeezes it"
    )]
    Beyond {
        /// Where the trace ends, bytes.
        end: u64,
        /// Bytes of the device.
        capacity: u64,
    },
    /// One request is longer than the device.
    #[error(
        "the trace has a request of {bytes} bytes, and the target has {capacity} only: take a larger one"
    )]
    Longer {
        /// Its bytes.
        bytes: u64,
        /// Bytes of the device.
        capacity: u64,
    },
    /// Think times follow from recorded finishes.
    #[error(
        "{unfinished} of {requests} requests have no finish, which --dependent needs: take --open or --closed"
    )]
    NoFinish {
        /// Requests without.
        unfinished: u64,
        /// All of them.
        requests: u64,
    },
    /// More was under way when the trace was recorded than is kept in memory.
    #[error(
        "more than {0} requests of the trace are under way at once: --dependent keeps no more; take --open"
    )]
    Crowd(usize),
    /// The device has no blocks.
    #[error("the target has no blocks")]
    NoBlocks,
    /// The device cannot be used.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A request that the device can never do.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The device is gone, or failed as a whole.
    #[error("{fault}")]
    Fault {
        /// What happened to it.
        fault: QueueFault,
    },
    /// The device did not read or write what was needed beside the trace.
    #[error("{doing}: {error}")]
    Device {
        /// What was to be done.
        doing: &'static str,
        /// Its answer.
        error: DeviceError,
    },
    /// The device's queue is full, and nothing of this replay is in it.
    #[error("{doing}: the target's queue takes no command, though none is under way; open it anew")]
    NoRoom {
        /// What was to be done.
        doing: &'static str,
    },
    /// A block is not what this replay has written there.
    #[error("the block at byte {offset} is not what was written there as version {version}: {found}")]
    Differs {
        /// First byte of the block.
        offset: u64,
        /// Which write of it was the last one.
        version: u32,
        /// What the block holds.
        found: Found,
    },
    /// The host does not let us keep the state.
    #[error("{path}: {error}")]
    State {
        /// The file.
        path: PathBuf,
        /// The host's answer.
        error: io::Error,
    },
    /// A file that holds no state.
    #[error("{path}: this is no state of a replay ({what}); name another file, or remove it to begin anew")]
    NoState {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The state of another replay.
    #[error(
        "{path}: this is the state of a replay with {what}; name another file, or remove it to begin anew"
    )]
    OtherState {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },
}

/// What a block holds that is not what was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// What this leg of the replay wrote, whole: an older version, or another block's.
    Other {
        /// First byte of the block that it was written to.
        offset: u64,
        /// Which write of that block it was.
        version: u32,
    },
    /// Nothing that this leg of the replay has written.
    Foreign,
    /// The beginning of what was written there, and the first byte of it that differs.
    Damaged {
        /// Which byte of the block.
        at: usize,
    },
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Other { offset, version } => {
                write!(f, "it holds version {version} of the block at {offset}")
            }
            Self::Foreign => write!(f, "it holds nothing that this replay has written"),
            Self::Damaged { at } => write!(f, "byte {at} of the block is the first that differs"),
        }
    }
}
