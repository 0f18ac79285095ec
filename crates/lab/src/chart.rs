//! Charts as SVG, for pages that need nothing else.

use std::fmt::Write;

/// Size of a chart, in pixels, and room for its labels.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 78.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 26.0;
const RIGHT: f64 = 16.0;
/// Colours of ours and of everybody else.
const OURS: &str = "#0b6e4f";
const OTHERS: &str = "#8d99ae";

/// Text as HTML and SVG want it.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// A number with three or four digits that matter.
#[must_use]
pub fn short(value: f64) -> String {
    let size = value.abs();
    match () {
        () if !value.is_finite() => "-".to_owned(),
        () if size >= 1e9 => format!("{:.2}G", value / 1e9),
        () if size >= 1e6 => format!("{:.2}M", value / 1e6),
        () if size >= 1e4 => format!("{:.1}k", value / 1e3),
        () if size >= 100.0 => format!("{value:.0}"),
        () if size >= 10.0 => format!("{value:.1}"),
        () => format!("{value:.2}"),
    }
}

/// Nanoseconds in the unit that suits them.
#[must_use]
pub fn time(ns: f64) -> String {
    match () {
        () if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        () if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        () if ns >= 1e3 => format!("{:.2} us", ns / 1e3),
        () => format!("{ns:.0} ns"),
    }
}

fn open(title: &str, height: f64) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"12\"><title>{0}</title>\
         <text x=\"{LEFT}\" y=\"16\" font-weight=\"bold\">{0}</text>",
        escaped(title)
    )
}

/// A bar of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    /// Who.
    pub name: String,
    /// How much.
    pub value: f64,
    /// Smallest and largest.
    pub range: (f64, f64),
    /// Whether it is ours.
    pub ours: bool,
}

/// Bars side by side from the left, with what lies between smallest and largest as a line.
#[must_use]
pub(crate) fn bars(title: &str, unit: &str, bars: &[Bar]) -> String {
    const NAME: f64 = 250.0;
    const STEP: f64 = 24.0;
    let height = TOP + STEP * bars.len() as f64 + 12.0;
    let most = bars.iter().map(|bar| bar.range.1.max(bar.value)).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let scale = (WIDTH - NAME - 130.0) / most;
    let mut out = open(title, height);
    for (index, bar) in bars.iter().enumerate() {
        let y = TOP + STEP * index as f64;
        let (middle, colour) = (y + STEP / 2.0, if bar.ours { OURS } else { OTHERS });
        let (low, high) = (NAME + bar.range.0.max(0.0) * scale, NAME + bar.range.1.max(0.0) * scale);
        let width = (bar.value * scale).max(0.0);
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{NAME}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>\
             <line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"#222\"/>\
             <text x=\"{:.1}\" y=\"{}\">{} {}</text>",
            NAME - 6.0,
            middle + 4.0,
            escaped(&bar.name),
            y + 4.0,
            STEP - 8.0,
            high.max(NAME + width) + 6.0,
            middle + 4.0,
            short(bar.value),
            escaped(unit)
        );
    }
    out + "</svg>"
}

/// An axis: what its ends mean and how a value is written.
#[derive(Clone, Copy)]
pub(crate) struct Axis<'a> {
    /// What it shows.
    pub name: &'a str,
    /// How a value is written.
    pub text: fn(f64) -> String,
    /// Whether each step multiplies.
    pub logarithmic: bool,
    /// Steps between its marks.
    pub steps: u32,
}

/// Where a value lies between two others, 0 to 1.
fn place(axis: Axis<'_>, value: f64, low: f64, high: f64) -> f64 {
    let (value, low, high) =
        if axis.logarithmic { (value.ln(), low.ln(), high.ln()) } else { (value, low, high) };
    if high > low { (value - low) / (high - low) } else { 0.5 }
}

/// Values at which an axis is marked.
fn marks(axis: Axis<'_>, low: f64, high: f64) -> Vec<f64> {
    (0..=axis.steps)
        .map(|step| {
            let part = f64::from(step) / f64::from(axis.steps);
            if axis.logarithmic { low * (high / low).powf(part) } else { low + (high - low) * part }
        })
        .collect()
}

/// A curve through points, as a line or, with `filled`, as what lies below it. Nothing of fewer than two points.
#[must_use]
pub(crate) fn curve(title: &str, x: Axis<'_>, y: Axis<'_>, points: &[(f64, f64)], filled: bool) -> String {
    let finite = points.iter().filter(|(a, b)| a.is_finite() && b.is_finite());
    let points: Vec<(f64, f64)> = finite.copied().collect();
    if points.len() < 2 {
        return String::new();
    }
    let low = points.iter().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|point| point.0).fold(f64::NEG_INFINITY, f64::max);
    let top = points.iter().map(|point| point.1).fold(1e-9, f64::max) * 1.05;
    let at_x = |value: f64| LEFT + place(x, value, low, high) * (WIDTH - LEFT - RIGHT);
    let least = points.iter().map(|point| point.1).filter(|value| *value > 0.0).fold(top, f64::min);
    let floor = if y.logarithmic { least / 2.0 } else { 0.0 };
    let at_y =
        |value: f64| HEIGHT - BOTTOM - place(y, value.max(floor), floor, top) * (HEIGHT - BOTTOM - TOP);
    let mut out = open(title, HEIGHT);
    for mark in marks(y, floor, top) {
        let (right, height) = (WIDTH - RIGHT, at_y(mark));
        let _ = write!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{height:.1}\" y2=\"{height:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            height + 4.0,
            (y.text)(mark)
        );
    }
    for mark in marks(x, low, high) {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            at_x(mark).clamp(LEFT + 14.0, WIDTH - RIGHT - 24.0),
            HEIGHT - BOTTOM + 16.0,
            (x.text)(mark)
        );
    }
    let mut line = String::new();
    for point in &points {
        let _ = write!(line, "{:.1},{:.1} ", at_x(point.0), at_y(point.1));
    }
    if filled {
        let (first, last) = (at_x(points[0].0), at_x(points[points.len() - 1].0));
        let _ = write!(
            out,
            "<polygon points=\"{first:.1},{0:.1} {line}{last:.1},{0:.1}\" fill=\"{OURS}\"/>",
            at_y(floor)
        );
    } else {
        let _ =
            write!(out, "<polyline points=\"{line}\" fill=\"none\" stroke=\"{OURS}\" stroke-width=\"2\"/>");
    }
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    let _ = write!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text x=\"14\" y=\"{middle:.1}\" \
         transform=\"rotate(-90 14 {middle:.1})\" text-anchor=\"middle\">{}</text></svg>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 6.0,
        escaped(x.name),
        escaped(y.name),
    );
    out
}

/// The frame of a page: a title, a style, and what stands in it.
#[must_use]
pub(crate) fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>\n\
         body {{ font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }}\n\
         table {{ border-collapse: collapse; margin: 1em 0 }}\n\
         td, th {{ border-bottom: 1px solid #ccc; padding: .3em .8em; text-align: left; vertical-align: top }}\n\
         .met {{ color: #0b6e4f; font-weight: bold }} .missed {{ color: #b00020; font-weight: bold }}\n\
         .note {{ color: #555; font-size: 13px }} svg {{ display: block; max-width: 100%; height: auto }}\n\
         </style></head><body>\n<h1>{0}</h1>\n{body}\n</body></html>\n",
        escaped(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const AXIS: Axis<'static> = Axis { name: "x", text: short, logarithmic: false, steps: 5 };

    #[test]
    fn a_curve_stays_on_its_sheet_whatever_the_values() {
        for logarithmic in [false, true] {
            let x = Axis { logarithmic, ..AXIS };
            let svg =
                curve("t", x, Axis { logarithmic, ..AXIS }, &[(1.0, 1.0), (10.0, 1e6), (1e9, 3.0)], true);
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        let flat = curve("t", AXIS, AXIS, &[(1.0, 0.0), (1.0, 0.0)], false);
        assert!(!flat.contains("NaN") && !flat.contains("inf"), "{flat}");
        assert_eq!(curve("t", AXIS, AXIS, &[(1.0, f64::NAN), (2.0, 1.0)], false), "");
    }

    #[test]
    fn names_cannot_become_markup() {
        let bar = Bar { name: "<script>".to_owned(), value: f64::NAN, range: (0.0, 1.0), ours: true };
        let svg = bars("a & b", "\"", &[bar]);
        assert!(!svg.contains("<script>") && svg.contains("a &amp; b"), "{svg}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [short(1_234_567.0), short(12_345.0), short(7.0), short(f64::NAN)],
            ["1.23M", "12.3k", "7.00", "-"]
        );
        assert_eq!([time(999.0), time(1500.0), time(2e9)], ["999 ns", "1.50 us", "2.00 s"]);
    }
}
