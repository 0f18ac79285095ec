//! One node of a tree: a checked block (`docs/spec/kv.md`, Tree). What a leaf holds is in `leaf`.

use crate::KvError;
use crate::layout::{BlockBytes, Layout, checksum, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use crate::leaf;
use crate::reference::{LEVEL_MAX, REFERENCE_BYTES, Reference};
use nvmed_units::{BLOCK_BYTES, Block, bounded};

const MAGIC: u32 = u32::from_le_bytes(*b"KVND");
pub(crate) const HEADER_BYTES: usize = 32;
/// Bytes for what a node holds.
pub(crate) const CAPACITY: usize = BLOCK_BYTES - HEADER_BYTES;
/// Bytes of a key that one B+tree looks at.
pub(crate) const CHUNK_BYTES: usize = 8;
/// Children of an inner node at most: 184.
pub(crate) const FANOUT_MAX: usize = CAPACITY / (CHUNK_BYTES + REFERENCE_BYTES);

/// A checked node: every offset and length in it lies inside.
pub(crate) struct Node {
    pub(crate) bytes: Box<BlockBytes>,
    level: u16,
    len: u16,
    /// Of a leaf: bytes that all rests begin with, and of each the chunk after these: a search looks at
    /// neighbours in one small array, and at few keys.
    pub(crate) shared: u16,
    pub(crate) hints: Box<[u64]>,
    /// Whether other nodes hang from this one: memory is kept for it in preference.
    pub(crate) is_parent: bool,
}

/// An entry of an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) chunk: u64,
    pub(crate) node: Reference,
}

/// The first chunk of `rest`: eight bytes as a number that orders as they do, as if followed by zeroes.
pub(crate) fn chunk(rest: &[u8]) -> u64 {
    if let Some(first) = rest.first_chunk::<CHUNK_BYTES>() {
        return u64::from_be_bytes(*first);
    }
    let mut first = [0; CHUNK_BYTES];
    first[..rest.len()].copy_from_slice(rest);
    u64::from_be_bytes(first)
}

impl Node {
    /// Takes `bytes` for the node that `want` refers to, at `level`, or says why it is not.
    pub(crate) fn parse(
        bytes: Box<BlockBytes>,
        want: &Reference,
        level: u16,
        identity: u64,
        layout: &Layout,
    ) -> Result<Self, KvError> {
        let damaged = |reason| KvError::Corrupt { block: want.block, structure: "tree node", reason };
        if u32_at(&*bytes, 0) != MAGIC {
            return Err(damaged("magic"));
        }
        let crc = checksum(identity, &[&bytes[8..]]);
        if crc != u32_at(&*bytes, 4) {
            return Err(damaged("checksum"));
        }
        if crc != want.crc || u64_at(&*bytes, 16) != want.generation || u64_at(&*bytes, 8) != want.block.0 {
            return Err(damaged("not the version that its parent refers to"));
        }
        if u16_at(&*bytes, 24) != level {
            return Err(damaged("level"));
        }
        let this = Self::unchecked(bytes);
        if level > 0 { this.check_inner(layout) } else { leaf::check(&this, layout) }.map_err(damaged)?;
        let this = this.with_hints();
        if level == 0 {
            leaf::check_order(&this).map_err(damaged)?;
        }
        Ok(this)
    }

    fn unchecked(bytes: Box<BlockBytes>) -> Self {
        let (level, len) = (u16_at(&*bytes, 24), u16_at(&*bytes, 26));
        Self { bytes, level, len, shared: 0, hints: Box::default(), is_parent: level > 0 }
    }

    fn with_hints(mut self) -> Self {
        if self.level == 0 {
            leaf::prepare(&mut self);
        }
        self
    }

    fn check_inner(&self, layout: &Layout) -> Result<(), &'static str> {
        if self.len == 0 || self.len() > FANOUT_MAX {
            return Err("number of entries");
        }
        for index in 0..self.len() {
            if !self.child(index).is_sound(self.generation(), layout) {
                return Err("a child's place");
            }
            if index > 0 && self.chunk(index - 1) >= self.chunk(index) {
                return Err("order of chunks");
            }
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub(crate) fn level(&self) -> u16 {
        self.level
    }

    pub(crate) fn block(&self) -> Block {
        Block(u64_at(&*self.bytes, 8))
    }

    pub(crate) fn generation(&self) -> u64 {
        u64_at(&*self.bytes, 16)
    }

    pub(crate) fn crc(&self) -> u32 {
        u32_at(&*self.bytes, 4)
    }

    /// The chunk of entry `index` of an inner node.
    pub(crate) fn chunk(&self, index: usize) -> u64 {
        chunk(&self.bytes[HEADER_BYTES + CHUNK_BYTES * index..])
    }

    /// The child of entry `index` of an inner node.
    pub(crate) fn child(&self, index: usize) -> Reference {
        Reference::at(&*self.bytes, HEADER_BYTES + CHUNK_BYTES * self.len() + REFERENCE_BYTES * index)
    }

    /// The entry of an inner node whose child holds the rests of `chunk`.
    pub(crate) fn child_index(&self, chunk: u64) -> usize {
        let (mut low, mut size) = (0, self.len());
        // The last entry at or below `chunk`, or the first of all.
        while size > 1 {
            let half = size / 2;
            low += if self.chunk(low + half) <= chunk { half } else { 0 };
            size -= half;
        }
        low
    }
}

/// Where a node is to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeAddress {
    pub(crate) identity: u64,
    pub(crate) block: Block,
    pub(crate) generation: u64,
}

/// The inner node of `children`, at most [`FANOUT_MAX`].
pub(crate) fn inner(children: &[Child], level: u16, address: NodeAddress) -> Node {
    let mut bytes = Box::new([0; BLOCK_BYTES]);
    let references = HEADER_BYTES + CHUNK_BYTES * children.len();
    for (index, child) in children.iter().enumerate() {
        let at = HEADER_BYTES + CHUNK_BYTES * index;
        bytes[at..at + CHUNK_BYTES].copy_from_slice(&child.chunk.to_be_bytes());
        let at = references + REFERENCE_BYTES * index;
        bytes[at..at + REFERENCE_BYTES].copy_from_slice(&child.node.encode());
    }
    seal(bytes, level, children.len(), address)
}

/// A node of `len` entries from a block that lacks only its header.
pub(crate) fn seal(mut bytes: Box<BlockBytes>, level: u16, len: usize, address: NodeAddress) -> Node {
    assert!(len > 0 && level <= LEVEL_MAX, "a node of level {level} with {len} entries");
    put_u32(&mut *bytes, 0, MAGIC);
    put_u64(&mut *bytes, 8, address.block.0);
    put_u64(&mut *bytes, 16, address.generation);
    put_u16(&mut *bytes, 24, level);
    put_u16(&mut *bytes, 26, bounded(len, "a block has fewer entries than bytes"));
    let crc = checksum(address.identity, &[&bytes[8..]]);
    put_u32(&mut *bytes, 4, crc);
    Node::unchecked(bytes).with_hints()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a node of level 1 with 0 entries")]
    fn a_node_without_entries_is_our_mistake() {
        inner(&[], 1, NodeAddress { identity: 1, block: Block(9), generation: 1 });
    }
}
