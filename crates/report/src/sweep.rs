//! The page of a sweep: what drives do with traces, and which of them no other one beats.

use crate::{charts, section};
use nvmed_chart::{Axis, Point, Points, Unit, document, escaped, scatter, table, time};

/// Kinds of points that have a colour each; of more, all points have one.
const KINDS_MAX: usize = 8;

/// How the charts are read.
const BETTER: &str = "Further right is more data in as much flash, further down is faster. Drives on the front, with a \
                      mark in the table, are beaten by no other one.";

/// What a drive did with a trace, or with all of them.
#[derive(Clone, Debug)]
pub struct Swept<'a> {
    /// The drive's place on each axis.
    pub places: &'a [String],
    /// Mean response time, nanoseconds.
    pub response_ns: f64,
    /// Response time that 99 of 100 requests do not exceed, nanoseconds; not told of several traces.
    pub p99_ns: Option<u64>,
    /// Bytes that were written, of those that were programmed, per cent.
    pub space_percent: f64,
    /// Write amplification.
    pub amplification: f64,
    /// Blocks that were erased.
    pub erases: u64,
    /// Whether no other drive beats it.
    pub is_on_front: bool,
}

/// A trace on all drives, or all traces.
#[derive(Clone, Debug)]
pub struct SweptTrace<'a> {
    /// Its name.
    pub name: &'a str,
    /// What its drives did, in the order of the grid.
    pub drives: Vec<Swept<'a>>,
}

/// The page of a sweep whose axes have these names.
#[must_use]
pub fn sweep(title: &str, axes: &[String], traces: &[SweptTrace<'_>]) -> String {
    let sections = traces.iter().enumerate().map(|(at, trace)| {
        let words = if at == 0 { BETTER } else { "" };
        let content = format!("{}{}", charts(&[chart(axes, trace)]), values(axes, trace));
        section(&escaped(trace.name), words, &content)
    });
    document(title, &sections.collect::<String>())
}

/// A drive's name: its places.
fn name(axes: &[String], drive: &Swept<'_>) -> String {
    let places = axes.iter().zip(drive.places).map(|(axis, place)| format!("{axis} {place}"));
    let name = places.collect::<Vec<_>>().join(", ");
    if name.is_empty() { "the base".to_owned() } else { name }
}

/// Response against space, with a colour for each value of the axis that has the most of them, as far as there are
/// colours.
fn chart(axes: &[String], trace: &SweptTrace<'_>) -> String {
    let places = |axis: usize| {
        let mut places: Vec<&str> = Vec::new();
        for drive in &trace.drives {
            let place = drive.places[axis].as_str();
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    };
    let kinds = (0..axes.len()).map(|axis| (axis, places(axis)));
    let kinds =
        kinds.filter(|(_, of)| of.len() <= KINDS_MAX).max_by_key(|(axis, of)| (of.len(), usize::MAX - axis));
    let point =
        |drive: &Swept<'_>| Point { name: name(axes, drive), at: (drive.space_percent, drive.response_ns) };
    let (names, all): (Vec<String>, Vec<Vec<Point>>) = match &kinds {
        Some((axis, kinds)) => kinds
            .iter()
            .map(|&kind| {
                let of = trace.drives.iter().filter(|drive| drive.places[*axis] == kind);
                (format!("{} {kind}", axes[*axis]), of.map(point).collect())
            })
            .unzip(),
        None => (vec!["drives".to_owned()], vec![trace.drives.iter().map(point).collect()]),
    };
    let kinds: Vec<Points<'_>> =
        names.iter().zip(all).map(|(name, points)| Points { name, points }).collect();
    let on_front = trace.drives.iter().filter(|drive| drive.is_on_front);
    let mut front: Vec<(f64, f64)> = on_front.map(|drive| (drive.space_percent, drive.response_ns)).collect();
    front.sort_by(|a, b| a.0.total_cmp(&b.0));
    front.dedup();
    let axes =
        (Axis::linear("space utilisation", Unit::Percent), Axis::linear("mean response time", Unit::Time));
    scatter("Response time against space", axes, &kinds, ("Pareto front", &front))
}

/// All figures.
fn values(axes: &[String], trace: &SweptTrace<'_>) -> String {
    let mut head: Vec<&str> = vec!["drive"];
    let has_p99 = trace.drives.iter().any(|drive| drive.p99_ns.is_some());
    head.extend(["front", "mean response"]);
    head.extend(has_p99.then_some("p99 response"));
    head.extend(["space", "write amplification", "erases"]);
    let rows = trace.drives.iter().map(|drive| {
        let mut row = vec![name(axes, drive), if drive.is_on_front { "●" } else { "" }.to_owned()];
        row.push(time(drive.response_ns));
        if has_p99 {
            row.push(drive.p99_ns.map_or("-".to_owned(), |ns| time(ns as f64)));
        }
        row.push(Unit::Percent.text(drive.space_percent));
        row.push(format!("{:.2}", drive.amplification));
        row.push(drive.erases.to_string());
        row
    });
    table(&head, rows)
}
