//! Looking things up in the tree of one checkpoint.

use crate::delta::Direction;
use crate::disk::Disk;
use crate::leaf::{EntryKind, Found};
use crate::node::{Node, chunk};
use crate::nodes::Nodes;
use crate::reference::Root;
use crate::{KEY_BYTES_MAX, KvError, value};
use core::ops::Bound;
use std::sync::Arc;

/// A tree that does not change, and where to read it.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'a> {
    pub(crate) disk: &'a Disk,
    pub(crate) nodes: &'a Nodes,
    pub(crate) root: Option<Root>,
}

impl<'a> Tree<'a> {
    /// Appends the value of `key` to `value`; `false` when there is none.
    pub(crate) fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, KvError> {
        let Some(mut root) = self.root else {
            return Ok(false);
        };
        let mut rest = key;
        loop {
            let mut node = self.nodes.get(self.disk, &root.node, root.level)?;
            let chunk = chunk(rest);
            for level in (0..root.level).rev() {
                let child = node.child(node.child_index(chunk));
                node = self.nodes.get(self.disk, &child, level)?;
            }
            match node.find(rest) {
                Found::Nothing => return Ok(false),
                Found::Record(kind, payload) => {
                    self.read(kind, payload, value)?;
                    return Ok(true);
                }
                Found::Subtree(skipped, below) => (rest, root) = (&rest[skipped..], below),
            }
        }
    }

    fn read(&self, kind: EntryKind, payload: &[u8], value: &mut Vec<u8>) -> Result<(), KvError> {
        if kind == EntryKind::Long {
            return value::read(self.disk, self.nodes.identity(), payload, value);
        }
        value.extend_from_slice(payload);
        Ok(())
    }

    /// The first record in `direction` from `bound`.
    pub(crate) fn seek(&self, bound: Bound<&[u8]>, direction: Direction) -> Result<Cursor<'a>, KvError> {
        let mut cursor = Cursor { tree: *self, path: Vec::new(), key: Vec::new(), past: direction };
        if let Some(root) = self.root {
            match bound {
                Bound::Unbounded => cursor.descend_edge(root, 0, direction)?,
                Bound::Included(key) => cursor.descend(root, key, true, direction)?,
                Bound::Excluded(key) => cursor.descend(root, key, false, direction)?,
            }
        }
        Ok(cursor)
    }
}

/// A place in a tree: a record, or past the end on either side.
pub(crate) struct Cursor<'a> {
    tree: Tree<'a>,
    /// From the top root to a leaf; empty past the end.
    path: Vec<Step>,
    /// The key here.
    key: Vec<u8>,
    /// With an empty path: past the end that lies in this direction.
    past: Direction,
}

/// An entry of a node on the way.
struct Step {
    node: Arc<Node>,
    index: usize,
    /// Bytes of the prefix of the node's B+tree.
    prefix: usize,
}

impl Cursor<'_> {
    fn node(&self, root: Root) -> Result<Arc<Node>, KvError> {
        self.tree.nodes.get(self.tree.disk, &root.node, root.level)
    }

    /// Goes down to the first record below `root` in `direction`; keys there begin with `prefix` bytes
    /// of ours.
    fn descend_edge(
        &mut self,
        mut root: Root,
        mut prefix: usize,
        direction: Direction,
    ) -> Result<(), KvError> {
        loop {
            let node = self.node(root)?;
            let index = if direction == Direction::Ascending { 0 } else { node.len() - 1 };
            self.path.push(Step { node, index, prefix });
            match self.below()? {
                Some((next, next_prefix)) => (root, prefix) = (next, next_prefix),
                None => return Ok(()),
            }
        }
    }

    /// What hangs from the last entry of the path, and the bytes of its prefix; for a record, `None`,
    /// and the key is its.
    fn below(&mut self) -> Result<Option<(Root, usize)>, KvError> {
        let Some(Step { node, index, prefix }) = self.path.last() else {
            return Ok(None);
        };
        if node.level() > 0 {
            return Ok(Some((Root { node: node.child(*index), level: node.level() - 1 }, *prefix)));
        }
        let entry = node.entry(*index);
        self.key.truncate(*prefix);
        self.key.extend_from_slice(entry.head);
        self.key.extend_from_slice(entry.tail);
        if self.key.len() > KEY_BYTES_MAX {
            return Err(too_deep(node));
        }
        let subtree = entry.kind == EntryKind::Subtree;
        Ok(subtree.then(|| (node.subtree(*index), self.key.len())))
    }

    /// Goes down to `key`, or to what follows it in `direction`.
    fn descend(
        &mut self,
        mut root: Root,
        key: &[u8],
        exact_counts: bool,
        direction: Direction,
    ) -> Result<(), KvError> {
        let mut prefix = 0;
        let ascending = direction == Direction::Ascending;
        loop {
            let rest = &key[prefix..];
            let mut node = self.node(root)?;
            while node.level() > 0 {
                let index = node.child_index(chunk(rest));
                let next = self.node(Root { node: node.child(index), level: node.level() - 1 })?;
                self.path.push(Step { node, index, prefix });
                node = next;
            }
            let (below, exact) = node.rank(rest);
            let before = below.checked_sub(1).filter(|&before| !exact && node.covers(before, rest));
            if let Some(index) = before {
                self.path.push(Step { node, index, prefix });
                if let Some((next, next_prefix)) = self.below()? {
                    (root, prefix) = (next, next_prefix);
                }
                continue;
            }
            let record = exact && node.kind(below) != EntryKind::Subtree;
            // Entries before `split` are on the one side of the bound, the rest on the other.
            let split = below + usize::from(record && ascending != exact_counts);
            let len = node.len();
            let index = if ascending { Some(split).filter(|&at| at < len) } else { split.checked_sub(1) };
            let edge = if ascending { len - 1 } else { 0 };
            self.path.push(Step { node, index: index.unwrap_or(edge), prefix });
            return if index.is_none() { self.step(direction) } else { self.settle(direction) };
        }
    }

    /// From an entry of the path to the first record in it.
    fn settle(&mut self, direction: Direction) -> Result<(), KvError> {
        match self.below()? {
            Some((root, prefix)) => self.descend_edge(root, prefix, direction),
            None => Ok(()),
        }
    }

    /// The key here, or `None` past the end.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        (!self.path.is_empty()).then_some(&self.key)
    }

    /// Appends the value here to `value`; nothing past the end.
    pub(crate) fn value(&self, value: &mut Vec<u8>) -> Result<(), KvError> {
        match self.path.last() {
            Some(Step { node, index, .. }) => self.tree.read(node.kind(*index), node.payload(*index), value),
            None => Ok(()),
        }
    }

    /// Goes to the next record in `direction`. From past one end, the other way leads back.
    pub(crate) fn step(&mut self, direction: Direction) -> Result<(), KvError> {
        if let (true, Some(root)) = (self.path.is_empty() && self.past != direction, self.tree.root) {
            return self.descend_edge(root, 0, direction);
        }
        while let Some(step) = self.path.last_mut() {
            let next = match direction {
                Direction::Ascending => Some(step.index + 1).filter(|&next| next < step.node.len()),
                Direction::Descending => step.index.checked_sub(1),
            };
            if let Some(next) = next {
                step.index = next;
                return self.settle(direction);
            }
            self.path.pop();
        }
        self.past = direction;
        Ok(())
    }
}

/// Trees nest until their prefixes are longer than any key: somebody else made them.
pub(crate) fn too_deep(node: &Node) -> KvError {
    let reason = "a key that is too long";
    KvError::Corrupt { block: node.block(), structure: "tree node", reason }
}
