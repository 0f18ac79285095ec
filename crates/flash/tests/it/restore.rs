//! A drive that is stopped at any moment and started again.

use crate::drives::{Dice, nand, translation};
use nvmed_flash::{
    Command, Flash, Kind, MapCacheProfile, Medium, Profile, TranslationProfile, UNIT_BYTES, UrgentProfile,
    Wear,
};

/// A random command on a drive of so many units, mostly writes.
fn command(dice: &mut Dice, units: u64) -> Command {
    let start = dice.roll(units);
    let count = (1 + dice.roll(12)).min(units - start);
    let kind = match dice.roll(10) {
        0 => Kind::Read,
        1 => Kind::Flush,
        2 => Kind::Deallocate,
        3 => Kind::Write { fua: true },
        _ => Kind::Write { fua: false },
    };
    let urgent = dice.one_in(3);
    Command { kind, start: start * UNIT_BYTES, bytes: count * UNIT_BYTES, urgent }
}

/// How many blocks are open for what urgent commands write (docs/spec/flash.md: state 6).
fn open_for_urgent(flash: &Flash) -> usize {
    flash.block_words().chunks(2).filter(|block| block[1] >> 24 == 6).count()
}

/// The entry of a unit that is nowhere.
const NOWHERE: u32 = (1 << 31) - 1;

fn whole_map(flash: &Flash) -> Vec<u32> {
    let mut map = vec![0; flash.map_len()];
    flash.map_words(0, &mut map);
    map
}

/// Runs random commands on `flash` until `events` things have happened, whatever is under way then.
fn run(flash: &mut Flash, dice: &mut Dice, units: u64, events: u64) {
    let mut now = flash.now();
    for _ in 0..events {
        if flash.takes(false) && dice.roll(3) > 0 {
            flash.arrive(now, &command(dice, units));
        } else {
            let due = flash.next_due().min(now + 10_000_000);
            now = flash.advance(due).map_or(due.max(now), |completion| completion.time);
            while let Some(completion) = flash.advance(now) {
                now = completion.time;
            }
        }
    }
}

#[test]
fn a_drive_that_stops_at_any_moment_has_what_was_programmed() {
    let (mut has_map, mut reopened) = (false, 0);
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let mut array = nand(12, 16);
        array.registers = 1 + dice.roll(3) as u32;
        array.blocks[0].pages_per_program = 1 << dice.roll(3);
        array.blocks[0].endurance = 0;
        let (wear, bad_ppm) = ([Wear::Off, Wear::Simple, Wear::Full { spread: 4 }][dice.roll(3) as usize], 0);
        let buffer_bytes = [0, 2 << 20][dice.roll(2) as usize];
        let map_cache =
            (seed % 2 == 1).then_some(MapCacheProfile { bytes: 4 * UNIT_BYTES, entry_bytes: 256 });
        array.urgent = (seed % 3 == 0).then(UrgentProfile::default);
        // Each group keeps more blocks then.
        array.blocks[0].per_plane +=
            4 * u32::from(map_cache.is_some()) + 2 * u32::from(array.urgent.is_some());
        array.translation =
            Some(TranslationProfile { wear, bad_ppm, buffer_bytes, map_cache, ..translation() });
        let units = 480;
        array.capacity_bytes = units * UNIT_BYTES;
        let profile = Profile { commands: 16, medium: Medium::Array(Box::new(array)) };
        let mut flash = Flash::new(&profile).unwrap();
        flash.keep_records();
        let (mut map, mut blocks) = (whole_map(&flash), flash.block_words());
        for life in 0..30 {
            let events = 50 + dice.roll(400);
            run(&mut flash, &mut dice, units, events);
            if dice.roll(3) == 0 {
                // Written down in the middle of everything, the map part by part while the drive goes on.
                blocks = flash.block_words();
                flash.clear_records();
                for first in (0..map.len()).step_by(80) {
                    let end = map.len().min(first + 80);
                    flash.map_words(first, &mut map[first..end]);
                    let events = dice.roll(100);
                    run(&mut flash, &mut dice, units, events);
                }
            }
            has_map |= whole_map(&flash)[units as usize..].iter().any(|&place| place != NOWHERE);
            let mut next = Flash::new(&profile).unwrap();
            next.restore(&map, &blocks, flash.records(), true).unwrap();
            let place = format!("seed {seed}, life {life}");
            assert_eq!(whole_map(&next), whole_map(&flash), "{place}");
            let erases = |words: Vec<u32>| words.chunks(2).map(|block| block[0]).collect::<Vec<_>>();
            assert_eq!(erases(next.block_words()), erases(flash.block_words()), "{place}");
            reopened += open_for_urgent(&next);
            flash = next;
            flash.keep_records();
            (map, blocks) = (whole_map(&flash), flash.block_words());
        }
    }
    assert!(has_map, "no map page was ever programmed");
    assert!(reopened > 100, "urgent blocks that were opened again: {reopened}");
}

#[test]
fn what_describes_no_state_is_refused() {
    let mut array = nand(12, 16);
    array.capacity_bytes = 480 * UNIT_BYTES;
    let profile = Profile { commands: 16, medium: Medium::Array(Box::new(array)) };
    let fresh = || Flash::new(&profile).unwrap();
    let (map, blocks) = (whole_map(&fresh()), fresh().block_words());
    let refused = |map: &[u32], blocks: &[u32], records: &[u32]| {
        fresh().restore(map, blocks, records, false).unwrap_err().to_string()
    };
    assert_eq!(refused(&map[1..], &blocks, &[]), "the state has 479 words of map, and the drive 480");
    assert_eq!(refused(&map, &blocks[2..], &[]), "the state has 190 words of blocks, and the drive 192");
    let mut twice = map.clone();
    (twice[3], twice[5]) = (77, 77);
    let mut nowhere = map.clone();
    nowhere[3] = 77;
    assert_eq!(
        refused(&nowhere, &blocks, &[]),
        "the state has logical unit 3 in block 4, where nothing was programmed"
    );
    let full: Vec<u32> = blocks.chunks(2).flat_map(|_| [0, 16]).collect();
    assert_eq!(refused(&twice, &full, &[]), "the state has logical units 3 and 5 at one place");
    let bad: Vec<u32> = blocks.chunks(2).flat_map(|_| [0, 1 << 24 | 16]).collect();
    assert!(refused(&nowhere, &bad, &[]).starts_with("the state has logical unit 3 in block 4, "));
    assert_eq!(refused(&map, &blocks, &[9 << 24, 0]), "the state has 2 words behind its last record");
    nowhere[3] = 96 * 16;
    assert_eq!(
        refused(&nowhere, &blocks, &[]),
        "the state names physical unit 1536, which the drive does not have"
    );
    let mut wrong = blocks.clone();
    wrong[1] = 17;
    assert_eq!(refused(&map, &wrong, &[]), "the state names row 17, which the drive does not have");
    wrong = blocks.clone();
    wrong[0] = 1 << 31;
    assert!(refused(&map, &wrong, &[]).starts_with("the state names erase 2147483648, "));
    for records in [
        [1 << 24 | 1, 1536, 0],
        [1 << 24 | 1, 0, 480],
        [2 << 24, 96, 0],
        [3 << 24, 480, 1],
        [4 << 24 | 2, 0, 0],
        [4 << 24 | 4, 0, 0],
    ] {
        assert!(refused(&map, &blocks, &records).starts_with("the state names "), "{records:?}");
    }
}
