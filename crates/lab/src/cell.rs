//! A published table, cell by cell.

use serde::{Deserialize, Serialize};

/// A cell of a published table, and what was found for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Its row.
    pub row: String,
    /// Its column, with the unit.
    pub column: String,
    /// As printed.
    pub paper: f64,
    /// As found here.
    pub ours: f64,
    /// Why it is not judged: what the paper prints elsewhere contradicts it.
    pub contradicted: Option<String>,
}

impl Cell {
    /// A cell that is judged.
    #[must_use]
    pub fn new(row: &str, column: &str, paper: f64, ours: f64) -> Self {
        Self { row: row.to_owned(), column: column.to_owned(), paper, ours, contradicted: None }
    }

    /// Ours over the paper's; 1 where both are the same, zero among them.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.ours == self.paper { 1.0 } else { self.ours / self.paper }
    }
}

/// Cells in a sentence: how many are judged, and which is furthest off.
pub(crate) fn summary(cells: &[Cell]) -> String {
    let judged = || cells.iter().filter(|cell| cell.contradicted.is_none());
    let off = |cell: &&Cell| (cell.ratio() - 1.0).abs();
    let Some(worst) = judged().max_by(|a, b| off(a).total_cmp(&off(b))) else { return "no cells".to_owned() };
    format!(
        "{} cells, furthest off {} {}: {:.2} for {:.2}; {} that the paper contradicts",
        judged().count(),
        worst.row,
        worst.column,
        worst.ours,
        worst.paper,
        cells.len() - judged().count()
    )
}
