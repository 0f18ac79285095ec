//! A device's registers, mapped into this process.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::sync::atomic::{Ordering, fence};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Registers of a device, as a PCI base address register shows them.
///
/// Each access is one volatile load or store of its width, in the order of the program. A write is a release:
/// what was written to memory before is there when the device sees it. A read is an acquire.
#[derive(Debug)]
pub struct Registers {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `base` is an address of a mapping that lives until `Drop`; every access is one volatile load or
// store of an aligned word, which the device serialises.
unsafe impl Send for Registers {}
// SAFETY: as for `Send`; no method hands out a reference.
unsafe impl Sync for Registers {}

impl Registers {
    /// `len` bytes from `offset` of a descriptor that shows a device's registers.
    ///
    /// # Errors
    /// What `mmap` answers.
    pub fn map(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint; the mapping touches no existing memory.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, rights, MapFlags::SHARED, fd, offset)? };
        let registers = Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, len };
        // A forked child that rang a doorbell would break the queue under its parent.
        // SAFETY: the range was mapped just above and is ours alone; the advice changes no bytes.
        unsafe { rustix::mm::madvise(base, len, rustix::mm::Advice::LinuxDontFork)? };
        Ok(registers)
    }

    /// Bytes of registers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no register.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn at(&self, offset: usize, width: usize) -> *mut u8 {
        let inside = offset.checked_add(width).is_some_and(|end| end <= self.len);
        assert!(inside && offset.is_multiple_of(width), "register at {offset:#x} of {:#x} bytes", self.len);
        // SAFETY: `offset + width <= self.len`, and one mapping is one allocation.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Reads the 32-bit register at `offset`.
    ///
    /// # Panics
    /// When it is outside, or not aligned.
    #[inline]
    #[must_use]
    pub fn read32(&self, offset: usize) -> u32 {
        let at = self.at(offset, 4).cast::<u32>();
        // SAFETY: in bounds and aligned by `at` (the base is page-aligned); the mapping lives as long as
        // `self`; every bit pattern is a u32; device registers are reached by volatile accesses only.
        let value = unsafe { ptr::read_volatile(at) };
        after_read();
        u32::from_le(value)
    }

    /// Writes the 32-bit register at `offset`.
    ///
    /// # Panics
    /// As [`Registers::read32`].
    #[inline]
    pub fn write32(&self, offset: usize, value: u32) {
        let at = self.at(offset, 4).cast::<u32>();
        before_write();
        // SAFETY: as for `read32`.
        unsafe { ptr::write_volatile(at, value.to_le()) }
    }

    /// Reads the 64-bit register at `offset`.
    ///
    /// # Panics
    /// As [`Registers::read32`].
    #[must_use]
    pub fn read64(&self, offset: usize) -> u64 {
        let at = self.at(offset, 8).cast::<u64>();
        // SAFETY: as for `read32`.
        let value = unsafe { ptr::read_volatile(at) };
        after_read();
        u64::from_le(value)
    }

    /// Writes the 64-bit register at `offset`.
    ///
    /// # Panics
    /// As [`Registers::read32`].
    pub fn write64(&self, offset: usize, value: u64) {
        let at = self.at(offset, 8).cast::<u64>();
        before_write();
        // SAFETY: as for `read32`.
        unsafe { ptr::write_volatile(at, value.to_le()) }
    }
}

/// Memory written before is visible to a device before the register write that follows: what Linux calls
/// `dma_wmb`. On x86-64 stores to ordinary memory pass in order before stores to registers.
#[inline]
fn before_write() {
    fence(Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier; it touches neither memory nor registers nor the stack.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Memory that a device wrote before it changed the register just read is visible from here on.
#[inline]
fn after_read() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as in `before_write`.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    fence(Ordering::Acquire);
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping made in `map`; nobody uses it after `self`.
        // Unmapping what was mapped fails only for wrong arguments.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn words_go_to_their_places_and_nowhere_else() {
        let file = rustix::fs::memfd_create("registers", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&file, 8192).expect("two pages");
        let registers = Registers::map(file.as_fd(), 4096, 4096).expect("a mapping");
        registers.write64(0x28, 0x1122_3344_5566_7788);
        registers.write32(0xffc, 7);
        assert_eq!((registers.read32(0x28), registers.read32(0x2c)), (0x5566_7788, 0x1122_3344));
        assert_eq!((registers.read64(0x28), registers.len()), (0x1122_3344_5566_7788, 4096));
        let mut bytes = [0; 4];
        rustix::io::pread(&file, &mut bytes, 8188).expect("the file's end");
        assert_eq!(bytes, [7, 0, 0, 0]);
        for offset in [4096, 0x2a, usize::MAX - 1] {
            assert!(std::panic::catch_unwind(|| registers.read32(offset)).is_err(), "{offset:#x}");
        }
    }
}
