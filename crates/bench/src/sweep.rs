//! The row of a sweep: what a second worker is good for.

use crate::files::ROUNDS;
use crate::row::{Contender, Goal, Row};
use nvmed_flash::Profile;
use nvmed_lab::machine::now_ns;
use nvmed_lab::samples::Samples;
use nvmed_replay::{Answer, Digested, Input, Trial, TrialError, sweep};
use nvmed_stack::DriveProfile;
use nvmed_trace::Options;
use std::path::Path;

/// The row's name.
pub const NAME: &str = "trace.sweep";
const DRIVES: [&str; 3] = ["emmc", "emmc-8ps", "emmc-hps"];
const TRACES: [&str; 6] =
    ["synth:Music", "synth:Messaging", "synth:Movie", "synth:Twitter", "synth:Email", "synth:Facebook"];

/// Wall time of a sweep of eighteen cells by two workers, beside one; both find the same.
///
/// # Errors
/// There is no such drive or trace, or the answers differ.
pub fn measure() -> Result<Vec<Row>, String> {
    let drive = |name: &&str| -> Result<Profile, String> {
        let named = DriveProfile::named(name).map_err(|fault| fault.to_string())?;
        named.drive(named.usual_bytes()).map_err(|fault| fault.to_string())
    };
    let drives = DRIVES.iter().map(drive).collect::<Result<Vec<Profile>, String>>()?;
    let trace = |name: &&str| -> Result<Digested, String> {
        let input =
            Input::named(name, Path::new(""), Options::default()).map_err(|error| error.to_string())?;
        Ok(Digested::of(input).map_err(|error| error.to_string())?.0)
    };
    let traces = TRACES.iter().map(trace).collect::<Result<Vec<Digested>, String>>()?;
    let trials: Vec<Trial<'_>> = drives
        .iter()
        .flat_map(|drive| traces.iter().map(move |trace| Trial { drive, is_used: false, trace }))
        .collect();
    let run = |workers: usize| -> Result<(f64, Vec<Answer>), String> {
        let mut answers = vec![Answer::default(); trials.len()];
        let begin = now_ns();
        let each = |number: usize, answer| -> Result<(), TrialError> {
            answers[number] = answer;
            Ok(())
        };
        sweep(&trials, workers, each).map_err(|error| error.to_string())?;
        Ok(((now_ns() - begin) as f64 / 1e6, answers))
    };
    let (mut two, mut one) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        let (ours, theirs) = (run(2)?, run(1)?);
        if ours.1 != theirs.1 {
            return Err("two workers have found something else than one".to_owned());
        }
        two.push(ours.0);
        one.push(theirs.0);
    }
    let contender = |name: &str, samples| Contender { name: name.to_owned(), samples };
    let conditions = format!(
        "{} drives of Table V x {} synthesised traces, {ROUNDS} rounds of both in turn; wall time of all cells",
        DRIVES.len(),
        TRACES.len()
    );
    Ok(vec![Row {
        name: NAME.to_owned(),
        unit: "ms",
        ours: contender("two workers", two),
        rival: Some(contender("one worker", one)),
        goal: Goal::Ratio(0.85),
        flushes_per_op: None,
        conditions,
    }])
}
