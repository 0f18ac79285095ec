//! Putting extents right: inside the region, apart from each other, each block of one file.

use crate::model::Model;
use core::ops::Range;
use nvmed_layout::FileType;
use nvmed_layout::bitmap::{CHUNK_BLOCKS, CHUNK_BYTES};
use nvmed_layout::record::{EXTENT_UNWRITTEN, Extent, FLAG_KEYED_EXTENTS, Tail};
use nvmed_units::{BLOCK_BYTES, Block, Ino};
use std::collections::BTreeMap;

/// Blocks in use, as the bitmap has them.
pub(crate) type Used = BTreeMap<u64, [u64; 16]>;

/// An extent that lies over blocks of others.
struct Shared {
    ino: Ino,
    index: usize,
    /// Which of its blocks nobody else has.
    own: Vec<bool>,
}

/// A block to be copied before its record says so: from, to.
pub(crate) type Copy = (u64, u64);

fn bit(first: u64, block: u64) -> (u64, usize, u64) {
    let bit = (block - first) % CHUNK_BLOCKS;
    ((block - first) / CHUNK_BLOCKS, (bit / 64) as usize, 1 << (bit % 64))
}

fn is_used(used: &Used, first: u64, block: u64) -> bool {
    let (chunk, word, mask) = bit(first, block);
    used.get(&chunk).is_some_and(|words| words[word] & mask != 0)
}

fn mark(used: &mut Used, first: u64, block: u64) {
    let (chunk, word, mask) = bit(first, block);
    used.entry(chunk).or_default()[word] |= mask;
}

/// Whether a block is in use by the bitmap that is on the device.
fn is_marked(bitmap: &BTreeMap<u64, [u8; CHUNK_BYTES]>, first: u64, block: u64) -> bool {
    let at = block - first;
    let place = (at % CHUNK_BLOCKS) as usize;
    bitmap.get(&(at / CHUNK_BLOCKS)).is_some_and(|bytes| bytes[place / 8] >> (place % 8) & 1 == 1)
}

/// Appends a block to extents, joined with the one before where they go on.
fn push(extents: &mut Vec<Extent>, logical: u64, physical: u64, flags: u32) {
    if let Some(last) = extents.last_mut()
        && last.logical_end() == logical
        && last.physical_end().0 == physical
        && last.flags == flags
        && last.blocks < u32::MAX
    {
        last.blocks += 1;
    } else {
        extents.push(Extent { logical, physical: Block(physical), blocks: 1, flags });
    }
}

impl Model {
    /// Cuts and moves extents; answers the blocks in use and what has to be copied. `gives` says whether the device
    /// gives a block: what it does not give is not copied.
    pub(crate) fn fix_blocks(&mut self, gives: &mut dyn FnMut(u64) -> bool) -> (Used, Vec<Copy>) {
        let first = self.superblock.data_first;
        let region = first..first + self.superblock.data_blocks;
        let mut used = Used::new();
        for block in self.metadata_blocks() {
            mark(&mut used, first, block);
        }
        let mut inos: Vec<Ino> = self.nodes.keys().copied().collect();
        inos.sort_unstable();
        self.trim_all();
        // The smallest first: an extent that damage made huge must not push sound ones aside.
        inos.sort_by_key(|ino| self.nodes[ino].extents.iter().map(|extent| extent.blocks).max());
        let mut moved: Vec<Shared> = Vec::new();
        for &ino in &inos {
            for (index, extent) in self.nodes[&ino].extents.iter().enumerate() {
                let blocks = extent.physical.0..extent.physical_end().0;
                if blocks.clone().any(|block| is_used(&used, first, block)) {
                    moved.push(Shared { ino, index, own: Vec::new() });
                } else {
                    blocks.for_each(|block| mark(&mut used, first, block));
                }
            }
        }
        // Before any of them takes free blocks, each has those of its own that nobody else has.
        for shared in &mut moved {
            let extent = self.nodes[&shared.ino].extents[shared.index];
            let own = (extent.physical.0..extent.physical_end().0).map(|block| {
                let own = !is_used(&used, first, block);
                mark(&mut used, first, block);
                own
            });
            shared.own = own.collect();
        }
        let mut copies = Vec::new();
        let mut free = region.clone();
        for shared in moved.into_iter().rev() {
            self.separate(&shared, &mut used, &mut free, &mut copies, gives);
        }
        (used, copies)
    }

    /// Cuts every extent to what can be true of it alone.
    pub(crate) fn trim_all(&mut self) {
        let region = self.superblock.data_first..self.superblock.data_first + self.superblock.data_blocks;
        let mut inos: Vec<Ino> = self.nodes.keys().copied().collect();
        inos.sort_unstable();
        for ino in inos {
            self.trim(ino, &region);
        }
    }

    /// What metadata took from the data region; of a run that it was about to take, what is marked.
    fn metadata_blocks(&self) -> Vec<u64> {
        let runs = self.superblock.taken_runs();
        let is_marked = |block: u64| is_marked(&self.bitmap, self.superblock.data_first, block);
        let about_to = |index: usize| self.superblock.growing && index + 1 == runs.len();
        let runs = runs.iter().enumerate();
        runs.flat_map(|(index, run)| run.clone().filter(move |block| !about_to(index) || is_marked(*block)))
            .collect()
    }

    /// Removes what of an inode's extents lies outside of the region, or over another of its own; and what lies past
    /// the end of the file and is not marked in the bitmap either: a length that damage made huge.
    fn trim(&mut self, ino: Ino, region: &Range<u64>) {
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
        let (pages, bitmap) = (node.record.size.div_ceil(BLOCK_BYTES as u64), &self.bitmap);
        let mut end = 0;
        let mut lost = 0;
        node.extents.retain_mut(|extent| {
            let blocks = extent.blocks;
            let skip = end.max(extent.logical) - extent.logical;
            let skip = skip.max(region.start.saturating_sub(extent.physical.0));
            let mut stop = region.end.saturating_sub(extent.physical.0).min(extent.blocks.into());
            let inside = pages.saturating_sub(extent.logical).max(skip);
            if let Some(cut) =
                (inside..stop).find(|at| !is_marked(bitmap, region.start, extent.physical.0 + at))
            {
                stop = cut;
            }
            if skip >= stop {
                lost += u64::from(blocks);
                return false;
            }
            (extent.logical, extent.physical) = (extent.logical + skip, extent.physical + skip);
            extent.blocks = (stop - skip) as u32;
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
        free: &mut Range<u64>,
        copies: &mut Vec<Copy>,
        gives: &mut dyn FnMut(u64) -> bool,
    ) {
        let first = self.superblock.data_first;
        let (ino, index) = (shared.ino, shared.index);
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let extent = node.extents[index];
        let written = extent.flags & EXTENT_UNWRITTEN == 0;
        let (mut pieces, mut copied, mut lost, mut holes) = (Vec::new(), 0_u64, 0_u64, 0_u64);
        for (at, own) in (0..).zip(&shared.own) {
            let (logical, block) = (extent.logical + at, extent.physical.0 + at);
            if *own {
                push(&mut pieces, logical, block, extent.flags);
            } else if written && !gives(block) {
                holes += 1;
            } else if let Some(own) = free.find(|block| !is_used(used, first, *block)) {
                mark(used, first, own);
                // Of what was never written there is no byte to copy.
                copies.extend(written.then_some((block, own)));
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
