//! Where things lie in the region, and the checksum that ties blocks to their store.

use crate::{KvError, Options};

/// Tree blocks that one bitmap page covers: the bits of a block less its 32-byte header.
pub(crate) const PAGE_BITS: u64 = (4096 - 32) * 8;
/// Blocks used at most: 2 TiB of metadata. Its 16,513 bitmap pages fit the superblock's 30,720 slot bits.
pub(crate) const BLOCKS_MAX: u64 = 1 << 29;
/// Blocks of the smallest log: two of the largest batches of such a store, and their neighbours.
pub(crate) const LOG_BLOCKS_MIN: u64 = 64;
/// Blocks of the default log at most (32 MiB): replaying it after a crash takes about 0.1 s.
const LOG_BLOCKS_DEFAULT_MAX: u64 = 8192;
/// Blocks of any log at most (1 GiB): what is in it must fit the 4 GiB that the delta can address.
pub(crate) const LOG_BLOCKS_MAX: u64 = 1 << 18;
/// Tree blocks of the smallest store: the space kept for deleting, and as much to use.
pub(crate) const TREE_BLOCKS_MIN: u64 = 160;

/// The regions of a store (`docs/spec/kv.md`, Regions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) blocks: u64,
    pub(crate) log_blocks: u64,
    pub(crate) pages: u64,
}

impl Layout {
    /// The layout of a new store on a medium of `medium_blocks`.
    pub(crate) fn plan(medium_blocks: u64, options: &Options) -> Result<Self, KvError> {
        let blocks = medium_blocks.min(BLOCKS_MAX);
        let default = (blocks / 8).clamp(LOG_BLOCKS_MIN, LOG_BLOCKS_DEFAULT_MAX);
        let log_blocks = options.log_blocks.map_or(default, u64::from).clamp(LOG_BLOCKS_MIN, LOG_BLOCKS_MAX);
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
        let layout = Self { blocks, log_blocks, pages: rest.div_ceil(PAGE_BITS + 2) };
        (rest >= 2 * layout.pages + TREE_BLOCKS_MIN).then_some(layout)
    }

    /// Where superblock slot 1 lies on a medium of which nothing else is known.
    pub(crate) fn far_block(medium_blocks: u64) -> u64 {
        medium_blocks.clamp(1, BLOCKS_MAX) - 1
    }

    pub(crate) fn superblock(&self, slot: u64) -> u64 {
        if slot == 0 { 0 } else { self.blocks - 1 }
    }

    /// The ring block of stream block `stream_block`.
    pub(crate) fn log_block(&self, stream_block: u64) -> u64 {
        1 + stream_block % self.log_blocks
    }

    pub(crate) fn bitmap_block(&self, page: u64, slot: bool) -> u64 {
        1 + self.log_blocks + 2 * page + u64::from(slot)
    }

    /// The first tree block.
    pub(crate) fn tree_start(&self) -> u64 {
        1 + self.log_blocks + 2 * self.pages
    }

    /// Whether a node may lie in `block`.
    pub(crate) fn is_tree_block(&self, block: u64) -> bool {
        (self.tree_start()..self.blocks - 1).contains(&block)
    }

    /// How many tree blocks there are.
    pub(crate) fn tree_blocks(&self) -> u64 {
        self.blocks - 1 - self.tree_start()
    }
}

/// The checksum of `parts`, one after the other, in the store with `identity`.
pub(crate) fn checksum(identity: u64, parts: &[&[u8]]) -> u32 {
    let seed = crc32c::crc32c(&identity.to_le_bytes());
    parts.iter().fold(seed, |crc, part| crc32c::crc32c_append(crc, part))
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
        for blocks in [230, 1024, 32_514 + 130, 40_000, 1 << 20, BLOCKS_MAX] {
            let layout = Layout::plan(blocks, &Options::default()).unwrap();
            assert_eq!(layout.tree_start(), layout.bitmap_block(layout.pages - 1, true) + 1);
            assert!(layout.pages * PAGE_BITS >= layout.tree_blocks(), "{layout:?}");
            assert!((layout.pages - 1) * PAGE_BITS < layout.tree_blocks(), "{layout:?}");
            assert!(layout.pages <= 3840 * 8);
            assert_eq!(layout.log_block(layout.log_blocks), 1);
        }
        assert!(matches!(Layout::plan(200, &Options::default()), Err(KvError::TooSmall { .. })));
    }
}
