//! Memory that the host lends to the drive (Base 2.0, 5.27.1.10 and 8.9; docs/spec/hmb.md): what a list names, and what
//! is in it. Who lends it and when, is in `lending.rs`.
//!
//! All of it is below the drive's lock, and what is held of the host's memory is let go of under that lock. What is
//! read from there is compared and used for nothing, so that a host that writes to it takes time only.

use crate::media::Media;
use nvmed_dma::{DeviceAddress, View};
use nvmed_flash::HostPages;
use nvmed_nvme::{HmbIoSlots, HostMemoryAttributes, HostMemoryDescriptor, HostMemoryPlace, Status};
use nvmed_sys::{Mapping, Pages};
use std::sync::Arc;
use zerocopy::FromBytes;

/// Bytes of a page of the buffer, and of a slot.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Entries of a list, at most: it is read and sorted while nothing else happens, and 1 MiB of it is.
const ENTRIES_MAX: u32 = 65_536;

/// What a drive asks its host for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemoryConfig {
    /// Bytes that it would like, HMPRE: whole pages of 4 KiB, up to [`HostMemoryConfig::BYTES_MAX`].
    pub bytes: u64,
    /// With how many it is content, HMMIN: likewise, 4 KiB to `bytes`.
    pub bytes_min: u64,
    /// Descriptors that it uses, HMMAXD; 0 is any number.
    pub entries_max: u16,
    /// Percent of the buffer for pages of the map.
    pub map_percent: u32,
    /// Percent of the buffer for units that were read.
    pub read_percent: u32,
    /// Percent of the buffer for units that were written and are not programmed; all together are 100 or less.
    pub write_percent: u32,
}

impl HostMemoryConfig {
    /// Bytes of a buffer, at most: its slots take some 60 to 120 bytes of memory each.
    pub const BYTES_MAX: u64 = 16 << 30;

    /// # Panics
    /// When a value is outside its documented range: it comes from our own assembly, not from a host.
    pub(crate) fn check(&self) {
        assert!((PAGE_BYTES..=Self::BYTES_MAX).contains(&self.bytes), "HMPRE of {} bytes", self.bytes);
        assert!((PAGE_BYTES..=self.bytes).contains(&self.bytes_min), "HMMIN of {} bytes", self.bytes_min);
        let is_whole = |bytes: u64| bytes.is_multiple_of(PAGE_BYTES);
        assert!(is_whole(self.bytes) && is_whole(self.bytes_min), "HMPRE and HMMIN are of whole pages");
        let percent = self.map_percent + self.read_percent + self.write_percent;
        assert!(percent <= 100, "more than all of the buffer");
    }

    /// HMPRE, in pages.
    pub(crate) fn pages(&self) -> u32 {
        (self.bytes / PAGE_BYTES) as u32
    }

    /// HMMIN, in pages.
    pub(crate) fn pages_min(&self) -> u32 {
        (self.bytes_min / PAGE_BYTES) as u32
    }

    /// How the slots of so many pages are shared out.
    pub(crate) fn share(&self, pages: u32) -> HostPages {
        let of = |percent: u32| (u64::from(pages) * u64::from(percent) / 100) as u32;
        HostPages { map: of(self.map_percent), read: of(self.read_percent), write: of(self.write_percent) }
    }
}

/// Memory of the host, as it was when the feature was set.
#[derive(Debug)]
struct Segment {
    address: DeviceAddress,
    memory: Arc<Mapping>,
    offset: usize,
    /// The entry of the list, and pages of it before this.
    entry: u32,
    before: u32,
    /// Its first page of the buffer, and how many it has.
    first: u32,
    pages: u32,
}

/// A piece of the buffer that the drive does not use itself.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// What the host calls it.
    pub place: HostMemoryPlace,
    address: DeviceAddress,
    pub memory: Arc<Mapping>,
    pub offset: usize,
    len: usize,
}

impl Piece {
    /// Whether it is mapped, as it was.
    pub(crate) fn is_mapped(&self, view: &View) -> bool {
        is_mapped(view, (self.address, self.len), (&self.memory, self.offset))
    }
}

fn is_mapped(
    view: &View,
    (address, len): (DeviceAddress, usize),
    (memory, at): (&Arc<Mapping>, usize),
) -> bool {
    view.hold(address, len).is_ok_and(|(found, offset)| Arc::ptr_eq(&found, memory) && offset == at)
}

/// Pieces of the buffer for HMB-I/O.
#[derive(Debug)]
pub(crate) struct Carved {
    pub control: Piece,
    pub metadata: Piece,
    /// Of the slots, by number.
    pub data: Vec<Piece>,
    /// Pages of each.
    pub pages: u16,
}

/// What a host has lent.
#[derive(Debug)]
pub(crate) struct Lent {
    /// By page, without a gap.
    segments: Vec<Segment>,
    pub pages: u32,
    /// The first so many pages are not the model's: its slots are those behind them.
    carved: u32,
    /// By page, the checksum of what was put there.
    sums: Box<[u32]>,
    /// Where bytes of the medium are looked at.
    scratch: Mapping,
}

/// The feature, as the host set it last.
#[derive(Debug, Default)]
pub(crate) struct HostMemory {
    /// Absent while it is disabled.
    pub attributes: Option<HostMemoryAttributes>,
    /// Absent while it is disabled, and when the buffer was given up.
    pub lent: Option<Lent>,
    /// How often it was.
    pub given_up: u64,
    /// Moves since the model has had its slots.
    pub moves: u64,
}

/// A range of a list.
#[derive(Clone, Copy, Debug)]
struct Range {
    entry: u32,
    begin: u64,
    pages: u32,
}

impl Range {
    fn end(self) -> Option<u64> {
        self.begin.checked_add(u64::from(self.pages) * PAGE_BYTES - 1)
    }
}

/// Reads a list, and checks all of it.
fn read_list(view: &View, (address, entries): (u64, u32), pages: u32) -> Result<Vec<Range>, Status> {
    let invalid = Status::INVALID_FIELD.do_not_retry();
    if !address.is_multiple_of(16) || entries == 0 || entries > ENTRIES_MAX {
        return Err(invalid);
    }
    let mut ranges = Vec::with_capacity(entries as usize);
    for entry in 0..entries {
        let unmapped = |_| Status::DATA_TRANSFER_ERROR.do_not_retry();
        let at = address.checked_add(u64::from(entry) * 16).ok_or(invalid)?;
        let mut bytes = [0; 16];
        let (memory, offset) = view.resolve(DeviceAddress(at), bytes.len()).map_err(unmapped)?;
        view.fetch(memory, offset, bytes.len()).map_err(unmapped)?;
        memory.read(offset, &mut bytes);
        let range = HostMemoryDescriptor::read_from_bytes(&bytes).expect("16 bytes are a descriptor");
        ranges.push(Range { entry, begin: range.address, pages: range.pages });
    }
    let sum: u64 = ranges.iter().map(|range| u64::from(range.pages)).sum();
    let is_sound =
        |range: &Range| range.begin.is_multiple_of(PAGE_BYTES) && (range.pages == 0 || range.end().is_some());
    let mut sorted: Vec<Range> = ranges.iter().copied().filter(|range| range.pages > 0).collect();
    sorted.sort_unstable_by_key(|range| range.begin);
    let overlaps = |pair: &[Range]| pair[0].end().is_none_or(|end| end >= pair[1].begin);
    if sum != u64::from(pages) || !ranges.iter().all(is_sound) || sorted.windows(2).any(overlaps) {
        return Err(invalid);
    }
    Ok(ranges)
}

/// The first so many pages of a list that the drive uses.
fn usable(config: &HostMemoryConfig, ranges: &[Range]) -> Vec<Range> {
    let entries = if config.entries_max == 0 { ranges.len() } else { config.entries_max.into() };
    let mut left = config.pages();
    let take = |range: &Range| {
        let pages = range.pages.min(left);
        left -= pages;
        Range { pages, ..*range }
    };
    let taken = ranges.iter().take(entries).map(take);
    taken.filter(|range| range.pages > 0).collect()
}

/// The memory of ranges, held.
fn hold(view: &View, ranges: &[Range]) -> Result<Vec<Segment>, Status> {
    let unmapped = || Status::DATA_TRANSFER_ERROR.do_not_retry();
    let mut segments = Vec::new();
    let mut first = 0;
    for range in ranges {
        let (mut address, mut left) = (DeviceAddress(range.begin), range.pages);
        while left > 0 {
            let (memory, offset) = view.hold(address, PAGE_BYTES as usize).map_err(|_| unmapped())?;
            if view.is_copy(&memory) {
                return Err(unmapped());
            }
            let room = (memory.len() - offset) as u64 / PAGE_BYTES;
            let pages = u64::from(left).min(room) as u32;
            let (entry, before) = (range.entry, range.pages - left);
            segments.push(Segment { address, memory, offset, entry, before, first, pages });
            address = address.plus(u64::from(pages) * PAGE_BYTES);
            (first, left) = (first + pages, left - pages);
        }
    }
    Ok(segments)
}

impl Lent {
    /// The usable part of a list of so many entries at a device address, whose ranges are `pages` together.
    pub(crate) fn of_list(
        config: &HostMemoryConfig,
        view: &View,
        list: (u64, u32),
        pages: u32,
    ) -> Result<Self, Status> {
        let ranges = usable(config, &read_list(view, list, pages)?);
        if ranges.iter().map(|range| range.pages).sum::<u32>() < config.pages_min() {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let segments = hold(view, &ranges)?;
        let pages = segments.last().map_or(0, |last| last.first + last.pages);
        // A host machine without a page left.
        let scratch =
            Mapping::anonymous(PAGE_BYTES as usize, Pages::Base).map_err(|_| Status::INTERNAL_ERROR)?;
        Ok(Self { segments, pages, carved: 0, sums: vec![0; pages as usize].into(), scratch })
    }

    /// Pages that are the model's.
    pub(crate) fn slots(&self) -> u32 {
        self.pages - self.carved
    }

    /// Where a page is: its segment, and its number in that.
    fn find(&self, page: u32) -> Option<(&Segment, u32)> {
        let above = self.segments.partition_point(|segment| segment.first <= page);
        let segment = self.segments.get(above.checked_sub(1)?)?;
        let number = page - segment.first;
        (number < segment.pages).then_some((segment, number))
    }

    /// Where the bytes of one of the model's slots are.
    fn place(&self, slot: u32) -> Option<(&Mapping, usize)> {
        let (segment, page) = self.find(self.carved + slot)?;
        Some((&segment.memory, segment.offset + page as usize * PAGE_BYTES as usize))
    }

    /// So many pages from a page on, if they lie in one segment.
    fn piece(&self, page: u32, pages: u32) -> Option<Piece> {
        let (segment, number) = self.find(page).filter(|(segment, at)| segment.pages - at >= pages)?;
        let bytes = |pages: u32| u64::from(pages) * PAGE_BYTES;
        let offset = u32::try_from(bytes(segment.before) + bytes(number)).ok()?;
        Some(Piece {
            place: HostMemoryPlace { segment: segment.entry, offset },
            address: segment.address.plus(bytes(number)),
            memory: Arc::clone(&segment.memory),
            offset: segment.offset + bytes(number) as usize,
            len: bytes(pages) as usize,
        })
    }

    /// Takes pages from the front out of the model's use: one for a control block, one for metadata, and those of as
    /// many slots as are asked for, each of which lies in one segment; fewer or smaller ones where there is no room.
    /// `None`, and nothing is taken, where there is room for none.
    pub(crate) fn carve(&mut self, asked: HmbIoSlots) -> Option<Carved> {
        let (control, metadata) = (self.piece(0, 1)?, self.piece(1, 1)?);
        let mut page = 2;
        let left =
            |segment: &Segment| (segment.first + segment.pages).saturating_sub(page.max(segment.first));
        let longest = self.segments.iter().map(left).max().unwrap_or(0);
        let pages = longest.min(asked.pages.into());
        let mut data = Vec::new();
        while data.len() < asked.slots.into() && pages > 0 {
            let Some((segment, _)) = self.find(page) else { break };
            let end = segment.first + segment.pages;
            if end - page < pages {
                page = end;
                continue;
            }
            data.push(self.piece(page, pages)?);
            page += pages;
        }
        self.carved = if data.is_empty() { return None } else { page };
        Some(Carved { control, metadata, data, pages: pages as u16 })
    }

    /// All pages are the model's again.
    pub(crate) fn uncarve(&mut self) {
        self.carved = 0;
    }

    /// Whether all of it is mapped, as it was.
    pub(crate) fn is_mapped(&self, view: &View) -> bool {
        self.segments.iter().all(|segment| {
            let len = segment.pages as usize * PAGE_BYTES as usize;
            is_mapped(view, (segment.address, len), (&segment.memory, segment.offset))
        })
    }

    pub(crate) fn put(&mut self, slot: u32, bytes: &[u8]) -> bool {
        let Some((memory, at)) = self.place(slot) else { return false };
        memory.write(at, bytes);
        self.sums[(self.carved + slot) as usize] = crc32c::crc32c(bytes);
        true
    }

    /// Whether a slot has what was put there.
    pub(crate) fn is_whole(&self, slot: u32) -> bool {
        let Some((memory, at)) = self.place(slot) else { return false };
        let mut bytes = [0; PAGE_BYTES as usize];
        memory.read(at, &mut bytes);
        crc32c::crc32c(&bytes) == self.sums[(self.carved + slot) as usize]
    }

    /// The bytes of a unit of the medium; zeroes beyond its end.
    pub(crate) fn unit(&self, media: &Media, unit: u32, bytes: &mut [u8]) {
        let offset = u64::from(unit) * PAGE_BYTES;
        if offset + PAGE_BYTES <= media.bytes()
            && media.read(offset, &self.scratch, 0, PAGE_BYTES as usize).is_ok()
        {
            self.scratch.read(0, bytes);
        }
    }
}
