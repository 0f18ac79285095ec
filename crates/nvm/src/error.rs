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
}

impl NvmError {
    /// The errno with which a program's call fails.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Media { error } => error.errno(),
            Self::Processor { .. } => Errno::OPNOTSUPP,
        }
    }
}

impl From<MediaError> for NvmError {
    fn from(error: MediaError) -> Self {
        Self::Media { error }
    }
}
