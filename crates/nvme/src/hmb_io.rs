//! HMB-I/O: commands through slots of the host memory buffer, an extension of our virtual drives (docs/spec/hmb.md,
//! "HMB-I/O"), after Kim, Kim and Kim, "HMB-I/O: Fast Track for Handling Urgent I/Os in Nonvolatile Memory Express
//! Solid-State Drives" (Applied Sciences 10, 4341, 2020), section 4.

use crate::opcode::AdminOpcode;
use crate::{DriveIdentity, SubmissionEntry};
use nvmed_units::{CommandId, Halves};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Slots and pages of HMB-I/O: what a host asks for, in dword 11 of Set Features C1h, and what the drive grants, in
/// dword 0 of its completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HmbIoSlots {
    /// Slots, 1 to [`HmbIoSlots::SLOTS_MAX`]; 0 is off.
    pub slots: u16,
    /// Pages of 4 KiB of each, 1 to [`HmbIoSlots::PAGES_MAX`].
    pub pages: u16,
}

impl HmbIoSlots {
    /// Bytes of a page of a slot, and of a logical page.
    pub const PAGE_BYTES: u32 = 4096;
    /// Slots at most: their metadata is one page.
    pub const SLOTS_MAX: u16 = 64;
    /// Pages of a slot at most: 128 KiB.
    pub const PAGES_MAX: u16 = 32;

    /// As a dword; 0 if it is off.
    #[must_use]
    pub fn dword(self) -> u32 {
        match self.slots {
            0 => 0,
            slots => u32::from(slots) | u32::from(self.pages.saturating_sub(1)) << 16,
        }
    }

    /// Of a dword, whatever it says.
    #[must_use]
    pub fn of(dword: u32) -> Self {
        Self { slots: dword.low(), pages: dword.high().saturating_add(1) }
    }

    /// Whether the numbers are within their limits, with at least one slot.
    #[must_use]
    pub fn is_sound(self) -> bool {
        (1..=Self::SLOTS_MAX).contains(&self.slots) && (1..=Self::PAGES_MAX).contains(&self.pages)
    }

    /// Bytes of a slot's data.
    #[must_use]
    pub fn slot_bytes(self) -> u32 {
        u32::from(self.pages) * Self::PAGE_BYTES
    }
}

/// A place in the host memory buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct HostMemoryPlace {
    /// The entry of the list with which the buffer was enabled, from 0.
    pub segment: u32,
    /// Bytes from the begin of that entry's range.
    pub offset: u32,
}

/// Where the parts of a slot are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct HmbIoPlaces {
    /// Its [`HmbIoMetadata`].
    pub metadata: HostMemoryPlace,
    /// Its data, page-aligned.
    pub data: HostMemoryPlace,
}

const _: () = assert!(size_of::<HmbIoPlaces>() == 16);

/// The control block, with which the buffer's first range begins that has pages. Little-endian; the drive writes it
/// when HMB-I/O is granted, and never reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct HmbIoControl {
    /// [`HmbIoControl::MAGIC`].
    pub magic: [u8; 8],
    /// [`HmbIoControl::VERSION`].
    pub version: u32,
    /// Slots.
    pub slots: u32,
    /// Pages of a slot.
    pub pages: u32,
    _reserved_20: [u8; 44],
    /// The slots, by number; zeroes behind the last one.
    pub places: [HmbIoPlaces; HmbIoSlots::SLOTS_MAX as usize],
}

const _: () = assert!(size_of::<HmbIoControl>() == 1088);
const _: () = assert!(core::mem::offset_of!(HmbIoControl, places) == 64);

impl HmbIoControl {
    /// What it begins with.
    pub const MAGIC: [u8; 8] = *b"NVMEDHIO";
    /// The version of all that this module describes.
    pub const VERSION: u32 = 1;

    /// Of so many slots, whose places the caller enters.
    #[must_use]
    pub fn new(granted: HmbIoSlots) -> Self {
        Self {
            magic: Self::MAGIC,
            version: Self::VERSION,
            slots: granted.slots.into(),
            pages: granted.pages.into(),
            ..Self::new_zeroed()
        }
    }

    /// Whether this is a control block of these slots.
    #[must_use]
    pub fn is_of(&self, granted: HmbIoSlots) -> bool {
        (self.magic, self.version) == (Self::MAGIC, Self::VERSION)
            && (self.slots, self.pages) == (granted.slots.into(), granted.pages.into())
    }
}

/// What a slot is to do: the host writes it before it rings, and the drive copies it once.
///
/// The logical page `lpn + n` is page `n` of the slot: so the data lies in the slot from byte `first` on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct HmbIoMetadata {
    /// First logical page, of 4 KiB, whatever the size of a logical block.
    pub lpn: u64,
    /// Logical pages that the range touches, 1 to the pages of a slot.
    pub nlp: u32,
    /// [`HmbIoMetadata::READ`], or [`HmbIoMetadata::WRITE`], perhaps with [`HmbIoMetadata::FUA`].
    pub kind: u32,
    /// Where in the first logical page the range begins, in bytes: a whole number of logical blocks, below 4096.
    pub first: u32,
    /// Bytes of the range: a whole number of logical blocks, at least one.
    pub bytes: u32,
    /// The command's number, whose low half is dword 11 of the command: another one is metadata of another command.
    pub sequence: u64,
    /// Reserved.
    pub reserved: [u64; 4],
}

const _: () = assert!(size_of::<HmbIoMetadata>() == 64);
const _: () = assert!(core::mem::offset_of!(HmbIoMetadata, sequence) == 24);

impl HmbIoMetadata {
    /// Type: from the medium to the slot.
    pub const READ: u32 = 1;
    /// Type: from the slot to the medium.
    pub const WRITE: u32 = 2;
    /// Force Unit Access, beside [`Self::WRITE`].
    pub const FUA: u32 = 1 << 31;

    /// Of `bytes` bytes of the namespace from byte `start` on.
    #[must_use]
    pub fn new(kind: u32, start: u64, bytes: u32, sequence: u64) -> Self {
        let page = u64::from(HmbIoSlots::PAGE_BYTES);
        let first = start % page;
        let nlp = (first + u64::from(bytes)).div_ceil(page);
        Self {
            lpn: start / page,
            nlp: nlp as u32,
            kind,
            first: first as u32,
            bytes,
            sequence,
            ..Self::default()
        }
    }

    /// The command of this metadata, in a slot.
    #[must_use]
    pub fn command(&self, cid: CommandId, slot: u16) -> SubmissionEntry {
        SubmissionEntry {
            opcode: AdminOpcode::HmbIo as u8,
            cid: cid.0,
            nsid: 1,
            cdw10: slot.into(),
            cdw11: self.sequence.low(),
            ..SubmissionEntry::default()
        }
    }
}

impl DriveIdentity {
    /// Slots of HMB-I/O that the drive grants at most, if it offers HMB-I/O of the version that we know.
    #[must_use]
    pub fn offers_hmb_io(&self) -> Option<u16> {
        let slots = self.hmb_io_slots.min(HmbIoSlots::SLOTS_MAX.into()) as u16;
        (self.hmb_io_version == HmbIoControl::VERSION && slots > 0).then_some(slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_what_their_dword_says() {
        let asked = HmbIoSlots { slots: 64, pages: 32 };
        assert_eq!((asked.dword(), HmbIoSlots::of(asked.dword())), (0x001f_0040, asked));
        assert!(asked.is_sound() && HmbIoSlots { slots: 1, pages: 1 }.is_sound());
        for dword in [0x001f_0000, 0x001f_0041, 0x0020_0001, u32::MAX] {
            assert!(!HmbIoSlots::of(dword).is_sound(), "{dword:x}");
        }
        assert_eq!(HmbIoSlots { slots: 0, pages: 4 }.dword(), 0);
    }

    #[test]
    fn metadata_names_all_pages_that_a_range_touches() {
        let metadata = HmbIoMetadata::new(HmbIoMetadata::READ, 4096 * 7 + 3584, 1024, 1 << 40 | 5);
        assert_eq!((metadata.lpn, metadata.nlp, metadata.first, metadata.bytes), (7, 2, 3584, 1024));
        let entry = metadata.command(CommandId(9), 3);
        assert_eq!((entry.opcode, entry.cid, entry.nsid, entry.cdw10, entry.cdw11), (0xc4, 9, 1, 3, 5));
    }

    #[test]
    fn a_drive_offers_slots_of_our_version_only() {
        let mut drive = DriveIdentity::default();
        assert_eq!(drive.offers_hmb_io(), None);
        (drive.hmb_io_version, drive.hmb_io_slots) = (HmbIoControl::VERSION, 1000);
        assert_eq!(drive.offers_hmb_io(), Some(HmbIoSlots::SLOTS_MAX));
        drive.hmb_io_version += 1;
        assert_eq!(drive.offers_hmb_io(), None);
    }
}
