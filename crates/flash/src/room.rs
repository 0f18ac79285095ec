//! What a drive's blocks have room for.

use crate::geometry::{Geometry, Shape};
use crate::layer::{COLD, MAP, URGENT};
use crate::profile::{ArrayProfile, TranslationProfile, Wear};

/// What is programmed into blocks of its own: what the host writes, what is moved, pages of the map, what is moved
/// since it is cold, and what urgent commands write.
pub(crate) const STREAMS: usize = 5;

/// Which streams a drive has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    has_map: bool,
    has_cold: bool,
    has_urgent: bool,
}

/// What a drive's blocks have room for, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Room {
    /// Units of all blocks.
    pub raw_units: u64,
    /// Units of the blocks that are not bad from the start, without those that each group keeps free or open. What they
    /// are beyond the capacity is over-provisioning.
    pub held_units: u64,
    /// Units of which a host may see as many, at most: of those that are held, so many may be invalid without a block
    /// that has a whole program of them.
    pub usable_units: u64,
}

impl ArrayProfile {
    /// What the blocks have room for; in place, all are usable.
    #[must_use]
    pub fn room(&self) -> Room {
        let raw_units = u64::from(self.planes_total()) * self.plane_units();
        let Some(translation) = &self.translation else {
            return Room { raw_units, held_units: raw_units, usable_units: raw_units };
        };
        let geometry = Geometry::new(self);
        let streams = Streams::of(self, translation);
        let mut room = Room { raw_units, ..Room::default() };
        for group in 0..geometry.groups() {
            let good = geometry.blocks_of(group).filter(|&block| !translation.is_bad(block)).count() as u64;
            let (held, usable) = streams.held_and_usable(geometry.shape_of_group(group), good);
            (room.held_units, room.usable_units) = (room.held_units + held, room.usable_units + usable);
        }
        // Of `entries` units and one more, the one is for their map page.
        let without_map = |units: u64| match translation.map_cache {
            Some(cache) => {
                (u128::from(units) * u128::from(cache.entries()) / u128::from(cache.entries() + 1)) as u64
            }
            None => units,
        };
        (room.held_units, room.usable_units) = (without_map(room.held_units), without_map(room.usable_units));
        room
    }
}

impl TranslationProfile {
    /// Whether a block is bad from the start.
    pub(crate) fn is_bad(&self, block: u32) -> bool {
        mix(self.seed ^ u64::from(block)) % 1_000_000 < self.bad_ppm.into()
    }

    /// The same, where a group with so many free blocks, or fewer, is collected.
    pub(crate) fn with_gc_blocks(&self, least: u32) -> Self {
        Self { gc_blocks: self.gc_blocks.max(least), ..self.clone() }
    }
}

impl Streams {
    /// Those of a drive.
    pub(crate) fn of(array: &ArrayProfile, translation: &TranslationProfile) -> Self {
        Self {
            has_map: translation.map_cache.is_some(),
            has_cold: matches!(translation.wear, Wear::Full { .. }),
            has_urgent: array.urgent.is_some_and(|urgent| urgent.rank),
        }
    }

    /// Whether a drive has a stream.
    pub(crate) fn has(self, stream: usize) -> bool {
        match stream {
            MAP => self.has_map,
            COLD => self.has_cold,
            URGENT => self.has_urgent,
            _ => stream < STREAMS,
        }
    }

    /// Streams of a group for which there is always room. Cold data is not among them: it goes elsewhere when blocks
    /// are short.
    #[inline]
    fn count(self) -> usize {
        2 + usize::from(self.has_map) + usize::from(self.has_urgent)
    }

    /// Free blocks of a group that the host does not take: one for each stream of what is moved (what the host has
    /// written, and the map), one for an erase that fails, and one that only urgent writes take besides.
    #[inline]
    pub(crate) fn floor(self) -> usize {
        self.count()
    }

    /// Free blocks of a group that a stream of what the host writes does not take.
    #[inline]
    pub(crate) fn floor_of(self, stream: usize) -> usize {
        self.floor() - usize::from(stream == URGENT)
    }

    /// Blocks of a group beyond the capacity, at least: the free ones, and one that is open for each stream.
    pub(crate) fn reserve(self) -> usize {
        self.floor() + self.count()
    }

    /// Units of a group with so many good blocks: those that are held, and those that are usable.
    pub(crate) fn held_and_usable(self, shape: &Shape, good: u64) -> (u64, u64) {
        let held = good.saturating_sub(self.reserve() as u64) * u64::from(shape.block_units);
        // So many units may be invalid without a block that has a whole program of them.
        let scattered = good * u64::from(shape.row_units - 1);
        (held, held.saturating_sub(scattered))
    }
}

/// A number that looks random, of a number (Steele, Lea and Flood, OOPSLA 2014: the finish of SplitMix64).
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
