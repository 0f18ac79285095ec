//! Values of the metadata store: directory entries, inode records, extents, counters
//! (docs/spec/fs.md).

use crate::FILE_BYTES_MAX;
use crate::file_type::{FileType, MODE_KIND};
use crate::varint::{self, NUMBER_BYTES_MAX, Reader, Writer};
use core::ops::Range;
use nvmed_mutant::Mutant;
use nvmed_units::{Block, Ino, Page};
use std::sync::Arc;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Extents that an inode record holds itself.
pub const INLINE_EXTENTS: usize = 4;
/// Bytes of a symbolic link target that an inode record holds itself; longer ones have records of their
/// own.
pub const INLINE_TARGET_BYTES: usize = 255;
/// Longest record that lies in a directory entry: what a re-key of names carries along stays bounded,
/// and the store keeps the value in its leaf.
pub const ENTRY_RECORD_BYTES_MAX: usize = 960;
/// Inode flag: extents lie in records of their own.
pub const FLAG_KEYED_EXTENTS: u32 = 1;
/// Extent flag: allocated, never written, reads as zeroes.
pub const EXTENT_UNWRITTEN: u32 = 1;

/// Sections of an inode record, and the bits that announce them.
const SECTION_EXTENTS: u8 = 1;
const SECTION_KEYED: u8 = 1 << 1;
const SECTION_TARGET: u8 = 1 << 2;
const SECTION_DATA: u8 = 1 << 3;
const SECTION_XATTRS: u8 = 1 << 4;
const SECTION_DEVICE: u8 = 1 << 5;
const SECTIONS: u8 = (1 << 6) - 1;

/// Bits of the first byte of a directory entry.
const ENTRY_KIND: u8 = 0x0f;
const ENTRY_RECORD: u8 = 1 << 4;
const ENTRY_ZONE: u8 = 1 << 5;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawCounters {
    free_blocks: U64,
    inodes: U64,
    next_ino: U64,
    cursor: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtentValue {
    physical: U64,
    blocks: U32,
    flags: U32,
}

/// Bytes of most records: a buffer to read one into.
pub const RECORD_BYTES_USUAL: usize = 128;

/// What every record has, and the extents in one: mode, sections, seven numbers and a time, the count and three numbers
/// an extent.
const FIXED_BYTES_MAX: usize = 2 + 1 + 7 * NUMBER_BYTES_MAX + 8 + 1 + 3 * NUMBER_BYTES_MAX * INLINE_EXTENTS;
/// Bytes of an extent record's value.
pub const EXTENT_BYTES: usize = 16;
/// Bytes of the counters.
pub const COUNTERS_BYTES: usize = 32;
const _: () = assert!(size_of::<RawExtentValue>() == EXTENT_BYTES);
const _: () = assert!(size_of::<RawCounters>() == COUNTERS_BYTES);

/// A run of a file's blocks that lie side by side on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The first page of the file that lies in it.
    pub logical: Page,
    /// First block on the device.
    pub physical: Block,
    /// How many.
    pub blocks: u32,
    /// [`EXTENT_UNWRITTEN`].
    /// `FLAG_…`.
    pub flags: u32,
}

impl Extent {
    /// One past the last page that lies in it.
    pub fn logical_end(&self) -> Page {
        self.logical + u64::from(self.blocks)
    }

    /// One past the last block on the device.
    pub fn physical_end(&self) -> Block {
        self.physical + u64::from(self.blocks)
    }

    /// Its blocks on the device.
    pub fn physical_blocks(&self) -> Range<Block> {
        self.physical..self.physical_end()
    }

    /// Its pages of the file.
    pub fn pages(&self) -> Range<Page> {
        self.logical..self.logical_end()
    }

    /// The part of it before a page.
    pub fn before(&self, page: Page) -> Option<Self> {
        let blocks = page.0.saturating_sub(self.logical.0).min(self.blocks.into());
        (blocks > 0).then_some(Self { blocks: blocks as u32, ..*self })
    }

    /// The part of it from a page on.
    pub fn behind(&self, page: Page) -> Option<Self> {
        let skipped = page.0.saturating_sub(self.logical.0).min(self.blocks.into());
        let blocks = self.blocks - skipped as u32;
        let (logical, physical) = (self.logical + skipped, self.physical + skipped);
        (blocks > 0).then_some(Self { logical, physical, blocks, ..*self })
    }

    /// The value of the record keyed by inode and logical block.
    pub fn encode(&self) -> [u8; EXTENT_BYTES] {
        let raw = RawExtentValue {
            physical: self.physical.0.into(),
            blocks: self.blocks.into(),
            flags: self.flags.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Reads a record's value; none when it has another length or no block.
    pub fn decode(logical: Page, value: &[u8]) -> Option<Self> {
        let raw = RawExtentValue::read_from_bytes(value).ok()?;
        let extent = Self {
            logical,
            physical: Block(raw.physical.get()),
            blocks: raw.blocks.get(),
            flags: raw.flags.get(),
        };
        extent.is_sane().then_some(extent)
    }

    /// Whether the numbers can be added without leaving 64 bits; where they lead is checked elsewhere.
    fn is_sane(&self) -> bool {
        let limit = 1 << 52;
        self.blocks > 0 && self.logical < Page(limit) && self.physical < Block(limit)
    }
}

/// What a record holds of its file itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Extents, as many as the record counts; unless they are keyed.
    Extents([Extent; INLINE_EXTENTS]),
    /// A symbolic link's target; empty when it lies in records of its own.
    Target(Arc<[u8]>),
    /// The file's first bytes; it has no blocks.
    Data(Arc<[u8]>),
}

impl Tail {
    /// No extents.
    pub const EMPTY: Self = Self::Extents(
        [Extent { logical: Page::FIRST, physical: Block(0), blocks: 0, flags: 0 }; INLINE_EXTENTS],
    );
}

/// An inode record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Kind and permissions, as `st_mode` has them.
    pub mode: u32,
    /// Names; of a directory, 2 and its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Data blocks allocated.
    pub blocks: u64,
    /// Last read, in nanoseconds since 1970, as all four times.
    pub atime_ns: i64,
    /// Last change of the data.
    pub mtime_ns: i64,
    /// Last change of data or record.
    pub ctime_ns: i64,
    /// When it was made.
    pub btime_ns: i64,
    /// `FLAG_…`.
    pub flags: u32,
    /// Extents, wherever they are recorded.
    pub extent_count: u32,
    /// What it has for its data.
    pub tail: Tail,
    /// Extended attributes, in the encoding of whoever keeps them; none when there are none.
    pub xattrs: Option<Arc<[u8]>>,
    /// Device number of a character or block device, else 0.
    pub rdev: u64,
}

impl Record {
    /// A new inode without data.
    pub fn new(kind: FileType, permissions: u32, uid: u32, gid: u32, now_ns: i64) -> Self {
        Self {
            mode: kind.mode() | permissions,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid,
            gid,
            size: 0,
            blocks: 0,
            atime_ns: now_ns,
            mtime_ns: now_ns,
            ctime_ns: now_ns,
            btime_ns: now_ns,
            flags: 0,
            extent_count: 0,
            tail: Tail::EMPTY,
            xattrs: None,
            rdev: 0,
        }
    }

    /// The kind in the mode.
    pub fn kind(&self) -> FileType {
        FileType::of_mode(self.mode).expect("records are made and decoded with a kind of ours")
    }

    /// The extents in the record itself.
    pub fn inline_extents(&self) -> &[Extent] {
        match &self.tail {
            Tail::Extents(extents) if self.flags & FLAG_KEYED_EXTENTS == 0 => {
                &extents[..self.extent_count as usize]
            }
            _ => &[],
        }
    }

    /// The bytes of the file that the record itself holds.
    pub fn inline_data(&self) -> Option<&Arc<[u8]>> {
        match &self.tail {
            Tail::Data(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(RECORD_BYTES_USUAL);
        self.encode_to(&mut out);
        out
    }

    fn tells_device(&self) -> bool {
        self.rdev != 0 && !Mutant::DeviceForgotten.is_made()
    }

    fn sections(&self) -> u8 {
        let keyed = self.flags & FLAG_KEYED_EXTENTS != 0;
        let tail = match &self.tail {
            _ if keyed => SECTION_KEYED,
            Tail::Extents(_) if self.extent_count > 0 => SECTION_EXTENTS,
            Tail::Target(target) if !target.is_empty() => SECTION_TARGET,
            Tail::Data(_) => SECTION_DATA,
            Tail::Extents(_) | Tail::Target(_) => 0,
        };
        let xattrs = if self.xattrs.is_some() { SECTION_XATTRS } else { 0 };
        tail | xattrs | if self.tells_device() { SECTION_DEVICE } else { 0 }
    }

    /// Appends the record's bytes.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        let mut fixed = Writer::<FIXED_BYTES_MAX>::new();
        let mode = u16::try_from(self.mode).expect("kind and permissions have sixteen bits");
        fixed.array(mode.to_le_bytes());
        fixed.byte(self.sections());
        for number in [u64::from(self.nlink), u64::from(self.uid), u64::from(self.gid), self.size] {
            fixed.number(number);
        }
        fixed.array(self.mtime_ns.to_le_bytes());
        for time in [self.atime_ns, self.ctime_ns, self.btime_ns] {
            fixed.signed(time.wrapping_sub(self.mtime_ns));
        }
        let keyed = self.flags & FLAG_KEYED_EXTENTS != 0;
        if keyed {
            fixed.number(u64::from(self.extent_count));
            fixed.number(self.blocks);
        } else {
            self.encode_extents(&mut fixed);
        }
        out.extend_from_slice(fixed.bytes());
        match &self.tail {
            Tail::Target(target) if !keyed => out.extend_from_slice(target),
            Tail::Data(bytes) if !keyed => {
                varint::put(out, bytes.len() as u64);
                out.extend_from_slice(bytes);
            }
            _ => {}
        }
        if let Some(xattrs) = &self.xattrs {
            varint::put(out, xattrs.len() as u64);
            out.extend_from_slice(xattrs);
        }
        if self.tells_device() {
            varint::put(out, self.rdev);
        }
    }

    #[inline]
    fn encode_extents(&self, out: &mut Writer<FIXED_BYTES_MAX>) {
        let extents = self.inline_extents();
        if extents.is_empty() {
            return;
        }
        out.byte(u8::try_from(extents.len()).expect("a record holds four extents at most"));
        let mut end = Page::FIRST;
        for extent in extents {
            out.number(extent.logical - end);
            out.number(extent.physical.0);
            out.number(u64::from(extent.blocks) << 1 | u64::from(extent.flags));
            end = extent.logical_end();
        }
    }

    /// Reads a record's bytes; none when they are no inode of ours.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let mut from = Reader(value);
        let mode = u32::from(u16::from_le_bytes([from.byte()?, from.byte()?]));
        let kind = FileType::of_mode(mode)?;
        let sections = from.byte()?;
        let mut record = Self::new(kind, mode & !MODE_KIND, 0, 0, 0);
        record.nlink = from.small()?;
        record.uid = from.small()?;
        record.gid = from.small()?;
        record.size = from.number().filter(|size| *size <= FILE_BYTES_MAX)?;
        record.mtime_ns = i64::from_le_bytes(from.bytes(8)?.try_into().ok()?);
        record.atime_ns = record.mtime_ns.wrapping_add(from.signed()?);
        record.ctime_ns = record.mtime_ns.wrapping_add(from.signed()?);
        record.btime_ns = record.mtime_ns.wrapping_add(from.signed()?);
        record.decode_sections(kind, sections, &mut from)?;
        from.0.is_empty().then_some(record)
    }

    fn decode_sections(&mut self, kind: FileType, sections: u8, from: &mut Reader<'_>) -> Option<()> {
        const OF_FILES: u8 = SECTION_EXTENTS | SECTION_KEYED | SECTION_DATA;
        let device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        let own = match kind {
            FileType::File => OF_FILES,
            FileType::Symlink => SECTION_TARGET,
            _ if device => SECTION_DEVICE,
            _ => 0,
        };
        let body = sections & (OF_FILES | SECTION_TARGET);
        if sections & !SECTIONS != 0 || sections & !(own | SECTION_XATTRS) != 0 || body.count_ones() > 1 {
            return None;
        }
        match body {
            SECTION_EXTENTS => self.decode_extents(from)?,
            SECTION_KEYED => {
                self.flags |= FLAG_KEYED_EXTENTS;
                (self.extent_count, self.blocks) = (from.small()?, from.number()?);
            }
            SECTION_DATA => {
                let bytes = from.number()?;
                self.tail = Tail::Data(from.bytes(usize::try_from(bytes).ok()?)?.into());
            }
            SECTION_TARGET if self.size <= INLINE_TARGET_BYTES as u64 => {
                self.tail = Tail::Target(from.bytes(self.size as usize)?.into());
            }
            SECTION_TARGET => return None,
            _ if kind == FileType::Symlink => self.tail = Tail::Target(Arc::default()),
            _ => {}
        }
        if sections & SECTION_XATTRS != 0 {
            let bytes = usize::try_from(from.number()?).ok()?;
            self.xattrs = Some(from.bytes(bytes)?.into());
        }
        if sections & SECTION_DEVICE != 0 {
            self.rdev = from.number().filter(|rdev| *rdev != 0)?;
        }
        Some(())
    }

    fn decode_extents(&mut self, from: &mut Reader<'_>) -> Option<()> {
        let count = from.byte().filter(|count| (1..=INLINE_EXTENTS as u8).contains(count))?;
        let mut extents = [Extent::default(); INLINE_EXTENTS];
        let mut end = Page::FIRST;
        for place in &mut extents[..usize::from(count)] {
            let logical = end.plus(from.number()?)?;
            let physical = Block(from.number()?);
            let blocks = from.number()?;
            let flags = (blocks & 1) as u32;
            *place = Extent { logical, physical, blocks: u32::try_from(blocks >> 1).ok()?, flags };
            if !place.is_sane() {
                return None;
            }
            end = place.logical_end();
            self.blocks += u64::from(place.blocks);
        }
        self.extent_count = u32::from(count);
        self.tail = Tail::Extents(extents);
        Some(())
    }
}

/// A directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Whom it names.
    pub ino: Ino,
    /// What that is.
    pub kind: FileType,
    /// Whether it is a directory that is a zone's root.
    pub zone: bool,
    /// The inode record's bytes, if they lie here.
    pub record: Option<&'a [u8]>,
}

impl<'a> Entry<'a> {
    /// Appends the entry's bytes up to where the record would begin.
    pub fn encode_head(&self, out: &mut Vec<u8>) {
        let record = if self.record.is_some() { ENTRY_RECORD } else { 0 };
        out.push(self.kind.d_type() | record | if self.zone { ENTRY_ZONE } else { 0 });
        varint::put(out, self.ino.0);
    }

    /// Appends the entry's bytes.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        self.encode_head(out);
        out.extend_from_slice(self.record.unwrap_or_default());
    }

    /// Reads an entry's bytes; the record's are not looked into.
    #[inline]
    pub fn decode(value: &'a [u8]) -> Option<Self> {
        let mut from = Reader(value);
        let head = from.byte()?;
        let kind = FileType::of(head & ENTRY_KIND)?;
        let zone = head & ENTRY_ZONE != 0;
        let ino = from.number().map(Ino).filter(|ino| (Ino(1)..super::keys::INO_END).contains(ino))?;
        let record = (head & ENTRY_RECORD != 0).then_some(from.0);
        let strange = head & !(ENTRY_KIND | ENTRY_RECORD | ENTRY_ZONE) != 0
            || zone && kind != FileType::Directory
            || record.is_none() && !from.0.is_empty();
        (!strange).then_some(Self { ino, kind, zone, record })
    }
}

/// Numbers of the whole file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data blocks that no file has.
    pub free_blocks: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Numbers from here on were never given out.
    pub next_ino: Ino,
    /// Where the allocator goes on, a data block.
    pub cursor: Block,
}

impl Counters {
    /// The value of their record.
    pub fn encode(&self) -> [u8; COUNTERS_BYTES] {
        zerocopy::transmute!(RawCounters {
            free_blocks: self.free_blocks.into(),
            inodes: self.inodes.into(),
            next_ino: self.next_ino.0.into(),
            cursor: self.cursor.0.into(),
        })
    }

    /// What the value of their record says, if it is one.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let raw = RawCounters::read_from_bytes(value).ok()?;
        Some(Self {
            free_blocks: raw.free_blocks.get(),
            inodes: raw.inodes.get(),
            next_ino: Ino(raw.next_ino.get()),
            cursor: Block(raw.cursor.get()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Record {
        let mut record = Record::new(FileType::File, 0o640, 1, 2, -5);
        record.extent_count = 2;
        let first = Extent { logical: Page::FIRST, physical: Block(100), blocks: 8, flags: 0 };
        let second = Extent { logical: Page(9), physical: Block(50), blocks: 1, flags: EXTENT_UNWRITTEN };
        record.tail = Tail::Extents([first, second, Extent::default(), Extent::default()]);
        record.size = 40_000;
        record.blocks = 9;
        record
    }

    fn a_record() -> impl Strategy<Value = Record> {
        let times =
            prop::array::uniform4(prop_oneof![any::<i64>(), -5i64..5, Just(1_700_000_000_000_000_000)]);
        let extents = prop::collection::vec((0u64..9, 0u64..1 << 51, 1u32..1 << 15, 0u32..2), 0..5);
        let bytes = prop::collection::vec(any::<u8>(), 0..300);
        let xattrs = prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
        (0u8..9, any::<[u32; 4]>(), 0u64..=FILE_BYTES_MAX, times, extents, bytes, xattrs).prop_map(
            |(what, [mode, nlink, uid, gid], size, times, extents, bytes, xattrs)| {
                let kinds = [
                    FileType::Fifo,
                    FileType::Socket,
                    FileType::Directory,
                    FileType::Symlink,
                    FileType::CharDevice,
                ];
                let kind = kinds.get(usize::from(what)).copied().unwrap_or(FileType::File);
                let mut record = Record::new(kind, mode & 0o7777, uid, gid, 0);
                (record.nlink, record.size) = (nlink, size);
                [record.atime_ns, record.mtime_ns, record.ctime_ns, record.btime_ns] = times;
                record.xattrs = xattrs.map(Arc::from);
                match (kind, what) {
                    (FileType::Symlink, _) => {
                        let inline = if bytes.len() <= INLINE_TARGET_BYTES { &bytes[..] } else { &[] };
                        record.tail = Tail::Target(inline.into());
                        record.size = bytes.len() as u64;
                    }
                    (FileType::CharDevice, _) => record.rdev = size,
                    (FileType::File, 6) => {
                        record.flags = FLAG_KEYED_EXTENTS;
                        (record.extent_count, record.blocks) = (nlink, size);
                    }
                    (FileType::File, 7) => record.tail = Tail::Data(bytes.into()),
                    (FileType::File, _) => {
                        let mut inline = [Extent::default(); INLINE_EXTENTS];
                        let mut end = Page::FIRST;
                        for (place, (gap, physical, blocks, flags)) in inline.iter_mut().zip(extents) {
                            *place = Extent { logical: end + gap, physical: Block(physical), blocks, flags };
                            end = place.logical_end();
                            record.extent_count += 1;
                            record.blocks += u64::from(blocks);
                        }
                        record.tail = Tail::Extents(inline);
                    }
                    _ => {}
                }
                record
            },
        )
    }

    proptest! {
        #[test]
        fn records_come_out_as_they_went_in(record in a_record()) {
            let bytes = record.encode();
            prop_assert_eq!(Record::decode(&bytes), Some(record));
            for cut in 0..bytes.len() {
                prop_assert!(Record::decode(&bytes[..cut]).is_none(), "cut to {} bytes", cut);
            }
        }

        /// Whatever the store holds: an error or a record that says the same again.
        #[test]
        fn fuzz_records(mut bytes in a_record().prop_map(|record| record.encode()), at: usize, byte: u8) {
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Some(record) = Record::decode(&bytes) {
                prop_assert_eq!(record.encode().len(), bytes.len());
            }
        }

        #[test]
        fn fuzz_entries(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Some(entry) = Entry::decode(&bytes) {
                let mut again = Vec::new();
                entry.encode_to(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn offsets_are_those_of_the_specification() {
        let bytes = sample().encode();
        let head = [0xa0, 0x81, SECTION_EXTENTS, 1, 1, 2, 0xc0, 0xb8, 0x02];
        assert_eq!(bytes[..9], head);
        assert_eq!(bytes[9..17], (-5i64).to_le_bytes());
        assert_eq!(bytes[17..], [0, 0, 0, 2, 0, 100, 16, 1, 50, 3]);
        let mut entry = Vec::new();
        Entry { ino: Ino(300), kind: FileType::Directory, zone: true, record: None }.encode_to(&mut entry);
        assert_eq!(entry, [0x24, 0xac, 0x02]);
    }

    #[test]
    fn a_file_of_one_extent_takes_about_forty_bytes() {
        let mut record = Record::new(FileType::File, 0o644, 1000, 1000, 1_700_000_000_000_000_000);
        record.mtime_ns += 4_000_000;
        record.size = 16_000;
        record.extent_count = 1;
        let first = Extent { logical: Page::FIRST, physical: Block(40_000_000), blocks: 4, flags: 0 };
        record.tail = Tail::Extents([first, Extent::default(), Extent::default(), Extent::default()]);
        assert!(record.encode().len() <= 40, "{}", record.encode().len());
    }

    #[test]
    fn nonsense_is_no_inode() {
        let good = sample().encode();
        let spoil = |offset: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[offset..offset + bytes.len()].copy_from_slice(bytes);
            Record::decode(&bad)
        };
        assert_eq!(Record::decode(&[&good[..], &[0]].concat()), None, "long");
        assert_eq!(spoil(1, &[0]), None, "no kind");
        assert_eq!(spoil(2, &[SECTION_TARGET]), None, "a file with a target");
        assert_eq!(spoil(2, &[SECTION_EXTENTS | 0x80]), None, "a section of a later version");
        assert_eq!(spoil(20, &[5]), None, "more extents than fit");
        assert_eq!(spoil(23, &[1]), None, "an empty extent");
        assert_eq!(Record::decode(&good), Some(sample()));
    }
}
