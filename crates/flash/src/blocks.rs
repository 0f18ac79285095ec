//! Blocks: what state each is in, and which have how many valid units.

use crate::fifo::NONE;
use std::collections::BTreeSet;

/// The life of a block goes round; a bad one has left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// Erased.
    #[default]
    Free,
    /// Programmed row by row.
    Open,
    /// All rows are programmed.
    Closed,
    /// Its valid units are being moved.
    Victim,
    /// All of them were read; it is erased when the last one is elsewhere.
    Drained,
    /// Its erase was begun.
    Erasing,
    /// Never used again.
    Bad,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    pub state: State,
    pub erases: u32,
    pub valid: u32,
    /// Reads that have not left the array: no erase before.
    pub readers: u32,
    /// Programs that have not ended.
    pub programs: u32,
    pub next_row: u32,
    /// Wear is not looked at after its next erase.
    pub is_calm: bool,
    /// How many programs the drive had made when this block was closed.
    pub closed_at: u64,
    /// Neighbours in the list of closed blocks with as many valid units.
    before: u32,
    after: u32,
}

/// Closed blocks of a group by their valid units. Of several with as many, the one that changed last is first.
#[derive(Clone, Debug)]
pub(crate) struct ByValid {
    heads: Box<[u32]>,
    /// No list below is occupied.
    least: usize,
}

impl ByValid {
    pub fn new(block_units: u32) -> Self {
        Self { heads: vec![NONE; block_units as usize + 1].into(), least: block_units as usize }
    }

    #[inline]
    pub fn insert(&mut self, blocks: &mut [Block], block: u32) {
        let valid = blocks[block as usize].valid as usize;
        let after = std::mem::replace(&mut self.heads[valid], block);
        (blocks[block as usize].before, blocks[block as usize].after) = (NONE, after);
        if after != NONE {
            blocks[after as usize].before = block;
        }
        self.least = self.least.min(valid);
    }

    #[inline]
    pub fn remove(&mut self, blocks: &mut [Block], block: u32) {
        let Block { before, after, valid, .. } = blocks[block as usize];
        match before {
            NONE => self.heads[valid as usize] = after,
            before => blocks[before as usize].after = after,
        }
        if after != NONE {
            blocks[after as usize].before = before;
        }
    }

    /// The first block with the fewest valid units.
    pub fn first(&mut self) -> Option<u32> {
        let found = self.heads[self.least..].iter().position(|&head| head != NONE)?;
        self.least += found;
        Some(self.heads[self.least])
    }
}

#[cfg(test)]
impl ByValid {
    /// The blocks of all lists, with the number of valid units that their list stands for.
    pub fn listed(&self, blocks: &[Block]) -> Vec<(u32, u32)> {
        let mut listed = Vec::new();
        for (valid, &head) in self.heads.iter().enumerate() {
            let (mut before, mut block) = (NONE, head);
            while block != NONE {
                assert!(valid >= self.least && blocks[block as usize].before == before, "a list is torn");
                listed.push((block, valid as u32));
                (before, block) = (block, blocks[block as usize].after);
            }
        }
        listed
    }
}

/// Erased blocks of a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeBlocks(BTreeSet<(u64, u32)>);

impl FreeBlocks {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Puts a block in; blocks are in the order of their keys, then of their numbers.
    pub fn put(&mut self, key: u64, block: u32) {
        self.0.insert((key, block));
    }

    #[cfg(test)]
    pub fn numbers(&self) -> Vec<u32> {
        self.0.iter().map(|&(_, block)| block).collect()
    }

    /// Takes the first one.
    pub fn take(&mut self) -> Option<u32> {
        self.0.pop_first().map(|(_, block)| block)
    }

    /// Takes the last one.
    pub(crate) fn take_last(&mut self) -> Option<u32> {
        self.0.pop_last().map(|(_, block)| block)
    }

    /// The last one.
    pub fn last(&self) -> Option<u32> {
        self.0.last().map(|&(_, block)| block)
    }
}
