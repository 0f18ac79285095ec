//! The entries of a leaf: rests of keys, each in two pieces, and what they stand for.

use crate::KEY_BYTES_MAX;
use crate::layout::{BlockBytes, Layout, put_u16, u16_at};
use crate::node::{CHUNK_BYTES, HEADER_BYTES, Node, NodeAddress, chunk, seal};
use crate::reference::{LEVEL_MAX, ROOT_BYTES, Root};
use crate::value::{self, INLINE_BYTES_MAX};
use core::cmp::Ordering;
use nvmed_units::{BLOCK_BYTES, Halves, bounded};

/// Bytes of an entry's offset.
const SLOT_BYTES: usize = 2;
/// Entries to the base at most.
const DISTANCE_MAX: usize = 255;

/// What an entry stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// A record that the leaf holds.
    Inline,
    /// A record whose value lies in blocks of its own.
    Long,
    /// All keys that are longer than this one and begin with it.
    Subtree,
}

/// What a leaf knows of one rest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    Nothing,
    /// A record's payload.
    Record(EntryKind, &'a [u8]),
    /// The tree that the rest belongs to, less that many bytes.
    Subtree(usize, Root),
}

/// An entry of a leaf: a rest in two pieces, and what it stands for.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) tail: &'a [u8],
    pub(crate) kind: EntryKind,
    pub(crate) payload: &'a [u8],
}

/// One decoded entry: where its parts lie.
#[derive(Clone, Copy)]
struct Raw {
    distance: usize,
    shared: usize,
    suffix: usize,
    suffix_len: usize,
    kind: EntryKind,
    payload: usize,
    payload_len: usize,
}

/// Bytes of the count `n`.
pub(crate) fn count_bytes(n: usize) -> usize {
    if n < 128 { 1 } else { 2 }
}

/// The count at `at`, which moves on.
#[inline]
fn count(bytes: &BlockBytes, at: &mut usize) -> Option<usize> {
    let first = usize::from(*bytes.get(*at)?);
    *at += 1;
    if first < 128 {
        return Some(first);
    }
    let second = usize::from(*bytes.get(*at)?);
    *at += 1;
    Some((first & 0x7f) << 8 | second)
}

/// What keeps an offset within 16 bits.
const IN_BLOCK: &str = "an offset in a block";

fn put_count(bytes: &mut BlockBytes, at: &mut usize, n: usize) {
    let n: u16 = bounded(n, "counts are of bytes in a block");
    if n < 128 {
        bytes[*at] = n.low();
    } else {
        bytes[*at] = n.high() | 0x80;
        bytes[*at + 1] = n.low();
    }
    *at += count_bytes(n.into());
}

#[inline]
fn decode(bytes: &BlockBytes, mut at: usize) -> Option<Raw> {
    let distance = usize::from(*bytes.get(at)?);
    at += 1;
    let shared = if distance > 0 { count(bytes, &mut at)? } else { 0 };
    let suffix_len = count(bytes, &mut at)?;
    let payload = count(bytes, &mut at)?;
    let kind = match payload % 4 {
        0 => EntryKind::Inline,
        1 => EntryKind::Long,
        2 => EntryKind::Subtree,
        _ => return None,
    };
    let (suffix, payload_len) = (at, payload / 4);
    let payload = suffix + suffix_len;
    let raw = Raw { distance, shared, suffix, suffix_len, kind, payload, payload_len };
    (payload + payload_len <= BLOCK_BYTES).then_some(raw)
}

impl Node {
    fn offset(&self, index: usize) -> usize {
        usize::from(u16_at(&*self.bytes, HEADER_BYTES + SLOT_BYTES * index))
    }

    /// Bytes that the entries from `index` on take: they lie one before the other.
    pub(crate) fn bytes_from(&self, index: usize) -> usize {
        let end = index.checked_sub(1).map_or(BLOCK_BYTES, |before| self.offset(before));
        // A leaf that others made may have its entries in another order: this is for estimates.
        end.saturating_sub(self.offset(self.len() - 1)) + SLOT_BYTES * (self.len() - index)
    }

    fn raw(&self, index: usize) -> Raw {
        decode(&self.bytes, self.offset(index)).expect("an entry of a checked node is well-formed")
    }

    /// The rest of entry `index`, in two pieces.
    pub(crate) fn pieces(&self, index: usize) -> (&[u8], &[u8]) {
        let entry = self.entry(index);
        (entry.head, entry.tail)
    }

    pub(crate) fn entry(&self, index: usize) -> Entry<'_> {
        let raw = self.raw(index);
        let base = if raw.distance > 0 { self.raw(index - raw.distance).suffix } else { 0 };
        self.entry_of(&raw, base)
    }

    fn entry_of(&self, raw: &Raw, base: usize) -> Entry<'_> {
        Entry {
            head: &self.bytes[base..base + raw.shared],
            tail: &self.bytes[raw.suffix..raw.suffix + raw.suffix_len],
            kind: raw.kind,
            payload: &self.bytes[raw.payload..raw.payload + raw.payload_len],
        }
    }

    /// How the rest of entry `index` compares with `rest`.
    pub(crate) fn order(&self, index: usize, rest: &[u8]) -> Ordering {
        self.entry(index).order(rest)
    }

    pub(crate) fn kind(&self, index: usize) -> EntryKind {
        self.raw(index).kind
    }

    pub(crate) fn payload(&self, index: usize) -> &[u8] {
        let raw = self.raw(index);
        &self.bytes[raw.payload..raw.payload + raw.payload_len]
    }

    /// The root of the subtree that entry `index` stands for.
    pub(crate) fn subtree(&self, index: usize) -> Root {
        Root::decode(self.payload(index))
    }

    /// How many rests of this leaf are below `rest`, and whether the next one is `rest`.
    pub(crate) fn rank(&self, rest: &[u8]) -> (usize, bool) {
        // The first entry has no base.
        let first = self.raw(0).suffix;
        let shared = &self.bytes[first..first + usize::from(self.shared)];
        let Some(after) = rest.strip_prefix(shared) else {
            return (if rest < shared { 0 } else { self.len() }, false);
        };
        let want = chunk(after);
        let mut low = self.hints.partition_point(|&hint| hint < want);
        let mut high = low;
        while high < self.len() && self.hints[high] == want {
            high += 1;
        }
        let mut exact = false;
        while low < high {
            let middle = (low + high) / 2;
            match self.order(middle, rest) {
                Ordering::Less => low = middle + 1,
                // A subtree comes after the record of its rest.
                order => (high, exact) = (middle, order == Ordering::Equal),
            }
        }
        (low, exact)
    }

    /// What this leaf knows of `rest`.
    pub(crate) fn find(&self, rest: &[u8]) -> Found<'_> {
        // Most look-ups end at the first entry of their chunk; what all rests share is compared with it.
        let want = rest.get(usize::from(self.shared)..).map_or(0, chunk);
        let first = self.hints.partition_point(|&hint| hint < want);
        if self.hints.get(first) == Some(&want) {
            let entry = self.entry(first);
            if entry.kind != EntryKind::Subtree && entry.order(rest) == Ordering::Equal {
                return Found::Record(entry.kind, entry.payload);
            }
        }
        let (below, exact) = self.rank(rest);
        if exact {
            let Entry { kind, payload, .. } = self.entry(below);
            return if kind == EntryKind::Subtree { Found::Nothing } else { Found::Record(kind, payload) };
        }
        let before = below.checked_sub(1).filter(|_| self.is_parent).map(|before| self.entry(before));
        match before.filter(|entry| entry.covers(rest)) {
            Some(entry) => Found::Subtree(entry.head.len() + entry.tail.len(), Root::decode(entry.payload)),
            None => Found::Nothing,
        }
    }

    /// Whether entry `index` is a subtree to which `rest` belongs.
    pub(crate) fn covers(&self, index: usize, rest: &[u8]) -> bool {
        self.is_parent && self.entry(index).covers(rest)
    }
}

impl Entry<'_> {
    /// How our rest compares with `rest`.
    pub(crate) fn order(&self, rest: &[u8]) -> Ordering {
        match rest.split_at_checked(self.head.len()) {
            Some((first, second)) => self.head.cmp(first).then_with(|| self.tail.cmp(second)),
            None => self.head.cmp(rest),
        }
    }

    /// Whether this is a subtree to which `rest` belongs.
    pub(crate) fn covers(&self, rest: &[u8]) -> bool {
        let inner = rest.strip_prefix(self.head).and_then(|rest| rest.strip_prefix(self.tail));
        self.kind == EntryKind::Subtree && inner.is_some_and(|inner| !inner.is_empty())
    }

    /// The chunk after the first `shared` bytes.
    fn hint(&self, shared: usize) -> u64 {
        let Some(rest) = self.head.get(shared..) else {
            return chunk(self.tail.get(shared - self.head.len()..).unwrap_or(&[]));
        };
        if rest.len() >= CHUNK_BYTES || self.tail.is_empty() {
            return chunk(rest);
        }
        let after = chunk(self.tail) >> (8 * rest.len());
        chunk(rest) | after
    }
}

/// Whether every entry of `leaf` lies inside and says something sensible.
pub(crate) fn check(leaf: &Node, layout: &Layout) -> Result<(), &'static str> {
    let slots_end = HEADER_BYTES + SLOT_BYTES * leaf.len();
    if leaf.len() == 0 || slots_end > BLOCK_BYTES {
        return Err("number of entries");
    }
    // The last entry without a base, and the bytes of its rest.
    let mut base = (0, 0);
    for index in 0..leaf.len() {
        let at = leaf.offset(index);
        let raw = decode(&leaf.bytes, at).filter(|_| at >= slots_end).ok_or("an entry's place")?;
        if raw.distance == 0 {
            base = (index, raw.suffix_len);
        } else if base.0 + raw.distance != index || raw.shared > base.1 {
            return Err("an entry's base");
        }
        let len = raw.shared + raw.suffix_len;
        let payload = &leaf.bytes[raw.payload..raw.payload + raw.payload_len];
        let sound = match raw.kind {
            EntryKind::Inline => raw.payload_len <= INLINE_BYTES_MAX,
            EntryKind::Long => value::is_sound(payload, leaf.generation(), layout),
            EntryKind::Subtree => {
                raw.payload_len == ROOT_BYTES && len > 0 && {
                    let root = Root::decode(payload);
                    root.level <= LEVEL_MAX && root.node.is_sound(leaf.generation(), layout)
                }
            }
        };
        if len > KEY_BYTES_MAX || !sound {
            return Err("an entry's size");
        }
    }
    Ok(())
}

/// Whether the entries of `leaf`, which is prepared, are in order.
pub(crate) fn check_order(leaf: &Node) -> Result<(), &'static str> {
    let mut rest = Vec::new();
    // A search compares these bytes once, for all entries. One with a base has them if its base has.
    let shared = &leaf.entry(0).tail[..usize::from(leaf.shared)];
    let lacks = |entry: &Entry<'_>| {
        let (head, tail) = shared.split_at(entry.head.len().min(shared.len()));
        !entry.head.starts_with(head) || !entry.tail.starts_with(tail)
    };
    for index in 1..leaf.len() {
        if !shared.is_empty() && lacks(&leaf.entry(index)) {
            return Err("order of keys");
        }
        if leaf.hints[index - 1] < leaf.hints[index] && !leaf.is_parent {
            continue;
        }
        rest.clear();
        let (entry, before) = (leaf.entry(index), leaf.entry(index - 1));
        rest.extend_from_slice(entry.head);
        rest.extend_from_slice(entry.tail);
        let in_order = match before.order(&rest) {
            Ordering::Less => !before.covers(&rest),
            Ordering::Equal => before.kind != EntryKind::Subtree && entry.kind == EntryKind::Subtree,
            Ordering::Greater => false,
        };
        if !in_order {
            return Err("order of keys");
        }
    }
    Ok(())
}

/// Notes what a search in `leaf`, which is checked, needs.
pub(crate) fn prepare(leaf: &mut Node) {
    let (first, last) = (leaf.entry(0), leaf.entry(leaf.len() - 1));
    let mut shared = common(first.tail, last.head);
    if shared == last.head.len() {
        shared += common(&first.tail[shared..], last.tail);
    }
    let mut base = 0;
    let mut is_parent = false;
    let hint = |index| {
        let raw = leaf.raw(index);
        if raw.distance == 0 {
            base = raw.suffix;
        }
        is_parent |= raw.kind == EntryKind::Subtree;
        leaf.entry_of(&raw, base).hint(shared)
    };
    leaf.hints = (0..leaf.len()).map(hint).collect();
    leaf.is_parent = is_parent;
    leaf.shared = bounded(shared, "a rest lies in a block");
}

/// How many bytes both begin with.
pub(crate) fn common(a: &[u8], b: &[u8]) -> usize {
    let mut at = 0;
    while let (Some(x), Some(y)) = (a.get(at..at + 8), b.get(at..at + 8)) {
        let differ = chunk(x) ^ chunk(y);
        if differ != 0 {
            return at + differ.leading_zeros() as usize / 8;
        }
        at += 8;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(x, y)| x == y).count()
}

/// Which base each entry of a leaf has, and what it costs.
///
/// An entry that shares much more with the one before than with the base is stored whole, as a new base:
/// three more like it repay that.
#[derive(Clone, Copy, Default)]
pub(crate) struct Coder {
    /// Entries since the base, it included; 0: there is none yet.
    since: usize,
    /// Bytes that the last entry shares with the base.
    shared: usize,
}

impl Coder {
    /// Distance and shared bytes of the next entry, which shares `common` bytes with the last one.
    pub(crate) fn next(&mut self, common: usize) -> (usize, usize) {
        let shared = self.shared.min(common);
        if self.since == 0 || self.since > DISTANCE_MAX || shared == 0 || 3 * (common - shared) > shared {
            (self.since, self.shared) = (1, usize::MAX);
            return (0, 0);
        }
        let distance = self.since;
        self.since += 1;
        self.shared = shared;
        (distance, shared)
    }
}

/// Bytes of an entry in a leaf, its slot among them.
pub(crate) fn entry_bytes(distance: usize, shared: usize, len: usize, payload_len: usize) -> usize {
    let base = if distance > 0 { count_bytes(shared) } else { 0 };
    let suffix = len - shared;
    SLOT_BYTES + 1 + base + count_bytes(suffix) + count_bytes(4 * payload_len) + suffix + payload_len
}

/// Fills one leaf.
#[derive(Clone)]
pub(crate) struct Builder {
    bytes: Box<BlockBytes>,
    mark: Mark,
}

/// A place to return to while a leaf is filled.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    len: usize,
    end: usize,
    coder: Coder,
}

impl Builder {
    pub(crate) fn new() -> Self {
        let mark = Mark { len: 0, end: BLOCK_BYTES, coder: Coder::default() };
        Self { bytes: Box::new([0; BLOCK_BYTES]), mark }
    }

    pub(crate) fn len(&self) -> usize {
        self.mark.len
    }

    /// Bytes in use, of [`crate::node::CAPACITY`].
    pub(crate) fn filled(&self) -> usize {
        BLOCK_BYTES - self.mark.end + SLOT_BYTES * self.mark.len
    }

    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }

    /// Takes back what was added since `mark`.
    pub(crate) fn rewind(&mut self, mark: Mark) {
        self.bytes[self.mark.end..mark.end].fill(0);
        self.bytes[HEADER_BYTES + SLOT_BYTES * mark.len..HEADER_BYTES + SLOT_BYTES * self.mark.len].fill(0);
        self.mark = mark;
    }

    /// Adds an entry that shares `common` bytes with the one before; `false` when it does not fit.
    pub(crate) fn push(&mut self, rest: &[u8], kind: EntryKind, payload: &[u8], common: usize) -> bool {
        let mut coder = self.mark.coder;
        let (distance, shared) = coder.next(common);
        let bytes = entry_bytes(distance, shared, rest.len(), payload.len()) - SLOT_BYTES;
        let Some(end) = self.mark.end.checked_sub(bytes) else {
            return false;
        };
        if HEADER_BYTES + SLOT_BYTES * (self.mark.len + 1) > end {
            return false;
        }
        let mut at = end;
        let block = &mut *self.bytes;
        block[at] = bounded(distance, "an entry is that near to the one that it leans on");
        at += 1;
        if distance > 0 {
            put_count(block, &mut at, shared);
        }
        let suffix = &rest[shared..];
        put_count(block, &mut at, suffix.len());
        put_count(block, &mut at, 4 * payload.len() + kind as usize);
        block[at..at + suffix.len()].copy_from_slice(suffix);
        at += suffix.len();
        block[at..at + payload.len()].copy_from_slice(payload);
        put_u16(block, HEADER_BYTES + SLOT_BYTES * self.mark.len, bounded(end, IN_BLOCK));
        self.mark = Mark { len: self.mark.len + 1, end, coder };
        true
    }

    /// The leaf, to be written to `address`.
    pub(crate) fn finish(self, address: NodeAddress) -> Node {
        seal(self.bytes, 0, self.mark.len, address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvError;
    use crate::node::{Child, inner};
    use crate::reference::Reference;
    use nvmed_units::Block;
    use proptest::prelude::*;

    const ADDRESS: NodeAddress = NodeAddress { identity: 7, block: Block(5000), generation: 3 };

    fn layout() -> Layout {
        Layout::plan(10_000, None).expect("large enough")
    }

    fn below(block: Block) -> Reference {
        Reference { block, generation: 2, crc: 1 }
    }

    /// A leaf with `keys`, every fifth a subtree, every seventh a long value.
    fn leaf(keys: &[Vec<u8>]) -> Node {
        let mut builder = Builder::new();
        let mut before: &[u8] = &[];
        for (n, key) in keys.iter().enumerate() {
            let long =
                [&5000u16.to_le_bytes()[..], &[2, 0, 0, 0, 0, 0], &[0x88, 0x13, 0, 0, 1, 2, 3, 4].repeat(2)];
            let (kind, payload) = match n {
                _ if n % 5 == 4 && key.len() >= 8 => {
                    (EntryKind::Subtree, Root { node: below(Block(6000)), level: 1 }.encode().to_vec())
                }
                _ if n % 7 == 6 => (EntryKind::Long, long.concat()),
                _ => (EntryKind::Inline, vec![n as u8; n % 30]),
            };
            if !builder.push(key, kind, &payload, common(before, key)) {
                break;
            }
            before = key;
        }
        builder.finish(ADDRESS)
    }

    fn parse(bytes: Box<BlockBytes>, level: u16) -> Result<Node, KvError> {
        let crc = crate::layout::checksum(7, &[&bytes[8..]]);
        let mut bytes = bytes;
        crate::layout::put_u32(&mut *bytes, 4, crc);
        Node::parse(bytes, &Reference { block: Block(5000), generation: 3, crc }, level, 7, &layout())
    }

    fn rest(leaf: &Node, index: usize) -> Vec<u8> {
        let (head, tail) = leaf.pieces(index);
        [head, tail].concat()
    }

    /// Everything that is done with a node.
    fn exercise(node: &Node) {
        for index in 0..node.len() {
            if node.level() > 0 {
                assert_eq!(node.child_index(node.chunk(index)), index);
                let _ = node.child(index);
                continue;
            }
            let rest = rest(node, index);
            let first = index.checked_sub(1).filter(|&before| node.order(before, &rest) == Ordering::Equal);
            assert_eq!(node.rank(&rest), (first.unwrap_or(index), true));
            match node.find(&rest) {
                Found::Record(kind, payload) => assert!(kind != EntryKind::Subtree && payload.len() < 1000),
                found => assert!(found == Found::Nothing && node.kind(index) == EntryKind::Subtree),
            }
            let more = [&rest[..], b"more"].concat();
            if node.kind(index) == EntryKind::Subtree {
                assert_eq!(node.find(&more), Found::Subtree(rest.len(), node.subtree(index)));
            }
        }
        if node.level() == 0 {
            let _ = (node.rank(&[0xff; KEY_BYTES_MAX + 1]), node.find(b""));
        }
    }

    fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let key = prop_oneof![
            prop::collection::vec(0u8..3, 0..12),
            (0u16..2000).prop_map(|n| format!("directory/name-{n:04}").into_bytes()),
            (0u16..2000).prop_map(|n| [&[9; 130][..], &n.to_be_bytes()].concat()),
            prop::collection::vec(any::<u8>(), 0..40),
        ];
        prop::collection::btree_set(key, 1..120).prop_map(|set| {
            // No record begins with the rest of a subtree beside it.
            let mut keys: Vec<Vec<u8>> = set.into_iter().collect();
            let mut n = 0;
            while n < keys.len() {
                let next = n + 1;
                while n % 5 == 4
                    && next < keys.len()
                    && keys[n].len() >= 8
                    && keys[next].starts_with(&keys[n])
                {
                    keys.remove(next);
                }
                n = next;
            }
            keys
        })
    }

    proptest! {
        #[test]
        fn what_is_put_into_a_leaf_is_found(keys in keys(), probes in prop::collection::vec(any::<u8>(), 0..12)) {
            let built = leaf(&keys);
            let node = parse(built.bytes.clone(), 0).unwrap();
            for (index, key) in keys.iter().take(node.len()).enumerate() {
                prop_assert_eq!(&rest(&node, index), key);
            }
            exercise(&node);
            let below = keys[..node.len()].iter().filter(|key| **key < probes).count();
            prop_assert_eq!(node.rank(&probes).0, below);
        }

        /// Bytes that somebody else made, with a checksum that fits: an error or a sound node.
        #[test]
        fn fuzz_a_leaf_with_a_good_checksum(
            keys in keys(),
            damage in prop::collection::vec((26usize..BLOCK_BYTES, any::<u8>()), 1..8),
            slots in prop::collection::vec((26usize..120, any::<u8>()), 0..4),
            aimed in any::<prop::sample::Index>(),
        ) {
            let built = leaf(&keys);
            let mut bytes = built.bytes.clone();
            for (at, byte) in damage.into_iter().chain(slots) {
                bytes[at] = byte;
            }
            // One in the head of an entry: most of the block is suffixes and payloads.
            let at = built.offset(aimed.index(built.len())) + aimed.index(4);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= aimed.index(256) as u8;
            }
            if let Ok(node) = parse(bytes, 0) {
                exercise(&node);
            }
        }

        #[test]
        fn fuzz_an_inner_node_with_a_good_checksum(
            chunks in prop::collection::btree_set(any::<u64>(), 1..=184),
            damage in prop::collection::vec((26usize..BLOCK_BYTES, any::<u8>()), 0..8),
        ) {
            let children: Vec<_> = chunks.into_iter().map(|chunk| Child { chunk, node: below(Block(6000)) }).collect();
            let mut bytes = inner(&children, 2, ADDRESS).bytes;
            for (at, byte) in damage {
                bytes[at] = byte;
            }
            if let Ok(node) = parse(bytes, 2) {
                exercise(&node);
            }
        }

        #[test]
        fn a_changed_bit_is_noticed(bit in 0usize..BLOCK_BYTES * 8) {
            let built = leaf(&[b"a".to_vec(), b"b".to_vec()]);
            let want = Reference { block: Block(5000), generation: 3, crc: built.crc() };
            let mut bytes = built.bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let refused = Node::parse(bytes, &want, 0, 7, &layout()).err();
            let named = matches!(refused, Some(KvError::Corrupt { block: Block(5000), .. }));
            prop_assert!(named);
        }
    }
}
