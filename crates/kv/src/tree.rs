//! Looking things up in the tree of one checkpoint.

use crate::KvError;
use crate::delta::Direction;
use crate::disk::Disk;
use crate::node::Node;
use crate::nodes::Nodes;
use crate::superblock::Root;
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
        let Some(root) = self.root else {
            return Ok(false);
        };
        let mut node = self.nodes.get(self.disk, &root.node, root.level)?;
        for level in (0..root.level).rev() {
            let child = node.child(node.child_index(key));
            node = self.nodes.get(self.disk, &child, level)?;
        }
        let (index, found) = node.rank(key);
        if found {
            value.extend_from_slice(node.value(index));
        }
        Ok(found)
    }

    /// The first record in `direction` from `bound`.
    pub(crate) fn seek(&self, bound: Bound<&[u8]>, direction: Direction) -> Result<Cursor<'a>, KvError> {
        let mut cursor = Cursor { tree: *self, path: Vec::new(), direction };
        let Some(root) = self.root else {
            return Ok(cursor);
        };
        let node = self.nodes.get(self.disk, &root.node, root.level)?;
        match bound {
            Bound::Unbounded => cursor.descend_edge(node)?,
            Bound::Included(key) => cursor.descend(node, key, true)?,
            Bound::Excluded(key) => cursor.descend(node, key, false)?,
        }
        Ok(cursor)
    }
}

/// A place in a tree: a record, or past the end.
pub(crate) struct Cursor<'a> {
    tree: Tree<'a>,
    /// From the root to a leaf; empty past the end.
    path: Vec<(Arc<Node>, usize)>,
    direction: Direction,
}

impl Cursor<'_> {
    fn first_index(&self, node: &Node) -> usize {
        if self.direction == Direction::Ascending { 0 } else { node.len() - 1 }
    }

    /// Goes down to the first leaf entry below `node` in our direction.
    fn descend_edge(&mut self, mut node: Arc<Node>) -> Result<(), KvError> {
        loop {
            let index = self.first_index(&node);
            let next = (node.level() > 0).then(|| (node.child(index), node.level() - 1));
            self.path.push((node, index));
            match next {
                Some((child, level)) => node = self.tree.nodes.get(self.tree.disk, &child, level)?,
                None => return Ok(()),
            }
        }
    }

    /// Goes down to `key`, or to what follows it in our direction.
    fn descend(&mut self, mut node: Arc<Node>, key: &[u8], exact_counts: bool) -> Result<(), KvError> {
        while node.level() > 0 {
            let index = node.child_index(key);
            let next = self.tree.nodes.get(self.tree.disk, &node.child(index), node.level() - 1)?;
            self.path.push((node, index));
            node = next;
        }
        let (below, found) = node.rank(key);
        let len = node.len();
        let ascending = self.direction == Direction::Ascending;
        // Entries before `split` are on the one side of the bound, the rest on the other.
        let split = below + usize::from(found && ascending != exact_counts);
        if ascending && split < len {
            self.path.push((node, split));
        } else if !ascending && split > 0 {
            self.path.push((node, split - 1));
        } else {
            self.path.push((node, if ascending { len - 1 } else { 0 }));
            self.step()?;
        }
        Ok(())
    }

    /// The record here, or `None` past the end.
    pub(crate) fn record(&self) -> Option<(&[u8], &[u8])> {
        self.path.last().map(|(node, index)| (node.key(*index), node.value(*index)))
    }

    /// Goes to the next record in our direction.
    pub(crate) fn step(&mut self) -> Result<(), KvError> {
        while let Some((node, index)) = self.path.pop() {
            let next = match self.direction {
                Direction::Ascending => Some(index + 1).filter(|&next| next < node.len()),
                Direction::Descending => index.checked_sub(1),
            };
            let Some(next) = next else {
                continue;
            };
            if node.level() == 0 {
                self.path.push((node, next));
                return Ok(());
            }
            let child = self.tree.nodes.get(self.tree.disk, &node.child(next), node.level() - 1)?;
            self.path.push((node, next));
            return self.descend_edge(child);
        }
        Ok(())
    }
}
