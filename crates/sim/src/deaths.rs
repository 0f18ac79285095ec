//! The process dies, the device does not: everything completed is there, once its memory is salvaged.

use crate::cuts::{Case, Failure, Tally, panic_text, sound, sound_after_cut};
use crate::model::Model;
use crate::mount::{laid_out, memory, mount, parts};
use crate::recording::Recording;
use crate::runner::{now, wind_clock};
use crate::survey::Survey;
use nvmed_dice::Dice;
use nvmed_disk::{Death, Disk, Manner, Volatile};
use nvmed_fs::{MountOptions, salvage};
use nvmed_sys::sync::Arc;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Outcomes from here on: the process died inside the call that caused the event.
pub(crate) const DEATH: u64 = 200;

/// What the clock shows while a salvage runs, at most, from its start on.
const SALVAGE_NS: i64 = 3600 * 1_000_000_000;

/// Cuts of each salvage, each an outcome more.
const CUTS: u64 = 3;

/// Examines the deaths of a recording, and the power that goes while one is salvaged.
pub fn examine_all(seed: u64, recording: &Recording, only: Option<(u64, u64)>, tally: &mut Tally) {
    for death in &recording.deaths {
        for cut in 0..=CUTS {
            let case = Case { seed, cut: death.events, outcome: DEATH + cut };
            if only.is_some_and(|only| only != (case.cut, case.outcome)) {
                continue;
            }
            let dice = Dice::of(&[seed, death.events, cut]);
            let found = catch_unwind(AssertUnwindSafe(|| examine(recording, death, cut > 0, dice)));
            tally.states += 1;
            *(if cut > 0 { &mut tally.salvages } else { &mut tally.deaths }) += 1;
            let why = match found {
                Ok(Ok(())) => continue,
                Ok(Err(why)) => why,
                Err(panic) => format!("panic: {}", panic_text(&*panic)),
            };
            tally.failures.push(Failure { case, why: format!("death of the process: {why}") });
        }
    }
}

/// What is promised while event `number` is the last that came.
fn model_at(recording: &Recording, number: u64, cut: bool) -> Model {
    let model = recording.model.clone();
    let mut model = if cut { model } else { model.for_death() };
    for step in &recording.steps {
        if step.events.1 < number {
            model.begin(step);
            model.end(step);
        } else if step.events.0 < number {
            model.begin(step);
        } else {
            break;
        }
    }
    let start = wind_clock();
    model.salvaged((start, start + SALVAGE_NS));
    model
}

/// With `cut`, the power goes while or after the memory is written out.
fn examine(recording: &Recording, death: &Death, cut: bool, mut dice: Dice) -> Result<(), String> {
    wind_clock();
    let mut model = model_at(recording, death.events, false);
    let disk = Disk::with(death.media.clone(), &mut dice);
    disk.record();
    let options = MountOptions { clock: recording.setting.options.clock, ..MountOptions::default() };
    let parts = memory().and_then(|memory| parts(&disk, memory, options.clone()));
    let parts = parts.map_err(|error| error.to_string())?;
    let files = salvage(parts, &laid_out(Arc::clone(&death.memory)), &[])
        .map_err(|error| format!("salvage: {error}"))?;
    let (salvaged, from) = (disk.recorded(), now());
    let found = Survey::of(&files).map_err(|ended| ended.to_string())?;
    found.check(&model)?;
    model.looked_at((from, now()));
    files.unmount().map_err(|error| format!("unmount: {error}"))?;
    drop(files);
    sound(&disk, "after the salvage")?;
    if !cut {
        return Ok(());
    }
    // Until the salvage has returned, a cut may take what was not durable, and the memory is gone, too.
    let trace = disk.take_trace();
    let all = trace.events.len() as u64;
    let at = dice.roll(all + 1);
    let model = if at < salvaged { model_at(recording, death.events, true) } else { model };
    let mut media = death.media.clone();
    media.abandon();
    trace.events[..at as usize].iter().for_each(|&event| media.follow(event, &trace));
    let manner = Manner::of(dice.roll(3), &mut dice);
    let disk = Disk::with(Volatile::new(media.after_cut(&trace, manner, &mut dice)), &mut dice);
    let told = |why: String| {
        format!("power cut, {manner:?} after {at} of {all} events, salvaged at {salvaged}: {why}")
    };
    sound_after_cut(&disk, "then").map_err(told)?;
    let files = mount(&disk, options).map_err(|error| told(format!("mount: {error}")))?;
    let found = Survey::of(&files).map_err(|ended| told(ended.to_string()))?;
    found.check(&model).map_err(told)
}
