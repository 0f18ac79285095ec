//! Why a medium cannot be used.

use rustix::io::Errno;

/// Why a medium cannot be used: what, where, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The image cannot be opened.
    #[error("{path}: {errno}{hint}")]
    Open {
        /// The image.
        path: String,
        /// The host's answer.
        errno: Errno,
        /// What to do.
        hint: &'static str,
    },
    /// It is neither a regular file nor memory.
    #[error("{path} is {what}; an image is a regular file")]
    NotAFile {
        /// The image.
        path: String,
        /// What it is.
        what: &'static str,
    },
    /// It is memory without a file system: its bytes cannot be allocated, punched or synced as a file's.
    #[error(
        "{path} is a DAX device; an image is a file on a DAX file system: turn the namespace into one (`ndctl \
         create-namespace -f -e NAMESPACE -m fsdax`), mount it with -o dax, and give a file there with flush=dax"
    )]
    DaxDevice {
        /// The device.
        path: String,
    },
    /// Its file system has no memory that is durable itself.
    #[error(
        "{path}: its file system cannot map memory directly (DAX, MAP_SYNC); leave out flush=dax, or put the file on \
         persistent memory mounted with -o dax"
    )]
    NotDirect {
        /// The image.
        path: String,
    },
    /// The size fits no device.
    #[error(
        "{path}: {bytes} bytes is no device size; it must be a multiple of 4096 and not 0 (a truncated image?)"
    )]
    Size {
        /// The image or medium.
        path: String,
        /// Its size.
        bytes: u64,
    },
    /// It cannot grow so far while it is open.
    #[error(
        "{bytes} bytes are more than the open medium has room for, {room}; close it and open it with that size"
    )]
    Room {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes that it can have.
        room: u64,
    },
    /// The host cannot change the size.
    #[error("the image cannot be made {bytes} bytes long: {errno}")]
    Resize {
        /// Bytes asked for.
        bytes: u64,
        /// The host's answer.
        errno: Errno,
    },
    /// Another process has it.
    #[error("{path} is in use by {holder}; end that process first (one process at a time can use a device)")]
    InUse {
        /// The image.
        path: String,
        /// Who, as `name (pid N)`.
        holder: String,
    },
    /// A process that was forked from an earlier user has parts of it mapped, as files.
    #[error(
        "{path}: a process that an earlier program has forked still has files on it mapped, and what it stores there \
         would go to whatever lies there by then; end that process first (`fuser {path}` names it)"
    )]
    Mapped {
        /// The image.
        path: String,
    },
    /// No memory.
    #[error("no memory for a device of {bytes} bytes: {errno}")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// The host's answer.
        errno: Errno,
    },
}

impl MediaError {
    pub(crate) fn size(path: &str, bytes: u64) -> Self {
        Self::Size { path: path.to_owned(), bytes }
    }

    /// The errno with which a program's call fails.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Open { errno, .. } | Self::Memory { errno, .. } | Self::Resize { errno, .. } => *errno,
            Self::Room { .. } => Errno::NOSPC,
            Self::NotDirect { .. } => Errno::OPNOTSUPP,
            Self::NotAFile { .. } | Self::DaxDevice { .. } | Self::Size { .. } => Errno::INVAL,
            Self::InUse { .. } | Self::Mapped { .. } => Errno::BUSY,
        }
    }
}
