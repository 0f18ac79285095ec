//! The address space of a device in this process: what an IOMMU is to a real one.

use crate::{DeviceAddress, Distant, MapError};
use nvmed_sys::Mapping;
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Mappings that one space holds at once at addresses of its own choice.
const SLOTS: usize = 256;
/// Mappings that one space holds at once at addresses of the host's choice: a guest's memory comes in tens of
/// ranges, a pool of huge pages in hundreds. Each change copies the table.
const RANGES: usize = 4096;
/// Bits of offset below the slot number: 1 TiB a mapping.
const OFFSET_BITS: u32 = 40;
/// Bits of slot number (plus one), below the slot's generation.
const SLOT_BITS: u32 = 9;
/// Generations of a slot, after which its addresses come again. Slots are reused in the order in which they
/// were left, so a late access must be late by at least this many mappings.
const GENERATIONS: u16 = 1 << (u64::BITS - OFFSET_BITS - SLOT_BITS);

/// A device access outside what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("DMA of {len} bytes at {:#x} is outside mapped memory", address.0)]
pub struct DmaFault {
    /// Where the access began.
    pub address: DeviceAddress,
    /// How long it was.
    pub len: usize,
}

#[derive(Clone, Debug)]
struct Slot {
    generation: u16,
    memory: Option<Arc<Mapping>>,
}

/// Memory at an address of the host's choice.
#[derive(Clone, Debug)]
struct Range {
    begin: u64,
    memory: Arc<Mapping>,
    /// Where the bytes are, if `memory` is only the device's copy of them.
    distant: Option<Arc<dyn Distant>>,
}

impl Range {
    /// The last byte's address; a mapping has at least one byte, and its end was checked when it was made.
    fn last(&self) -> u64 {
        self.begin + (self.memory.len() as u64 - 1)
    }
}

/// What is mapped, as of one moment.
#[derive(Clone, Debug, Default)]
struct Table {
    slots: Vec<Slot>,
    /// By address, without overlap.
    ranges: Vec<Range>,
    /// Whether any range is distant.
    distant: bool,
}

impl Table {
    #[inline(always)]
    fn resolve(&self, address: DeviceAddress, len: usize) -> Option<(&Arc<Mapping>, usize)> {
        let index = ((address.0 >> OFFSET_BITS) & ((1 << SLOT_BITS) - 1)).wrapping_sub(1) as usize;
        let generation = (address.0 >> (OFFSET_BITS + SLOT_BITS)) as u16;
        if let Some(Slot { generation: current, memory: Some(memory) }) = self.slots.get(index)
            && *current == generation
        {
            let offset = (address.0 & ((1 << OFFSET_BITS) - 1)) as usize;
            return inside(memory, offset, len).then_some((memory, offset));
        }
        self.resolve_range(address.0, len)
    }

    /// Looks among foreign addresses: out of the way of the fast path above.
    #[inline(never)]
    fn resolve_range(&self, address: u64, len: usize) -> Option<(&Arc<Mapping>, usize)> {
        let above = self.ranges.partition_point(|range| range.begin <= address);
        let range = self.ranges.get(above.checked_sub(1)?)?;
        let offset = usize::try_from(address - range.begin).ok()?;
        inside(&range.memory, offset, len).then_some((&range.memory, offset))
    }

    /// The distant memory of which `memory` is the copy, and the address of its byte `offset`.
    #[cold]
    fn distant(&self, memory: &Mapping, offset: usize) -> Option<(&dyn Distant, DeviceAddress)> {
        let range = self.ranges.iter().find(|range| core::ptr::eq(&*range.memory, memory))?;
        range.distant.as_deref().map(|distant| (distant, DeviceAddress(range.begin).plus(offset as u64)))
    }

    /// Addresses of a slot's mapping: first and last.
    fn slot_span(&self, index: usize) -> Option<(u64, u64)> {
        let slot = self.slots.get(index)?;
        let begin = slot_address(index, slot.generation).0;
        slot.memory.as_ref().map(|memory| (begin, begin + (memory.len() as u64 - 1)))
    }

    /// Whether anything is mapped between `first` and `last`.
    fn overlaps(&self, first: u64, last: u64) -> bool {
        let meets = |(begin, end): (u64, u64)| begin <= last && first <= end;
        let above = self.ranges.partition_point(|range| range.begin <= last);
        let below = above.checked_sub(1).map(|index| &self.ranges[index]);
        below.is_some_and(|range| first <= range.last())
            || (0..self.slots.len()).filter_map(|index| self.slot_span(index)).any(meets)
    }
}

#[inline]
fn inside(memory: &Mapping, offset: usize, len: usize) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= memory.len())
}

fn slot_address(index: usize, generation: u16) -> DeviceAddress {
    DeviceAddress(u64::from(generation) << (OFFSET_BITS + SLOT_BITS) | (index as u64 + 1) << OFFSET_BITS)
}

#[derive(Debug, Default)]
struct State {
    table: Arc<Table>,
    /// Slots that were left, oldest first.
    free: VecDeque<usize>,
}

/// What a device reaches, and where.
///
/// The address of a mapping made by [`AddressSpace::map`] is `generation << 49 | (slot + 1) << 40 | offset`:
/// a late access to memory that was unmapped faults instead of reaching its successor. Foreign addresses, those
/// of a guest or of another process, are given by [`AddressSpace::map_at`]. A device looks addresses up in a
/// [`View`], without a lock.
#[derive(Debug, Default)]
pub struct AddressSpace {
    state: Mutex<State>,
    /// Changes with the table. Starts at 0, as a default view does: both are empty.
    version: AtomicU64,
}

/// A device's look at an [`AddressSpace`]: what was mapped when it was last refreshed. It keeps that memory.
#[derive(Clone, Debug, Default)]
pub struct View {
    table: Arc<Table>,
    version: u64,
}

impl View {
    /// Sees what is mapped now; whether that has changed. One load when it has not.
    #[inline]
    pub fn refresh(&mut self, space: &AddressSpace) -> bool {
        // Acquire: pairs with the release in `changed`.
        if self.version == space.version.load(Ordering::Acquire) {
            return false;
        }
        *self = space.view();
        true
    }

    /// The memory and offset behind `len` bytes at `address`.
    ///
    /// # Errors
    /// [`DmaFault`] when any byte is outside one mapping.
    #[inline]
    pub fn resolve(&self, address: DeviceAddress, len: usize) -> Result<(&Mapping, usize), DmaFault> {
        match self.table.resolve(address, len) {
            Some((memory, offset)) => Ok((memory, offset)),
            None => Err(DmaFault { address, len }),
        }
    }

    /// Before a device reads `len` bytes at `offset` of memory that this view gave: brings them, where the memory is a
    /// copy of what lies elsewhere.
    ///
    /// # Errors
    /// [`DmaFault`] when they do not come.
    #[inline]
    pub fn fetch(&self, memory: &Mapping, offset: usize, len: usize) -> Result<(), DmaFault> {
        if !self.table.distant {
            return Ok(());
        }
        let Some((distant, address)) = self.table.distant(memory, offset) else { return Ok(()) };
        distant.fetch(address, memory, offset, len)
    }

    /// After a device has written `len` bytes at `offset` of memory that this view gave: sends them to where they
    /// belong, where the memory is a copy.
    ///
    /// # Errors
    /// [`DmaFault`] when they do not arrive.
    #[inline]
    pub fn send(&self, memory: &Mapping, offset: usize, len: usize) -> Result<(), DmaFault> {
        if !self.table.distant {
            return Ok(());
        }
        let Some((distant, address)) = self.table.distant(memory, offset) else { return Ok(()) };
        distant.send(address, memory, offset, len)
    }

    /// Whether memory that this view gave is only the device's copy of what lies elsewhere.
    #[must_use]
    pub fn is_copy(&self, memory: &Mapping) -> bool {
        self.table.distant && self.table.distant(memory, 0).is_some()
    }

    /// As [`View::resolve`], with a share of the memory, which lives as long as it is held.
    ///
    /// # Errors
    /// [`DmaFault`] when any byte is outside one mapping.
    pub fn hold(&self, address: DeviceAddress, len: usize) -> Result<(Arc<Mapping>, usize), DmaFault> {
        let found = self.table.resolve(address, len).ok_or(DmaFault { address, len })?;
        Ok((Arc::clone(found.0), found.1))
    }

    /// Whether all of `len` bytes at `address` are mapped, in one range or in several that follow each other.
    #[must_use]
    pub fn covers(&self, address: DeviceAddress, len: usize) -> bool {
        let (mut at, mut left) = (address.0, len);
        while left > 0 {
            let Ok((memory, offset)) = self.resolve(DeviceAddress(at), 1) else { return false };
            let here = (memory.len() - offset).min(left);
            left -= here;
            match at.checked_add(here as u64) {
                Some(next) => at = next,
                None => return left == 0,
            }
        }
        true
    }
}

impl AddressSpace {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change below is one statement on the table: it is valid also after a panic.
        self.state.lock()
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Gives `memory` an address.
    ///
    /// # Errors
    /// [`MapError::Full`] while 256 mappings are there, [`MapError::TooLarge`] above 1 TiB.
    pub fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, MapError> {
        let len = memory.len() as u64;
        if len > 1 << OFFSET_BITS {
            return Err(MapError::TooLarge { len, limit: 1 << OFFSET_BITS });
        }
        let mut state = self.state();
        let State { table, free } = &mut *state;
        let room = |index: usize, generation: u16| {
            let begin = slot_address(index, generation).0;
            !table.overlaps(begin, begin + (len - 1))
        };
        let left = (0..free.len()).find(|&at| room(free[at], table.slots[free[at]].generation));
        let index = match left.and_then(|at| free.remove(at)) {
            Some(index) => index,
            None => {
                let fresh = (table.slots.len()..SLOTS).find(|&index| room(index, 0));
                let index = fresh.ok_or(MapError::Full { limit: SLOTS })?;
                let table = Arc::make_mut(table);
                while table.slots.len() <= index {
                    free.extend((table.slots.len() < index).then_some(table.slots.len()));
                    table.slots.push(Slot { generation: 0, memory: None });
                }
                index
            }
        };
        let slot = &mut Arc::make_mut(table).slots[index];
        slot.memory = Some(memory);
        let address = slot_address(index, slot.generation);
        self.changed();
        Ok(address)
    }

    /// Withdraws an address that [`AddressSpace::map`] gave; any other changes nothing. Views that are
    /// refreshed from here on fault; the memory lives as long as a view has it.
    pub fn unmap(&self, address: DeviceAddress) {
        let mut state = self.state();
        let State { table, free } = &mut *state;
        let index = ((address.0 >> OFFSET_BITS) & ((1 << SLOT_BITS) - 1)).wrapping_sub(1) as usize;
        let span = table.slot_span(index);
        if !span.is_some_and(|(begin, last)| (begin..=last).contains(&address.0)) {
            return;
        }
        let slot = &mut Arc::make_mut(table).slots[index];
        slot.memory = None;
        slot.generation = (slot.generation + 1) % GENERATIONS;
        free.push_back(index);
        self.changed();
    }

    /// Lets `memory` be reached at `address`.
    ///
    /// # Errors
    /// [`MapError::Overlap`] when something is mapped there or the range wraps, [`MapError::Full`] when 4096
    /// such ranges are there.
    pub fn map_at(&self, address: DeviceAddress, memory: Arc<Mapping>) -> Result<(), MapError> {
        self.insert(address, memory, None)
    }

    /// As [`AddressSpace::map_at`], of memory that lies elsewhere: `copy` is what the device works on.
    ///
    /// # Errors
    /// As [`AddressSpace::map_at`].
    pub fn map_distant(
        &self,
        address: DeviceAddress,
        copy: Arc<Mapping>,
        distant: Arc<dyn Distant>,
    ) -> Result<(), MapError> {
        self.insert(address, copy, Some(distant))
    }

    fn insert(
        &self,
        address: DeviceAddress,
        memory: Arc<Mapping>,
        distant: Option<Arc<dyn Distant>>,
    ) -> Result<(), MapError> {
        let mut state = self.state();
        let len = memory.len() as u64;
        let overlap = MapError::Overlap { address, len };
        let last = address.0.checked_add(len - 1).ok_or(overlap)?;
        if state.table.overlaps(address.0, last) {
            return Err(overlap);
        }
        if state.table.ranges.len() >= RANGES {
            return Err(MapError::Full { limit: RANGES });
        }
        let Table { ranges, distant: any, .. } = Arc::make_mut(&mut state.table);
        let at = ranges.partition_point(|range| range.begin < address.0);
        *any |= distant.is_some();
        ranges.insert(at, Range { begin: address.0, memory, distant });
        self.changed();
        Ok(())
    }

    /// Withdraws every range that [`AddressSpace::map_at`] made and that lies within `len` bytes from
    /// `address`; answers their bytes together.
    ///
    /// # Errors
    /// [`MapError::Cut`] when a range lies partly within: nothing is withdrawn.
    pub fn unmap_range(&self, address: DeviceAddress, len: u64) -> Result<u64, MapError> {
        if len == 0 {
            return Ok(0);
        }
        let mut state = self.state();
        let (first, last) = (address.0, address.0.saturating_add(len - 1));
        let ranges = &state.table.ranges;
        let from = ranges.partition_point(|range| range.last() < first);
        let to = ranges.partition_point(|range| range.begin <= last).max(from);
        if ranges[from..to].iter().any(|range| range.begin < first || range.last() > last) {
            return Err(MapError::Cut { address, len });
        }
        if from == to {
            return Ok(0);
        }
        let Table { ranges, distant, .. } = Arc::make_mut(&mut state.table);
        let bytes = ranges.drain(from..to).map(|range| range.memory.len() as u64).sum();
        *distant = ranges.iter().any(|range| range.distant.is_some());
        self.changed();
        Ok(bytes)
    }

    /// What is mapped now.
    #[must_use]
    pub fn view(&self) -> View {
        let state = self.state();
        // Under the lock the version is the table's.
        View { table: Arc::clone(&state.table), version: self.version.load(Ordering::Acquire) }
    }

    /// As [`View::resolve`], for one look.
    ///
    /// # Errors
    /// [`DmaFault`] when any byte is outside one mapping.
    pub fn resolve(&self, address: DeviceAddress, len: usize) -> Result<(Arc<Mapping>, usize), DmaFault> {
        self.view().hold(address, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_sys::Pages;

    fn memory(len: usize) -> Arc<Mapping> {
        Arc::new(Mapping::anonymous(len, Pages::Base).unwrap())
    }

    #[test]
    fn a_device_reaches_what_is_mapped_and_nothing_else() {
        let space = AddressSpace::default();
        let here = memory(8192);
        let address = space.map(Arc::clone(&here)).unwrap();
        here.write(4096, b"hello");
        let mut view = space.view();
        let (found, offset) = view.resolve(address.plus(4096), 5).unwrap();
        let mut bytes = [0; 5];
        found.read(offset, &mut bytes);
        assert_eq!(&bytes, b"hello");
        assert!(view.resolve(address.plus(8190), 4).is_err());
        assert!(view.resolve(DeviceAddress(0), 1).is_err());
        assert!(view.resolve(DeviceAddress(u64::MAX), 1).is_err());
        space.unmap(address);
        assert!(space.resolve(address, 1).is_err());
        view.refresh(&space);
        assert!(view.resolve(address, 1).is_err());
    }

    #[test]
    fn mappings_come_and_go_without_end_and_late_accesses_fault() {
        let space = AddressSpace::default();
        let mut view = space.view();
        let keep = space.map(memory(4096)).unwrap();
        let mut late = Vec::new();
        for _ in 0..3000 {
            let here = memory(4096);
            let address = space.map(Arc::clone(&here)).unwrap();
            view.refresh(&space);
            assert!(view.resolve(address, 4096).is_ok());
            space.unmap(address);
            view.refresh(&space);
            assert_eq!(Arc::strong_count(&here), 1, "nobody else keeps the memory");
            late.push(address);
        }
        let next = space.map(memory(4096)).unwrap();
        view.refresh(&space);
        assert!(view.resolve(keep, 4096).is_ok() && view.resolve(next, 4096).is_ok());
        assert!(late.iter().all(|&address| view.resolve(address, 1).is_err()), "each had its own address");
        space.unmap(late[0]);
        assert!(space.resolve(next, 1).is_ok(), "an address that is gone withdraws nothing");
    }

    #[test]
    fn a_full_space_says_so_and_has_room_again() {
        let space = AddressSpace::default();
        let here = memory(4096);
        let all: Vec<_> = (0..SLOTS).map(|_| space.map(Arc::clone(&here)).unwrap()).collect();
        assert!(matches!(space.map(Arc::clone(&here)), Err(MapError::Full { limit: SLOTS })));
        space.unmap(all[7]);
        assert!(space.map(Arc::clone(&here)).is_ok());
        assert!(space.map(here).is_err());
    }

    #[test]
    fn foreign_addresses_are_where_their_owner_wants_them() {
        let space = AddressSpace::default();
        let at = |address: u64, len: usize| space.map_at(DeviceAddress(address), memory(len));
        at(0, 8192).unwrap();
        at(0x4000, 4096).unwrap();
        at(0x2000, 8192).unwrap();
        at(u64::MAX - 4095, 4096).unwrap();
        for (address, len) in
            [(0x1000, 4096), (0x5000 - 4096, 8192), (u64::MAX - 8191, 8192), (u64::MAX, 4096)]
        {
            assert!(matches!(at(address, len), Err(MapError::Overlap { .. })), "{address:#x}");
        }
        let view = space.view();
        assert_eq!(view.resolve(DeviceAddress(0x3ff0), 16).unwrap().1, 0x1ff0);
        assert!(view.resolve(DeviceAddress(0x3ff0), 17).is_err(), "one mapping an access");
        assert!(view.covers(DeviceAddress(0x10), 0x4ff0) && !view.covers(DeviceAddress(0x10), 0x4ff1));
        assert!(view.covers(DeviceAddress(u64::MAX - 4095), 4096));
        assert!(view.resolve(DeviceAddress(u64::MAX), 2).is_err());
        assert!(matches!(space.unmap_range(DeviceAddress(0), 0x3000), Err(MapError::Cut { .. })));
        assert!(matches!(space.unmap_range(DeviceAddress(0x1800), 0x8000), Err(MapError::Cut { .. })));
        assert_eq!(space.unmap_range(DeviceAddress(0x2000), 0x8000), Ok(0x3000));
        assert_eq!(space.unmap_range(DeviceAddress(0x2000), u64::MAX), Ok(4096));
        assert!(
            space.resolve(DeviceAddress(0x2000), 1).is_err() && space.resolve(DeviceAddress(0), 1).is_ok()
        );
    }

    /// Memory elsewhere, at address 0.
    #[derive(Debug, Default)]
    struct Elsewhere(Mutex<Vec<u8>>);

    impl Distant for Elsewhere {
        fn fetch(&self, at: DeviceAddress, to: &Mapping, offset: usize, len: usize) -> Result<(), DmaFault> {
            let bytes = self.0.lock();
            let piece = bytes.get(at.0 as usize..at.0 as usize + len);
            to.write(offset, piece.ok_or(DmaFault { address: at, len })?);
            Ok(())
        }

        fn send(&self, at: DeviceAddress, from: &Mapping, offset: usize, len: usize) -> Result<(), DmaFault> {
            let mut bytes = self.0.lock();
            let piece = bytes.get_mut(at.0 as usize..at.0 as usize + len);
            from.read(offset, piece.ok_or(DmaFault { address: at, len })?);
            Ok(())
        }
    }

    #[test]
    fn what_lies_elsewhere_is_brought_and_sent_and_nothing_else_is() {
        let space = AddressSpace::default();
        let elsewhere = Arc::new(Elsewhere(Mutex::new(vec![7; 8192])));
        space.map_distant(DeviceAddress(4096), memory(8192), Arc::clone(&elsewhere) as _).unwrap();
        let here = memory(4096);
        let mine = space.map(Arc::clone(&here)).unwrap();
        let view = space.view();
        let (copy, at) = view.resolve(DeviceAddress(5000), 8).unwrap();
        view.fetch(copy, at, 8).unwrap();
        assert_eq!((copy.u8(at).load(Ordering::Relaxed), copy.u8(at + 8).load(Ordering::Relaxed)), (7, 0));
        copy.write(at, &[9; 8]);
        view.send(copy, at, 8).unwrap();
        assert_eq!(elsewhere.0.lock()[4999..5009], [7, 9, 9, 9, 9, 9, 9, 9, 9, 7]);
        let fault = DmaFault { address: DeviceAddress(8190), len: 4 };
        assert_eq!(view.fetch(copy, 8190 - 4096, 4), Err(fault), "it ends there");
        view.fetch(view.resolve(mine, 1).unwrap().0, 0, 1).unwrap();
        assert_eq!(space.unmap_range(DeviceAddress(4096), 8192), Ok(8192));
        assert!(!space.view().table.distant);
    }

    #[test]
    fn own_and_foreign_addresses_do_not_meet() {
        let space = AddressSpace::default();
        let first = space.map(memory(4096)).unwrap();
        assert!(matches!(space.map_at(first, memory(4096)), Err(MapError::Overlap { .. })));
        let second = slot_address(1, 0);
        space.map_at(second, memory(4096)).unwrap();
        let third = space.map(memory(4096)).unwrap();
        assert_ne!(third, second);
        assert!(space.resolve(third, 4096).is_ok() && space.resolve(second, 4096).is_ok());
        space.unmap(first);
        assert_ne!(space.map(memory(4096)), Ok(second));
    }
}
