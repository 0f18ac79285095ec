//! A new tree from an old one and a delta: every node on the way to a change is written anew, elsewhere.
//!
//! The walk is in key order, leaf by leaf, through nested trees as they come. When free blocks or the budget
//! run short it stops at some key: the tree it then answers holds the changes up to there, and the walk goes on
//! from there with the next superblock.

use crate::delta::{Cursor, Delta, Direction};
use crate::disk::Disk;
use crate::emit::Writes;
use crate::leaf::{Entry, Kind, encode_subtree};
use crate::node::{CAPACITY, CHUNK_BYTES, Child, FANOUT_MAX, Node, chunk};
use crate::nodes::Nodes;
use crate::pack::{FOLD_BYTES, Row, measure};
use crate::space::Space;
use crate::superblock::{Reference, Root, Superblock};
use crate::tree::too_deep;
use crate::value::{self, HELD_BYTES_MAX};
use crate::{KEY_BYTES_MAX, KvError};
use core::cmp::Ordering;
use core::ops::Bound;
use std::panic::resume_unwind;
use std::thread;

/// Leaves of changes that are gathered at most before they are written.
const CARRY_BYTES_MAX: usize = 16 * CAPACITY;
/// Changes after all of a leaf's that make an ascending run of them.
const RUN_MIN: usize = 4;
/// Blocks that one inner node on the path may need: itself, what it splits into, and a neighbour that joins.
const FRAME_BLOCKS: u64 = 4;
/// Nodes of a path that are walked on one stack. They take half a megabyte at most, and few trees have so many:
/// keys that differ in their ends can nest a thousand, and whoever makes an image twenty times that.
const STACK_NODES: u32 = 256;

/// One step of a checkpoint.
pub(crate) struct Merge<'a> {
    pub(crate) disk: &'a Disk,
    pub(crate) nodes: &'a Nodes,
    pub(crate) space: &'a mut Space,
    pub(crate) superblock: &'a Superblock,
    delta: &'a Delta,
    /// After [`Merge::run`]: where the next step goes on; `None` when all changes are in the tree.
    pub(crate) at: Option<Vec<u8>>,
    /// After [`Merge::run`]: whether the step got anywhere.
    pub(crate) moved: bool,
    /// Changes below are in the tree already.
    from: &'a [u8],
    /// The next change to take up.
    next: Cursor,
    /// Of the B+tree that the walk is in.
    prefix: Vec<u8>,
    pub(crate) writes: Writes,
    /// Blocks written and nodes read so far.
    pub(crate) written: u64,
    read: u64,
    /// Nodes of the path above.
    path: u32,
    /// Blocks that it may still need.
    open: u64,
    /// Blocks that were free when the step began, and what it may read and write.
    available: u64,
    budget: u64,
    begun: bool,
}

/// What is to go into nodes of one level.
#[derive(Default)]
struct Content {
    row: Row,
    children: Vec<Child>,
}

/// What has become of a tree.
enum Outcome {
    Nothing,
    /// So little that it fits its parent.
    Little(Row),
    Root(Root),
}

impl Content {
    fn is_empty(&self) -> bool {
        self.row.is_empty() && self.children.is_empty()
    }

    fn is_underfull(&self, level: u16) -> bool {
        if level == 0 { self.row.is_underfull() } else { self.children.len() < FANOUT_MAX / 3 }
    }

    /// More than a node, but not so much that it is better written.
    fn may_spread(&self, level: u16) -> bool {
        if level == 0 {
            self.row.overflows() && self.row.cost() < CARRY_BYTES_MAX
        } else {
            (FANOUT_MAX + 1..8 * FANOUT_MAX).contains(&self.children.len())
        }
    }
}

impl<'a> Merge<'a> {
    /// A step from the changes of `delta` at or above `from` on. It stops before it has read and written
    /// more than `budget_blocks`, but not before the first change.
    pub(crate) fn new(
        disk: &'a Disk,
        nodes: &'a Nodes,
        space: &'a mut Space,
        superblock: &'a Superblock,
        delta: &'a Delta,
        from: &'a [u8],
        budget_blocks: u64,
    ) -> Self {
        Self {
            available: space.free(),
            next: delta.seek(Bound::Included(from), Direction::Ascending),
            budget: budget_blocks,
            disk,
            nodes,
            space,
            superblock,
            delta,
            from,
            at: None,
            moved: false,
            prefix: Vec::new(),
            writes: Writes::default(),
            written: 0,
            read: 0,
            path: 0,
            open: 0,
            begun: false,
        }
    }

    /// The new tree, written but not flushed. [`Merge::at`] says whether all changes are in it.
    pub(crate) fn run(&mut self) -> Result<Option<Root>, KvError> {
        let root = match self.merge_tree(self.superblock.root)? {
            Outcome::Root(root) => Some(root),
            Outcome::Nothing => None,
            Outcome::Little(mut row) => {
                let mut above = Vec::new();
                self.emit_leaves(&mut row, 0, false, &mut above)?;
                Some(self.build_above(above, 0)?)
            }
        };
        self.writes.send(self.disk)?;
        self.moved = self.at.as_ref().is_none_or(|at| at.as_slice() > self.from);
        Ok(root)
    }

    /// The next change, if it is in our tree and below the chunk `upper`: its rest and its value.
    fn change(&self, upper: Option<u64>) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        if self.at.is_some() {
            return None;
        }
        let (key, value) = self.delta.entry(self.next)?;
        let rest = key.strip_prefix(self.prefix.as_slice())?;
        upper.is_none_or(|upper| chunk(rest) < upper).then_some((rest, value))
    }

    /// Whether anything in our tree from the chunk `lower` on and below `upper` is to be changed.
    fn is_changed(&self, lower: u64, upper: Option<u64>) -> bool {
        if self.at.is_some() {
            return false;
        }
        if self.change(upper).is_some() {
            return true;
        }
        if !self.delta.has_ranges() {
            return false;
        }
        let lower = self.bound(lower);
        let upper = match upper {
            Some(upper) => Some(self.bound(upper)),
            None => successor(&self.prefix),
        };
        self.is_erased(&lower, upper)
    }

    /// Whether a range of keys is erased somewhere at or above `lower` and below `upper`.
    fn is_erased(&self, lower: &[u8], upper: Option<Vec<u8>>) -> bool {
        let lower = lower.max(self.from);
        upper.as_deref().is_none_or(|upper| lower < upper) && self.delta.touches(lower, upper.as_deref())
    }

    /// The least key of our tree whose rest has a chunk at or above `chunk`.
    fn bound(&self, chunk: u64) -> Vec<u8> {
        let bytes = chunk.to_be_bytes();
        let len = CHUNK_BYTES - chunk.trailing_zeros() as usize / 8;
        [&self.prefix, &bytes[..len]].concat()
    }

    /// Whether what may still have to be written, with `row` and `coming` blocks of a value, fits.
    ///
    /// A row makes a leaf of half a block at least for each group or neighbours of them, and a burst leaves as
    /// much in a tree of its own. Every 92 nodes written make one above them.
    fn has_room(&self, row: &Row, coming: u64) -> bool {
        let needed = self.written + self.written / 64 + self.open + row_blocks(row) + coming;
        needed <= self.available && (!self.begun || needed + self.read <= self.budget)
    }

    /// Stops at the key `at` unless there is room.
    fn admit(&mut self, row: &Row, coming: u64, at: impl FnOnce(&Self) -> Vec<u8>) -> bool {
        let room = self.has_room(row, coming);
        if !room {
            self.at = Some(at(self));
        }
        room
    }

    /// What the tree `old`, whose prefix is ours, is to hold; its blocks are given up.
    fn merge_tree(&mut self, old: Option<Root>) -> Result<Outcome, KvError> {
        let mut content = Content::default();
        let mut in_order = true;
        let level = old.map_or(0, |root| root.level);
        match old {
            Some(root) => in_order = self.take(&root.node, level, 0, None, &mut content)?,
            None => self.merge_leaf(None, None, &mut content.row)?,
        }
        if content.is_empty() {
            return Ok(Outcome::Nothing);
        }
        let mut above = Vec::new();
        if level > 0 {
            above = content.children;
            if above.len() == 1 {
                // A root with one child: the child is the root.
                return Ok(Outcome::Root(Root { node: above[0].node, level: level - 1 }));
            }
            return self.build_above(above, level - 1).map(Outcome::Root);
        }
        if measure(&content.row.items) + self.prefix.len() <= FOLD_BYTES {
            return Ok(Outcome::Little(content.row));
        }
        self.emit_leaves(&mut content.row, 0, in_order, &mut above)?;
        self.build_above(above, 0).map(Outcome::Root)
    }

    /// As [`Merge::take_here`]; on a stack of its own when this one holds enough of the path.
    fn take(
        &mut self,
        child: &Reference,
        level: u16,
        lower: u64,
        upper: Option<u64>,
        content: &mut Content,
    ) -> Result<bool, KvError> {
        self.path += 1;
        let mut outcome = None;
        if self.path.is_multiple_of(STACK_NODES) {
            // We wait for it: it is this thread that goes on, with more room.
            let joined = thread::scope(|scope| {
                let walk = || self.take_here(child, level, lower, upper, content);
                thread::Builder::new().spawn_scoped(scope, walk).map(|walker| walker.join())
            });
            outcome = joined.ok().map(|joined| joined.unwrap_or_else(|panic| resume_unwind(panic)));
        }
        // Without a thread, the stack may still do.
        let outcome = outcome.unwrap_or_else(|| self.take_here(child, level, lower, upper, content));
        self.path -= 1;
        outcome
    }

    /// Appends to `content` what the node `child` is to hold, and gives its block up. Its chunks are at or
    /// above `lower` and below `upper`. Answers whether a run of new keys came after all old ones.
    fn take_here(
        &mut self,
        child: &Reference,
        level: u16,
        lower: u64,
        upper: Option<u64>,
        content: &mut Content,
    ) -> Result<bool, KvError> {
        let node = self.nodes.get(self.disk, child, level)?;
        self.read += 1;
        self.space.free_block(child.block);
        if level > 0 {
            self.merge_inner(&node, lower, upper, &mut content.children)?;
            return Ok(false);
        }
        let last = node.len() - 1;
        let after = self
            .change(upper)
            .is_some_and(|(rest, _)| node.order(last, rest) == Ordering::Less && !node.covers(last, rest));
        let before = content.row.items.len() + node.len();
        self.merge_leaf(Some(&node), upper, &mut content.row)?;
        // Past this leaf is past `from`: a range that is erased reached into it, though it held nothing perhaps.
        self.begun |= self.at.is_none();
        Ok(after && content.row.items.len() >= before + RUN_MIN)
    }

    fn merge_inner(
        &mut self,
        node: &Node,
        lower: u64,
        upper: Option<u64>,
        out: &mut Vec<Child>,
    ) -> Result<(), KvError> {
        self.open += FRAME_BLOCKS;
        let level = node.level() - 1;
        // What is to go into new children, from the one with the chunk `carry_lower` on.
        let mut carry = Content::default();
        let (mut carry_lower, mut in_order) = (lower, false);
        let (first, last) = (out.len(), node.len() - 1);
        for index in 0..=last {
            let child_upper = if index < last { Some(node.chunk(index + 1)) } else { upper };
            // The first child that is left takes all chunks from `lower` on.
            let own = |out: &Vec<Child>| if out.len() == first { lower } else { node.chunk(index) };
            let from = if index == 0 { lower } else { node.chunk(index) };
            let changed = self.is_changed(from, child_upper)
                && (level > 0 || self.admit(&carry.row, 0, |this| this.stop_key(from)));
            if !changed && (carry.is_empty() || self.at.is_some()) {
                self.emit(&mut carry, level, carry_lower, in_order, out)?;
                out.push(Child { chunk: own(out), node: node.child(index) });
                continue;
            }
            let child_lower = if carry.is_empty() { own(out) } else { node.chunk(index) };
            if carry.is_empty() {
                carry_lower = child_lower;
            }
            in_order = self.take(&node.child(index), level, child_lower, child_upper, &mut carry)?;
            // A full node shares what is too much with its right neighbour: two become three.
            let spread = changed && !in_order && carry.may_spread(level);
            if !(spread || carry.is_underfull(level)) {
                self.emit(&mut carry, level, carry_lower, in_order, out)?;
            }
        }
        self.emit(&mut carry, level, carry_lower, in_order, out)?;
        self.open -= FRAME_BLOCKS;
        Ok(())
    }

    /// Where to go on when nothing from the chunk `lower` on was looked at.
    fn stop_key(&self, lower: u64) -> Vec<u8> {
        let key = self.delta.entry(self.next).map(|(key, _)| key);
        match key.filter(|_| !self.delta.has_ranges()) {
            Some(key) => key.to_vec(),
            None => self.bound(lower).max(self.from.to_vec()),
        }
    }

    fn emit(
        &mut self,
        content: &mut Content,
        level: u16,
        lower: u64,
        in_order: bool,
        out: &mut Vec<Child>,
    ) -> Result<(), KvError> {
        if level == 0 {
            return self.emit_leaves(&mut content.row, lower, in_order, out);
        }
        if content.children.is_empty() {
            return Ok(());
        }
        self.emit_inner(&mut content.children, level, lower, out)
    }

    /// Appends the entries of `leaf` with the changes below `upper` to `row`.
    fn merge_leaf(&mut self, leaf: Option<&Node>, upper: Option<u64>, row: &mut Row) -> Result<(), KvError> {
        let mut index = 0;
        let ranges = self.delta.has_ranges();
        loop {
            let change = self.change(upper);
            let Some(leaf) = leaf.filter(|leaf| index < leaf.len()) else {
                if change.is_none() {
                    return Ok(());
                }
                self.take_change(row)?;
                continue;
            };
            let entry = leaf.entry(index);
            // Where the entry lies, seen from the change.
            let order = change.map_or(Ordering::Less, |(rest, _)| entry.order(rest));
            let subtree = entry.kind == Kind::Subtree;
            if order == Ordering::Greater || (order == Ordering::Equal && subtree) {
                self.take_change(row)?;
                continue;
            }
            if order == Ordering::Equal {
                if self.take_change(row)? {
                    self.drop_value(&entry);
                    index += 1;
                }
                continue;
            }
            if subtree {
                let changed = change.is_some_and(|(rest, _)| entry.covers(rest));
                self.merge_subtree(leaf, index, changed, row)?;
            } else if ranges && self.erases(&entry) {
                self.drop_value(&entry);
            } else {
                keep(&entry, row);
            }
            index += 1;
        }
    }

    /// Takes the next change up into `row`; `false`: the step ends before it.
    fn take_change(&mut self, row: &mut Row) -> Result<bool, KvError> {
        let Some((key, value)) = self.delta.entry(self.next) else {
            return Ok(false);
        };
        let long = value.filter(|value| value.len() > HELD_BYTES_MAX);
        let coming = long.map_or(0, |value| value::blocks(value.len()) as u64);
        if !self.admit(row, coming, |_| key.to_vec()) {
            return Ok(false);
        }
        let rest = &key[self.prefix.len()..];
        match (value, long) {
            (_, Some(value)) => row.push(&[rest], Kind::Long, self.put_value(value)?.payload()),
            (Some(value), None) => row.push(&[rest], Kind::Held, value),
            (None, None) => {}
        }
        self.next = self.delta.step(self.next, Direction::Ascending);
        self.begun = true;
        Ok(true)
    }

    /// Whether a range that is erased takes the record `entry`, which no single change names.
    fn erases(&mut self, entry: &Entry<'_>) -> bool {
        let prefix = self.prefix.len();
        self.push_prefix(entry);
        let erased =
            self.at.is_none() && self.prefix.as_slice() >= self.from && self.delta.erases(&self.prefix);
        self.prefix.truncate(prefix);
        self.begun |= erased;
        erased
    }

    fn push_prefix(&mut self, entry: &Entry<'_>) {
        self.prefix.extend_from_slice(entry.head);
        self.prefix.extend_from_slice(entry.tail);
    }

    /// The blocks of the record `entry` are not used any more.
    fn drop_value(&mut self, entry: &Entry<'_>) {
        if entry.kind == Kind::Long {
            for part in value::parts(entry.payload) {
                self.space.free_block(part.block);
            }
        }
    }

    /// Appends to `row` what has become of the subtree `index` of `leaf`; `changed` by the next change, or perhaps by
    /// a range.
    fn merge_subtree(
        &mut self,
        leaf: &Node,
        index: usize,
        changed: bool,
        row: &mut Row,
    ) -> Result<(), KvError> {
        let above = self.prefix.len();
        self.push_prefix(&leaf.entry(index));
        if self.prefix.len() > KEY_BYTES_MAX {
            return Err(too_deep(leaf));
        }
        let erased = || self.delta.has_ranges() && self.is_erased(&self.prefix, successor(&self.prefix));
        let changed = self.at.is_none() && (changed || erased());
        if !changed || !self.admit(row, 0, |this| this.stop_key(0)) {
            self.prefix.truncate(above);
            keep(&leaf.entry(index), row);
            return Ok(());
        }
        // Our leaf, when the subtree is done: with what follows, one block, or as many as two neighbours fill.
        let bytes = row.cost() + leaf.bytes_from(index) + 64;
        let needed = if bytes <= CAPACITY { 1 } else { (2 * bytes / CAPACITY) as u64 + 2 };
        self.open += needed;
        let outcome = self.merge_tree(Some(leaf.subtree(index)))?;
        self.open -= needed;
        let rest = &self.prefix[above..];
        match outcome {
            Outcome::Nothing => {}
            Outcome::Little(little) => row.append(rest, &little),
            Outcome::Root(root) => row.push(&[rest], Kind::Subtree, &encode_subtree(&root)),
        }
        self.prefix.truncate(above);
        Ok(())
    }
}

/// Blocks that the entries of `row` may take, their bursts among them.
fn row_blocks(row: &Row) -> u64 {
    (row.cost() / 900) as u64 + 6
}

fn keep(entry: &Entry<'_>, row: &mut Row) {
    row.push(&[entry.head, entry.tail], entry.kind, entry.payload);
}

/// The least key above all that begin with `prefix`.
pub(crate) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let end = prefix.iter().rposition(|&byte| byte < u8::MAX)?;
    let mut key = prefix[..=end].to_vec();
    key[end] += 1;
    Some(key)
}
