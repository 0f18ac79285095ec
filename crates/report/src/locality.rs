//! Working sets and reuse distances.

use crate::figure::KIB;
use crate::{Traced, charts, section as whole};
use nvmed_chart::{Axis, Line, Shape, Unit, escaped, lines, table};
use std::fmt::Write;

/// Distinct units, in all and in windows of time.
fn working_sets(traces: &[Traced<'_>]) -> String {
    let told: Vec<_> = traces
        .iter()
        .filter_map(|trace| Some((trace.name(), trace.busiest()?.working_set.as_ref()?)))
        .collect();
    let Some((_, first)) = told.first() else { return String::new() };
    let mut head = vec!["trace".to_owned(), "all of it".to_owned()];
    for window in &first.windows {
        head.push(format!("mean of {}", width(window.window_s)));
        head.push(format!("largest of {}", width(window.window_s)));
    }
    head.push("not counted".to_owned());
    let size = |kib: f64| Unit::Bytes.text(kib * KIB);
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let rows = told.iter().map(|(name, set)| {
        let mut row = vec![(*name).to_owned(), size(set.distinct_kib as f64)];
        set.windows
            .iter()
            .for_each(|window| row.extend([size(window.mean_kib), size(window.max_kib as f64)]));
        row.push(size(set.not_counted_kib as f64));
        row
    });
    table(&head, rows)
}

fn width(seconds: u64) -> String {
    match seconds {
        _ if seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        _ if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

/// How often a cache of each size would hit, and how sure that is.
fn reuse(traces: &[Traced<'_>]) -> String {
    let told = traces.iter().filter_map(|trace| Some((trace.name(), trace.summary.reuse.as_ref()?)));
    let told: Vec<_> = told.filter(|(_, reuse)| reuse.touches > 0).collect();
    let points = |trace: &Traced<'_>| {
        let reuse = trace.summary.reuse.iter().filter(|reuse| reuse.touches > 0);
        reuse.flat_map(|reuse| &reuse.hits).map(|hit| (hit.cache_kib as f64 * KIB, hit.hit_pct)).collect()
    };
    let series: Vec<Line<'_>> = traces
        .iter()
        .map(|trace| Line { name: trace.name(), points: points(trace), shape: Shape::Line })
        .collect();
    let (x, y) = (Axis::log("cache", Unit::Bytes), Axis::linear("hits, % of the touches", Unit::Percent));
    let chart = lines("Hits of a cache that evicts the least recently used", x, y, &series);
    let mut notes = String::new();
    for (name, reuse) in &told {
        let sure = match reuse.sampled_pct {
            100.0 => "exact".to_owned(),
            sampled => {
                format!("of a sample of {sampled:.2} % of the units, ± {:.2} points", reuse.error_points)
            }
        };
        let _ = write!(
            notes,
            "<li>{}: {} touches, {:.1} % of them the first of their unit; {sure}.</li>",
            escaped(name),
            reuse.touches,
            reuse.first_pct
        );
    }
    if notes.is_empty() { chart } else { format!("{}<ul class=\"note\">{notes}</ul>\n", charts(&[chart])) }
}

/// Both.
pub(crate) fn section(traces: &[Traced<'_>]) -> String {
    let sets = whole(
        "Working set",
        "Distinct units of 4 KiB, of the device with most requests.",
        &working_sets(traces),
    );
    let words = "The distance of a touch is the number of distinct units of 4 KiB since its unit was touched last: a \
                 cache of more units hits. All devices together.";
    sets + &whole("Reuse distance", words, &reuse(traces))
}
