//! `nvmed trace synthesise`: a trace like a description.

use super::analyse;
use super::arguments::{Reading, format};
use crate::failure::Failure;
use clap::Args;
use nvmed_trace::{Analysis, Catalogue, Cell, Format, Model, Row, Sink, SynthError, Synthesis};
use std::path::{Path, PathBuf};

/// How far a cell may be off without being told, as a share of it.
const TOLERANCE: f64 = 0.02;

/// `nvmed trace synthesise`.
#[derive(Debug, Args)]
pub struct Synthesise {
    /// An application or a combination of IISWC'15, as `Twitter` or `Music/FB`
    #[arg(value_name = "ROW", required_unless_present = "like", conflicts_with = "like")]
    pub row: Option<String>,
    /// A trace that it is to be like: of several devices, the one with the most requests
    #[arg(long, value_name = "FILE")]
    pub like: Option<PathBuf>,
    /// The same seed gives the same trace
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The file to write, which is there when it is whole
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// So many times the requests a second
    #[arg(long, value_name = "X", default_value = "1", value_parser = factor)]
    pub rate: f64,
    /// So many times the range of offsets
    #[arg(long, value_name = "X", default_value = "1", value_parser = factor)]
    pub footprint: f64,
    /// Format to write
    #[arg(long = "to", value_name = "FORMAT", default_value = "parquet", value_parser = format)]
    pub to_format: &'static Format,
    /// How the trace is read that it is to be like
    #[command(flatten)]
    pub reading: Reading,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "it is a number".to_owned())?;
    if (1e-6..=1e6).contains(&factor) { Ok(factor) } else { Err("it is from 0.000001 to 1000000".to_owned()) }
}

/// Writes a trace, and says how far it is off its description.
///
/// # Errors
/// There is no such row, the trace cannot be read, there can be no such trace, or it cannot be written.
pub fn run(arguments: &Synthesise) -> Result<(), Failure> {
    let (row, model) = match (&arguments.row, &arguments.like) {
        (_, Some(file)) => like(file, &arguments.reading)?,
        (name, None) => published(name.as_deref().unwrap_or_default())?,
    };
    let model = model.scaled(arguments.rate, arguments.footprint);
    // Scaled, it cannot be what it is like; but it can be what it was to be.
    let row = if arguments.rate == 1.0 { row } else { model.row(&row.name) };
    let synthesis = Synthesis::of(&model, arguments.seed).map_err(|error| failure(&row.name, &error))?;
    let mut sink = Sink::create(&arguments.output, arguments.to_format).map_err(super::failure)?;
    let names = Catalogue::default();
    let mut analysis = Analysis::default();
    for request in synthesis {
        analysis.push(&request);
        sink.write(&request, &names).map_err(super::failure)?;
    }
    let left_out = sink.finish(&names).map_err(super::failure)?;
    let found = analysis.finish().all.row;
    let output = arguments.output.display();
    let requests = found.get(Cell::Requests).unwrap_or(0.0) - left_out as f64;
    eprintln!("nvmed: {output}: {requests} requests like {}", row.name);
    let missed = row.missed_by(&found, TOLERANCE);
    for (cell, told, found) in missed.into_iter().filter(|(cell, ..)| cell.is_of_tables()) {
        let found = found.map_or_else(|| "not known".to_owned(), |found| format!("{found:.4}"));
        eprintln!("nvmed: {output}: {} is {found}, and {told:.4} in {}", cell.name(), row.name);
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

/// The busiest device of a trace.
fn like(file: &Path, reading: &Reading) -> Result<(Row, Model), Failure> {
    let summary = analyse::summary(file, reading, false, |_| {})?;
    let requests = |part: &&nvmed_trace::Part| part.row.get(Cell::Requests).unwrap_or(0.0) as u64;
    let part = summary.devices.iter().max_by_key(requests).unwrap_or(&summary.all);
    let name = file.display().to_string();
    let model = Model::like(part).map_err(|error| failure(&name, &error))?;
    let mut row = part.row.clone();
    row.name = name;
    Ok((row, model))
}

fn failure(name: &str, error: &SynthError) -> Failure {
    Failure::new(crate::failure::Status::Failed, format!("{name}: {error}"))
}
