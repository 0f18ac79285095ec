//! What can go wrong with a mount, and what the kernel is told of a call.

use crate::options::OptionError;
use nvmed_fs::FsError;
use nvmed_stack::StackError;
use rustix::io::Errno;
use std::path::PathBuf;

/// Why a file system cannot be mounted, or not be unmounted. The text is one line: what, where, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// An option.
    #[error("-o {0}")]
    Option(#[from] OptionError),
    /// No FUSE in this kernel.
    #[error("/dev/fuse is not there: `modprobe fuse` as root, or use `nvmed run`, which needs no FUSE")]
    NoFuse,
    /// FUSE is there, and its device is not open for us.
    #[error(
        "/dev/fuse: permission denied; as root, or after `chmod 666 /dev/fuse` by root, which most systems do by \
         themselves"
    )]
    Closed,
    /// FUSE is there, and not for us.
    #[error(
        "only root may mount, and fusermount3, which mounts for others, is not installed (Debian: fuse3); \
         `nvmed run` needs neither"
    )]
    NotRoot,
    /// The directory.
    #[error("{}: {what}", dir.display())]
    Directory {
        /// Which.
        dir: PathBuf,
        /// What is wrong with it and what to do.
        what: &'static str,
    },
    /// The host refused something about the directory.
    #[error("the mount point {} cannot be used: {errno}", dir.display())]
    Host {
        /// Which.
        dir: PathBuf,
        /// What it said.
        errno: Errno,
    },
    /// Somebody uses the mount.
    #[error("{0} is in use: a file is open or a process works in it (`fuser -vm {0}` shows who)", dir.display())]
    Busy {
        /// Which.
        dir: PathBuf,
    },
    /// The kernel or `fusermount3` refused the mount, or the connection broke.
    #[error("mounting on {} failed: {error}", dir.display())]
    Session {
        /// Where.
        dir: PathBuf,
        /// What was said.
        error: std::io::Error,
    },
    /// The device or its file system.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// What was written could not be saved.
    #[error(
        "not everything could be saved on {device}: {error}; the rest is kept in memory, and will be tried again"
    )]
    Unsaved {
        /// The device.
        device: String,
        /// What it said.
        error: FsError,
    },
    /// A check of our own memory failed while everything was saved, which has been told.
    #[error("not everything could be saved on {device}; the rest is kept in memory, and will be tried again")]
    Broken {
        /// The device.
        device: String,
    },
}

/// The kernel named an inode or a handle that it does not hold.
#[derive(Debug)]
pub(crate) struct NotHeld;

/// What the kernel is told when a call fails.
pub(crate) struct Refusal(pub(crate) fuser::Errno);

impl From<FsError> for Refusal {
    fn from(error: FsError) -> Self {
        Self(fuser::Errno::from_i32(error.errno().raw_os_error()))
    }
}

impl From<NotHeld> for Refusal {
    fn from(NotHeld: NotHeld) -> Self {
        Self(fuser::Errno::ESTALE)
    }
}

impl From<fuser::Errno> for Refusal {
    fn from(errno: fuser::Errno) -> Self {
        Self(errno)
    }
}
