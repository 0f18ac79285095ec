//! Which tree blocks are in use: bitmap pages, read when first needed, two slots a page on the medium.

use crate::KvError;
use crate::disk::{Disk, Structure};
use crate::layout::{Layout, PAGE_BITS, TreeIndex, checksum, put_u32, put_u64, u32_at, u64_at};
use crate::superblock::Superblock;
use nvmed_mutant::Mutant;
use nvmed_units::{BLOCK_BYTES, Block};

const MAGIC: u32 = u32::from_le_bytes(*b"KVBM");
const HEADER_BYTES: usize = 32;
const WORDS: usize = (BLOCK_BYTES - HEADER_BYTES) / 8;

/// One page in memory.
struct Page {
    /// As on the medium, or as it is to be there.
    used: Box<[u64; WORDS]>,
    /// Freed, but a reader may still look at them; `None`: no such block.
    held: Option<Box<[u64; WORDS]>>,
    dirty: bool,
}

/// The tree blocks of a store. Numbers here are relative to the first one.
///
/// Between two superblocks only blocks that the old tree does not use are allocated: what is freed is
/// marked free on the medium by `write`, after the last allocation, and held back from allocation until
/// `release`, when no reader of the old tree is left. A rising cursor leads around the region.
pub(crate) struct Space {
    identity: u64,
    layout: Layout,
    pages: Vec<Option<Page>>,
    /// Where the search for a free block goes on.
    cursor: u64,
    /// Blocks in use by the tree of the last superblock.
    used: u64,
    /// Free, but held back.
    held: u64,
    /// Allocated, and freed, since then.
    allocated: Vec<TreeIndex>,
    freed: Vec<TreeIndex>,
}

impl Space {
    pub(crate) fn new(superblock: &Superblock) -> Self {
        let layout = superblock.layout;
        Self {
            identity: superblock.identity,
            layout,
            pages: (0..layout.pages).map(|_| None).collect(),
            cursor: superblock.cursor,
            used: superblock.used,
            held: 0,
            allocated: Vec::new(),
            freed: Vec::new(),
        }
    }

    /// Blocks that can be allocated before the next superblock.
    pub(crate) fn free(&self) -> u64 {
        let (total, taken) = (self.layout.tree_blocks(), self.used + self.held + self.allocated.len() as u64);
        // What the superblock says is used was checked against the total, but not what the bitmap lets be allocated
        // besides: a store of others' making may come out below.
        total.saturating_sub(taken)
    }

    /// Free blocks that are held back from allocation.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// The region grew.
    pub(crate) fn grow(&mut self, layout: Layout) {
        assert!(layout.pages >= self.layout.pages, "a bitmap of {} pages shrinks", self.layout.pages);
        self.layout = layout;
        self.pages.resize_with(layout.pages as usize, || None);
    }

    /// A free block, as a block number of the medium.
    pub(crate) fn allocate(&mut self, disk: &Disk, superblock: &Superblock) -> Result<Block, KvError> {
        if Mutant::FreedInStep.is_made()
            && let Some(block) = self.freed.pop()
        {
            self.allocated.push(block);
            return Ok(self.layout.tree_block(block));
        }
        let total = self.layout.tree_blocks();
        // From the cursor to the end, then from the start; the page of the cursor is looked at twice.
        let first_page = (self.cursor % total) / PAGE_BITS;
        for step in 0..=self.layout.pages {
            let number = (first_page + step) % self.layout.pages;
            let from = if step == 0 { self.cursor % total % PAGE_BITS } else { 0 };
            let limit = (total - number * PAGE_BITS).min(PAGE_BITS);
            let page = self.page(disk, superblock, number)?;
            if let Some(found) = page.first_free(from, limit) {
                let block = TreeIndex(number * PAGE_BITS + found);
                let (_, word, bit) = place(block);
                assert!(
                    block.0 < total && page.used[word] & bit == 0,
                    "tree block {block} is given out twice"
                );
                page.used[word] |= bit;
                page.dirty = true;
                self.allocated.push(block);
                self.cursor = block.0 + 1;
                return Ok(self.layout.tree_block(block));
            }
        }
        Err(KvError::Full)
    }

    /// The tree to come does not use `block` of the medium any more.
    pub(crate) fn free_block(&mut self, block: Block) {
        // References were checked when they were read; one from elsewhere names nothing of ours.
        self.freed.extend(self.layout.tree_index(block));
    }

    /// Writes the changed pages, as they are to be with the next superblock, and notes them in it.
    pub(crate) fn write(
        &mut self,
        disk: &Disk,
        old: &Superblock,
        new: &mut Superblock,
    ) -> Result<(), KvError> {
        for index in 0..self.freed.len() {
            let (number, word, bit) = place(self.freed[index]);
            let block = self.layout.tree_block(self.freed[index]);
            let page = self.page(disk, old, number as u64)?;
            // A tree that leads to a block twice has it freed twice: while the first time is held back, too.
            let held = page.held.as_ref().is_some_and(|held| held[word] & bit != 0);
            if page.used[word] & bit == 0 || held {
                let reason = "a block of the tree is marked free";
                return Err(KvError::Corrupt { block, structure: "bitmap page", reason });
            }
            page.used[word] &= !bit;
            page.dirty = true;
        }
        for number in 0..self.layout.pages {
            let Some(page) = self.pages[number as usize].as_ref().filter(|page| page.dirty) else {
                continue;
            };
            let slot = old.slot(number) ^ !Mutant::BitmapInPlace.is_made();
            let bytes = encode(self.identity, number, new.generation, &page.used);
            disk.write(Structure::Bitmap, self.layout.bitmap_block(number, slot), &bytes, false)?;
            new.name_page(number, slot, name_of(&bytes));
        }
        // Nobody compared the superblock's count with the bitmap's: it may be wrong in either direction.
        let used = (self.used + self.allocated.len() as u64).checked_sub(self.freed.len() as u64);
        let used = used.filter(|&used| used <= self.layout.tree_blocks());
        let block = self.layout.superblock(0);
        let reason = "the count of blocks in use";
        new.used = used.ok_or(KvError::Corrupt { block, structure: "superblock", reason })?;
        new.cursor = self.cursor;
        Ok(())
    }

    /// The superblock that `write` prepared is durable. Answers the blocks that it freed, by their index
    /// among the tree blocks; they are held back until `release`.
    pub(crate) fn settle(&mut self, superblock: &Superblock) -> Vec<TreeIndex> {
        let used = self.used + self.allocated.len() as u64 - self.freed.len() as u64;
        assert_eq!(used, superblock.used, "the superblock counts other blocks than were allocated and freed");
        self.used = superblock.used;
        self.allocated.clear();
        for page in self.pages.iter_mut().flatten() {
            page.dirty = false;
        }
        let freed = core::mem::take(&mut self.freed);
        for &block in &freed {
            let (page, word, bit) = place(block);
            if let Some(page) = &mut self.pages[page] {
                let held = &mut page.held.get_or_insert_with(|| Box::new([0; WORDS]))[word];
                assert!(*held & bit == 0, "tree block {block} is held back twice");
                *held |= bit;
                self.held += 1;
            }
        }
        freed
    }

    /// Nobody looks at these blocks any more.
    pub(crate) fn release(&mut self, blocks: &[TreeIndex]) {
        for &block in blocks {
            let (page, word, bit) = place(block);
            if let Some(held) = self.pages[page].as_mut().and_then(|page| page.held.as_mut()) {
                assert!(held[word] & bit != 0 && self.held > 0, "tree block {block} was not held back");
                held[word] &= !bit;
                self.held -= 1;
            }
        }
    }

    /// The superblock that was being prepared will not be written.
    pub(crate) fn abandon(&mut self) {
        for block in self.freed.drain(..) {
            let (page, word, bit) = place(block);
            if let Some(page) = &mut self.pages[page] {
                page.used[word] |= bit;
            }
        }
        for block in self.allocated.drain(..) {
            let (page, word, bit) = place(block);
            if let Some(page) = &mut self.pages[page] {
                page.used[word] &= !bit;
            }
        }
    }

    /// Whether the tree of the last superblock uses `block` of the medium, by the bitmap.
    pub(crate) fn is_used(&mut self, disk: &Disk, old: &Superblock, block: Block) -> Result<bool, KvError> {
        let Some(index) = self.layout.tree_index(block) else {
            return Ok(false);
        };
        let (number, word, bit) = place(index);
        Ok(self.page(disk, old, number as u64)?.used[word] & bit != 0)
    }

    /// How many blocks the tree of the last superblock uses, by the bitmap.
    pub(crate) fn count_used(&mut self, disk: &Disk, old: &Superblock) -> Result<u64, KvError> {
        (0..self.layout.pages).try_fold(0, |sum, number| {
            let page = self.page(disk, old, number)?;
            Ok(sum + page.used.iter().map(|word| u64::from(word.count_ones())).sum::<u64>())
        })
    }

    fn page(&mut self, disk: &Disk, superblock: &Superblock, number: u64) -> Result<&mut Page, KvError> {
        let place = &mut self.pages[number as usize];
        if place.is_none() {
            let used =
                match superblock.page_name(number) {
                    // What lies there is nobody's: the page is all free blocks.
                    None => Box::new([0; WORDS]),
                    Some(name) => {
                        let block = self.layout.bitmap_block(number, superblock.slot(number));
                        let mut bytes = [0; BLOCK_BYTES];
                        disk.read(block, &mut bytes)?;
                        let bits = (self.layout.tree_blocks() - number * PAGE_BITS).min(PAGE_BITS);
                        decode(self.identity, number, name, bits, &bytes)
                            .map_err(|reason| KvError::Corrupt { block, structure: "bitmap page", reason })?
                    }
                };
            *place = Some(Page { used, held: None, dirty: false });
        }
        Ok(place.as_mut().expect("it was filled just above"))
    }
}

impl Page {
    /// The first clear bit in `from..limit`.
    fn first_free(&self, from: u64, limit: u64) -> Option<u64> {
        let mut at = from;
        while at < limit {
            let word = (at / 64) as usize;
            let held = self.held.as_ref().map_or(0, |held| held[word]);
            let free = !(self.used[word] | held) & (u64::MAX << (at % 64));
            if free != 0 {
                let found = word as u64 * 64 + u64::from(free.trailing_zeros());
                return Some(found).filter(|&found| found < limit);
            }
            at = (word as u64 + 1) * 64;
        }
        None
    }
}

/// Page, word and bit of a block.
fn place(block: TreeIndex) -> (usize, usize, u64) {
    let bit = block.within();
    (block.page() as usize, (bit / 64) as usize, 1 << (bit % 64))
}

/// What the superblock calls this version of a page: its checksum, which its generation is part of. 0 is the name of
/// none.
fn name_of(page: &[u8; BLOCK_BYTES]) -> u32 {
    u32_at(page, 4).max(1)
}

fn encode(identity: u64, number: u64, generation: u64, bits: &[u64; WORDS]) -> [u8; BLOCK_BYTES] {
    let mut bytes = [0; BLOCK_BYTES];
    put_u32(&mut bytes, 0, MAGIC);
    put_u64(&mut bytes, 8, number);
    put_u64(&mut bytes, 16, generation);
    put_u64(&mut bytes, 24, bits.iter().map(|word| u64::from(word.count_ones())).sum());
    for (chunk, word) in bytes[HEADER_BYTES..].chunks_exact_mut(8).zip(bits) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    let crc = checksum(identity, &[&bytes[8..]]);
    put_u32(&mut bytes, 4, crc);
    bytes
}

fn decode(
    identity: u64,
    number: u64,
    name: u32,
    limit: u64,
    bytes: &[u8; BLOCK_BYTES],
) -> Result<Box<[u64; WORDS]>, &'static str> {
    if u32_at(bytes, 0) != MAGIC {
        return Err("magic");
    }
    if checksum(identity, &[&bytes[8..]]) != u32_at(bytes, 4) {
        return Err("checksum");
    }
    if u64_at(bytes, 8) != number || name_of(bytes) != name {
        return Err("not the version that the superblock refers to");
    }
    let mut bits = Box::new([0; WORDS]);
    for (word, chunk) in bits.iter_mut().zip(bytes[HEADER_BYTES..].chunks_exact(8)) {
        *word = u64_at(chunk, 0);
    }
    let set: u64 = bits.iter().map(|word| u64::from(word.count_ones())).sum();
    let stray = (limit..PAGE_BITS).any(|bit| bits[(bit / 64) as usize] & (1 << (bit % 64)) != 0);
    if set != u64_at(bytes, 24) || stray { Err("number of bits") } else { Ok(bits) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryMedium;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn space(blocks: u64) -> (Disk, Superblock, Space) {
        let layout = Layout::plan(blocks, None).unwrap();
        let superblock = Superblock::empty(1, layout);
        let space = Space::new(&superblock);
        (Disk::new(Arc::new(MemoryMedium::new(blocks))), superblock, space)
    }

    fn commit(disk: &Disk, superblock: &mut Superblock, space: &mut Space) {
        let mut new = superblock.clone();
        new.generation += 1;
        space.write(disk, superblock, &mut new).unwrap();
        let freed = space.settle(&new);
        space.release(&freed);
        *superblock = new;
    }

    #[test]
    fn every_block_is_given_once_and_a_freed_one_only_after_the_superblock() {
        let (disk, mut superblock, mut space) = space(70_000); // three pages, the last one in part
        let total = superblock.layout.tree_blocks();
        let mut got = BTreeSet::new();
        while let Ok(block) = space.allocate(&disk, &superblock) {
            assert!(got.insert(block), "block {block} was given twice");
        }
        assert_eq!(got.len() as u64, total);
        assert_eq!(space.free(), 0);
        commit(&disk, &mut superblock, &mut space);
        let victim = *got.iter().nth(40_000).unwrap();
        space.free_block(victim);
        assert_eq!(space.allocate(&disk, &superblock), Err(KvError::Full), "before the superblock");
        commit(&disk, &mut superblock, &mut space);
        assert_eq!(space.allocate(&disk, &superblock), Ok(victim));
        space.abandon();
        assert_eq!(space.allocate(&disk, &superblock), Ok(victim), "an abandoned allocation is undone");
        commit(&disk, &mut superblock, &mut space);
        let mut again = Space::new(&superblock);
        assert_eq!(again.allocate(&disk, &superblock), Err(KvError::Full), "what was written is read");
        assert!(got.iter().all(|&block| again.is_used(&disk, &superblock, block).unwrap()));
    }

    #[test]
    fn a_block_that_a_reader_may_see_is_held_back_and_free_on_the_medium() {
        let (disk, mut superblock, mut space) = space(2000);
        let all: Vec<_> = std::iter::from_fn(|| space.allocate(&disk, &superblock).ok()).collect();
        commit(&disk, &mut superblock, &mut space);
        space.free_block(all[7]);
        let mut new = superblock.clone();
        new.generation += 1;
        space.write(&disk, &superblock, &mut new).unwrap();
        let freed = space.settle(&new);
        assert_eq!((space.held(), space.free()), (1, 0));
        assert_eq!(space.allocate(&disk, &new), Err(KvError::Full), "a reader may look at it");
        assert_eq!(Space::new(&new).allocate(&disk, &new), Ok(all[7]), "after a mount nobody does");
        space.release(&freed);
        assert_eq!(space.allocate(&disk, &new), Ok(all[7]));
    }

    #[test]
    fn an_older_copy_of_a_page_gives_nothing_out() {
        let (disk, mut superblock, mut space) = space(2000);
        let first = space.allocate(&disk, &superblock).unwrap();
        commit(&disk, &mut superblock, &mut space);
        let block = superblock.layout.bitmap_block(0, superblock.slot(0));
        let mut old = [0; BLOCK_BYTES];
        disk.read(block, &mut old).unwrap();
        let live: Vec<_> = (0..2)
            .map(|_| {
                let block = space.allocate(&disk, &superblock).unwrap();
                commit(&disk, &mut superblock, &mut space);
                block
            })
            .collect();
        assert_eq!(superblock.layout.bitmap_block(0, superblock.slot(0)), block, "the same slot again");
        // The last write to it was lost.
        disk.write(Structure::Bitmap, block, &old, true).unwrap();
        superblock.cursor = 0;
        let mut again = Space::new(&superblock);
        let given: Vec<_> = (0..3).filter_map(|_| again.allocate(&disk, &superblock).ok()).collect();
        assert!(!given.contains(&first));
        assert!(
            !live.iter().any(|block| given.contains(block)),
            "live blocks {live:?} among those given out: {given:?}"
        );
        let answer = again.allocate(&disk, &superblock);
        assert!(matches!(answer, Err(KvError::Corrupt { block: b, .. }) if b == block), "{answer:?}");
    }

    #[test]
    #[should_panic(expected = "was not held back")]
    fn a_block_that_is_released_twice_is_our_mistake() {
        let (disk, mut superblock, mut space) = space(2000);
        let block = space.allocate(&disk, &superblock).unwrap();
        commit(&disk, &mut superblock, &mut space);
        space.free_block(block);
        commit(&disk, &mut superblock, &mut space);
        let freed = superblock.layout.tree_index(block).unwrap();
        space.release(&[freed]);
    }

    #[test]
    fn a_damaged_page_is_an_error_that_names_it() {
        let (disk, mut superblock, mut space) = space(2000);
        space.allocate(&disk, &superblock).unwrap();
        commit(&disk, &mut superblock, &mut space);
        let block = superblock.layout.bitmap_block(0, superblock.slot(0));
        let mut good = [0; BLOCK_BYTES];
        disk.read(block, &mut good).unwrap();
        for bit in (0..BLOCK_BYTES * 8).filter(|bit| !(32..64).contains(bit)).step_by(7) {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            disk.write(Structure::Bitmap, block, &bad, true).unwrap();
            let answer = Space::new(&superblock).allocate(&disk, &superblock);
            assert!(matches!(answer, Err(KvError::Corrupt { block: b, .. }) if b == block), "bit {bit}");
        }
    }

    proptest::proptest! {
        /// Bytes that somebody else made, with a checksum that fits: an error, or pages that can be used.
        #[test]
        fn fuzz_a_page_with_a_good_checksum(
            header in proptest::collection::vec(proptest::num::u8::ANY, 24),
            keep in proptest::bool::ANY,
            bits in proptest::collection::vec((32usize..BLOCK_BYTES, proptest::num::u8::ANY), 0..20),
        ) {
            let (disk, superblock, _) = space(2000);
            let mut bytes = encode(1, 0, 0, &[0; WORDS]);
            for (at, byte) in bits {
                bytes[at] = byte;
            }
            if keep {
                let set: u32 = bytes[HEADER_BYTES..].iter().map(|byte| byte.count_ones()).sum();
                put_u64(&mut bytes, 24, set.into());
            } else {
                bytes[8..32].copy_from_slice(&header);
            }
            let crc = checksum(1, &[&bytes[8..]]);
            put_u32(&mut bytes, 4, crc);
            disk.write(Structure::Bitmap, superblock.layout.bitmap_block(0, false), &bytes, true).unwrap();
            let mut space = Space::new(&superblock);
            if let Ok(block) = space.allocate(&disk, &superblock) {
                space.free_block(block);
                let mut new = superblock.clone();
                new.generation += 1;
                space.write(&disk, &superblock, &mut new).unwrap();
                let freed = space.settle(&new);
                space.release(&freed);
            }
        }
    }
}
