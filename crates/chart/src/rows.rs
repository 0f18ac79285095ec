//! Rows: bars from the left, one below the other, each with its name and its figure.

use crate::frame::{colour, part_keys, shade};
use crate::page::{escaped, table};
use std::fmt::Write;

/// A row of a chart.
#[derive(Clone, Debug)]
pub struct Row {
    /// Whose it is.
    pub name: String,
    /// What it consists of, from the left; what is no number or below 0 counts as 0.
    pub parts: Vec<f64>,
    /// Smallest and largest of what its whole is the middle of.
    pub range: Option<(f64, f64)>,
    /// Whether it stands back behind the others.
    pub muted: bool,
}

impl Row {
    /// A row of parts, and no more.
    #[must_use]
    pub fn new(name: &str, parts: Vec<f64>) -> Self {
        Self { name: name.to_owned(), parts, range: None, muted: false }
    }

    fn sound(&self) -> impl Iterator<Item = f64> {
        self.parts.iter().map(|part| if part.is_finite() { part.max(0.0) } else { 0.0 })
    }

    fn whole(&self) -> f64 {
        self.sound().sum()
    }
}

/// Rows, whose figures `text` writes. Their parts have the names in `parts`; where there is one, it needs none.
#[must_use]
pub fn rows(title: &str, text: &dyn Fn(f64) -> String, parts: &[&str], rows: &[Row]) -> String {
    let largest = |row: &Row| row.range.map_or(0.0, |range| range.1).max(row.whole());
    let most = rows.iter().map(largest).filter(|size| size.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    let mut out = format!(
        "<figure class=\"chart\"><figcaption>{}</figcaption>{}<div class=\"rows\">",
        escaped(title),
        part_keys(parts)
    );
    for row in rows {
        let _ = write!(
            out,
            "<span class=\"name\">{}</span><svg class=\"bar\" role=\"img\" aria-label=\"{0}\">{}</svg>\
             <span class=\"figure\">{}</span>",
            escaped(&row.name),
            bar(row, most, text, parts),
            escaped(&text(if row.parts.iter().any(|part| !part.is_finite()) {
                f64::NAN
            } else {
                row.whole()
            }))
        );
    }
    out += "</div>";
    if parts.len() > 1 {
        let head: Vec<&str> = std::iter::once("").chain(parts.iter().copied()).collect();
        let cells = |row: &Row| {
            std::iter::once(row.name.clone()).chain(row.parts.iter().map(|part| text(*part))).collect()
        };
        let _ = write!(
            out,
            "<details><summary>Values</summary>{}</details>",
            table(&head, rows.iter().map(cells))
        );
    }
    out + "</figure>\n"
}

/// The parts of a row, and its range as a line.
fn bar(row: &Row, most: f64, text: &dyn Fn(f64) -> String, parts: &[&str]) -> String {
    let percent = |value: f64| (value / most * 100.0).clamp(0.0, 100.0);
    let mut out = String::new();
    let mut left = 0.0;
    for (index, part) in row.sound().enumerate() {
        let class = if row.muted { "muted".to_owned() } else { colour(index) };
        let style = shade(index, parts.len()).filter(|_| !row.muted).unwrap_or_default();
        let name = parts.get(index).map_or(String::new(), |name| format!("{name}: "));
        let _ = write!(
            out,
            "<g class=\"series {class}\"{style} data-series=\"{index}\">\
             <rect class=\"area\" x=\"{:.2}%\" width=\"{:.2}%\" height=\"100%\"><title>{}</title></rect></g>",
            percent(left),
            percent(part),
            escaped(&format!("{name}{}", text(part)))
        );
        left += part;
    }
    if let Some((low, high)) = row.range.filter(|(low, high)| low.is_finite() && high.is_finite()) {
        let (low, high) = (percent(low), percent(high));
        // The wider one keeps the other visible on any colour.
        for class in ["halo", "range"] {
            let _ = write!(
                out,
                "<line class=\"{class}\" x1=\"{low:.2}%\" x2=\"{high:.2}%\" y1=\"50%\" y2=\"50%\"/>"
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::short;

    #[test]
    fn parts_follow_one_another_and_the_range_lies_over_them() {
        let range = Some((2.0, 8.0));
        let chart = rows("t", &short, &["a", "b"], &[Row { range, ..Row::new("x", vec![1.0, 3.0]) }]);
        for part in [
            "x=\"0.00%\" width=\"12.50%\"",
            "x=\"12.50%\" width=\"37.50%\"",
            "x1=\"25.00%\" x2=\"100.00%\"",
            "<title>b: 3.00</title>",
            "<span class=\"figure\">4.00</span>",
        ] {
            assert!(chart.contains(part), "no {part}: {chart}");
        }
    }

    #[test]
    fn many_parts_have_shades() {
        let names: Vec<String> = (0..9).map(|part| part.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let chart = rows("t", &short, &names, &[Row::new("x", vec![1.0; 9])]);
        assert_eq!(chart.matches("color-mix(in srgb, var(--heat) 100%").count(), 2);
        assert_eq!(chart.matches("color-mix").count(), 18);
        assert!(!rows("t", &short, &names[1..], &[Row::new("x", vec![1.0; 8])]).contains("color-mix"));
    }

    #[test]
    fn names_cannot_become_markup_and_odd_values_have_no_length() {
        let row = |value| Row { range: Some((0.0, value)), ..Row::new("<script>", vec![value]) };
        for value in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            let chart = rows("a & b", &short, &[], &[row(value)]);
            assert!(!chart.contains("<script>") && chart.contains("a &amp; b"), "{chart}");
            assert!(
                !chart.contains("NaN") && !chart.contains("inf") && chart.contains("width=\"0.00%\""),
                "{chart}"
            );
        }
    }
}
