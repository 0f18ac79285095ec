//! Heat maps: how often things were here and then.

use crate::axis::{Axis, Span};
use crate::frame::{Along, Frame, SIDE};
use crate::unit::Unit;
use std::fmt::Write;

/// Shades of a map.
const SHADES: usize = 8;

/// Counts in cells of one size.
#[derive(Clone, Debug)]
pub struct Grid {
    /// From where to where its columns reach.
    pub x: (f64, f64),
    /// From where to where its rows reach.
    pub y: (f64, f64),
    /// The columns, and in each the rows from the lowest on, of one number.
    pub columns: Vec<Vec<u64>>,
}

/// A map of `grid` on two linear axes; each shade more stands for a step that multiplies. Nothing, if all is 0.
#[must_use]
pub fn heat(title: &str, x: Axis<'_>, y: Axis<'_>, grid: &Grid) -> String {
    let most = grid.columns.iter().flatten().copied().max().unwrap_or(0);
    let rows = grid.columns.iter().map(Vec::len).max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let across = Span::new(x, grid.x.0, grid.x.1);
    let up = Span::new(y, grid.y.0, grid.y.1);
    let (width, height) = (SIDE / grid.columns.len() as f64, SIDE / rows as f64);
    let mut shades: [String; SHADES] = Default::default();
    for (column, counts) in grid.columns.iter().enumerate() {
        for (row, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (left, top) = (width * column as f64, SIDE - height * (row + 1) as f64);
            let _ = write!(
                shades[shade(*count, most)],
                "M{left:.2} {top:.2}h{width:.2}v{height:.2}h-{width:.2}z"
            );
        }
    }
    let mut marks = format!(
        "<g class=\"cells\" data-columns=\"{}\" data-rows=\"{rows}\" data-counts=\"{}\">",
        grid.columns.len(),
        counts(grid, rows)
    );
    for (shade, path) in shades.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
        let opacity = (shade + 1) as f64 / SHADES as f64;
        let _ = write!(marks, "<path d=\"{path}\" fill-opacity=\"{opacity}\"/>");
    }
    marks += "</g>";
    let note = format!("<p class=\"note\">Darkest: {} in one cell.</p>", Unit::Count.mark(most as f64));
    Frame { title, series: &[], muted: None, x: Along::Values(across), y: up }.around(&marks, &note)
}

/// 0 of 1, the last of the most.
fn shade(count: u64, most: u64) -> usize {
    let part = (count as f64).ln() / (most as f64).ln().max(f64::MIN_POSITIVE);
    if most == 1 {
        SHADES - 1
    } else {
        (part * (SHADES - 1) as f64).round().clamp(0.0, (SHADES - 1) as f64) as usize
    }
}

/// The counts for `chart.js`, column by column: a number, or as `-n` a run of `n` cells without anything.
fn counts(grid: &Grid, rows: usize) -> String {
    let mut out = String::new();
    let mut empty = 0u64;
    let mut say = |count: u64| {
        if count == 0 {
            empty += 1;
            return;
        }
        if empty > 0 {
            let _ = write!(out, "-{empty} ");
        }
        empty = 0;
        let _ = write!(out, "{count} ");
    };
    for column in &grid.columns {
        (0..rows).for_each(|row| say(column.get(row).copied().unwrap_or(0)));
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_lies_at_its_column_and_row() {
        let grid = Grid {
            x: (0.0, 2e9),
            y: (0.0, 4096.0),
            columns: vec![vec![0, 1], vec![0, 0], vec![0, 0], vec![1000, 0]],
        };
        let chart = heat("t", Axis::linear("time", Unit::Time), Axis::linear("offset", Unit::Bytes), &grid);
        assert!(chart.contains("d=\"M0.00 0.00h250.00v500.00h-250.00z\" fill-opacity=\"0.125\""), "{chart}");
        assert!(chart.contains("d=\"M750.00 500.00h250.00v500.00h-250.00z\" fill-opacity=\"1\""), "{chart}");
        assert!(chart.contains("data-columns=\"4\" data-rows=\"2\" data-counts=\"-1 1 -4 1000\""), "{chart}");
        assert!(chart.contains("Darkest: 1000 in one cell."), "{chart}");
        let empty = Grid { columns: vec![vec![0]], ..grid };
        assert_eq!(heat("t", Axis::linear("", Unit::Time), Axis::linear("", Unit::Bytes), &empty), "");
    }

    #[test]
    fn shades_multiply() {
        assert_eq!([shade(1, 1), shade(1, 100), shade(10, 100), shade(100, 100)], [7, 0, 4, 7]);
        assert_eq!(shade(u64::MAX, u64::MAX), 7);
    }
}
