//! Values of the metadata store: directory entries, inode records, extents, counters
//! (docs/spec/fs.md).

use crate::status::{Kind, MODE_KIND};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Extents that an inode record holds itself.
pub(crate) const INLINE_EXTENTS: usize = 4;
/// Bytes of a symbolic link target that an inode record holds itself: the place of the extents.
pub(crate) const INLINE_TARGET_BYTES: usize = 96;
/// Inode flag: extents lie in records of their own.
pub(crate) const FLAG_KEYED_EXTENTS: u32 = 1;
/// Extent flag: allocated, never written, reads as zeroes.
pub(crate) const EXTENT_UNWRITTEN: u32 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtent {
    logical: U64,
    physical: U64,
    blocks: U32,
    flags: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawInode {
    mode: U32,
    nlink: U32,
    uid: U32,
    gid: U32,
    size: U64,
    blocks: U64,
    times: [I64; 4],
    parent: U64,
    flags: U32,
    extent_count: U32,
    zero: [u8; 16],
    tail: [u8; INLINE_TARGET_BYTES],
}

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
struct RawEntry {
    ino: U64,
    kind: u8,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtentValue {
    physical: U64,
    blocks: U32,
    flags: U32,
}

/// Bytes of an inode record.
pub(crate) const INODE_BYTES: usize = 192;
/// Bytes of a directory entry's value.
pub(crate) const ENTRY_BYTES: usize = 9;
/// Bytes of an extent record's value.
pub(crate) const EXTENT_BYTES: usize = 16;
/// Bytes of the counters.
pub(crate) const COUNTERS_BYTES: usize = 32;
const _: () = assert!(size_of::<RawInode>() == INODE_BYTES);
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES);
const _: () = assert!(size_of::<RawExtentValue>() == EXTENT_BYTES);
const _: () = assert!(size_of::<RawCounters>() == COUNTERS_BYTES);
const _: () = assert!(size_of::<RawExtent>() * INLINE_EXTENTS == INLINE_TARGET_BYTES);

/// A run of a file's blocks that lie side by side on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First block in the file.
    pub(crate) logical: u64,
    /// First block on the device.
    pub(crate) physical: u64,
    /// How many.
    pub(crate) blocks: u32,
    /// [`EXTENT_UNWRITTEN`].
    pub(crate) flags: u32,
}

impl Extent {
    /// One past the last block in the file.
    pub(crate) fn logical_end(&self) -> u64 {
        self.logical + u64::from(self.blocks)
    }

    /// One past the last block on the device.
    pub(crate) fn physical_end(&self) -> u64 {
        self.physical + u64::from(self.blocks)
    }

    /// The value of the record keyed by inode and logical block.
    pub(crate) fn encode(&self) -> [u8; EXTENT_BYTES] {
        let raw = RawExtentValue {
            physical: self.physical.into(),
            blocks: self.blocks.into(),
            flags: self.flags.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Reads a record's value; none when it has another length or no block.
    pub(crate) fn decode(logical: u64, value: &[u8]) -> Option<Self> {
        let raw = RawExtentValue::read_from_bytes(value).ok()?;
        let extent =
            Self { logical, physical: raw.physical.get(), blocks: raw.blocks.get(), flags: raw.flags.get() };
        extent.is_sane().then_some(extent)
    }

    /// Whether the numbers can be added without leaving 64 bits; where they lead is checked elsewhere.
    fn is_sane(&self) -> bool {
        let limit = 1 << 52;
        self.blocks > 0 && self.logical < limit && self.physical < limit
    }
}

/// What an inode record keeps in its last 96 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Extents, as many as the record counts; unless they are keyed.
    Extents([Extent; INLINE_EXTENTS]),
    /// A symbolic link's target, if it fits.
    Target([u8; INLINE_TARGET_BYTES]),
}

/// An inode record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    /// Data blocks allocated.
    pub(crate) blocks: u64,
    pub(crate) atime_ns: i64,
    pub(crate) mtime_ns: i64,
    pub(crate) ctime_ns: i64,
    pub(crate) btime_ns: i64,
    /// Of a directory; else 0.
    pub(crate) parent: u64,
    pub(crate) flags: u32,
    pub(crate) extent_count: u32,
    pub(crate) tail: Tail,
}

impl Record {
    /// A new inode without data.
    pub(crate) fn new(kind: Kind, permissions: u32, uid: u32, gid: u32, now_ns: i64) -> Self {
        Self {
            mode: kind.mode() | permissions,
            nlink: if kind == Kind::Directory { 2 } else { 1 },
            uid,
            gid,
            size: 0,
            blocks: 0,
            atime_ns: now_ns,
            mtime_ns: now_ns,
            ctime_ns: now_ns,
            btime_ns: now_ns,
            parent: 0,
            flags: 0,
            extent_count: 0,
            tail: Tail::Extents([Extent::default(); INLINE_EXTENTS]),
        }
    }

    /// The kind in the mode.
    pub(crate) fn kind(&self) -> Kind {
        Kind::of((self.mode >> 12) as u8).expect("records are made and decoded with a kind of ours")
    }

    /// The extents in the record itself.
    pub(crate) fn inline_extents(&self) -> &[Extent] {
        match &self.tail {
            Tail::Extents(extents) if self.flags & FLAG_KEYED_EXTENTS == 0 => {
                &extents[..self.extent_count as usize]
            }
            _ => &[],
        }
    }

    /// The record's bytes.
    pub(crate) fn encode(&self) -> [u8; INODE_BYTES] {
        let times = [self.atime_ns, self.mtime_ns, self.ctime_ns, self.btime_ns];
        let raw = RawInode {
            mode: self.mode.into(),
            nlink: self.nlink.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            size: self.size.into(),
            blocks: self.blocks.into(),
            times: times.map(I64::from),
            parent: self.parent.into(),
            flags: self.flags.into(),
            extent_count: self.extent_count.into(),
            zero: [0; 16],
            tail: encode_tail(&self.tail),
        };
        zerocopy::transmute!(raw)
    }

    /// Reads a record's bytes; none when they are no inode of ours.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let raw = RawInode::read_from_bytes(value).ok()?;
        let kind = Kind::of((raw.mode.get() >> 12) as u8)?;
        let (size, count, flags) = (raw.size.get(), raw.extent_count.get(), raw.flags.get());
        let keyed = flags & FLAG_KEYED_EXTENTS != 0;
        let fits = if kind == Kind::Symlink { count == 0 } else { keyed || count as usize <= INLINE_EXTENTS };
        if raw.mode.get() & !(MODE_KIND | 0o7777) != 0 || !fits || size > crate::FILE_BYTES_MAX {
            return None;
        }
        let used = if keyed { 0 } else { count as usize };
        let tail = decode_tail(kind, used, &raw.tail)?;
        Some(Self {
            mode: raw.mode.get(),
            nlink: raw.nlink.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            size,
            blocks: raw.blocks.get(),
            atime_ns: raw.times[0].get(),
            mtime_ns: raw.times[1].get(),
            ctime_ns: raw.times[2].get(),
            btime_ns: raw.times[3].get(),
            parent: raw.parent.get(),
            flags,
            extent_count: count,
            tail,
        })
    }
}

fn encode_tail(tail: &Tail) -> [u8; INLINE_TARGET_BYTES] {
    match tail {
        Tail::Target(bytes) => *bytes,
        Tail::Extents(extents) => {
            let raw = extents.map(|extent| RawExtent {
                logical: extent.logical.into(),
                physical: extent.physical.into(),
                blocks: extent.blocks.into(),
                flags: extent.flags.into(),
            });
            zerocopy::transmute!(raw)
        }
    }
}

fn decode_tail(kind: Kind, used: usize, bytes: &[u8; INLINE_TARGET_BYTES]) -> Option<Tail> {
    if kind == Kind::Symlink {
        return Some(Tail::Target(*bytes));
    }
    let raw: [RawExtent; INLINE_EXTENTS] = zerocopy::transmute!(*bytes);
    let extents = raw.map(|raw| Extent {
        logical: raw.logical.get(),
        physical: raw.physical.get(),
        blocks: raw.blocks.get(),
        flags: raw.flags.get(),
    });
    let sane = extents[..used].iter().all(Extent::is_sane)
        && extents[..used].windows(2).all(|pair| pair[0].logical_end() <= pair[1].logical);
    sane.then_some(Tail::Extents(extents))
}

/// The value of a directory entry.
pub(crate) fn encode_entry(ino: u64, kind: Kind) -> [u8; ENTRY_BYTES] {
    zerocopy::transmute!(RawEntry { ino: ino.into(), kind: kind.d_type() })
}

/// Reads a directory entry's value.
pub(crate) fn decode_entry(value: &[u8]) -> Option<(u64, Kind)> {
    let raw = RawEntry::read_from_bytes(value).ok()?;
    Some((raw.ino.get(), Kind::of(raw.kind)?))
}

/// Numbers of the whole file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) free_blocks: u64,
    pub(crate) inodes: u64,
    pub(crate) next_ino: u64,
    /// Where the allocator goes on, a data block.
    pub(crate) cursor: u64,
}

impl Counters {
    pub(crate) fn encode(&self) -> [u8; COUNTERS_BYTES] {
        zerocopy::transmute!(RawCounters {
            free_blocks: self.free_blocks.into(),
            inodes: self.inodes.into(),
            next_ino: self.next_ino.into(),
            cursor: self.cursor.into(),
        })
    }

    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let raw = RawCounters::read_from_bytes(value).ok()?;
        Some(Self {
            free_blocks: raw.free_blocks.get(),
            inodes: raw.inodes.get(),
            next_ino: raw.next_ino.get(),
            cursor: raw.cursor.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        let mut record = Record::new(Kind::File, 0o640, 1, 2, -5);
        record.extent_count = 2;
        let first = Extent { logical: 0, physical: 100, blocks: 8, flags: 0 };
        let second = Extent { logical: 9, physical: 50, blocks: 1, flags: EXTENT_UNWRITTEN };
        record.tail = Tail::Extents([first, second, Extent::default(), Extent::default()]);
        record.size = 40_000;
        record.blocks = 9;
        record
    }

    #[test]
    fn an_inode_record_survives_its_bytes() {
        let record = sample();
        assert_eq!(Record::decode(&record.encode()), Some(record));
        assert_eq!(record.inline_extents().len(), 2);
        let mut link = Record::new(Kind::Symlink, 0o777, 0, 0, 7);
        link.tail = Tail::Target([b'x'; INLINE_TARGET_BYTES]);
        assert_eq!(Record::decode(&link.encode()), Some(link));
    }

    #[test]
    fn offsets_are_those_of_the_specification() {
        let bytes = sample().encode();
        assert_eq!(bytes[16..24], 40_000u64.to_le_bytes());
        assert_eq!(bytes[32..40], (-5i64).to_le_bytes());
        assert_eq!(bytes[76..80], 2u32.to_le_bytes());
        assert_eq!(bytes[96 + 24..96 + 32], 9u64.to_le_bytes());
    }

    #[test]
    fn nonsense_is_no_inode() {
        let good = sample().encode();
        let spoil = |offset: usize, bytes: &[u8]| {
            let mut bad = good;
            bad[offset..offset + bytes.len()].copy_from_slice(bytes);
            Record::decode(&bad)
        };
        assert_eq!(Record::decode(&good[1..]), None, "short");
        assert_eq!(spoil(0, &0u32.to_le_bytes()), None, "no kind");
        assert_eq!(spoil(76, &5u32.to_le_bytes()), None, "more extents than fit");
        assert_eq!(spoil(96 + 16, &0u32.to_le_bytes()), None, "an empty extent");
        assert_eq!(spoil(96 + 24, &7u64.to_le_bytes()), None, "overlapping extents");
        assert_eq!(spoil(96 + 8, &u64::MAX.to_le_bytes()), None, "a block far outside");
    }
}
