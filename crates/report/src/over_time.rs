//! Rate and offsets over time.

use crate::{Traced, charts, section as whole};
use nvmed_chart::{Axis, Grid, Line, Scale, Shape, Unit, escaped, heat, lines};
use nvmed_trace::{Rate, Timeline};

/// Requests, or bytes, a second: reads upwards, writes downwards.
fn rate(title: &str, unit: Unit, name: &str, timeline: &Timeline, of: fn(&Rate) -> (u64, u64)) -> String {
    let width_ns = timeline.bin_ns() as f64;
    // A point at each end of a bin: the value holds in all of it.
    let points = |sign: f64, count: fn((u64, u64)) -> u64| {
        let bins = timeline.rates().iter().enumerate();
        bins.flat_map(move |(bin, rate)| {
            let value = sign * count(of(rate)) as f64 * 1e9 / width_ns;
            [(bin as f64 * width_ns, value), ((bin + 1) as f64 * width_ns, value)]
        })
        .collect()
    };
    let reads = Line { name: "reads", points: points(1.0, |both| both.0), shape: Shape::Area };
    let writes = Line { name: "writes", points: points(-1.0, |both| both.1), shape: Shape::Area };
    let y = Axis { name, unit, scale: Scale::Mirrored };
    lines(title, Axis::linear("time", Unit::Time), y, &[reads, writes])
}

/// Where the requests of the busiest device begin.
fn offsets(timeline: &Timeline) -> String {
    let Some(map) = timeline.busiest() else { return String::new() };
    let columns = timeline.rates().len();
    let (low, high) = map.offsets();
    let grid = Grid {
        x: (0.0, columns as f64 * timeline.bin_ns() as f64),
        y: (low as f64, high as f64),
        columns: (0..columns).map(|column| map.column(column).to_vec()).collect(),
    };
    heat("Where requests begin", Axis::linear("time", Unit::Time), Axis::linear("offset", Unit::Bytes), &grid)
}

/// All traces that have a timeline.
pub(crate) fn section(traces: &[Traced<'_>]) -> String {
    let of = |trace: &Traced<'_>| {
        let timeline = trace.timeline?;
        let name = "requests a second: reads up, writes down";
        let requests = rate("Requests", Unit::Count, name, timeline, |rate| (rate.reads, rate.writes));
        let name = "bytes a second: reads up, writes down";
        let bytes =
            rate("Data", Unit::BytesPerSecond, name, timeline, |rate| (rate.read_bytes, rate.write_bytes));
        let charts = charts(&[requests, bytes, offsets(timeline)]);
        (!charts.is_empty()).then(|| format!("<h3>{}</h3>\n{charts}", escaped(trace.name())))
    };
    let all: String = traces.iter().filter_map(of).collect();
    let words = "Time begins with the first arrival. Offsets are those of the device with most requests.";
    whole("Over time", words, &all)
}
