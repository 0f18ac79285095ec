//! Which requests are sent again, and how often.

use crate::error::IoError;
use nvmed_engine::{Operation, QueueFault};

/// How often a request is sent again because the device was reset under it. A request that brings the
/// device down each time must end.
pub(crate) const REPLAYS_MAX: u8 = 3;

/// Whether doing it twice is doing it once.
pub(crate) fn is_idempotent(operation: Operation) -> bool {
    !matches!(operation, Operation::Compare | Operation::Passthrough { .. })
}

/// Whether a request failed only because the device was reset under it.
pub(crate) fn was_reset(error: &IoError) -> bool {
    matches!(error, IoError::Device(error) if error.fault == Some(QueueFault::Reset))
}
