//! Rows become nodes: leaves are filled, bursts made, inner nodes built over them.

use crate::disk::{self, Disk};
use crate::layout::BlockBytes;
use crate::leaf::{Builder, EntryKind};
use crate::merge::Merge;
use crate::node::{self, CAPACITY, CHUNK_BYTES, Child, FANOUT_MAX, Node, NodeAddress, chunk};
use crate::pack::{BURST_BYTES, Item, Row, heaviest, measure};
use crate::reference::{LEVEL_MAX, Reference, Root};
use crate::{KvError, value};
use core::ops::Range;
use nvmed_units::{BLOCK_BYTES, Block};
use std::sync::Arc;

/// A leaf or inner node is filled to nine tenths when there is enough for more than one, so that the next few
/// insertions do not split it at once.
const FILL_BYTES: usize = CAPACITY * 9 / 10;
const FILL_CHILDREN: usize = FANOUT_MAX * 9 / 10;
/// Blocks in one write: 256 KiB.
const WRITE_BLOCKS_MAX: usize = 64;

/// Blocks on their way to the medium, neighbours together.
#[derive(Default)]
pub(crate) struct Writes {
    first: Block,
    bytes: Vec<u8>,
    /// Whether they are of values.
    values: bool,
}

impl Merge<'_> {
    /// Writes `row` as leaves and appends them to `above`, as children whose first has the chunk `lower`;
    /// `row` is empty afterwards. With `in_order`, entries came in ascending order and will go on to.
    pub(crate) fn emit_leaves(
        &mut self,
        row: &mut Row,
        lower: u64,
        in_order: bool,
        above: &mut Vec<Child>,
    ) -> Result<(), KvError> {
        let first = above.len();
        self.emit_row(row, in_order, above)?;
        if let Some(first) = above.get_mut(first) {
            first.chunk = lower;
        }
        row.clear();
        Ok(())
    }

    fn emit_row(&mut self, row: &mut Row, in_order: bool, above: &mut Vec<Child>) -> Result<(), KvError> {
        let Some(first) = row.items.first() else {
            return Ok(());
        };
        if measure(&row.items) <= CAPACITY {
            let chunk = chunk(first.rest(&row.arena));
            let mut builder = Builder::new();
            if push(&mut builder, row, 0..row.items.len()) {
                let node = self.put_leaf(builder)?;
                above.push(Child { chunk, node });
                return Ok(());
            }
        }
        self.burst_groups(row, in_order)?;
        // More than a leaf, although the sum, which is not exact, may say otherwise.
        let mut left = row.items.iter().map(Item::bytes).sum::<usize>().max(CAPACITY + 1);
        let mut from = 0;
        while from < row.items.len() {
            let target =
                if in_order || left <= CAPACITY { CAPACITY } else { left / left.div_ceil(FILL_BYTES) };
            let chunk = chunk(row.items[from].rest(&row.arena));
            let (builder, next) = self.fill(row, from, target)?;
            // An estimate of what is left: rows are rounded up.
            left = left.saturating_sub(row.items[from..next].iter().map(Item::bytes).sum());
            let node = self.put_leaf(builder)?;
            above.push(Child { chunk, node });
            from = next;
        }
        Ok(())
    }

    /// Fills a leaf from entry `from` on with groups, to `target` bytes or as far as they fit.
    fn fill(&mut self, row: &mut Row, from: usize, target: usize) -> Result<(Builder, usize), KvError> {
        let mut builder = Builder::new();
        let mut at = from;
        while at < row.items.len() && builder.filled() < target {
            let (end, mark) = (row.group_end(at), builder.mark());
            if !push(&mut builder, row, at..end) {
                builder.rewind(mark);
                if builder.len() > 0 {
                    break;
                }
                // Up to eight rests that are shorter than a chunk belong to one group: let go of their values.
                self.spill(row, at..end)?;
                if !push(&mut builder, row, at..end) {
                    let (block, reason) = (self.superblock.layout.superblock(0), "a group that fits no leaf");
                    return Err(KvError::Corrupt { block, structure: "tree", reason });
                }
            }
            at = end;
        }
        Ok((builder, at))
    }

    /// Moves the values of the entries in `range` that can be in no other tree to blocks.
    fn spill(&mut self, row: &mut Row, range: Range<usize>) -> Result<(), KvError> {
        for index in range {
            let mut item = row.items[index];
            let bytes = item.payload(&row.arena);
            if item.len() >= CHUNK_BYTES || item.kind != EntryKind::Inline || bytes.is_empty() {
                continue;
            }
            let payload = self.put_value(bytes)?;
            row.make_long(&mut item, payload.payload());
            row.items[index] = item;
        }
        Ok(())
    }

    /// Makes trees of parts of each group that takes more than half a block, until it does not.
    fn burst_groups(&mut self, row: &mut Row, in_order: bool) -> Result<(), KvError> {
        let mut items = Vec::with_capacity(row.items.len());
        let mut from = 0;
        while from < row.items.len() {
            let end = row.group_end(from);
            let start = items.len();
            items.extend_from_slice(&row.items[from..end]);
            while measure(&items[start..]) > BURST_BYTES {
                let Some(burst) = heaviest(&items[start..]) else {
                    break;
                };
                let below = burst.items(&items[start..]);
                let range = start + burst.range.start..start + burst.range.end;
                let root = self.build(row, below, in_order)?;
                let entry = row.subtree(&items[range.start], burst.prefix, &root.encode());
                items.splice(range, [entry]);
            }
            from = end;
        }
        row.items = items;
        Ok(())
    }

    /// Writes `items` of the arena of `row` as a tree of their own.
    fn build(&mut self, row: &mut Row, items: Vec<Item>, in_order: bool) -> Result<Root, KvError> {
        let kept = core::mem::replace(&mut row.items, items);
        let mut above = Vec::new();
        let built = self.emit_row(row, in_order, &mut above);
        row.items = kept;
        built?;
        self.build_above(above, 0)
    }

    /// Inner nodes over `nodes` of `level`, at least one, up to a root.
    pub(crate) fn build_above(&mut self, mut nodes: Vec<Child>, mut level: u16) -> Result<Root, KvError> {
        while nodes.len() > 1 {
            if level == LEVEL_MAX {
                return Err(KvError::Full);
            }
            level += 1;
            let mut above = Vec::new();
            self.emit_inner(&mut nodes, level, 0, &mut above)?;
            nodes = above;
        }
        Ok(Root { node: nodes[0].node, level })
    }

    /// Writes `children` as inner nodes of `level` and appends them to `above`, as for
    /// [`Merge::emit_leaves`].
    pub(crate) fn emit_inner(
        &mut self,
        children: &mut Vec<Child>,
        level: u16,
        lower: u64,
        above: &mut Vec<Child>,
    ) -> Result<(), KvError> {
        let nodes = if children.len() <= FANOUT_MAX { 1 } else { children.len().div_ceil(FILL_CHILDREN) };
        let each = children.len().div_ceil(nodes).max(1);
        for (index, part) in children.chunks(each).enumerate() {
            let chunk = if index == 0 { lower } else { part[0].chunk };
            let address = self.allocate()?;
            let node = self.put(node::inner(part, level, address))?;
            above.push(Child { chunk, node });
        }
        children.clear();
        Ok(())
    }

    fn put_leaf(&mut self, builder: Builder) -> Result<Reference, KvError> {
        let address = self.allocate()?;
        self.put(builder.finish(address))
    }

    fn allocate(&mut self) -> Result<NodeAddress, KvError> {
        let block = self.space.allocate(self.disk, self.superblock)?;
        self.written += 1;
        let identity = self.superblock.identity;
        Ok(NodeAddress { identity, block, generation: self.superblock.generation + 1 })
    }

    fn put(&mut self, node: Node) -> Result<Reference, KvError> {
        let reference = Reference { block: node.block(), generation: node.generation(), crc: node.crc() };
        self.writes.push(self.disk, node.block(), &node.bytes, false)?;
        self.nodes.keep(Arc::new(node));
        Ok(reference)
    }

    /// Writes a value to blocks of its own.
    pub(crate) fn put_value(&mut self, bytes: &[u8]) -> Result<value::Writer, KvError> {
        let generation = self.superblock.generation + 1;
        let mut writer = value::Writer::new(self.superblock.identity, generation, bytes.len());
        for part in bytes.chunks(BLOCK_BYTES) {
            let address = self.allocate()?;
            let mut block = [0; BLOCK_BYTES];
            block[..part.len()].copy_from_slice(part);
            writer.push(address.block, &block);
            self.writes.push(self.disk, address.block, &block, true)?;
        }
        Ok(writer)
    }
}

/// Adds the entries in `range` to `builder`; `false` when one does not fit.
fn push(builder: &mut Builder, row: &Row, range: Range<usize>) -> bool {
    row.items[range]
        .iter()
        .all(|item| builder.push(item.rest(&row.arena), item.kind, item.payload(&row.arena), item.common()))
}

impl Writes {
    fn push(&mut self, disk: &Disk, block: Block, bytes: &BlockBytes, value: bool) -> Result<(), KvError> {
        let next = self.first + (self.bytes.len() / BLOCK_BYTES) as u64;
        if block != next || value != self.values || self.bytes.len() >= WRITE_BLOCKS_MAX * BLOCK_BYTES {
            self.send(disk)?;
            (self.first, self.values) = (block, value);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn send(&mut self, disk: &Disk) -> Result<(), KvError> {
        if !self.bytes.is_empty() {
            let structure = if self.values { disk::Structure::Value } else { disk::Structure::Node };
            disk.write(structure, self.first, &self.bytes, false)?;
            self.bytes.clear();
        }
        Ok(())
    }
}
