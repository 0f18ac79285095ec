//! Rate, queue depth and offsets over time.

use crate::{Traced, charts, section as whole};
use nvmed_chart::{Axis, Grid, Line, Scale, Shape, Unit, escaped, heat, lines};
use nvmed_trace::{DepthBin, DepthCourse, Rate, Timeline};

/// Devices whose queue depths are shown, since a chart has so many colours.
const DEPTHS_SHOWN: usize = 8;

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

/// A value of each bin of a device's course; it holds in all of the bin. Behind its last finish a device has nothing.
fn depth_line<'a>(name: &'a str, course: &DepthCourse, last_ns: u64, of: fn(&DepthBin) -> f64) -> Line<'a> {
    let (width_ns, end_ns) = (course.bin_ns() as f64, course.end_ns() as f64);
    let points = course.bins().into_iter().enumerate().flat_map(|(bin, found)| {
        let (begin_ns, value) = (bin as f64 * width_ns, of(&found));
        [(begin_ns, value), ((begin_ns + width_ns).min(end_ns), value)]
    });
    let rest = [(end_ns, 0.0), (last_ns as f64, 0.0)];
    let rest = rest.into_iter().filter(|_| course.end_ns() < last_ns);
    Line { name, points: points.chain(rest).collect(), shape: Shape::Line }
}

/// How many requests devices have at a time: of one device the mean and the most in a chart, of several a chart of
/// each.
fn depths(trace: &Traced<'_>, timeline: &Timeline) -> Vec<String> {
    let mean = |found: &DepthBin| found.mean;
    let most = |found: &DepthBin| found.most as f64;
    let chart = |title: &str, all: &[Line<'_>]| {
        let axis = |name, unit| Axis::linear(name, unit);
        lines(title, axis("time", Unit::Time), axis("requests that the device has", Unit::Count), all)
    };
    let courses = timeline.depths();
    let last_ns = courses.iter().map(DepthCourse::end_ns).max().unwrap_or(0);
    if let [only] = &courses[..] {
        return vec![chart(
            "Queue depth",
            &[depth_line("most", only, last_ns, most), depth_line("mean", only, last_ns, mean)],
        )];
    }
    let shown = &courses[..courses.len().min(DEPTHS_SHOWN)];
    let all = |of: fn(&DepthBin) -> f64| -> Vec<Line<'_>> {
        shown.iter().map(|course| depth_line(trace.device(course.device()), course, last_ns, of)).collect()
    };
    vec![chart("Queue depth, mean", &all(mean)), chart("Queue depth, most", &all(most))]
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
        let mut all = vec![requests, bytes];
        all.extend(depths(trace, timeline));
        all.push(offsets(timeline));
        let charts = charts(&all);
        (!charts.is_empty()).then(|| format!("<h3>{}</h3>\n{charts}", escaped(trace.name())))
    };
    let all: String = traces.iter().filter_map(of).collect();
    let words = "Time begins with the first arrival. The queue depth is how many requests a device has, in service and \
                 waiting: the mean over each bin of time, and the most in it; of several devices, those of the eight \
                 with most requests. Offsets are those of the device with most requests.";
    whole("Over time", words, &all)
}
