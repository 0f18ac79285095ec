//! Distributions of sizes and times (Figures 4 to 7), and throughput by size (Figure 3).

use crate::figure::{KIB, MS};
use crate::{Traced, charts, section as whole};
use nvmed_chart::{Axis, Columns, Line, Row, Shape, Unit, columns, lines, rows};
use nvmed_trace::{Part, SizeClass, TimeClass};

/// Traces that have a column each in every class; of more, each is a row of its classes.
const COLUMNS_MAX: usize = 8;

/// Limits of the classes of Figure 4, KiB; a last class has none.
const SIZES_KIB: [f64; 8] = [4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
/// Limits of the classes of Figures 5 and 6, ms.
const TIMES_MS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// How many requests of a trace are in each of its classes: the class's limit, if it has one, and the number.
struct Distribution<'a> {
    name: &'a str,
    classes: Vec<(Option<f64>, u64)>,
}

impl<'a> Distribution<'a> {
    fn of_times(trace: &Traced<'a>, of: fn(&Part) -> &[TimeClass]) -> Self {
        let classes = of(&trace.summary.all).iter().map(|class| (class.at_most_ms, class.requests));
        Self { name: trace.name(), classes: classes.collect() }
    }

    fn of_sizes(trace: &Traced<'a>) -> Self {
        let limit = |class: &SizeClass| class.at_most_kib.map(|limit| limit as f64);
        let classes = trace.summary.all.sizes.iter().map(|class| (limit(class), class.reads + class.writes));
        Self { name: trace.name(), classes: classes.collect() }
    }

    /// Per cent of the requests that are not above each limit of its own; nothing of nothing.
    fn below(&self) -> Option<Vec<(f64, f64)>> {
        let whole: u64 = self.classes.iter().map(|class| class.1).sum();
        let mut sum = 0;
        let mut below = Vec::new();
        for (limit, count) in &self.classes {
            sum += count;
            below.extend(limit.map(|limit| (limit, 100.0 * sum as f64 / whole as f64)));
        }
        (whole > 0).then_some(below)
    }

    /// Per cent of the requests between these limits, and above the last one.
    fn shares(&self, limits: &[f64]) -> Option<Vec<f64>> {
        let below = self.below()?;
        let until =
            |limit: f64| below.iter().rev().find(|class| class.0 <= limit).map_or(0.0, |class| class.1);
        let mut before = 0.0;
        let mut shares = Vec::new();
        for until in limits.iter().map(|&limit| until(limit)).chain([100.0]) {
            shares.push(until - before);
            before = until;
        }
        Some(shares)
    }
}

/// The chart of a distribution in all traces that have one, with as few classes as the paper's.
fn chart(title: &str, unit: &str, limits: &[f64], all: &[Distribution<'_>]) -> String {
    let shares = |of: &Distribution<'_>| of.shares(limits).unwrap_or_default();
    let all: Vec<(&str, Vec<f64>)> = all.iter().map(|of| (of.name, shares(of))).collect();
    if all.iter().all(|(_, shares)| shares.is_empty()) {
        return String::new();
    }
    let names: Vec<String> = limits.iter().map(f64::to_string).chain(["more".to_owned()]).collect();
    if all.len() <= COLUMNS_MAX {
        let series: Vec<Columns<'_>> =
            all.into_iter().map(|(name, values)| Columns { name, values }).collect();
        let axis = Axis::linear("% of the requests", Unit::Percent);
        return columns(title, &format!("up to … {unit}"), &names, axis, &series);
    }
    let last = limits.iter().copied().fold(0.0, f64::max);
    let mut names: Vec<String> = limits.iter().map(|limit| format!("up to {limit} {unit}")).collect();
    names.push(format!("above {last} {unit}"));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let told = all.into_iter().filter(|(_, shares)| !shares.is_empty());
    let all: Vec<Row> = told.map(|(name, shares)| Row::new(name, shares)).collect();
    rows(title, &|value| Unit::Percent.text(value), &names, &all)
}

/// The same as how many requests are at most so long, with all classes that there are.
fn cumulative(title: &str, all: &[Distribution<'_>]) -> String {
    let points = |of: &Distribution<'_>| {
        let below = of.below().unwrap_or_default();
        below.into_iter().map(|(limit_ms, share)| (limit_ms * MS, share)).collect()
    };
    let series: Vec<Line<'_>> =
        all.iter().map(|of| Line { name: of.name, points: points(of), shape: Shape::Line }).collect();
    let (x, y) =
        (Axis::log("time", Unit::Time), Axis::linear("% of the requests, up to this time", Unit::Percent));
    lines(title, x, y, &series)
}

/// A distribution of times, both ways.
fn times(title: &str, traces: &[Traced<'_>], of: fn(&Part) -> &[TimeClass]) -> [String; 2] {
    let all: Vec<Distribution<'_>> = traces.iter().map(|trace| Distribution::of_times(trace, of)).collect();
    [chart(title, "ms", &TIMES_MS, &all), cumulative(&format!("{title}, cumulative"), &all)]
}

fn sizes(traces: &[Traced<'_>]) -> String {
    let all: Vec<Distribution<'_>> = traces.iter().map(Distribution::of_sizes).collect();
    chart("Request sizes", "KiB", &SIZES_KIB, &all)
}

/// Bytes by the time that they took, at the mean size of each class.
fn throughput(title: &str, traces: &[Traced<'_>], of: fn(&SizeClass) -> (u64, u64, Option<f64>)) -> String {
    let point = |class: &SizeClass| {
        let (requests, bytes, mib_per_s) = of(class);
        Some((bytes as f64 / requests as f64, mib_per_s? * KIB * KIB))
    };
    let line = |trace: &Traced<'_>| trace.summary.all.sizes.iter().filter_map(point).collect();
    let series: Vec<Line<'_>> = traces
        .iter()
        .map(|trace| Line { name: trace.name(), points: line(trace), shape: Shape::Line })
        .collect();
    lines(
        title,
        Axis::log("request size", Unit::Bytes),
        Axis::log("throughput", Unit::BytesPerSecond),
        &series,
    )
}

/// All of them.
pub(crate) fn section(traces: &[Traced<'_>]) -> String {
    let reads = throughput("Throughput of reads by size", traces, |class| {
        (class.reads, class.read_bytes, class.read_mib_per_s)
    });
    let writes = throughput("Throughput of writes by size", traces, |class| {
        (class.writes, class.write_bytes, class.write_mib_per_s)
    });
    let [response, response_below] = times("Response times", traces, |part| &part.response);
    let [gaps, gaps_below] = times("Times between arrivals", traces, |part| &part.gaps);
    let [idle, idle_below] = times("Idle times before a request", traces, |part| &part.idle);
    whole(
        "Distributions",
        "A class holds what is above the limit of the class before it. Throughput is bytes by service time.",
        &charts(&[
            sizes(traces),
            reads,
            writes,
            response,
            response_below,
            gaps,
            gaps_below,
            idle,
            idle_below,
        ]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_joined_by_their_limits() {
        let classes = vec![(Some(0.5), 1), (Some(1.0), 2), (Some(2.0), 3), (Some(256.0), 4), (None, 10)];
        let of = Distribution { name: "", classes };
        assert_eq!(of.shares(&[1.0, 2.0, 4.0]), Some(vec![15.0, 15.0, 0.0, 70.0]));
        assert_eq!(of.below().unwrap().last(), Some(&(256.0, 50.0)));
        assert_eq!(Distribution { name: "", classes: vec![(Some(8.0), 0)] }.shares(&[1.0]), None);
        let far = Distribution { name: "", classes: vec![(Some(8.0), 5)] };
        assert_eq!(far.shares(&[1.0, 16.0]), Some(vec![0.0, 100.0, 0.0]));
    }
}
