//! Submission and completion queue entries (Base 2.0, 3.3.3).

use crate::status::Status;
use nvmed_units::{CommandId, DeviceAddress, Lba, NamespaceId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A submission queue entry, 64 bytes (Base 2.0, figure 87 and 88).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SubmissionEntry {
    /// Opcode.
    pub opcode: u8,
    /// Fused operation and PRP/SGL selection; 0 is neither fused nor SGL.
    pub flags: u8,
    /// Command identifier.
    pub cid: u16,
    /// Namespace.
    pub nsid: u32,
    /// Command dword 2.
    pub cdw2: u32,
    /// Command dword 3.
    pub cdw3: u32,
    /// Metadata pointer.
    pub mptr: u64,
    /// PRP entry 1.
    pub prp1: u64,
    /// PRP entry 2, or the address of the PRP list.
    pub prp2: u64,
    /// Command dword 10.
    pub cdw10: u32,
    /// Command dword 11.
    pub cdw11: u32,
    /// Command dword 12.
    pub cdw12: u32,
    /// Command dword 13.
    pub cdw13: u32,
    /// Command dword 14.
    pub cdw14: u32,
    /// Command dword 15.
    pub cdw15: u32,
}

const _: () = assert!(size_of::<SubmissionEntry>() == 64);

/// Force Unit Access, in command dword 12 (NVM 1.0, 3.2.6).
pub const FUA_BIT: u32 = 30;
/// Deallocate, in command dword 12 of Write Zeroes (NVM 1.0, 3.2.8).
pub const DEALLOCATE_BIT: u32 = 25;
const FUA: u32 = 1 << FUA_BIT;
const DEAC: u32 = 1 << DEALLOCATE_BIT;

impl SubmissionEntry {
    /// Log2 of the size, as CC.IOSQES has it.
    pub const SIZE_SHIFT: u32 = 6;

    /// A command with everything else zero.
    #[must_use]
    pub fn new(opcode: u8, cid: CommandId, nsid: NamespaceId) -> Self {
        Self { opcode, cid: cid.0, nsid: nsid.0, ..Self::default() }
    }

    /// With data pointers.
    #[must_use]
    pub fn with_prps(mut self, prp1: DeviceAddress, prp2: DeviceAddress) -> Self {
        (self.prp1, self.prp2) = (prp1.0, prp2.0);
        self
    }

    /// The first logical block of a Read, Write, Compare or Write Zeroes.
    #[must_use]
    pub fn lba(&self) -> Lba {
        Lba(u64::from(self.cdw10) | u64::from(self.cdw11) << 32)
    }

    /// The number of logical blocks, from its 0's based field.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        (self.cdw12 & 0xffff) + 1
    }

    /// Whether Force Unit Access is asked for.
    #[must_use]
    pub fn fua(&self) -> bool {
        self.cdw12 & FUA != 0
    }

    /// Whether a Write Zeroes may deallocate.
    #[must_use]
    pub fn deallocate(&self) -> bool {
        self.cdw12 & DEAC != 0
    }
}

/// A completion queue entry, 16 bytes (Base 2.0, figure 89 to 91).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CompletionEntry {
    /// Command-specific result.
    pub result: u32,
    /// Reserved, or the high half of the result.
    pub result_high: u32,
    /// Submission queue head pointer.
    pub sq_head: u16,
    /// Submission queue identifier.
    pub sq_id: u16,
    /// Command identifier.
    pub cid: u16,
    /// Phase tag in bit 0, status field above.
    pub status_phase: u16,
}

const _: () = assert!(size_of::<CompletionEntry>() == 16);

impl CompletionEntry {
    /// Log2 of the size, as CC.IOCQES has it.
    pub const SIZE_SHIFT: u32 = 4;

    /// The phase tag.
    #[must_use]
    pub fn phase(&self) -> bool {
        self.status_phase & 1 != 0
    }

    /// The status field.
    #[must_use]
    pub fn status(&self) -> Status {
        Status(self.status_phase >> 1)
    }

    /// With a status and a phase tag.
    #[must_use]
    pub fn with_status(mut self, status: Status, phase: bool) -> Self {
        self.status_phase = status.0 << 1 | u16::from(phase);
        self
    }

    /// The dword before the last: head pointer low, identifier of the queue high.
    #[must_use]
    pub fn dword2(&self) -> u32 {
        u32::from(self.sq_head) | u32::from(self.sq_id) << 16
    }

    /// The last dword, whose single store publishes an entry: CID low, status and phase high.
    #[must_use]
    pub fn dword3(&self) -> u32 {
        u32::from(self.cid) | u32::from(self.status_phase) << 16
    }
}

/// One range of a Dataset Management command, 16 bytes (NVM 1.0, figure 39).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DsmRange {
    /// Context attributes.
    pub attributes: u32,
    /// Length in logical blocks, not 0's based.
    pub blocks: u32,
    /// First logical block.
    pub lba: u64,
}

const _: () = assert!(size_of::<DsmRange>() == 16);

impl DsmRange {
    /// Ranges that one command can carry.
    pub const PER_COMMAND: usize = 256;
    /// Attribute bit of command dword 11: deallocate (NVM 1.0, 3.2.3).
    pub const DEALLOCATE: u32 = 1 << 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_zeros_based() {
        let mut entry = SubmissionEntry::new(2, CommandId(7), NamespaceId(1));
        (entry.cdw10, entry.cdw11, entry.cdw12) = (0x2345_6789, 1, 0x4000_ffff);
        assert_eq!((entry.lba(), entry.blocks(), entry.fua()), (Lba(0x1_2345_6789), 0x1_0000, true));
    }

    #[test]
    fn phase_and_status_share_a_word() {
        let entry = CompletionEntry::default().with_status(Status::LBA_OUT_OF_RANGE, true);
        assert!(entry.phase());
        assert_eq!(entry.status(), Status::LBA_OUT_OF_RANGE);
        assert!(!CompletionEntry::default().with_status(Status::LBA_OUT_OF_RANGE, false).phase());
    }
}
