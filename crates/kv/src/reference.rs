//! What a block knows of another one that it leads to.

use crate::layout::{Layout, put_u32, u16_at, u32_at};
use nvmed_units::{Block, bounded};

/// Bytes of a reference in a node.
pub(crate) const REFERENCE_BYTES: usize = 14;
/// Bytes of a root in a leaf: reference and level.
pub(crate) const ROOT_BYTES: usize = REFERENCE_BYTES + 1;
/// Generations are below this: six bytes in a reference.
pub(crate) const GENERATION_END: u64 = 1 << 48;
/// Nodes from the root to a leaf at most, less one: with three entries a node, 2^32 leaves.
pub(crate) const LEVEL_MAX: u16 = 20;

/// What a parent knows of a child node; in the superblock, of the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) block: Block,
    pub(crate) generation: u64,
    pub(crate) crc: u32,
}

/// The root of a tree and its level, 0 for a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) node: Reference,
    pub(crate) level: u16,
}

impl Reference {
    /// Its short form.
    pub(crate) fn encode(&self) -> [u8; REFERENCE_BYTES] {
        let mut bytes = [0; REFERENCE_BYTES];
        put_u32(&mut bytes, 0, bounded(self.block.0, "a region has fewer than 2^32 blocks"));
        put_u32(&mut bytes, 4, self.crc);
        bytes[8..].copy_from_slice(&self.generation.to_le_bytes()[..6]);
        bytes
    }

    /// The reference whose short form is at `offset`.
    pub(crate) fn at(bytes: &[u8], offset: usize) -> Self {
        let generation = u64::from(u32_at(bytes, offset + 8)) | u64::from(u16_at(bytes, offset + 12)) << 32;
        Self { block: Block(u32_at(bytes, offset).into()), crc: u32_at(bytes, offset + 4), generation }
    }

    /// Whether it may stand in a node of `generation`.
    pub(crate) fn is_sound(&self, generation: u64, layout: &Layout) -> bool {
        layout.is_tree_block(self.block) && self.generation <= generation
    }
}

impl Root {
    /// Its short form.
    pub(crate) fn encode(&self) -> [u8; ROOT_BYTES] {
        let mut bytes = [0; ROOT_BYTES];
        bytes[..REFERENCE_BYTES].copy_from_slice(&self.node.encode());
        bytes[REFERENCE_BYTES] = bounded(self.level, "levels are below 21");
        bytes
    }

    /// The root whose short form is `bytes`.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        Self { node: Reference::at(bytes, 0), level: bytes[REFERENCE_BYTES].into() }
    }
}
