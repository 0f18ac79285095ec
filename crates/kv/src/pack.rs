//! Entries on their way into nodes: a row of encoded entries, cut into blocks.

use crate::node::{Builder, CAPACITY, SLOT_BYTES, entry_key};

/// A node is filled to nine tenths when there is enough for more than one, so that the next few
/// insertions do not split it at once.
const FILL_BYTES: usize = CAPACITY * 9 / 10;
/// A node below a third joins its right neighbour.
const UNDERFULL_BYTES: usize = CAPACITY / 3;
/// Each node but the last of a row holds this much at least: half of one, less half the largest record.
pub(crate) const PACKED_BYTES_MIN: usize = 1900;

/// Encoded entries of one level, in key order.
#[derive(Default)]
pub(crate) struct Row {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Row {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Bytes that the entries take in nodes.
    pub(crate) fn cost(&self) -> usize {
        self.bytes.len() + SLOT_BYTES * self.ends.len()
    }

    pub(crate) fn is_underfull(&self) -> bool {
        self.cost() < UNDERFULL_BYTES
    }

    /// Adds the entry that `encode` appends.
    pub(crate) fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn entry(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[index]]
    }

    /// Fills the next node from entry `from` on; answers it and the first entry that is not in it.
    ///
    /// What is left is spread evenly over the nodes that it needs, or, with `in_order`, fills each as far
    /// as is sensible: the keys came in ascending order and will go on to.
    pub(crate) fn fill(&self, from: usize, in_order: bool) -> (Builder, usize) {
        let start = from.checked_sub(1).map_or(0, |before| self.ends[before]);
        let left = self.bytes.len() - start + SLOT_BYTES * (self.len() - from);
        let target = if left <= CAPACITY {
            CAPACITY
        } else if in_order {
            FILL_BYTES
        } else {
            left.div_ceil(left.div_ceil(FILL_BYTES))
        };
        let mut builder = Builder::new();
        let (mut next, mut filled) = (from, 0);
        while next < self.len() && filled < target {
            let entry = self.entry(next);
            if !builder.fits(entry) {
                break;
            }
            builder.push(entry);
            filled += entry.len() + SLOT_BYTES;
            next += 1;
        }
        (builder, next)
    }

    /// The shortest key that is above entry `index - 1` and at or below entry `index`, of a leaf's row;
    /// of an inner node's row, the key of entry `index`.
    pub(crate) fn separator(&self, index: usize, level: u16) -> &[u8] {
        let key = entry_key(self.entry(index), level);
        if level > 0 || index == 0 {
            return key;
        }
        let before = entry_key(self.entry(index - 1), level);
        let shared = key.iter().zip(before).take_while(|(a, b)| a == b).count();
        &key[..(shared + 1).min(key.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::push_record;

    fn row(count: usize, value: usize) -> Row {
        let mut row = Row::default();
        for n in 0..count {
            row.push(|bytes| push_record(bytes, format!("key{n:06}").as_bytes(), &vec![1; value]));
        }
        row
    }

    fn nodes(row: &Row, in_order: bool) -> Vec<usize> {
        let (mut from, mut sizes) = (0, Vec::new());
        while from < row.len() {
            let (_, next) = row.fill(from, in_order);
            assert!(next > from);
            sizes.push(next - from);
            from = next;
        }
        sizes
    }

    #[test]
    fn nodes_are_filled_evenly_or_to_nine_tenths() {
        let row = row(1000, 50); // 65 bytes each: 62 in a full node
        let even = nodes(&row, false);
        assert!(even.iter().all(|&n| (48..=56).contains(&n)), "{even:?}");
        let ordered = nodes(&row, true);
        assert!(ordered[..ordered.len() - 1].iter().all(|&n| (54..=57).contains(&n)), "{ordered:?}");
    }

    #[test]
    fn no_node_but_the_last_is_nearly_empty() {
        for value in [0, 100, 900, 1024] {
            for count in 1..60 {
                let row = row(count, value);
                let sizes = nodes(&row, false);
                let entry = row.cost() / count;
                let full = &sizes[..sizes.len() - 1];
                assert!(full.iter().all(|n| n * entry >= PACKED_BYTES_MIN), "{value} {count} {sizes:?}");
            }
        }
    }

    #[test]
    fn separators_are_short_and_separate() {
        let mut row = Row::default();
        for key in [&b"a"[..], b"abc", b"abd", b"b\0", b"b\0\0"] {
            row.push(|bytes| push_record(bytes, key, b""));
        }
        let all: Vec<_> = (1..5).map(|index| row.separator(index, 0)).collect();
        assert_eq!(all, [&b"ab"[..], b"abd", b"b", b"b\0\0"]);
    }
}
