//! How long planes work, and how many at once, is what one can count by hand.

use crate::drives::nand;
use nvmed_flash::{Activity, ArrayProfile, Command, Flash, Kind, Medium, Profile, UNIT_BYTES};

#[test]
fn planes_that_work_are_counted_while_they_work_and_no_longer() {
    let mut array = ArrayProfile { channels: 1, translation: None, ..nand(12, 64) };
    array.capacity_bytes = 1 << 20;
    let (read_ns, program_ns) = (array.blocks[0].read_ns[0], array.blocks[0].program_ns[0]);
    let mut flash = Flash::new(&Profile { commands: 8, medium: Medium::Array(Box::new(array)) }).unwrap();
    let mut run = |kind, time, unit: u64, units: u64| {
        let _ = flash.arrive(
            time,
            &Command { kind, start: unit * UNIT_BYTES, bytes: units * UNIT_BYTES, urgent: false },
        );
        while flash.advance(u64::MAX).is_some() {}
        flash.activity()
    };
    let told = |found: Activity| (found.any_ns, found.several_ns, found.plane_ns);
    // Two dies read two pages each, on two planes; then one of them reads the fifth, alone.
    let read = run(Kind::Read, 0, 0, 5);
    assert_eq!(told(read), (2 * read_ns, read_ns, 5 * read_ns));
    // What does not work for a while does not count.
    let written = run(Kind::Write { fua: false }, 100 * read_ns, 1, 1);
    assert_eq!(told(written.since(read)), (program_ns, 0, program_ns));
}
