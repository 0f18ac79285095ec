//! The process dies, the device does not: everything completed is there, once its memory is salvaged.

use crate::cuts::{Failure, Place, Tally, panic_text, sound};
use crate::dice::Dice;
use crate::disk::{Death, Disk, memory};
use crate::model::Model;
use crate::recording::Recording;
use crate::runner::wind_clock;
use crate::survey::Survey;
use nvmed_fs::{MountOptions, salvage};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Outcomes from here on: the process died inside the call that caused the event.
pub const DEATH: u64 = 200;

/// Examines the deaths of a recording.
pub fn examine_all(seed: u64, recording: &Recording, only: Option<(u64, u64)>, tally: &mut Tally) {
    for death in &recording.deaths {
        let place = Place { seed, cut: death.events, outcome: DEATH };
        if only.is_some_and(|only| only != (place.cut, place.outcome)) {
            continue;
        }
        let model = model_at(recording, death.events);
        let found = catch_unwind(AssertUnwindSafe(|| examine(recording, death, &model)));
        tally.states += 1;
        tally.deaths += 1;
        let why = match found {
            Ok(Ok(())) => continue,
            Ok(Err(why)) => why,
            Err(panic) => format!("panic: {}", panic_text(&*panic)),
        };
        tally.failures.push(Failure { place, why: format!("death of the process: {why}") });
    }
}

/// What is promised while event `number` is the last that came.
fn model_at(recording: &Recording, number: u64) -> Model {
    let mut model = recording.model.clone().for_death();
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
    model
}

fn examine(recording: &Recording, death: &Death, model: &Model) -> Result<(), String> {
    wind_clock();
    let disk = Disk::with(death.media.clone(), &mut Dice::of(&[death.events]));
    let options = MountOptions { clock: recording.setting.options.clock, ..MountOptions::default() };
    let parts = memory().and_then(|memory| disk.parts(memory, options.clone()));
    let parts = parts.map_err(|error| error.to_string())?;
    let files = salvage(parts, &death.memory).map_err(|error| format!("salvage: {error}"))?;
    let found = Survey::of(&files).map_err(|ended| ended.to_string())?;
    found.check(model)?;
    files.unmount().map_err(|error| format!("unmount: {error}"))?;
    drop(files);
    sound(&disk, "after the salvage")
}
