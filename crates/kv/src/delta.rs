//! Changes since the last checkpoint: an ordered map in memory, from key to new value or "deleted".
//!
//! A B+tree whose nodes hold the first 16 bytes of each key as a number, so that most comparisons touch
//! no key; and a hash table for single keys. Keys and values lie in one arena. Entries never go; the
//! whole delta does, after a checkpoint. Each entry knows the batch that made it; what a snapshot may
//! still look at is not overwritten but hangs behind the newer entry.
//!
//! Beside the entries there are ranges of keys that are gone. An entry is never older than a range that
//! its key is in: a range that comes marks the entries in it as deleted.

use crate::intervals::Intervals;
use crate::layout::{put_u16, put_u32, u16_at, u32_at};
use crate::stream::Sequence;
use crate::table::{Table, hash};
use core::cmp::Ordering;
use core::ops::Bound;
use nvmed_units::bounded;
use std::sync::Arc;

/// Entries in a node: a node of prefixes is then eight cache lines, five steps of binary search.
const FANOUT: usize = 32;
/// Key length, value length, value capacity; the batch, counted from the delta's first; the older entry.
const ENTRY_HEADER: usize = 14;
const AT_VALUE: usize = 2;
const AT_CAPACITY: usize = 4;
const AT_BATCH: usize = 6;
const AT_OLDER: usize = 10;
/// The value length of a deleted key.
const DELETED: u16 = u16::MAX;
const NONE: u32 = u32::MAX;
/// Inner levels at most: 16^8 leaves fill the arena's 4 GiB many times over.
const HEIGHT_MAX: usize = 8;

/// Which way a cursor goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Ascending,
    Descending,
}

/// A place in a delta: an entry, or past the end on either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    leaf: u32,
    index: u16,
}

#[derive(Clone)]
struct LeafNode {
    len: u16,
    previous: u32,
    next: u32,
    prefixes: [u128; FANOUT],
    entries: [u32; FANOUT],
}

/// `prefixes[i]` and `entries[i]` are the smallest key below `children[i]`; those of 0 are not looked at.
#[derive(Clone)]
struct InnerNode {
    len: u16,
    prefixes: [u128; FANOUT],
    entries: [u32; FANOUT],
    children: [u32; FANOUT],
}

const EMPTY_LEAF_NODE: LeafNode =
    LeafNode { len: 0, previous: NONE, next: NONE, prefixes: [0; FANOUT], entries: [0; FANOUT] };
const EMPTY_INNER_NODE: InnerNode =
    InnerNode { len: 0, prefixes: [0; FANOUT], entries: [0; FANOUT], children: [0; FANOUT] };

/// See the module.
pub(crate) struct Delta {
    arena: Vec<u8>,
    table: Table,
    leaves: Vec<LeafNode>,
    inners: Vec<InnerNode>,
    root: u32,
    /// Inner levels above the leaves.
    height: usize,
    records: usize,
    /// Of these, the ones that are not deleted.
    puts: usize,
    /// The last batch before the first one in here.
    base: Sequence,
    /// Keys of which nothing is known here but that they are gone.
    erased: Arc<Intervals>,
    /// Bytes of the bounds of these.
    erased_bytes: usize,
}

/// What a reader of a delta sees: batches up to this one.
pub(crate) const NEWEST: Sequence = Sequence(u64::MAX);

/// What the delta holds of a key for a reader: its value, or `None` when it is deleted.
pub(crate) type Change<'a> = Option<&'a [u8]>;

impl Default for Delta {
    fn default() -> Self {
        Self::new()
    }
}

/// The first 16 bytes as a number that orders as they do; shorter keys as if followed by zeroes.
fn prefix(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk::<16>() {
        return u128::from_be_bytes(*first);
    }
    let mut bytes = [0; 16];
    bytes[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(bytes)
}

impl Delta {
    pub(crate) fn new() -> Self {
        Self {
            arena: Vec::new(),
            table: Table::new(),
            leaves: vec![EMPTY_LEAF_NODE],
            inners: Vec::new(),
            root: 0,
            height: 0,
            records: 0,
            puts: 0,
            base: Sequence(0),
            erased: Arc::default(),
            erased_bytes: 0,
        }
    }

    /// The empty delta for the batches after `base`.
    pub(crate) fn since(mut self, base: Sequence) -> Self {
        assert!(self.records == 0 && self.erased.is_empty(), "{} changes are in a new delta", self.records);
        self.base = base;
        self
    }

    /// An empty delta in the memory of this one.
    pub(crate) fn cleared(mut self) -> Self {
        self.arena.clear();
        self.table.clear();
        self.leaves.clear();
        self.leaves.push(EMPTY_LEAF_NODE);
        self.inners.clear();
        (self.root, self.height, self.records, self.puts) = (0, 0, 0, 0);
        (self.erased, self.erased_bytes) = (Arc::default(), 0);
        self
    }

    /// Keys in it.
    pub(crate) fn records(&self) -> usize {
        self.records
    }

    /// The ranges that are gone; a copy of them stays as it is.
    pub(crate) fn erased(&self) -> &Arc<Intervals> {
        &self.erased
    }

    /// Keys in it that are not deleted.
    pub(crate) fn puts(&self) -> usize {
        self.puts
    }

    /// Bytes of keys and values, overwritten ones too.
    pub(crate) fn bytes(&self) -> usize {
        self.arena.len() + self.erased_bytes
    }

    fn key(&self, entry: u32) -> &[u8] {
        let (header, rest) = self.arena[entry as usize..].split_at(ENTRY_HEADER);
        &rest[..usize::from(u16_at(header, 0))]
    }

    /// What lies before the key of an entry, at once.
    fn header(&self, entry: u32) -> [u8; ENTRY_HEADER] {
        *self.arena[entry as usize..].first_chunk().expect("an entry begins with a header")
    }

    fn value(&self, entry: u32) -> Option<&[u8]> {
        let at = entry as usize;
        let start = at + ENTRY_HEADER + usize::from(self.word(at));
        let length = self.word(at + AT_VALUE);
        (length != DELETED).then(|| &self.arena[start..start + usize::from(length)])
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.arena[at], self.arena[at + 1]])
    }

    fn number(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.arena[at], self.arena[at + 1], self.arena[at + 2], self.arena[at + 3]])
    }

    /// The batch of an entry.
    fn batch(&self, entry: u32) -> Sequence {
        Sequence(self.base.0 + u64::from(self.number(entry as usize + AT_BATCH)))
    }

    /// A batch as entries name it.
    fn count(&self, batch: Sequence) -> u32 {
        u32::try_from(batch - self.base).expect("a log holds fewer than 2^32 batches")
    }

    /// The newest entry of the key of `entry` that a reader of the batches up to `seen` sees.
    fn visible(&self, mut entry: u32, seen: Sequence) -> Option<u32> {
        while self.batch(entry) > seen {
            entry = self.number(entry as usize + AT_OLDER);
            if entry == NONE {
                return None;
            }
        }
        Some(entry)
    }

    fn compare(&self, entry: u32, key: &[u8]) -> Ordering {
        self.key(entry).cmp(key)
    }

    /// How many of the first `len` keys are below `key`, and whether the next one is `key`.
    fn rank(&self, prefixes: &[u128], entries: &[u32], key: &[u8], prefix: u128) -> (usize, bool) {
        let mut index = prefixes.partition_point(|&p| p < prefix);
        while index < prefixes.len() && prefixes[index] == prefix {
            match self.compare(entries[index], key) {
                Ordering::Less => index += 1,
                Ordering::Equal => return (index, true),
                Ordering::Greater => break,
            }
        }
        (index, false)
    }

    fn child_index(&self, inner: &InnerNode, key: &[u8], prefix: u128) -> usize {
        let len = usize::from(inner.len);
        let (below, exact) = self.rank(&inner.prefixes[1..len], &inner.entries[1..len], key, prefix);
        below + usize::from(exact)
    }

    fn leaf_of(&self, key: &[u8], prefix: u128) -> u32 {
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node as usize];
            node = inner.children[self.child_index(inner, key, prefix)];
        }
        node
    }

    fn rank_in_leaf(&self, leaf: &LeafNode, key: &[u8], prefix: u128) -> (usize, bool) {
        let len = usize::from(leaf.len);
        self.rank(&leaf.prefixes[..len], &leaf.entries[..len], key, prefix)
    }

    /// `None`: nothing is known of `key` here. `Some(None)`: it is deleted.
    pub(crate) fn known(&self, key: &[u8]) -> Option<Change<'_>> {
        self.get(key).or_else(|| self.erases(key).then_some(None))
    }

    /// As [`Delta::known`], but for what [`Delta::erases`] says.
    fn get(&self, key: &[u8]) -> Option<Change<'_>> {
        let entry = self.find(key)?;
        Some(self.value(entry))
    }

    /// As [`Delta::get`], for a reader of the batches up to `seen`.
    pub(crate) fn get_at(&self, key: &[u8], seen: Sequence) -> Option<Change<'_>> {
        let entry = self.find(key).and_then(|entry| self.visible(entry, seen))?;
        Some(self.value(entry))
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        self.table.find(hash(key), |entry| self.key(entry) == key)
    }

    /// Whether any range of keys is gone.
    pub(crate) fn has_ranges(&self) -> bool {
        !self.erased.is_empty()
    }

    /// Whether anything at or above `lower` and below `upper` is changed here.
    pub(crate) fn touches(&self, lower: &[u8], upper: Option<&[u8]>) -> bool {
        self.next_change(lower).is_some_and(|key| upper.is_none_or(|upper| key < upper))
    }

    /// Whether `key`, of which [`Delta::get`] knows nothing, is gone all the same.
    pub(crate) fn erases(&self, key: &[u8]) -> bool {
        self.erased.contain(key)
    }

    /// The first key at or above `from` at which something is changed: an entry, or a range that is gone.
    pub(crate) fn next_change<'a>(&'a self, from: &'a [u8]) -> Option<&'a [u8]> {
        let entry = self.entry(self.seek(Bound::Included(from), Direction::Ascending)).map(|(key, _)| key);
        let range = self.erased.after(from).map(|(start, _)| start.max(from));
        match (entry, range) {
            (Some(entry), Some(range)) => Some(entry.min(range)),
            (entry, range) => entry.or(range),
        }
    }

    /// Sets or deletes `key` in `batch`; answers whether it is new here. Entries of batches up to `kept`
    /// are kept for snapshots.
    pub(crate) fn set(&mut self, key: &[u8], value: Change<'_>, batch: Sequence, kept: Sequence) -> bool {
        let hash = hash(key);
        let Some(entry) = self.table.find(hash, |entry| self.key(entry) == key) else {
            let entry = self.push(key, value, batch, NONE);
            self.table.insert(hash, entry);
            self.records += 1;
            self.puts += usize::from(value.is_some());
            self.place(key, entry);
            return true;
        };
        let header = self.header(entry);
        self.puts -= usize::from(u16_at(&header, AT_VALUE) != DELETED);
        self.puts += usize::from(value.is_some());
        let keep = self.base.0 + u64::from(u32_at(&header, AT_BATCH)) <= kept.0;
        if keep || !self.overwrite(entry, &header, value, batch) {
            // Without a snapshot that sees it, the old one is only in the way of whoever looks for older ones.
            let older = if keep { entry } else { u32_at(&header, AT_OLDER) };
            let moved = self.push(key, value, batch, older);
            self.table.replace(hash, entry, moved);
            self.place(key, moved);
        }
        false
    }

    /// Deletes every key at or above `from` and below `to` in `batch`, known here or not.
    pub(crate) fn erase(&mut self, from: &[u8], to: &[u8], batch: Sequence, kept: Sequence) {
        if from >= to {
            return;
        }
        let mut at = self.seek(Bound::Included(from), Direction::Ascending);
        while let Some(entry) = self.entry_at(at).filter(|&entry| self.key(entry) < to) {
            let next = self.step(at, Direction::Ascending);
            if self.word(entry as usize + AT_VALUE) != DELETED {
                self.puts -= 1;
                if self.batch(entry) <= kept {
                    let moved = self.push_tombstone(entry, batch);
                    self.table.replace(hash(self.key(entry)), entry, moved);
                    self.leaves[at.leaf as usize].entries[usize::from(at.index)] = moved;
                } else {
                    self.overwrite(entry, &self.header(entry), None, batch);
                }
            }
            at = next;
        }
        self.erased_bytes += from.len() + to.len();
        Arc::make_mut(&mut self.erased).insert(from, to);
    }

    /// Puts `entry` in its place in the tree, or in that of an older entry of `key`.
    fn place(&mut self, key: &[u8], entry: u32) {
        let prefix = prefix(key);
        let mut path = [(0, 0); HEIGHT_MAX];
        let mut node = self.root;
        for step in path.iter_mut().take(self.height) {
            let inner = &self.inners[node as usize];
            let index = self.child_index(inner, key, prefix);
            *step = (node, index);
            node = inner.children[index];
        }
        let (index, found) = self.rank_in_leaf(&self.leaves[node as usize], key, prefix);
        if found {
            self.leaves[node as usize].entries[index] = entry;
        } else {
            self.insert_in_leaf(node, index, (prefix, entry), &path[..self.height]);
        }
    }

    /// Puts the new value where the old one is, if it fits.
    fn overwrite(
        &mut self,
        entry: u32,
        header: &[u8; ENTRY_HEADER],
        value: Change<'_>,
        batch: Sequence,
    ) -> bool {
        let bytes = value.unwrap_or(&[]);
        if bytes.len() > usize::from(u16_at(header, AT_CAPACITY)) {
            return false;
        }
        let number = self.count(batch);
        let (start, key) = (entry as usize, usize::from(u16_at(header, 0)));
        let (header, rest) = self.arena[start..].split_at_mut(ENTRY_HEADER);
        put_u16(header, AT_VALUE, value.map_or(DELETED, |bytes| bytes.len() as u16));
        put_u32(header, AT_BATCH, number);
        rest[key..key + bytes.len()].copy_from_slice(bytes);
        true
    }

    fn push(&mut self, key: &[u8], value: Change<'_>, batch: Sequence, older: u32) -> u32 {
        let bytes = value.unwrap_or(&[]);
        let entry = self.push_header(key.len(), value.map(<[u8]>::len), batch, older);
        self.arena.reserve(key.len() + bytes.len());
        self.arena.extend_from_slice(key);
        self.arena.extend_from_slice(bytes);
        entry
    }

    /// An entry that says that the key of `older` is deleted.
    fn push_tombstone(&mut self, older: u32, batch: Sequence) -> u32 {
        let start = older as usize + ENTRY_HEADER;
        let length = usize::from(self.word(older as usize));
        let entry = self.push_header(length, None, batch, older);
        self.arena.extend_from_within(start..start + length);
        entry
    }

    fn push_header(&mut self, key: usize, value: Option<usize>, batch: Sequence, older: u32) -> u32 {
        let entry = u32::try_from(self.arena.len()).expect("the log bounds the delta below 4 GiB");
        let capacity = value.unwrap_or(0) as u16;
        let mut header = [0; ENTRY_HEADER];
        header[..AT_VALUE].copy_from_slice(&(key as u16).to_le_bytes());
        header[AT_VALUE..AT_CAPACITY].copy_from_slice(&value.map_or(DELETED, |_| capacity).to_le_bytes());
        header[AT_CAPACITY..AT_BATCH].copy_from_slice(&capacity.to_le_bytes());
        header[AT_BATCH..AT_OLDER].copy_from_slice(&self.count(batch).to_le_bytes());
        header[AT_OLDER..].copy_from_slice(&older.to_le_bytes());
        self.arena.extend_from_slice(&header);
        entry
    }

    fn insert_in_leaf(&mut self, node: u32, index: usize, item: (u128, u32), path: &[(u32, usize)]) {
        let leaf = &mut self.leaves[node as usize];
        if usize::from(leaf.len) < FANOUT {
            leaf.insert(index, item);
            return;
        }
        let right = bounded(self.leaves.len(), "the log bounds the delta");
        let leaf = &mut self.leaves[node as usize];
        // Appending in order keeps leaves full.
        let half = if index == FANOUT && leaf.next == NONE { FANOUT } else { FANOUT / 2 };
        let mut new = leaf.split(half);
        (new.previous, new.next) = (node, leaf.next);
        let after = core::mem::replace(&mut leaf.next, right);
        if index > half || half == FANOUT {
            new.insert(index - half, item);
        } else {
            leaf.insert(index, item);
        }
        let smallest = (new.prefixes[0], new.entries[0]);
        self.leaves.push(new);
        if after != NONE {
            self.leaves[after as usize].previous = right;
        }
        self.insert_child(smallest, right, path);
    }

    /// Adds the child `right`, whose smallest key is `smallest`, after the one that `path` leads to.
    fn insert_child(&mut self, smallest: (u128, u32), right: u32, path: &[(u32, usize)]) {
        let (mut smallest, mut right) = (smallest, right);
        for &(node, index) in path.iter().rev() {
            let inner = &mut self.inners[node as usize];
            if usize::from(inner.len) < FANOUT {
                inner.insert(index + 1, smallest, right);
                return;
            }
            let half = if index + 1 == FANOUT { FANOUT - 1 } else { FANOUT / 2 };
            let mut new = inner.split(half);
            if index + 1 > half {
                new.insert(index + 1 - half, smallest, right);
            } else {
                inner.insert(index + 1, smallest, right);
            }
            smallest = (new.prefixes[0], new.entries[0]);
            right = bounded(self.inners.len(), "the log bounds the delta");
            self.inners.push(new);
        }
        let mut root = EMPTY_INNER_NODE;
        root.insert(0, (0, 0), self.root);
        root.insert(1, smallest, right);
        self.root = bounded(self.inners.len(), "the log bounds the delta");
        self.inners.push(root);
        self.height += 1;
        assert!(self.height <= HEIGHT_MAX, "a delta of {} levels", self.height);
    }

    /// The first place in `direction` from `bound`: at or above it ascending, at or below it descending.
    pub(crate) fn seek(&self, bound: Bound<&[u8]>, direction: Direction) -> Cursor {
        let ascending = direction == Direction::Ascending;
        let (key, exact_counts) = match bound {
            Bound::Unbounded => return self.edge(direction),
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
        };
        let prefix = prefix(key);
        let leaf = self.leaf_of(key, prefix);
        let (index, found) = self.rank_in_leaf(&self.leaves[leaf as usize], key, prefix);
        // `index` is the first entry at or above the key.
        let skip_exact = found && (ascending != exact_counts);
        let index = index + usize::from(skip_exact);
        let at = Cursor { leaf, index: index as u16 };
        if ascending { self.settle(at) } else { self.back(at) }
    }

    fn edge(&self, direction: Direction) -> Cursor {
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node as usize];
            let last = usize::from(inner.len) - 1;
            node = inner.children[if direction == Direction::Ascending { 0 } else { last }];
        }
        match direction {
            Direction::Ascending => self.settle(Cursor { leaf: node, index: 0 }),
            Direction::Descending => self.back(Cursor { leaf: node, index: self.leaves[node as usize].len }),
        }
    }

    /// From a place past the end of a leaf to the start of the next.
    fn settle(&self, at: Cursor) -> Cursor {
        let leaf = &self.leaves[at.leaf as usize];
        if at.index < leaf.len { at } else { Cursor { leaf: leaf.next, index: 0 } }
    }

    fn back(&self, at: Cursor) -> Cursor {
        if at.index > 0 {
            return Cursor { index: at.index - 1, ..at };
        }
        let leaf = self.leaves[at.leaf as usize].previous;
        let index = self.leaves.get(leaf as usize).map_or(0, |leaf| leaf.len - 1);
        Cursor { leaf, index }
    }

    fn entry_at(&self, at: Cursor) -> Option<u32> {
        let leaf = self.leaves.get(at.leaf as usize)?;
        leaf.entries.get(usize::from(at.index)).filter(|_| at.index < leaf.len).copied()
    }

    /// The entry at `at`, or `None` past the end.
    pub(crate) fn entry(&self, at: Cursor) -> Option<(&[u8], Change<'_>)> {
        let entry = self.entry_at(at)?;
        Some((self.key(entry), self.value(entry)))
    }

    /// As [`Delta::entry`], for a reader of the batches up to `seen`: the change is `None` when it sees none.
    pub(crate) fn entry_seen(&self, at: Cursor, seen: Sequence) -> Option<(&[u8], Option<Change<'_>>)> {
        let entry = self.entry_at(at)?;
        Some((self.key(entry), self.visible(entry, seen).map(|entry| self.value(entry))))
    }

    /// About how many of its keys lie at or above `from` and below `to`, for who only wants to know how far
    /// it came.
    pub(crate) fn records_between(&self, from: &[u8], to: &[u8]) -> usize {
        let goal = self.leaf_of(to, prefix(to));
        let mut node = self.leaf_of(from, prefix(from));
        let mut count = 0;
        while let Some(leaf) = self.leaves.get(node as usize).filter(|_| node != goal) {
            count += usize::from(leaf.len);
            node = leaf.next;
        }
        count
    }

    /// The place after `at`, which is at an entry.
    pub(crate) fn step(&self, at: Cursor, direction: Direction) -> Cursor {
        match direction {
            Direction::Ascending => self.settle(Cursor { index: at.index + 1, ..at }),
            Direction::Descending => self.back(at),
        }
    }
}

fn insert_at<T: Copy>(array: &mut [T; FANOUT], len: u16, index: usize, item: T) {
    array.copy_within(index..usize::from(len), index + 1);
    array[index] = item;
}

impl LeafNode {
    fn insert(&mut self, index: usize, (prefix, entry): (u128, u32)) {
        insert_at(&mut self.prefixes, self.len, index, prefix);
        insert_at(&mut self.entries, self.len, index, entry);
        self.len += 1;
    }

    /// Moves the entries from `half` on into a new leaf.
    fn split(&mut self, half: usize) -> Self {
        let mut new = EMPTY_LEAF_NODE;
        let moved = usize::from(self.len) - half;
        new.prefixes[..moved].copy_from_slice(&self.prefixes[half..half + moved]);
        new.entries[..moved].copy_from_slice(&self.entries[half..half + moved]);
        (self.len, new.len) = (half as u16, moved as u16);
        new
    }
}

impl InnerNode {
    fn insert(&mut self, index: usize, (prefix, entry): (u128, u32), child: u32) {
        insert_at(&mut self.prefixes, self.len, index, prefix);
        insert_at(&mut self.entries, self.len, index, entry);
        insert_at(&mut self.children, self.len, index, child);
        self.len += 1;
    }

    fn split(&mut self, half: usize) -> Self {
        let mut new = EMPTY_INNER_NODE;
        let moved = usize::from(self.len) - half;
        new.prefixes[..moved].copy_from_slice(&self.prefixes[half..half + moved]);
        new.entries[..moved].copy_from_slice(&self.entries[half..half + moved]);
        new.children[..moved].copy_from_slice(&self.children[half..half + moved]);
        (self.len, new.len) = (half as u16, moved as u16);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Model = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

    /// No snapshot sees anything.
    const NONE_KEPT: Sequence = Sequence(0);

    /// Short keys over few bytes collide, share prefixes, and differ only in trailing zeroes.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(0u8..3, 0..5),
            prop::collection::vec(0u8..2, 15..19),
            prop::collection::vec(any::<u8>(), 8..40),
        ]
    }

    fn walk(delta: &Delta, from: Bound<&[u8]>, direction: Direction) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut all = Vec::new();
        let mut at = delta.seek(from, direction);
        while let Some((key, value)) = delta.entry(at) {
            all.push((key.to_vec(), value.map(<[u8]>::to_vec)));
            at = delta.step(at, direction);
        }
        all
    }

    fn same(delta: &Delta, model: &Model, probe: &[u8]) {
        assert_eq!(delta.records, model.len());
        assert_eq!(delta.puts(), model.values().flatten().count());
        assert_eq!(delta.get(probe).map(|v| v.map(<[u8]>::to_vec)), model.get(probe).cloned());
        let pairs = |range: &mut dyn Iterator<Item = (&Vec<u8>, &Option<Vec<u8>>)>| {
            range.map(|(k, v)| (k.clone(), v.clone())).collect::<Vec<_>>()
        };
        for bound in [Bound::Included(probe), Bound::Excluded(probe), Bound::Unbounded] {
            let up = pairs(&mut model.range::<[u8], _>((bound, Bound::Unbounded)));
            assert_eq!(walk(delta, bound, Direction::Ascending), up, "up from {bound:?}");
            let down = pairs(&mut model.range::<[u8], _>((Bound::Unbounded, bound)).rev());
            assert_eq!(walk(delta, bound, Direction::Descending), down, "down from {bound:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_is_an_ordered_map(
            steps in prop::collection::vec((key(), prop::option::of(0usize..20)), 1..400),
            probes in prop::collection::vec(key(), 4),
        ) {
            let (mut delta, mut model) = (Delta::new(), Model::new());
            for (n, (key, length)) in steps.into_iter().enumerate() {
                let value = length.map(|length| vec![n as u8; length]);
                let new = delta.set(&key, value.as_deref(), Sequence(n as u64 + 1), NONE_KEPT);
                prop_assert_eq!(new, model.insert(key, value).is_none());
            }
            let some = model.keys().nth(model.len() / 2).cloned().unwrap();
            for probe in probes.iter().chain([&some]) {
                same(&delta, &model, probe);
            }
            let mut delta = delta.cleared();
            same(&delta, &Model::new(), &some);
            delta.set(&some, None, Sequence(1), NONE_KEPT);
            same(&delta, &Model::from([(some.clone(), None)]), &some);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Set(Vec<u8>, Option<usize>),
        Erase(Vec<u8>, Vec<u8>),
        Snapshot,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (key(), prop::option::of(0usize..20)).prop_map(|(key, value)| Step::Set(key, value)),
            1 => (key(), key()).prop_map(|(a, b)| Step::Erase(a.clone().min(b.clone()), a.max(b))),
            1 => Just(Step::Snapshot),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        /// A delta over a base that has every key: what each snapshot sees does not change.
        #[test]
        fn snapshots_see_what_they_saw(steps in prop::collection::vec(step(), 1..150)) {
            let mut delta = Delta::new();
            // Of the keys that occur: the value, or that they are gone.
            let keys: Vec<_> = steps.iter().filter_map(|step| match step {
                Step::Set(key, _) | Step::Erase(key, _) => Some(key.clone()),
                Step::Snapshot => None,
            }).collect();
            let mut model: BTreeMap<_, _> = keys.into_iter().map(|key| (key, Some(b"base".to_vec()))).collect();
            let mut snapshots = Vec::new();
            let mut kept = NONE_KEPT;
            for (n, step) in steps.into_iter().enumerate() {
                let batch = Sequence(n as u64 + 1);
                match step {
                    Step::Set(key, length) => {
                        let value = length.map(|length| vec![n as u8; length]);
                        delta.set(&key, value.as_deref(), batch, kept);
                        model.insert(key, value);
                    }
                    Step::Erase(from, to) => {
                        delta.erase(&from, &to, batch, kept);
                        model.range_mut(from..to).for_each(|(_, value)| *value = None);
                    }
                    Step::Snapshot => {
                        kept = Sequence(n as u64);
                        snapshots.push((kept, Arc::clone(delta.erased()), model.clone()));
                    }
                }
            }
            snapshots.push((NEWEST, Arc::clone(delta.erased()), model));
            for (seen, erased, model) in &snapshots {
                for (key, want) in model {
                    let base = (!erased.contain(key)).then(|| &b"base"[..]);
                    let found = delta.get_at(key, *seen).unwrap_or(base);
                    prop_assert_eq!(found, want.as_deref(), "{:?} at {}", key, seen);
                    let at = delta.seek(Bound::Included(key), Direction::Ascending);
                    let walked = delta.entry_seen(at, *seen).filter(|(found, _)| found == key);
                    prop_assert_eq!(walked.and_then(|(_, change)| change), delta.get_at(key, *seen));
                }
            }
            let all = walk(&delta, Bound::Unbounded, Direction::Ascending);
            prop_assert_eq!(delta.puts(), all.iter().filter(|(_, value)| value.is_some()).count());
        }
    }

    #[test]
    fn many_keys_in_any_order_stay_in_order() {
        let orders: [fn(u32) -> u32; 3] = [|n| n, |n| 49_999 - n, |n| n.wrapping_mul(2_654_435_761)];
        for order in orders {
            let (mut delta, mut model) = (Delta::new(), Model::new());
            for n in (0..50_000).map(order) {
                let key = n.to_be_bytes();
                delta.set(&key, Some(&key), Sequence(n.into()), NONE_KEPT);
                model.insert(key.to_vec(), Some(key.to_vec()));
            }
            same(&delta, &model, &25_000u32.to_be_bytes());
        }
    }

    #[test]
    fn a_value_of_the_same_size_takes_no_more_memory() {
        let mut delta = Delta::new();
        delta.set(b"inode", Some(&[1; 200]), Sequence(1), NONE_KEPT);
        let bytes = delta.bytes();
        for n in 0..100u8 {
            delta.set(b"inode", Some(&[n; 200]), Sequence(2), NONE_KEPT);
        }
        assert_eq!(delta.bytes(), bytes);
        assert_eq!(delta.get(b"inode"), Some(Some(&[99; 200][..])));
    }
}
