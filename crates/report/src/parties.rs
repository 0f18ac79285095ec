//! Devices and processes.

use crate::figure::{requests, text};
use crate::tables::cells;
use crate::{Traced, charts, section as whole};
use nvmed_chart::{Row, Unit, escaped, rows, table};
use nvmed_trace::{Cell, Part};

/// Parts of a trace that are shown: those with most requests.
const SHOWN: usize = 25;
/// Parts that are shown without being asked for.
const OPEN_MAX: usize = 8;
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

/// A column: its heading, and the figure of a part, where it is known.
type Column = (&'static str, fn(&Part) -> Option<f64>);

/// What is shown of their times, below it.
const TIMES: [Column; 12] = [
    ("response p50 ms", |part| Some(part.latencies?.response.all?.p50_ms)),
    ("response p99 ms", |part| Some(part.latencies?.response.all?.p99_ms)),
    ("response max ms", |part| Some(part.latencies?.response.all?.max_ms)),
    ("service p99 ms", |part| Some(part.latencies?.service.all?.p99_ms)),
    ("mean waiting ms", |part| Some(part.waiting?.mean_ms)),
    ("utilisation %", |part| part.depth?.utilisation_pct),
    ("mean number in the system", |part| Some(part.waiting?.mean_in_system)),
    ("depth p50", |part| Some(part.depth?.p50 as f64)),
    ("depth p99", |part| Some(part.depth?.p99 as f64)),
    ("depth max", |part| Some(part.depth?.max as f64)),
    ("reads beside a write %", |part| Some(part.interference?.reads_beside_write_pct)),
    ("touched KiB", |part| Some(part.working_set.as_ref()?.distinct_kib as f64)),
];

/// Times and queues of each part, as far as any of them tells; nothing where none does.
fn times(what: &str, parts: &[&Part]) -> String {
    let told = TIMES.iter().filter(|(_, of)| parts.iter().any(|part| of(part).is_some()));
    let told: Vec<_> = told.collect();
    if told.is_empty() {
        return String::new();
    }
    let head: Vec<&str> = std::iter::once(what).chain(told.iter().map(|(name, _)| *name)).collect();
    let row = |part: &&Part| {
        let figures = told.iter().map(|(_, of)| text(of(part)));
        std::iter::once(part.row.name.clone()).chain(figures).collect()
    };
    table(&head, parts.iter().map(row))
}

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
        "<details{}><summary>{}</summary>\n{}{}{note}{}</details>\n",
        if parts.len() <= OPEN_MAX { " open" } else { "" },
        escaped(&format!("{} {many} of {}", all.len(), trace.name())),
        cells(one, &CELLS, &parts),
        times(one, &parts),
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
