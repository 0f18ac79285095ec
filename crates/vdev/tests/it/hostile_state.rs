//! A drive's state that somebody made: whatever it says, with good checksums, it is refused, or a drive that works.

use crate::drive_file::{Place, keep, make, medium, open, use_drive};
use nvmed_dice::Dice;
use nvmed_vdev::{DriveFile, LIFE_COUNTERS, Media};
use proptest::prelude::{any, prop_assert};
use proptest::test_runner::TestRunner;

const HEADER: usize = 16_384;
const HEADS: [usize; 2] = [HEADER, HEADER + 4096];
const CONTENT: usize = HEADER + 2 * 4096;

/// A drive that was used, its state, and where the parts of that are.
struct Good {
    place: Place,
    media: Media,
    bytes: Vec<u8>,
    content_bytes: usize,
    content_stride: usize,
    journal_bytes: usize,
}

impl Good {
    fn new(name: &str) -> Self {
        let place = Place::new(name);
        let image = place.image();
        let media = medium(&image);
        let (mut file, mut flash) = make(&image, &media);
        let mut dice = Dice::new(2);
        for round in 0..200 {
            use_drive(&mut flash, &mut dice, 4);
            keep(&mut file, &mut flash);
            if round == 150 {
                file.checkpoint(&flash, [7; LIFE_COUNTERS], false).unwrap();
            }
        }
        let bytes = std::fs::read(DriveFile::beside(&image)).unwrap();
        let [units, blocks, pages] = [40, 44, 48].map(|at| word(&bytes, at) as usize);
        let content_bytes = units * 4 + blocks * 8;
        let content_stride = content_bytes.next_multiple_of(4096);
        Self { place, media, bytes, content_bytes, content_stride, journal_bytes: pages * 4096 }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn set(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

/// Gives all parts the checksums that they should have.
fn seal(bytes: &mut [u8], good: &Good) {
    set(bytes, 12, 0);
    let header = crc32c::crc32c(&bytes[..HEADER]);
    set(bytes, 12, header);
    for (side, head) in HEADS.into_iter().enumerate() {
        let content = crc32c::crc32c(&bytes[CONTENT + side * good.content_stride..][..good.content_bytes]);
        set(bytes, head + 12, content);
        set(bytes, head + 8, 0);
        let checksum = crc32c::crc32c(&bytes[head..head + 160]);
        set(bytes, head + 8, checksum);
        let journal = CONTENT + 2 * good.content_stride + side * good.journal_bytes;
        let mut place = 0;
        while place + 16 <= good.journal_bytes {
            let behind = place + 16 + word(bytes, journal + place) as usize * 4;
            if behind == place + 16 || behind > good.journal_bytes {
                break;
            }
            let named = [&bytes[journal + place + 4..][..4], &bytes[journal + place + 12..][..4]].concat();
            let checksum = crc32c::crc32c(&named);
            let checksum = crc32c::crc32c_append(checksum, &bytes[journal + place + 16..journal + behind]);
            set(bytes, journal + place + 8, checksum);
            place = behind;
        }
    }
}

/// Where to change something: anywhere in a part.
fn somewhere(dice: &mut Dice, good: &Good) -> usize {
    let side = dice.index(2);
    let content = CONTENT + side * good.content_stride;
    let blocks = word(&good.bytes, 44) as usize * 8;
    let journal = CONTENT + 2 * good.content_stride + side * good.journal_bytes;
    let (first, words) = match dice.index(6) {
        0 => (8, 14),
        1 => (HEADS[side], 40),
        2 => (content, (good.content_bytes - blocks) / 4),
        3 => (content + good.content_bytes - blocks, blocks / 4),
        4 => (journal, 64),
        _ => (journal, 3000),
    };
    first + dice.index(words) * 4
}

fn change(bytes: &mut [u8], dice: &mut Dice, good: &Good) {
    for _ in 0..1 + dice.index(6) {
        let at = somewhere(dice, good);
        let now = word(bytes, at);
        let word = match dice.index(8) {
            0 => 0,
            1 => u32::MAX,
            2 => 0x7fff_ffff,
            3 => now ^ 1 << dice.index(32),
            4 => now.wrapping_add(1),
            5 => dice.roll(4096) as u32,
            6 => (dice.roll(8) as u32) << 24 | dice.roll(64) as u32,
            _ => word(bytes, somewhere(dice, good)),
        };
        set(bytes, at, word);
    }
}

#[test]
fn fuzz_a_state_with_good_checksums_is_refused_or_works() {
    let good = Good::new("hostile-state");
    let image = good.place.image().with_extension("hostile");
    let run = |seed| {
        let mut dice = Dice::new(seed);
        let mut bytes = good.bytes.clone();
        change(&mut bytes, &mut dice, &good);
        seal(&mut bytes, &good);
        std::fs::write(DriveFile::beside(&image), &bytes).unwrap();
        match open(&image, &good.media) {
            Ok((mut file, mut flash, _)) => {
                for _ in 0..20 {
                    use_drive(&mut flash, &mut dice, 4);
                    keep(&mut file, &mut flash);
                }
            }
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
        Ok(())
    };
    TestRunner::default().run(&any::<u64>(), run).unwrap();
}

/// What is changed nowhere is sealed as it was.
#[test]
fn a_state_is_sealed_as_it_was_written() {
    let good = Good::new("sealed-state");
    let mut bytes = good.bytes.clone();
    seal(&mut bytes, &good);
    assert!(bytes == good.bytes);
}
