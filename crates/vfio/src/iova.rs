//! Device addresses: what the IOMMU translates, and which of it is in use.

use nvmed_units::DeviceAddress;

/// The IOMMU's page: every mapping begins and ends on one.
pub(crate) const PAGE: u64 = 4096;
/// Mappings of at least this many bytes begin on such a boundary when their memory does, so that the IOMMU
/// needs one entry where it would need 512.
const HUGE: u64 = 2 << 20;
/// The first address given away: a device that reads a forgotten zero as an address must fault.
const FIRST: u64 = 1 << 20;
/// `VFIO_IOMMU_INFO_PGSIZES` and `_CAPS`: which fields of the IOMMU's answer count.
const INFO_PAGES: u32 = 1;
const INFO_CAPS: u32 = 1 << 1;
/// Capabilities of the IOMMU (`VFIO_IOMMU_TYPE1_INFO_CAP_*`).
const CAP_IOVA_RANGE: u16 = 1;
const CAP_DMA_AVAIL: u16 = 3;
/// Capabilities looked at: a chain that is longer, or runs in a circle, ends here.
const CAPS_MAX: usize = 32;
/// Mappings of one container at most where the IOMMU does not say (`dma_entry_limit` of Linux).
const MAPPINGS_MAX: usize = 65_535;
/// What every IOMMU of a PC translates, for kernels older than 5.4, which do not say: 39 bits, without the
/// interrupt range of x86.
const RANGES_PLAIN: [(u64, u64); 2] = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 39) - 1)];

/// What the IOMMU answers about itself (`struct vfio_iommu_type1_info`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Aperture {
    /// Ranges that it translates, first and last address.
    pub ranges: Vec<(u64, u64)>,
    /// Mappings that can be made now.
    pub mappings_max: usize,
    /// Page sizes, a bit each; 4 KiB is among them or the IOMMU is not for us.
    pub page_sizes: u64,
}

impl Aperture {
    /// Reads the kernel's answer; what is cut off or makes no sense counts as not said.
    pub fn parse(info: &[u8]) -> Self {
        let mut found = Self { ranges: Vec::new(), mappings_max: MAPPINGS_MAX, page_sizes: PAGE };
        let flags = word(info, 4).unwrap_or(0);
        if flags & INFO_PAGES != 0 {
            found.page_sizes = long(info, 8).unwrap_or(PAGE);
        }
        let mut next = if flags & INFO_CAPS != 0 { word(info, 16).unwrap_or(0) } else { 0 };
        for _ in 0..CAPS_MAX {
            let at = next as usize;
            let (Some(kind), Some(following)) = (word(info, at), word(info, at + 4)) else { break };
            if at == 0 {
                break;
            }
            match kind as u16 {
                CAP_IOVA_RANGE => found.ranges = ranges(info, at),
                CAP_DMA_AVAIL => found.mappings_max = word(info, at + 8).unwrap_or(0) as usize,
                _ => {}
            }
            next = following;
        }
        if found.ranges.is_empty() {
            found.ranges = RANGES_PLAIN.to_vec();
        }
        found
    }
}

/// `struct vfio_iommu_type1_info_cap_iova_range`.
fn ranges(info: &[u8], at: usize) -> Vec<(u64, u64)> {
    let count = word(info, at + 8).unwrap_or(0) as usize;
    let pair = |index: usize| Some((long(info, at + 16 + index * 16)?, long(info, at + 24 + index * 16)?));
    let all = (0..count).map_while(pair);
    all.filter(|&(first, last)| first < last).collect()
}

fn word(info: &[u8], at: usize) -> Option<u32> {
    info.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes)
}

fn long(info: &[u8], at: usize) -> Option<u64> {
    info.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_ne_bytes)
}

/// Which addresses are in use.
///
/// New ones come after the last one given, from the start again at the end: an address comes back as late as
/// possible, so that a late access of a device faults rather than hits what came after.
#[derive(Debug)]
pub(crate) struct Iovas {
    ranges: Vec<(u64, u64)>,
    /// In use, by address: begin and bytes.
    used: Vec<(u64, u64)>,
    next: u64,
}

impl Iovas {
    pub fn new(aperture: &Aperture) -> Self {
        Self { ranges: aperture.ranges.clone(), used: Vec::new(), next: FIRST }
    }

    /// Takes `bytes` at an address that is like `memory` within a huge page when both are large; `None` when
    /// there is no room.
    pub fn take(&mut self, bytes: u64, memory: u64) -> Option<DeviceAddress> {
        let bytes = bytes.checked_next_multiple_of(PAGE)?;
        let align = if bytes >= HUGE && memory.is_multiple_of(HUGE) { HUGE } else { PAGE };
        let begin = self.find(bytes, align, self.next).or_else(|| self.find(bytes, align, FIRST))?;
        let at = self.used.partition_point(|&(other, _)| other < begin);
        self.used.insert(at, (begin, bytes));
        self.next = begin + bytes;
        Some(DeviceAddress(begin))
    }

    /// The first room of `bytes` from `from` on.
    fn find(&self, bytes: u64, align: u64, from: u64) -> Option<u64> {
        self.ranges.iter().find_map(|&(first, last)| {
            let mut begin = first.max(from).max(FIRST).checked_next_multiple_of(align)?;
            loop {
                let end = begin.checked_add(bytes - 1)?;
                if end > last {
                    return None;
                }
                // The last mapping that begins at or before our end is the only one that can reach into us.
                let above = self.used.partition_point(|&(other, _)| other <= end);
                match above.checked_sub(1).map(|index| self.used[index]) {
                    Some((other, len)) if other + len > begin => {
                        begin = (other + len).checked_next_multiple_of(align)?;
                    }
                    _ => return Some(begin),
                }
            }
        })
    }

    /// Gives an address back; answers its bytes, or `None` when it is not in use.
    pub fn give_back(&mut self, address: DeviceAddress) -> Option<u64> {
        let at = self.used.binary_search_by_key(&address.0, |&(begin, _)| begin).ok()?;
        Some(self.used.remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `struct vfio_iommu_type1_info` as Linux 6.1 fills it for QEMU's Intel IOMMU.
    fn info() -> Vec<u8> {
        let mut info = vec![0u8; 4096];
        let mut put = |at: usize, word: u32| info[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        put(0, 4096);
        put(4, INFO_PAGES | INFO_CAPS);
        put(8, 0x4020_1000);
        put(16, 24);
        put(24, u32::from(CAP_DMA_AVAIL) | 1 << 16);
        put(28, 40);
        put(32, 1000);
        put(40, u32::from(CAP_IOVA_RANGE) | 1 << 16);
        put(48, 2);
        for (index, value) in [0u64, 0xfedf_ffff, 0xfef0_0000, (1 << 39) - 1].into_iter().enumerate() {
            put(56 + index * 8, value as u32);
            put(60 + index * 8, (value >> 32) as u32);
        }
        info
    }

    #[test]
    fn the_kernels_answer_is_read() {
        let found = Aperture::parse(&info());
        assert_eq!(found.ranges, RANGES_PLAIN);
        assert_eq!((found.mappings_max, found.page_sizes), (1000, 0x4020_1000));
        assert_eq!(Aperture::parse(&[]).ranges, RANGES_PLAIN);
    }

    #[test]
    fn a_chain_of_capabilities_that_runs_in_a_circle_ends() {
        let mut info = info();
        info[44..48].copy_from_slice(&24u32.to_ne_bytes());
        assert_eq!(Aperture::parse(&info).mappings_max, 1000);
    }

    #[test]
    fn addresses_are_like_their_memory_and_come_back_late() {
        let mut iovas = Iovas::new(&Aperture::parse(&[]));
        let small = iovas.take(100, 0x7000).unwrap();
        let huge = iovas.take(HUGE, 4 * HUGE).unwrap();
        assert!(small.0 >= FIRST && huge.0.is_multiple_of(HUGE));
        assert_eq!(iovas.give_back(small), Some(PAGE));
        assert_eq!(iovas.give_back(small), None);
        assert_ne!(iovas.take(PAGE, 0), Some(small));
        // More than one range holds is in none.
        assert_eq!(iovas.take(1 << 40, 0), None);
        assert_eq!(iovas.take(u64::MAX, 0), None);
    }

    #[test]
    fn a_small_aperture_is_filled_to_its_end_and_again() {
        let ranges = vec![(0, FIRST + 3 * PAGE - 1), (FIRST + 8 * PAGE, FIRST + 9 * PAGE - 1)];
        let mut iovas = Iovas::new(&Aperture { ranges, mappings_max: 9, page_sizes: PAGE });
        let all: Vec<_> = core::iter::from_fn(|| iovas.take(PAGE, 0)).collect();
        assert_eq!(all.iter().map(|a| (a.0 - FIRST) / PAGE).collect::<Vec<_>>(), [0, 1, 2, 8]);
        assert_eq!(iovas.give_back(all[1]), Some(PAGE));
        assert_eq!(iovas.take(2 * PAGE, 0), None);
        assert_eq!(iovas.take(PAGE, 0), Some(all[1]));
    }

    proptest! {
        #[test]
        fn mappings_never_overlap_and_stay_inside(steps in prop::collection::vec((0u64..6, 1u64..5_000_000), 1..200)) {
            let ranges = vec![(0, 64 << 20), (80 << 20, 120 << 20)];
            let aperture = Aperture { ranges, mappings_max: 9, page_sizes: PAGE };
            let mut iovas = Iovas::new(&aperture);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (kind, bytes) in steps {
                if kind == 0 && !held.is_empty() {
                    let (begin, len) = held.remove(bytes as usize % held.len());
                    prop_assert_eq!(iovas.give_back(DeviceAddress(begin)), Some(len));
                } else if let Some(address) = iovas.take(bytes, kind * PAGE) {
                    let (begin, len) = (address.0, bytes.next_multiple_of(PAGE));
                    prop_assert!(held.iter().all(|&(other, size)| begin + len <= other || other + size <= begin));
                    let holds = |&(first, last): &(u64, u64)| first <= begin && begin + len - 1 <= last;
                    prop_assert!(aperture.ranges.iter().any(holds));
                    held.push((begin, len));
                }
            }
        }

        #[test]
        fn fuzz_any_answer_of_the_iommu_is_read(info in prop::collection::vec(any::<u8>(), 0..256)) {
            let found = Aperture::parse(&info);
            prop_assert!(found.ranges.iter().all(|&(first, last)| first < last));
            let mut iovas = Iovas::new(&found);
            if let Some(address) = iovas.take(PAGE, 0) {
                prop_assert!(found.ranges.iter().any(|&(first, last)| first <= address.0 && address.0 <= last));
            }
        }
    }
}
