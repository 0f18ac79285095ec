//! Repeated measurements and what they say.

use serde::{Deserialize, Serialize};

/// Figures of one contender, one a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds one run's figure.
    pub fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    /// Number of runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no run was made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The middle figure; `NaN` without runs.
    #[must_use]
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[n / 2],
            n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
        }
    }

    /// Smallest and largest figure.
    #[must_use]
    pub fn range(&self) -> (f64, f64) {
        let low = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        (low, self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    }

    /// Each run's figure over `other`'s of the same round.
    #[must_use]
    pub fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(ours, rival)| ours / rival).collect())
    }

    /// Each figure times `factor`.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        self.0.iter().map(|figure| figure * factor).collect()
    }

    /// All figures, in the order in which they were taken.
    #[must_use]
    pub fn figures(&self) -> &[f64] {
        &self.0
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(figures: I) -> Self {
        Self(figures.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(
            [3.0, 1.0, 2.0].into_iter().collect::<Samples>().median().total_cmp(&2.0),
            std::cmp::Ordering::Equal
        );
        let even: Samples = [4.0, 1.0, 2.0, 3.0].into_iter().collect();
        assert_eq!(even.median().total_cmp(&2.5), std::cmp::Ordering::Equal);
        assert!(Samples::default().median().is_nan());
    }
}
