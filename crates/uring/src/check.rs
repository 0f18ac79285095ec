//! Whether a request can work at all, and how it is cut: the same rules for every engine.

use nvmed_engine::{Geometry, InvalidRequest, Operation, Request};

/// What requests are checked against and cut by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) lba_shift: u32,
    pub(crate) lba_count: u64,
    /// Logical blocks that one command with data moves.
    pub(crate) transfer_blocks_max: u32,
    /// Logical blocks that one command without data covers.
    pub(crate) bare_blocks_max: u32,
    /// Operations that the device does not have, as bits of [`Limits::bit`].
    pub(crate) missing: u8,
}

impl Limits {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let lba_shift = geometry.lba_bytes.trailing_zeros();
        Self {
            lba_shift,
            lba_count: geometry.lba_count,
            transfer_blocks_max: geometry.transfer_bytes_max >> lba_shift,
            bare_blocks_max: u32::MAX,
            missing: 0,
        }
    }

    /// The operation's bit in [`Limits::missing`].
    pub(crate) fn bit(operation: Operation) -> u8 {
        match operation {
            Operation::Compare => 1,
            Operation::WriteZeroes { .. } => 2,
            Operation::Discard => 4,
            // Has a call of its own: it has no blocks to check.
            Operation::Passthrough { .. } => 8,
            Operation::Read | Operation::Write { .. } | Operation::Flush => 0,
        }
    }

    /// Logical blocks that one command of this kind covers at most.
    #[inline]
    pub(crate) fn command_blocks_max(&self, operation: Operation) -> u32 {
        match operation {
            Operation::Read | Operation::Write { .. } | Operation::Compare => self.transfer_blocks_max,
            Operation::WriteZeroes { .. } => self.bare_blocks_max,
            Operation::Flush | Operation::Discard | Operation::Passthrough { .. } => u32::MAX,
        }
    }

    /// Whether a request can work.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub(crate) fn check(&self, request: &Request<'_>) -> Result<(), InvalidRequest> {
        let operation = request.operation;
        if matches!(operation, Operation::Passthrough { .. }) || self.missing & Self::bit(operation) != 0 {
            return Err(InvalidRequest::Unsupported);
        }
        request.check(self.lba_shift, self.lba_count, true)
    }
}
