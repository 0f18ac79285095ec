//! The in-process address space: what an IOMMU is to a real device.

use crate::{DeviceAddress, MapError};
use nvmed_sys::Mapping;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Mappings that one space can hold over its life. A slot is not reused, so that a late access by a
/// device to memory that was unmapped faults instead of reaching its successor.
const SLOTS: usize = 256;
/// Bits of offset below the slot number: 1 TiB a mapping.
const OFFSET_BITS: u32 = 40;

/// A device access outside what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("DMA of {len} bytes at {:#x} is outside mapped memory", address.0)]
pub struct DmaFault {
    /// Where the access began.
    pub address: DeviceAddress,
    /// How long it was.
    pub len: usize,
}

struct Slot {
    memory: OnceLock<Arc<Mapping>>,
    live: AtomicBool,
}

/// Device addresses of one process, looked up without a lock.
///
/// An address is `(slot + 1) << 40 | offset`; address 0 is never mapped.
pub struct AddressSpace {
    slots: Box<[Slot]>,
    used: AtomicUsize,
}

impl Default for AddressSpace {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| Slot { memory: OnceLock::new(), live: AtomicBool::new(false) });
        Self { slots: slots.collect(), used: AtomicUsize::new(0) }
    }
}

impl AddressSpace {
    /// Gives `memory` an address.
    ///
    /// # Errors
    /// [`MapError::Full`] after 256 mappings.
    pub fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, MapError> {
        let index = self.used.fetch_add(1, Ordering::Relaxed);
        let Some(slot) = self.slots.get(index) else {
            self.used.store(SLOTS, Ordering::Relaxed);
            return Err(MapError::Full { limit: SLOTS });
        };
        slot.memory.set(memory).expect("each slot number is handed out once");
        slot.live.store(true, Ordering::Release);
        Ok(DeviceAddress((index as u64 + 1) << OFFSET_BITS))
    }

    /// Withdraws an address. Later accesses fault; the memory lives on until the space is dropped.
    pub fn unmap(&self, address: DeviceAddress) {
        let index = (address.0 >> OFFSET_BITS).wrapping_sub(1) as usize;
        if let Some(slot) = self.slots.get(index) {
            slot.live.store(false, Ordering::Release);
        }
    }

    /// The memory and offset behind `len` bytes at `address`.
    ///
    /// # Errors
    /// [`DmaFault`] when any byte is outside one mapping.
    #[inline]
    pub fn resolve(&self, address: DeviceAddress, len: usize) -> Result<(&Mapping, usize), DmaFault> {
        let fault = DmaFault { address, len };
        let index = (address.0 >> OFFSET_BITS).wrapping_sub(1) as usize;
        let offset = (address.0 & ((1 << OFFSET_BITS) - 1)) as usize;
        let slot = self.slots.get(index).filter(|slot| slot.live.load(Ordering::Acquire)).ok_or(fault)?;
        let memory = slot.memory.get().ok_or(fault)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= memory.len());
        if inside { Ok((memory, offset)) } else { Err(fault) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_sys::Pages;

    #[test]
    fn a_device_reaches_what_is_mapped_and_nothing_else() {
        let space = AddressSpace::default();
        let memory = Arc::new(Mapping::anonymous(8192, Pages::Base).unwrap());
        let address = space.map(Arc::clone(&memory)).unwrap();
        memory.write(4096, b"hello");
        let (found, offset) = space.resolve(address.plus(4096), 5).unwrap();
        let mut bytes = [0; 5];
        found.read(offset, &mut bytes);
        assert_eq!(&bytes, b"hello");
        assert!(space.resolve(address.plus(8190), 4).is_err());
        assert!(space.resolve(DeviceAddress(0), 1).is_err());
        assert!(space.resolve(DeviceAddress(u64::MAX), 1).is_err());
        space.unmap(address);
        assert!(space.resolve(address, 1).is_err());
    }

    #[test]
    fn a_full_space_says_so() {
        let space = AddressSpace::default();
        let memory = Arc::new(Mapping::anonymous(4096, Pages::Base).unwrap());
        for _ in 0..SLOTS {
            space.map(Arc::clone(&memory)).unwrap();
        }
        assert!(matches!(space.map(Arc::clone(&memory)), Err(MapError::Full { limit: SLOTS })));
        assert!(space.map(memory).is_err());
    }
}
