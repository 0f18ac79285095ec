//! Why memory cannot be used as a device.

use nvmed_image::MediaError;
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
}

impl NvmError {
    /// The errno with which a program's call fails.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Media { error } => error.errno(),
            Self::Processor { .. } => Errno::OPNOTSUPP,
            Self::Holder { errno, .. } => *errno,
        }
    }
}

impl From<MediaError> for NvmError {
    fn from(error: MediaError) -> Self {
        Self::Media { error }
    }
}
