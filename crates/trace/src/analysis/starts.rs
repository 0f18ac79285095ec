//! Which offsets were the beginning of a request before.

use super::sketch::{ERROR, Sketch};
use super::units::{Leaves, Units};
use nvmed_units::BLOCK_BYTES;
use std::collections::HashSet;

/// Most offsets that have no bit and are known exactly, of all devices together: some 80 MiB.
const EXACT_MAX: u32 = 1 << 22;
/// Most leaves of bits, of all devices together: two devices of 16 TiB that are touched all over, 1 GiB.
const LEAVES_MAX: u32 = (1 << 21) + (1 << 16);

/// What the starts of all devices may still take.
#[derive(Debug)]
pub(super) struct Room {
    leaves: Leaves,
    exact: u32,
}

impl Default for Room {
    fn default() -> Self {
        Self { leaves: Leaves(LEAVES_MAX), exact: EXACT_MAX }
    }
}

#[cfg(test)]
impl Room {
    /// Room for so many offsets without a bit.
    pub fn of(exact: u32) -> Self {
        Self { exact, ..Self::default() }
    }
}

/// The offsets of one device. Those that are multiples of 4 KiB have a bit; the others are in a set while there is
/// room, and of what is in neither a sketch counts how many are distinct.
#[derive(Debug, Default)]
pub(super) struct Starts {
    bits: Units<1>,
    others: HashSet<u64>,
    sketch: Option<Sketch>,
}

impl Starts {
    /// Whether an offset was here before, after which it was; `None` when only the sketch knows it.
    #[inline]
    pub fn seen(&mut self, offset: u64, room: &mut Room) -> Option<bool> {
        if offset.is_multiple_of(BLOCK_BYTES as u64)
            && let Some(new) = self.bits.insert(offset / BLOCK_BYTES as u64, &mut room.leaves)
        {
            return Some(!new);
        }
        self.seen_elsewhere(offset, room)
    }

    /// The same of an offset without a bit.
    fn seen_elsewhere(&mut self, offset: u64, room: &mut Room) -> Option<bool> {
        if self.others.contains(&offset) {
            return Some(true);
        }
        // Room never grows again, so that no offset is in the set and in the sketch.
        if room.exact > 0 {
            room.exact -= 1;
            self.others.insert(offset);
            return Some(false);
        }
        self.sketch.get_or_insert_default().add(offset);
        None
    }

    /// How many distinct offsets only the sketch knows, and the standard error of that number.
    pub(super) fn in_sketch(&self) -> (f64, f64) {
        let count = self.sketch.as_ref().map_or(0.0, Sketch::count);
        (count, count * ERROR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_dice::Dice;

    #[test]
    fn offsets_are_known_exactly_while_there_is_room() {
        let (mut starts, mut room) = (Starts::default(), Room::of(2));
        let offsets = [0, 512, 512, 0, 4096, 1536, 512, 1536, 1 << 44, 1 << 44, 1536, 2560];
        let seen = offsets.map(|offset| starts.seen(offset, &mut room));
        // 512 and 1536 have taken the room for two; 2^44 is a multiple of 4 KiB, but beyond 16 TiB.
        let (old, new) = (Some(true), Some(false));
        assert_eq!(seen, [new, new, old, old, new, new, old, old, None, None, old, None]);
        let (count, error) = starts.in_sketch();
        assert!((count - 2.0).abs() < 0.01 && error < 0.02, "{count} {error}");
    }

    #[test]
    fn a_sketch_goes_on_within_a_hundredth() {
        let (mut starts, mut room, mut dice) = (Starts::default(), Room::of(1_000), Dice::new(3));
        let (mut distinct, mut exact) = (HashSet::new(), 0);
        for _ in 0..200_000 {
            let offset = dice.roll(100_000) * 4096 + 512;
            distinct.insert(offset);
            exact += u64::from(starts.seen(offset, &mut room) == Some(false));
        }
        let count = exact as f64 + starts.in_sketch().0;
        assert!((count / distinct.len() as f64 - 1.0).abs() < 0.03, "{count} of {}", distinct.len());
    }
}
