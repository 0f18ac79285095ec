//! Identify data structures (Base 2.0, 5.17; NVM 1.0, 4.1.5).

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Controller or Namespace Structure values (Base 2.0, figure 273).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cns(pub u8);

impl Cns {
    /// Identify Namespace.
    pub const NAMESPACE: Self = Self(0x00);
    /// Identify Controller.
    pub const CONTROLLER: Self = Self(0x01);
    /// Active namespace list.
    pub const ACTIVE_LIST: Self = Self(0x02);
    /// Namespace Identification Descriptor list.
    pub const DESCRIPTORS: Self = Self(0x03);
    /// I/O command set specific Identify Namespace.
    pub const CSI_NAMESPACE: Self = Self(0x05);
    /// I/O command set specific Identify Controller.
    pub const CSI_CONTROLLER: Self = Self(0x06);
    /// Identify I/O Command Set.
    pub const COMMAND_SETS: Self = Self(0x1c);
}

/// The command set (CSI) that a Namespace Identification Descriptor list names (Base 2.0, 5.17.2.3): the NVM command
/// set's 0 where it names none, as controllers do that know no other.
#[must_use]
pub fn command_set(descriptors: &[u8]) -> u8 {
    /// Namespace Identifier Type of the command set identifier.
    const COMMAND_SET: u8 = 4;
    let mut rest = descriptors;
    // Type, length, two reserved bytes, and so many bytes; a length of zero ends the list.
    while let [kind, length, _, _, value @ ..] = rest
        && *length > 0
    {
        match value.split_at_checked(usize::from(*length)) {
            Some(([csi, ..], _)) if *kind == COMMAND_SET => return *csi,
            Some((_, next)) => rest = next,
            None => break,
        }
    }
    0
}

/// Identify Controller, 4096 bytes (Base 2.0, figure 275); reserved ranges as byte arrays.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI Vendor ID.
    pub vid: u16,
    /// PCI Subsystem Vendor ID.
    pub ssvid: u16,
    /// Serial Number, ASCII, space-padded.
    pub sn: [u8; 20],
    /// Model Number, ASCII, space-padded.
    pub mn: [u8; 40],
    /// Firmware Revision, ASCII, space-padded.
    pub fr: [u8; 8],
    /// Recommended Arbitration Burst.
    pub rab: u8,
    /// IEEE OUI.
    pub ieee: [u8; 3],
    /// Multi-path and namespace sharing.
    pub cmic: u8,
    /// Maximum Data Transfer Size: 4096 << MDTS bytes, 0 is unlimited.
    pub mdts: u8,
    /// Controller ID.
    pub cntlid: u16,
    /// Version.
    pub ver: u32,
    /// RTD3 Resume and Entry Latency.
    pub rtd3: [u32; 2],
    /// Optional Asynchronous Events Supported.
    pub oaes: u32,
    /// Controller Attributes.
    pub ctratt: u32,
    _reserved_100: [u8; 11],
    /// Controller Type: 1 is I/O.
    pub cntrltype: u8,
    /// FRU Globally Unique Identifier.
    pub fguid: [u8; 16],
    _reserved_128: [u8; 128],
    /// Optional Admin Command Support.
    pub oacs: u16,
    /// Abort Command Limit, 0's based.
    pub acl: u8,
    /// Asynchronous Event Request Limit, 0's based.
    pub aerl: u8,
    /// Firmware Updates.
    pub frmw: u8,
    /// Log Page Attributes.
    pub lpa: u8,
    /// Error Log Page Entries, 0's based.
    pub elpe: u8,
    /// Number of Power States Support, 0's based.
    pub npss: u8,
    _reserved_264: [u8; 2],
    /// Warning Composite Temperature Threshold, kelvin.
    pub wctemp: u16,
    /// Critical Composite Temperature Threshold, kelvin.
    pub cctemp: u16,
    _reserved_270: [u8; 2],
    /// Host Memory Buffer Preferred Size, units of 4 KiB; 0: it wants none.
    pub hmpre: u32,
    /// Host Memory Buffer Minimum Size, likewise.
    pub hmmin: u32,
    /// Total NVM Capacity, bytes, low half first.
    pub tnvmcap: [u64; 2],
    /// Unallocated NVM Capacity, likewise.
    pub unvmcap: [u64; 2],
    _reserved_312: [u8; 20],
    /// Host Memory Buffer Minimum Descriptor Entry Size, units of 4 KiB; 0: no limit.
    pub hmminds: u32,
    /// Host Memory Maximum Descriptors Entries; 0: no limit.
    pub hmmaxd: u16,
    _reserved_338: [u8; 174],
    /// Submission Queue Entry Size: log2 required low, maximum high.
    pub sqes: u8,
    /// Completion Queue Entry Size.
    pub cqes: u8,
    /// Maximum Outstanding Commands.
    pub maxcmd: u16,
    /// Number of Namespaces.
    pub nn: u32,
    /// Optional NVM Command Support.
    pub oncs: u16,
    /// Fused Operation Support.
    pub fuses: u16,
    /// Format NVM Attributes.
    pub fna: u8,
    /// Volatile Write Cache; bit 0: present.
    pub vwc: u8,
    /// Atomic Write Unit Normal, 0's based LBAs.
    pub awun: u16,
    /// Atomic Write Unit Power Fail, 0's based LBAs.
    pub awupf: u16,
    _reserved_530: [u8; 6],
    /// SGL Support.
    pub sgls: u32,
    _reserved_540: [u8; 228],
    /// NVM Subsystem NVMe Qualified Name, NUL-terminated.
    pub subnqn: [u8; 256],
    _reserved_1024: [u8; 1024],
    /// Power state descriptors, 32 bytes each.
    pub psd: [[u8; 32]; 32],
    /// The vendor's: of a virtual drive, a [`crate::DriveIdentity`].
    pub vendor: [u8; 1024],
}

const _: () = assert!(size_of::<IdentifyController>() == 4096);
const _: () = assert!(core::mem::offset_of!(IdentifyController, cntrltype) == 111);
const _: () = assert!(core::mem::offset_of!(IdentifyController, oacs) == 256);
const _: () = assert!(core::mem::offset_of!(IdentifyController, hmpre) == 272);
const _: () = assert!(core::mem::offset_of!(IdentifyController, tnvmcap) == 280);
const _: () = assert!(core::mem::offset_of!(IdentifyController, hmminds) == 332);
const _: () = assert!(core::mem::offset_of!(IdentifyController, hmmaxd) == 336);
const _: () = assert!(core::mem::offset_of!(IdentifyController, sqes) == 512);
const _: () = assert!(core::mem::offset_of!(IdentifyController, vwc) == 525);
const _: () = assert!(core::mem::offset_of!(IdentifyController, sgls) == 536);
const _: () = assert!(core::mem::offset_of!(IdentifyController, subnqn) == 768);
const _: () = assert!(core::mem::offset_of!(IdentifyController, psd) == 2048);
const _: () = assert!(core::mem::offset_of!(IdentifyController, vendor) == 3072);

impl IdentifyController {
    /// Compare is supported (ONCS bit 0).
    pub const ONCS_COMPARE: u16 = 1;
    /// Dataset Management is supported (ONCS bit 2).
    pub const ONCS_DSM: u16 = 1 << 2;
    /// Write Zeroes is supported (ONCS bit 3).
    pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
    /// The Save field of Set Features and the Select field of Get Features are supported (ONCS bit 4).
    pub const ONCS_SAVE_AND_SELECT: u16 = 1 << 4;
}

impl Default for IdentifyController {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

/// One LBA format (NVM 1.0, figure 98).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata bytes a block.
    pub ms: u16,
    /// LBA Data Size: log2 of the bytes a block.
    pub lbads: u8,
    /// Relative Performance.
    pub rp: u8,
}

/// Identify Namespace, 4096 bytes (NVM 1.0, figure 97).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Namespace Size, in logical blocks.
    pub nsze: u64,
    /// Namespace Capacity.
    pub ncap: u64,
    /// Namespace Utilisation.
    pub nuse: u64,
    /// Namespace Features.
    pub nsfeat: u8,
    /// Number of LBA Formats, 0's based.
    pub nlbaf: u8,
    /// Formatted LBA Size: index of the format in use.
    pub flbas: u8,
    /// Metadata Capabilities.
    pub mc: u8,
    /// End-to-end Data Protection Capabilities and Settings.
    pub dpc_dps: [u8; 2],
    /// Multi-path and sharing.
    pub nmic: u8,
    /// Reservation Capabilities.
    pub rescap: u8,
    /// Format Progress Indicator.
    pub fpi: u8,
    /// Deallocate Logical Block Features.
    pub dlfeat: u8,
    _reserved_34: [u8; 12],
    /// Namespace Optimal I/O Boundary, in logical blocks; 0 is none.
    pub noiob: u16,
    /// NVM Capacity, bytes, low half first.
    pub nvmcap: [u64; 2],
    /// Namespace Preferred Write Granularity, in logical blocks, 0's based; this and the next four if
    /// [`Self::NSFEAT_OPTPERF`].
    pub npwg: u16,
    /// Namespace Preferred Write Alignment, likewise.
    pub npwa: u16,
    /// Namespace Preferred Deallocate Granularity, likewise.
    pub npdg: u16,
    /// Namespace Preferred Deallocate Alignment, likewise.
    pub npda: u16,
    /// Namespace Optimal Write Size, likewise.
    pub nows: u16,
    _reserved_74: [u8; 30],
    /// Namespace Globally Unique Identifier.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier.
    pub eui64: [u8; 8],
    /// LBA formats.
    pub lbaf: [LbaFormat; 16],
    _reserved_192: [u8; 3904],
}

const _: () = assert!(size_of::<IdentifyNamespace>() == 4096);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespace, dlfeat) == 33);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespace, noiob) == 46);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespace, npwg) == 64);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespace, nguid) == 104);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespace, lbaf) == 128);

impl IdentifyNamespace {
    /// Preferred granularities and alignments, and the optimal write size, are reported (NSFEAT bit 4).
    pub const NSFEAT_OPTPERF: u8 = 1 << 4;

    /// The format in use, if FLBAS names one that exists.
    #[must_use]
    pub fn format(&self) -> Option<LbaFormat> {
        let index = usize::from(self.flbas & 0xf);
        (index <= usize::from(self.nlbaf)).then(|| self.lbaf[index])
    }
}

impl Default for IdentifyNamespace {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_descriptors_names_a_command_set_or_none() {
        assert_eq!(command_set(&[0; 4096]), 0);
        assert_eq!(command_set(&[1, 2, 0, 0, 9, 9, 4, 1, 0, 0, 2, 0]), 2);
        assert_eq!(command_set(&[4, 200, 0, 0, 2]), 0, "longer than the list");
        assert_eq!(command_set(&[4, 1, 0]), 0, "cut short");
    }
}
