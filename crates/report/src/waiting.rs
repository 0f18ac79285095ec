//! Waiting against service, reads beside writes, and bursts.

use crate::figure::{MS, text, time};
use crate::{Traced, charts, section as whole};
use nvmed_chart::{Axis, Line, Row, Shape, Unit, lines, rows, table};
use nvmed_trace::{Burstiness, Cell, Percentiles};

/// The columns of the table of waiting.
const WAITING: [&str; 7] = [
    "trace",
    "mean service ms",
    "mean waiting ms",
    "longest waiting ms",
    "waiting, % of response",
    "longest response ms",
    "mean number in service",
];
/// The columns of the table of queue depths.
const DEPTH: [&str; 7] = [
    "trace",
    "utilisation %",
    "mean number in the system",
    "depth p50",
    "depth p90",
    "depth p99",
    "depth max",
];
/// The columns of the table of interference.
const INTERFERENCE: [&str; 6] = [
    "trace",
    "reads beside a write %",
    "their response ms",
    "their mean KiB",
    "other reads' response ms",
    "their mean KiB",
];

/// What the mean response time consists of.
fn parts_of_response(traces: &[Traced<'_>]) -> String {
    let row = |trace: &Traced<'_>| {
        let service = trace.summary.all.row.get(Cell::Service)?;
        Some(Row::new(trace.name(), vec![service, trace.summary.all.waiting?.mean_ms]))
    };
    let all: Vec<Row> = traces.iter().filter_map(row).collect();
    if all.is_empty() {
        return String::new();
    }
    rows("Mean response time", &time, &["service", "waiting"], &all)
}

fn waiting_table(traces: &[Traced<'_>]) -> String {
    let row = |trace: &Traced<'_>| {
        let waiting = trace.summary.all.waiting?;
        let figures = [
            trace.summary.all.row.get(Cell::Service),
            Some(waiting.mean_ms),
            Some(waiting.max_ms),
            Some(waiting.share_of_response_pct),
            Some(waiting.response_max_ms),
            Some(waiting.mean_in_service),
        ];
        Some(named(trace, &figures))
    };
    of_rows(&WAITING, traces.iter().filter_map(row).collect())
}

/// Percentiles, a row for each kind of times and each side that has any.
fn percentiles(traces: &[Traced<'_>]) -> String {
    let head: Vec<String> = ["trace", "time", "of"]
        .map(str::to_owned)
        .into_iter()
        .chain(Percentiles::NAMES.map(|name| format!("{name} ms")))
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let rows = |trace: &Traced<'_>| -> Vec<Vec<String>> {
        let Some(latencies) = trace.summary.all.latencies else { return Vec::new() };
        let told = latencies.each().into_iter().filter_map(|(what, side, found)| Some((what, side, found?)));
        let row = |(what, side, found): (&str, &str, Percentiles)| {
            let names = [trace.name(), what, side].map(str::to_owned);
            names.into_iter().chain(found.values_ms().map(|ms| text(Some(ms)))).collect()
        };
        told.map(row).collect()
    };
    of_rows(&head, traces.iter().flat_map(rows).collect())
}

/// How many requests devices have at a time.
fn depth_table(traces: &[Traced<'_>]) -> String {
    let row = |trace: &Traced<'_>| {
        let depth = trace.summary.all.depth?;
        let depths = [depth.p50, depth.p90, depth.p99, depth.max].map(|depth| Some(depth as f64));
        let mean = trace.summary.all.waiting.map(|waiting| waiting.mean_in_system);
        let figures: Vec<Option<f64>> = [depth.utilisation_pct, mean].into_iter().chain(depths).collect();
        Some(named(trace, &figures))
    };
    of_rows(&DEPTH, traces.iter().filter_map(row).collect())
}

/// A row of figures with its trace's name.
fn named(trace: &Traced<'_>, figures: &[Option<f64>]) -> Vec<String> {
    std::iter::once(trace.name().to_owned()).chain(figures.iter().map(|&figure| text(figure))).collect()
}

/// A table; nothing without a row.
fn of_rows(head: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() { String::new() } else { table(head, rows.into_iter()) }
}

/// Mean service time of small requests by the time since the last arrival: whether a device that rests becomes slow.
fn after_a_gap(traces: &[Traced<'_>]) -> String {
    let points = |trace: &Traced<'_>| {
        let classes = trace.summary.all.service_after_gap.iter().filter(|class| class.requests > 0);
        classes.filter_map(|class| Some((class.at_most_ms? * MS, class.mean_ms * MS))).collect()
    };
    let series: Vec<Line<'_>> = traces
        .iter()
        .map(|trace| Line { name: trace.name(), points: points(trace), shape: Shape::Line })
        .collect();
    let (x, y) =
        (Axis::log("time since the last arrival, at most", Unit::Time), Axis::linear("mean", Unit::Time));
    lines("Service time of single pages after a gap", x, y, &series)
}

/// Reads that arrive while a write is under way, and the others.
fn interference(traces: &[Traced<'_>]) -> String {
    let row = |trace: &Traced<'_>| {
        let found = trace.summary.all.interference?;
        let figures = [
            Some(found.reads_beside_write_pct),
            found.beside_response_ms,
            found.beside_mean_kib,
            found.alone_response_ms,
            found.alone_mean_kib,
        ];
        Some(named(trace, &figures))
    };
    of_rows(&INTERFERENCE, traces.iter().filter_map(row).collect())
}

/// The same as bars, two a trace.
fn interference_chart(traces: &[Traced<'_>]) -> String {
    let pair = |trace: &Traced<'_>| {
        let found = trace.summary.all.interference?;
        let (beside, alone) = (found.beside_response_ms?, found.alone_response_ms?);
        let row = |what: &str, value, muted| Row {
            muted,
            ..Row::new(&format!("{}: {what}", trace.name()), vec![value])
        };
        Some([row("beside a write", beside, false), row("other reads", alone, true)])
    };
    let all: Vec<Row> = traces.iter().filter_map(pair).flatten().collect();
    if all.is_empty() { String::new() } else { rows("Mean response time of reads", &time, &[], &all) }
}

/// A figure of burstiness by the width of the window.
fn bursts(title: &str, axis: Axis<'_>, traces: &[Traced<'_>], of: fn(&Burstiness) -> f64) -> String {
    let point = |found: &Burstiness| (found.window_ms as f64 * MS, of(found));
    let points = |trace: &Traced<'_>| {
        trace.busiest().into_iter().flat_map(|device| device.burstiness.iter().map(point)).collect()
    };
    let series: Vec<Line<'_>> = traces
        .iter()
        .map(|trace| Line { name: trace.name(), points: points(trace), shape: Shape::Line })
        .collect();
    lines(title, Axis::log("window", Unit::Time), axis, &series)
}

/// All of it.
pub(crate) fn section(traces: &[Traced<'_>]) -> String {
    let waiting = whole(
        "Waiting and service",
        "Waiting is from arrival to start, service from start to finish.",
        &(charts(&[parts_of_response(traces), after_a_gap(traces)]) + &waiting_table(traces)),
    );
    let percentiles = whole(
        "Percentiles of times",
        "What shares of the times do not pass, at most 0.8 % too high; the longest is exact.",
        &percentiles(traces),
    );
    let depth = whole(
        "Queue depth",
        "How many requests a device has when one arrives, with that one; the mean number in the system is over all the \
         time, by Little's law. Utilisation is the share of the time in which any request is in service, of a trace of \
         one device.",
        &depth_table(traces),
    );
    let interference = whole(
        "Reads beside writes",
        "A read is beside a write if one that arrived earlier has not finished when the read arrives.",
        &(interference(traces) + &charts(&[interference_chart(traces)])),
    );
    let dispersion = Axis::log("variance by mean of the arrivals in a window", Unit::Count);
    let peak = Axis::log("most arrivals in a window by the mean", Unit::Count);
    let bursts = whole(
        "Bursts",
        "Of the device with most requests. Arrivals that know nothing of each other have a dispersion of 1.",
        &charts(&[
            bursts("Index of dispersion", dispersion, traces, |found| found.dispersion),
            bursts("Peak to mean", peak, traces, |found| found.peak_to_mean),
        ]),
    );
    waiting + &percentiles + &depth + &interference + &bursts
}
