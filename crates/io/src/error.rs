//! What can go wrong; errnos come from the engine's tables.

use crate::settings::HandleSettings;
pub use nvmed_engine::SubmitError;
use nvmed_engine::{DeviceError, EngineError, InvalidRequest, Operation, QueueFault};
use nvmed_units::Lba;
use rustix::io::Errno;

/// Which setting of a handle makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSetting {
    /// The share of a queue.
    #[error("a handle cannot have the weight {weight}; set 1 to {}", HandleSettings::WEIGHT_MAX)]
    Weight {
        /// The weight asked for.
        weight: u32,
    },
    /// The time limit of requests.
    #[error(
        "a handle cannot have a timeout of {timeout_us} us; set at least {} us",
        HandleSettings::TIMEOUT_US_MIN
    )]
    Timeout {
        /// The timeout asked for, microseconds.
        timeout_us: u64,
    },
    /// A rate without any limit in it.
    #[error("the rate of a handle limits neither bytes nor requests; set one of them, or no rate")]
    Rate,
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The device did not do it: operation, LBA and status are inside.
    #[error(transparent)]
    Device(#[from] DeviceError),
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
    /// The queue failed before, or the device was shut down.
    #[error("{} at LBA {}: {fault}", operation.name(), lba.0)]
    Failed {
        /// What was asked.
        operation: Operation,
        /// Its first block.
        lba: Lba,
        /// Why.
        fault: QueueFault,
    },
    /// The device could not be opened, mapped to or shut down.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The device options make no sense.
    #[error("a device needs at least one queue of at least one command")]
    Options,
    /// A handle's setting makes no sense.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// A completion thread could not be started.
    #[error("the host has no room for a completion thread ({kind}); choose another completion policy")]
    Thread {
        /// What the host answered.
        kind: std::io::ErrorKind,
    },
    /// No queue has this number.
    #[error("the device has no queue {number}")]
    NoSuchQueue {
        /// The number asked for.
        number: usize,
    },
    /// A queue cannot be destroyed while it is used.
    #[error(
        "queue {number} is in use by {handles} handles and {outstanding} requests; drop the handles, and wait for \
         or drop the tickets"
    )]
    Busy {
        /// The queue.
        number: usize,
        /// Handles bound to it.
        handles: usize,
        /// Requests not done, or done with results that nobody has taken.
        outstanding: usize,
    },
    /// A device keeps one queue: handles are bound to something.
    #[error("queue {number} is the device's last; create another before destroying it")]
    LastQueue {
        /// The queue.
        number: usize,
    },
}

impl IoError {
    /// The errno of a call that failed so.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Device(error) => error.errno(),
            Self::Invalid { reason: InvalidRequest::Unsupported, .. } => Errno::OPNOTSUPP,
            Self::Invalid { .. } | Self::Options | Self::Setting(_) => Errno::INVAL,
            Self::Thread { .. } => Errno::AGAIN,
            Self::NoSuchQueue { .. } => Errno::NOENT,
            Self::Busy { .. } | Self::LastQueue { .. } => Errno::BUSY,
            Self::Failed { .. } => Errno::IO,
            Self::Engine(error) => error.errno(),
        }
    }

    /// Whether the queue or the device failed, not this request.
    pub(crate) fn is_fault(&self) -> bool {
        match self {
            Self::Device(error) => error.fault.is_some(),
            Self::Invalid { .. } => false,
            _ => true,
        }
    }

    /// A request that its queue did not take. `NoSlot` is not an error and never comes here.
    #[cold]
    pub fn refused(operation: Operation, lba: Lba, error: SubmitError) -> Self {
        match error {
            SubmitError::Invalid { operation, lba, reason } => Self::Invalid { operation, lba, reason },
            SubmitError::Failed(fault) => Self::Failed { operation, lba, fault },
            _ => Self::Failed { operation, lba, fault: QueueFault::Timeout },
        }
    }
}
