//! Power that goes while a damaged file system is repaired: another repair puts right what is left, and then it
//! is what an uninterrupted repair makes of it.

use crate::cuts::{Case, Failure, Plan, Tally, panic_text, sound};
use crate::mount::mount;
use crate::recording::{Recording, Setting};
use crate::runner::wind_clock;
use crate::survey::{Ended, Survey};
use core::ops::{Bound, ControlFlow};
use nvmed_check::plan_repair;
use nvmed_dice::Dice;
use nvmed_disk::{BLOCK, Disk, Image, Manner, Trace, Volatile};
use nvmed_fs::{FileSystem, FsError};
use nvmed_io::Binding;
use nvmed_kv::{Barrier, Batch, DeviceMedium, Options, PendingMemory, Store};
use nvmed_units::Block;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Outcomes from here on: cut number `cut` of the repair of that damage.
pub(crate) const REPAIR: u64 = 500;
/// Damages of each recording, and cuts of each repair at most.
const DAMAGES: u64 = 2;
const CUTS: u64 = 4;
/// Records that a damage changes at most.
const RECORDS_MAX: u64 = 3;

/// Damages the image that a recording ends with, and cuts its repairs.
pub fn examine_all(seed: u64, recording: &Recording, plan: &Plan, tally: &mut Tally) {
    let mut end = recording.media.clone();
    recording.trace.events.iter().for_each(|&event| end.follow(event, &recording.trace));
    let end = end.as_read();
    let stride = plan.stride as usize;
    for damage in 0..DAMAGES {
        let wanted = |cut: u64| plan.only.is_none_or(|only| only == (cut, REPAIR + damage));
        if !(0..CUTS).step_by(stride).any(wanted) {
            continue;
        }
        let dice = Dice::of(&[seed, damage, REPAIR]);
        let repair = catch_unwind(AssertUnwindSafe(|| Repair::of(&end, &recording.setting, dice)));
        for cut in (0..CUTS).step_by(stride).filter(|&cut| wanted(cut)) {
            let case = Case { seed, cut, outcome: REPAIR + damage };
            let mut dice = Dice::of(&[seed, cut, damage, REPAIR]);
            let why = match &repair {
                Ok(Ok(None)) => break,
                Ok(Ok(Some(repair))) => {
                    match catch_unwind(AssertUnwindSafe(|| repair.cut(&recording.setting, &mut dice))) {
                        Ok(found) => found.err(),
                        Err(panic) => Some(format!("panic: {}", panic_text(&*panic))),
                    }
                }
                Ok(Err(why)) => Some(why.clone()),
                Err(panic) => Some(format!("panic: {}", panic_text(&**panic))),
            };
            tally.states += 1;
            tally.repairs += 1;
            let failure = |why| Failure { case, why: format!("power cut during a repair: {why}") };
            tally.failures.extend(why.map(failure));
        }
    }
}

/// A repair that went through.
struct Repair {
    damaged: Image,
    trace: Trace,
    /// What the repaired file system shows.
    whole: Survey,
}

impl Repair {
    /// Damages an image and repairs it; none if there was nothing to do, or no repair is possible.
    fn of(image: &Image, setting: &Setting, mut dice: Dice) -> Result<Option<Self>, String> {
        wind_clock();
        let damaged = damaged(image, &mut dice).map_err(|error| format!("damaging it: {error}"))?;
        let disk = Disk::with(Volatile::new(damaged.clone()), &mut dice);
        disk.record();
        if repair(&disk).is_err() {
            return Ok(None);
        }
        let trace = disk.take_trace();
        let whole = match look(&disk, setting)? {
            Ok(survey) => survey,
            // A size is no contradiction, and so nothing that a repair could put right.
            Err(Ended::Long(_)) => return Ok(None),
            Err(ended) => return Err(ended.to_string()),
        };
        Ok(Some(Self { damaged, trace, whole }).filter(|repair| !repair.trace.events.is_empty()))
    }

    /// The power goes once more, somewhere.
    fn cut(&self, setting: &Setting, dice: &mut Dice) -> Result<(), String> {
        wind_clock();
        let all = self.trace.events.len();
        let at = 1 + dice.roll(all as u64) as usize;
        let mut media = Volatile::new(self.damaged.clone());
        self.trace.events[..at].iter().for_each(|&event| media.follow(event, &self.trace));
        let manner = Manner::of(dice.roll(3), dice);
        let disk = Disk::with(Volatile::new(media.after_cut(&self.trace, manner, dice)), dice);
        let told = |why: String| format!("{manner:?} after {at} of {all} events: {why}");
        repair(&disk).map_err(|error| told(format!("the next repair: {error}")))?;
        let again = look(&disk, setting).and_then(|again| again.map_err(|ended| ended.to_string()));
        let again = again.map_err(told)?;
        if again.contents != self.whole.contents {
            return Err(told("files are missing or have other bytes".to_owned()));
        }
        let names = |survey: &Survey| survey.shape.names.clone();
        if names(&again) != names(&self.whole) {
            let (one, other) = (names(&again), names(&self.whole));
            return Err(told(format!("names are {one:?}, not {other:?}")));
        }
        Ok(())
    }
}

fn repair(disk: &Arc<Disk>) -> Result<(), FsError> {
    let device = disk.open(1)?;
    Ok(plan_repair(&device)?.carry_out(&device)?)
}

/// A repaired file system: the checker finds nothing, and it shows this.
fn look(disk: &Arc<Disk>, setting: &Setting) -> Result<Result<Survey, Ended>, String> {
    sound(disk, "after the repair")?;
    let files = mount(disk, setting.options.clone()).map_err(|error| format!("mount: {error}"))?;
    Ok(Survey::of(&files))
}

/// An image without one of its superblocks, or with records of the metadata that no file system would make.
fn damaged(image: &Image, dice: &mut Dice) -> Result<Image, FsError> {
    let disk = Disk::with(Volatile::new(image.clone()), dice);
    let device = disk.open(1)?;
    let superblock = FileSystem::probe(&device)?;
    if dice.chance(20) || superblock.meta_runs.len() > 1 {
        let mut image = image.clone();
        let block = if dice.chance(50) { 0 } else { superblock.blocks - 1 };
        image.set(block, Arc::new([0xee; BLOCK]));
        return Ok(image);
    }
    let region = Block(superblock.meta_first)..Block(superblock.data_first);
    let medium = DeviceMedium::new(&device, device.handle(Binding::Spread), region)?;
    let store = Store::open(Arc::new(medium), PendingMemory::private()?, &Options::default())?;
    let mut records = Vec::new();
    store.scan(Bound::Unbounded, Bound::Unbounded, &mut |key, value| {
        records.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    let mut batch = Batch::new();
    for _ in 0..=dice.roll(RECORDS_MAX) {
        let Some((key, value)) = dice.pick(&records) else { break };
        match dice.roll(3) {
            0 => batch.delete(key),
            1 => {
                let mut value = value.clone();
                if let Some(at) = (value.len() as u64).checked_sub(1).map(|last| dice.roll(last + 1)) {
                    value[at as usize] ^= 1 << dice.roll(8);
                }
                batch.put(key, &value);
            }
            _ => {
                let Some((other, _)) = dice.pick(&records) else { break };
                batch.put(other, value);
            }
        }
    }
    let last = store.apply(&batch)?;
    store.commit(last, Barrier::Before)?;
    store.close()?;
    Ok(disk.media().as_read())
}
