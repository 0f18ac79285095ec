//! Blocks of two kinds: what becomes of a small overwrite inside a large page, and of writes whose kind is full
//! (docs/flash.md, "A command").

use crate::drives::translation;
use nvmed_flash::{ArrayProfile, BlockKind, Command, Counts, Flash, Kind, Medium, Profile, UNIT_BYTES};

/// Nanoseconds of a program of a small page, and of a large one.
const SMALL_NS: u64 = 100;
const LARGE_NS: u64 = 200;

fn kind(per_plane: u32, page_units: u64, program_ns: u64) -> BlockKind {
    BlockKind {
        per_plane,
        page_bytes: page_units * UNIT_BYTES,
        pages: 16,
        read_ns: vec![10],
        program_ns: vec![program_ns],
        erase_ns: 1000,
        ..BlockKind::default()
    }
}

/// A drive of one plane without a write buffer.
struct Drive(Flash);

impl Drive {
    fn new(blocks: Vec<BlockKind>, capacity_units: u64) -> Self {
        let array = ArrayProfile {
            capacity_bytes: capacity_units * UNIT_BYTES,
            blocks,
            translation: Some(nvmed_flash::TranslationProfile { buffer_bytes: 0, ..translation() }),
            ..ArrayProfile::default()
        };
        Self(Flash::new(&Profile { commands: 1, medium: Medium::Array(Box::new(array)) }).unwrap())
    }

    /// How long a command takes alone, and what the layer did meanwhile.
    fn run(&mut self, kind: Kind, start: u64, bytes: u64) -> (u64, Counts) {
        let (before, begin) = (self.0.counts(), self.0.now());
        let _ = self.0.arrive(begin, &Command { kind, start, bytes, urgent: false });
        let done = self.0.advance(u64::MAX).expect("it completes");
        assert!(!done.refused);
        (done.time - begin, self.0.counts().since(before))
    }

    fn write(&mut self, unit: u64, units: u64) -> (u64, Counts) {
        self.run(Kind::Write { fua: false }, unit * UNIT_BYTES, units * UNIT_BYTES)
    }
}

#[test]
fn a_small_overwrite_inside_a_large_page_leaves_the_page_and_goes_to_a_small_one() {
    let mut both = Drive::new(vec![kind(16, 1, SMALL_NS), kind(16, 2, LARGE_NS)], 256);
    let (ns, counts) = both.write(0, 2);
    assert_eq!((ns, counts.programs, counts.programmed_units), (LARGE_NS, 1, 2));
    // Nothing is read to be written again with it.
    let (ns, counts) = both.write(1, 1);
    assert_eq!((ns, counts.page_reads, counts.programmed_units, counts.moved_units), (SMALL_NS, 0, 1, 0));
    // What was one page is two: the half that is still valid, and the small one.
    let (_, counts) = both.run(Kind::Read, 0, 2 * UNIT_BYTES);
    assert_eq!(counts.page_reads, 2);
    // Written whole again, it is one.
    both.write(0, 2);
    assert_eq!(both.run(Kind::Read, 0, 2 * UNIT_BYTES).1.page_reads, 1);
    // Only a part of a unit needs the rest of it.
    let (_, counts) = both.run(Kind::Write { fua: false }, 512, 512);
    assert_eq!((counts.page_reads, counts.programmed_units), (1, 1));
}

#[test]
fn with_large_pages_alone_a_small_overwrite_takes_a_whole_one() {
    let mut large = Drive::new(vec![kind(16, 2, LARGE_NS)], 128);
    large.write(0, 2);
    let (ns, counts) = large.write(1, 1);
    assert_eq!((ns, counts.page_reads, counts.programmed_units), (LARGE_NS, 0, 2));
    assert_eq!(large.run(Kind::Read, 0, 2 * UNIT_BYTES).1.page_reads, 2);
}

#[test]
fn writes_whose_kind_is_full_go_to_the_other_one_until_it_has_room_again() {
    const SMALL_BLOCKS: u32 = 8;
    let mut both = Drive::new(vec![kind(SMALL_BLOCKS, 1, SMALL_NS), kind(24, 2, LARGE_NS)], 400);
    let all: Vec<(u64, Counts)> = (0..300).map(|unit| both.write(unit, 1)).collect();
    let small = all.iter().take_while(|(_, counts)| counts.programmed_units == 1).count();
    // A group keeps two blocks free.
    assert_eq!(small, (SMALL_BLOCKS as usize - 2) * 16);
    assert_eq!(all[0].0, SMALL_NS);
    // A large page for each, half of it padded; nothing is moved, since nothing is invalid.
    let (after, counts) = (&all[small..], both.0.counts());
    assert!(after.iter().all(|(ns, counts)| (*ns, counts.programmed_units) == (LARGE_NS, 2)), "{after:?}");
    assert_eq!((counts.host_units, counts.moved_units, counts.erases), (300, 0, 0));
    // A block's units are not needed any more: it is collected, and small pages have room again.
    both.run(Kind::Deallocate, 0, 16 * UNIT_BYTES);
    let again: Vec<(u64, Counts)> = (0..16).map(|unit| both.write(unit, 1)).collect();
    assert!(again.iter().any(|(_, counts)| counts.programmed_units == 1), "{again:?}");
    assert!(both.0.counts().erases > 0);
}

#[test]
fn large_writes_whose_kind_is_full_are_cut_into_small_pages() {
    let mut both = Drive::new(vec![kind(24, 1, SMALL_NS), kind(6, 2, LARGE_NS)], 300);
    let all: Vec<(u64, Counts)> = (0..140).map(|at| both.write(2 * at, 2)).collect();
    let large = all.iter().take_while(|(_, counts)| counts.programs == 1).count();
    assert_eq!(large, (6 - 2) * 16);
    let after = &all[large..];
    assert!(after.iter().all(|(ns, counts)| (*ns, counts.programs) == (2 * SMALL_NS, 2)), "{after:?}");
}
