//! Where things lie in the region, and the checksum that ties blocks to their store.

use crate::KvError;
use crate::stream::StreamBlock;
use nvmed_sys::crc32c_of_few;
use nvmed_units::{BLOCK_BYTES, Block};

/// What a block of the medium holds.
pub(crate) type BlockBytes = [u8; BLOCK_BYTES];

/// Tree blocks that one bitmap page covers: the bits of a block less its 32-byte header.
pub(crate) const PAGE_BITS: u64 = (4096 - 32) * 8;
/// Blocks of a group: the two slots of its bitmap page, then the tree blocks that the page covers.
const GROUP_BLOCKS: u64 = 2 + PAGE_BITS;
/// Bitmap pages at most: the superblock has room for 960 names of four bytes.
pub(crate) const PAGES_MAX: u64 = 960;
/// Blocks used at most, 119 GiB of metadata: those of the bitmap pages.
pub(crate) const BLOCKS_MAX: u64 = PAGES_MAX * GROUP_BLOCKS;
/// Blocks of the smallest log: two of the largest batches of such a store, and their neighbours.
pub(crate) const LOG_BLOCKS_MIN: u64 = 64;
/// Blocks of any log at most (24 MiB). What is in it is read and applied by the next `open`: 175 ms of
/// processor time for records of 84 bytes in random order, 24 ms for records of 536 (`examples/recovery.rs`).
pub(crate) const LOG_BLOCKS_MAX: u64 = 6144;
/// Tree blocks of the smallest store: the space kept for deleting, and as much to use.
pub(crate) const TREE_BLOCKS_MIN: u64 = 160;

/// A block among those of the tree, counted from the first: bitmap pages lie between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct TreeIndex(pub(crate) u64);

impl TreeIndex {
    /// The bitmap page that covers it.
    #[inline]
    pub(crate) fn page(self) -> u64 {
        self.0 / PAGE_BITS
    }

    /// Its bit in that page.
    #[inline]
    pub(crate) fn within(self) -> u64 {
        self.0 % PAGE_BITS
    }
}

impl core::fmt::Display for TreeIndex {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// The regions of a store (`docs/spec/kv.md`, Regions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) blocks: u64,
    pub(crate) log_blocks: u64,
    pub(crate) pages: u64,
}

impl Layout {
    /// The layout of a new store on a medium of `medium_blocks`.
    pub(crate) fn plan(medium_blocks: u64, log_blocks: Option<u32>) -> Result<Self, KvError> {
        let blocks = medium_blocks.min(BLOCKS_MAX);
        let default = (blocks / 8).clamp(LOG_BLOCKS_MIN, LOG_BLOCKS_MAX);
        let log_blocks = log_blocks.map_or(default, u64::from).clamp(LOG_BLOCKS_MIN, LOG_BLOCKS_MAX);
        let needed = 2 + log_blocks + 2 + TREE_BLOCKS_MIN;
        if blocks < needed {
            return Err(KvError::TooSmall { needed, found: medium_blocks });
        }
        Ok(Self::of(blocks, log_blocks).expect("a medium with room for the smallest tree has a layout"))
    }

    /// The layout that `blocks` and `log_blocks` imply, unless they leave no room for a tree.
    pub(crate) fn of(blocks: u64, log_blocks: u64) -> Option<Self> {
        if blocks > BLOCKS_MAX || !(LOG_BLOCKS_MIN..=LOG_BLOCKS_MAX).contains(&log_blocks) {
            return None;
        }
        let rest = blocks.checked_sub(2 + log_blocks)?;
        // A last group of two blocks or one would hold nothing; they stay unused.
        let pages = rest / GROUP_BLOCKS + u64::from(rest % GROUP_BLOCKS > 2);
        let layout = Self { blocks, log_blocks, pages };
        (layout.tree_blocks() >= TREE_BLOCKS_MIN).then_some(layout)
    }

    /// The layout of this store once it uses all of a medium of `medium_blocks`, if that is more.
    ///
    /// What lies where it did stays; only the far superblock moves.
    pub(crate) fn grown(&self, medium_blocks: u64) -> Option<Self> {
        Self::of(medium_blocks.min(BLOCKS_MAX), self.log_blocks).filter(|layout| layout.blocks > self.blocks)
    }

    /// Where superblock slot 1 lies on a medium of which nothing else is known.
    pub(crate) fn far_block(medium_blocks: u64) -> Block {
        Block(medium_blocks.clamp(1, BLOCKS_MAX) - 1)
    }

    pub(crate) fn superblock(&self, slot: u64) -> Block {
        assert!(slot < 2, "slot {slot} of two superblocks");
        if slot == 0 { Block(0) } else { Block(self.blocks - 1) }
    }

    /// Blocks of the log's ring: all of the log but the twin.
    pub(crate) fn ring_blocks(&self) -> u64 {
        self.log_blocks - 1
    }

    /// The ring block of stream block `stream_block`, its home.
    pub(crate) fn log_block(&self, stream_block: StreamBlock) -> Block {
        Block(1 + stream_block.0 % self.ring_blocks())
    }

    /// The other slot of the block that the stream ends in: right behind the ring.
    pub(crate) fn twin_block(&self) -> Block {
        Block(1 + self.ring_blocks())
    }

    /// The first block of the first group.
    fn groups_start(&self) -> Block {
        Block(1 + self.log_blocks)
    }

    pub(crate) fn bitmap_block(&self, page: u64, slot: bool) -> Block {
        assert!(page < self.pages, "bitmap page {page} of {}", self.pages);
        self.groups_start() + page * GROUP_BLOCKS + u64::from(slot)
    }

    /// Where tree block `index` lies.
    pub(crate) fn tree_block(&self, index: TreeIndex) -> Block {
        self.bitmap_block(index.page(), false) + 2 + index.within()
    }

    /// Which tree block `block` is.
    pub(crate) fn tree_index(&self, block: Block) -> Option<TreeIndex> {
        let at = block.0.checked_sub(self.groups_start().0).filter(|_| block.0 < self.blocks - 1)?;
        let within = (at % GROUP_BLOCKS).checked_sub(2)?;
        Some(TreeIndex(at / GROUP_BLOCKS * PAGE_BITS + within))
    }

    /// Whether a node may lie in `block`.
    pub(crate) fn is_tree_block(&self, block: Block) -> bool {
        self.tree_index(block).is_some()
    }

    /// How many tree blocks there are.
    pub(crate) fn tree_blocks(&self) -> u64 {
        let rest = self.blocks - 2 - self.log_blocks;
        // A last group of two blocks or one holds nothing.
        rest / GROUP_BLOCKS * PAGE_BITS + (rest % GROUP_BLOCKS).saturating_sub(2)
    }
}

/// The checksum of `parts`, one after the other, in the store with `identity`.
pub(crate) fn checksum(identity: u64, parts: &[&[u8]]) -> u32 {
    Seed::of(identity).checksum(parts)
}

/// Bytes up to which the processor's instruction alone sums them fastest: of more, runs are summed side by side.
const FEW_BYTES: usize = 512;

/// What the checksums of a store begin with, for those who make many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u32);

impl Seed {
    /// Of the store with `identity`.
    pub(crate) fn of(identity: u64) -> Self {
        Self(crc32c::crc32c(&identity.to_le_bytes()))
    }

    /// As [`checksum`].
    pub(crate) fn checksum(self, parts: &[&[u8]]) -> u32 {
        parts.iter().fold(self.0, |crc, part| sum(crc, part))
    }
}

#[inline]
fn sum(crc: u32, part: &[u8]) -> u32 {
    let few = if part.len() <= FEW_BYTES { crc32c_of_few(crc, part) } else { None };
    few.unwrap_or_else(|| crc32c::crc32c_append(crc, part))
}

/// The two little-endian bytes at `offset`.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

/// The four little-endian bytes at `offset`.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes make a u32"))
}

/// The eight little-endian bytes at `offset`.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes make a u64"))
}

/// Stores `value` little-endian at `offset`.
pub(crate) fn put_u16(bytes: &mut [u8], offset: usize, value: u16) {
    bytes[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
}

/// Stores `value` little-endian at `offset`.
pub(crate) fn put_u32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

/// Stores `value` little-endian at `offset`.
pub(crate) fn put_u64(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_meet_and_the_bitmap_covers_the_tree() {
        for blocks in [230, 1024, 32_514 + 4096, 32_517 + 4641, 40_000, 1 << 20, BLOCKS_MAX] {
            let layout = Layout::plan(blocks, None).unwrap();
            let total = layout.tree_blocks();
            assert!(layout.pages * PAGE_BITS >= total, "{layout:?}");
            assert!((layout.pages - 1) * PAGE_BITS < total, "{layout:?}");
            let mut used: Vec<_> = (0..2.min(layout.pages)).chain(layout.pages - 1..layout.pages).collect();
            used.dedup();
            for page in used {
                for slot in [false, true] {
                    assert!(!layout.is_tree_block(layout.bitmap_block(page, slot)), "{layout:?}");
                }
                for index in [page * PAGE_BITS, ((page + 1) * PAGE_BITS).min(total) - 1].map(TreeIndex) {
                    let block = layout.tree_block(index);
                    assert!(block < layout.superblock(1), "{layout:?}");
                    assert_eq!(layout.tree_index(block), Some(index), "{layout:?}");
                }
            }
            assert!(layout.pages <= PAGES_MAX);
            let ring = StreamBlock(layout.ring_blocks());
            assert_eq!(layout.log_block(ring), Block(1));
            assert_eq!(layout.log_block(StreamBlock(ring.0 - 1)) + 1, layout.twin_block());
            assert_eq!(layout.twin_block() + 1, layout.bitmap_block(0, false));
        }
        let small = Layout::plan(40_000, None).unwrap();
        let grown = small.grown(100_000).unwrap();
        for index in [0, 5, 32_511, 32_512, small.tree_blocks() - 1].map(TreeIndex) {
            assert_eq!(small.tree_block(index), grown.tree_block(index));
        }
        assert!(grown.is_tree_block(small.superblock(1)) && small.grown(40_000).is_none());
        assert!(matches!(Layout::plan(200, None), Err(KvError::TooSmall { .. })));
    }

    #[test]
    #[should_panic(expected = "slot 2 of two")]
    fn a_third_superblock_is_our_mistake() {
        Layout::plan(1000, None).unwrap().superblock(2);
    }

    #[test]
    #[should_panic(expected = "bitmap page 1 of 1")]
    fn a_block_beyond_the_bitmap_is_our_mistake() {
        Layout::plan(1000, None).unwrap().tree_block(TreeIndex(PAGE_BITS));
    }
}
