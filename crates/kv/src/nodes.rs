//! Nodes by reference: read, checked, and some of them kept in memory.

use crate::KvError;
use crate::disk::Disk;
use crate::guard::lock;
use crate::layout::Layout;
use crate::node::Node;
use crate::superblock::Reference;
use core::hash::{BuildHasherDefault, Hasher};
use nvmed_units::BLOCK_BYTES;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Shards, so that readers rarely meet at a lock.
const SHARDS: usize = 16;
/// Nodes kept at least in each shard, however small the limit.
const SHARD_NODES_MIN: usize = 1;

/// Where nodes come from.
pub(crate) struct Nodes {
    identity: u64,
    layout: Layout,
    shards: Vec<Mutex<Shard>>,
}

/// A clock: a node that was used since the hand last passed stays.
struct Shard {
    kept: HashMap<u64, Kept, BuildHasherDefault<BlockHasher>>,
    /// The blocks in `kept`, and some that were forgotten since.
    clock: Vec<u64>,
    hand: usize,
    limit: usize,
}

struct Kept {
    node: Arc<Node>,
    used: bool,
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
        let shard = || Mutex::new(Shard { kept: HashMap::default(), clock: Vec::new(), hand: 0, limit });
        Self { identity, layout, shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    fn shard(&self, block: u64) -> &Mutex<Shard> {
        &self.shards[block as usize % SHARDS]
    }

    /// The node that `want` refers to, at `level`.
    pub(crate) fn get(&self, disk: &Disk, want: &Reference, level: u16) -> Result<Arc<Node>, KvError> {
        if let Some(node) = lock(self.shard(want.block)).get(want.block)
            && node.crc() == want.crc
            && node.level() == level
        {
            return Ok(node);
        }
        let node = Arc::new(self.read(disk, want, level)?);
        self.keep(Arc::clone(&node));
        Ok(node)
    }

    /// Reads a node past the cache.
    pub(crate) fn read(&self, disk: &Disk, want: &Reference, level: u16) -> Result<Node, KvError> {
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        disk.read(want.block, &mut *bytes)?;
        Node::parse(bytes, want, level, self.identity, &self.layout)
    }

    /// Keeps `node`, in place of what was known of its block.
    pub(crate) fn keep(&self, node: Arc<Node>) {
        lock(self.shard(node.block())).put(node);
    }

    /// Forgets what was known of `block`.
    pub(crate) fn forget(&self, block: u64) {
        lock(self.shard(block)).remove(block);
    }
}

impl Shard {
    fn get(&mut self, block: u64) -> Option<Arc<Node>> {
        let kept = self.kept.get_mut(&block)?;
        kept.used = true;
        Some(Arc::clone(&kept.node))
    }

    fn put(&mut self, node: Arc<Node>) {
        let block = node.block();
        if self.kept.insert(block, Kept { node, used: false }).is_some() {
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
                Some(kept) if kept.used => kept.used = false,
                _ => return at,
            }
        }
    }

    fn remove(&mut self, block: u64) {
        self.kept.remove(&block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Builder, push_record};
    use crate::{MemoryMedium, Options};

    fn node(block: u64) -> Arc<Node> {
        let mut entry = Vec::new();
        push_record(&mut entry, &block.to_be_bytes(), b"");
        let mut builder = Builder::new();
        builder.push(&entry);
        Arc::new(builder.finish(1, block, 1, 0))
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let layout = Layout::plan(10_000, &Options::default()).unwrap();
        let disk = Disk::new(Arc::new(MemoryMedium::new(1)));
        let nodes = Nodes::new(1, layout, 2 * SHARDS * BLOCK_BYTES);
        let hot = node(3000);
        let want = Reference { block: 3000, generation: 1, crc: hot.crc() };
        nodes.keep(hot);
        for block in 3001..5000 {
            nodes.keep(node(block));
            assert!(nodes.get(&disk, &want, 0).is_ok(), "the hot node went at block {block}");
        }
        let kept: usize = nodes.shards.iter().map(|shard| lock(shard).kept.len()).sum();
        assert_eq!(kept, SHARDS * 2);
        nodes.forget(3000);
        assert!(nodes.get(&disk, &want, 0).is_err(), "a forgotten node is read from the medium");
    }
}
