//! What an experiment is.

use crate::advice::Advice;
use crate::cell::Cell;
use crate::duel::Series;
use crate::error::LabError;
use serde::{Deserialize, Serialize};

/// How much is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// A small set and few rounds: shows that it works, not how fast.
    pub quick: bool,
}

impl Effort {
    /// Rounds in which everybody has a turn.
    #[must_use]
    pub fn rounds(&self) -> usize {
        if self.quick { 3 } else { 7 }
    }

    /// Slices of a turn; its figure is the median slice.
    #[must_use]
    pub fn slices(&self) -> usize {
        if self.quick { 3 } else { 11 }
    }

    /// Seconds of a slice: short enough that some are free of what else runs.
    #[must_use]
    pub(crate) fn slice_s(&self) -> f64 {
        if self.quick { 0.005 } else { 0.03 }
    }

    /// Bytes of a random set: far beyond the processor's caches, except when quick.
    #[must_use]
    pub fn set_bytes(&self) -> u64 {
        if self.quick { 64 << 20 } else { 1 << 30 }
    }
}

/// What must be reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Ours at least this multiple of the best rival's.
    AtLeast(f64),
    /// Ours at most this multiple of the best rival's.
    AtMost(f64),
    /// Each cell of a table at most so many percent off the paper's.
    Within(f64),
}

impl Goal {
    /// Whether `ratio` reaches it; no number does not.
    #[must_use]
    pub fn met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
            Self::Within(percent) => (ratio - 1.0).abs() * 100.0 <= percent,
        }
    }

    /// How far `ratio` is beyond it: below 0 where it is met. No number is further than all others.
    pub(crate) fn beyond(self, ratio: f64) -> f64 {
        let beyond = match self {
            Self::AtLeast(least) => least - ratio,
            Self::AtMost(most) => ratio - most,
            Self::Within(percent) => (ratio - 1.0).abs() - percent / 100.0,
        };
        if beyond.is_nan() { f64::INFINITY } else { beyond }
    }

    /// In words, for one cell.
    pub(crate) fn text_of_cell(self) -> String {
        match self {
            Self::Within(percent) => format!("within {percent} %"),
            _ => self.text(),
        }
    }

    /// In words.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!(">= {least} x"),
            Self::AtMost(most) => format!("<= {most} x"),
            Self::Within(percent) => format!("each cell within {percent} %"),
        }
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was measured, each beside its rivals. The one furthest from the goal decides.
    pub series: Vec<Series>,
    /// The cells of a table.
    pub cells: Vec<Cell>,
    /// How: device, sizes, depth, repeats.
    pub method: String,
    /// What the figures do not say.
    pub limits: Vec<String>,
}

/// A published table or figure, run again.
pub trait Experiment: Sync {
    /// Its name: paper, figure, row.
    fn id(&self) -> &'static str;
    /// What is measured here.
    fn what(&self) -> &'static str;
    /// What must be reached.
    fn goal(&self) -> Goal;
    /// What a cell must reach, where that is not the goal of the experiment. A saved result is judged by it again,
    /// whatever goal the file has.
    fn cell_goal(&self, _cell: &Cell) -> Option<Goal> {
        None
    }
    /// Runs it.
    ///
    /// # Errors
    /// [`LabError::Missing`] when this machine cannot run it; otherwise something failed.
    fn run(&self, effort: &Effort) -> Result<Finding, LabError>;
    /// Runs it, and says what the designer of a device can do with what was found; nothing, of most experiments.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn advise(&self, effort: &Effort) -> Result<(Finding, Vec<Advice>), LabError> {
        Ok((self.run(effort)?, Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_judge() {
        assert!(
            Goal::AtLeast(1.5).met(1.5) && !Goal::AtLeast(1.5).met(1.49) && !Goal::AtLeast(1.5).met(f64::NAN)
        );
        assert!(
            Goal::AtMost(0.5).met(0.5) && !Goal::AtMost(0.5).met(0.51) && !Goal::AtMost(0.5).met(f64::NAN)
        );
    }
}
