//! What can go wrong between a configuration and a mounted file system.

use crate::config::ConfigError;
use crate::profile::ProfileFault;
use crate::spec::SpecError;
use nvmed_engine::EngineError;
use nvmed_fs::FsError;
use nvmed_io::IoError;
use nvmed_nvm::NvmError;
use nvmed_uring::UringError;
use nvmed_vdev::{DriveFileError, MediaError};
use nvmed_vfio::VfioError;
use nvmed_vfio_user::{ClientError, ServerError};
use rustix::io::Errno;

/// Why a part of a device cannot be served. The text goes on after the partition's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// First byte or size is not in whole blocks, or the size is 0.
    #[error(
        "it begins at byte {first} and has {bytes} bytes; both must be multiples of {}, and the size not 0",
        nvmed_units::BLOCK_BYTES
    )]
    Blocks {
        /// The first byte asked for.
        first: u64,
        /// The size asked for.
        bytes: u64,
    },
    /// It leaves the device.
    #[error("it ends past the end of the device, which has {device_bytes} bytes; make it smaller")]
    OutOfRange {
        /// The size of the device.
        device_bytes: u64,
    },
    /// A number of queues that no partition has.
    #[error("it cannot have {queues} queues; set 1 to 255")]
    Queues {
        /// The number asked for.
        queues: u16,
    },
    /// A rate at which one command would take minutes.
    #[error(
        "it cannot have a rate of {bytes_per_s} bytes a second; set at least {}",
        crate::partition::PartitionOptions::RATE_MIN
    )]
    Rate {
        /// The rate asked for.
        bytes_per_s: u64,
    },
    /// No queue of the device for it.
    #[error("no queue of the device could be had for it: {0}")]
    Queue(nvmed_block::BlockError),
}

/// Why a device could not be opened or mounted. The text is one line: what, where, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The settings name a directory of the host's, and a device is needed.
    #[error(
        "`filesystem = host` has no device to mount; it is for `nvmed run` and for programs with the wrapper preloaded"
    )]
    NoDevice,
    /// The device string is wrong.
    #[error("device `{device}`: {error}")]
    Spec {
        /// As written.
        device: String,
        /// What is wrong with it.
        error: SpecError,
    },
    /// Another process has the device.
    #[error("{device} is in use by {holder}; end that process first (one process at a time can mount it)")]
    Busy {
        /// Which device.
        device: String,
        /// Who, as `name (pid N)`.
        holder: String,
    },
    /// The image cannot be opened.
    #[error("{error}")]
    Media {
        /// What is wrong with it.
        error: MediaError,
    },
    /// The file or device cannot be driven by io_uring.
    #[error("{error}")]
    Uring {
        /// What is wrong with it.
        error: UringError,
    },
    /// Memory cannot be used as a device.
    #[error("{error}")]
    Nvm {
        /// What is wrong with it.
        error: NvmError,
    },
    /// The buffer in front of a device makes no sense, or there is no memory for it.
    #[error("{device}: {error}")]
    Buffer {
        /// Which device.
        device: String,
        /// What is wrong.
        error: NvmError,
    },
    /// An image has another size than its string says.
    #[error(
        "{device} has {found} bytes, and `size={said}` is what it is made with: leave `size` out, or let \
         `nvmed format --size` grow it"
    )]
    OtherSize {
        /// Which device, without options.
        device: String,
        /// Bytes that it has.
        found: u64,
        /// Bytes that the string says.
        said: u64,
    },
    /// The device's profile describes no drive, or none of its size.
    #[error("{device}: {fault}")]
    Profile {
        /// Which device.
        device: String,
        /// What is wrong.
        fault: ProfileFault,
    },
    /// The state of the drive beside an image cannot be used.
    #[error("{error}")]
    DriveFile {
        /// Why.
        error: DriveFileError,
    },
    /// What arrives at a drive cannot be recorded, or what was recorded cannot be read.
    #[error("{file}: {error}")]
    Record {
        /// The file.
        file: String,
        /// The host's answer.
        error: std::io::Error,
    },
    /// A line of a record is none, or not of this drive.
    #[error("{file}: line {line}: {what}")]
    Replay {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// What is wrong.
        what: String,
    },
    /// A device whose commands take no time has nothing to record, and nothing to replay.
    #[error("{device}: its commands take no time; name a profile or a latency, or make a drive of the image")]
    Timeless {
        /// Which device.
        device: String,
    },
    /// An image has a drive already, which says how long commands take, and how large it is.
    #[error("{image} is a drive that was made by `nvmed device create`, {bytes} bytes; leave out {what}")]
    IsDrive {
        /// The image.
        image: String,
        /// Bytes of it.
        bytes: u64,
        /// What is said beside it.
        what: &'static str,
    },
    /// An image is larger than the drive that is to be made of it.
    #[error("{image} has {bytes} bytes, and no drive of {wanted} is made of it, since bytes would be lost")]
    Shrinks {
        /// The image.
        image: String,
        /// Bytes that it has.
        bytes: u64,
        /// Bytes that were asked for.
        wanted: u64,
    },
    /// A medium without wear is to be made used.
    #[error(
        "profile `{profile}` is overwritten in place: a drive of it is the same however long it was used"
    )]
    NoWear {
        /// The profile.
        profile: String,
    },
    /// An image is no drive.
    #[error("{image} is a plain device without a drive's state; `nvmed device create` makes a drive of it")]
    NoDrive {
        /// The image.
        image: String,
    },
    /// An image is to become a drive, and is one.
    #[error(
        "{image} is a drive already; --again makes a new one of it, and keeps its bytes but not its history"
    )]
    AlreadyDrive {
        /// The image.
        image: String,
    },
    /// The controller did not come up.
    #[error("{device}: {error}")]
    Engine {
        /// Which device.
        device: String,
        /// What it did.
        error: EngineError,
    },
    /// An I/O queue could not be had.
    #[error("{device}: {error}")]
    Io {
        /// Which device.
        device: String,
        /// What failed.
        error: IoError,
    },
    /// A part of a device cannot be served.
    #[error("partition `{name}`: {error}")]
    Partition {
        /// Which.
        name: String,
        /// What is wrong with it.
        error: PartitionError,
    },
    /// The file system refused.
    #[error("{device}: {error}")]
    Fs {
        /// Which device.
        device: String,
        /// Why.
        error: FsError,
    },
    /// The memory of `nvmed run` cannot be used.
    #[error("the memory of `nvmed run` at {path} cannot be used: {errno}; is that process still running?")]
    RunMemory {
        /// Where it should be.
        path: String,
        /// The host's answer.
        errno: Errno,
    },
    /// The memory in which requests are recorded cannot be used.
    #[error(
        "the memory in which `nvmed run --trace` records at {path} cannot be used: {errno}; is it still running?"
    )]
    Stamps {
        /// Where it should be.
        path: String,
        /// The host's answer.
        errno: Errno,
    },
    /// The host gave no thread.
    #[error("the host started no thread for the device: {error}; raise the limit of processes (ulimit -u)")]
    Thread {
        /// The host's answer.
        error: std::io::Error,
    },
    /// A controller on the PCI bus cannot be had.
    #[error("{error}")]
    Vfio {
        /// What is missing.
        error: VfioError,
    },
    /// A device in another process cannot be reached.
    #[error("{error}")]
    Connect {
        /// What went wrong.
        error: ClientError,
    },
    /// A device cannot be served.
    #[error("{error}")]
    Serve {
        /// What went wrong.
        error: ServerError,
    },
    /// The host gave no memory.
    #[error("no memory for a cache of {bytes} bytes: {errno}; set a smaller `cache_size`")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// The host's answer.
        errno: Errno,
    },
}

impl From<NvmError> for StackError {
    /// An image is one whichever engine opens it.
    fn from(error: NvmError) -> Self {
        match error {
            NvmError::Media { error } => Self::Media { error },
            error => Self::Nvm { error },
        }
    }
}

impl StackError {
    /// The errno with which a program's call fails.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Busy { .. } => Errno::BUSY,
            Self::Media { error } => error.errno(),
            Self::Uring { error } => error.errno(),
            Self::Nvm { error } | Self::Buffer { error, .. } => error.errno(),
            Self::Io { error, .. } => error.errno(),
            Self::Fs { error, .. } => error.errno(),
            Self::RunMemory { errno, .. } | Self::Stamps { errno, .. } | Self::Memory { errno, .. } => *errno,
            Self::NoDevice
            | Self::Config(_)
            | Self::Spec { .. }
            | Self::Profile { .. }
            | Self::OtherSize { .. }
            | Self::DriveFile { .. }
            | Self::IsDrive { .. }
            | Self::NoDrive { .. }
            | Self::NoWear { .. }
            | Self::Shrinks { .. }
            | Self::AlreadyDrive { .. }
            | Self::Timeless { .. }
            | Self::Replay { .. }
            | Self::Partition { .. } => Errno::INVAL,
            Self::Record { error, .. } => error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error),
            Self::Vfio { error } => error.errno(),
            Self::Connect { error } => error.errno(),
            Self::Serve { error } => error.errno(),
            Self::Thread { .. } => Errno::AGAIN,
            Self::Engine { .. } => Errno::IO,
        }
    }
}
