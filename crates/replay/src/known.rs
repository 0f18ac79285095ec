//! The units that a trace has used, as bitmaps that exist where it touches them.

use nvmed_flash::UNIT_BYTES;
use std::collections::HashMap;

/// Units of a piece: 16 MiB of the trace's range, 512 bytes of memory.
const PIECE_UNITS: u64 = 4096;
/// Words of a piece.
const PIECE_WORDS: usize = PIECE_UNITS as usize / 64;
/// Pieces by offset in the trace, at most: 4 TiB if all of it is used, and about 140 MiB of memory.
const PIECES_MAX: usize = 1 << 18;

#[derive(Debug, Default)]
struct Bitmap(HashMap<u64, Box<[u64; PIECE_WORDS]>>);

impl Bitmap {
    /// Puts a unit in, and says whether it is new; `None` if it needs one more piece than `pieces`.
    fn insert(&mut self, unit: u64, pieces: usize) -> Option<bool> {
        let number = unit / PIECE_UNITS;
        if self.0.len() >= pieces && !self.0.contains_key(&number) {
            return None;
        }
        let words = self.0.entry(number).or_insert_with(|| Box::new([0; PIECE_WORDS]));
        let word = &mut words[(unit % PIECE_UNITS / 64) as usize];
        let is_new = *word & (1 << (unit % 64)) == 0;
        *word |= 1 << (unit % 64);
        Some(is_new)
    }
}

/// Units that were read or written already, by their offsets in the trace. Those for which there is no piece any more
/// are known by where they lie on the drive, whose own map is far larger than that.
#[derive(Debug)]
pub(crate) struct Known {
    in_trace: Bitmap,
    on_drive: Bitmap,
    /// Units of the drive, if it remembers where they are.
    drive_units: Option<u64>,
    pieces: usize,
}

impl Known {
    /// None yet. `drive_units` is how many the drive has a map of; without one it does not matter what was written.
    pub(crate) fn new(drive_units: Option<u64>) -> Self {
        Self { in_trace: Bitmap::default(), on_drive: Bitmap::default(), drive_units, pieces: PIECES_MAX }
    }

    /// Takes the bytes from `begin` up to `end`, and says whether any of their units is new.
    pub(crate) fn insert(&mut self, begin: u64, end: u64) -> bool {
        let units = begin / UNIT_BYTES..end.div_ceil(UNIT_BYTES);
        units.fold(false, |is_any, unit| is_any | self.unit(unit))
    }

    fn unit(&mut self, unit: u64) -> bool {
        if let Some(is_new) = self.in_trace.insert(unit, self.pieces) {
            return is_new;
        }
        let place = self.drive_units.map(|units| unit % units.max(1));
        place.and_then(|place| self.on_drive.insert(place, usize::MAX)).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_dice::Dice;
    use std::collections::HashSet;

    #[test]
    fn bitmaps_are_a_set() {
        let (mut dice, mut known, mut set) = (Dice::new(1), Known::new(Some(7)), HashSet::new());
        for _ in 0..5_000 {
            let begin = dice.roll(4) * (1 << 50) + dice.roll(64 << 20);
            let end = begin + 1 + dice.roll(300 << 10);
            let units = begin / UNIT_BYTES..end.div_ceil(UNIT_BYTES);
            let is_any = units.fold(false, |is_any, unit| set.insert(unit) | is_any);
            assert_eq!(known.insert(begin, end), is_any, "{begin} to {end}");
        }
    }

    #[test]
    fn beyond_the_bound_units_are_known_by_their_places_on_the_drive() {
        let piece = PIECE_UNITS * UNIT_BYTES;
        let mut known = Known { pieces: 2, ..Known::new(Some(2 * PIECE_UNITS)) };
        assert!(known.insert(0, 4096) && known.insert(piece, piece + 4096));
        assert!(known.insert(2 * piece, 2 * piece + 4096), "the first of them at this place");
        assert!(!known.insert(4 * piece, 4 * piece + 4096), "the same place");
        assert!(known.insert(8192, 12288), "there is a piece for it");
        for number in 0..1000 {
            known.insert(number * piece, number * piece + 4096);
        }
        assert_eq!((known.in_trace.0.len(), known.on_drive.0.len()), (2, 2));
        let mut without = Known { pieces: 0, ..Known::new(None) };
        assert!(!without.insert(0, 4096), "what was written does not matter");
        assert_eq!(without.on_drive.0.len(), 0);
    }
}
