//! What follows the header, structure by structure (QEMU docs/interop/vfio-user.rst; linux/vfio.h).

use crate::error::ProtocolError;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Region indices of a PCI device (linux/vfio.h, `VFIO_PCI_*_REGION_INDEX`).
pub mod region {
    /// Base address register 0: the registers of an NVMe controller.
    pub const BAR0: u32 = 0;
    /// Base address register 4.
    pub const BAR4: u32 = 4;
    /// Configuration space.
    pub const CONFIG: u32 = 7;
    /// Regions of a PCI device.
    pub const COUNT: u32 = 9;
}

/// Interrupt indices of a PCI device (linux/vfio.h, `VFIO_PCI_*_IRQ_INDEX`).
pub mod irq {
    /// MSI-X.
    pub const MSIX: u32 = 2;
    /// Interrupt types of a PCI device.
    pub const COUNT: u32 = 5;
}

/// Reads a structure from the front of a payload.
///
/// # Errors
/// [`ProtocolError::Short`].
pub fn take<'a, T: FromBytes>(payload: &'a [u8], what: &'static str) -> Result<(T, &'a [u8]), ProtocolError> {
    let short = ProtocolError::Short { what, bytes: payload.len(), needed: size_of::<T>() };
    let front = payload.get(..size_of::<T>()).ok_or(short.clone())?;
    let value = T::read_from_bytes(front).map_err(|_| short)?;
    Ok((value, &payload[size_of::<T>()..]))
}

/// As [`take`], of a payload that holds nothing else.
///
/// # Errors
/// [`ProtocolError::Short`]; [`ProtocolError::Value`] for bytes too many.
pub fn take_all<T: FromBytes>(payload: &[u8], what: &'static str) -> Result<T, ProtocolError> {
    let (value, rest) = take(payload, what)?;
    if rest.is_empty() {
        return Ok(value);
    }
    Err(ProtocolError::Value { what, value: rest.len() as u64, why: "bytes too many behind it" })
}

/// A structure that starts with the size its sender has room for or gives: it must hold the structure itself.
fn argsz(value: u32, bytes: usize) -> Result<(), ProtocolError> {
    if (value as usize) < bytes {
        let why = "smaller than the structure that it stands in";
        return Err(ProtocolError::Value { what: "argsz", value: u64::from(value), why });
    }
    Ok(())
}

/// Proposed or agreed version; JSON follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Version {
    pub major: u16,
    pub minor: u16,
}

impl Version {
    /// What we speak.
    pub const OURS: Self = Self { major: 0, minor: 1 };
}

/// `VFIO_USER_DMA_MAP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DmaMap {
    pub argsz: u32,
    /// Bit 0: the device may read; bit 1: it may write. Bit 2, "by mmap", is libvfio-user's.
    pub flags: u32,
    /// Where in the descriptor's file the memory begins.
    pub offset: u64,
    pub address: u64,
    pub bytes: u64,
}

/// Memory of a client as the device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaRange {
    /// Device address of its first byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// The device may read it.
    pub read: bool,
    /// The device may write it.
    pub write: bool,
}

impl DmaMap {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;
    const MMAP: u32 = 4;

    /// The range, with every bound checked.
    ///
    /// # Errors
    /// [`ProtocolError`] for unknown flags, and for ranges that are empty, wrap around or are not whole pages.
    pub fn range(&self) -> Result<DmaRange, ProtocolError> {
        argsz(self.argsz, size_of::<Self>())?;
        let value = |what, value, why| Err(ProtocolError::Value { what, value, why });
        if self.flags & !(Self::READ | Self::WRITE | Self::MMAP) != 0 {
            return value("flags of a DMA range", u64::from(self.flags), "unknown bits");
        }
        check_range(self.address, self.bytes)?;
        if !self.offset.is_multiple_of(PAGE) || self.offset.checked_add(self.bytes).is_none() {
            return value("offset of a DMA range", self.offset, "no page boundary, or too large");
        }
        let (read, write) = (self.flags & Self::READ != 0, self.flags & Self::WRITE != 0);
        Ok(DmaRange { address: self.address, bytes: self.bytes, read, write })
    }
}

/// The page size of DMA ranges (capability `pgsizes`, by default 4 KiB).
const PAGE: u64 = 4096;

fn check_range(address: u64, bytes: u64) -> Result<(), ProtocolError> {
    let value = |what, value, why| Err(ProtocolError::Value { what, value, why });
    if bytes == 0 || !bytes.is_multiple_of(PAGE) || usize::try_from(bytes).is_err() {
        return value("size of a DMA range", bytes, "not a number of 4 KiB pages");
    }
    if !address.is_multiple_of(PAGE) {
        return value("address of a DMA range", address, "no page boundary");
    }
    if address.checked_add(bytes).is_none() {
        return value("address of a DMA range", address, "it wraps around");
    }
    Ok(())
}

/// `VFIO_USER_DMA_UNMAP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DmaUnmap {
    pub argsz: u32,
    pub flags: u32,
    pub address: u64,
    pub bytes: u64,
}

impl DmaUnmap {
    /// Every range at once (libvfio-user, as VFIO has it); address and size are 0.
    pub const ALL: u32 = 2;

    /// Checks the range of one mapping; [`DmaUnmap::ALL`] has none.
    ///
    /// # Errors
    /// [`ProtocolError::Value`].
    pub fn check(&self) -> Result<(), ProtocolError> {
        argsz(self.argsz, size_of::<Self>())?;
        match self.flags {
            0 => check_range(self.address, self.bytes),
            Self::ALL if self.address == 0 && self.bytes == 0 => Ok(()),
            flags => {
                let why = "dirty page maps are not kept, or an address where all is meant";
                Err(ProtocolError::Value { what: "flags of an unmapping", value: u64::from(flags), why })
            }
        }
    }
}

/// `VFIO_USER_DEVICE_GET_INFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DeviceInfo {
    pub argsz: u32,
    pub flags: u32,
    pub regions: u32,
    pub irqs: u32,
}

impl DeviceInfo {
    pub const RESET: u32 = 1;
    pub(crate) const PCI: u32 = 2;

    pub fn check_room(&self) -> Result<(), ProtocolError> {
        argsz(self.argsz, size_of::<Self>())
    }
}

/// `VFIO_USER_DEVICE_GET_REGION_INFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawRegionInfo {
    pub argsz: u32,
    pub flags: u32,
    pub index: u32,
    pub cap_offset: u32,
    pub bytes: u64,
    pub offset: u64,
}

/// A part of a region that can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Area {
    /// Where in the region it begins.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One region of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// Bytes; 0 for a region that the device does not have.
    pub bytes: u64,
    /// It can be read.
    pub read: bool,
    /// It can be written.
    pub write: bool,
    /// What of it can be mapped, from a descriptor that comes with the reply.
    pub areas: Vec<Area>,
    /// Where in that descriptor the region begins.
    pub offset: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct CapabilityHeader {
    id: u16,
    version: u16,
    next: u32,
}

/// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`.
const CAP_SPARSE_MMAP: u16 = 1;
/// Areas of one region: a page each of a register block would still be fewer.
const AREAS_MAX: usize = 64;

impl RawRegionInfo {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const MMAP: u32 = 4;
    pub(crate) const CAPS: u32 = 8;

    pub fn check_room(&self) -> Result<(), ProtocolError> {
        argsz(self.argsz, size_of::<Self>())
    }

    /// Reads a reply, with its capabilities.
    ///
    /// # Errors
    /// [`ProtocolError`] for capabilities that leave the payload, form a ring, or areas that leave the region.
    pub fn parse(payload: &[u8]) -> Result<(Self, RegionInfo), ProtocolError> {
        let (raw, _) = take::<Self>(payload, "a region info")?;
        let mut info = RegionInfo {
            bytes: raw.bytes,
            read: raw.flags & Self::READ != 0,
            write: raw.flags & Self::WRITE != 0,
            areas: Vec::new(),
            offset: raw.offset,
        };
        if raw.flags & Self::CAPS != 0 && raw.argsz as usize <= payload.len() {
            info.areas = areas(payload, raw.cap_offset)?;
        } else if raw.flags & Self::MMAP != 0 {
            info.areas = vec![Area { offset: 0, bytes: raw.bytes }];
        }
        for area in &info.areas {
            let inside = area.offset.checked_add(area.bytes).is_some_and(|end| end <= raw.bytes);
            if !inside || raw.offset.checked_add(raw.bytes).is_none() {
                let why = "a mappable area outside the region";
                return Err(ProtocolError::Value { what: "area", value: area.offset, why });
            }
        }
        Ok((raw, info))
    }
}

/// The areas of the sparse mmap capability in the list that starts at `first`.
fn areas(payload: &[u8], first: u32) -> Result<Vec<Area>, ProtocolError> {
    let mut at = first as usize;
    // The list must run forward, so that it ends.
    while at != 0 {
        let cut = ProtocolError::Short { what: "a region capability", bytes: payload.len(), needed: at };
        let rest = payload.get(at..).ok_or(cut)?;
        let (header, rest) = take::<CapabilityHeader>(rest, "a region capability")?;
        if header.id == CAP_SPARSE_MMAP {
            return sparse(rest);
        }
        if header.next != 0 && header.next as usize <= at {
            let why = "the list of capabilities runs backwards";
            return Err(ProtocolError::Value { what: "next", value: u64::from(header.next), why });
        }
        at = header.next as usize;
    }
    Ok(Vec::new())
}

fn sparse(payload: &[u8]) -> Result<Vec<Area>, ProtocolError> {
    let (head, mut rest) = take::<[u32; 2]>(payload, "a sparse mmap capability")?;
    let count = head[0] as usize;
    if count > AREAS_MAX {
        let why = "more than 64 mappable areas";
        return Err(ProtocolError::Value { what: "nr_areas", value: count as u64, why });
    }
    let mut areas = Vec::with_capacity(count);
    for _ in 0..count {
        let (area, next) = take::<Area>(rest, "a mappable area")?;
        areas.push(area);
        rest = next;
    }
    Ok(areas)
}

impl RegionInfo {
    /// The reply's payload; capabilities only if the asker has room for them, as `argsz` then tells it.
    #[must_use]
    pub(crate) fn reply(&self, index: u32, room: u32) -> Vec<u8> {
        let mut flags = u32::from(self.read) * RawRegionInfo::READ;
        flags |= u32::from(self.write) * RawRegionInfo::WRITE;
        let plain = size_of::<RawRegionInfo>();
        let mut capability = Vec::new();
        if !self.areas.is_empty() {
            flags |= RawRegionInfo::MMAP | RawRegionInfo::CAPS;
            let header = CapabilityHeader { id: CAP_SPARSE_MMAP, version: 1, next: 0 };
            capability.extend_from_slice(header.as_bytes());
            capability.extend_from_slice([self.areas.len() as u32, 0].as_bytes());
            capability.extend_from_slice(self.areas.as_bytes());
        }
        let argsz = (plain + capability.len()) as u32;
        let cap_offset = if capability.is_empty() { 0 } else { plain as u32 };
        let (bytes, offset) = (self.bytes, self.offset);
        let raw = RawRegionInfo { argsz, flags, index, cap_offset, bytes, offset };
        let mut reply = raw.as_bytes().to_vec();
        if argsz <= room {
            reply.extend_from_slice(&capability);
        }
        reply
    }
}

/// `VFIO_USER_DEVICE_GET_IRQ_INFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IrqInfo {
    /// Size of this structure, or more.
    pub argsz: u32,
    /// Bit 0: signals eventfds; bit 3: set up as a whole.
    pub flags: u32,
    /// The type of interrupt, [`irq`].
    pub index: u32,
    /// How many there are.
    pub count: u32,
}

impl IrqInfo {
    pub(crate) const EVENTFD: u32 = 1;

    pub(crate) fn check_room(&self) -> Result<(), ProtocolError> {
        argsz(self.argsz, size_of::<Self>())
    }
}

/// `VFIO_USER_DEVICE_SET_IRQS`; for [`IrqSet::BOOL`] `count` bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IrqSet {
    pub argsz: u32,
    pub flags: u32,
    pub index: u32,
    pub start: u32,
    pub count: u32,
}

impl IrqSet {
    pub const NONE: u32 = 1;
    pub(crate) const BOOL: u32 = 2;
    pub(crate) const EVENTFD: u32 = 4;
    pub const MASK: u32 = 8;
    pub(crate) const UNMASK: u32 = 16;
    pub(crate) const TRIGGER: u32 = 32;

    /// Checks it against the number of interrupts of its type.
    ///
    /// # Errors
    /// [`ProtocolError::Value`] for a range outside, flags that exclude each other, descriptors too many.
    pub fn check(&self, available: u32, booleans: usize, fds: usize) -> Result<(), ProtocolError> {
        argsz(self.argsz, size_of::<Self>())?;
        let value = |what, value: u32, why| Err(ProtocolError::Value { what, value: u64::from(value), why });
        let data = self.flags & (Self::NONE | Self::BOOL | Self::EVENTFD);
        let action = self.flags & (Self::MASK | Self::UNMASK | Self::TRIGGER);
        if !data.is_power_of_two() || !action.is_power_of_two() || self.flags != data | action {
            return value("flags of an interrupt setting", self.flags, "not one kind of data and one action");
        }
        let end = self.start.checked_add(self.count);
        if end.is_none_or(|end| end > available) {
            return value("range of interrupts", self.start, "beyond those of its type");
        }
        if self.count == 0 && (self.start != 0 || data != Self::NONE || action != Self::TRIGGER) {
            return value("count of interrupts", 0, "none, where some are meant");
        }
        if booleans != if data == Self::BOOL { self.count as usize } else { 0 } {
            return value("count of interrupts", self.count, "not as many bytes follow");
        }
        if fds != 0 && (data != Self::EVENTFD || fds != self.count as usize) {
            return value("count of interrupts", self.count, "not as many descriptors came");
        }
        Ok(())
    }
}

/// `VFIO_USER_REGION_READ` and `VFIO_USER_REGION_WRITE`; data follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RegionAccess {
    pub offset: u64,
    pub region: u32,
    pub count: u32,
}

/// `VFIO_USER_DMA_READ` and `VFIO_USER_DMA_WRITE`; data follows the reply of the first and the second itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct DmaAccess {
    pub address: u64,
    pub count: u64,
}
