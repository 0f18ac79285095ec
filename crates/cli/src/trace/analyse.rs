//! `nvmed trace analyse`: what traces are like, side by side.

use super::arguments::{Analyse, Reading};
use crate::failure::Failure;
use crate::output::Output;
use nvmed_report::Traced;
use nvmed_trace::{Analysis, Characteristic, Part, Request, Row, Summary, Timeline, shown};
use serde_json::json;
use std::path::{Component, Path, PathBuf};

/// Version of what `--json` prints: another one where a field goes, or means something else.
const JSON_SCHEMA: u32 = 2;

/// Shows what traces are like.
///
/// # Errors
/// A trace cannot be read.
pub fn run(arguments: &Analyse) -> Result<(), Failure> {
    let mut timelines = Vec::new();
    let mut summaries = Vec::new();
    for (file, name) in arguments.files.iter().zip(names(&arguments.files)) {
        let mut timeline = arguments.html.as_ref().map(|_| Timeline::default());
        let each = |request: &Request| timeline.iter_mut().for_each(|timeline| timeline.push(request));
        summaries.push(summary(file, &name, &arguments.reading, arguments.reuse, each)?);
        timelines.push(timeline);
    }
    if let Some(path) = &arguments.html {
        let timelines = timelines.iter().map(Option::as_ref);
        let traced: Vec<Traced<'_>> =
            summaries.iter().zip(timelines).map(|(summary, timeline)| Traced { summary, timeline }).collect();
        super::files::write_whole(path, &nvmed_report::report(&traced))?;
    }
    let rows: Vec<Row> = summaries.iter().map(|summary| summary.all.row.clone()).collect();
    let characteristics = Characteristic::all(&rows);
    let mut out = Output::new();
    if arguments.json {
        let found = json!({ "schema": JSON_SCHEMA, "traces": summaries, "characteristics": characteristics });
        out.text(&format!("{found:#}\n"))?;
        return out.finish();
    }
    let mut parts: Vec<&Part> = summaries.iter().map(|summary| &summary.all).collect();
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
            out.text(&format!("\n{}\n{remarks}", shown(&summary.all.row.name)))?;
        }
    }
    let verdicts =
        if arguments.characteristics { nvmed_trace::characteristics } else { nvmed_trace::verdicts };
    out.text(&format!("\n{}", verdicts(&characteristics)))?;
    out.finish()
}

/// What traces are called: each by the end of its path, as much of it as tells it from the others.
fn names(files: &[PathBuf]) -> Vec<String> {
    let parts: Vec<Vec<Component<'_>>> = files.iter().map(|file| file.components().collect()).collect();
    let end = |parts: &[Component<'_>], count: usize| -> PathBuf {
        parts[parts.len().saturating_sub(count)..].iter().collect()
    };
    let name = |at: usize| {
        let others = || parts.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, parts)| parts);
        let lengths = 1..=parts[at].len();
        let distinct = lengths.map(|count| (count, end(&parts[at], count)));
        let mut distinct = distinct.filter(|(count, name)| others().all(|other| end(other, *count) != *name));
        let earlier = parts[..at].iter().filter(|other| **other == parts[at]).count();
        match distinct.next() {
            Some((_, name)) => name.display().to_string(),
            // The same file, once more.
            None if earlier > 0 => format!("{} ({})", files[at].display(), earlier + 1),
            None => files[at].display().to_string(),
        }
    };
    (0..files.len()).map(name).collect()
}

/// Analyses a trace, which is called so; `each` is told its requests, too.
///
/// # Errors
/// The trace cannot be read.
pub fn summary(
    file: &Path,
    name: &str,
    reading: &Reading,
    reuse: bool,
    mut each: impl FnMut(&Request),
) -> Result<Summary, Failure> {
    let mut source = super::files::open(file, reading)?;
    let mut analysis = Analysis::default();
    if reuse {
        analysis = analysis.with_reuse();
    }
    loop {
        let batch = source.batch().map_err(super::files::failure)?;
        if batch.is_empty() {
            break;
        }
        for request in batch {
            analysis.push(request);
            each(request);
        }
    }
    super::files::report(file, &source);
    let names = source.names();
    Ok(analysis.finish().named(name, &names.devices, &names.processes).come_from(source.provenance()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_called_as_shortly_as_tells_them_apart() {
        let called = |files: &[&str]| names(&files.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(called(&["/x/a/t"]), ["t"]);
        assert_eq!(called(&["a/t", "b/t", "c/u"]), ["a/t", "b/t", "u"]);
        assert_eq!(called(&["/x/a/t", "/y/a/t", "t"]), ["x/a/t", "y/a/t", "t"]);
        assert_eq!(called(&["a/t", "a/t"]), ["a/t", "a/t (2)"]);
    }
}
