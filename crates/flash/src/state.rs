//! What a drive is like between two lives: its blocks, its map, and what has changed since they were written down.

use crate::blocks::{FreeBlocks, State};
use crate::buffer::Stage;
use crate::fifo::NONE;
use crate::geometry::Place;
use crate::layer::{Layer, SLOT, UNMAPPED};
use crate::profile::Wear;
use crate::record::Record;
use crate::tables::Words;

/// Words of a block, as it is written down: erases, then rows that are programmed (24 bits) and state (8 bits).
pub const BLOCK_WORDS: usize = 2;

/// States of blocks that are written down. An open one is [`OPEN`] and its stream.
const GOOD: u32 = 0;
const BAD: u32 = 1;
const OPEN: u32 = 2;

/// More erases than any block survives; counting on from fewer does not overflow.
const ERASES_END: u32 = 1 << 31;

/// What was written down describes no state of this drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// There are more or fewer words than the drive has blocks, or units.
    #[error("the state has {found} words of {what}, and the drive {wanted}")]
    Size {
        /// Of what.
        what: &'static str,
        /// As found.
        found: usize,
        /// As the drive has them.
        wanted: usize,
    },
    /// A number names no block, row or unit of the drive.
    #[error("the state names {what} {number}, which the drive does not have")]
    Number {
        /// What it should name.
        what: &'static str,
        /// As found.
        number: u32,
    },
    /// A record is none.
    #[error("the state has {words} words behind its last record")]
    Record {
        /// Words that say nothing.
        words: usize,
    },
    /// A logical unit is where nothing was programmed.
    #[error("the state has logical unit {unit} in block {block}, where nothing was programmed")]
    Nowhere {
        /// The unit.
        unit: u32,
        /// The block.
        block: u32,
    },
    /// Two logical units are at one place.
    #[error("the state has logical units {first} and {second} at one place")]
    Twice {
        /// The one.
        first: u32,
        /// The other.
        second: u32,
    },
}

/// How worn a drive is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriveWear {
    /// Erases of the least worn good block.
    pub erases_min: u32,
    /// Erases of the most worn good block.
    pub erases_max: u32,
    /// Erases of all blocks.
    pub erases: u64,
    /// Blocks that are bad, and all.
    pub bad_blocks: u32,
    /// All blocks.
    pub blocks: u32,
    /// Percent of what blocks survive that they were erased; 0 if they survive any number, and more than 100 is
    /// possible.
    pub used_percent: u32,
    /// Percent of the spare blocks that are left.
    pub spare_percent: u32,
}

impl<W: Words> Layer<W> {
    /// How worn the blocks are.
    pub fn wear(&self) -> DriveWear {
        let good = || self.blocks.iter().filter(|block| block.state != State::Bad);
        let erases = self.blocks.iter().map(|block| u64::from(block.erases)).sum();
        let survived: u64 = (0..self.blocks.len() as u32)
            .map(|block| {
                u64::from(self.geometry.shape_of_group(self.geometry.group_of(block)).kind.endurance)
            })
            .sum();
        let logical = self.map.len() as u64;
        let left = self.usable.saturating_sub(logical);
        let at_first = self.usable_at_first.saturating_sub(logical).max(1);
        DriveWear {
            erases_min: good().map(|block| block.erases).min().unwrap_or(0),
            erases_max: good().map(|block| block.erases).max().unwrap_or(0),
            erases,
            bad_blocks: self.blocks.iter().filter(|block| block.state == State::Bad).count() as u32,
            blocks: self.blocks.len() as u32,
            used_percent: (erases * 100).checked_div(survived).unwrap_or(0) as u32,
            spare_percent: (left * 100 / at_first).min(100) as u32,
        }
    }

    /// Logical units that are in flash or in the buffer.
    pub fn mapped_units(&self) -> u64 {
        let in_flash: u64 = self.blocks.iter().map(|block| u64::from(block.valid)).sum();
        // A unit that is in flash, too, is counted there.
        let slots = self.buffer.slots.iter().enumerate();
        let only_there = slots.filter(|(number, slot)| {
            let is_newest = || self.map[slot.unit as usize] == *number as u32 | SLOT;
            slot.stage != Stage::Free && slot.old == UNMAPPED && is_newest()
        });
        in_flash + only_there.count() as u64
    }

    /// The blocks, [`BLOCK_WORDS`] each.
    pub fn block_words(&self) -> Vec<u32> {
        let mut words: Vec<u32> = Vec::with_capacity(self.blocks.len() * BLOCK_WORDS);
        for block in &self.blocks {
            let state = if block.state == State::Bad { BAD } else { GOOD };
            words.extend([block.erases, state << 24 | block.next_row]);
        }
        for group in &self.groups {
            for (stream, block) in group.open.iter().enumerate() {
                if let Some(block) = block {
                    words[*block as usize * BLOCK_WORDS + 1] |= (OPEN + stream as u32) << 24;
                }
            }
        }
        words
    }

    /// Map entries from `first` on, as they are in flash: what the buffer has is not.
    pub fn map_words(&self, first: usize, into: &mut [u32]) {
        for (word, &entry) in into.iter_mut().zip(&self.map[first..]) {
            *word = match entry & SLOT {
                0 => entry,
                _ => self.buffer.slots[(entry & !SLOT) as usize].old,
            };
        }
    }

    /// Takes over what was written down: map, blocks, and what was recorded since. `torn`: programs may have been under
    /// way, whose rows are not used again.
    pub fn restore(
        &mut self,
        map: &[u32],
        blocks: &[u32],
        records: &[u32],
        torn: bool,
    ) -> Result<(), StateError> {
        check_size("map", map.len(), self.map.len())?;
        check_size("blocks", blocks.len(), self.blocks.len() * BLOCK_WORDS)?;
        self.map.copy_from_slice(map);
        let mut states = Vec::with_capacity(self.blocks.len());
        for (number, words) in blocks.chunks_exact(BLOCK_WORDS).enumerate() {
            let rows = self.geometry.shape_of_group(self.geometry.group_of(number as u32)).rows;
            let block = &mut self.blocks[number];
            (block.erases, block.next_row) = (words[0], words[1] & 0xff_ffff);
            check_number("erase", block.erases, ERASES_END)?;
            check_number("row", block.next_row, rows + 1)?;
            let state = words[1] >> 24;
            if state >= OPEN && !self.streams.has((state - OPEN) as usize) {
                return Err(StateError::Number { what: "state", number: state });
            }
            states.push(state);
        }
        let mut words = records;
        while let Some(record) = Record::take(&mut words) {
            self.replay(record, &mut states)?;
        }
        if !words.is_empty() {
            return Err(StateError::Record { words: words.len() });
        }
        self.find_owners(&states)?;
        self.sort_blocks(&states, torn);
        Ok(())
    }

    fn replay(&mut self, record: Record<'_>, states: &mut [u32]) -> Result<(), StateError> {
        match record {
            Record::Program { first, units } => {
                check_number("physical unit", first, self.owners.len() as u32)?;
                let Place { kind, block, at, .. } = self.geometry.place(first);
                let row_units = self.geometry.shapes[kind].row_units;
                check_number("program of so many units", units.len() as u32, row_units + 1)?;
                let entry = &mut self.blocks[block as usize];
                entry.next_row = entry.next_row.max(at / row_units + 1);
                for (&unit, to) in units.iter().zip(first..) {
                    if unit != NONE {
                        check_number("logical unit", unit, self.map.len() as u32)?;
                        self.map[unit as usize] = to;
                    }
                }
            }
            Record::Open { block, stream } => {
                check_number("block", block, self.blocks.len() as u32)?;
                if !self.streams.has(stream) {
                    return Err(StateError::Number { what: "stream", number: stream as u32 });
                }
                states[block as usize] = OPEN + stream as u32;
            }
            Record::Erase { block, retired } => {
                check_number("block", block, self.blocks.len() as u32)?;
                let entry = &mut self.blocks[block as usize];
                entry.erases = entry.erases.saturating_add(1);
                entry.next_row = 0;
                states[block as usize] = if retired { BAD } else { GOOD };
            }
            Record::Deallocate { first, count } => {
                check_number("logical unit", first, self.map.len() as u32)?;
                let end = (first as usize).saturating_add(count as usize).min(self.map.len());
                self.map[first as usize..end].fill(UNMAPPED);
            }
        }
        Ok(())
    }

    /// Makes the inverse of the map, and counts valid units.
    fn find_owners(&mut self, states: &[u32]) -> Result<(), StateError> {
        for (unit, &to) in self.map.iter().enumerate() {
            if to == UNMAPPED {
                continue;
            }
            check_number("physical unit", to, self.owners.len() as u32)?;
            let before = std::mem::replace(&mut self.owners[to as usize], unit as u32);
            if before != NONE {
                return Err(StateError::Twice { first: before, second: unit as u32 });
            }
        }
        // By block, so that nothing is divided for each unit.
        for (number, block) in (0_u32..).zip(&mut self.blocks) {
            let shape = self.geometry.shape_of_group(self.geometry.group_of(number));
            let first = self.geometry.first_unit(number) as usize;
            let owners = &self.owners[first..first + shape.block_units as usize];
            let rows = if states[number as usize] == BAD { 0 } else { block.next_row };
            let (programmed, behind) = owners.split_at((rows * shape.row_units) as usize);
            if let Some(&unit) = behind.iter().find(|&&owner| owner != NONE) {
                return Err(StateError::Nowhere { unit, block: number });
            }
            block.valid = programmed.iter().filter(|&&owner| owner != NONE).count() as u32;
        }
        Ok(())
    }

    /// Puts each block where it belongs: free, open again, or closed.
    fn sort_blocks(&mut self, states: &[u32], torn: bool) {
        let mut usable = 0;
        for number in 0..self.groups.len() {
            let rows = self.geometry.shape_of_group(number).rows;
            let group = &mut self.groups[number];
            group.free = FreeBlocks::default();
            let mut good = 0;
            for block in self.geometry.blocks_of(number) {
                let entry = &mut self.blocks[block as usize];
                let stream = states[block as usize].checked_sub(OPEN).map(|stream| stream as usize);
                if torn && stream.is_some() {
                    // Programs that had begun may have spoilt the rows after the last one that is known.
                    entry.next_row += self.registers;
                }
                good += u64::from(states[block as usize] != BAD);
                match stream {
                    _ if states[block as usize] == BAD => entry.state = State::Bad,
                    Some(stream) if entry.next_row < rows && group.open[stream].is_none() => {
                        entry.state = State::Open;
                        group.open[stream] = Some(block);
                    }
                    None if entry.next_row == 0 && entry.valid == 0 => {
                        entry.state = State::Free;
                        group.free.put(key(self.profile.wear, entry.erases), block);
                    }
                    _ => {
                        entry.next_row = rows;
                        entry.state = State::Closed;
                        group.closed.insert(&mut self.blocks, block);
                    }
                }
            }
            usable += self.streams.held_and_usable(self.geometry.shape_of_group(number), good).1;
            self.wake(number);
        }
        self.usable = usable;
    }
}

/// What orders a free block of so many erases.
fn key(wear: Wear, erases: u32) -> u64 {
    if wear == Wear::Off { 0 } else { erases.into() }
}

fn check_size(what: &'static str, found: usize, wanted: usize) -> Result<(), StateError> {
    if found == wanted { Ok(()) } else { Err(StateError::Size { what, found, wanted }) }
}

fn check_number(what: &'static str, number: u32, end: u32) -> Result<(), StateError> {
    if number < end { Ok(()) } else { Err(StateError::Number { what, number }) }
}
