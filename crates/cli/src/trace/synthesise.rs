//! `nvmed trace synthesise`: a trace like a description.

use super::analyse;
use super::arguments::{Reading, Synthesise};
use crate::failure::Failure;
use nvmed_trace::{Analysis, Catalogue, Cell, Model, Part, Row, Sink, SynthError, Synthesis};
use std::path::Path;

/// How far a cell may be off without being told, as a share of it.
const TOLERANCE: f64 = 0.02;
/// How far the working set may be off.
const WORKING_SET_TOLERANCE: f64 = 0.05;

/// Writes a trace, and says how far it is off its description.
///
/// # Errors
/// There is no such row, the trace cannot be read, there can be no such trace, or it cannot be written.
pub fn run(arguments: &Synthesise) -> Result<(), Failure> {
    let (row, model, touched) = match (&arguments.row, &arguments.like) {
        (_, Some(file)) => like(file, &arguments.reading)?,
        (name, None) => {
            let (row, model) = published(name.as_deref().unwrap_or_default())?;
            (row, model, None)
        }
    };
    let model = model.scaled(arguments.rate, arguments.footprint);
    // Scaled, it cannot be what it is like; but it can be what it was to be.
    let row = if arguments.rate == 1.0 { row } else { model.row(&row.name) };
    let synthesis = Synthesis::of(&model, arguments.seed).map_err(|error| failure(&row.name, &error))?;
    let mut sink = Sink::create(&arguments.output, arguments.to_format).map_err(super::files::failure)?;
    let names = Catalogue::default();
    let mut analysis = Analysis::default();
    for request in synthesis {
        analysis.push(&request);
        sink.write(&request, &names).map_err(super::files::failure)?;
    }
    let written = sink.finish(&names).map_err(super::files::failure)?;
    let summary = analysis.finish();
    let found = &summary.all.row;
    let output = arguments.output.display();
    let requests = found.get(Cell::Requests).unwrap_or(0.0) - written.left_out as f64;
    eprintln!("nvmed: {output}: {requests} requests like {}", row.name);
    super::files::tell(&arguments.output, arguments.to_format, &written);
    let missed = row.missed_by(found, TOLERANCE);
    for (cell, told, found) in missed.into_iter().filter(|(cell, ..)| cell.is_of_tables()) {
        let found = found.map_or_else(|| "not known".to_owned(), |found| format!("{found:.4}"));
        eprintln!("nvmed: {output}: {} is {found}, and {told:.4} in {}", cell.name(), row.name);
    }
    // A smaller range may have no room for it.
    let told = touched.filter(|_| arguments.footprint >= 1.0);
    if let (Some(told), Some(found)) = (told, summary.devices.first().and_then(touched_kib))
        && told.abs_diff(found) as f64 > WORKING_SET_TOLERANCE * told as f64
    {
        eprintln!("nvmed: {output}: touched KiB are {found}, and {told} in {}", row.name);
    }
    Ok(())
}

/// A row of the paper.
fn published(name: &str) -> Result<(Row, Model), Failure> {
    let row = Row::published_as(name).ok_or_else(|| {
        let names: Vec<String> = Row::published().into_iter().map(|row| row.name).collect();
        Failure::usage(format!("no row is called {name}; there are {}", names.join(", ")))
    })?;
    let model = Model::of(&row).map_err(|error| failure(&row.name, &error))?;
    Ok((row, model))
}

/// The busiest device of a trace, with its working set in KiB.
fn like(file: &Path, reading: &Reading) -> Result<(Row, Model, Option<u64>), Failure> {
    let name = file.display().to_string();
    let summary = analyse::summary(file, &name, reading, true, |_| {})?;
    let requests = |part: &&Part| part.row.get(Cell::Requests).unwrap_or(0.0) as u64;
    let part = summary.devices.iter().max_by_key(requests).unwrap_or(&summary.all);
    let mut model = Model::like(part).map_err(|error| failure(&name, &error))?;
    if let Some(distances) = &summary.reuse {
        model = model.with_reuse(distances);
    }
    let mut row = part.row.clone();
    row.name = name;
    Ok((row, model, touched_kib(part)))
}

/// The working set, where all of it was counted.
fn touched_kib(part: &Part) -> Option<u64> {
    part.working_set.as_ref().filter(|set| set.not_counted_kib == 0).map(|set| set.distinct_kib)
}

fn failure(name: &str, error: &SynthError) -> Failure {
    Failure::new(crate::failure::Status::Failed, format!("{name}: {error}"))
}
