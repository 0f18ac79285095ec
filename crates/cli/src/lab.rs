//! `nvmed lab`: the papers' experiments.

use crate::arguments::{Lab, LabCommand};
use crate::failure::{Failure, Status};
use crate::output::Output;
use crate::trace::make_calls;
use nvmed_lab::{Effort, Experiment, LabError, Outcome, check, experiments, page, read_outcomes, undo};
use nvmed_trace::OutputFile;
use std::path::Path;
use std::process::ExitCode;

/// Lists, runs or checks experiments.
///
/// # Errors
/// An experiment is not known, or results cannot be written or read.
pub fn lab(arguments: &Lab) -> Result<ExitCode, Failure> {
    match &arguments.command {
        LabCommand::List => list().map(|()| ExitCode::SUCCESS),
        LabCommand::Run { names, quick, out } => {
            let chosen = choose(names)?;
            // Whatever is mounted or made goes, also when this is killed: a second process does the work.
            match undo::supervise().map_err(failure)? {
                Some(status) => Ok(ExitCode::from(u8::try_from(status).unwrap_or(Status::Failed as u8))),
                None => run(&chosen, &Effort { quick: *quick }, out).map(|()| ExitCode::SUCCESS),
            }
        }
        LabCommand::Replay { prepare, times, trace, dir } => {
            make_calls("lab", (*prepare, *times), trace, dir).map(|()| ExitCode::SUCCESS)
        }
        LabCommand::Check { dir } => missed(dir),
    }
}

fn failure(error: LabError) -> Failure {
    let status = if matches!(error, LabError::Unknown { .. }) { Status::Usage } else { Status::Failed };
    Failure::new(status, format!("lab: {error}"))
}

fn list() -> Result<(), Failure> {
    let mut out = Output::new();
    for experiment in experiments() {
        let paper = nvmed_lab::paper(experiment.id());
        let printed = paper.map_or("-".to_owned(), |paper| paper.printed);
        out.text(&format!(
            "{:<28} {} (paper: {printed}; goal {})\n",
            experiment.id(),
            experiment.what(),
            experiment.goal().text()
        ))?;
    }
    out.finish()
}

/// The experiments that are meant: a name, how names begin, or `all`.
fn choose(names: &[String]) -> Result<Vec<&'static dyn Experiment>, Failure> {
    let all = experiments();
    for name in names.iter().filter(|name| *name != "all") {
        if !all.iter().any(|one| one.id().starts_with(name.as_str())) {
            return Err(failure(LabError::Unknown { name: name.clone() }));
        }
    }
    let wanted = |one: &&&dyn Experiment| {
        names.iter().any(|name| name == "all" || one.id().starts_with(name.as_str()))
    };
    Ok(all.iter().filter(wanted).copied().collect())
}

fn run(chosen: &[&dyn Experiment], effort: &Effort, dir: &Path) -> Result<(), Failure> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    println!("experiment | paper | measured (medians) | ratio (spread over rounds) | goal | met");
    for experiment in chosen {
        let outcome = nvmed_lab::run(*experiment, effort);
        println!("{}", outcome.line());
        outcome.advice.iter().for_each(|advice| println!("{}", advice.text()));
        if let Some(reason) = &outcome.skipped {
            eprintln!("nvmed: lab: {}: SKIPPED: {reason}", outcome.id);
        }
        outcome.save(dir).map_err(failure)?;
        outcomes.push(outcome);
    }
    // The page shows all that lies there, also of earlier runs.
    let all = read_outcomes(dir).map_err(failure)?;
    let path = dir.join("index.html");
    OutputFile::write(&path, page(&all).as_bytes())
        .map_err(|error| failure(LabError::program(path.display(), &error)))?;
    println!("results in {}", path.display());
    Ok(())
}

/// Names what misses its goal.
fn missed(dir: &Path) -> Result<ExitCode, Failure> {
    let outcomes = read_outcomes(dir).map_err(failure)?;
    let missed = check(&outcomes, experiments());
    let mut out = Output::new();
    missed.iter().try_for_each(|line| out.text(&format!("{line}\n")))?;
    out.text(&format!("{} of {} results miss their goals\n", missed.len(), outcomes.len()))?;
    let unrun = experiments().iter().filter(|one| !outcomes.iter().any(|outcome| outcome.id == one.id()));
    for experiment in unrun {
        out.text(&format!("{}: no result here\n", experiment.id()))?;
    }
    out.finish()?;
    Ok(if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(Status::Failed as u8) })
}
