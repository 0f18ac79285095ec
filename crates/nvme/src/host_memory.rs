//! The host memory buffer (Base 2.0, 5.27.1.10 and 8.9).

use nvmed_units::Halves;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Enable Host Memory, of command dword 11.
pub const ENABLE_HOST_MEMORY: u32 = 1;
/// Memory Return, of command dword 11: the buffer is the one that was lent before, and has what it had.
pub const MEMORY_RETURN: u32 = 1 << 1;

/// A range of the buffer: an entry of the list that Set Features names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct HostMemoryDescriptor {
    /// Buffer Address: a device address, of a whole page.
    pub address: u64,
    /// Buffer Size: pages, of CC.MPS.
    pub pages: u32,
    /// Reserved.
    pub reserved: u32,
}

const _: () = assert!(size_of::<HostMemoryDescriptor>() == 16);

/// What Get Features answers: the buffer as it was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct HostMemoryAttributes {
    /// Host Memory Buffer Size: pages of all ranges.
    pub pages: u32,
    /// Address of the list of ranges, low half first.
    pub address: [u32; 2],
    /// Host Memory Descriptor List Entry Count.
    pub entries: u32,
    _reserved_16: [u8; 4080],
}

const _: () = assert!(size_of::<HostMemoryAttributes>() == 4096);

impl HostMemoryAttributes {
    /// Of so many pages, in the ranges of a list at a device address with so many entries.
    #[must_use]
    pub fn new(pages: u32, address: u64, entries: u32) -> Self {
        Self { pages, address: [address.low(), address.high()], entries, ..Self::new_zeroed() }
    }
}

impl Default for HostMemoryAttributes {
    fn default() -> Self {
        Self::new_zeroed()
    }
}
