//! Drives, and chance, for the tests.

use nvmed_flash::{ArrayProfile, BlockKind, Rate, TranslationProfile};

/// Chance from a seed (SplitMix64).
#[derive(Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// A number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.roll(most - least + 1)
    }

    pub fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len() as u64) as usize]
    }
}

pub fn translation() -> TranslationProfile {
    TranslationProfile::default()
}

pub fn nand(blocks: u32, pages: u32) -> ArrayProfile {
    ArrayProfile {
        channels: 2,
        dies: 2,
        planes: 2,
        registers: 2,
        bus_out: Rate { bytes: 4096, ns: 10_000 },
        bus_in: Rate { bytes: 4096, ns: 10_000 },
        blocks: vec![BlockKind { per_plane: blocks, pages, ..BlockKind::default() }],
        translation: Some(translation()),
        ..ArrayProfile::default()
    }
}
