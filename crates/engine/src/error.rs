//! What can go wrong, and the one table from device status to errno.

use crate::Operation;
use nvmed_dma::MapError;
use nvmed_nvme::Status;
use nvmed_units::Lba;
use rustix::io::Errno;

/// A request that a device did not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} at LBA {}: {}", operation.name(), lba.0, Cause(*status, *fault))]
pub struct DeviceError {
    /// What was asked.
    pub operation: Operation,
    /// The first block of the command that failed.
    pub lba: Lba,
    /// The device's answer; [`DeviceError::ABORTED`] when it gave none.
    pub status: Status,
    /// Why the whole queue failed, when it did.
    pub fault: Option<QueueFault>,
}

/// Status and fault as one phrase.
struct Cause(Status, Option<QueueFault>);

impl core::fmt::Display for Cause {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.1 {
            Some(fault) => write!(f, "{fault}"),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Generic status 20h, Namespace is Write Protected.
const WRITE_PROTECTED: Status = Status(0x020);

/// The statuses that a program can tell apart, and how.
const ERRNOS: [(Status, Errno); 6] = [
    (Status::CAPACITY_EXCEEDED, Errno::NOSPC),
    (WRITE_PROTECTED, Errno::ROFS),
    (Status::READ_ONLY_RANGE, Errno::ROFS),
    (Status::COMPARE_FAILURE, Errno::ILSEQ),
    (Status::ACCESS_DENIED, Errno::ACCESS),
    (Status::INVALID_OPCODE, Errno::OPNOTSUPP),
];

impl DeviceError {
    /// The status of a command that got none: Command Aborted By Host (Base 2.0, figure 97: path
    /// related, 71h).
    pub const ABORTED: Status = Status(3 << 8 | 0x71);

    /// The errno of a call that failed so.
    ///
    /// As Linux maps them (`nvme_error_status`, `blk_errors`) where a program can tell the
    /// difference; everything else is `EIO`.
    #[must_use]
    pub fn errno(&self) -> Errno {
        let known = ERRNOS.iter().find(|(status, _)| self.status.is(*status));
        known.map_or(Errno::IO, |(_, errno)| *errno)
    }
}

/// Why a queue is of no use any more. It stays failed: a device that broke the protocol once
/// cannot be believed afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueFault {
    /// A completion for a command that is not outstanding.
    #[error("the controller completed command {cid:#06x}, which is not outstanding")]
    UnknownCommand {
        /// The identifier in the completion.
        cid: u16,
    },
    /// A completion that names another submission queue.
    #[error("the controller completed a command of queue {found} on queue {expected}")]
    WrongQueue {
        /// The queue that owns the completion queue.
        expected: u16,
        /// The queue named.
        found: u16,
    },
    /// A submission queue head that no submission explains.
    #[error("the controller reports submission queue head {head}; it lies in none of the submitted entries")]
    BadHead {
        /// The head reported.
        head: u16,
    },
    /// CSTS.CFS: the controller says that it failed.
    #[error("the controller reports a fatal error (CSTS {csts:#010x})")]
    Fatal {
        /// The register.
        csts: u32,
    },
    /// Registers read as all ones, or the controller is not ready any more.
    #[error("the controller is gone or was reset (CSTS {csts:#010x})")]
    Gone {
        /// The register.
        csts: u32,
    },
    /// No answer for longer than any device takes.
    #[error("the controller did not answer in time")]
    Timeout,
    /// The controller was reset while the request was outstanding; it may have been done or not. Queues
    /// go on.
    #[error("the controller was reset; the request may have been done or not")]
    Reset,
    /// The engine was shut down.
    #[error("the device was shut down")]
    Shutdown,
}

/// Why a request was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Every slot is in use: poll, then try again.
    #[error("every slot of the queue is in use")]
    NoSlot,
    /// The request can never work.
    #[error("{} at LBA {}: {reason}", operation.name(), lba.0)]
    Invalid {
        /// What was asked.
        operation: Operation,
        /// Its first block.
        lba: Lba,
        /// What is wrong with it.
        reason: InvalidRequest,
    },
    /// The queue failed.
    #[error("{0}")]
    Failed(QueueFault),
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// No blocks.
    #[error("the request has no blocks")]
    Empty,
    /// Past the end of the device.
    #[error("{blocks} blocks from there pass the end of the device at LBA {lba_count}")]
    OutOfRange {
        /// Blocks asked for.
        blocks: u64,
        /// Blocks of the device.
        lba_count: u64,
    },
    /// Memory and blocks differ in size.
    #[error("{bytes} bytes of memory for {wanted} bytes of blocks")]
    Length {
        /// Bytes of all segments.
        bytes: u64,
        /// Bytes of all blocks.
        wanted: u64,
    },
    /// A segment breaks the PRP rule (see [`crate::Segment`]).
    #[error("memory segment {index} is not aligned as a PRP list needs it")]
    Misaligned {
        /// Which one.
        index: usize,
    },
    /// More commands than the queue has slots.
    #[error("{commands} commands are more than the queue's {depth} slots; ask in smaller parts")]
    TooLarge {
        /// Commands needed.
        commands: u64,
        /// Slots of the queue.
        depth: u16,
    },
    /// The device does not offer the operation.
    #[error("the device does not offer this operation")]
    Unsupported,
}

impl SubmitError {
    /// The errno of a call that failed so.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::NoSlot => Errno::AGAIN,
            Self::Invalid { reason: InvalidRequest::Unsupported, .. } => Errno::OPNOTSUPP,
            Self::Invalid { .. } => Errno::INVAL,
            Self::Failed(_) => Errno::IO,
        }
    }
}

/// Why a device cannot be used, or an administrative command failed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The controller has a limit that this driver cannot live with.
    #[error("the controller cannot be driven: {0}")]
    Unsuitable(&'static str),
    /// The controller did not become ready, or not disabled, in the time that it names (CAP.TO).
    #[error("the controller did not {goal} within {timeout_ms} ms (CSTS {csts:#010x})")]
    NotReady {
        /// What was waited for.
        goal: &'static str,
        /// How long.
        timeout_ms: u32,
        /// The register at the end.
        csts: u32,
    },
    /// The queue to the controller failed.
    #[error("{command}: {fault}")]
    Queue {
        /// What was asked.
        command: &'static str,
        /// Why.
        fault: QueueFault,
    },
    /// The controller refused.
    #[error("{command}: {status}")]
    Command {
        /// What was asked.
        command: &'static str,
        /// The answer.
        status: Status,
    },
    /// No such namespace, or one that this driver cannot use.
    #[error("namespace {nsid} cannot be used: {reason}")]
    Namespace {
        /// Which.
        nsid: u32,
        /// Why.
        reason: &'static str,
    },
    /// All I/O queues are taken.
    #[error("all {queues_max} I/O queues of the device are in use")]
    NoQueue {
        /// How many there are.
        queues_max: u16,
    },
    /// A queue of that depth cannot be.
    #[error(
        "a queue of this device holds 1 to {depth_max} commands, not {depth}; take a depth in that range"
    )]
    Depth {
        /// Commands asked for.
        depth: u16,
        /// Commands possible.
        depth_max: u16,
    },
    /// The engine has no such thing.
    #[error("this engine does not offer {what}")]
    Unsupported {
        /// What was asked.
        what: &'static str,
    },
    /// The caller's buffer has a wrong length.
    #[error("{bytes} bytes; administrative data comes in multiples of 4 bytes, 4096 at most")]
    Buffer {
        /// Its length.
        bytes: usize,
    },
    /// Memory could not be shown to the device.
    #[error("{0}")]
    Map(MapError),
    /// The host has no memory for queues.
    #[error("no memory for a queue of {bytes} bytes: {errno}")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// The host's answer.
        errno: Errno,
    },
}

impl EngineError {
    /// The errno of a call that failed so.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Unsuitable(_) | Self::Namespace { .. } => Errno::NODEV,
            Self::NoQueue { .. } => Errno::BUSY,
            Self::Unsupported { .. } => Errno::OPNOTSUPP,
            Self::Depth { .. } | Self::Buffer { .. } => Errno::INVAL,
            Self::Map(_) => Errno::NOMEM,
            Self::Memory { errno, .. } => *errno,
            Self::NotReady { .. } | Self::Queue { .. } | Self::Command { .. } => Errno::IO,
        }
    }
}
