//! Columns: a group a slot, in it a column a series.

use crate::axis::{Axis, Span};
use crate::frame::{Along, Frame, SIDE, colour};
use crate::lines::numbers;
use crate::page::{escaped, table};
use std::fmt::Write;

/// The part of a slot that its columns leave free.
const GAP: f64 = 0.2;

/// A series of columns: a value for each slot.
#[derive(Clone, Debug)]
pub struct Columns<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its values; one that is missing or no number has no column.
    pub values: Vec<f64>,
}

/// Columns in `slots` of an axis with a name, such as the classes of a distribution: some ten of them, whose names are
/// short, fit beside each other. A series without a value leaves its colour to nobody. Nothing, if there is no slot.
#[must_use]
pub fn columns(title: &str, x: &str, slots: &[String], y: Axis<'_>, series: &[Columns<'_>]) -> String {
    if slots.is_empty() || series.is_empty() {
        return String::new();
    }
    let value = |of: &Columns<'_>, slot: usize| {
        of.values.get(slot).copied().filter(|value| y.takes(*value)).unwrap_or(f64::NAN)
    };
    let kept: Vec<Vec<f64>> =
        series.iter().map(|of| (0..slots.len()).map(|slot| value(of, slot)).collect()).collect();
    let up = Span::up(y, kept.iter().flatten().copied().filter(|value| value.is_finite()));
    let width = SIDE / slots.len() as f64;
    let told: Vec<usize> =
        (0..series.len()).filter(|&of| kept[of].iter().any(|value| value.is_finite())).collect();
    let each = width * (1.0 - GAP) / told.len().max(1) as f64;
    let base = SIDE * (1.0 - up.base());
    let mut marks = String::new();
    for (at, &index) in told.iter().enumerate() {
        let (of, values) = (&series[index], &kept[index]);
        let _ = write!(
            marks,
            "<g class=\"series {}\" data-series=\"{index}\" data-name=\"{}\" data-y=\"{}\">",
            colour(index),
            escaped(of.name),
            numbers(values.iter().copied())
        );
        for (slot, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            let left = width * (slot as f64 + GAP / 2.0) + each * at as f64;
            let top = SIDE * (1.0 - up.place(*value));
            let (top, height) = (top.min(base), (top - base).abs());
            let _ = write!(
                marks,
                "<rect class=\"area\" x=\"{left:.2}\" y=\"{top:.2}\" width=\"{each:.2}\" height=\"{height:.2}\"/>"
            );
        }
        marks += "</g>";
    }
    let names: Vec<Option<&str>> =
        series.iter().enumerate().map(|(index, of)| told.contains(&index).then_some(of.name)).collect();
    let head: Vec<&str> = std::iter::once(x).chain(names.iter().flatten().copied()).collect();
    let row = |(slot, name): (usize, &String)| {
        std::iter::once(name.clone()).chain(told.iter().map(|&of| y.unit.text(kept[of][slot]))).collect()
    };
    let values = format!(
        "<details><summary>Values</summary>{}</details>",
        table(&head, slots.iter().enumerate().map(row))
    );
    Frame { title, series: &names, muted: None, x: Along::Slots { name: x, slots }, y: up }
        .around(&marks, &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Unit;

    #[test]
    fn a_group_has_a_column_of_each_series() {
        let slots = ["4".to_owned(), "8 & more".to_owned()];
        let series = [
            Columns { name: "a", values: vec![50.0, 100.0] },
            Columns { name: "<b>", values: vec![f64::NAN, 25.0] },
        ];
        let chart = columns("t", "KiB", &slots, Axis::linear("requests", Unit::Percent), &series);
        // The axis ends at 100 %, a slot is 500 wide, a tenth of it is free at either side.
        for part in [
            "x=\"50.00\" y=\"500.00\" width=\"200.00\" height=\"500.00\"",
            "x=\"550.00\" y=\"0.00\" width=\"200.00\" height=\"1000.00\"",
            "x=\"750.00\" y=\"750.00\" width=\"200.00\" height=\"250.00\"",
            "data-name=\"&lt;b&gt;\" data-y=\"- 25\"",
            "<th scope=\"row\">8 &amp; more</th><td>100 %</td>",
            "<td>25.0 %</td>",
        ] {
            assert!(chart.contains(part), "no {part}: {chart}");
        }
        assert_eq!(chart.matches("<rect").count(), 3);
        let gone = [Columns { name: "gone", values: vec![] }, series[0].clone()];
        let chart = columns("t", "KiB", &slots, Axis::linear("requests", Unit::Percent), &gone);
        assert!(
            !chart.contains("gone") && chart.contains("s1") && chart.contains("width=\"400.00\""),
            "{chart}"
        );
        assert_eq!(columns("t", "KiB", &[], Axis::linear("requests", Unit::Percent), &series), "");
    }
}
