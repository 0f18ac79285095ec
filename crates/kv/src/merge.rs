//! A new tree from an old one and a delta: every node on the way to a change is written anew, elsewhere.
//!
//! The walk is in key order, leaf by leaf, through nested trees as they come. When free blocks or the budget
//! run short it stops at some key: the tree it then answers holds the changes up to there, and the walk goes on
//! from there with the next superblock.
//!
//! The path that the walk is on is a list of frames, not the stack of a thread: keys that differ in their ends can nest
//! a thousand trees, and whoever makes an image twenty times that.

use crate::delta::{Cursor, Delta, Direction};
use crate::disk::Disk;
use crate::emit::Writes;
use crate::leaf::{Entry, EntryKind};
use crate::node::{CAPACITY, CHUNK_BYTES, Child, FANOUT_MAX, Node, chunk};
use crate::nodes::Nodes;
use crate::pack::{FOLD_BYTES, Row, measure};
use crate::reference::{Reference, Root};
use crate::space::Space;
use crate::superblock::Superblock;
use crate::tree::too_deep;
use crate::value::{self, INLINE_BYTES_MAX};
use crate::{KEY_BYTES_MAX, KvError};
use core::cmp::Ordering;
use core::ops::Bound;
use std::sync::Arc;

/// Leaves of changes that are gathered at most before they are written.
const CARRY_BYTES_MAX: usize = 16 * CAPACITY;
/// Changes after all of a leaf's that make an ascending run of them.
const RUN_MIN: usize = 4;
/// Blocks that one inner node on the path may need: itself, what it splits into, and a neighbour that joins.
const FRAME_BLOCKS: u64 = 4;

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

/// What the walk is in, and has of it so far.
enum Frame {
    Tree(TreeFrame),
    Inner(InnerFrame),
    Leaf(LeafFrame),
}

struct TreeFrame {
    root: Option<Root>,
    /// Bytes of the prefix of the tree above, and blocks that the leaf above may need after this one.
    prefix_bytes: usize,
    needed: u64,
    /// When its nodes are walked: what it is to hold, and whether that came in ascending order.
    held: Option<(Content, bool)>,
}

struct InnerFrame {
    node: Arc<Node>,
    /// The next of its children, whose chunks are at or above `lower` and below `upper`.
    index: usize,
    lower: u64,
    upper: Option<u64>,
    /// New nodes of the level below; those from `first` on are of this node.
    out: Vec<Child>,
    first: usize,
    /// What is to go into new nodes, from the one with the chunk `carry_lower` on, and whether it came in ascending
    /// order.
    carry: Content,
    carry_lower: u64,
    in_order: bool,
    /// Whether the child that is walked is to be changed.
    changed: bool,
}

struct LeafFrame {
    /// None in a tree that was empty.
    node: Option<Arc<Node>>,
    /// The next of its entries, whose chunks are below `upper`.
    index: usize,
    upper: Option<u64>,
    /// The new entries.
    row: Row,
    /// As many of them make an ascending run of new keys after all old ones; none when there is no such run.
    run_rows: Option<usize>,
}

/// How the walk goes on.
enum Step {
    Into(Frame),
    /// A node is done: what is to go into nodes of its level, and whether that came in ascending order.
    Node(Content, bool),
    /// A tree is done.
    Tree(Outcome),
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
            open: 0,
            begun: false,
        }
    }

    /// The new tree, written but not flushed. [`Merge::at`] says whether all changes are in it.
    pub(crate) fn run(&mut self) -> Result<Option<Root>, KvError> {
        let root = match self.walk()? {
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

    /// What the whole tree is to hold; the blocks of the old one are given up.
    fn walk(&mut self) -> Result<Outcome, KvError> {
        let mut path = Vec::new();
        let whole = TreeFrame { root: self.superblock.root, prefix_bytes: 0, needed: 0, held: None };
        let mut frame = Frame::Tree(whole);
        loop {
            let step = match &mut frame {
                Frame::Tree(tree) => self.step_tree(tree)?,
                Frame::Inner(inner) => self.step_inner(inner)?,
                Frame::Leaf(leaf) => self.step_leaf(leaf)?,
            };
            if let Step::Into(below) = step {
                path.push(core::mem::replace(&mut frame, below));
                continue;
            }
            let Some(above) = path.pop() else {
                let Step::Tree(outcome) = step else { unreachable!("the path begins with a tree") };
                return Ok(outcome);
            };
            let below = core::mem::replace(&mut frame, above);
            match (&mut frame, step, below) {
                (Frame::Tree(tree), Step::Node(content, in_order), _) => {
                    tree.held = Some((content, in_order))
                }
                (Frame::Inner(inner), Step::Node(content, in_order), _) => {
                    self.resume_inner(inner, content, in_order)?;
                }
                (Frame::Leaf(leaf), Step::Tree(outcome), Frame::Tree(tree)) => {
                    self.resume_leaf(leaf, &tree, outcome);
                }
                _ => unreachable!("below a leaf are trees, and below trees and inner nodes are nodes"),
            }
        }
    }

    /// Into the root; then what the tree is to hold, whose prefix is ours.
    fn step_tree(&mut self, tree: &mut TreeFrame) -> Result<Step, KvError> {
        if let Some((content, in_order)) = tree.held.take() {
            let level = tree.root.map_or(0, |root| root.level);
            return self.close_tree(level, content, in_order).map(Step::Tree);
        }
        Ok(Step::Into(match &tree.root {
            Some(root) => self.enter(&root.node, root.level, 0, None, Content::default())?,
            None => Frame::Leaf(LeafFrame {
                node: None,
                index: 0,
                upper: None,
                row: Row::default(),
                run_rows: Some(0),
            }),
        }))
    }

    fn close_tree(&mut self, level: u16, mut content: Content, in_order: bool) -> Result<Outcome, KvError> {
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

    /// The node `child`, whose chunks are at or above `lower` and below `upper`; its block is given up, and what it
    /// is to hold will follow `content`.
    fn enter(
        &mut self,
        child: &Reference,
        level: u16,
        lower: u64,
        upper: Option<u64>,
        content: Content,
    ) -> Result<Frame, KvError> {
        let node = self.nodes.get(self.disk, child, level)?;
        self.read += 1;
        self.space.free_block(child.block);
        if level > 0 {
            self.open += FRAME_BLOCKS;
            return Ok(Frame::Inner(InnerFrame {
                index: 0,
                lower,
                upper,
                first: content.children.len(),
                out: content.children,
                carry: Content::default(),
                carry_lower: lower,
                in_order: false,
                changed: false,
                node,
            }));
        }
        let last = node.len() - 1;
        let after = self
            .change(upper)
            .is_some_and(|(rest, _)| node.order(last, rest) == Ordering::Less && !node.covers(last, rest));
        let run_rows = after.then_some(content.row.items.len() + node.len() + RUN_MIN);
        Ok(Frame::Leaf(LeafFrame { node: Some(node), index: 0, upper, row: content.row, run_rows }))
    }

    /// Keeps children that nothing changes, up to one that is to be walked.
    fn step_inner(&mut self, inner: &mut InnerFrame) -> Result<Step, KvError> {
        let (level, len) = (inner.node.level() - 1, inner.node.len());
        while inner.index < len {
            let index = inner.index;
            let upper = if index + 1 < len { Some(inner.node.chunk(index + 1)) } else { inner.upper };
            let from = if index == 0 { inner.lower } else { inner.node.chunk(index) };
            inner.changed = self.is_changed(from, upper)
                && (level > 0 || self.admit(&inner.carry.row, 0, |this| this.stop_key(from)));
            let kept = !inner.changed && (inner.carry.is_empty() || self.at.is_some());
            if kept {
                self.emit_carry(inner)?;
            }
            // The first child that is left takes all chunks from `lower` on.
            let own = if inner.out.len() == inner.first { inner.lower } else { inner.node.chunk(index) };
            let child = inner.node.child(index);
            if kept {
                inner.out.push(Child { chunk: own, node: child });
                inner.index += 1;
                continue;
            }
            let lower = if inner.carry.is_empty() { own } else { inner.node.chunk(index) };
            if inner.carry.is_empty() {
                inner.carry_lower = lower;
            }
            return self
                .enter(&child, level, lower, upper, core::mem::take(&mut inner.carry))
                .map(Step::Into);
        }
        self.emit_carry(inner)?;
        self.open -= FRAME_BLOCKS;
        let children = core::mem::take(&mut inner.out);
        Ok(Step::Node(Content { children, row: Row::default() }, false))
    }

    /// Takes what has become of the child that is next, and of what was carried to it.
    fn resume_inner(
        &mut self,
        inner: &mut InnerFrame,
        content: Content,
        in_order: bool,
    ) -> Result<(), KvError> {
        let level = inner.node.level() - 1;
        (inner.carry, inner.in_order) = (content, in_order);
        inner.index += 1;
        // A full node shares what is too much with its right neighbour: two become three.
        let spread = inner.changed && !in_order && inner.carry.may_spread(level);
        if spread || inner.carry.is_underfull(level) {
            return Ok(());
        }
        self.emit_carry(inner)
    }

    /// Writes what is carried as nodes.
    fn emit_carry(&mut self, inner: &mut InnerFrame) -> Result<(), KvError> {
        let InnerFrame { carry, carry_lower, in_order, out, .. } = inner;
        match inner.node.level() - 1 {
            0 => self.emit_leaves(&mut carry.row, *carry_lower, *in_order, out),
            _ if carry.children.is_empty() => Ok(()),
            level => self.emit_inner(&mut carry.children, level, *carry_lower, out),
        }
    }

    /// Where to go on when nothing from the chunk `lower` on was looked at.
    fn stop_key(&self, lower: u64) -> Vec<u8> {
        let key = self.delta.entry(self.next).map(|(key, _)| key);
        match key.filter(|_| !self.delta.has_ranges()) {
            Some(key) => key.to_vec(),
            None => self.bound(lower).max(self.from.to_vec()),
        }
    }

    /// Appends the entries of a leaf with the changes below its upper bound to its row, up to a subtree that is to be
    /// walked.
    fn step_leaf(&mut self, leaf: &mut LeafFrame) -> Result<Step, KvError> {
        let LeafFrame { node, index, upper, row, run_rows } = leaf;
        let ranges = self.delta.has_ranges();
        loop {
            let change = self.change(*upper);
            let Some(node) = node.as_deref().filter(|node| *index < node.len()) else {
                if change.is_some() {
                    self.take_change(row)?;
                    continue;
                }
                // Past a leaf is past `from`: a range that is erased reached into it, though it held nothing perhaps.
                self.begun |= node.is_some() && self.at.is_none();
                let in_order = run_rows.is_some_and(|least| row.items.len() >= least);
                let row = core::mem::take(row);
                return Ok(Step::Node(Content { row, children: Vec::new() }, in_order));
            };
            let entry = node.entry(*index);
            // Where the entry lies, seen from the change.
            let order = change.map_or(Ordering::Less, |(rest, _)| entry.order(rest));
            let subtree = entry.kind == EntryKind::Subtree;
            if order == Ordering::Greater || (order == Ordering::Equal && subtree) {
                self.take_change(row)?;
                continue;
            }
            if order == Ordering::Equal {
                if self.take_change(row)? {
                    self.drop_value(&entry);
                    *index += 1;
                }
                continue;
            }
            if subtree {
                let changed = change.is_some_and(|(rest, _)| entry.covers(rest));
                if let Some(tree) = self.subtree(node, *index, changed, row)? {
                    return Ok(Step::Into(Frame::Tree(tree)));
                }
                keep(&entry, row);
            } else if ranges && self.erases(&entry) {
                self.drop_value(&entry);
            } else {
                keep(&entry, row);
            }
            *index += 1;
        }
    }

    /// Takes the next change up into `row`; `false`: the step ends before it.
    fn take_change(&mut self, row: &mut Row) -> Result<bool, KvError> {
        let Some((key, value)) = self.delta.entry(self.next) else {
            return Ok(false);
        };
        let long = value.filter(|value| value.len() > INLINE_BYTES_MAX);
        let coming = long.map_or(0, |value| value::blocks(value.len()) as u64);
        if !self.admit(row, coming, |_| key.to_vec()) {
            return Ok(false);
        }
        let rest = &key[self.prefix.len()..];
        match (value, long) {
            (_, Some(value)) => row.push(&[rest], EntryKind::Long, self.put_value(value)?.payload()),
            (Some(value), None) => row.push(&[rest], EntryKind::Inline, value),
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
        if entry.kind == EntryKind::Long {
            for part in value::parts(entry.payload) {
                self.space.free_block(part.block);
            }
        }
    }

    /// The subtree `index` of `leaf`, if it is to be walked before what follows it goes to `row`; `changed` by the next
    /// change, or perhaps by a range.
    fn subtree(
        &mut self,
        leaf: &Node,
        index: usize,
        changed: bool,
        row: &Row,
    ) -> Result<Option<TreeFrame>, KvError> {
        let prefix_bytes = self.prefix.len();
        self.push_prefix(&leaf.entry(index));
        if self.prefix.len() > KEY_BYTES_MAX {
            return Err(too_deep(leaf));
        }
        let erased = || self.delta.has_ranges() && self.is_erased(&self.prefix, successor(&self.prefix));
        let changed = self.at.is_none() && (changed || erased());
        if !changed || !self.admit(row, 0, |this| this.stop_key(0)) {
            self.prefix.truncate(prefix_bytes);
            return Ok(None);
        }
        // Our leaf, when the subtree is done: with what follows, one block, or as many as two neighbours fill.
        let bytes = row.cost() + leaf.bytes_from(index) + 64;
        let needed = if bytes <= CAPACITY { 1 } else { (2 * bytes / CAPACITY) as u64 + 2 };
        self.open += needed;
        Ok(Some(TreeFrame { root: Some(leaf.subtree(index)), prefix_bytes, needed, held: None }))
    }

    /// Takes what has become of the subtree that is next into its leaf.
    fn resume_leaf(&mut self, leaf: &mut LeafFrame, tree: &TreeFrame, outcome: Outcome) {
        self.open -= tree.needed;
        let rest = &self.prefix[tree.prefix_bytes..];
        match outcome {
            Outcome::Nothing => {}
            Outcome::Little(little) => leaf.row.append(rest, &little),
            Outcome::Root(root) => leaf.row.push(&[rest], EntryKind::Subtree, &root.encode()),
        }
        self.prefix.truncate(tree.prefix_bytes);
        leaf.index += 1;
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
