//! Entries on their way into leaves: whole rests in one arena, and how they are best grouped.

use crate::leaf::{Coder, EntryKind, common, entry_bytes};
use crate::node::{CAPACITY, CHUNK_BYTES, chunk};
use core::ops::Range;
use nvmed_units::bounded;

/// Entries of one chunk that take more than this become a tree of their own.
///
/// A smaller bound fills leaves less: a group of more than half a block would have one alone.
pub(crate) const BURST_BYTES: usize = CAPACITY;
/// A tree of one leaf that would take no more than this in its parent's leaf goes back there.
pub(crate) const FOLD_BYTES: usize = CAPACITY / 4;
/// A leaf below a third joins its right neighbour.
pub(crate) const UNDERFULL_BYTES: usize = CAPACITY / 3;
/// Each leaf but the last of a row holds this much on average at least: two neighbours hold more than a
/// block together.
pub(crate) const PACKED_BYTES_MIN: usize = 1900;

/// An entry of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    key: u32,
    payload: u32,
    key_len: u16,
    payload_len: u16,
    /// Bytes shared with the entry before, if there is one.
    common: u16,
    pub(crate) kind: EntryKind,
}

/// What keeps an item's numbers within their types: a row is written when it fills a few leaves, a rest has no more
/// than two keys' bytes, and a value is long or inline.
const ARENA_BOUND: &str = "a row has less than 4 GiB";
const REST_BOUND: &str = "a rest is shorter than two keys";
const PAYLOAD_BOUND: &str = "a leaf's payload lies in a block, or is a value of a batch";

/// Entries of one B+tree's leaves, by rest.
#[derive(Default)]
pub(crate) struct Row {
    pub(crate) arena: Vec<u8>,
    pub(crate) items: Vec<Item>,
    /// Bytes that the entries take in leaves, nearly; see [`measure`].
    cost: usize,
}

impl Item {
    pub(crate) fn rest<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[self.key as usize..self.key as usize + usize::from(self.key_len)]
    }

    pub(crate) fn payload<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[self.payload as usize..self.payload as usize + usize::from(self.payload_len)]
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.key_len)
    }

    /// Bytes shared with the entry before.
    pub(crate) fn common(&self) -> usize {
        usize::from(self.common)
    }

    /// The entry below a tree whose prefix has `bytes` bytes more.
    fn below(&self, bytes: usize) -> Self {
        // The entry before may be outside of the tree, and share less than its prefix.
        let less: u16 = bounded(bytes, REST_BOUND);
        let (key, key_len) = (self.key + u32::from(less), self.key_len - less);
        Self { key, key_len, common: self.common.saturating_sub(less), ..*self }
    }

    /// Bytes in a leaf, nearly: as if the entry before were the base.
    pub(crate) fn bytes(&self) -> usize {
        let distance = usize::from(self.common > 0);
        entry_bytes(distance, self.common(), self.len(), usize::from(self.payload_len))
    }
}

/// Bytes that `items` take in a leaf that begins with them.
pub(crate) fn measure(items: &[Item]) -> usize {
    let mut coder = Coder::default();
    let bytes = |item: &Item| {
        let (distance, shared) = coder.next(item.common());
        entry_bytes(distance, shared, item.len(), usize::from(item.payload_len))
    };
    items.iter().map(bytes).sum()
}

impl Row {
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.arena.clear();
        self.items.clear();
        self.cost = 0;
    }

    /// Bytes that the entries take in leaves, nearly.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }

    pub(crate) fn is_underfull(&self) -> bool {
        self.cost < UNDERFULL_BYTES
    }

    pub(crate) fn overflows(&self) -> bool {
        self.cost > CAPACITY
    }

    /// Adds the entry whose rest is in `pieces`, at the end.
    pub(crate) fn push(&mut self, pieces: &[&[u8]], kind: EntryKind, payload: &[u8]) {
        let key = self.arena.len();
        for piece in pieces {
            self.arena.extend_from_slice(piece);
        }
        let payload_at = self.arena.len();
        self.arena.extend_from_slice(payload);
        let item = Item {
            key: bounded(key, ARENA_BOUND),
            payload: bounded(payload_at, ARENA_BOUND),
            key_len: bounded(payload_at - key, REST_BOUND),
            payload_len: bounded(payload.len(), PAYLOAD_BOUND),
            common: 0,
            kind,
        };
        let before = self.items.last().map_or(&[][..], |last| last.rest(&self.arena));
        let item = Item { common: bounded(common(before, item.rest(&self.arena)), REST_BOUND), ..item };
        self.cost += item.bytes();
        self.items.push(item);
    }

    /// Adds all entries of `other`, each below `prefix`.
    pub(crate) fn append(&mut self, prefix: &[u8], other: &Self) {
        for item in &other.items {
            self.push(&[prefix, item.rest(&other.arena)], item.kind, item.payload(&other.arena));
        }
    }

    /// Adds an entry that stands for the tree of the first `bytes` bytes of the rest of `like`.
    pub(crate) fn subtree(&mut self, like: &Item, bytes: usize, payload: &[u8]) -> Item {
        let at = bounded(self.arena.len(), ARENA_BOUND);
        self.arena.extend_from_slice(payload);
        let key_len: u16 = bounded(bytes, REST_BOUND);
        Item {
            payload: at,
            key_len,
            payload_len: bounded(payload.len(), PAYLOAD_BOUND),
            common: like.common.min(key_len),
            kind: EntryKind::Subtree,
            ..*like
        }
    }

    /// Gives `item`, of this row, the payload of a long value.
    pub(crate) fn make_long(&mut self, item: &mut Item, payload: &[u8]) {
        item.payload = bounded(self.arena.len(), ARENA_BOUND);
        item.payload_len = bounded(payload.len(), PAYLOAD_BOUND);
        item.kind = EntryKind::Long;
        self.arena.extend_from_slice(payload);
    }

    /// The end of the group of one chunk that begins at `start`.
    pub(crate) fn group_end(&self, start: usize) -> usize {
        let first = chunk(self.items[start].rest(&self.arena));
        let more = self.items[start + 1..].iter();
        start + 1 + more.take_while(|item| chunk(item.rest(&self.arena)) == first).count()
    }
}

/// Entries that are to become a tree of their own.
pub(crate) struct Burst {
    /// The entries that begin with the prefix, one that equals it not among them.
    pub(crate) range: Range<usize>,
    /// Bytes of the prefix.
    pub(crate) prefix: usize,
}

impl Burst {
    /// The entries as they are in the new tree.
    pub(crate) fn items(&self, group: &[Item]) -> Vec<Item> {
        group[self.range.clone()].iter().map(|item| item.below(self.prefix)).collect()
    }
}

/// The longest prefix that at least half of `group`, entries of one chunk, by bytes, begin with; at least
/// two of them must be longer. `None`: there is none of at least a chunk.
///
/// Half includes the entry in the middle, so every such prefix is one of its. Of keys that each begin with
/// the one before, half stay and half go: both leaves are half full.
pub(crate) fn heaviest(group: &[Item]) -> Option<Burst> {
    let first = group.iter().position(|item| item.len() >= CHUNK_BYTES)?;
    let items = &group[first..];
    let alike = |at: usize| if at == 0 { 0 } else { items.get(at).map_or(0, Item::common) };
    let bytes = |at: usize| items[at].bytes();
    let total: usize = (0..items.len()).map(bytes).sum();
    let mut below = 0;
    let middle = (0..items.len()).find(|&at| {
        below += bytes(at);
        2 * below >= total
    })?;
    let (mut start, mut end, mut weight) = (middle, middle + 1, bytes(middle));
    let mut prefix = items[middle].len();
    // A record and a subtree may equal the prefix.
    let longer = |start: usize, end: usize, prefix: usize| {
        let equal = items[start..end].iter().take(2).filter(|item| item.len() == prefix).count();
        end - start - equal
    };
    while 2 * weight < total || longer(start, end, prefix) < 2 {
        let (left, right) = (alike(start), alike(end));
        if left.max(right) < CHUNK_BYTES {
            return None;
        }
        if left >= right {
            start -= 1;
            weight += bytes(start);
        } else {
            weight += bytes(end);
            end += 1;
        }
        prefix = prefix.min(left.max(right));
    }
    while alike(start) >= prefix {
        start -= 1;
    }
    while alike(end) >= prefix {
        end += 1;
    }
    // The record that equals the prefix stays beside the tree.
    start += items[start..end].iter().take_while(|item| item.len() == prefix).count();
    Some(Burst { range: first + start..first + end, prefix })
}
