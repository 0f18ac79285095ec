//! Nodes by reference: read, checked, and some of them kept in memory.

use crate::KvError;
use crate::disk::Disk;
use crate::layout::Layout;
use crate::node::Node;
use crate::reference::Reference;
use core::hash::{BuildHasherDefault, Hasher};
use nvmed_sys::sync::{Arc, Mutex, RwLock};
use nvmed_units::{BLOCK_BYTES, Block};
use std::collections::HashMap;

/// Shards, so that readers rarely meet at a lock.
const SHARDS: usize = 16;
/// Nodes kept at least in each shard, however small the limit.
const SHARD_NODES_MIN: usize = 1;

/// Rounds of the hand that a node with others below outlives its last use.
const PARENT_PASSES: u8 = 8;

/// Where nodes come from.
pub(crate) struct Nodes {
    identity: u64,
    layout: RwLock<Layout>,
    shards: Vec<Mutex<Shard>>,
}

/// A clock: a node that was used since the hand last passed stays; one that others hang from, longer.
struct Shard {
    kept: HashMap<Block, Kept, BuildHasherDefault<BlockHasher>>,
    /// The blocks in `kept`, and some that were forgotten since.
    clock: Vec<Block>,
    hand: usize,
    limit: usize,
    hits: u64,
    misses: u64,
}

struct Kept {
    node: Arc<Node>,
    /// Times that the hand passes it by.
    passes: u8,
}

/// Block numbers are spread by one multiplication (Fibonacci hashing).
#[derive(Default)]
struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20);
    }
}

impl Nodes {
    /// Keeps about `bytes` bytes of nodes.
    pub(crate) fn new(identity: u64, layout: Layout, bytes: usize) -> Self {
        let limit = (bytes / BLOCK_BYTES / SHARDS).max(SHARD_NODES_MIN);
        let shard = || {
            let (kept, clock) = (HashMap::default(), Vec::new());
            Mutex::new(Shard { kept, clock, hand: 0, limit, hits: 0, misses: 0 })
        };
        Self { identity, layout: RwLock::new(layout), shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    /// The region grew.
    pub(crate) fn grow(&self, layout: Layout) {
        *self.layout.write() = layout;
    }

    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    fn shard(&self, block: Block) -> &Mutex<Shard> {
        &self.shards[block.0 as usize % SHARDS]
    }

    /// The node that `want` refers to, at `level`.
    pub(crate) fn get(&self, disk: &Disk, want: &Reference, level: u16) -> Result<Arc<Node>, KvError> {
        if let Some(node) = self.shard(want.block).lock().get(want.block)
            && node.crc() == want.crc
            && node.level() == level
        {
            return Ok(node);
        }
        let node = Arc::new(self.read(disk, want, level)?);
        self.keep(Arc::clone(&node));
        Ok(node)
    }

    /// How often a node was in memory, and how often it was not.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.shards
            .iter()
            .map(|shard| shard.lock())
            .fold((0, 0), |(hits, misses), shard| (hits + shard.hits, misses + shard.misses))
    }

    /// Reads a node past the cache.
    pub(crate) fn read(&self, disk: &Disk, want: &Reference, level: u16) -> Result<Node, KvError> {
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        disk.read(want.block, &mut *bytes)?;
        Node::parse(bytes, want, level, self.identity, &self.layout.read())
    }

    /// Keeps `node`, in place of what was known of its block.
    pub(crate) fn keep(&self, node: Arc<Node>) {
        self.shard(node.block()).lock().put(node);
    }

    /// Forgets what was known of `block`.
    pub(crate) fn forget(&self, block: Block) {
        self.shard(block).lock().remove(block);
    }
}

impl Shard {
    fn get(&mut self, block: Block) -> Option<Arc<Node>> {
        let Some(kept) = self.kept.get_mut(&block) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        kept.passes = if kept.node.is_parent { PARENT_PASSES } else { 1 };
        Some(Arc::clone(&kept.node))
    }

    fn put(&mut self, node: Arc<Node>) {
        let block = node.block();
        if self.kept.insert(block, Kept { passes: u8::from(node.is_parent), node }).is_some() {
            return;
        }
        if self.clock.len() < self.limit {
            self.clock.push(block);
        } else {
            let at = self.victim();
            self.kept.remove(&self.clock[at]);
            self.clock[at] = block;
        }
    }

    fn victim(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.clock.len();
            match self.kept.get_mut(&self.clock[at]) {
                Some(kept) if kept.passes > 0 => kept.passes -= 1,
                _ => return at,
            }
        }
    }

    fn remove(&mut self, block: Block) {
        self.kept.remove(&block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryMedium;
    use crate::leaf::{Builder, EntryKind};
    use crate::node::NodeAddress;

    fn node(block: Block) -> Arc<Node> {
        let mut builder = Builder::new();
        assert!(builder.push(&block.0.to_be_bytes(), EntryKind::Inline, b"", 0));
        Arc::new(builder.finish(NodeAddress { identity: 1, block, generation: 1 }))
    }

    #[test]
    fn a_node_with_others_below_outlives_leaves() {
        let layout = Layout::plan(10_000, None).unwrap();
        let disk = Disk::new(Arc::new(MemoryMedium::new(1)));
        let nodes = Nodes::new(1, layout, 4 * SHARDS * BLOCK_BYTES);
        let child =
            crate::node::Child { chunk: 0, node: Reference { block: Block(3001), generation: 1, crc: 0 } };
        let address = NodeAddress { identity: 1, block: Block(3000), generation: 1 };
        let parent = Arc::new(crate::node::inner(&[child], 1, address));
        let want = Reference { block: Block(3000), generation: 1, crc: parent.crc() };
        nodes.keep(parent);
        assert!(nodes.get(&disk, &want, 1).is_ok());
        // Leaves of the same shard, each used once: the hand goes around with almost every one.
        for n in 1..8 {
            let leaf = node(Block(3000 + n * SHARDS as u64));
            let want = Reference { block: leaf.block(), generation: 1, crc: leaf.crc() };
            nodes.keep(leaf);
            assert!(nodes.get(&disk, &want, 0).is_ok());
        }
        assert!(nodes.get(&disk, &want, 1).is_ok(), "the parent went before leaves");
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let layout = Layout::plan(10_000, None).unwrap();
        let disk = Disk::new(Arc::new(MemoryMedium::new(1)));
        let nodes = Nodes::new(1, layout, 2 * SHARDS * BLOCK_BYTES);
        let hot = node(Block(3000));
        let want = Reference { block: Block(3000), generation: 1, crc: hot.crc() };
        nodes.keep(hot);
        for block in (3001..5000).map(Block) {
            nodes.keep(node(block));
            assert!(nodes.get(&disk, &want, 0).is_ok(), "the hot node went at block {block}");
        }
        let kept: usize = nodes.shards.iter().map(|shard| shard.lock().kept.len()).sum();
        assert_eq!(kept, SHARDS * 2);
        nodes.forget(Block(3000));
        assert!(nodes.get(&disk, &want, 0).is_err(), "a forgotten node is read from the medium");
    }
}
