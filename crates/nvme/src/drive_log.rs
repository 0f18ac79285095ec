//! What a virtual drive tells of its flash: log page C0h, one of the vendor's.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The log page, 512 bytes, little-endian. Counts are of the drive's whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DriveLog {
    /// [`DriveLog::MAGIC`]: other vendors have other pages here.
    pub magic: [u8; 8],
    /// Units of 4 KiB that hosts have written.
    pub host_units: u64,
    /// Units of all programs, padding among them.
    pub programmed_units: u64,
    /// Units that garbage collection has moved.
    pub moved_units: u64,
    /// Programs.
    pub programs: u64,
    /// Pages that were read.
    pub page_reads: u64,
    /// Erases since the drive was made, as counted by the drive.
    pub erases: u64,
    /// Erases of the least worn good block.
    pub erases_min: u64,
    /// Erases of the most worn good block.
    pub erases_max: u64,
    /// Blocks.
    pub blocks: u64,
    /// Those of them that are bad.
    pub bad_blocks: u64,
    /// Bytes of the host memory buffer that the drive uses now.
    pub host_memory_bytes: u64,
    /// Pages of 4 KiB that were put there, since the controller was made.
    pub host_puts: u64,
    /// Those that came from there.
    pub host_gets: u64,
    /// How often the buffer was given up, since it had not what was put there, or was unmapped.
    pub host_given_up: u64,
    /// Slots of HMB-I/O that are granted now.
    pub hmb_io_slots: u64,
    /// Reads through them that are done, since the controller was made.
    pub hmb_io_reads: u64,
    /// Writes through them, likewise.
    pub hmb_io_writes: u64,
    /// Commands of HMB-I/O that failed, likewise.
    pub hmb_io_errors: u64,
    /// Those that ended before they were done: by an Abort, or since the host has taken the slots back.
    pub hmb_io_ended: u64,
    _reserved_160: [u8; 352],
}

const _: () = assert!(size_of::<DriveLog>() == 512);

impl DriveLog {
    /// What the page begins with.
    pub const MAGIC: [u8; 8] = *b"nvmedflg";

    /// Whether this is such a page.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.magic == Self::MAGIC
    }

    /// Write amplification: what was programmed over what hosts have written; `None` before they have written anything.
    #[must_use]
    pub fn amplification(&self) -> Option<f64> {
        (self.host_units > 0).then(|| self.programmed_units as f64 / self.host_units as f64)
    }
}

impl Default for DriveLog {
    fn default() -> Self {
        Self { magic: Self::MAGIC, ..Self::new_zeroed() }
    }
}
