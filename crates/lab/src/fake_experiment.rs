//! An experiment for tests: its figures are given.

use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};

/// An experiment whose figures are given.
pub(crate) struct FakeExperiment {
    pub ours: f64,
    pub rival: f64,
    pub missing: bool,
}

impl Experiment for FakeExperiment {
    fn id(&self) -> &'static str {
        "test.given"
    }

    fn what(&self) -> &'static str {
        "figures that are given"
    }

    fn goal(&self) -> Goal {
        Goal::AtLeast(1.5)
    }

    fn run(&self, _effort: &Effort) -> Result<Finding, LabError> {
        if self.missing {
            return Err(LabError::missing("no such machine"));
        }
        let of = |name: &str, figures: &[f64]| Measured {
            name: name.to_owned(),
            runs: figures.iter().copied().collect(),
        };
        let pair = |label: &str, ours: f64| Series {
            label: label.to_owned(),
            unit: "kIOPS".to_owned(),
            ours: of("ours", &[ours, ours * 1.1, ours * 0.9]),
            rivals: vec![of("slow", &[0.1; 3]), of("fast <path>", &[self.rival; 3])],
        };
        Ok(Finding {
            cells: Vec::new(),
            series: vec![pair("easy", self.ours * 10.0), pair("hard", self.ours)],
            method: "given".to_owned(),
            limits: vec!["none".to_owned()],
        })
    }
}
