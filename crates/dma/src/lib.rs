//! Device-visible memory, and the transport over which a host driver reaches a controller.
//!
//! In: a [`Mapping`] to be shown to a device. Out: its [`DeviceAddress`], and on the device's side
//! checked copies from and to such addresses. Neighbours: `engine` drives a [`Transport`],
//! `vdev` implements one. Invariant: a device reaches mapped memory and nothing else.
#![forbid(unsafe_code)]

mod bell;
mod space;

pub use bell::Bell;
pub use nvmed_sys::monotonic_ns;
pub use nvmed_units::DeviceAddress;
pub use space::{AddressSpace, DmaFault, View};

use nvmed_sys::{Mapping, Pages};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Registers and DMA memory: all that a host driver needs of a controller's attachment.
///
/// Offsets are those of the controller's BAR0 (NVMe over PCIe 1.0, 3.1): properties below
/// `0x1000`, doorbells from there on.
pub trait Transport: Send + Sync {
    /// Reads a 32-bit property. A controller that is gone reads as all ones.
    fn read32(&self, offset: u32) -> u32;
    /// Writes a 32-bit property or a doorbell. Everything written to DMA memory before is visible
    /// to the controller when it sees this write (release; pairs with the controller's acquire).
    fn write32(&self, offset: u32, value: u32);
    /// Reads a 64-bit property.
    fn read64(&self, offset: u32) -> u64 {
        u64::from(self.read32(offset)) | u64::from(self.read32(offset + 4)) << 32
    }
    /// Writes a 64-bit property, low half first.
    fn write64(&self, offset: u32, value: u64) {
        self.write32(offset, value as u32);
        self.write32(offset + 4, (value >> 32) as u32);
    }
    /// Lets the controller reach `memory` until [`Transport::unmap`]; the answer is page-aligned.
    ///
    /// # Errors
    /// No room in the address space, or the IOMMU refused.
    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, MapError>;
    /// Memory of a kind that this transport can map; private memory of the process where any will do.
    ///
    /// # Errors
    /// What `mmap` answers.
    fn memory(&self, bytes: usize, pages: Pages) -> Result<Mapping, rustix::io::Errno> {
        Mapping::anonymous(bytes, pages)
    }
    /// Ends the controller's reach; commands that use the range must have completed.
    fn unmap(&self, address: DeviceAddress);
    /// Interrupt vectors that completion queues can be bound to, at least 1. Vector 0 is the admin queue's.
    fn vectors(&self) -> u16 {
        1
    }
    /// A number that changes after the controller has posted completions to a queue of `vector`, or, for
    /// vector 0, changed its status: what an interrupt is to a driver that would rather look first. A
    /// transport without interrupts, or whose controller works within the doorbell's write, answers a constant.
    fn events(&self, vector: u16) -> u32 {
        let _ = vector;
        0
    }
    /// Waits until [`Transport::events`] of `vector` is no longer `seen`, at most `timeout_us` microseconds.
    ///
    /// A driver reads `events`, looks for completions, then waits: what is posted in between ends the
    /// wait at once. All waiting of a driver happens here, so a transport of a test has its own time.
    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        let _ = (vector, seen);
        let span = rustix::time::Timespec { tv_sec: 0, tv_nsec: 1000 * i64::from(timeout_us.min(999_999)) };
        // A wait cut short by a signal only makes the driver look once more.
        let _ = rustix::thread::nanosleep(&span);
        Waited::Timeout
    }
    /// A descriptor that becomes readable when [`Transport::events`] of `vector` has changed, for callers
    /// with an event loop of their own; they read it, 8 bytes, to arm it again.
    fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        let _ = vector;
        None
    }
    /// The device's time in nanoseconds; never goes back. A simulated device has a time of its own.
    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }
}

/// Memory that a device cannot map: its bytes go to and fro as copies.
pub trait Distant: core::fmt::Debug + Send + Sync {
    /// Copies `len` bytes at device address `address` to `offset` of `to`.
    ///
    /// # Errors
    /// [`DmaFault`] when not all of them can be had.
    fn fetch(&self, address: DeviceAddress, to: &Mapping, offset: usize, len: usize) -> Result<(), DmaFault>;
    /// Copies `len` bytes at `offset` of `from` to device address `address`.
    ///
    /// # Errors
    /// [`DmaFault`] when not all of them arrive.
    fn send(&self, address: DeviceAddress, from: &Mapping, offset: usize, len: usize)
    -> Result<(), DmaFault>;
}

/// What ended a [`Transport::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Something was posted, or may have been.
    Event,
    /// The time passed.
    Timeout,
}

/// Why memory could not be shown to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// Every slot of the address space is taken.
    #[error("all {limit} DMA mappings are in use; unmap some, or map fewer and larger ranges")]
    Full {
        /// The number of slots.
        limit: usize,
    },
    /// A range is larger than an address has bits for.
    #[error("a DMA mapping of {len} bytes is too large; map at most {limit} bytes at once")]
    TooLarge {
        /// Its length.
        len: u64,
        /// The largest.
        limit: u64,
    },
    /// The address that was asked for is taken, or the range ends past the last address.
    #[error(
        "{len} bytes at device address {:#x} overlap a mapping or the end of the addresses; unmap first",
        address.0
    )]
    Overlap {
        /// Where it was to begin.
        address: DeviceAddress,
        /// How long it was.
        len: u64,
    },
    /// A range to unmap holds only a part of a mapping.
    #[error("unmapping {len} bytes at device address {:#x} would cut a mapping; name whole mappings", address.0)]
    Cut {
        /// Where the range began.
        address: DeviceAddress,
        /// How long it was.
        len: u64,
    },
    /// The device is in another process, and the memory is of a kind that cannot be given to one.
    #[error(
        "{len} bytes of memory cannot be shared with the process that has the device: {errno}; take memory from \
         the transport"
    )]
    NotShareable {
        /// Length of the range.
        len: usize,
        /// The host's errno.
        errno: rustix::io::Errno,
    },
    /// The process may not lock so much memory.
    #[error(
        "mapping {len} bytes for DMA locks them in memory, and this process may lock {limit} bytes in all; raise the \
         limit (`ulimit -l unlimited`, LimitMEMLOCK= of a service), or use less cache and fewer queues"
    )]
    Locked {
        /// Length of the range.
        len: usize,
        /// `RLIMIT_MEMLOCK`, bytes.
        limit: u64,
    },
    /// The host refused.
    #[error("the IOMMU refused to map {len} bytes: {errno}")]
    Refused {
        /// Length of the range.
        len: usize,
        /// The host's errno.
        errno: rustix::io::Errno,
    },
}
