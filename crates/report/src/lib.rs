//! The pages that show what an analysis of traces found, for one trace or for several side by side, and what a sweep
//! over drives did.
//!
//! In: a [`Summary`] of each trace, and its [`Timeline`] where time is to be seen. Out: HTML that needs no other file.
//! Neighbours: `trace` finds, `chart` draws; the command line and the experiments are above.
//! Invariants: what a trace cannot tell is a dash or a chart that is not there, never a 0; names are escaped.
//! Source: Zhou, Pan, Wang and Xie, IISWC 2015, Tables III and IV, Figures 3 to 7.

#![forbid(unsafe_code)]

mod distributions;
mod figure;
mod locality;
mod over_time;
mod parties;
mod sweep;
mod tables;
mod verdicts;
mod waiting;

pub use sweep::{Swept, SweptTrace, sweep};

use nvmed_chart::document;
use nvmed_trace::{Part, Summary, Timeline};

/// A trace as the page shows it.
#[derive(Clone, Copy, Debug)]
pub struct Traced<'a> {
    /// What it is like.
    pub summary: &'a Summary,
    /// When and where its requests are; a trace without has no charts over time.
    pub timeline: Option<&'a Timeline>,
    /// What else is to be said of it, as of lines that were malformed: a sentence each, without its full stop.
    pub remarks: &'a [String],
}

impl<'a> Traced<'a> {
    fn name(&self) -> &'a str {
        &self.summary.all.row.name
    }

    /// The name of a device.
    fn device(&self, number: u32) -> &'a str {
        let found = self.summary.devices.iter().find(|part| part.number == number);
        found.map_or("", |part| &part.row.name)
    }

    /// The device with most reads and writes: what is found by device is shown of this one.
    fn busiest(&self) -> Option<&'a Part> {
        self.summary.devices.iter().max_by_key(|part| figure::requests(part))
    }
}

/// The page of these traces.
#[must_use]
pub fn report(traces: &[Traced<'_>]) -> String {
    let names: Vec<&str> = traces.iter().map(Traced::name).collect();
    let title = match names.as_slice() {
        [] => "No traces".to_owned(),
        [name] => format!("Trace: {name}"),
        [first, .., last] if names.len() > 4 => format!("{} traces: {first} to {last}", names.len()),
        _ => format!("Traces: {}", names.join(", ")),
    };
    let sections = [
        tables::section(traces),
        distributions::section(traces),
        verdicts::section(traces),
        waiting::section(traces),
        locality::section(traces),
        over_time::section(traces),
        parties::section(traces),
        tables::provenance(traces),
    ];
    document(&title, &sections.concat())
}

/// A heading, what the section says in words, and what stands in it; nothing of nothing.
fn section(heading: &str, words: &str, content: &str) -> String {
    if content.is_empty() {
        return String::new();
    }
    format!("<h2>{heading}</h2>\n<p class=\"note\">{words}</p>\n{content}")
}

/// Charts side by side, as many as there is room for.
fn charts(charts: &[String]) -> String {
    let all = charts.concat();
    if all.is_empty() { all } else { format!("<div class=\"charts\">{all}</div>\n") }
}
