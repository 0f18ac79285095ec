//! What can go wrong while something is measured.

use nvmed_engine::EngineError;
use nvmed_io::{IoError, SubmitError};
use nvmed_stack::StackError;
use rustix::io::Errno;

/// Why a load does not fit a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidLoad {
    /// The size of a request.
    #[error(
        "a request cannot have {bytes} bytes; give a multiple of the device's {lba_bytes}, at most {}",
        crate::load::BLOCK_BYTES_MAX
    )]
    RequestBytes {
        /// The size asked for.
        bytes: u32,
        /// The size of a logical block.
        lba_bytes: u32,
    },
    /// Requests in flight.
    #[error("a load cannot have a depth of {depth}; give 1 to {}", crate::load::DEPTH_MAX)]
    Depth {
        /// The depth asked for.
        depth: u16,
    },
    /// The begin of the region.
    #[error("the region begins at byte {offset}, which is no multiple of the device's {lba_bytes}")]
    Offset {
        /// Its first byte.
        offset: u64,
        /// The size of a logical block.
        lba_bytes: u32,
    },
    /// The end of the region.
    #[error(
        "the region of {bytes} bytes from byte {offset} passes the end of the device at byte {device_bytes}"
    )]
    OutOfRange {
        /// Its first byte.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// The size of the device.
        device_bytes: u64,
    },
    /// The size of the region.
    #[error("the region of {bytes} bytes holds no request of {block_bytes}; make the region larger")]
    Empty {
        /// Its size.
        bytes: u64,
        /// The size of a request.
        block_bytes: u32,
    },
}

/// Why something could not be measured. The text is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// This machine lacks something; what depends on it is skipped.
    #[error("{what}")]
    Missing {
        /// What, and what to do.
        what: String,
    },
    /// The host refused something.
    #[error("the host refused {what}: {errno}")]
    Host {
        /// What was asked for, or the file it was asked of.
        what: String,
        /// Its answer.
        errno: Errno,
    },
    /// A program of the host failed.
    #[error("{shown} failed: {reason}")]
    Program {
        /// The program and its arguments.
        shown: String,
        /// How it ended, and what it said.
        reason: String,
    },
    /// A file of results is no such thing.
    #[error("{path} holds no results that can be used: {reason}")]
    Results {
        /// Which.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The load does not fit the device.
    #[error(transparent)]
    Load(#[from] InvalidLoad),
    /// Read data is not what was written.
    #[error(
        "LBA {lba}: the data is not the pattern of seed {seed}: word {word} is {found:016x}, expected {expected:016x}"
    )]
    Differs {
        /// The logical block.
        lba: u64,
        /// The 8-byte word in it.
        word: usize,
        /// What is there.
        found: u64,
        /// What should be.
        expected: u64,
        /// The pattern's seed.
        seed: u64,
    },
    /// No experiment has this name.
    #[error("no experiment is called or begins with `{name}`; `nvmed lab list` names them")]
    Unknown {
        /// As written.
        name: String,
    },
    /// A simulated drive is none.
    #[error(transparent)]
    Drive(#[from] nvmed_flash::ProfileError),
    /// The device could not be opened.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// A request failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A request was refused.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl LabError {
    /// Something that this machine lacks.
    pub fn missing(what: impl Into<String>) -> Self {
        Self::Missing { what: what.into() }
    }

    /// `shown` could not be run, written or removed.
    pub fn program(shown: impl ToString, error: &std::io::Error) -> Self {
        Self::Program { shown: shown.to_string(), reason: error.to_string() }
    }

    /// The host refused `what`.
    pub fn host(what: impl Into<String>, errno: Errno) -> Self {
        Self::Host { what: what.into(), errno }
    }
}

impl From<LabError> for String {
    fn from(error: LabError) -> Self {
        error.to_string()
    }
}
