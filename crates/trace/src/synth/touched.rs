//! Which units of 4 KiB are touched, in bitmaps that exist where they are.

use nvmed_units::BLOCK_BYTES;
use std::collections::HashMap;
use std::ops::Range;

/// Units of a leaf: 2 MiB of the device.
const LEAF_UNITS: u64 = 512;

/// A set of units.
#[derive(Clone, Debug, Default)]
pub(super) struct Touched {
    leaves: HashMap<u64, [u64; LEAF_UNITS as usize / 64]>,
    count: u64,
}

impl Touched {
    /// The units that these bytes are in.
    pub fn units(offset: u64, bytes: u64) -> Range<u64> {
        offset / BLOCK_BYTES as u64..(offset + bytes).div_ceil(BLOCK_BYTES as u64)
    }

    /// Units are touched.
    pub fn touch(&mut self, units: Range<u64>) {
        let mut unit = units.start;
        while unit < units.end {
            let until = units.end.min((unit / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (until - unit))) << (unit % 64);
            let word =
                &mut self.leaves.entry(unit / LEAF_UNITS).or_default()[(unit % LEAF_UNITS / 64) as usize];
            self.count += u64::from((mask & !*word).count_ones());
            *word |= mask;
            unit = until;
        }
    }

    /// Whether a unit is touched.
    pub fn has(&self, unit: u64) -> bool {
        let leaf = self.leaves.get(&(unit / LEAF_UNITS));
        leaf.is_some_and(|leaf| leaf[(unit % LEAF_UNITS / 64) as usize] >> (unit % 64) & 1 == 1)
    }

    /// How many are touched.
    pub fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_dice::Dice;
    use std::collections::HashSet;

    #[test]
    fn bitmaps_are_a_set() {
        let (mut dice, mut touched, mut set) = (Dice::new(2), Touched::default(), HashSet::new());
        for _ in 0..2_000 {
            let units = Touched::units(dice.roll(9_000) * 2048, 1 + dice.roll(900_000));
            set.extend(units.clone());
            touched.touch(units.clone());
            assert!(touched.has(units.start) && touched.count() == set.len() as u64);
            let unit = dice.roll(6_000);
            assert_eq!(touched.has(unit), set.contains(&unit));
        }
    }
}
