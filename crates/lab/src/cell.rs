//! A published table, cell by cell.

use crate::experiment::Goal;
use serde::{Deserialize, Serialize};

/// A cell of a published table, and what was found for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Its row.
    pub row: String,
    /// Its column, with the unit.
    pub column: String,
    /// As printed, or as it follows from what is printed.
    pub paper: f64,
    /// As found here.
    pub ours: f64,
    /// Why it is not judged: what the paper prints elsewhere contradicts it.
    pub contradicted: Option<String>,
    /// What its ratio must reach, where that is not the goal of its experiment.
    #[serde(default)]
    pub goal: Option<Goal>,
}

impl Cell {
    /// A cell that is judged as its experiment is.
    #[must_use]
    pub fn new(row: &str, column: &str, paper: f64, ours: f64) -> Self {
        Self { row: row.to_owned(), column: column.to_owned(), paper, ours, contradicted: None, goal: None }
    }

    /// Ours over the paper's; 1 where both are the same, zero among them.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.ours == self.paper { 1.0 } else { self.ours / self.paper }
    }

    /// What it is judged by in an experiment with a goal. One that compares series judges no cells but those that have
    /// a goal of their own.
    pub(crate) fn judged_by(&self, experiment: Goal) -> Option<Goal> {
        let of_all = matches!(experiment, Goal::Within(_)).then_some(experiment);
        self.goal.or(of_all).filter(|_| self.contradicted.is_none())
    }
}

/// The cells that are judged in an experiment with a goal, and what by.
pub(crate) fn judged(cells: &[Cell], experiment: Goal) -> impl Iterator<Item = (&Cell, Goal)> {
    cells.iter().filter_map(move |cell| Some((cell, cell.judged_by(experiment)?)))
}

/// The judged cell that is furthest from its goal.
pub(crate) fn furthest(cells: &[Cell], experiment: Goal) -> Option<&Cell> {
    let beyond = |(cell, goal): &(&Cell, Goal)| goal.beyond(cell.ratio());
    judged(cells, experiment).max_by(|a, b| beyond(a).total_cmp(&beyond(b))).map(|(cell, _)| cell)
}

/// Cells in a sentence: how many are judged, and which is furthest from its goal.
pub(crate) fn summary(cells: &[Cell], experiment: Goal) -> String {
    let count = judged(cells, experiment).count();
    let contradicted = cells.iter().filter(|cell| cell.contradicted.is_some()).count();
    let beside = cells.len() - count - contradicted;
    let mut parts = Vec::new();
    match furthest(cells, experiment) {
        Some(cell) => {
            let goal = cell.goal.map_or(String::new(), |goal| format!(" (goal {})", goal.text_of_cell()));
            parts.push(format!(
                "{count} cells judged, furthest off {} {}: {:.2} for {:.2}{goal}",
                cell.row, cell.column, cell.ours, cell.paper
            ));
        }
        None if beside > 0 => {}
        None => parts.push("no cells judged".to_owned()),
    }
    if contradicted > 0 {
        parts.push(format!("{contradicted} that the paper contradicts"));
    }
    if beside > 0 {
        let cells = if parts.is_empty() { " cells" } else { "" };
        parts.push(format!("{beside}{cells} shown and not judged"));
    }
    parts.join("; ")
}
