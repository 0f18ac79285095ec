//! A used drive: one that is made so, and one that is worn out.

use crate::drives::{Dice, nand, translation};
use nvmed_flash::{
    ArrayProfile, Command, Completion, Flash, Kind, Medium, Profile, TranslationProfile, UNIT_BYTES, Wear,
};

fn drive(array: &ArrayProfile) -> Flash {
    Flash::new(&Profile { commands: 64, medium: Medium::Array(Box::new(array.clone())) }).unwrap()
}

/// Does one command after the other; answers the last completion.
fn each(flash: &mut Flash, commands: impl Iterator<Item = Command>) -> Option<Completion> {
    let mut last = None;
    for command in commands {
        flash.arrive(flash.now(), &command);
        last = flash.advance(u64::MAX);
        assert!(last.is_some(), "{command:?} ends");
        if last.is_some_and(|completion| completion.refused) {
            break;
        }
    }
    last
}

fn write(unit: u64) -> Command {
    Command { kind: Kind::Write { fua: false }, start: unit * UNIT_BYTES, bytes: UNIT_BYTES, urgent: false }
}

const FLUSH: Command = Command { kind: Kind::Flush, start: 0, bytes: 0, urgent: false };

/// Write amplification of so many random writes.
fn amplification(flash: &mut Flash, dice: &mut Dice, units: u64, writes: u64) -> f64 {
    let before = flash.counts();
    each(flash, (0..writes).map(|_| write(dice.roll(units))));
    let after = flash.counts();
    (after.programmed_units - before.programmed_units) as f64 / (after.host_units - before.host_units) as f64
}

#[test]
fn a_preconditioned_drive_is_as_one_that_was_used() {
    let mut array = nand(300, 256);
    (array.channels, array.dies, array.planes) = (1, 1, 1);
    let units = 296 * 256 * 100 / 120;
    array.capacity_bytes = units * UNIT_BYTES;
    let mut used = drive(&array);
    each(&mut used, (0..units).map(write));
    let mut dice = Dice(1);
    amplification(&mut used, &mut dice, units, 3 * units);
    let in_steady_state = amplification(&mut used, &mut dice, units, units);
    let mut made = drive(&array);
    made.precondition();
    let mut map = vec![0; made.map_len()];
    made.map_words(0, &mut map);
    map.sort_unstable();
    assert!(map.windows(2).all(|pair| pair[0] < pair[1]) && map.last().is_some_and(|&last| last < 300 * 256));
    // One that keeps more blocks free than it has beyond the capacity has room for all units, too.
    let mut greedy = array.clone();
    greedy.translation = Some(TranslationProfile { gc_blocks: 200, ..translation() });
    let mut full = drive(&greedy);
    full.precondition();
    full.map_words(0, &mut map);
    assert!(map.iter().all(|&entry| entry < 300 * 256), "each unit is somewhere");
    let at_once = amplification(&mut made, &mut dice, units, units);
    assert!((at_once / in_steady_state - 1.0).abs() < 0.05, "{at_once}, and {in_steady_state} after use");
}

#[test]
fn a_drive_whose_spare_blocks_are_worn_out_refuses_writes_and_loses_nothing() {
    for (seed, wear) in [(1, Wear::Off), (2, Wear::Simple), (3, Wear::Full { spread: 3 })] {
        let mut array = nand(16, 16);
        array.blocks[0].endurance = 20;
        array.translation = Some(TranslationProfile { wear, ..translation() });
        let units = 8 * 10 * 16;
        array.capacity_bytes = units * UNIT_BYTES;
        let mut flash = drive(&array);
        let mut dice = Dice(seed);
        let refused = each(&mut flash, (0..10_000_000).map(|_| write(dice.roll(units)))).unwrap();
        assert!(refused.refused && flash.is_read_only(), "{wear:?}: {refused:?}");
        let flushed = each(&mut flash, [FLUSH].into_iter()).unwrap();
        assert!(!flushed.refused, "what was acknowledged before is in flash");
        let mut map = vec![0; flash.map_len()];
        flash.map_words(0, &mut map);
        let nowhere = map.iter().filter(|&&entry| entry == (1 << 31) - 1).count();
        assert_eq!(nowhere, 0, "each unit was written, and is somewhere");
        let refused = each(&mut flash, [write(0)].into_iter()).unwrap();
        assert!(refused.refused);
        let read = Command { kind: Kind::Read, start: 0, bytes: 64 * UNIT_BYTES, urgent: false };
        assert!(!each(&mut flash, [read].into_iter()).unwrap().refused, "reads go on");
        let erases: Vec<u32> = flash.block_words().chunks(2).map(|block| block[0]).collect();
        let (least, most) = (erases.iter().min().unwrap(), erases.iter().max().unwrap());
        assert!(*most <= 24, "{most} erases of a block that survives 18 to 23");
        if wear == (Wear::Full { spread: 3 }) {
            assert!(most - least <= 10, "{least} to {most} erases of a block");
        }
    }
}

#[test]
fn full_levelling_lets_cold_data_rest_in_worn_blocks() {
    let lives = [Wear::Simple, Wear::Full { spread: 4 }].map(|wear| {
        let mut array = nand(64, 16);
        array.translation = Some(TranslationProfile { wear, buffer_bytes: 0, ..translation() });
        let units = 8 * 50 * 16;
        array.capacity_bytes = units * UNIT_BYTES;
        let mut flash = drive(&array);
        each(&mut flash, (0..units).map(write));
        let mut dice = Dice(7);
        // All that is written again is a tenth of what the drive holds.
        let amplified = amplification(&mut flash, &mut dice, units / 10, 40 * units);
        let wear = flash.wear();
        (wear.erases_max - wear.erases_min, amplified)
    });
    let [(simple_spread, simple), (full_spread, full)] = lives;
    println!("erases differ by {simple_spread} and {full_spread}, write amplification {simple} and {full}");
    assert!(simple_spread > 100 && full_spread <= 8, "erases differ by {simple_spread} and {full_spread}");
    assert!(full < 1.4 * simple, "write amplification {full}, and {simple} without moving what is cold");
}
