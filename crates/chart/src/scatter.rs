//! Points that have names, and the line of those that matter.

use crate::axis::{Axis, Span};
use crate::frame::{Along, Frame, SIDE, colour};
use crate::lines::numbers;
use crate::page::escaped;
use std::fmt::Write;

/// A thing with two values.
#[derive(Clone, Debug)]
pub struct Point {
    /// Its name, which is shown when it is pointed at.
    pub name: String,
    /// Where it lies; a value that is no number, or has no place on its axis, leaves the point out.
    pub at: (f64, f64),
}

/// Points of one kind.
#[derive(Clone, Debug)]
pub struct Points<'a> {
    /// What they have in common.
    pub name: &'a str,
    /// All of them.
    pub points: Vec<Point>,
}

/// Points on two axes, by kind, and a line with a name through some places, if there are any; its key comes last. Both
/// axes are as long as the points need. Nothing, if there is no point.
#[must_use]
pub fn scatter(
    title: &str,
    (x, y): (Axis<'_>, Axis<'_>),
    kinds: &[Points<'_>],
    (line, through): (&str, &[(f64, f64)]),
) -> String {
    let takes = |at: &(f64, f64)| x.takes(at.0) && y.takes(at.1);
    let kept = |kind: &Points<'_>| -> Vec<Point> {
        kind.points.iter().filter(|point| takes(&point.at)).cloned().collect()
    };
    let all: Vec<Vec<Point>> = kinds.iter().map(kept).collect();
    let places = || all.iter().flatten().map(|point| point.at);
    if places().next().is_none() {
        return String::new();
    }
    let (across, up) = (Span::around(x, places().map(|at| at.0)), Span::around(y, places().map(|at| at.1)));
    let spot = |at: (f64, f64)| (SIDE * across.place(at.0), SIDE * (1.0 - up.place(at.1)));
    let through: Vec<(f64, f64)> = through.iter().filter(|at| takes(at)).copied().collect();
    let mut marks = String::new();
    if through.len() > 1 {
        let path = through.iter().map(|at| spot(*at)).map(|(x, y)| format!("{x:.2} {y:.2}"));
        let path = path.collect::<Vec<_>>().join("L");
        let _ = write!(
            marks,
            "<g class=\"series muted\" data-series=\"{}\"><path class=\"line\" d=\"M{path}\"/></g>",
            kinds.len()
        );
    }
    for (index, (kind, points)) in kinds.iter().zip(&all).enumerate().filter(|(_, (_, of))| !of.is_empty()) {
        let names = points.iter().map(|point| one_line(&point.name)).collect::<Vec<_>>().join("\n");
        let dots = points.iter().map(|point| spot(point.at)).map(|(x, y)| format!("M{x:.2} {y:.2}h0"));
        let _ = write!(
            marks,
            "<g class=\"series {}\" data-series=\"{index}\" data-name=\"{}\" data-x=\"{}\" data-y=\"{}\" \
             data-points=\"{}\"><path class=\"dots points\" d=\"{}\"/></g>",
            colour(index),
            escaped(kind.name),
            numbers(points.iter().map(|point| point.at.0)),
            numbers(points.iter().map(|point| point.at.1)),
            escaped(&names),
            dots.collect::<String>()
        );
    }
    let told = kinds.iter().zip(&all).map(|(kind, points)| (!points.is_empty()).then_some(kind.name));
    let mut names: Vec<Option<&str>> = told.collect();
    names.extend((through.len() > 1).then_some(Some(line)));
    let muted = (through.len() > 1).then_some(kinds.len());
    Frame { title, series: &names, muted, x: Along::Values(across), y: up }.around(&marks, "")
}

/// A name for a list of names, which stand in lines.
fn one_line(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Unit;

    fn point(name: &str, at: (f64, f64)) -> Point {
        Point { name: name.to_owned(), at }
    }

    fn axes() -> (Axis<'static>, Axis<'static>) {
        (Axis::linear("space", Unit::Percent), Axis::linear("response", Unit::Time))
    }

    #[test]
    fn points_keep_their_names_and_lie_on_the_sheet() {
        let one = Points { name: "<i>", points: vec![point("a\n<b>", (70.0, 1e6)), point("c", (90.0, 3e6))] };
        let other =
            Points { name: "other", points: vec![point("d", (80.0, f64::NAN)), point("e", (95.0, 2e6))] };
        let none = Points { name: "gone", points: vec![point("f", (f64::NAN, 1.0))] };
        let chart = scatter("t", axes(), &[one, none, other], ("front", &[(70.0, 1e6), (95.0, 2e6)]));
        for part in [
            "data-name=\"&lt;i&gt;\" data-x=\"70 90\" data-y=\"1000000 3000000\" data-points=\"a &lt;b&gt;\nc\"",
            "data-series=\"2\" data-name=\"other\" data-x=\"95\" data-y=\"2000000\" data-points=\"e\"",
            ">front</span>",
            "class=\"series muted\" data-series=\"3\"",
        ] {
            assert!(chart.contains(part), "no {part}: {chart}");
        }
        assert!(!chart.contains("NaN") && !chart.contains("gone"), "{chart}");
        // 25 points of space and a twentieth at either end: 70 lies at 1.25 of 27.5.
        assert!(chart.contains("d=\"M45.45 "), "{chart}");
    }

    #[test]
    fn equal_points_have_room_and_no_point_is_nothing() {
        let points = |at| vec![Points { name: "a", points: vec![point("p", at)] }];
        let chart = scatter("t", axes(), &points((100.0, 5.0)), ("front", &[(100.0, 5.0)]));
        assert!(chart.contains("d=\"M500.00 500.00h0\"") && !chart.contains("front"), "{chart}");
        assert_eq!(scatter("t", axes(), &points((f64::NAN, 5.0)), ("front", &[])), "");
        assert_eq!(scatter("t", axes(), &[], ("front", &[])), "");
    }
}
