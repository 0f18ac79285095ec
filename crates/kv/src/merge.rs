//! A new tree from an old one and a delta: every node on the way to a change is written anew, elsewhere.
//!
//! The walk is in key order, leaf by leaf. When free blocks run short it stops at some key: the tree it
//! then answers holds the changes up to there, and the walk goes on from there with the next superblock.

use crate::KvError;
use crate::delta::{Cursor, Delta, Direction};
use crate::disk::Disk;
use crate::node::{Node, entry_child, push_child, push_record};
use crate::nodes::Nodes;
use crate::pack::{PACKED_BYTES_MIN, Row};
use crate::space::Space;
use crate::superblock::{LEVEL_MAX, Reference, Root, Superblock};
use core::ops::Bound;
use nvmed_units::BLOCK_BYTES;
use std::sync::Arc;

/// Blocks in one write of nodes: 256 KiB.
const WRITE_BLOCKS_MAX: usize = 64;

/// One step of a checkpoint.
pub(crate) struct Merge<'a> {
    pub(crate) disk: &'a Disk,
    pub(crate) nodes: &'a Nodes,
    pub(crate) space: &'a mut Space,
    pub(crate) superblock: &'a Superblock,
    pub(crate) delta: &'a Delta,
    /// The next change to take up.
    pub(crate) at: Cursor,
    writes: Writes,
    /// Blocks that were free when the step began.
    available: u64,
    /// Leaves read and leaves written so far.
    leaves: u64,
    levels: u64,
    stopped: bool,
}

/// Nodes on their way to the medium, neighbours together.
struct Writes {
    first: u64,
    bytes: Vec<u8>,
}

impl<'a> Merge<'a> {
    /// A step from change `at` of `delta` on.
    pub(crate) fn new(
        disk: &'a Disk,
        nodes: &'a Nodes,
        space: &'a mut Space,
        superblock: &'a Superblock,
        delta: &'a Delta,
        at: Cursor,
    ) -> Self {
        let available = space.free();
        let levels = superblock.root.map_or(1, |root| u64::from(root.level) + 1);
        let writes = Writes { first: 0, bytes: Vec::new() };
        let (leaves, stopped) = (0, false);
        Self { disk, nodes, space, superblock, delta, at, writes, available, leaves, levels, stopped }
    }

    /// The new tree, written but not flushed. Whether all changes are in it: [`Merge::at`] is at the end.
    pub(crate) fn run(&mut self) -> Result<Option<Root>, KvError> {
        let (mut row, mut level) = (Row::default(), 0);
        let mut in_order = true;
        match self.superblock.root {
            Some(root) => {
                level = root.level;
                in_order = self.take_child(&root.node, level, &[], None, &mut row)?;
            }
            None => self.merge_leaf(None, None, &mut row)?,
        }
        let root = loop {
            if row.is_empty() {
                break None;
            }
            if level > 0 && row.len() == 1 {
                // A root with one child: the child is the root.
                break Some(Root { node: entry_child(row.entry(0)), level: level - 1 });
            }
            let mut above = Row::default();
            self.emit(&mut row, level, &[], in_order, &mut above)?;
            if above.len() == 1 {
                break Some(Root { node: entry_child(above.entry(0)), level });
            }
            if level == LEVEL_MAX {
                return Err(KvError::Full);
            }
            (row, level) = (above, level + 1);
        };
        self.writes.send(self.disk)?;
        Ok(root)
    }

    /// Whether the next change, if any is still wanted, is below `upper`.
    fn changes_below(&self, upper: Option<&[u8]>) -> bool {
        if self.stopped {
            return false;
        }
        let next = self.delta.entry(self.at);
        next.is_some_and(|(key, _)| upper.is_none_or(|upper| key < upper))
    }

    /// Appends to `row` what the node `child` is to hold, and gives its block up. Its keys are at or
    /// above `lower` and below `upper`. Answers whether all new keys came after all old ones.
    fn take_child(
        &mut self,
        child: &Reference,
        level: u16,
        lower: &[u8],
        upper: Option<&[u8]>,
        row: &mut Row,
    ) -> Result<bool, KvError> {
        let node = self.nodes.get(self.disk, child, level)?;
        self.space.free_block(child.block);
        if level > 0 {
            self.merge_inner(&node, lower, upper, row)?;
            return Ok(false);
        }
        self.leaves += 1;
        let before = self.at;
        self.merge_leaf(Some(&node), upper, row)?;
        let first_change = self.delta.entry(before).map(|(key, _)| key);
        Ok(first_change.is_some_and(|first| first > node.key(node.len() - 1)))
    }

    fn merge_inner(
        &mut self,
        node: &Node,
        lower: &[u8],
        upper: Option<&[u8]>,
        row: &mut Row,
    ) -> Result<(), KvError> {
        // What is to go into new children, from the child with key `carry_key` on.
        let mut carry = Row::default();
        let mut carry_key: &[u8] = lower;
        let mut in_order = false;
        let last = node.len() - 1;
        let old_entries = row.len();
        for index in 0..=last {
            let child_upper = if index < last { Some(node.key(index + 1)) } else { upper };
            // The first child takes all keys from `lower` on, whatever its entry says; so does the
            // first that is left of those that vanish.
            let key = if row.len() == old_entries { lower } else { node.key(index) };
            let changed = self.changes_below(child_upper);
            if !changed && (carry.is_empty() || self.stopped) {
                self.emit(&mut carry, node.level() - 1, carry_key, in_order, row)?;
                let key = if row.len() == old_entries { lower } else { node.key(index) };
                row.push(|bytes| push_child(bytes, key, &node.child(index)));
                continue;
            }
            if carry.is_empty() {
                carry_key = key;
            }
            let child_lower = if carry.is_empty() { key } else { node.key(index) };
            in_order =
                self.take_child(&node.child(index), node.level() - 1, child_lower, child_upper, &mut carry)?;
            if !carry.is_underfull() {
                self.emit(&mut carry, node.level() - 1, carry_key, in_order, row)?;
            }
        }
        self.emit(&mut carry, node.level() - 1, carry_key, in_order, row)
    }

    /// Appends the records of `leaf` with the changes below `upper` to `row`.
    fn merge_leaf(
        &mut self,
        leaf: Option<&Node>,
        upper: Option<&[u8]>,
        row: &mut Row,
    ) -> Result<(), KvError> {
        let delta = self.delta;
        let (mut index, len) = (0, leaf.map_or(0, Node::len));
        while self.changes_below(upper) {
            let Some((key, value)) = delta.entry(self.at) else {
                break;
            };
            if !self.has_room(row) {
                self.stopped = true;
                break;
            }
            if let Some(leaf) = leaf {
                while index < len && leaf.key(index) < key {
                    row.push(|bytes| bytes.extend_from_slice(leaf.entry(index)));
                    index += 1;
                }
                index += usize::from(index < len && leaf.key(index) == key);
            }
            if let Some(value) = value {
                row.push(|bytes| push_record(bytes, key, value));
            }
            self.at = delta.step(self.at, Direction::Ascending);
        }
        if let Some(leaf) = leaf {
            for index in index..len {
                row.push(|bytes| bytes.extend_from_slice(leaf.entry(index)));
            }
        }
        Ok(())
    }

    /// Whether one more record of any size can be taken up with the blocks that are left.
    ///
    /// Each leaf read or written may make one node in each level above split in two, so a step that
    /// touches `n` leaves needs at most `n (2 levels + 1)` blocks, and a few more to grow a level.
    fn has_room(&self, row: &Row) -> bool {
        let coming = (row.cost() / PACKED_BYTES_MIN + 3) as u64;
        (self.leaves + coming) * (2 * self.levels + 1) + 2 <= self.available
    }

    /// Writes `row` as nodes of `level` and appends their entries to `above`; `key` is the first one's.
    fn emit(
        &mut self,
        row: &mut Row,
        level: u16,
        key: &[u8],
        in_order: bool,
        above: &mut Row,
    ) -> Result<(), KvError> {
        let mut from = 0;
        while from < row.len() {
            let (builder, next) = row.fill(from, in_order);
            let block = self.space.allocate(self.disk, self.superblock)?;
            let generation = self.superblock.generation + 1;
            let node = builder.finish(self.superblock.identity, block, generation, level);
            let reference = Reference { block, generation, crc: node.crc() };
            self.writes.push(self.disk, &node)?;
            self.nodes.keep(Arc::new(node));
            let key = if from == 0 { key } else { row.separator(from, level) };
            above.push(|bytes| push_child(bytes, key, &reference));
            self.leaves += u64::from(level == 0);
            from = next;
        }
        row.clear();
        Ok(())
    }
}

impl Writes {
    fn push(&mut self, disk: &Disk, node: &Node) -> Result<(), KvError> {
        let next = self.first + (self.bytes.len() / BLOCK_BYTES) as u64;
        if node.block() != next || self.bytes.len() >= WRITE_BLOCKS_MAX * BLOCK_BYTES {
            self.send(disk)?;
            self.first = node.block();
        }
        self.bytes.extend_from_slice(node.bytes());
        Ok(())
    }

    fn send(&mut self, disk: &Disk) -> Result<(), KvError> {
        if !self.bytes.is_empty() {
            disk.write(self.first, &self.bytes, false)?;
            self.bytes.clear();
        }
        Ok(())
    }
}

/// Where a merge of all of `delta` begins.
pub(crate) fn start(delta: &Delta) -> Cursor {
    delta.seek(Bound::Unbounded, Direction::Ascending)
}
