//! Where requests began, in the order of their last touch: found by how much was touched since.
//!
//! Source: Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal
//! 9(2), 1970: the distance in the stack of a cache that evicts the least recently used.

use crate::fenwick::Fenwick;

/// Fewest slots.
const SLOTS_MIN: usize = 1024;
/// A slot whose start was touched again.
const NONE: usize = usize::MAX;

/// Starts, each with the units of its last request.
#[derive(Clone, Debug)]
pub(super) struct Recency {
    /// Units by slot, a slot for each touch.
    units: Fenwick,
    /// Which start was touched.
    starts: Vec<usize>,
    /// The slot of a start, and its units.
    slots: Vec<(usize, u64)>,
}

impl Recency {
    pub fn new() -> Self {
        Self { units: Fenwick::new(SLOTS_MIN), starts: Vec::new(), slots: Vec::new() }
    }

    /// So many units are touched at a start; a new one has the next number.
    pub fn touch(&mut self, start: usize, units: u64) {
        if let Some(&(slot, old)) = self.slots.get(start) {
            self.units.take_many(slot, old);
            self.starts[slot] = NONE;
        } else {
            self.slots.push((NONE, 0));
        }
        if self.starts.len() == self.units.slots() {
            self.renumber();
        }
        let slot = self.starts.len();
        self.starts.push(start);
        self.units.add(slot, units);
        self.slots[start] = (slot, units);
    }

    /// The start since whose last touch so many units were touched; there is none so old.
    pub fn at(&self, distance: u64) -> Option<usize> {
        let rank = self.units.total().checked_sub(distance.checked_add(1)?)?;
        Some(self.starts[self.units.find(rank)])
    }

    /// Units of all starts.
    pub fn units(&self) -> u64 {
        self.units.total()
    }

    /// Gives starts the first slots, in their order, and room for as many touches.
    fn renumber(&mut self) {
        self.starts.retain(|&start| start != NONE);
        self.units = Fenwick::new((2 * self.slots.len()).max(SLOTS_MIN));
        for (slot, &start) in self.starts.iter().enumerate() {
            self.slots[start].0 = slot;
            self.units.add(slot, self.slots[start].1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_dice::Dice;

    #[test]
    fn a_start_is_found_by_what_was_touched_since() {
        let (mut dice, mut recency, mut order) = (Dice::new(3), Recency::new(), Vec::<(usize, u64)>::new());
        let mut known = 0;
        for _ in 0..5_000 {
            let start = if dice.chance(10) { known } else { dice.index(known.max(1)) };
            known = known.max(start + 1);
            let units = 1 + dice.roll(9);
            order.retain(|&(other, _)| other != start);
            order.push((start, units));
            recency.touch(start, units);
            let distance = dice.roll(200);
            let mut since = 0;
            let found = order.iter().rev().find(|&&(_, units)| {
                since += units;
                since > distance
            });
            assert_eq!(recency.at(distance), found.map(|&(start, _)| start));
        }
        assert_eq!(recency.at(u64::MAX), None);
    }
}
