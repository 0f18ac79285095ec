//! Metadata blocks that the device damaged after it had made them durable: flipped bits, writes that were
//! lost or torn, went elsewhere, or came back from long ago. What is judged is in docs/spec/crash.md, "Damage".

use crate::cuts::{Case, Failure, Plan, Tally, panic_text};
use crate::mount::mount;
use crate::recording::{Recording, Setting};
use crate::runner::wind_clock;
use crate::survey::{Ended, Survey};
use crate::victims::{Base, Class, Damage};
use nvmed_dice::Dice;
use nvmed_disk::{BLOCK, Block, Disk, Image};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Outcomes from here on: a damaged image; the cut says which damage.
pub(crate) const DAMAGE: u64 = 400;
/// Damages of each recording.
const COUNT: u64 = 24;
/// Reading any image of a few megabytes ends within this time, on a slow and busy machine.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Examines damages of the image that a recording ends with, and of the same after a clean unmount.
pub fn examine_all(seed: u64, recording: &Recording, plan: &Plan, tally: &mut Tally) {
    let mut bases = [None, None];
    for number in (0..COUNT).step_by(plan.stride as usize) {
        let case = Case { seed, cut: number, outcome: DAMAGE };
        if plan.only.is_some_and(|only| only != (case.cut, case.outcome)) {
            continue;
        }
        let mut dice = Dice::of(&[seed, number, DAMAGE]);
        let clean = dice.chance(40);
        let base = bases[usize::from(clean)].get_or_insert_with(|| match clean {
            true => Base::unmounted(recording),
            false => Base::running(recording),
        });
        let found = match base {
            Ok(base) => {
                let Some(damage) = base.damage(&mut dice) else { continue };
                let found = catch_unwind(AssertUnwindSafe(|| examine(base, &damage, &recording.setting)));
                found.map(|found| found.map_err(|why| format!("{}: {why}", damage.what)))
            }
            Err(why) => Ok(Err(format!("without any damage: {why}"))),
        };
        tally.states += 1;
        tally.damaged += 1;
        let why = match found {
            Ok(Ok(())) => continue,
            Ok(Err(why)) => why,
            Err(panic) => format!("panic: {}", panic_text(&*panic)),
        };
        tally.failures.push(Failure { case, why });
    }
}

/// All damages of one workload, and no cuts.
#[must_use]
pub fn of_workload(seed: u64) -> Tally {
    let mut tally = Tally::default();
    let plan = Plan { outcomes: 0, stride: 1, only: None };
    match Recording::of(seed) {
        Ok(recording) => examine_all(seed, &recording, &plan, &mut tally),
        Err(why) => {
            let case = Case { seed, cut: 0, outcome: 0 };
            tally.failures.push(Failure { case, why: format!("without any cut: {why}") });
        }
    }
    tally
}

/// Whether the checker finds something, or cannot go on.
pub(crate) fn is_reported(image: &Image) -> bool {
    let Ok(device) = Disk::new(image.clone()).open(1) else { return true };
    nvmed_check::fsck(&device).map_or(true, |findings| !findings.is_empty())
}

/// What was seen of an image, and what became of it.
pub struct Seen {
    /// Everything that it showed.
    pub survey: Survey,
    /// The device after work went on, and an unmount.
    after: Image,
    /// Steps of checkpoints meanwhile.
    steps: u64,
}

/// Mounts, looks at everything, works on until the store has written a checkpoint, and looks again.
///
/// # Errors
/// What the file system said, or what it should not have shown.
pub fn look(image: Image, setting: &Setting) -> Result<Seen, Ended> {
    wind_clock();
    let disk = Disk::new(image);
    let told = |error| Ended::Error(error, "the mount".to_owned());
    let files = mount(&disk, setting.options.clone()).map_err(told)?;
    let survey = Survey::of(&files)?;
    // Work may fail, on a full device too; what it leaves is looked at in any case.
    let _ = crate::cuts::work_long(&files);
    match Survey::of(&files) {
        Ok(again) => {
            let changed = |why| Ended::Nonsense(format!("working on changed what was there: {why}"));
            survey.same(&again).map_err(changed)?;
        }
        Err(Ended::Error(..)) => {}
        Err(nonsense) => return Err(nonsense),
    }
    let steps = files.store_stats().steps;
    let _ = files.unmount();
    drop(files);
    let after = disk.media().as_read();
    Ok(Seen { survey, after, steps })
}

fn examine(base: &mut Base, damage: &Damage, setting: &Setting) -> Result<(), String> {
    let start = Instant::now();
    let image = base.with(damage);
    let reported = is_reported(&image);
    match look(image, setting) {
        Ok(seen) => {
            base.judge(damage, &seen.survey)?;
            if !reported && base.must_be_reported(damage) {
                return Err("the checker finds nothing".to_owned());
            }
            judge_work(base, damage, seen)?;
        }
        Err(Ended::Error(error, path)) if damage.classes().all(Class::is_superblock) => {
            return Err(format!("one superblock is not enough: `{path}`: {error}"));
        }
        Err(Ended::Error(..)) if reported => {}
        Err(Ended::Error(error, path)) => {
            return Err(format!("the checker finds nothing, but `{path}`: {error}"));
        }
        Err(Ended::Nonsense(text) | Ended::Long(text)) => return Err(text),
    }
    if start.elapsed() > TIME_MAX { Err("it took longer than a minute".to_owned()) } else { Ok(()) }
}

/// Damage of all but the tree is found before anything is written because of it: after work went on, with or
/// without an error, the file system is whole, or would be if the damage had not been.
fn judge_work(base: &Base, damage: &Damage, seen: Seen) -> Result<(), String> {
    let Seen { mut after, steps, .. } = seen;
    if damage.classes().any(|class| class == Class::Tree) || !is_reported(&after) {
        return Ok(());
    }
    if steps > 0 {
        return Err(format!("{steps} steps of checkpoints were written, and what they left is damaged"));
    }
    for (number, _) in damage.blocks.iter().filter(|(number, _)| base.class(*number) == Class::Bitmap) {
        after.set(*number, Arc::clone(base.block(*number)));
    }
    match is_reported(&after) {
        true => Err("blocks that are in use were written over before anybody was told".to_owned()),
        false => Ok(()),
    }
}

/// Content that nobody wrote.
#[must_use]
pub(crate) fn junk() -> Block {
    Arc::new([0xa5; BLOCK])
}
