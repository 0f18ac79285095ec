//! The memory of a mount, which may outlive its process.
//!
//! `header 4 KiB | log not yet on the device 4 MiB | slots of sizes 512 KiB | cache table | frames`, the
//! frames on a 2 MiB boundary so that huge pages fit. Zeroed memory is empty.

use core::sync::atomic::Ordering;
use nvmed_kv::PendingMemory;
use nvmed_sys::Mapping;
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_units::{BLOCK_BYTES, Ino};

/// Bytes for batches that are applied and not yet in the log: some thousand operations.
const PENDING_BYTES: usize = 4 << 20;
const PENDING_OFFSET: usize = BLOCK_BYTES;
const SLOTS_OFFSET: usize = PENDING_OFFSET + PENDING_BYTES;
/// Files whose size is newer than their record, at once; beyond, a write goes to the device.
pub(crate) const SLOTS: usize = 16_384;
const SLOT_BYTES: usize = 32;
const TABLE_OFFSET: usize = SLOTS_OFFSET + SLOTS * SLOT_BYTES;
const FRAMES_ALIGN: usize = 2 << 20;
/// Fewest frames: a write of a few pages and the readahead beside it have room.
const FRAMES_MIN: u64 = 16;

/// Word of the header: slots from here on were never used.
const AT_SLOTS_USED: usize = 0;

/// Where things lie in a mount's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLayout {
    frames: u32,
}

/// Memory of a mount.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The bytes, zeroed or an earlier mount's; at least [`MemoryLayout::total_bytes`].
    pub mapping: Arc<Mapping>,
    /// What lies where.
    pub layout: MemoryLayout,
}

impl MemoryLayout {
    /// For a cache of `cache_bytes` bytes, at least 64 KiB and at most 1 TiB.
    #[must_use]
    pub fn new(cache_bytes: u64) -> Self {
        let most = u64::from(nvmed_cache::FRAMES_MAX);
        Self { frames: (cache_bytes / BLOCK_BYTES as u64).clamp(FRAMES_MIN, most) as u32 }
    }

    /// Frames of the cache.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Bytes of the whole.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        self.frames_offset() + self.frames as usize * BLOCK_BYTES
    }

    fn frames_offset(&self) -> usize {
        (TABLE_OFFSET + nvmed_cache::Layout::table_bytes(self.frames)).next_multiple_of(FRAMES_ALIGN)
    }

    /// The cache's part.
    pub(crate) fn cache(&self) -> nvmed_cache::Layout {
        nvmed_cache::Layout {
            table_offset: TABLE_OFFSET,
            frames_offset: self.frames_offset(),
            frames: self.frames,
        }
    }
}

impl Memory {
    /// The store's part.
    pub(crate) fn pending(&self) -> PendingMemory {
        PendingMemory { memory: Arc::clone(&self.mapping), offset: PENDING_OFFSET, len: PENDING_BYTES }
    }

    /// The sizes that a dead process left: completed calls had made them, no record has them yet.
    pub(crate) fn sizes_left(&self) -> impl Iterator<Item = SizeLeft> + '_ {
        let used = self.mapping.u32(AT_SLOTS_USED).load(Ordering::Acquire) as usize;
        (0..used.min(SLOTS)).filter_map(|slot| {
            let at = SLOTS_OFFSET + slot * SLOT_BYTES;
            // Barrier S2, pairs with S1 in `Slots::take`.
            let ino = self.mapping.u64(at).load(Ordering::Acquire);
            let size = self.mapping.u64(at + 8).load(Ordering::Relaxed);
            let mtime_ns = self.mapping.u64(at + 16).load(Ordering::Relaxed).cast_signed();
            let word = self.mapping.u64(at + 24).load(Ordering::Relaxed);
            // The upper bit went when it was noted; it is that of a sign.
            let shift = (word & 1 == 1).then_some((word.cast_signed() >> 1).cast_unsigned());
            (ino != 0).then_some(SizeLeft { ino: Ino(ino), size, mtime_ns, shift })
        })
    }
}

/// A size that outlived its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeLeft {
    pub(crate) ino: Ino,
    pub(crate) size: u64,
    pub(crate) mtime_ns: i64,
    /// How far the numbers of its blocks are ahead of those of its pages, from the recorded size on; none where its
    /// bytes are elsewhere.
    pub(crate) shift: Option<u64>,
}

/// Slots that files keep for their next size, those with lower numbers: the others are there for whoever needs one.
const KEPT_SLOTS: u32 = SLOTS as u32 / 2;

/// A file's slot, if it has one: some keep it when their records tell the size, since they will soon need it again.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    number: Option<u32>,
    /// What it says counts.
    tells: bool,
}

impl Slot {
    /// Whether it says a size.
    pub(crate) fn tells(&self) -> bool {
        self.tells
    }
}

/// The slots of the mount's own memory.
pub(crate) struct Slots {
    memory: Arc<Mapping>,
    free: Mutex<Free>,
}

struct Free {
    returned: Vec<u32>,
    used: u32,
}

impl Slots {
    /// Empties the slots of an earlier life.
    pub(crate) fn new(memory: &Memory) -> Self {
        let mapping = Arc::clone(&memory.mapping);
        let used = mapping.u32(AT_SLOTS_USED).load(Ordering::Acquire) as usize;
        mapping.fill(SLOTS_OFFSET, used.min(SLOTS) * SLOT_BYTES, 0);
        mapping.u32(AT_SLOTS_USED).store(0, Ordering::Release);
        Self { memory: mapping, free: Mutex::new(Free { returned: Vec::new(), used: 0 }) }
    }

    /// Has a file's slot say that `ino` has `size` bytes; false when it has none and all are taken.
    #[inline]
    pub(crate) fn tell(&self, of: &mut Slot, ino: Ino, size: u64, mtime_ns: i64, shift: Option<u64>) -> bool {
        match of.number {
            Some(slot) => {
                self.set(slot, size, mtime_ns, shift);
                if !of.tells {
                    self.name(slot, ino);
                }
            }
            None => of.number = self.take(ino, size, mtime_ns, shift),
        }
        of.tells = of.number.is_some();
        of.tells
    }

    /// A file's slot says nothing any more: the record does. The file may `keep` it for its next size.
    #[inline]
    pub(crate) fn hush(&self, of: &mut Slot, keep: bool) {
        let Some(slot) = of.number else { return };
        if core::mem::take(&mut of.tells) {
            self.clear(slot);
        }
        if !keep || slot >= KEPT_SLOTS {
            of.number = None;
            self.free.lock().returned.push(slot);
        }
    }

    /// A slot that says that `ino` has `size` bytes; none when all are taken.
    fn take(&self, ino: Ino, size: u64, mtime_ns: i64, shift: Option<u64>) -> Option<u32> {
        let mut free = self.free.lock();
        let slot = match free.returned.pop() {
            Some(slot) => slot,
            None if (free.used as usize) < SLOTS => {
                free.used += 1;
                self.memory.u32(AT_SLOTS_USED).store(free.used, Ordering::Release);
                free.used - 1
            }
            None => return None,
        };
        drop(free);
        self.set(slot, size, mtime_ns, shift);
        self.name(slot, ino);
        Some(slot)
    }

    fn name(&self, slot: u32, ino: Ino) {
        // Barrier S1, pairs with S2 in `Memory::sizes_left`: who sees the inode sees its size.
        self.memory.u64(self.at(slot)).store(ino.0, Ordering::Release);
    }

    /// Changes what a slot says.
    fn set(&self, slot: u32, size: u64, mtime_ns: i64, shift: Option<u64>) {
        // Before the size, which says that there are blocks where this leads.
        let word = shift.map_or(0, |shift| shift << 1 | 1);
        self.memory.u64(self.at(slot) + 24).store(word, Ordering::Relaxed);
        self.memory.u64(self.at(slot) + 16).store(mtime_ns.cast_unsigned(), Ordering::Relaxed);
        self.memory.u64(self.at(slot) + 8).store(size, Ordering::Release);
    }

    /// A slot says nothing any more.
    fn clear(&self, slot: u32) {
        let ino = self.memory.u64(self.at(slot)).swap(0, Ordering::AcqRel);
        assert!(ino != 0, "slot {slot} says nothing, and is to say no more");
    }

    fn at(&self, slot: u32) -> usize {
        assert!((slot as usize) < SLOTS, "slot {slot} of {SLOTS}");
        SLOTS_OFFSET + slot as usize * SLOT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_sys::Pages;

    fn memory() -> Memory {
        let layout = MemoryLayout::new(1 << 20);
        let mapping = Mapping::anonymous(layout.total_bytes(), Pages::Base).unwrap();
        Memory { mapping: Arc::new(mapping), layout }
    }

    #[test]
    fn the_parts_do_not_overlap() {
        let layout = MemoryLayout::new(1 << 20);
        let cache = layout.cache();
        assert_eq!(layout.frames(), 256);
        assert!(cache.frames_offset >= cache.table_offset + nvmed_cache::Layout::table_bytes(256));
        assert_eq!(layout.total_bytes(), cache.frames_offset + (1 << 20));
    }

    /// A file's slot that says a size.
    fn told(slots: &Slots, ino: u64, size: u64, mtime_ns: i64, shift: Option<u64>) -> Slot {
        let mut slot = Slot::default();
        assert!(slots.tell(&mut slot, Ino(ino), size, mtime_ns, shift) && slot.tells());
        slot
    }

    #[test]
    fn sizes_outlive_the_slots_until_they_are_hushed() {
        let memory = memory();
        let slots = Slots::new(&memory);
        let mut one = told(&slots, 7, 100, -1, None);
        let two = told(&slots, 8, 200, 5, Some(u64::MAX - 6));
        assert!(slots.tell(&mut one, Ino(7), 300, 6, Some(9)));
        drop(slots);
        let left: Vec<_> =
            memory.sizes_left().map(|left| (left.ino.0, left.size, left.mtime_ns, left.shift)).collect();
        assert_eq!(left, [(7, 300, 6, Some(9)), (8, 200, 5, Some(u64::MAX - 6))]);
        let slots = Slots::new(&memory);
        assert_eq!(memory.sizes_left().count(), 0, "a new life begins empty");
        let mut again = told(&slots, 9, 1, 1, None);
        assert_eq!((again.number, two.number), (Some(0), Some(1)));
        slots.hush(&mut again, false);
        assert_eq!((memory.sizes_left().count(), again.number), (0, None));
    }

    #[test]
    fn a_slot_that_is_kept_says_nothing_until_it_is_told_again() {
        let memory = memory();
        let slots = Slots::new(&memory);
        let mut slot = told(&slots, 7, 100, -1, None);
        slots.hush(&mut slot, true);
        assert!(!slot.tells() && slot.number == Some(0) && memory.sizes_left().count() == 0);
        let other = told(&slots, 8, 5, 5, None);
        assert_eq!(other.number, Some(1), "it is not anybody's");
        assert!(slots.tell(&mut slot, Ino(7), 300, 6, Some(9)));
        let left: Vec<_> = memory.sizes_left().map(|left| (left.ino.0, left.size, left.shift)).collect();
        assert_eq!(left, [(7, 300, Some(9)), (8, 5, None)]);
        slots.hush(&mut slot, true);
        slots.hush(&mut slot, false);
        assert_eq!(told(&slots, 9, 1, 1, None).number, Some(0), "it was given back");
    }

    #[test]
    fn half_of_the_slots_are_kept_by_nobody() {
        let memory = memory();
        let slots = Slots::new(&memory);
        let mut all: Vec<_> = (0..SLOTS as u64).map(|ino| told(&slots, ino + 1, 0, 0, None)).collect();
        all.iter_mut().for_each(|slot| slots.hush(slot, true));
        assert_eq!(all.iter().filter(|slot| slot.number.is_some()).count(), SLOTS / 2);
    }

    #[test]
    #[should_panic(expected = "slot 0 says nothing, and is to say no more")]
    fn a_slot_that_says_nothing_is_not_cleared() {
        let slots = Slots::new(&memory());
        let mut slot = told(&slots, 7, 100, -1, None);
        slots.clear(0);
        slots.hush(&mut slot, false);
    }

    #[test]
    #[should_panic(expected = "slot 16384 of 16384")]
    fn a_slot_lies_in_the_memory() {
        Slots::new(&memory()).set(SLOTS as u32, 0, 0, None);
    }

    #[test]
    fn there_is_an_end_of_slots() {
        let memory = memory();
        let slots = Slots::new(&memory);
        assert_eq!(
            (0..SLOTS + 5).filter_map(|ino| slots.take(Ino(ino as u64 + 1), 0, 0, None)).count(),
            SLOTS
        );
    }
}
