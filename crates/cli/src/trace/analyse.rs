//! `nvmed trace analyse`: what traces are like, side by side.

use super::arguments::Reading;
use crate::failure::Failure;
use crate::output::Output;
use clap::Args;
use nvmed_trace::{Analysis, Characteristic, Part, Row, Summary};
use serde_json::json;
use std::path::{Path, PathBuf};

/// `nvmed trace analyse`.
#[derive(Debug, Args)]
pub struct Analyse {
    /// Traces, which are shown side by side
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Print JSON, with devices, processes and all classes of the distributions
    #[arg(long)]
    pub json: bool,
    /// Show processes, too
    #[arg(long, conflicts_with = "json")]
    pub processes: bool,
    /// Find reuse distances, too, which takes some microseconds a request
    #[arg(long)]
    pub reuse: bool,
    /// How they are read
    #[command(flatten)]
    pub reading: Reading,
}

/// Shows what traces are like.
///
/// # Errors
/// A trace cannot be read.
pub fn run(arguments: &Analyse) -> Result<(), Failure> {
    let summaries = arguments.files.iter().map(|file| summary(file, &arguments.reading, arguments.reuse));
    let summaries = summaries.collect::<Result<Vec<Summary>, Failure>>()?;
    let rows: Vec<Row> = summaries.iter().map(|summary| summary.all.row.clone()).collect();
    let characteristics = Characteristic::all(&rows);
    let mut out = Output::new();
    if arguments.json {
        let text = format!("{:#}\n", json!({ "traces": summaries, "characteristics": characteristics }));
        out.text(&text)?;
        return out.finish();
    }
    let mut parts: Vec<&Part> = summaries.iter().map(whole).collect();
    for summary in &summaries {
        if summary.devices.len() > 1 {
            parts.extend(&summary.devices);
        }
        if arguments.processes {
            parts.extend(&summary.processes);
        }
    }
    out.text(&nvmed_trace::table(&parts))?;
    for summary in &summaries {
        let remarks = nvmed_trace::remarks(summary);
        if !remarks.is_empty() {
            out.text(&format!("\n{}\n{remarks}", summary.all.row.name))?;
        }
    }
    out.text(&format!("\n{}", nvmed_trace::characteristics(&characteristics)))?;
    out.finish()
}

/// What a trace as a whole is like: of one device, what that is like, which says more.
pub fn whole(summary: &Summary) -> &Part {
    match summary.devices.as_slice() {
        [only] => only,
        _ => &summary.all,
    }
}

/// Analyses a trace, which is called as its file.
///
/// # Errors
/// The trace cannot be read.
pub fn summary(file: &Path, reading: &Reading, reuse: bool) -> Result<Summary, Failure> {
    let mut source = super::open(file, reading)?;
    let mut analysis = Analysis::default();
    if reuse {
        analysis = analysis.with_reuse();
    }
    while let Some(request) = source.next().map_err(super::failure)? {
        analysis.push(&request);
    }
    super::report(file, &source);
    let names = source.names();
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    Ok(analysis.finish().named(&name, &names.devices, &names.processes))
}
