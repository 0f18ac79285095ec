//! One node of the tree: a block of entries in key order (`docs/spec/kv.md`, Tree).

use crate::layout::{Layout, checksum, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use crate::superblock::{LEVEL_MAX, Reference};
use crate::{KEY_BYTES_MAX, KvError, VALUE_BYTES_MAX};
use core::cmp::Ordering;
use nvmed_units::BLOCK_BYTES;

const MAGIC: u32 = u32::from_le_bytes(*b"KVND");
const HEADER_BYTES: usize = 32;
/// Bytes for entries and their two-byte offsets.
pub(crate) const CAPACITY: usize = BLOCK_BYTES - HEADER_BYTES;
/// What one entry costs beyond its own bytes.
pub(crate) const SLOT_BYTES: usize = 2;
/// Bytes of a leaf entry before its key, of an inner entry before its key.
const LEAF_ENTRY: usize = 4;
const INNER_ENTRY: usize = 22;

// Three of the largest inner entries fit, or a tree could not grow; and one of the largest records.
const _: () = assert!(3 * (INNER_ENTRY + KEY_BYTES_MAX + SLOT_BYTES) <= CAPACITY);
const _: () = assert!(LEAF_ENTRY + KEY_BYTES_MAX + VALUE_BYTES_MAX + SLOT_BYTES <= CAPACITY);

type Block = [u8; BLOCK_BYTES];

/// A checked node: every offset and length in it lies inside.
pub(crate) struct Node {
    bytes: Box<Block>,
    level: u16,
    len: u16,
    /// Bytes that all keys begin with.
    shared: u16,
    /// The eight bytes of each key after these, as a number that orders as they do: a search looks at
    /// neighbours in one small array, and at few keys.
    hints: Box<[u64]>,
}

/// The first eight bytes as a number that orders as they do; shorter ones as if followed by zeroes.
fn hint(bytes: &[u8]) -> u64 {
    if let Some(first) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut first = [0; 8];
    first[..bytes.len()].copy_from_slice(bytes);
    u64::from_be_bytes(first)
}

/// Where the key of an encoded entry starts.
fn key_start(level: u16) -> usize {
    if level == 0 { LEAF_ENTRY } else { INNER_ENTRY }
}

/// The key of an encoded entry of a node of `level`.
pub(crate) fn entry_key(entry: &[u8], level: u16) -> &[u8] {
    let start = key_start(level);
    &entry[start..start + usize::from(u16_at(entry, 0))]
}

/// Appends the encoded leaf entry of a record.
pub(crate) fn push_record(into: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    into.reserve(LEAF_ENTRY + key.len() + value.len());
    into.extend_from_slice(&(key.len() as u16).to_le_bytes());
    into.extend_from_slice(&(value.len() as u16).to_le_bytes());
    into.extend_from_slice(key);
    into.extend_from_slice(value);
}

/// Appends the encoded inner entry of a child whose keys are at or above `key`.
pub(crate) fn push_child(into: &mut Vec<u8>, key: &[u8], child: &Reference) {
    into.reserve(INNER_ENTRY + key.len());
    into.extend_from_slice(&(key.len() as u16).to_le_bytes());
    into.extend_from_slice(&child.block.to_le_bytes());
    into.extend_from_slice(&child.generation.to_le_bytes());
    into.extend_from_slice(&child.crc.to_le_bytes());
    into.extend_from_slice(key);
}

/// The child of an encoded inner entry.
pub(crate) fn entry_child(entry: &[u8]) -> Reference {
    Reference { block: u64_at(entry, 2), generation: u64_at(entry, 10), crc: u32_at(entry, 18) }
}

impl Node {
    /// Takes `bytes` for the node that `want` refers to, at `level`, or says why it is not.
    pub(crate) fn parse(
        bytes: Box<Block>,
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
        if crc != want.crc || u64_at(&*bytes, 16) != want.generation || u64_at(&*bytes, 8) != want.block {
            return Err(damaged("not the version that its parent refers to"));
        }
        if u16_at(&*bytes, 24) != level {
            return Err(damaged("level"));
        }
        let (len, hints) = (u16_at(&*bytes, 26), Box::default());
        let this = Self { level, len, bytes, shared: 0, hints };
        this.check(want.generation, layout).map_err(damaged)?;
        Ok(this.with_hints())
    }

    fn with_hints(mut self) -> Self {
        let (first, last) = (self.key(0), self.key(self.len() - 1));
        let shared = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        // A tree made by somebody else may have handed us keys out of order: no key need be that long.
        let after = |index| self.key(index).get(shared..).unwrap_or(&[]);
        self.hints = (0..self.len()).map(|index| hint(after(index))).collect();
        self.shared = shared as u16;
        self
    }

    fn check(&self, generation: u64, layout: &Layout) -> Result<(), &'static str> {
        let slots_end = HEADER_BYTES + SLOT_BYTES * usize::from(self.len);
        if self.len == 0 || slots_end > BLOCK_BYTES {
            return Err("number of entries");
        }
        let start = key_start(self.level);
        for index in 0..self.len() {
            let at = self.offset(index);
            let header = self.bytes.get(at..at + start).ok_or("an entry's place")?;
            let key = usize::from(u16_at(header, 0));
            let value = if self.level == 0 { usize::from(u16_at(header, 2)) } else { 0 };
            if at < slots_end || at + start + key + value > BLOCK_BYTES {
                return Err("an entry's place");
            }
            if key > KEY_BYTES_MAX || value > VALUE_BYTES_MAX {
                return Err("an entry's size");
            }
            if self.level > 0 {
                let child = entry_child(header);
                if !layout.is_tree_block(child.block) || child.generation > generation {
                    return Err("a child's place");
                }
            }
            if index > 0 && self.key(index - 1) >= self.key(index) {
                return Err("order of keys");
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

    pub(crate) fn block(&self) -> u64 {
        u64_at(&*self.bytes, 8)
    }

    pub(crate) fn crc(&self) -> u32 {
        u32_at(&*self.bytes, 4)
    }

    pub(crate) fn bytes(&self) -> &Block {
        &self.bytes
    }

    fn offset(&self, index: usize) -> usize {
        usize::from(u16_at(&*self.bytes, HEADER_BYTES + SLOT_BYTES * index))
    }

    pub(crate) fn key(&self, index: usize) -> &[u8] {
        entry_key(&self.bytes[self.offset(index)..], self.level)
    }

    /// The value of entry `index` of a leaf.
    pub(crate) fn value(&self, index: usize) -> &[u8] {
        let entry = &self.bytes[self.offset(index)..];
        let start = LEAF_ENTRY + usize::from(u16_at(entry, 0));
        &entry[start..start + usize::from(u16_at(entry, 2))]
    }

    /// The child of entry `index` of an inner node.
    pub(crate) fn child(&self, index: usize) -> Reference {
        entry_child(&self.bytes[self.offset(index)..])
    }

    /// The encoded entry `index`.
    pub(crate) fn entry(&self, index: usize) -> &[u8] {
        let entry = &self.bytes[self.offset(index)..];
        let value = if self.level == 0 { usize::from(u16_at(entry, 2)) } else { 0 };
        &entry[..key_start(self.level) + usize::from(u16_at(entry, 0)) + value]
    }

    /// How many keys are below `key`, and whether the next one is `key`.
    pub(crate) fn rank(&self, key: &[u8]) -> (usize, bool) {
        let shared = &self.key(0)[..usize::from(self.shared)];
        let Some(rest) = key.strip_prefix(shared) else {
            return (if key < shared { 0 } else { self.len() }, false);
        };
        let want = hint(rest);
        let mut low = self.hints.partition_point(|&hint| hint < want);
        let mut high = low + self.hints[low..].partition_point(|&hint| hint == want);
        while low < high {
            let middle = (low + high) / 2;
            match self.key(middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return (middle, true),
                Ordering::Greater => high = middle,
            }
        }
        (low, false)
    }

    /// The entry of an inner node whose child holds `key`.
    pub(crate) fn child_index(&self, key: &[u8]) -> usize {
        let (below, exact) = self.rank(key);
        if exact { below } else { below.saturating_sub(1) }
    }
}

/// Fills one node.
pub(crate) struct Builder {
    bytes: Box<Block>,
    len: usize,
    free_end: usize,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self { bytes: Box::new([0; BLOCK_BYTES]), len: 0, free_end: BLOCK_BYTES }
    }

    pub(crate) fn fits(&self, entry: &[u8]) -> bool {
        HEADER_BYTES + SLOT_BYTES * (self.len + 1) + entry.len() <= self.free_end
    }

    pub(crate) fn push(&mut self, entry: &[u8]) {
        self.free_end -= entry.len();
        self.bytes[self.free_end..self.free_end + entry.len()].copy_from_slice(entry);
        put_u16(&mut *self.bytes, HEADER_BYTES + SLOT_BYTES * self.len, self.free_end as u16);
        self.len += 1;
    }

    /// The node, to be written to `block`.
    pub(crate) fn finish(mut self, identity: u64, block: u64, generation: u64, level: u16) -> Node {
        debug_assert!(self.len > 0 && level <= LEVEL_MAX);
        let len = self.len as u16;
        put_u32(&mut *self.bytes, 0, MAGIC);
        put_u64(&mut *self.bytes, 8, block);
        put_u64(&mut *self.bytes, 16, generation);
        put_u16(&mut *self.bytes, 24, level);
        put_u16(&mut *self.bytes, 26, len);
        let crc = checksum(identity, &[&self.bytes[8..]]);
        put_u32(&mut *self.bytes, 4, crc);
        Node { bytes: self.bytes, level, len, shared: 0, hints: Box::default() }.with_hints()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use proptest::prelude::*;

    fn layout() -> Layout {
        Layout::plan(10_000, &Options::default()).expect("large enough")
    }

    /// A node of `level` with `keys`, as it would be read from block 5000.
    fn sample(level: u16, keys: &[&[u8]]) -> (Box<Block>, Reference) {
        let child = Reference { block: 6000, generation: 2, crc: 1 };
        let mut builder = Builder::new();
        for key in keys {
            let mut entry = Vec::new();
            match level {
                0 => push_record(&mut entry, key, b"value"),
                _ => push_child(&mut entry, key, &child),
            }
            builder.push(&entry);
        }
        let node = builder.finish(7, 5000, 3, level);
        let want = Reference { block: 5000, generation: 3, crc: node.crc() };
        (node.bytes, want)
    }

    fn exercise(node: &Node) {
        for index in 0..node.len() {
            assert_eq!(node.rank(node.key(index)), (index, true));
            if node.level() == 0 {
                let _ = (node.value(index), node.entry(index));
            } else {
                let _ = (node.child(index), node.entry(index), node.child_index(node.key(index)));
            }
        }
        assert_eq!(node.rank(&[0xff; KEY_BYTES_MAX + 1]), (node.len(), false));
    }

    #[test]
    fn a_search_finds_the_rank_of_any_key() {
        let keys: [&[u8]; 7] =
            [b"same", b"same\0", b"same1234567", b"same12345678", b"same123456789", b"samf", b"sb"];
        let (bytes, want) = sample(0, &keys);
        let node = Node::parse(bytes, &want, 0, 7, &layout()).unwrap();
        for probe in [&b""[..], b"s", b"same\0\0", b"same123456", b"same12345678\0", b"sz", b"r", b"samez"] {
            let below = keys.iter().filter(|&&key| key < probe).count();
            assert_eq!(node.rank(probe), (below, false), "{probe:?}");
        }
        exercise(&node);
    }

    proptest! {
        /// Bytes that somebody else made, with a checksum that fits: an error or a sound node.
        #[test]
        fn fuzz_a_node_with_a_good_checksum(
            level in 0u16..2,
            damage in prop::collection::vec((0usize..400, any::<u8>()), 0..6),
            tail in prop::collection::vec((3900usize..BLOCK_BYTES, any::<u8>()), 0..6),
        ) {
            let (mut bytes, mut want) = sample(level, &[b"a", b"ab", b"abc", b"b", b"bcd"]);
            for (at, byte) in damage.into_iter().filter(|(at, _)| !(4..26).contains(at)).chain(tail) {
                bytes[at] = byte;
            }
            want.crc = checksum(7, &[&bytes[8..]]);
            put_u32(&mut *bytes, 4, want.crc);
            if let Ok(node) = Node::parse(bytes, &want, level, 7, &layout()) {
                exercise(&node);
            }
        }

        #[test]
        fn a_changed_bit_is_noticed(bit in 0usize..BLOCK_BYTES * 8) {
            let (mut bytes, want) = sample(0, &[b"a", b"b"]);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let refused = Node::parse(bytes, &want, 0, 7, &layout()).err();
            let named = matches!(refused, Some(KvError::Corrupt { block: 5000, .. }));
            prop_assert!(named);
        }
    }
}
