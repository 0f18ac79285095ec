//! What a virtual drive is like, in the vendor's bytes of Identify Controller.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The first of [`crate::IdentifyController::vendor`], little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DriveIdentity {
    /// [`DriveIdentity::MAGIC`]: other vendors have other bytes here.
    pub magic: [u8; 8],
    /// Name of the built-in profile, UTF-8, ended by a NUL; empty of a profile that is not built in.
    pub profile: [u8; 32],
    /// What kind of drive it is, likewise.
    pub what: [u8; 128],
    /// Channels.
    pub channels: u32,
    /// Chips of a channel.
    pub chips: u32,
    /// Dies of a chip.
    pub dies: u32,
    /// Planes of a die.
    pub planes: u32,
    /// 1 if pages are overwritten in place, so that there is no translation layer.
    pub in_place: u32,
    /// 1 if its state is kept beside its image.
    pub kept: u32,
    /// Bytes of the write buffer.
    pub buffer_bytes: u64,
    /// Kinds of blocks of each plane; those that it does not have are zeroes.
    pub blocks: [DriveBlocks; 4],
    /// Version of HMB-I/O that it offers ([`crate::HmbIoControl::VERSION`]); 0 is none.
    pub hmb_io_version: u32,
    /// Slots of HMB-I/O that it grants at most.
    pub hmb_io_slots: u32,
    _reserved_272: [u8; 752],
}

/// Blocks of one kind; in place, all pages of a plane are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DriveBlocks {
    /// Blocks of a plane.
    pub per_plane: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Pages of a block.
    pub pages: u32,
    /// Pages of a program.
    pub pages_per_program: u32,
}

const _: () = assert!(size_of::<DriveIdentity>() == 1024);
const _: () = assert!(core::mem::offset_of!(DriveIdentity, blocks) == 200);
const _: () = assert!(core::mem::offset_of!(DriveIdentity, hmb_io_version) == 264);

impl DriveIdentity {
    /// What it begins with.
    pub const MAGIC: [u8; 8] = *b"nvmeddrv";

    /// The drive that the vendor's bytes of a controller describe, if they are such.
    #[must_use]
    pub fn of(vendor: &[u8; 1024]) -> Option<Self> {
        Self::read_from_bytes(vendor).ok().filter(|drive| drive.magic == Self::MAGIC)
    }
}

impl Default for DriveIdentity {
    fn default() -> Self {
        Self { magic: Self::MAGIC, ..Self::new_zeroed() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_vendors_bytes_are_no_drive() {
        let mut vendor = [0; 1024];
        vendor.copy_from_slice(DriveIdentity::default().as_bytes());
        assert_eq!(DriveIdentity::of(&vendor), Some(DriveIdentity::default()));
        vendor[7] ^= 1;
        assert_eq!(DriveIdentity::of(&vendor), None);
    }
}
