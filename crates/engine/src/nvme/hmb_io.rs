//! Slots of HMB-I/O: an extension of our virtual drives (docs/spec/hmb.md, "HMB-I/O"), after Kim, Kim and Kim (Applied
//! Sciences 10, 4341, 2020), section 4. What the drive says is checked, and only what it has been lent is touched.

use super::admin::AdminTurn;
use super::host_memory::HostMemory;
use crate::{Cursor, Segment, UrgentPath};
use nvmed_nvme::{
    DriveIdentity, FeatureId, HmbIoControl, HmbIoMetadata, HmbIoSlots, HostMemoryPlace, IdentifyController,
};
use nvmed_sys::Mapping;
use nvmed_sys::sync::{Arc, RwLock};
use nvmed_units::{DeviceAddress, NamespaceId};
use std::collections::BTreeMap;
use zerocopy::{FromZeros, IntoBytes};

/// Pages of a slot that are asked for: the most, 128 KiB, so that almost every request that a program waits for is one
/// command; 64 slots are 8 MiB of what is lent.
const PAGES: u16 = HmbIoSlots::PAGES_MAX;

/// Some bytes of memory that the drive was lent.
struct Piece {
    memory: Arc<Mapping>,
    offset: usize,
}

/// The slots that a drive has granted.
pub(super) struct HmbIo {
    pub(super) granted: HmbIoSlots,
    /// Metadata and data, by slot.
    slots: Box<[(Piece, Piece)]>,
}

impl HmbIo {
    /// The namespace of its commands.
    pub(super) const NAMESPACE: NamespaceId = NamespaceId(1);

    /// Asks for `wanted` slots in memory that is lent, if the drive offers some. A drive that refuses, or says what
    /// cannot be, has none.
    pub(super) fn ask(
        admin: &mut AdminTurn<'_>,
        memory: &HostMemory,
        controller: &IdentifyController,
        wanted: u16,
    ) -> Option<Self> {
        let offered = DriveIdentity::of(&controller.vendor)?.offers_hmb_io()?;
        let asked = HmbIoSlots { slots: wanted.min(offered), pages: PAGES };
        let answer = admin.set_feature(FeatureId::HmbIo, asked.dword()).ok()?;
        let granted = HmbIoSlots::of(answer);
        let is_less = granted.slots <= asked.slots && granted.pages <= asked.pages;
        let ranges: Vec<_> = memory.ranges().collect();
        let found = if granted.is_sound() && is_less { Self::find(granted, &ranges) } else { None };
        if found.is_none() {
            // Nobody will use them.
            let _ = admin.set_feature(FeatureId::HmbIo, HmbIoSlots::default().dword());
        }
        found
    }

    /// Where the slots are, as the control block says at the beginning of the first range; `None` if it cannot be.
    fn find(granted: HmbIoSlots, ranges: &[&Arc<Mapping>]) -> Option<Self> {
        let mut block = HmbIoControl::new_zeroed();
        ranges
            .first()
            .filter(|range| range.len() >= size_of::<HmbIoControl>())?
            .read(0, block.as_mut_bytes());
        if !block.is_of(granted) {
            return None;
        }
        // The block's own page is nobody else's.
        let mut taken = vec![(0, 0, HmbIoSlots::PAGE_BYTES)];
        let mut piece = |place: HostMemoryPlace, bytes: u32, align: u32| {
            let memory = Arc::clone(ranges.get(place.segment as usize)?);
            let end = place.offset.checked_add(bytes)?;
            if end as usize > memory.len() || !place.offset.is_multiple_of(align) {
                return None;
            }
            taken.push((place.segment, place.offset, end));
            Some(Piece { memory, offset: place.offset as usize })
        };
        let all = &block.places[..granted.slots.into()];
        let slots: Option<Box<[_]>> = all
            .iter()
            .map(|places| {
                // The drive may see metadata as words.
                let metadata = piece(places.metadata, size_of::<HmbIoMetadata>() as u32, 8)?;
                Some((metadata, piece(places.data, granted.slot_bytes(), HmbIoSlots::PAGE_BYTES)?))
            })
            .collect();
        taken.sort_unstable();
        let are_apart = taken.windows(2).all(|two| two[0].0 != two[1].0 || two[0].2 <= two[1].1);
        Some(Self { granted, slots: slots.filter(|_| are_apart)? })
    }

    pub(super) fn path(&self) -> UrgentPath {
        UrgentPath::HmbIo { slots: self.granted.slots, slot_bytes: self.granted.slot_bytes() }
    }

    /// Bytes that one command moves at most, for the `bytes` of a request that begins at byte `start` of the namespace:
    /// the data of a slot begins as far into a page as the command does. `None` if there is no way to cut it.
    pub(super) fn command_bytes_max(&self, start: u64, bytes: u64) -> Option<u32> {
        let first = start % u64::from(HmbIoSlots::PAGE_BYTES);
        let slot = self.granted.slot_bytes();
        if first == 0 || first + bytes <= slot.into() {
            return Some(slot);
        }
        // Whole pages, so that the next command begins as far into a page as this one.
        Some(slot - HmbIoSlots::PAGE_BYTES).filter(|&most| most > 0)
    }

    /// Tells a slot what it is to do.
    pub(super) fn tell(&self, slot: u16, metadata: &HmbIoMetadata) {
        let piece = &self.slots[usize::from(slot)].0;
        piece.memory.write(piece.offset, metadata.as_bytes());
    }

    fn data(&self, slot: u16) -> &Piece {
        &self.slots[usize::from(slot)].1
    }
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToSlot,
    FromSlot,
}

/// A part of a request's data, and where it lies in its slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    /// Where it begins in the request's data, bytes.
    pub(super) offset: u32,
    pub(super) bytes: u32,
    /// Where it begins in the slot, bytes.
    pub(super) first: u32,
}

/// The memory that a device was shown, by its first address: a request names addresses, and slots need bytes.
#[derive(Default)]
pub(super) struct Shown(RwLock<BTreeMap<u64, Arc<Mapping>>>);

impl Shown {
    pub(super) fn add(&self, address: DeviceAddress, memory: Arc<Mapping>) {
        self.0.write().insert(address.0, memory);
    }

    pub(super) fn remove(&self, address: DeviceAddress) {
        self.0.write().remove(&address.0);
    }

    /// Whether all bytes of `segments` are known.
    pub(super) fn holds(&self, segments: &[Segment]) -> bool {
        let shown = self.0.read();
        segments.iter().all(|segment| find(&shown, segment).is_some())
    }

    /// Copies a share of the data in `segments`; whether all of it was known.
    pub(super) fn copy(
        &self,
        direction: Direction,
        segments: &[Segment],
        (hmb_io, slot): (&HmbIo, u16),
        share: Share,
    ) -> bool {
        let shown = self.0.read();
        let piece = hmb_io.data(slot);
        let mut data = Cursor::new(segments);
        let mut skip = u64::from(share.offset);
        while skip > 0 {
            let Some(passed) = data.next(skip) else { return false };
            skip -= u64::from(passed.bytes);
        }
        let (mut at, mut left) = (piece.offset + share.first as usize, share.bytes);
        while left > 0 {
            let Some(part) = data.next(left.into()) else { return false };
            let Some((memory, offset)) = find(&shown, &part) else { return false };
            let bytes = part.bytes as usize;
            match direction {
                Direction::ToSlot => memory.copy(offset, &piece.memory, at, bytes),
                Direction::FromSlot => piece.memory.copy(at, memory, offset, bytes),
            }
            (at, left) = (at + bytes, left - part.bytes);
        }
        true
    }
}

/// The memory of a segment, and where it begins there.
fn find<'a>(shown: &'a BTreeMap<u64, Arc<Mapping>>, segment: &Segment) -> Option<(&'a Mapping, usize)> {
    let (begin, memory) = shown.range(..=segment.address.0).next_back()?;
    let offset = usize::try_from(segment.address.0 - begin).ok()?;
    let end = offset.checked_add(segment.bytes as usize)?;
    (end <= memory.len()).then_some((memory, offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_nvme::HmbIoPlaces;
    use nvmed_sys::Pages;

    const GRANTED: HmbIoSlots = HmbIoSlots { slots: 2, pages: 2 };

    fn memory(pages: usize) -> Arc<Mapping> {
        Arc::new(Mapping::anonymous(pages * 4096, Pages::Base).unwrap())
    }

    /// Two slots of two pages in ranges of 4 and 3 pages, the metadata behind the control block.
    fn good() -> HmbIoControl {
        let places = |metadata, segment, offset| HmbIoPlaces {
            metadata: HostMemoryPlace { segment: 0, offset: metadata },
            data: HostMemoryPlace { segment, offset },
        };
        let mut block = HmbIoControl::new(GRANTED);
        (block.places[0], block.places[1]) = (places(4096, 0, 8192), places(4160, 1, 4096));
        block
    }

    fn found(block: &HmbIoControl) -> Option<HmbIo> {
        let (first, second) = (memory(4), memory(3));
        first.write(0, block.as_bytes());
        HmbIo::find(GRANTED, &[&first, &second])
    }

    #[test]
    fn slots_are_where_the_control_block_says_if_that_can_be() {
        let hmb_io = found(&good()).unwrap();
        assert_eq!(hmb_io.path(), UrgentPath::HmbIo { slots: 2, slot_bytes: 8192 });
        assert_eq!((hmb_io.slots[1].0.offset, hmb_io.slots[1].1.offset), (4160, 4096));
        let bad: [fn(&mut HmbIoControl); 11] = [
            |block| block.magic[7] ^= 1,
            |block| block.version += 1,
            |block| block.slots = 1,
            |block| block.pages = 3,
            // A range that is not there, and ends that are behind a range's.
            |block| block.places[1].data.segment = 2,
            |block| block.places[1].data.offset = 8192,
            |block| block.places[1].data.offset = !4095,
            |block| block.places[1].metadata.offset = 4 * 4096 - 56,
            // Not at the begin of a page.
            |block| block.places[1].data.offset = 2048,
            // On one another, and on the control block.
            |block| block.places[1].metadata.offset = 4096 + 56,
            |block| block.places[0].data.offset = 0,
        ];
        for (case, spoil) in bad.iter().enumerate() {
            let mut block = good();
            spoil(&mut block);
            assert!(found(&block).is_none(), "case {case}");
        }
    }

    #[test]
    fn a_command_moves_what_its_slot_holds_from_where_it_begins_in_a_page() {
        let hmb_io = found(&good()).unwrap();
        let most = |start, bytes| hmb_io.command_bytes_max(start, bytes);
        assert_eq!((most(4096, 8192), most(4096, 1 << 20)), (Some(8192), Some(8192)));
        assert_eq!((most(512, 7680), most(512, 8192)), (Some(8192), Some(4096)));
        let one_page = HmbIo { granted: HmbIoSlots { pages: 1, ..GRANTED }, slots: Box::new([]) };
        assert_eq!(one_page.command_bytes_max(512, 3584), Some(4096));
        assert_eq!(one_page.command_bytes_max(512, 4096), None);
    }

    #[test]
    fn data_is_copied_between_a_slot_and_the_pieces_of_a_request() {
        let hmb_io = found(&good()).unwrap();
        let (shown, memories) = (Shown::default(), [memory(2), memory(1)]);
        let at = |n: u64| DeviceAddress((n + 1) << 40);
        (0..2).for_each(|n| shown.add(at(n as u64), Arc::clone(&memories[n])));
        let pieces = [
            Segment { address: at(0).plus(4096 + 512), bytes: 3584 },
            Segment { address: at(1), bytes: 4096 },
        ];
        memories[0].fill(4096 + 512, 3584, 1);
        memories[1].fill(0, 4096, 2);
        assert!(shown.holds(&pieces));
        // The last 1,024 bytes of the first piece, and as many of the second.
        let share = Share { offset: 2560, bytes: 2048, first: 512 };
        assert!(shown.copy(Direction::ToSlot, &pieces, (&hmb_io, 1), share));
        let mut slot = [0; 3072];
        let Piece { memory, offset } = hmb_io.data(1);
        memory.read(*offset, &mut slot);
        assert!(slot[..512].iter().all(|&byte| byte == 0) && slot[2560..].iter().all(|&byte| byte == 0));
        assert!(
            slot[512..1536].iter().all(|&byte| byte == 1) && slot[1536..2560].iter().all(|&byte| byte == 2)
        );
        memory.fill(*offset, 8192, 9);
        assert!(shown.copy(Direction::FromSlot, &pieces, (&hmb_io, 1), share));
        let mut back = [0; 4096];
        memories[1].read(0, &mut back);
        assert!(back[..1024].iter().all(|&byte| byte == 9) && back[1024..].iter().all(|&byte| byte == 2));
        // What is not shown, or not any more.
        let beyond = Segment { address: at(1).plus(2048), bytes: 4096 };
        assert!(!shown.holds(&[beyond]) && !shown.holds(&[Segment { address: at(7), bytes: 4 }]));
        shown.remove(at(1));
        assert!(!shown.holds(&pieces));
    }
}
