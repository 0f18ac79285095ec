//! Sets of the units of 4 KiB of a device, as bitmaps that exist where they are touched.

use nvmed_units::BLOCK_BYTES;

/// Units of a leaf: 16 MiB of the device, 512 bytes of memory a set.
const LEAF_UNITS: u64 = 4096;
/// Words of a set in a leaf.
const LEAF_WORDS: usize = LEAF_UNITS as usize / 64;
/// Leaves of a branch.
const BRANCH_LEAVES: u64 = 1024;
/// A branch takes the memory of so many leaves.
const BRANCH_WEIGHT: u32 = 16;
/// Units that have a bit: of the first 16 TiB. What is behind has none.
const UNITS_MAX: u64 = (16 << 40) / BLOCK_BYTES as u64;

/// `SETS` sets of units in 16 MiB of a device.
#[derive(Debug)]
struct Leaf<const SETS: usize>([Words; SETS]);

/// One set in a leaf.
#[derive(Clone, Copy, Debug)]
struct Words {
    bits: [u64; LEAF_WORDS],
    count: u32,
}

/// What a set got in a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gain {
    /// How many units are new in the set.
    pub new: u64,
    /// Whether the set had none in this leaf.
    pub first: bool,
}

/// A table of the leaves of 16 GiB.
type Branch<const SETS: usize> = [Option<Box<Leaf<SETS>>>; BRANCH_LEAVES as usize];

/// `SETS` sets of units, each of which holds those after it. The sets share their leaves: a unit that is put into each
/// is looked up once.
#[derive(Debug, Default)]
pub(super) struct Units<const SETS: usize> {
    branches: Vec<Option<Box<Branch<SETS>>>>,
}

/// How many leaves may still be made: those of all devices of an analysis come out of one.
#[derive(Debug)]
pub(super) struct Leaves(pub u32);

impl<const SETS: usize> Units<SETS> {
    /// The leaf of this number, which is made when there may be one more; beyond the range there is none.
    #[inline]
    fn leaf(&mut self, number: u64, leaves: &mut Leaves) -> Option<&mut Leaf<SETS>> {
        let (branch, leaf) = ((number / BRANCH_LEAVES) as usize, (number % BRANCH_LEAVES) as usize);
        if branch >= self.branches.len() {
            if number >= UNITS_MAX / LEAF_UNITS {
                return None;
            }
            self.branches.resize_with(branch + 1, || None);
        }
        if self.branches[branch].is_none() {
            leaves.0 = leaves.0.checked_sub(BRANCH_WEIGHT)?;
            self.branches[branch] = Some(Box::new([const { None }; BRANCH_LEAVES as usize]));
        }
        let slot = &mut self.branches[branch].as_deref_mut()?[leaf];
        if slot.is_none() {
            leaves.0 = leaves.0.checked_sub(1)?;
            *slot = Some(Box::new(Leaf([Words::EMPTY; SETS])));
        }
        slot.as_deref_mut()
    }

    /// Puts a unit into the first set, and says whether it is new there; `None` when it has no bit.
    #[inline]
    pub fn insert(&mut self, unit: u64, leaves: &mut Leaves) -> Option<bool> {
        let leaf = self.leaf(unit / LEAF_UNITS, leaves)?;
        let word = &mut leaf.0[0].bits[(unit % LEAF_UNITS / 64) as usize];
        let bit = 1 << (unit % 64);
        let new = *word & bit == 0;
        *word |= bit;
        Some(new)
    }

    /// Puts the units from `first` up to `end` into every set. Each leaf where some set got any is told to `gained`,
    /// with what each set got there. Returns how many units have no bit.
    #[inline]
    pub(super) fn insert_all(
        &mut self,
        (first, end): (u64, u64),
        leaves: &mut Leaves,
        mut gained: impl FnMut(u64, [Gain; SETS]),
    ) -> u64 {
        let (mut at, mut lost) = (first, 0);
        while at < end {
            let number = at / LEAF_UNITS;
            let until = end.min((number + 1) * LEAF_UNITS);
            match self.leaf(number, leaves) {
                Some(leaf) => {
                    let range = (at % LEAF_UNITS, at % LEAF_UNITS + (until - at));
                    let gains = leaf.fill(range);
                    // What is new in any set is new in the last one.
                    if gains[SETS - 1].new > 0 {
                        gained(number, gains);
                    }
                }
                None => lost += until - at,
            }
            at = until;
        }
        lost
    }

    /// Empties a set within the leaf of this number.
    pub fn clear(&mut self, set: usize, number: u64) {
        let branch = self.branches.get_mut((number / BRANCH_LEAVES) as usize).and_then(Option::as_mut);
        if let Some(leaf) = branch.and_then(|branch| branch[(number % BRANCH_LEAVES) as usize].as_mut()) {
            leaf.0[set] = Words::EMPTY;
        }
    }
}

impl<const SETS: usize> Leaf<SETS> {
    /// Sets the bits from `first` up to `end` in every set. What is in one is in those before it, so that a set that
    /// gets nothing new ends it.
    #[inline]
    fn fill(&mut self, range: (u64, u64)) -> [Gain; SETS] {
        let mut gains = [Gain::default(); SETS];
        for (words, gain) in self.0.iter_mut().zip(&mut gains).rev() {
            *gain = words.fill(range);
            if gain.new == 0 {
                break;
            }
        }
        gains
    }
}

impl Words {
    const EMPTY: Self = Self { bits: [0; LEAF_WORDS], count: 0 };

    /// Sets the bits from `first` up to `end`.
    #[inline]
    fn fill(&mut self, (first, end): (u64, u64)) -> Gain {
        let (mut at, mut new) = (first, 0);
        while at < end {
            let until = end.min((at / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (until - at))) << (at % 64);
            let word = &mut self.bits[(at / 64) as usize];
            // Mostly all are there, or none, and to count bits takes longer than the rest.
            let fresh = mask & !*word;
            if fresh != 0 {
                new += if fresh == mask { (until - at) as u32 } else { fresh.count_ones() };
                *word |= mask;
            }
            at = until;
        }
        let first = self.count == 0 && new > 0;
        self.count += new;
        Gain { new: u64::from(new), first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_dice::Dice;
    use std::collections::HashSet;

    #[test]
    fn a_bitmap_is_a_set() {
        let (mut dice, mut leaves) = (Dice::new(1), Leaves(1 << 18));
        let (mut one, mut starts) = (Units::<1>::default(), HashSet::new());
        let (mut both, mut sets) = (Units::<2>::default(), [HashSet::new(), HashSet::new()]);
        for round in 0..3_000 {
            let first = dice.roll(4) * 1_000_000 + dice.roll(9_000);
            let end = first + 1 + dice.roll(300);
            assert_eq!(one.insert(first, &mut leaves), Some(starts.insert(first)));
            let mut new = [0; 2];
            let lost = both.insert_all((first, end), &mut leaves, |_, here| {
                new = [new[0] + here[0].new, new[1] + here[1].new];
            });
            let expected =
                sets.each_mut().map(|set| (first..end).filter(|&unit| set.insert(unit)).count() as u64);
            assert_eq!((lost, new), (0, expected));
            if round % 500 == 0 {
                let leaf = first / LEAF_UNITS;
                both.clear(1, leaf);
                sets[1].retain(|&unit| unit / LEAF_UNITS != leaf);
            }
        }
    }

    #[test]
    fn what_has_no_bit_is_said() {
        let (mut units, mut leaves) = (Units::<1>::default(), Leaves(34));
        assert_eq!(units.insert(UNITS_MAX, &mut leaves), None);
        assert_eq!(units.insert(u64::MAX, &mut leaves), None);
        assert_eq!(units.insert(UNITS_MAX - 1, &mut leaves), Some(true));
        assert_eq!(units.insert_all((LEAF_UNITS - 1, 2 * LEAF_UNITS), &mut leaves, |_, _| {}), LEAF_UNITS);
        assert_eq!((units.insert(LEAF_UNITS - 1, &mut leaves), leaves.0), (Some(false), 0));
    }
}
