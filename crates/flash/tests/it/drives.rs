//! Drives, and chance, for the tests.

use nvmed_flash::{ArrayProfile, BlockKind, Rate, TranslationProfile, UNIT_BYTES, Victim, Wear};

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
    TranslationProfile {
        buffer_bytes: 4 << 20,
        map_cache_bytes: 0,
        victim: Victim::Greedy,
        gc_blocks: 3,
        gc_idle_blocks: 0,
        idle_ns: 0,
        wear: Wear::Simple,
        bad_ppm: 0,
        seed: 1,
    }
}

pub fn nand(blocks: u32, pages: u32) -> ArrayProfile {
    ArrayProfile {
        capacity_bytes: 0,
        channels: 2,
        chips: 1,
        dies: 2,
        planes: 2,
        registers: 2,
        multi_plane_ns: 0,
        bus_out: Rate { bytes: 4096, ns: 10_000 },
        bus_in: Rate { bytes: 4096, ns: 10_000 },
        sector_bytes: 512,
        link_out: Rate::UNLIMITED,
        link_in: Rate::UNLIMITED,
        command_ns: 0,
        low_power_ns: 0,
        warm_up_ns: 0,
        overtakes: 16,
        blocks: vec![BlockKind {
            per_plane: blocks,
            page_bytes: UNIT_BYTES,
            pages,
            pages_per_program: 1,
            read_ns: vec![40_000],
            program_ns: vec![200_000],
            erase_ns: 3_000_000,
            endurance: 0,
        }],
        translation: Some(translation()),
    }
}
