//! Metadata blocks that the device damaged after it had made them durable: flipped bits, writes that were
//! lost, went elsewhere, or were torn. The file system shows what it would have shown, or an error; never
//! something else, never a panic, and it ends.

use crate::cuts::{Failure, Place, Plan, Tally, panic_text};
use crate::dice::Dice;
use crate::disk::Disk;
use crate::media::{BLOCK, Block, Image, SECTOR, Volatile};
use crate::recording::{Recording, Setting};
use crate::runner::wind_clock;
use crate::survey::{Ended, Survey};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Outcomes from here on: a damaged image; the cut says which damage.
pub const DAMAGE: u64 = 400;
/// Damages of each recording.
const COUNT: u64 = 24;
/// Reading any image of a few megabytes ends within this time, on a slow and busy machine.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Examines damages of the image that a recording ends with.
pub fn examine_all(seed: u64, recording: &Recording, plan: &Plan, tally: &mut Tally) {
    let victims = Victims::of(recording);
    for number in (0..COUNT).step_by(plan.stride as usize) {
        let place = Place { seed, cut: number, outcome: DAMAGE };
        if plan.only.is_some_and(|only| only != (place.cut, place.outcome)) {
            continue;
        }
        let mut dice = Dice::of(&[seed, number, DAMAGE]);
        let Some((image, what)) = victims.damaged(&mut dice) else { continue };
        let setting = &recording.setting;
        let found = catch_unwind(AssertUnwindSafe(|| examine(image, &victims, setting)));
        tally.states += 1;
        tally.damaged += 1;
        let why = match found {
            Ok(Ok(())) => continue,
            Ok(Err(why)) => why,
            Err(panic) => format!("panic: {}", panic_text(&*panic)),
        };
        tally.failures.push(Failure { place, why: format!("{what}: {why}") });
    }
}

/// The whole image, what it shows, and the blocks of metadata with what was in them before.
struct Victims {
    image: Image,
    whole: Option<Survey>,
    /// Block, and its contents in the order in which they were durable; the last one is now.
    blocks: BTreeMap<u64, Vec<Block>>,
}

fn is_metadata(data: &Block) -> bool {
    matches!(&data[..4], b"KVND" | b"KVBM" | b"KVLB" | b"NVME")
}

/// Up to where the log was durable when this block of it was written; `None` for other blocks.
fn log_mark(data: &Block) -> Option<u64> {
    let mark = data[16..24].try_into().map(u64::from_le_bytes).ok()?;
    (&data[..4] == b"KVLB").then_some(mark)
}

impl Victims {
    fn of(recording: &Recording) -> Self {
        let mut blocks: BTreeMap<u64, Vec<Block>> = BTreeMap::new();
        let mut media = recording.media.clone();
        let first: Volatile = media.clone();
        for number in 0..first.durable().blocks() {
            let data = first.block(number);
            if is_metadata(data) {
                blocks.insert(number, vec![Arc::clone(data)]);
            }
        }
        recording.trace.events.iter().for_each(|&event| media.follow(event, &recording.trace));
        for command in recording.trace.executed() {
            for (number, data) in (command.first..).zip(&command.blocks).filter(|(_, data)| is_metadata(data))
            {
                let versions = blocks.entry(number).or_insert_with(|| vec![Arc::clone(first.block(number))]);
                versions.push(Arc::clone(data));
            }
        }
        // What the last append to the log wrote is not among them: of its records nothing later tells.
        let marks = blocks.values().filter_map(|versions| log_mark(versions.last()?));
        let tail = marks.max();
        blocks.retain(|_, versions| tail.is_none() || versions.last().and_then(log_mark) != tail);
        let image = media.as_read();
        let whole = look(image.clone(), &recording.setting).ok();
        Self { image, whole, blocks }
    }

    /// A damage, and what it is in words.
    fn damaged(&self, dice: &mut Dice) -> Option<(Image, String)> {
        let all: Vec<(&u64, &Vec<Block>)> = self.blocks.iter().collect();
        let rewritten: Vec<(&u64, &Vec<Block>)> =
            all.iter().copied().filter(|(_, versions)| versions.len() > 1).collect();
        let mut image = self.image.clone();
        let kind = dice.roll(4);
        let (&number, versions) = *dice.pick(if kind == 0 || kind == 3 { &all } else { &rewritten })?;
        let now = versions.last()?;
        let mut bytes = **now;
        let what = match kind {
            0 => {
                let bit = dice.roll(BLOCK as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
                format!("bit {bit} of block {number} flipped")
            }
            1 => {
                bytes = **versions.get(versions.len() - 2)?;
                format!("the last write of block {number} was lost")
            }
            2 => {
                let before = versions.get(versions.len() - 2)?;
                let sectors = 1 + dice.roll(7) as usize;
                bytes[..sectors * SECTOR].copy_from_slice(&before[..sectors * SECTOR]);
                format!("the last write of block {number} was torn: {sectors} sectors are old")
            }
            _ => {
                let (&other, wrong) = *dice.pick(&all)?;
                bytes = **wrong.last()?;
                if other == number {
                    return None;
                }
                format!("what was for block {other} went to block {number}")
            }
        };
        let kind = String::from_utf8_lossy(&now[..8]).replace(|c: char| !c.is_ascii_alphanumeric(), "");
        image.set(number, Arc::new(bytes));
        Some((image, format!("{what} ({kind})")))
    }
}

/// Mounts, looks at everything, works on until the store has written a checkpoint, and looks again.
fn look(image: Image, setting: &Setting) -> Result<Survey, Ended> {
    wind_clock();
    let disk = Disk::new(image);
    let told = |error| Ended::Error(error, "the mount".to_owned());
    let files = disk.mount(setting.options.clone()).map_err(told)?;
    let found = Survey::of(&files)?;
    if crate::cuts::work_long(&files).is_ok() {
        let again = Survey::of(&files)?;
        if again.shape != found.shape || again.contents != found.contents {
            return Err(Ended::Nonsense("working on changed what was there".to_owned()));
        }
    }
    Ok(found)
}

fn examine(image: Image, victims: &Victims, setting: &Setting) -> Result<(), String> {
    let start = Instant::now();
    if let Ok(device) = Disk::new(image.clone()).open() {
        // Findings or an error: either will do.
        _ = nvmed_fs::fsck(&device);
    }
    match look(image, setting) {
        Ok(found) if victims.whole.as_ref().is_some_and(|whole| whole.shape != found.shape) => {
            return Err("other names are shown, and no error".to_owned());
        }
        Ok(found) if victims.whole.as_ref().is_some_and(|whole| whole.contents != found.contents) => {
            return Err("other bytes are shown, and no error".to_owned());
        }
        Ok(_) | Err(Ended::Error(..)) => {}
        Err(Ended::Nonsense(text)) => return Err(text),
    }
    if start.elapsed() > TIME_MAX { Err("it took longer than a minute".to_owned()) } else { Ok(()) }
}
