//! Devices and processes.

use crate::figure::requests;
use crate::tables::cells;
use crate::{Traced, charts, section as whole};
use nvmed_chart::{Row, Unit, escaped, rows};
use nvmed_trace::{Cell, Part};

/// Parts of a trace that are shown: those with most requests.
const SHOWN: usize = 25;
/// What is shown of each.
const CELLS: [Cell; 9] = [
    Cell::Requests,
    Cell::Data,
    Cell::Mean,
    Cell::WriteRequests,
    Cell::WriteBytes,
    Cell::NoWait,
    Cell::Service,
    Cell::Response,
    Cell::Spatial,
];

/// The parts with most requests, and a line about the others.
fn shown<'a>(parts: &'a [Part], what: &str) -> (Vec<&'a Part>, String) {
    let mut parts: Vec<&Part> = parts.iter().collect();
    parts.sort_by_key(|part| std::cmp::Reverse(requests(part)));
    let others = parts.len().saturating_sub(SHOWN);
    parts.truncate(SHOWN);
    let note = match others {
        0 => String::new(),
        _ => format!("<p class=\"note\">{others} more {what} have fewer requests.</p>\n"),
    };
    (parts, note)
}

/// Data of each part, read and written.
fn data(title: &str, parts: &[&Part]) -> String {
    let row = |part: &&Part| {
        let sum = |of: fn(&nvmed_trace::SizeClass) -> u64| part.sizes.iter().map(of).sum::<u64>() as f64;
        Row::new(&part.row.name, vec![sum(|class| class.read_bytes), sum(|class| class.write_bytes)])
    };
    let all: Vec<Row> = parts.iter().map(row).collect();
    rows(title, &|bytes| Unit::Bytes.text(bytes), &["read", "written"], &all)
}

fn of_trace(trace: &Traced<'_>, all: &[Part], one: &str, many: &str) -> String {
    let (parts, note) = shown(all, many);
    format!(
        "<details><summary>{}</summary>\n{}{note}{}</details>\n",
        escaped(&format!("{} {many} of {}", all.len(), trace.name())),
        cells(one, &CELLS, &parts),
        charts(&[data(&format!("{}: data by {one}", trace.name()), &parts)])
    )
}

/// Devices of traces with several, and processes of traces that tell them.
pub(crate) fn section(traces: &[Traced<'_>]) -> String {
    let devices = traces.iter().filter(|trace| trace.summary.devices.len() > 1);
    let devices = devices.map(|trace| of_trace(trace, &trace.summary.devices, "device", "devices"));
    let processes = traces.iter().filter(|trace| !trace.summary.processes.is_empty());
    let processes = processes.map(|trace| of_trace(trace, &trace.summary.processes, "process", "processes"));
    whole("Devices", "By their requests.", &devices.collect::<String>())
        + &whole("Processes", "By their requests.", &processes.collect::<String>())
}
