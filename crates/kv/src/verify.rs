//! Reading everything and believing nothing: the store's own check, for `fsck` and for tests.

use crate::layout::Layout;
use crate::leaf::EntryKind;
use crate::node::{CHUNK_BYTES, Node, chunk};
use crate::reference::{Reference, Root};
use crate::scan::Visit;
use crate::superblock::Superblock;
use crate::{KEY_BYTES_MAX, KvError, Store, value};
use core::ops::{Bound, ControlFlow};
use nvmed_units::Block;
use std::sync::Arc;

/// A node that is still to be checked: its chunks are at or above `lower` and below `upper`.
struct Below {
    root: Root,
    /// Of its B+tree.
    prefix: Arc<[u8]>,
    lower: u64,
    upper: Option<u64>,
}

/// The blocks met so far, each once.
struct Seen {
    bits: Vec<u64>,
    layout: Layout,
    count: u64,
}

impl Seen {
    fn note(&mut self, block: Block) -> Result<(), KvError> {
        let at = self.layout.tree_index(block);
        let word = at.and_then(|at| self.bits.get_mut((at.0 / 64) as usize));
        let bit = 1 << (at.map_or(0, |at| at.0 % 64));
        let Some(word) = word.filter(|word| **word & bit == 0) else {
            let reason = "two references to one block";
            return Err(KvError::Corrupt { block, structure: "tree node", reason });
        };
        *word |= bit;
        self.count += 1;
        Ok(())
    }
}

impl Store {
    /// Reads every block in use and checks it. Answers the number of records.
    ///
    /// # Errors
    /// The first damaged block, or the medium's.
    pub fn verify(&self) -> Result<u64, KvError> {
        self.verify_visiting(&mut |_, _| ControlFlow::Continue(()))
    }

    /// As [`Store::verify`], and then as a [`Store::scan`] of everything; for `fsck`. Each long value is read once, by
    /// the scan: a `visit` that breaks leaves those that follow unread.
    ///
    /// # Errors
    /// The first damaged block, or the medium's.
    pub fn verify_visiting(&self, visit: &mut Visit<'_>) -> Result<u64, KvError> {
        // With the checkpointer held, no block of the tree is given up.
        let mut checkpointer = self.checkpointer.lock();
        let superblock = self.superblock.lock().clone();
        let mut blocks = 0;
        if let Some(root) = superblock.root {
            blocks = self.walk(root, &superblock, &mut |block| {
                if checkpointer.space.is_used(&self.disk, &superblock, block)? {
                    return Ok(());
                }
                let reason = "a block of the tree is marked free";
                Err(KvError::Corrupt { block, structure: "bitmap page", reason })
            })?;
        }
        let marked = checkpointer.space.count_used(&self.disk, &superblock)?;
        drop(checkpointer);
        if blocks != superblock.used {
            return Err(miscounted(&superblock, "the count of blocks in use"));
        }
        if blocks != marked {
            return Err(miscounted(&superblock, "the bitmap marks blocks that the tree does not use"));
        }
        let mut records = 0;
        self.scan(Bound::Unbounded, Bound::Unbounded, &mut |key, value| {
            records += 1;
            visit(key, value)
        })?;
        Ok(records)
    }

    /// Checks the tree below `root`; `used` hears of every block. Answers how many there are.
    fn walk(
        &self,
        root: Root,
        superblock: &Superblock,
        used: &mut dyn FnMut(Block) -> Result<(), KvError>,
    ) -> Result<u64, KvError> {
        let layout = superblock.layout;
        let words = layout.tree_blocks().div_ceil(64) as usize;
        let mut seen = Seen { bits: vec![0; words], layout, count: 0 };
        let mut open = vec![Below { root, prefix: Arc::default(), lower: 0, upper: None }];
        while let Some(below) = open.pop() {
            let Root { node: want, level } = below.root;
            seen.note(want.block)?;
            used(want.block)?;
            let node = self.nodes.read(&self.disk, &want, level)?;
            let (first, last) = ends(&node);
            if first < below.lower || below.upper.is_some_and(|upper| last >= upper) {
                return Err(damaged(&want, "keys outside of its parent's range"));
            }
            if level == 0 {
                self.walk_leaf(&node, &want, &below, &mut open, &mut |block| {
                    seen.note(block)?;
                    used(block)
                })?;
                continue;
            }
            for index in 0..node.len() {
                let root = Root { node: node.child(index), level: level - 1 };
                let next = (index + 1 < node.len()).then(|| node.chunk(index + 1));
                let (prefix, lower) = (Arc::clone(&below.prefix), node.chunk(index));
                open.push(Below { root, prefix, lower, upper: next.or(below.upper) });
            }
        }
        Ok(seen.count)
    }

    /// Checks the entries of `leaf`: reads long values that no scan shows, since a later change is known, and notes
    /// subtrees in `open`.
    fn walk_leaf(
        &self,
        leaf: &Node,
        want: &Reference,
        below: &Below,
        open: &mut Vec<Below>,
        used: &mut dyn FnMut(Block) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        let prefix = &*below.prefix;
        for index in 0..leaf.len() {
            let (head, tail) = leaf.pieces(index);
            let key = [prefix, head, tail].concat();
            // An empty rest is the record of the prefix itself, which stays beside the tree.
            if key.len() > KEY_BYTES_MAX || (key.len() == prefix.len() && !prefix.is_empty()) {
                return Err(damaged(want, "a key's length"));
            }
            match leaf.kind(index) {
                EntryKind::Inline => {}
                EntryKind::Long => {
                    for part in value::parts(leaf.payload(index)) {
                        used(part.block)?;
                    }
                    if self.state.read().change(&key).is_some() {
                        value::read(&self.disk, self.identity, leaf.payload(index), &mut Vec::new())?;
                    }
                }
                EntryKind::Subtree => {
                    let root = leaf.subtree(index);
                    let rest = [head, tail, &[u8::MAX; CHUNK_BYTES]].concat();
                    if below.upper.is_some_and(|upper| chunk(&rest) >= upper) {
                        return Err(damaged(want, "a subtree outside of its parent's range"));
                    }
                    open.push(Below { root, prefix: key.into(), lower: 0, upper: None });
                }
            }
        }
        Ok(())
    }
}

/// The chunks of the first and the last entry.
fn ends(node: &Node) -> (u64, u64) {
    let last = node.len() - 1;
    if node.level() > 0 {
        return (node.chunk(0), node.chunk(last));
    }
    let of = |index| {
        let (head, tail) = node.pieces(index);
        chunk(&[head, tail].concat())
    };
    (of(0), of(last))
}

fn damaged(node: &Reference, reason: &'static str) -> KvError {
    KvError::Corrupt { block: node.block, structure: "tree node", reason }
}

fn miscounted(superblock: &Superblock, reason: &'static str) -> KvError {
    let block = superblock.layout.superblock(0);
    KvError::Corrupt { block, structure: "superblock", reason }
}
