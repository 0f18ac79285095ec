//! Why a file or device cannot be driven, and what an errno of the kernel is as a status.

use nvmed_nvme::Status;
use rustix::io::Errno;

/// Why a file or device cannot be used: what, where, what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UringError {
    /// It cannot be opened.
    #[error("{path} cannot be opened: {errno}{hint}")]
    Open {
        /// As named.
        path: String,
        /// The host's answer.
        errno: Errno,
        /// What to do.
        hint: &'static str,
    },
    /// It is of a kind that the engine does not drive.
    #[error("{path} is {what}; {hint}")]
    Kind {
        /// As named.
        path: String,
        /// What it is.
        what: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// Another process has it.
    #[error("{path} is in use by {holder}; end that first (one process at a time can use a device)")]
    InUse {
        /// As named.
        path: String,
        /// Who, as far as the host tells.
        holder: String,
    },
    /// The size fits no device.
    #[error("{path}: {bytes} bytes hold no block of {lba_bytes}; make it larger with `size=`")]
    Size {
        /// As named.
        path: String,
        /// Its size.
        bytes: u64,
        /// The size of a block.
        lba_bytes: u32,
    },
    /// The block size cannot be had.
    #[error(
        "{path}: blocks of {lba_bytes} bytes are not possible, direct I/O there needs {needed}; \
         use lba=4096 or direct=off"
    )]
    BlockSize {
        /// As named.
        path: String,
        /// As asked for.
        lba_bytes: u32,
        /// The smallest that is possible.
        needed: u32,
    },
    /// `direct=on` where the file system has no direct I/O.
    #[error("{path}: its file system has no direct I/O; leave out direct=on to go through the page cache")]
    NoDirect {
        /// As named.
        path: String,
    },
    /// `iopoll=on` where the device cannot be polled.
    #[error(
        "{path}: the device cannot be polled ({errno}); leave out iopoll=on, or give its driver poll \
         queues (nvme.poll_queues=1)"
    )]
    NoPoll {
        /// As named.
        path: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The kernel gives no ring.
    #[error("the kernel gave no io_uring: {errno}{hint}")]
    Ring {
        /// The kernel's answer.
        errno: Errno,
        /// What to do.
        hint: &'static str,
    },
    /// The device did not describe itself.
    #[error("{path} does not tell {what}: {errno}{hint}")]
    Describe {
        /// As named.
        path: String,
        /// What was asked.
        what: &'static str,
        /// The answer.
        errno: Errno,
        /// What to do.
        hint: &'static str,
    },
    /// The device refused a command, or its namespace cannot be used.
    #[error("{path}: {error}")]
    Device {
        /// As named.
        path: String,
        /// Why.
        error: nvmed_engine::EngineError,
    },
}

impl UringError {
    pub(crate) fn ring(errno: Errno) -> Self {
        let hint = match errno {
            Errno::NOSYS => "; this kernel is older than 5.11 or built without io_uring",
            Errno::PERM => {
                "; it is forbidden here (sysctl kernel.io_uring_disabled, or a container's filter)"
            }
            Errno::NOMEM => "; raise the limit of locked memory (ulimit -l)",
            Errno::MFILE | Errno::NFILE => "; too many open files (ulimit -n)",
            _ => "",
        };
        Self::Ring { errno, hint }
    }

    pub(crate) fn open(path: &str, errno: Errno) -> Self {
        let hint = match errno {
            Errno::NOENT => "; make it with `nvmed format uring:PATH --size 1G`",
            Errno::ACCESS | Errno::PERM => "; a device must be readable and writable for this user",
            Errno::NOSPC => "; the host's file system is full",
            Errno::NXIO | Errno::NODEV => "; there is no device behind this node",
            _ => "",
        };
        Self::Open { path: path.to_owned(), errno, hint }
    }

    /// The errno with which a program's call fails.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Open { errno, .. }
            | Self::NoPoll { errno, .. }
            | Self::Ring { errno, .. }
            | Self::Describe { errno, .. } => *errno,
            Self::InUse { .. } => Errno::BUSY,
            Self::Kind { .. } | Self::Size { .. } | Self::BlockSize { .. } | Self::NoDirect { .. } => {
                Errno::INVAL
            }
            Self::Device { error, .. } => error.errno(),
        }
    }
}

/// The status that says what an errno said, so that whoever maps statuses to errnos finds it again.
/// What has no status of its own is a media error of its direction.
pub(crate) fn status(errno: Errno, reading: bool) -> Status {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Status::CAPACITY_EXCEEDED,
        // Generic 20h, Namespace is Write Protected.
        Errno::ROFS => Status(0x020),
        Errno::ACCESS | Errno::PERM => Status::ACCESS_DENIED,
        Errno::OPNOTSUPP | Errno::NOSYS => Status::INVALID_OPCODE,
        Errno::INVAL => Status::INVALID_FIELD,
        Errno::FAULT => Status::DATA_TRANSFER_ERROR,
        Errno::CANCELED => Status::ABORT_REQUESTED,
        _ if reading => Status::UNRECOVERED_READ,
        _ => Status::WRITE_FAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_engine::{DeviceError, Operation};
    use nvmed_units::Lba;

    #[test]
    fn what_a_program_can_tell_apart_survives_the_way_through_a_status() {
        let through = |errno, reading| {
            let (operation, lba) = (Operation::Read, Lba(0));
            DeviceError { operation, lba, status: status(errno, reading), fault: None }.errno()
        };
        for errno in [Errno::NOSPC, Errno::ROFS, Errno::ACCESS, Errno::OPNOTSUPP, Errno::IO] {
            assert_eq!(through(errno, false), errno);
        }
        assert_eq!(through(Errno::DQUOT, false), Errno::NOSPC);
        assert_eq!(through(Errno::PERM, true), Errno::ACCESS);
        assert_eq!(status(Errno::IO, true), Status::UNRECOVERED_READ);
        assert_eq!(status(Errno::NODATA, false), Status::WRITE_FAULT);
    }
}
