//! Putting extents right: inside the region, apart from each other, each block of one file.

use crate::model::Model;
use crate::used::Used;
use core::ops::Range;
use nvmed_layout::FileType;
use nvmed_layout::bitmap::{CHUNK_BLOCKS, CHUNK_BYTES};
use nvmed_layout::record::{EXTENT_UNWRITTEN, Extent, FLAG_KEYED_EXTENTS, Tail};
use nvmed_units::{Block, ByteOffset, Ino, Page};
use std::collections::BTreeMap;

/// An extent that lies over blocks of others.
struct Shared {
    ino: Ino,
    index: usize,
    /// Which of its blocks nobody else has.
    own: Vec<bool>,
}

/// A block to be copied before its record says so.
#[derive(Clone, Copy)]
pub(crate) struct BlockCopy {
    pub(crate) from: Block,
    pub(crate) to: Block,
}

/// Whether a block is in use by the bitmap that is on the device.
fn is_marked(bitmap: &BTreeMap<u64, [u8; CHUNK_BYTES]>, first: Block, block: Block) -> bool {
    let at = block - first;
    let place = (at % CHUNK_BLOCKS) as usize;
    bitmap.get(&(at / CHUNK_BLOCKS)).is_some_and(|bytes| bytes[place / 8] >> (place % 8) & 1 == 1)
}

/// Appends a block to extents, joined with the one before where they go on.
fn push(extents: &mut Vec<Extent>, logical: Page, physical: Block, flags: u32) {
    if let Some(last) = extents.last_mut()
        && last.logical_end() == logical
        && last.physical_end() == physical
        && last.flags == flags
        && last.blocks < u32::MAX
    {
        last.blocks += 1;
    } else {
        extents.push(Extent { logical, physical, blocks: 1, flags });
    }
}

impl Model {
    /// Cuts and moves extents; answers the blocks in use and what has to be copied. `gives` says whether the device
    /// gives a block: what it does not give is not copied.
    pub(crate) fn fix_blocks(&mut self, gives: &mut dyn FnMut(Block) -> bool) -> (Used, Vec<BlockCopy>) {
        let region = self.region();
        let mut used = Used::new(region.start);
        self.metadata_blocks().into_iter().for_each(|block| used.mark(block));
        let mut inos: Vec<Ino> = self.nodes.keys().copied().collect();
        inos.sort_unstable();
        self.trim_all();
        // The smallest first: an extent that damage made huge must not push sound ones aside.
        inos.sort_by_key(|ino| self.nodes[ino].extents.iter().map(|extent| extent.blocks).max());
        let mut moved: Vec<Shared> = Vec::new();
        for &ino in &inos {
            for (index, extent) in self.nodes[&ino].extents.iter().enumerate() {
                let blocks = Block::each(extent.physical_blocks());
                if blocks.clone().any(|block| used.has(block)) {
                    moved.push(Shared { ino, index, own: Vec::new() });
                } else {
                    blocks.for_each(|block| used.mark(block));
                }
            }
        }
        // Before any of them takes free blocks, each has those of its own that nobody else has.
        for shared in &mut moved {
            let extent = self.nodes[&shared.ino].extents[shared.index];
            let own = Block::each(extent.physical_blocks()).map(|block| {
                let own = !used.has(block);
                used.mark(block);
                own
            });
            shared.own = own.collect();
        }
        let mut copies = Vec::new();
        let mut free = Block::each(region);
        for shared in moved.into_iter().rev() {
            self.separate(&shared, &mut used, &mut free, &mut copies, gives);
        }
        (used, copies)
    }

    /// The blocks that files' data may lie in.
    fn region(&self) -> Range<Block> {
        let first = Block(self.superblock.data_first);
        first..first + self.superblock.data_blocks
    }

    /// Cuts every extent to what can be true of it alone.
    pub(crate) fn trim_all(&mut self) {
        let region = self.region();
        let mut inos: Vec<Ino> = self.nodes.keys().copied().collect();
        inos.sort_unstable();
        for ino in inos {
            self.trim(ino, &region);
        }
    }

    /// What metadata took from the data region; of a run that it was about to take, what is marked.
    fn metadata_blocks(&self) -> Vec<Block> {
        let runs = self.superblock.taken_runs();
        let first = self.region().start;
        let is_marked = |block: Block| is_marked(&self.bitmap, first, block);
        let about_to = |index: usize| self.superblock.growing && index + 1 == runs.len();
        let runs = runs.iter().enumerate();
        runs.flat_map(|(index, run)| {
            run.clone().map(Block).filter(move |block| !about_to(index) || is_marked(*block))
        })
        .collect()
    }

    /// Removes what of an inode's extents lies outside of the region, or over another of its own; and what lies past
    /// the end of the file and is not marked in the bitmap either: a length that damage made huge.
    fn trim(&mut self, ino: Ino, region: &Range<Block>) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let holds = node.record.kind() == FileType::File && !matches!(node.record.tail, Tail::Data(_));
        if !holds {
            node.record.flags &= !FLAG_KEYED_EXTENTS;
            if !core::mem::take(&mut node.extents).is_empty() {
                self.plan
                    .push(format!("inode {ino} has blocks and is no file with blocks: they are removed"));
            }
            return;
        }
        let before: u64 = node.extents.iter().map(|extent| u64::from(extent.blocks)).sum();
        let (recorded, count) = (node.record.blocks, node.record.extent_count as usize);
        node.extents.sort_by_key(|extent| extent.logical);
        let (pages, bitmap) = (ByteOffset(node.record.size).page_end(), &self.bitmap);
        let mut end = Page::FIRST;
        let mut lost = 0;
        node.extents.retain_mut(|extent| {
            let blocks = extent.blocks;
            let skip = end.max(extent.logical) - extent.logical;
            let skip = skip.max(region.start.0.saturating_sub(extent.physical.0));
            let mut stop = region.end.0.saturating_sub(extent.physical.0).min(extent.blocks.into());
            let inside = pages.0.saturating_sub(extent.logical.0).max(skip);
            if let Some(cut) =
                (inside..stop).find(|at| !is_marked(bitmap, region.start, extent.physical + *at))
            {
                stop = cut;
            }
            if skip >= stop {
                lost += u64::from(blocks);
                return false;
            }
            (extent.logical, extent.physical) = (extent.logical + skip, extent.physical + skip);
            extent.blocks = u32::try_from(stop - skip).expect("a part of an extent is no longer than it");
            lost += u64::from(blocks - extent.blocks);
            end = extent.logical_end();
            true
        });
        if lost > 0 {
            let text = format!(
                "inode {ino} loses {lost} blocks, which lie outside of the region or twice at one place"
            );
            self.plan.push(text);
        } else if before != recorded || count != node.extents.len() {
            self.plan.push(format!("inode {ino} records {recorded} blocks: {before} are counted"));
        }
    }

    /// Gives an extent that lies over others' blocks a copy of those, as long as there is room; a hole, where there is
    /// nothing to copy.
    fn separate(
        &mut self,
        shared: &Shared,
        used: &mut Used,
        free: &mut impl Iterator<Item = Block>,
        copies: &mut Vec<BlockCopy>,
        gives: &mut dyn FnMut(Block) -> bool,
    ) {
        let (ino, index) = (shared.ino, shared.index);
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let extent = node.extents[index];
        let written = extent.flags & EXTENT_UNWRITTEN == 0;
        let (mut pieces, mut copied, mut lost, mut holes) = (Vec::new(), 0_u64, 0_u64, 0_u64);
        for (at, own) in (0..).zip(&shared.own) {
            let (logical, block) = (extent.logical + at, extent.physical + at);
            if *own {
                push(&mut pieces, logical, block, extent.flags);
            } else if written && !gives(block) {
                holes += 1;
            } else if let Some(own) = free.find(|block| !used.has(*block)) {
                used.mark(own);
                // Of what was never written there is no byte to copy.
                copies.extend(written.then_some(BlockCopy { from: block, to: own }));
                push(&mut pieces, logical, own, extent.flags);
                copied += 1;
            } else {
                lost += 1;
            }
        }
        node.extents.splice(index..=index, pieces);
        let mut text = match (copied, lost) {
            (0, 0) => format!("inode {ino} shares blocks with others"),
            (_, 0) => format!("inode {ino} shares {copied} blocks with others: it gets a copy of them"),
            _ => format!(
                "inode {ino} shares blocks with others: it gets a copy of {copied}, \
                 and LOSES {lost} for which there is no room"
            ),
        };
        if holes > 0 {
            text.push_str(&format!("; it LOSES {holes} that the device does not give: they read as zeroes"));
        }
        self.plan.push(text);
    }
}
