//! I/O characteristics of smartphone applications (Zhou, Pan, Wang and Xie, IISWC'15), on traces that are synthesised
//! from the rows of its Tables III and IV: the traces behind them are not public as a set.

mod aged;
mod hps;
mod implications;
mod overhead;
mod real;
mod tables;
mod throughput;

pub(super) use aged::Aged;
pub(super) use hps::{ResponseTime, Space};
pub(super) use implications::Implications;
pub(super) use overhead::Overhead;
pub(super) use tables::{CharacteristicsHold, Combinations, SinglePages, TABLE_3, TABLE_4};
pub(super) use throughput::Throughput;

use crate::error::LabError;
use nvmed_flash::Profile;
use nvmed_replay::{Simulated, Simulation};
use nvmed_trace::{Analysis, Model, Part, Request, Row, Synthesis};

/// The applications among the rows; the others are combinations of them.
const APPLICATIONS: usize = 18;

/// The paper's rows of the applications.
pub(super) fn applications() -> Vec<Row> {
    Row::published().into_iter().take(APPLICATIONS).collect()
}

/// A trace like a row.
pub(super) fn synthesised(row: &Row, seed: u64) -> Result<impl Iterator<Item = Request>, LabError> {
    let failed = |error| LabError::missing(format!("no trace is like the row of {}: {error}", row.name));
    let model = Model::of(row).map_err(failed)?;
    Synthesis::of(&model, seed).map_err(failed)
}

/// Serves a trace on a new drive, or on one that was used for long: what drives do with it, of which each request, when
/// it is done, goes to `each`.
fn served(
    profile: &Profile,
    is_used: bool,
    first: impl Iterator<Item = Request>,
    second: impl Iterator<Item = Request>,
    mut each: impl FnMut(Request),
) -> Result<Simulated, LabError> {
    Simulation::new(profile, is_used)?.serve(first.map(Ok), second.map(Ok), |request| {
        each(request);
        Ok(())
    })
}

/// What a trace is like.
fn analysed(requests: impl Iterator<Item = Request>) -> Part {
    let mut analysis = Analysis::default();
    requests.for_each(|request| analysis.push(&request));
    analysis.finish().all
}

/// The rows of the paper, or its applications alone, of traces that are like them.
fn found(count: usize, seed: u64) -> Result<Vec<Row>, LabError> {
    let like = |row: &Row| {
        let mut like = analysed(synthesised(row, seed)?).row;
        like.name.clone_from(&row.name);
        Ok(like)
    };
    Row::published().iter().take(count).map(like).collect()
}

#[cfg(test)]
mod tests {
    use super::{CharacteristicsHold, Combinations, SinglePages, TABLE_3, TABLE_4};
    use crate::{Effort, Experiment};

    #[test]
    fn traces_like_the_rows_are_like_the_rows() {
        let experiments: [&dyn Experiment; 5] =
            [&TABLE_3, &TABLE_4, &CharacteristicsHold, &SinglePages, &Combinations];
        for experiment in experiments {
            let outcome = crate::run(experiment, &Effort { quick: true });
            assert!(outcome.met, "{}", outcome.line());
        }
    }
}
