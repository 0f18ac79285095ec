//! Lines through points.

use crate::axis::{Axis, Span};
use crate::frame::{Along, Frame, SIDE, colour};
use crate::page::escaped;
use std::fmt::Write;

/// Lines of at most this many points show each of them.
const DOTS_MAX: usize = 40;

/// How points become a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Straight from point to point.
    Line,
    /// Each value holds until the next point, as in a cumulative distribution.
    Steps,
    /// As [`Shape::Line`], and filled from 0 on, or from the bottom of a logarithmic axis.
    Area,
}

/// A series of points, in the order of `x`.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    /// Its name.
    pub name: &'a str,
    /// `x` and `y`; those that are no numbers, or have no place on an axis, are left out.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub shape: Shape,
}

impl Line<'_> {
    /// The points that have a place. Where the height of an area has none, it reaches to the bottom.
    fn kept(&self, x: Axis<'_>, y: Axis<'_>) -> Vec<(f64, f64)> {
        let low = |value: f64| self.shape == Shape::Area && value.is_finite();
        let takes = |point: &&(f64, f64)| x.takes(point.0) && (y.takes(point.1) || low(point.1));
        self.points.iter().filter(takes).copied().collect()
    }
}

/// Lines on two axes of values; one without a point leaves its colour to nobody. Nothing, if there is no point at all.
#[must_use]
pub fn lines(title: &str, x: Axis<'_>, y: Axis<'_>, lines: &[Line<'_>]) -> String {
    let kept: Vec<Vec<(f64, f64)>> = lines.iter().map(|line| line.kept(x, y)).collect();
    let all = || kept.iter().flatten().filter(|point| y.takes(point.1));
    if all().next().is_none() {
        return String::new();
    }
    let across = Span::along(x, all().map(|point| point.0));
    let up = Span::up(y, all().map(|point| point.1));
    let mut marks = String::new();
    let told = lines.iter().zip(&kept).enumerate().filter(|(_, (_, points))| !points.is_empty());
    for (index, (line, points)) in told {
        let _ = write!(
            marks,
            "<g class=\"series {}\" data-series=\"{index}\" data-name=\"{}\" data-x=\"{}\" data-y=\"{}\">{}</g>",
            colour(index),
            escaped(line.name),
            numbers(points.iter().map(|point| point.0)),
            numbers(points.iter().map(|point| point.1)),
            path(line.shape, points, &across, &up)
        );
    }
    let all = lines.iter().zip(&kept);
    let names: Vec<Option<&str>> =
        all.map(|(line, points)| (!points.is_empty()).then_some(line.name)).collect();
    Frame { title, series: &names, muted: None, x: Along::Values(across), y: up }.around(&marks, "")
}

/// Values for `chart.js`, with six digits; `-` is none.
pub(crate) fn numbers(values: impl Iterator<Item = f64>) -> String {
    let text = |value: f64| match format!("{value:.5e}").parse::<f64>() {
        Ok(rounded) if rounded.is_finite() => rounded.to_string(),
        _ => "-".to_owned(),
    };
    values.map(text).collect::<Vec<_>>().join(" ")
}

fn path(shape: Shape, points: &[(f64, f64)], x: &Span<'_>, y: &Span<'_>) -> String {
    let at = |point: &(f64, f64)| (SIDE * x.place(point.0), SIDE * (1.0 - y.place(point.1)));
    let places: Vec<(f64, f64)> = points.iter().map(at).collect();
    let (Some(first), Some(last)) = (places.first(), places.last()) else { return String::new() };
    let mut out = format!("M{:.2} {:.2}", first.0, first.1);
    for (x, y) in &places[1..] {
        let _ = match shape {
            Shape::Steps => write!(out, "H{x:.2}V{y:.2}"),
            Shape::Line | Shape::Area => write!(out, "L{x:.2} {y:.2}"),
        };
    }
    if shape == Shape::Area {
        let base = SIDE * (1.0 - y.base());
        let _ = write!(out, "V{base:.2}H{:.2}Z", first.0);
        return format!("<path class=\"area\" d=\"{out}\"/>");
    }
    // A line without a length has round ends, and those are a dot.
    let alone = places.len() == 1 || last.0 == first.0;
    let dots = alone || (shape == Shape::Line && places.len() <= DOTS_MAX);
    let dots = if dots { places.as_slice() } else { &[] };
    let dots: String = dots.iter().map(|(x, y)| format!("M{x:.2} {y:.2}h0")).collect();
    format!("<path class=\"line\" d=\"{out}\"/><path class=\"dots\" d=\"{dots}\"/>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::Scale;
    use crate::unit::Unit;

    fn axis(scale: Scale) -> Axis<'static> {
        Axis { name: "x", unit: Unit::Count, scale }
    }

    /// The numbers of all paths of a chart.
    fn places(chart: &str) -> Vec<f64> {
        let paths = chart.split(" d=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let words = paths.flat_map(|path| path.split(|c: char| c.is_ascii_alphabetic() || c == ' '));
        words.filter(|word| !word.is_empty()).map(|word| word.parse().unwrap()).collect()
    }

    #[test]
    fn a_line_stays_on_its_sheet_whatever_the_values() {
        let values =
            [(1.0, 1.0), (10.0, 1e6), (1e9, 3.0), (f64::NAN, 1.0), (1e10, f64::INFINITY), (1e11, -7.0)];
        for scale in [Scale::Linear, Scale::Log, Scale::Mirrored] {
            for shape in [Shape::Line, Shape::Steps, Shape::Area] {
                let line = Line { name: "a", points: values.to_vec(), shape };
                let chart = lines("t", axis(scale), axis(scale), &[line]);
                assert!(!chart.contains("NaN") && !chart.contains("inf"), "{chart}");
                let places = places(&chart);
                assert!(
                    places.len() > 6 && places.iter().all(|place| (0.0..=SIDE).contains(place)),
                    "{chart}"
                );
            }
        }
    }

    #[test]
    fn one_point_is_a_dot_and_none_is_nothing() {
        let of = |points: &[(f64, f64)]| {
            let line = Line { name: "a", points: points.to_vec(), shape: Shape::Steps };
            lines("t", axis(Scale::Log), axis(Scale::Log), &[line])
        };
        assert!(of(&[(3.0, 4.0)]).contains("h0"));
        assert_eq!(of(&[(0.0, 1.0), (1.0, f64::NAN)]), "");
    }

    #[test]
    fn steps_hold_their_value_and_areas_begin_at_0() {
        let of = |shape, points: &[(f64, f64)]| {
            let line = Line { name: "a", points: points.to_vec(), shape };
            lines("t", axis(Scale::Linear), axis(Scale::Mirrored), &[line])
        };
        assert!(of(Shape::Steps, &[(0.0, 0.0), (1.0, 100.0)]).contains("d=\"M0.00 1000.00H1000.00V47.62\""));
        let low = [(0.0, 10.0), (1.0, 0.0), (2.0, 10.0)];
        let logarithmic = |shape| {
            let line = Line { name: "a", points: low.to_vec(), shape };
            lines("t", axis(Scale::Linear), axis(Scale::Log), &[line])
        };
        assert!(logarithmic(Shape::Area).contains("L500.00 1000.00L1000.00"), "{}", logarithmic(Shape::Area));
        assert!(!logarithmic(Shape::Line).contains("L500.00"));
        // Both ends have 5 % of the height as their room; 0 lies in the middle.
        assert!(of(Shape::Area, &[(0.0, -10.0), (1.0, 10.0)]).contains("V500.00H0.00Z\"/></g>"));
    }

    #[test]
    fn the_script_has_values_with_six_digits() {
        assert_eq!(numbers([1.0, 1_234_567.0, 0.123_456_789, f64::NAN].into_iter()), "1 1234570 0.123457 -");
    }
}
