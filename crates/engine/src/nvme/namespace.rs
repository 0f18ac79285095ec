//! One namespace: its blocks, and what a request on it may be (NVM Command Set 1.0, 4.1.5).

use crate::{EngineError, InvalidRequest, Operation, Request};
use nvmed_nvme::{IdentifyController, IdentifyNamespace};
use nvmed_units::NamespaceId;

/// Bytes that one command moves at most even if the controller takes more: a PRP list of half a page.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Logical blocks that the 16-bit field of a command can count.
const FIELD_BLOCKS_MAX: u32 = 1 << 16;
/// DLFEAT bit 3: Write Zeroes may deallocate; bits 2:0 = 1: what is deallocated reads as zeroes.
const DLFEAT_WRITE_ZEROES: u8 = 1 << 3;

/// What requests are checked against and cut by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Namespace {
    pub(super) nsid: NamespaceId,
    pub(super) lba_shift: u32,
    /// Blocks when it was looked at; a queue is checked against the engine's count, which follows changes.
    pub(super) lba_count: u64,
    /// Logical blocks that one command with data moves at most.
    pub(super) transfer_blocks_max: u32,
    /// Whether zeroed blocks may be deallocated and still read as zeroes.
    pub(super) zeroes_deallocate: bool,
    /// Whether the streams directive is enabled for it.
    pub(super) streams: bool,
    oncs: u16,
}

impl Namespace {
    /// A namespace of a controller, if this driver can use both.
    ///
    /// # Errors
    /// Which of the two cannot be used, and why.
    pub(super) fn new(
        nsid: NamespaceId,
        controller: &IdentifyController,
        namespace: &IdentifyNamespace,
    ) -> Result<Self, EngineError> {
        let refuse = |reason| Err(EngineError::Namespace { nsid: nsid.0, reason });
        if controller.sqes & 0xf > 6 || controller.sqes >> 4 < 6 || controller.cqes & 0xf > 4 {
            return Err(EngineError::Unsuitable("its queue entries are not of 64 and 16 bytes (SQES, CQES)"));
        }
        if namespace.nsze == 0 {
            return refuse("it does not exist or is inactive");
        }
        let Some(format) = namespace.format() else {
            return refuse("its LBA format is not one of those that it lists");
        };
        if format.ms != 0 {
            return refuse("its blocks carry metadata, which this driver does not transfer");
        }
        let lba_shift = u32::from(format.lbads);
        if !(9..=12).contains(&lba_shift) {
            return refuse("its blocks are not of 512 to 4096 bytes");
        }
        if namespace.nsze.checked_shl(lba_shift).is_none_or(|bytes| bytes >> lba_shift != namespace.nsze) {
            return refuse("its size does not fit 64 bits");
        }
        let mdts = u32::from(controller.mdts);
        let transfer_bytes = if mdts == 0 || mdts >= 8 { TRANSFER_BYTES_MAX } else { 4096 << mdts };
        Ok(Self {
            nsid,
            lba_shift,
            lba_count: namespace.nsze,
            transfer_blocks_max: transfer_bytes >> lba_shift,
            zeroes_deallocate: namespace.dlfeat & 7 == 1 && namespace.dlfeat & DLFEAT_WRITE_ZEROES != 0,
            streams: false,
            oncs: controller.oncs,
        })
    }

    pub(super) fn lba_bytes(&self) -> u32 {
        1 << self.lba_shift
    }

    /// Logical blocks that one command of this kind covers at most.
    #[inline]
    pub(super) fn command_blocks_max(&self, operation: Operation) -> u32 {
        match operation {
            Operation::Read | Operation::Write { .. } | Operation::Compare => self.transfer_blocks_max,
            Operation::WriteZeroes { .. } => FIELD_BLOCKS_MAX,
            Operation::Flush | Operation::Discard | Operation::Passthrough { .. } => u32::MAX,
        }
    }

    /// Whether a request can work at all.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub(super) fn check(&self, request: &Request<'_>, lba_count: u64) -> Result<(), InvalidRequest> {
        request.check(self.lba_shift, lba_count, self.offers(request.operation))
    }

    #[inline]
    fn offers(&self, operation: Operation) -> bool {
        let bit = match operation {
            Operation::Read | Operation::Write { .. } | Operation::Flush => return true,
            Operation::Compare => IdentifyController::ONCS_COMPARE,
            Operation::WriteZeroes { .. } => IdentifyController::ONCS_WRITE_ZEROES,
            Operation::Discard => IdentifyController::ONCS_DSM,
            // Has a call of its own: it has no blocks to check.
            Operation::Passthrough { .. } => return false,
        };
        self.oncs & bit != 0
    }
}
