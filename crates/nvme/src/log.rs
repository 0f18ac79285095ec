//! Log pages (Base 2.0, 5.16.1).

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Log page identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPage(pub u8);

impl LogPage {
    /// Supported Log Pages.
    pub const SUPPORTED: Self = Self(0x00);
    /// Error Information.
    pub const ERROR: Self = Self(0x01);
    /// SMART / Health Information.
    pub const SMART: Self = Self(0x02);
    /// Firmware Slot Information.
    pub const FIRMWARE: Self = Self(0x03);
    /// Changed Namespace List.
    pub const CHANGED_NAMESPACES: Self = Self(0x04);
    /// Commands Supported and Effects.
    pub const EFFECTS: Self = Self(0x05);
    /// The vendor's: of a virtual drive, a [`crate::DriveLog`].
    pub const DRIVE: Self = Self(0xc0);
}

/// One entry of the Error Information log, 64 bytes (Base 2.0, figure 206).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ErrorEntry {
    /// The error's number, over the controller's life; 0 is an empty entry.
    pub count: u64,
    /// Submission queue of the command.
    pub sq_id: u16,
    /// Its command identifier.
    pub cid: u16,
    /// Its status field, phase bit included.
    pub status: u16,
    /// Byte and bit of the parameter in error; `ffff` is not known.
    pub location: u16,
    /// First LBA in error.
    pub lba: u64,
    /// Namespace.
    pub nsid: u32,
    /// Vendor specific information available.
    pub vendor: u8,
    /// Transport type.
    pub transport: u8,
    _reserved: [u8; 2],
    /// Command specific information.
    pub specific: u64,
    _reserved_40: [u8; 24],
}

const _: () = assert!(size_of::<ErrorEntry>() == 64);

/// SMART / Health Information, 512 bytes (Base 2.0, figure 207).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SmartLog {
    /// Critical Warning bits.
    pub critical_warning: u8,
    /// Composite Temperature in kelvin, little-endian.
    pub temperature: [u8; 2],
    /// Available Spare, percent.
    pub available_spare: u8,
    /// Available Spare Threshold, percent.
    pub spare_threshold: u8,
    /// Percentage Used.
    pub percentage_used: u8,
    _reserved_6: [u8; 26],
    /// Data read, in thousands of 512-byte units.
    pub data_units_read: [u64; 2],
    /// Data written, likewise.
    pub data_units_written: [u64; 2],
    /// Host Read Commands.
    pub host_reads: [u64; 2],
    /// Host Write Commands.
    pub host_writes: [u64; 2],
    /// Controller Busy Time, minutes.
    pub busy_minutes: [u64; 2],
    /// Power Cycles.
    pub power_cycles: [u64; 2],
    /// Power On Hours.
    pub power_on_hours: [u64; 2],
    /// Unsafe Shutdowns.
    pub unsafe_shutdowns: [u64; 2],
    /// Media and Data Integrity Errors.
    pub media_errors: [u64; 2],
    /// Number of Error Information log entries over the controller's life.
    pub error_entries: [u64; 2],
    _reserved_192: [u8; 320],
}

const _: () = assert!(size_of::<SmartLog>() == 512);
const _: () = assert!(core::mem::offset_of!(SmartLog, data_units_read) == 32);
const _: () = assert!(core::mem::offset_of!(SmartLog, error_entries) == 176);

impl SmartLog {
    /// Whether the medium has become read-only, other than by a write protection of the namespace: bit 3 of the
    /// critical warnings.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.critical_warning & 1 << 3 != 0
    }
}

impl Default for SmartLog {
    fn default() -> Self {
        Self::new_zeroed()
    }
}
