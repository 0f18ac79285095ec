//! What the papers print.

use serde::{Deserialize, Serialize};

/// A published figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Paper {
    /// Name of the experiment that runs it again.
    pub id: String,
    /// Paper, and where in it.
    pub source: String,
    /// What was measured there.
    pub what: String,
    /// As printed.
    pub printed: String,
    /// As a ratio of theirs over their rival's, where it is one.
    pub ratio: Option<f64>,
}

const DATA: &str = include_str!("../data/published.json");

/// The published figure of an experiment.
#[must_use]
pub fn paper(id: &str) -> Option<Paper> {
    let all: Vec<Paper> = serde_json::from_str(DATA).unwrap_or_default();
    all.into_iter().find(|paper| paper.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_has_its_paper_and_each_paper_its_experiment() {
        let all: Vec<Paper> = serde_json::from_str(DATA).expect("the data file is valid");
        let experiments: Vec<&str> = crate::experiments().iter().map(|one| one.id()).collect();
        assert_eq!(all.iter().map(|paper| paper.id.as_str()).collect::<Vec<_>>(), experiments);
    }
}
