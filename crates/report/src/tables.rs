//! Tables III and IV.

use crate::figure::cell;
use crate::{Traced, section as whole};
use nvmed_chart::{escaped, table};
use nvmed_trace::{Cell, Part};
use std::fmt::Write;

/// Columns of Table III.
pub(crate) const SIZES: [Cell; 9] = [
    Cell::Data,
    Cell::Requests,
    Cell::Max,
    Cell::Mean,
    Cell::MeanRead,
    Cell::MeanWrite,
    Cell::WriteRequests,
    Cell::WriteBytes,
    Cell::SinglePage,
];
/// Columns of Table IV.
pub(crate) const TIMING: [Cell; 9] = [
    Cell::Duration,
    Cell::Arrival,
    Cell::Access,
    Cell::NoWait,
    Cell::Service,
    Cell::Response,
    Cell::Spatial,
    Cell::Temporal,
    Cell::LongGaps,
];

/// A row of cells for each part, and a heading of which the first says what the rows are.
pub(crate) fn cells(what: &str, cells: &[Cell], parts: &[&Part]) -> String {
    let head: Vec<&str> = std::iter::once(what).chain(cells.iter().map(|cell| cell.title())).collect();
    let row = |part: &&Part| {
        let figures = cells.iter().map(|&of| cell(part, of));
        std::iter::once(part.row.name.clone()).chain(figures).collect()
    };
    table(&head, parts.iter().map(row))
}

/// Both tables, and what of the traces is not in them.
pub(crate) fn section(traces: &[Traced<'_>]) -> String {
    let parts: Vec<&Part> = traces.iter().map(|trace| &trace.summary.all).collect();
    let sizes = whole(
        "Sizes",
        "Reads and writes, as in Table III of IISWC'15. Single pages are requests of at most 4 KiB.",
        &cells("trace", &SIZES, &parts),
    );
    let timing = whole(
        "Timing and locality",
        "As in Table IV. A request need not wait if it arrives when all before it have finished. Spatial locality: it \
         begins where the one before ended. Temporal locality: it begins where one before began.",
        &cells("trace", &TIMING, &parts),
    );
    sizes + &timing + &remarks(traces)
}

/// Where traces come from, a row for each thing that one says of itself.
pub(crate) fn provenance(traces: &[Traced<'_>]) -> String {
    let rows = traces.iter().flat_map(|trace| {
        let told = trace.summary.provenance.iter();
        told.map(|(key, value)| vec![trace.name().to_owned(), key.to_owned(), value.to_owned()])
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let content = table(&["trace", "what", "is"], rows.into_iter());
    whole("Where the traces come from", "As their files say.", &content)
}

/// What was counted apart, was out of order, or is not exact.
fn remarks(traces: &[Traced<'_>]) -> String {
    let mut lines = String::new();
    for trace in traces {
        let all = &trace.summary.all;
        let apart = [(all.discards, "discards"), (all.flushes, "flushes")];
        let apart = apart.iter().filter(|(count, _)| *count > 0);
        let mut said: Vec<String> = apart.map(|(count, what)| format!("{count} {what} besides")).collect();
        if trace.summary.out_of_order > 0 {
            said.push(format!("{} requests came after a later one", trace.summary.out_of_order));
        }
        let others = trace.summary.of_other_processes();
        if others > 0 {
            said.push(format!("{others} requests are of processes beyond the first 4,095"));
        }
        if trace.summary.left_out > 0 {
            said.push(format!(
                "{} requests of devices beyond the bound are left out",
                trace.summary.left_out
            ));
        }
        if all.temporal_locality_error_points > 0.0 {
            let error = all.temporal_locality_error_points;
            said.push(format!("temporal locality has a standard error of {error:.2} percentage points"));
        }
        said.extend(trace.remarks.iter().map(|remark| escaped(remark)));
        if !said.is_empty() {
            let _ = write!(lines, "<li>{}: {}.</li>", escaped(trace.name()), said.join("; "));
        }
    }
    if lines.is_empty() { lines } else { format!("<ul class=\"note\">{lines}</ul>\n") }
}
