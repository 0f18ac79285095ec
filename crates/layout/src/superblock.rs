//! The superblock: what the device is and where its regions lie (docs/spec/fs.md, "Superblock").
//!
//! Two copies lie far apart; the one with the higher revision counts, so that a change that is cut off leaves the
//! old one or the new one, and a damaged copy falls back to the other.

use core::ops::Range;
use nvmed_mutant::Mutant;
use nvmed_units::BLOCK_BYTES;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a device of ours.
pub const MAGIC: [u8; 8] = *b"NVMEDFS2";
/// The part of the magic that no version changes.
const MAGIC_STEM: &[u8] = b"NVMEDFS";
/// The format version this program reads and writes.
pub const VERSION: u32 = 2;
/// Longest label in bytes.
pub const LABEL_BYTES_MAX: usize = 64;
/// Smallest metadata region in blocks, 4 MiB: a log, two superblocks and room for a tree.
pub const META_BLOCKS_MIN: u64 = 1024;
/// Smallest file system in blocks, 8 MiB: below, metadata leaves no room for data.
pub(crate) const BLOCKS_MIN: u64 = 2048;
/// Runs of blocks that metadata can have. Each growth adds at most one, of an eighth of the region where there
/// is one so long.
pub(crate) const META_RUNS_MAX: usize = 240;
/// Flag: the last run may not be marked in the allocation bitmap yet.
const FLAG_GROWING: u32 = 1;
const CRC_OFFSET: usize = BLOCK_BYTES - 4;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRun {
    first: U64,
    blocks: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    block_bytes: U32,
    uuid: [u8; 16],
    label: [u8; LABEL_BYTES_MAX],
    blocks: U64,
    data_first: U64,
    data_blocks: U64,
    created_ns: I64,
    revision: U64,
    zone_bound: U32,
    features: U32,
    flags: U32,
    run_count: U32,
    runs: [RawRun; META_RUNS_MAX],
    zero: [u8; 100],
    crc: U32,
}
const _: () = assert!(size_of::<Raw>() == BLOCK_BYTES);

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
    /// Blocks of metadata, those that it took from the data region included.
    pub meta_blocks: u64,
    /// The runs of blocks that they are, in the order of the metadata store's own block numbers. The first lies
    /// before the data region, the others in it.
    pub meta_runs: Vec<Range<u64>>,
    /// First block of the data region.
    pub data_first: u64,
    /// Its blocks, those that metadata took included.
    pub data_blocks: u64,
    /// A directory with more in its subtree is a zone; 0: every directory is.
    pub zone_bound: u32,
    /// When it was formatted, ns since 1970.
    pub created_ns: i64,
    /// Counts changes of the superblock, from 1.
    pub revision: u64,
    /// Whether the last run may not be marked in the allocation bitmap yet.
    pub growing: bool,
}

/// Why a block is no superblock that this program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Another magic.
    NotOurs,
    /// Another version, or a feature that this one does not know.
    Version(u32),
    /// A wrong checksum.
    Checksum,
    /// Regions that contradict each other.
    Layout,
}

/// Why a device cannot be divided so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indivisible(pub &'static str);

/// What a format chooses.
#[derive(Clone, Debug)]
pub struct Choice<'a> {
    /// Blocks of the whole file system.
    pub blocks: u64,
    /// Blocks for metadata.
    pub meta_blocks: u64,
    /// Its identity.
    pub uuid: [u8; 16],
    /// A name for people.
    pub label: &'a str,
    /// Names below a directory beyond which it gets a zone of its own.
    pub zone_bound: u32,
    /// When, in nanoseconds since 1970.
    pub created_ns: i64,
}

impl Superblock {
    /// Divides a device.
    ///
    /// # Errors
    /// When one region would be too small, or the label too long.
    pub fn lay_out(choice: &Choice<'_>) -> Result<Self, Indivisible> {
        let &Choice { blocks, meta_blocks, uuid, label, zone_bound, created_ns } = choice;
        if blocks < BLOCKS_MIN {
            return Err(Indivisible("the device is smaller than 8 MiB"));
        }
        if meta_blocks < META_BLOCKS_MIN || meta_blocks > blocks - META_BLOCKS_MIN {
            return Err(Indivisible("metadata needs at least 4 MiB and must leave 4 MiB"));
        }
        if label.len() > LABEL_BYTES_MAX || label.contains('\0') {
            return Err(Indivisible("a label has at most 64 bytes, none of them zero"));
        }
        let (meta_first, data_first) = (1, 1 + meta_blocks);
        Ok(Self {
            uuid,
            label: label.to_owned(),
            blocks,
            meta_first,
            meta_blocks,
            meta_runs: core::iter::once(meta_first..data_first).collect(),
            data_first,
            data_blocks: blocks - meta_blocks - 2,
            zone_bound,
            created_ns,
            revision: 1,
            growing: false,
        })
    }

    /// The superblock once metadata has taken a run of data blocks; none when it has too many already.
    pub fn grown(&self, run: Range<u64>) -> Option<Self> {
        let mut grown = self.clone();
        match grown.meta_runs.last_mut() {
            // The first run is the region's own: it stays as it is.
            Some(last) if last.end == run.start && self.meta_runs.len() > 1 => last.end = run.end,
            _ if self.meta_runs.len() < META_RUNS_MAX => grown.meta_runs.push(run.clone()),
            _ => return None,
        }
        grown.meta_blocks += run.end - run.start;
        grown.revision += 1;
        grown.growing = !Mutant::GrowthFlagForgotten.is_made();
        Some(grown)
    }

    /// The runs that metadata took from the data region.
    pub fn taken_runs(&self) -> &[Range<u64>] {
        self.meta_runs.get(1..).unwrap_or(&[])
    }

    /// Where the far copy lies.
    pub fn far_block(&self) -> u64 {
        self.blocks - 1
    }

    /// The block as it lies on the device.
    pub fn encode(&self) -> Box<[u8]> {
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.block_bytes = (BLOCK_BYTES as u32).into();
        raw.uuid = self.uuid;
        raw.label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        raw.blocks = self.blocks.into();
        raw.data_first = self.data_first.into();
        raw.data_blocks = self.data_blocks.into();
        raw.created_ns = self.created_ns.into();
        raw.revision = self.revision.into();
        raw.zone_bound = self.zone_bound.into();
        raw.flags = u32::from(self.growing).into();
        raw.run_count = u32::try_from(self.meta_runs.len()).expect("the superblock tells of few runs").into();
        for (place, run) in raw.runs.iter_mut().zip(&self.meta_runs) {
            *place = RawRun { first: run.start.into(), blocks: (run.end - run.start).into() };
        }
        raw.crc = crc32c::crc32c(&raw.as_bytes()[..CRC_OFFSET]).into();
        raw.as_bytes().into()
    }

    /// Reads a block.
    ///
    /// # Errors
    /// [`Unreadable`] says them.
    pub fn decode(block: &[u8]) -> Result<Self, Unreadable> {
        let (raw, _) = Raw::read_from_prefix(block).map_err(|_| Unreadable::NotOurs)?;
        if !raw.magic.starts_with(MAGIC_STEM) {
            return Err(Unreadable::NotOurs);
        }
        if raw.crc.get() != crc32c::crc32c(&block[..CRC_OFFSET]) {
            return Err(Unreadable::Checksum);
        }
        if raw.magic != MAGIC || raw.version.get() != VERSION || raw.features.get() != 0 {
            let found = if raw.version.get() == VERSION { VERSION + 1 } else { raw.version.get() };
            return Err(Unreadable::Version(found));
        }
        raw.check().ok_or(Unreadable::Layout)
    }
}

impl Raw {
    fn check(&self) -> Option<Superblock> {
        let end = self.label.iter().position(|&byte| byte == 0).unwrap_or(LABEL_BYTES_MAX);
        let runs = self.runs.get(..self.run_count.get() as usize)?;
        let choice = Choice {
            blocks: self.blocks.get(),
            meta_blocks: runs.first()?.blocks.get(),
            uuid: self.uuid,
            label: "",
            zone_bound: self.zone_bound.get(),
            created_ns: self.created_ns.get(),
        };
        let mut superblock = Superblock::lay_out(&choice).ok()?;
        superblock.label = String::from_utf8_lossy(&self.label[..end]).into_owned();
        let data = superblock.data_first..superblock.data_first + superblock.data_blocks;
        for run in &runs[1..] {
            let run = run.first.get()..run.first.get().checked_add(run.blocks.get())?;
            if run.is_empty() || run.start < data.start || run.end > data.end {
                return None;
            }
            superblock.meta_blocks += run.end - run.start;
            superblock.meta_runs.push(run);
        }
        let mut sorted = superblock.meta_runs.clone();
        sorted.sort_unstable_by_key(|run| run.start);
        superblock.revision = self.revision.get();
        superblock.growing = self.flags.get() & FLAG_GROWING != 0;
        let same = superblock.meta_first == runs[0].first.get()
            && superblock.data_first == self.data_first.get()
            && superblock.data_blocks == self.data_blocks.get()
            && self.block_bytes.get() as usize == BLOCK_BYTES
            && sorted.windows(2).all(|pair| pair[0].end <= pair[1].start)
            && superblock.blocks < 1 << 52;
        same.then_some(superblock)
    }
}

/// The better of the two copies: of two good ones that with the higher revision.
///
/// # Errors
/// Those of [`Superblock::decode`], of the first copy.
pub fn choose(first: &[u8], far: &[u8]) -> Result<Superblock, Unreadable> {
    match (Superblock::decode(first), Superblock::decode(far)) {
        // Another version is an answer, not damage: the far copy would say the same.
        (Err(error @ Unreadable::Version(_)), _) => Err(error),
        (Ok(first), Ok(far)) if far.revision > first.revision && far.uuid == first.uuid => Ok(far),
        (Ok(first), _) => Ok(first),
        (Err(_), Ok(far)) => Ok(far),
        (Err(error), Err(_)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice<'a>() -> Choice<'a> {
        Choice {
            blocks: 10_000,
            meta_blocks: 1250,
            uuid: [7; 16],
            label: "été",
            zone_bound: 64,
            created_ns: 99,
        }
    }

    fn sample() -> Superblock {
        Superblock::lay_out(&choice()).unwrap()
    }

    fn sealed(mut block: Box<[u8]>) -> Box<[u8]> {
        let crc = crc32c::crc32c(&block[..CRC_OFFSET]).to_le_bytes();
        block[CRC_OFFSET..].copy_from_slice(&crc);
        block
    }

    #[test]
    fn it_survives_its_bytes_and_the_offsets_are_those_of_the_specification() {
        let block = sample().encode();
        assert_eq!(Superblock::decode(&block).unwrap(), sample());
        assert_eq!(&block[..8], b"NVMEDFS2");
        assert_eq!(block[96..104], 10_000u64.to_le_bytes());
        assert_eq!(block[120..128], 99u64.to_le_bytes());
        assert_eq!(block[136..140], 64u32.to_le_bytes());
        assert_eq!(block[152..160], 1u64.to_le_bytes());
        assert_eq!(block[160..168], 1250u64.to_le_bytes());
        assert_eq!(sample().data_first + sample().data_blocks, 9_999);
    }

    #[test]
    fn metadata_that_grew_is_remembered() {
        let once = sample().grown(3000..3100).unwrap();
        let twice = once.grown(2000..2200).unwrap().grown(2200..2300).unwrap();
        assert_eq!(twice.meta_runs, [1..1251, 3000..3100, 2000..2300], "neighbours are one run");
        assert_eq!((twice.meta_blocks, twice.revision, twice.growing), (1250 + 400, 4, true));
        assert_eq!(Superblock::decode(&twice.encode()).unwrap(), twice);
        assert_eq!(sample().grown(1251..1300).unwrap().meta_runs.len(), 2, "the region itself does not grow");
        let mut full = sample();
        while let Some(more) = full.grown(full.meta_blocks * 5..full.meta_blocks * 5 + 1) {
            full = more;
        }
        assert_eq!(full.meta_runs.len(), META_RUNS_MAX);
    }

    #[test]
    fn runs_that_overlap_or_lie_outside_are_damage() {
        let grown = sample().grown(3000..3100).unwrap();
        for run in [(3050u64, 10u64), (9_990, 20), (0, 5), (2000, 0), (u64::MAX, 7), (1250, 2)] {
            let mut block = grown.grown(5000..5001).unwrap().encode();
            block[152 + 32..152 + 40].copy_from_slice(&run.0.to_le_bytes());
            block[152 + 40..152 + 48].copy_from_slice(&run.1.to_le_bytes());
            let answer = Superblock::decode(&sealed(block));
            assert!(answer == Err(Unreadable::Layout), "{run:?} {answer:?}");
        }
        for count in [0u32, 241, u32::MAX] {
            let mut block = grown.encode();
            block[148..152].copy_from_slice(&count.to_le_bytes());
            assert_eq!(Superblock::decode(&sealed(block)), Err(Unreadable::Layout), "{count} runs");
        }
    }

    #[test]
    fn the_higher_revision_counts_and_a_torn_copy_does_not() {
        let (old, new) = (sample(), sample().grown(3000..3100).unwrap());
        let (good, newer) = (old.encode(), new.encode());
        let mut torn = newer.clone();
        torn[512..].fill(0xee);
        assert_eq!(choose(&torn, &good).unwrap(), old);
        assert_eq!(choose(&newer, &good).unwrap(), new);
        assert_eq!(choose(&good, &newer).unwrap(), new);
        assert_eq!(choose(&newer, &torn).unwrap(), new);
        assert_eq!(choose(&[0; BLOCK_BYTES], &good).unwrap(), old);
        assert!(matches!(choose(&torn, &torn), Err(Unreadable::Checksum)));
        assert!(matches!(choose(&[0; BLOCK_BYTES], &[0; BLOCK_BYTES]), Err(Unreadable::NotOurs)));
    }

    #[test]
    fn another_version_is_named_and_not_guessed_at() {
        let mut block = sample().encode();
        block[8] = 9;
        let old = sample().encode();
        assert!(matches!(choose(&sealed(block), &old), Err(Unreadable::Version(9))));
        let mut first = sample().encode();
        first[..8].copy_from_slice(b"NVMEDFS1");
        first[8] = 1;
        assert!(matches!(choose(&sealed(first), &old), Err(Unreadable::Version(1))));
    }

    #[test]
    fn layouts_that_leave_no_room_are_refused() {
        for (blocks, meta_blocks) in [(0, 0), (2047, 1024), (2048, 1023), (2048, 1025)] {
            assert!(Superblock::lay_out(&Choice { blocks, meta_blocks, ..choice() }).is_err());
        }
        assert!(Superblock::lay_out(&Choice { label: &"x".repeat(65), ..choice() }).is_err());
    }
}
