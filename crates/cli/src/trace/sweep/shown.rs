//! What a sweep has found, as a table, as JSON and as a page.

use super::grid::Grid;
use super::results;
use nvmed_replay::{Answer, Digested, front};
use nvmed_report::{Swept, SweptTrace};
use serde_json::{Map, Value, json};

/// The name of what all traces have in common.
const ALL: &str = "all traces";
const MS: f64 = 1e6;

/// A drive with a trace, or with all of them.
struct Line<'a> {
    places: &'a [String],
    /// The answer of a trace; of all, their sum.
    answer: Answer,
    response_ns: f64,
    is_on_front: bool,
}

/// A trace, or all of them, on all drives.
struct Part<'a> {
    name: &'a str,
    is_all: bool,
    lines: Vec<Line<'a>>,
}

/// All that is shown.
pub struct Table<'a> {
    axes: &'a [String],
    is_used: bool,
    parts: Vec<Part<'a>>,
}

impl<'a> Table<'a> {
    /// The answers of a grid, whose traces go fastest.
    pub fn of(grid: &'a Grid, traces: &'a [Digested], answers: &[Answer]) -> Self {
        let of_trace = |(at, trace): (usize, &'a Digested)| {
            let answers = answers.iter().skip(at).step_by(traces.len());
            let lines = grid.drives.iter().zip(answers).map(|(drive, &answer)| Line {
                places: &drive.places,
                answer,
                response_ns: answer.response_ns(),
                is_on_front: false,
            });
            Part { name: trace.input.name(), is_all: false, lines: lines.collect() }
        };
        let mut parts: Vec<Part<'a>> = traces.iter().enumerate().map(of_trace).collect();
        if traces.len() > 1 {
            let of_drive = |(places, answers): (&'a [String], &[Answer])| Line {
                places,
                answer: answers.iter().copied().fold(Answer::default(), sum),
                response_ns: geometric_mean(answers.iter().map(Answer::response_ns)),
                is_on_front: false,
            };
            let places = grid.drives.iter().map(|drive| &drive.places[..]);
            let lines = places.zip(answers.chunks(traces.len())).map(of_drive);
            parts.push(Part { name: ALL, is_all: true, lines: lines.collect() });
        }
        for part in &mut parts {
            let points: Vec<(f64, f64)> =
                part.lines.iter().map(|line| (line.response_ns, line.answer.utilization())).collect();
            part.lines.iter_mut().zip(front(&points)).for_each(|(line, is)| line.is_on_front = is);
        }
        Self { axes: &grid.axes, is_used: grid.is_used, parts }
    }

    /// For a terminal: a line a cell, with a star on the front.
    pub fn text(&self) -> String {
        let mut head: Vec<String> = self.axes.to_vec();
        let figures = ["response ms", "p99 ms", "space %", "ampl.", "erases"];
        head.extend(figures.map(str::to_owned));
        let mut text = String::new();
        for part in &self.parts {
            let mut rows = vec![head.clone()];
            rows.extend(part.lines.iter().map(|line| line.row(part.is_all)));
            let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            let widths: Vec<usize> = (0..head.len()).map(width).collect();
            text += if text.is_empty() { "" } else { "\n" };
            text += &format!("{}{}\n", nvmed_trace::shown(part.name), of_all(part.is_all));
            let marks = std::iter::once(" ")
                .chain(part.lines.iter().map(|line| if line.is_on_front { "*" } else { " " }));
            for (mark, row) in marks.zip(&rows) {
                let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                    let cell = nvmed_trace::shown(cell);
                    if column < self.axes.len() {
                        format!("{cell:<width$}")
                    } else {
                        format!("{cell:>width$}")
                    }
                });
                text += &format!("{mark} {}\n", cells.collect::<Vec<_>>().join("  "));
            }
        }
        text + "* no other drive is both faster and uses less flash\n"
    }

    /// For programs.
    pub fn json(&self) -> String {
        let traces = self.parts.iter().map(|part| {
            let drives: Vec<Value> =
                part.lines.iter().map(|line| line.json(self.axes, part.is_all)).collect();
            json!({ "trace": part.name, "is_all": part.is_all, "drives": drives })
        });
        let traces: Vec<Value> = traces.collect();
        format!("{:#}\n", json!({ "axes": self.axes, "used": self.is_used, "traces": traces }))
    }

    /// As a page; what all traces have in common comes first.
    pub fn page(&self, title: &str) -> String {
        let mut parts: Vec<&Part<'_>> = self.parts.iter().collect();
        parts.sort_by_key(|part| !part.is_all);
        let traces = parts.into_iter().map(|part| {
            let drives = part.lines.iter().map(|line| Swept {
                places: line.places,
                response_ns: line.response_ns,
                p99_ns: (!part.is_all).then_some(line.answer.p99_ns),
                space_percent: 100.0 * line.answer.utilization(),
                amplification: line.answer.amplification(),
                erases: line.answer.erases,
                is_on_front: line.is_on_front,
            });
            SweptTrace { name: part.name, drives: drives.collect() }
        });
        nvmed_report::sweep(title, self.axes, &traces.collect::<Vec<_>>())
    }
}

fn of_all(is_all: bool) -> &'static str {
    if is_all { " (geometric mean of the responses)" } else { "" }
}

impl Line<'_> {
    fn row(&self, is_all: bool) -> Vec<String> {
        let p99 = if is_all { "-".to_owned() } else { format!("{:.3}", self.answer.p99_ns as f64 / MS) };
        let mut row = self.places.to_vec();
        row.extend([
            format!("{:.3}", self.response_ns / MS),
            p99,
            format!("{:.1}", 100.0 * self.answer.utilization()),
            format!("{:.2}", self.answer.amplification()),
            self.answer.erases.to_string(),
        ]);
        row
    }

    fn json(&self, axes: &[String], is_all: bool) -> Value {
        let places: Map<String, Value> =
            axes.iter().zip(self.places).map(|(axis, place)| (axis.clone(), place.as_str().into())).collect();
        let p99_ms = if is_all { Value::Null } else { (self.answer.p99_ns as f64 / MS).into() };
        json!({
            "places": places,
            "on_front": self.is_on_front,
            "mean_response_ms": self.response_ns / MS,
            "p99_ms": p99_ms,
            "space_utilisation_pct": 100.0 * self.answer.utilization(),
            "write_amplification": self.answer.amplification(),
            "counted": if is_all { Value::Null } else { results::json(&self.answer) },
        })
    }
}

/// What two traces did to a drive together; not when: a percentile of both is not known.
fn sum(one: Answer, other: Answer) -> Answer {
    let mut both = one;
    both.requests += other.requests;
    both.response_sum_ns = both.response_sum_ns.saturating_add(other.response_sum_ns);
    both.written_bytes += other.written_bytes;
    both.host_units += other.host_units;
    both.programmed_units += other.programmed_units;
    both.moved_units += other.moved_units;
    both.erases += other.erases;
    both.refused += other.refused;
    both.beyond += other.beyond;
    both
}

/// In which a trace that is twice as slow counts as much as another one, whatever its responses are.
fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let logarithms: Vec<f64> = values.map(f64::ln).collect();
    (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp()
}
