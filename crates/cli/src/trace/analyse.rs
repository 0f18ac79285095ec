//! `nvmed trace analyse`: what traces are like, side by side.

use super::arguments::{Analyse, Reading};
use crate::failure::Failure;
use crate::output::Output;
use crate::paths::Paths;
use nvmed_report::Traced;
use nvmed_trace::{Analysis, Characteristic, Counts, Part, Request, Row, Source, Summary, Timeline, shown};
use serde_json::json;
use std::path::{Component, Path, PathBuf};

/// Version of what `--json` prints: another one where a field goes, or means something else.
const JSON_SCHEMA: u32 = 2;

/// Shows what traces are like.
///
/// # Errors
/// A trace cannot be read.
pub fn run(arguments: &Analyse) -> Result<(), Failure> {
    let paths = arguments.files.iter().fold(Paths::default(), |paths, file| paths.reads_trace(file));
    paths.writes(arguments.html.as_deref(), "--html").check("trace analyse")?;
    let mut shown_beside = Vec::new();
    let mut summaries = Vec::new();
    for (file, name) in arguments.files.iter().zip(names(&arguments.files)) {
        let mut timeline = arguments.html.as_ref().map(|_| Timeline::default());
        let each = |request: &Request| timeline.iter_mut().for_each(|timeline| timeline.push(request));
        let (summary, counts) = summary(arguments, file, &name, each)?;
        summaries.push(summary);
        shown_beside.push((timeline, super::files::unused(counts)));
    }
    if let Some(path) = &arguments.html {
        let traced = summaries.iter().zip(&shown_beside).map(|(summary, (timeline, remarks))| Traced {
            summary,
            timeline: timeline.as_ref(),
            remarks,
        });
        super::files::write_whole(path, &nvmed_report::report(&traced.collect::<Vec<_>>()))?;
    }
    let rows: Vec<Row> = summaries.iter().map(|summary| summary.all.row.clone()).collect();
    let characteristics = Characteristic::all(&rows);
    let mut out = Output::new();
    if arguments.json {
        let found = json!({ "schema": JSON_SCHEMA, "traces": summaries, "characteristics": characteristics });
        out.text(&format!("{found:#}\n"))?;
        return out.finish();
    }
    out.text(&table(&summaries, arguments.processes))?;
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

/// The traces side by side, then the devices of those that have several, and processes, if they are asked for. Beside
/// another trace's, they are called by their trace as well.
fn table(summaries: &[Summary], processes: bool) -> String {
    let mut parts: Vec<Part> = summaries.iter().map(|summary| summary.all.clone()).collect();
    for summary in summaries {
        let devices = summary.devices.iter().filter(|_| summary.devices.len() > 1);
        for part in devices.chain(summary.processes.iter().filter(|_| processes)) {
            let mut part = part.clone();
            if summaries.len() > 1 {
                part.row.name = format!("{} {}", summary.all.row.name, part.row.name);
            }
            parts.push(part);
        }
    }
    nvmed_trace::table(&parts.iter().collect::<Vec<_>>())
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
fn summary(
    arguments: &Analyse,
    file: &Path,
    name: &str,
    each: impl FnMut(&Request),
) -> Result<(Summary, Counts), Failure> {
    let mut analysis = Analysis::default();
    if arguments.reuse {
        analysis = analysis.with_reuse();
    }
    let source = read(file, &arguments.reading, &mut analysis, each)?;
    let names = source.names();
    let summary = analysis.finish().named(name, &names.devices, &names.processes);
    Ok((summary.come_from(source.provenance()), source.counts()))
}

/// Gives a trace to an analysis, and says what of it was not used; `each` is told its requests, too.
///
/// # Errors
/// The trace cannot be read.
pub fn read(
    file: &Path,
    reading: &Reading,
    analysis: &mut Analysis,
    mut each: impl FnMut(&Request),
) -> Result<Source, Failure> {
    let mut source = super::files::open(file, reading)?;
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
    Ok(source)
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
