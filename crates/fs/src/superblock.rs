//! The superblock: what the device is and where its regions lie (docs/spec/fs.md, "Superblock").

use crate::error::FsError;
use nvmed_units::BLOCK_BYTES;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a device of ours.
pub(crate) const MAGIC: [u8; 8] = *b"NVMEDFS1";
/// The part of the magic that no version changes.
const MAGIC_STEM: &[u8] = b"NVMEDFS";
/// The format version this program reads and writes.
pub const VERSION: u32 = 1;
/// Longest label in bytes.
pub const LABEL_BYTES_MAX: usize = 64;
/// Smallest metadata region in blocks, 4 MiB: a log, two superblocks and room for a tree.
pub(crate) const META_BLOCKS_MIN: u64 = 1024;
/// Smallest file system in blocks, 8 MiB: below, metadata leaves no room for data.
pub(crate) const BLOCKS_MIN: u64 = 2048;
const CRC_OFFSET: usize = BLOCK_BYTES - 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    block_bytes: U32,
    uuid: [u8; 16],
    label: [u8; LABEL_BYTES_MAX],
    blocks: U64,
    meta_first: U64,
    meta_blocks: U64,
    data_first: U64,
    data_blocks: U64,
    zone_bound: U32,
    features: U32,
    created_ns: I64,
}
const _: () = assert!(size_of::<Raw>() == 152);

/// What a superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Chosen by the format.
    pub uuid: [u8; 16],
    /// A name for people.
    pub label: String,
    /// Blocks of the file system.
    pub blocks: u64,
    /// First block of the metadata region.
    pub meta_first: u64,
    /// Its blocks.
    pub meta_blocks: u64,
    /// First block of the data region.
    pub data_first: u64,
    /// Its blocks.
    pub data_blocks: u64,
    /// When it was formatted, ns since 1970.
    pub created_ns: i64,
}

impl Superblock {
    /// Divides `blocks` blocks, `meta_blocks` of them for metadata.
    ///
    /// # Errors
    /// [`FsError::Format`] when one region would be too small, or the label too long.
    pub(crate) fn lay_out(
        blocks: u64,
        meta_blocks: u64,
        uuid: [u8; 16],
        label: &str,
        created_ns: i64,
    ) -> Result<Self, FsError> {
        if blocks < BLOCKS_MIN {
            return Err(FsError::Format("the device is smaller than 8 MiB"));
        }
        if meta_blocks < META_BLOCKS_MIN || meta_blocks > blocks - META_BLOCKS_MIN {
            return Err(FsError::Format("metadata needs at least 4 MiB and must leave 4 MiB"));
        }
        if label.len() > LABEL_BYTES_MAX || label.contains('\0') {
            return Err(FsError::Format("a label has at most 64 bytes, none of them zero"));
        }
        let (meta_first, data_first) = (1, 1 + meta_blocks);
        let data_blocks = blocks - meta_blocks - 2;
        let label = label.to_owned();
        Ok(Self { uuid, label, blocks, meta_first, meta_blocks, data_first, data_blocks, created_ns })
    }

    /// The block as it lies on the device.
    pub(crate) fn encode(&self) -> Box<[u8]> {
        let mut label = [0; LABEL_BYTES_MAX];
        label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        let raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            block_bytes: (BLOCK_BYTES as u32).into(),
            uuid: self.uuid,
            label,
            blocks: self.blocks.into(),
            meta_first: self.meta_first.into(),
            meta_blocks: self.meta_blocks.into(),
            data_first: self.data_first.into(),
            data_blocks: self.data_blocks.into(),
            zone_bound: 0.into(),
            features: 0.into(),
            created_ns: self.created_ns.into(),
        };
        let mut block = vec![0; BLOCK_BYTES].into_boxed_slice();
        block[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
        let crc = crc32c::crc32c(&block[..CRC_OFFSET]);
        block[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads a block.
    ///
    /// # Errors
    /// [`FsError::NotOurs`] for another magic, [`FsError::Version`] for another version or an unknown
    /// feature, [`FsError::Damaged`] for a wrong checksum or regions that contradict each other.
    pub(crate) fn decode(block: &[u8]) -> Result<Self, FsError> {
        let (raw, _) = Raw::read_from_prefix(block).map_err(|_| FsError::NotOurs)?;
        if !raw.magic.starts_with(MAGIC_STEM) {
            return Err(FsError::NotOurs);
        }
        let crc = block.get(CRC_OFFSET..BLOCK_BYTES).map(|bytes| bytes == checksum(block));
        if crc != Some(true) {
            return Err(FsError::Damaged { what: "the checksum", of: 0 });
        }
        if raw.magic != MAGIC || raw.version.get() != VERSION || raw.features.get() != 0 {
            let found = if raw.version.get() == VERSION { VERSION + 1 } else { raw.version.get() };
            return Err(FsError::Version { found, known: VERSION });
        }
        raw.check()
    }
}

fn checksum(block: &[u8]) -> [u8; 4] {
    crc32c::crc32c(&block[..CRC_OFFSET]).to_le_bytes()
}

impl Raw {
    fn check(&self) -> Result<Superblock, FsError> {
        let damaged = FsError::Damaged { what: "the layout", of: 0 };
        let end = self.label.iter().position(|&byte| byte == 0).unwrap_or(LABEL_BYTES_MAX);
        let label = String::from_utf8_lossy(&self.label[..end]);
        let (blocks, meta_blocks) = (self.blocks.get(), self.meta_blocks.get());
        let expected = Superblock::lay_out(blocks, meta_blocks, self.uuid, "", self.created_ns.get());
        let Ok(mut superblock) = expected else { return Err(damaged) };
        superblock.label = label.into_owned();
        let same = superblock.meta_first == self.meta_first.get()
            && superblock.data_first == self.data_first.get()
            && superblock.data_blocks == self.data_blocks.get()
            && self.block_bytes.get() as usize == BLOCK_BYTES
            && blocks < 1 << 52;
        if same { Ok(superblock) } else { Err(damaged) }
    }
}

/// The better of the two copies: the first, unless it is damaged or gone and the far one is good.
///
/// # Errors
/// Those of [`Superblock::decode`], of the first copy.
pub(crate) fn choose(first: &[u8], far: &[u8]) -> Result<Superblock, FsError> {
    match Superblock::decode(first) {
        // Another version is an answer, not damage: the far copy would say the same.
        Err(error @ FsError::Version { .. }) => Err(error),
        Err(error) => Superblock::decode(far).map_err(|_| error),
        good => good,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock::lay_out(10_000, 1250, [7; 16], "été", 99).unwrap()
    }

    #[test]
    fn it_survives_its_bytes_and_the_offsets_are_those_of_the_specification() {
        let block = sample().encode();
        assert_eq!(Superblock::decode(&block).unwrap(), sample());
        assert_eq!(&block[..8], b"NVMEDFS1");
        assert_eq!(block[96..104], 10_000u64.to_le_bytes());
        assert_eq!(block[144..152], 99u64.to_le_bytes());
        assert_eq!(sample().data_first + sample().data_blocks, 9_999);
    }

    #[test]
    fn a_torn_first_copy_is_replaced_by_the_far_one() {
        let good = sample().encode();
        let mut torn = good.clone();
        torn[512..].fill(0xee);
        assert_eq!(choose(&torn, &good).unwrap(), sample());
        assert_eq!(choose(&[0; BLOCK_BYTES], &good).unwrap(), sample());
        assert!(matches!(choose(&torn, &torn), Err(FsError::Damaged { .. })));
        assert!(matches!(choose(&[0; BLOCK_BYTES], &[0; BLOCK_BYTES]), Err(FsError::NotOurs)));
    }

    #[test]
    fn another_version_is_named_and_not_guessed_at() {
        let mut block = sample().encode();
        block[8] = 9;
        let crc = checksum(&block);
        block[CRC_OFFSET..].copy_from_slice(&crc);
        let old = sample().encode();
        assert!(matches!(choose(&block, &old), Err(FsError::Version { found: 9, known: 1 })));
    }

    #[test]
    fn layouts_that_leave_no_room_are_refused() {
        for (blocks, meta) in [(0, 0), (2047, 1024), (2048, 1023), (2048, 1025)] {
            assert!(Superblock::lay_out(blocks, meta, [0; 16], "", 0).is_err(), "{blocks} {meta}");
        }
        assert!(Superblock::lay_out(2048, 1024, [0; 16], &"x".repeat(65), 0).is_err());
    }
}
