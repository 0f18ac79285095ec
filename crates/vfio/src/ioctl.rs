//! The calls of the kernel's VFIO, version 0, with their structures (`linux/vfio.h`).

use core::ffi::{CStr, c_int, c_void};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use std::path::Path;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// `VFIO_API_VERSION`.
pub(crate) const API_VERSION: c_int = 0;
/// `VFIO_TYPE1v2_IOMMU`.
pub(crate) const TYPE1_V2: u32 = 3;
/// `VFIO_GROUP_FLAGS_VIABLE`.
const GROUP_VIABLE: u32 = 1;
/// `VFIO_DEVICE_FLAGS_RESET`, `VFIO_DEVICE_FLAGS_PCI`.
pub(crate) const DEVICE_RESET: u32 = 1;
pub(crate) const DEVICE_PCI: u32 = 1 << 1;
/// `VFIO_REGION_INFO_FLAG_MMAP`.
pub(crate) const REGION_MMAP: u32 = 1 << 2;
/// `VFIO_IRQ_INFO_EVENTFD`.
pub(crate) const IRQ_EVENTFD: u32 = 1;
/// `VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE`.
const DMA_READ_WRITE: u32 = 3;
/// `VFIO_IRQ_SET_DATA_NONE`, `_DATA_EVENTFD`, `_ACTION_TRIGGER`.
const IRQ_SET_NONE: u32 = 1;
const IRQ_SET_EVENTFD: u32 = 1 << 2;
const IRQ_SET_TRIGGER: u32 = 1 << 5;
/// Bytes of the IOMMU's answer with its capabilities; a machine has a handful of address ranges.
const IOMMU_INFO_BYTES: usize = 4096;
/// Vectors that one call can set.
pub(crate) const VECTORS_MAX: usize = 64;

/// Regions and interrupts of a PCI function (`VFIO_PCI_*_INDEX`).
pub(crate) const REGION_BAR0: u32 = 0;
pub(crate) const REGION_CONFIG: u32 = 7;
/// MSI, MSI-X, error and request-to-release.
pub(crate) const IRQ_MSI: u32 = 1;
pub(crate) const IRQ_MSIX: u32 = 2;
pub(crate) const IRQ_ERROR: u32 = 3;
pub(crate) const IRQ_REQUEST: u32 = 4;

/// `_IO(';', 100 + n)`: every call of VFIO is written so, whatever its argument.
const fn number(n: u8) -> Opcode {
    opcode::none(b';', 100 + n)
}

/// A call with a pointer or a number as its argument, which answers a number.
///
/// # Safety
/// `fd` is a descriptor of VFIO, and `argument` what `linux/vfio.h` says of call `n` on it: a number, or a pointer to
/// memory that the kernel may read and write to the length that its `argsz` names.
unsafe fn make(fd: BorrowedFd<'_>, n: u8, argument: *mut c_void) -> Result<c_int, Errno> {
    // SAFETY: the caller's promise.
    unsafe { nvmed_sys::ioctl(fd, number(n), argument) }
}

/// A call with a number.
fn with_number(fd: BorrowedFd<'_>, n: u8, value: usize) -> Result<c_int, Errno> {
    // SAFETY: calls made by way of this function take a number, which the kernel does not follow.
    unsafe { make(fd, n, value as *mut c_void) }
}

/// A call with a structure whose first word is its length.
fn with<T: IntoBytes + FromBytes>(fd: BorrowedFd<'_>, n: u8, value: &mut T) -> Result<c_int, Errno> {
    let bytes = value.as_mut_bytes();
    // The kernel reads and writes as far as this says.
    assert_eq!(bytes[..4], (bytes.len() as u32).to_ne_bytes());
    // SAFETY: `value` is exclusively ours for the call, plain words without padding (its traits say so), and as
    // long as its first word says, past which the kernel neither reads nor writes.
    unsafe { make(fd, n, bytes.as_mut_ptr().cast()) }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $bytes:literal { $($field:ident: $kind:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { argsz: u32, $(pub(crate) $field: $kind),* }
        const _: () = assert!(size_of::<$name>() == $bytes);
        impl $name {
            fn sized() -> Self {
                Self { argsz: $bytes, ..Self::new_zeroed() }
            }
        }
    };
}

words!(/// `struct vfio_group_status`.
    GroupStatus, 8 { flags: u32 });
words!(/// `struct vfio_device_info`.
    DeviceInfo, 24 { flags: u32, regions: u32, irqs: u32, cap_offset: u32, reserved: u32 });
words!(/// `struct vfio_region_info`.
    RegionInfo, 32 { flags: u32, index: u32, cap_offset: u32, size: u64, offset: u64 });
words!(/// `struct vfio_irq_info`.
    IrqInfo, 16 { flags: u32, index: u32, count: u32 });
words!(/// `struct vfio_irq_set` with its data, of which `argsz` tells how much there is.
    IrqSet, 276 { flags: u32, index: u32, start: u32, count: u32, fds: [RawFd; VECTORS_MAX] });
words!(/// `struct vfio_iommu_type1_dma_map`.
    DmaMap, 32 { flags: u32, vaddr: u64, iova: u64, size: u64 });
words!(/// `struct vfio_iommu_type1_dma_unmap`.
    DmaUnmap, 24 { flags: u32, iova: u64, size: u64 });

/// `VFIO_GET_API_VERSION`.
pub(crate) fn api_version(container: BorrowedFd<'_>) -> Result<c_int, Errno> {
    with_number(container, 0, 0)
}

/// `VFIO_CHECK_EXTENSION`.
pub(crate) fn has_extension(container: BorrowedFd<'_>, extension: u32) -> Result<bool, Errno> {
    with_number(container, 1, extension as usize).map(|answer| answer > 0)
}

/// `VFIO_SET_IOMMU`.
pub(crate) fn set_iommu(container: BorrowedFd<'_>, model: u32) -> Result<(), Errno> {
    with_number(container, 2, model as usize).map(|_| ())
}

/// `VFIO_GROUP_GET_STATUS`: whether every function of the group is in user space's hands.
pub(crate) fn is_viable(group: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut status = GroupStatus::sized();
    with(group, 3, &mut status)?;
    Ok(status.flags & GROUP_VIABLE != 0)
}

/// `VFIO_GROUP_SET_CONTAINER`.
pub(crate) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut number = container.as_raw_fd();
    // SAFETY: the argument is a pointer to one `int`, which lives on this stack and is only read.
    unsafe { make(group, 4, (&raw mut number).cast()) }.map(|_| ())
}

/// `VFIO_GROUP_GET_DEVICE_FD`.
pub(crate) fn device(group: BorrowedFd<'_>, address: &CStr) -> Result<OwnedFd, Errno> {
    // SAFETY: the argument is a string with its end, which is only read.
    let number = unsafe { make(group, 6, address.as_ptr().cast_mut().cast()) }?;
    // SAFETY: the kernel just made this descriptor for us; nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// `VFIO_DEVICE_GET_INFO`.
pub(crate) fn device_info(device: BorrowedFd<'_>) -> Result<DeviceInfo, Errno> {
    let mut info = DeviceInfo::sized();
    with(device, 7, &mut info)?;
    Ok(info)
}

/// `VFIO_DEVICE_GET_REGION_INFO`.
pub(crate) fn region(device: BorrowedFd<'_>, index: u32) -> Result<RegionInfo, Errno> {
    let mut info = RegionInfo { index, ..RegionInfo::sized() };
    with(device, 8, &mut info)?;
    Ok(info)
}

/// `VFIO_DEVICE_GET_IRQ_INFO`.
pub(crate) fn irq(device: BorrowedFd<'_>, index: u32) -> Result<IrqInfo, Errno> {
    let mut info = IrqInfo { index, ..IrqInfo::sized() };
    with(device, 9, &mut info)?;
    Ok(info)
}

/// `VFIO_DEVICE_SET_IRQS`: from now on each of the first vectors of `index` writes to its eventfd.
pub(crate) fn set_irqs(device: BorrowedFd<'_>, index: u32, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let count = fds.len().min(VECTORS_MAX);
    let mut set = IrqSet::sized();
    (set.flags, set.index, set.count) = (IRQ_SET_EVENTFD | IRQ_SET_TRIGGER, index, count as u32);
    for (slot, fd) in set.fds.iter_mut().zip(fds) {
        *slot = fd.as_raw_fd();
    }
    with(device, 10, &mut set).map(|_| ())
}

/// `VFIO_DEVICE_SET_IRQS` with nothing: ends the interrupts of `index`.
pub(crate) fn clear_irqs(device: BorrowedFd<'_>, index: u32) -> Result<(), Errno> {
    let mut set = IrqSet::sized();
    (set.flags, set.index) = (IRQ_SET_NONE | IRQ_SET_TRIGGER, index);
    with(device, 10, &mut set).map(|_| ())
}

/// `VFIO_DEVICE_RESET`.
pub(crate) fn reset(device: BorrowedFd<'_>) -> Result<(), Errno> {
    with_number(device, 11, 0).map(|_| ())
}

/// `VFIO_IOMMU_GET_INFO`: the structure and its capabilities, as they are.
pub(crate) fn iommu_info(container: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let mut info = [0u8; IOMMU_INFO_BYTES];
    info[..4].copy_from_slice(&(IOMMU_INFO_BYTES as u32).to_ne_bytes());
    with(container, 12, &mut info)?;
    Ok(info.to_vec())
}

/// `VFIO_IOMMU_MAP_DMA`: the device may read and write `size` bytes of this process at `iova`.
///
/// # Safety
/// From here until [`dma_unmap`] of the range the device may write to the memory at `vaddr`: it must stay mapped
/// for as long, and nobody may have a reference to it.
pub(crate) unsafe fn dma_map(
    container: BorrowedFd<'_>,
    vaddr: u64,
    iova: u64,
    size: u64,
) -> Result<(), Errno> {
    let mut map = DmaMap { flags: DMA_READ_WRITE, vaddr, iova, size, ..DmaMap::sized() };
    with(container, 13, &mut map).map(|_| ())
}

/// `VFIO_IOMMU_UNMAP_DMA`: ends that, and answers how many bytes it ended.
pub(crate) fn dma_unmap(container: BorrowedFd<'_>, iova: u64, size: u64) -> Result<u64, Errno> {
    let mut unmap = DmaUnmap { iova, size, ..DmaUnmap::sized() };
    with(container, 14, &mut unmap)?;
    Ok(unmap.size)
}

/// Opens one of VFIO's files.
pub(crate) fn open(path: &Path) -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}
