//! `nvmed trace analyse`: what traces are like, side by side.

use super::arguments::{Analyse, Reading};
use crate::failure::Failure;
use crate::output::Output;
use nvmed_report::Traced;
use nvmed_trace::{Analysis, Characteristic, Part, Request, Row, Summary, Timeline};
use serde_json::json;
use std::path::Path;

/// Shows what traces are like.
///
/// # Errors
/// A trace cannot be read.
pub fn run(arguments: &Analyse) -> Result<(), Failure> {
    let mut timelines = Vec::new();
    let mut summaries = Vec::new();
    for file in &arguments.files {
        let mut timeline = arguments.html.as_ref().map(|_| Timeline::default());
        let each = |request: &Request| timeline.iter_mut().for_each(|timeline| timeline.push(request));
        summaries.push(summary(file, &arguments.reading, arguments.reuse, each)?);
        timelines.push(timeline);
    }
    if let Some(path) = &arguments.html {
        let timelines = timelines.iter().map(Option::as_ref);
        let traced: Vec<Traced<'_>> =
            summaries.iter().zip(timelines).map(|(summary, timeline)| Traced { summary, timeline }).collect();
        super::write_whole(path, &nvmed_report::report(&traced))?;
    }
    let rows: Vec<Row> = summaries.iter().map(|summary| summary.all.row.clone()).collect();
    let characteristics = Characteristic::all(&rows);
    let mut out = Output::new();
    if arguments.json {
        let text = format!("{:#}\n", json!({ "traces": summaries, "characteristics": characteristics }));
        out.text(&text)?;
        return out.finish();
    }
    let wholes: Vec<Part> = summaries.iter().map(whole).collect();
    let mut parts: Vec<&Part> = wholes.iter().collect();
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

/// What a trace as a whole is like, with its name: of one device, what that is like, which says more.
fn whole(summary: &Summary) -> Part {
    let mut part = match summary.devices.as_slice() {
        [only] => only.clone(),
        _ => summary.all.clone(),
    };
    part.row.name.clone_from(&summary.all.row.name);
    part
}

/// Analyses a trace, which is called as its file; `each` is told its requests, too.
///
/// # Errors
/// The trace cannot be read.
pub fn summary(
    file: &Path,
    reading: &Reading,
    reuse: bool,
    mut each: impl FnMut(&Request),
) -> Result<Summary, Failure> {
    let mut source = super::open(file, reading)?;
    let mut analysis = Analysis::default();
    if reuse {
        analysis = analysis.with_reuse();
    }
    loop {
        let batch = source.batch().map_err(super::failure)?;
        if batch.is_empty() {
            break;
        }
        for request in batch {
            analysis.push(request);
            each(request);
        }
    }
    super::report(file, &source);
    let names = source.names();
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    Ok(analysis.finish().named(&name, &names.devices, &names.processes))
}
