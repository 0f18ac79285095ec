//! Why memory cannot be used as a device.

use nvmed_image::MediaError;
use nvmed_nvme::Status;
use rustix::io::Errno;

/// Why memory cannot be used: what, where, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NvmError {
    /// The file cannot be used, or there is no memory.
    #[error("{error}")]
    Media {
        /// Why.
        error: MediaError,
    },
    /// This processor has no instruction that is known to reach durable memory.
    #[error("{path}: flush=dax is not known for this processor; take flush=host")]
    Processor {
        /// The file.
        path: String,
    },
    /// The memory that another process holds cannot be used.
    #[error("{path}: the memory that `nvmed run` holds cannot be used: {errno} (has it ended?)")]
    Holder {
        /// The holder's descriptor.
        path: String,
        /// The host's answer.
        errno: Errno,
    },
    /// The buffer has no room for one fill beside its write log.
    #[error(
        "a buffer of {bytes} bytes, of which the write log has {log_bytes}, has no room for a fill of {fill_bytes} \
         bytes; give at least buffer={least}"
    )]
    SmallBuffer {
        /// Its bytes.
        bytes: u64,
        /// Bytes of its write log.
        log_bytes: u64,
        /// Bytes of a fill.
        fill_bytes: u64,
        /// Bytes that would do.
        least: u64,
    },
    /// A number of a medium's profile makes no sense.
    #[error("the medium's profile makes no sense: {what}, not {found}")]
    MediaProfile {
        /// What it has to be.
        what: &'static str,
        /// What it is.
        found: u64,
    },
    /// A range of the medium cannot be mapped.
    #[error("memory of a slow medium cannot be mapped: {what} ({errno})")]
    View {
        /// Why not, and what to do.
        what: &'static str,
        /// The host's answer.
        errno: Errno,
    },
    /// The profile describes no medium.
    #[error("the medium's profile makes no sense: {error}")]
    Profile {
        /// What is wrong.
        error: nvmed_flash::ProfileError,
    },
}

impl NvmError {
    /// The errno with which a program's call fails.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Media { error } => error.errno(),
            Self::Processor { .. } => Errno::OPNOTSUPP,
            Self::Holder { errno, .. } | Self::View { errno, .. } => *errno,
            Self::SmallBuffer { .. } | Self::MediaProfile { .. } | Self::Profile { .. } => Errno::INVAL,
        }
    }
}

impl From<MediaError> for NvmError {
    fn from(error: MediaError) -> Self {
        Self::Media { error }
    }
}

/// Why a hint counts for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HintError {
    /// Nobody has said where the object lies, or it is forgotten.
    #[error("object {object} is not known: say first where it lies")]
    Unknown {
        /// Its number.
        object: u64,
    },
    /// An extent ends beyond the medium.
    #[error("{bytes} bytes at {at} are not on a medium of {medium} bytes")]
    Outside {
        /// Where it begins.
        at: u64,
        /// Its bytes.
        bytes: u64,
        /// Bytes of the medium.
        medium: u64,
    },
    /// An extent has no bytes, or begins before the end of the one before it.
    #[error("the extent of object {object} at its byte {position} is empty, or not behind the one before it")]
    Order {
        /// The object's number.
        object: u64,
        /// Where the extent begins in it.
        position: u64,
    },
    /// The medium cannot be read or written.
    #[error("the medium cannot do what the hint asks for: {status}")]
    Device {
        /// Its answer.
        status: Status,
    },
}

impl HintError {
    /// The errno for it.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Unknown { .. } => Errno::NOENT,
            Self::Outside { .. } | Self::Order { .. } => Errno::INVAL,
            Self::Device { .. } => Errno::IO,
        }
    }
}

impl From<Status> for HintError {
    fn from(status: Status) -> Self {
        Self::Device { status }
    }
}
