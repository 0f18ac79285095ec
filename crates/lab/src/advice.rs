//! What an experiment advises the designer of a device, with the evidence.

use nvmed_chart::short;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// What becomes of a claim of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// It is so here, too.
    Holds,
    /// A part of it is.
    InPart,
    /// It is not.
    Fails,
}

impl Judgement {
    /// Of so many claims, so many are so.
    #[must_use]
    pub fn of(claims: &[bool]) -> Self {
        match claims.iter().filter(|claim| **claim).count() {
            0 => Self::Fails,
            all if all == claims.len() => Self::Holds,
            _ => Self::InPart,
        }
    }

    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::InPart => "holds in part",
            Self::Fails => "does not hold",
        }
    }
}

/// An advice, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Advice {
    /// What it is about.
    pub name: String,
    /// What the paper says.
    pub paper: String,
    /// Whether that is so.
    pub judgement: Judgement,
    /// What to do, in a sentence.
    pub advice: String,
    /// What was found, with numbers.
    pub found: String,
    /// Where this departs from the paper, and why.
    pub departs: String,
    /// The numbers.
    pub evidence: Vec<Evidence>,
}

/// A table of figures: a row a trace, a column a device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Evidence {
    /// What the figures are.
    pub title: String,
    /// The columns' names, with the unit.
    pub columns: Vec<String>,
    /// First of the columns whose medians a chart shows, and the end of them.
    pub medians: (usize, usize),
    /// The column that a chart shows by row, or of which column it shows it as a part.
    pub drawn: (usize, Option<usize>),
    /// Each row's name and figures; one that there is not is `None`.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
}

impl Evidence {
    /// A table without rows.
    #[must_use]
    pub fn new(title: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Self { title: title.to_owned(), columns, ..Self::default() }
    }

    /// With a chart of the medians of these columns, which have one unit.
    #[must_use]
    pub(crate) fn with_medians(self, columns: std::ops::Range<usize>) -> Self {
        Self { medians: (columns.start, columns.end), ..self }
    }

    /// With a chart of this column, as percent of another one if that is given.
    #[must_use]
    pub(crate) fn drawing(self, column: usize, of: Option<usize>) -> Self {
        Self { drawn: (column, of), ..self }
    }

    /// Adds a row; what is no number is a figure that there is not.
    pub fn push(&mut self, name: &str, figures: impl IntoIterator<Item = f64>) {
        let figures = figures.into_iter().map(|figure| figure.is_finite().then_some(figure));
        self.rows.push((name.to_owned(), figures.collect()));
    }

    /// The figures of a column that there are.
    pub(crate) fn column(&self, column: usize) -> impl Iterator<Item = f64> {
        self.rows.iter().filter_map(move |(_, figures)| figures.get(column).copied().flatten())
    }

    /// The middle one of a column; `NaN` of none.
    #[must_use]
    pub fn median(&self, column: usize) -> f64 {
        self.column(column).collect::<crate::samples::Samples>().median()
    }

    /// A figure as it is shown.
    pub(crate) fn text(figure: Option<f64>) -> String {
        figure.map_or("-".to_owned(), short)
    }

    /// The rows, and the columns' medians as the last one.
    pub(crate) fn lines(&self) -> impl Iterator<Item = Vec<String>> {
        let line = |(name, figures): &(String, Vec<Option<f64>>)| {
            std::iter::once(name.clone()).chain(figures.iter().map(|figure| Self::text(*figure))).collect()
        };
        let medians = (0..self.columns.len()).map(|column| {
            let median = self.median(column);
            Self::text(median.is_finite().then_some(median))
        });
        let last = std::iter::once("median".to_owned()).chain(medians).collect();
        self.rows.iter().map(line).chain([last])
    }
}

impl Advice {
    /// As a terminal shows it.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!(
            "\n{}: the paper's claim {}\n  Paper: {}\n  Found: {}\n  Do: {}\n  Departs: {}\n",
            self.name,
            self.judgement.words(),
            self.paper,
            self.found,
            self.advice,
            self.departs
        );
        for evidence in &self.evidence {
            let _ = writeln!(out, "\n  {}", evidence.title);
            let head: Vec<String> =
                std::iter::once(String::new()).chain(evidence.columns.iter().cloned()).collect();
            for line in std::iter::once(head).chain(evidence.lines()) {
                for (index, cell) in line.iter().enumerate() {
                    let width =
                        evidence.columns.get(index.wrapping_sub(1)).map_or(12, |name| name.len().max(6));
                    let _ = match index {
                        0 => write!(out, "  {cell:<width$}"),
                        _ => write!(out, "  {cell:>width$}"),
                    };
                }
                out.push('\n');
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_there_are_not_are_neither_shown_nor_counted() {
        let mut evidence = Evidence::new("response", &["ms"]);
        evidence.push("Idle", [1.0]);
        evidence.push("Movie", [f64::NAN]);
        evidence.push("Music", [3.0]);
        let lines: Vec<Vec<String>> = evidence.lines().collect();
        assert_eq!(lines, [["Idle", "1.00"], ["Movie", "-"], ["Music", "3.00"], ["median", "2.00"]]);
        let again: Evidence = serde_json::from_str(&serde_json::to_string(&evidence).unwrap()).unwrap();
        assert_eq!(again.rows, evidence.rows);
    }

    #[test]
    fn a_claim_holds_with_all_its_parts() {
        let judged = [&[true, true][..], &[true, false], &[false, false]].map(Judgement::of);
        assert_eq!(judged, [Judgement::Holds, Judgement::InPart, Judgement::Fails]);
    }
}
