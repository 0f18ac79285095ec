//! What the tests of a drive share.
#![allow(dead_code, reason = "each test uses what it needs")]

use nvmed_flash::{ArrayProfile, BlockKind, Rate, TranslationProfile, UNIT_BYTES, Victim, Wear};

/// Chance from a seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
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
