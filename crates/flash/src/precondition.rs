//! A used drive, made without having been used.
//!
//! Under uniform random writes a unit of the map is overwritten with the same chance by each write, so what is valid in
//! a block falls off exponentially with the writes since it was filled; and blocks are filled at a constant rate, so
//! their ages are evenly spread until they are collected. (The mean field of Desnoyers, "Analytic Models of SSD Write
//! Performance", ACM TOS 10(2), 2014, of which the fewest-valid-first and oldest-first victims are the same for large
//! blocks.) With n blocks of b units and U logical ones, block i of n, by age, has n b ÷ a × (e^(−a i ÷ n) − e^(−a (i +
//! 1) ÷ n)) valid units, where (1 − e^−a) ÷ a = U ÷ n b.

use crate::blocks::{FreeBlocks, State};
use crate::fifo::NONE;
use crate::layer::{Layer, UNMAPPED};
use crate::room::mix;
use crate::tables::Words;

/// How often each block was erased before.
const ERASES: u32 = 2;

impl<W: Words> Layer<W> {
    /// Puts each logical unit somewhere, as after long random writing.
    pub fn precondition(&mut self) {
        let logical = self.map.len() as u64;
        let kept = self.kept_free(logical);
        let used = self.used_units(kept);
        let age = age_of_oldest(logical as f64 / used as f64);
        self.map.fill(UNMAPPED);
        self.owners.fill(NONE);
        let mut order = Order::new(logical, self.profile.seed);
        let (mut before, mut placed) = (0, 0);
        for number in 0..self.groups.len() {
            let blocks = self.blocks_in_use(number, kept);
            before += blocks.len() as u64 * u64::from(self.geometry.shape_of_group(number).block_units);
            // The group's share of the map, so that nothing is left over in the end.
            let share = (u128::from(logical) * u128::from(before) / u128::from(used)) as u64 - placed;
            placed += share;
            self.fill_group(number, &blocks, (share, age), &mut order);
        }
        self.clock = self.geometry.blocks() as u64;
    }

    /// Free blocks of a group: those that collection keeps free, and one that would be open; fewer, down to the
    /// reserve, where the rest has no room for the map.
    fn kept_free(&self, logical: u64) -> usize {
        let most = self.profile.gc_blocks as usize + 1;
        let least = self.streams.reserve();
        (least..=most).rev().find(|&kept| self.used_units(kept) > logical).unwrap_or(least)
    }

    /// The good blocks of a group but so many.
    fn blocks_in_use(&self, number: usize, kept: usize) -> Vec<u32> {
        let is_good = |block: &u32| self.blocks[*block as usize].state != State::Bad;
        let mut blocks: Vec<u32> = self.geometry.blocks_of(number).filter(is_good).collect();
        blocks.truncate(blocks.len().saturating_sub(kept));
        blocks
    }

    fn used_units(&self, kept: usize) -> u64 {
        let units = |number| {
            let shape = self.geometry.shape_of_group(number);
            self.blocks_in_use(number, kept).len() as u64 * u64::from(shape.block_units)
        };
        (0..self.groups.len()).map(units).sum()
    }

    /// Fills a group's blocks, the youngest first, with `share` units in all.
    fn fill_group(&mut self, number: usize, blocks: &[u32], (share, age): (u64, f64), order: &mut Order) {
        let shape = self.geometry.shape_of_group(number);
        let (rows, block_units) = (shape.rows, shape.block_units);
        let mut free = FreeBlocks::default();
        let end = blocks.last().map_or(0, |last| last + 1);
        for block in self.geometry.blocks_of(number).filter(|&block| block >= end) {
            let entry = &mut self.blocks[block as usize];
            if entry.state != State::Bad {
                entry.erases = ERASES;
                free.put(ERASES.into(), block);
            }
        }
        self.groups[number].free = free;
        let until = |at: usize| {
            let part = (1.0 - (-age * at as f64 / blocks.len() as f64).exp()) / (1.0 - (-age).exp());
            (share as f64 * part).round() as u64
        };
        let mut left_over = 0;
        for (at, &block) in blocks.iter().enumerate() {
            let wanted = until(at + 1) - until(at) + left_over;
            let valid = wanted.min(block_units.into());
            left_over = wanted - valid;
            self.fill_block(block, valid as u32, block_units, order);
            let entry = &mut self.blocks[block as usize];
            (entry.erases, entry.next_row, entry.state) = (ERASES, rows, State::Closed);
            entry.closed_at = (blocks.len() - at) as u64;
            self.groups[number].closed.insert(&mut self.blocks, block);
        }
    }

    /// Makes `valid` units of a block valid, spread by chance.
    fn fill_block(&mut self, block: u32, valid: u32, block_units: u32, order: &mut Order) {
        let first = self.geometry.first_unit(block);
        let mut wanted = u64::from(valid);
        for at in 0..block_units {
            let left = u64::from(block_units - at);
            if order.chance() % left < wanted {
                wanted -= 1;
                let unit = order.next();
                self.map[unit as usize] = first + at;
                self.owners[(first + at) as usize] = unit;
            }
        }
        self.blocks[block as usize].valid = valid;
    }
}

/// The a of (1 − e^−a) ÷ a = part, by bisection: the left side falls from 1.
fn age_of_oldest(part: f64) -> f64 {
    let (mut low, mut high) = (1e-9, 1e3);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if (1.0 - f64::exp(-middle)) / middle > part { low = middle } else { high = middle }
    }
    low
}

/// All numbers below a count, once each, far from one another.
struct Order {
    count: u64,
    step: u64,
    next: u64,
    rolls: u64,
}

impl Order {
    fn new(count: u64, seed: u64) -> Self {
        // Near the golden section, where multiples spread best, and without a common divisor.
        let mut step = (count as f64 * 0.618_033_988_749) as u64 | 1;
        while gcd(step, count) != 1 {
            step += 2;
        }
        Self { count, step: step % count.max(1), next: mix(seed) % count.max(1), rolls: mix(seed ^ 1) }
    }

    fn next(&mut self) -> u32 {
        let number = self.next;
        self.next = (self.next + self.step) % self.count;
        number as u32
    }

    fn chance(&mut self) -> u64 {
        self.rolls = mix(self.rolls);
        self.rolls
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
