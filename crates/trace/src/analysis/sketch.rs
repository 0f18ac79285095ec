//! How many distinct numbers there were, about.
//!
//! Source: Flajolet, Fusy, Gandouet and Meunier, "HyperLogLog", AofA 2007; the estimator is that of Ertl, "New
//! cardinality estimation algorithms for HyperLogLog sketches", arXiv:1702.01284, algorithm 6, which has no bias at
//! small counts.

use nvmed_dice::mix;

/// Bits of the hash that pick a register: 2^14 registers.
const PICK: u32 = 14;
/// Bits of the hash that are left.
const LEFT: u32 = 64 - PICK;
/// The standard error of a count, as a share of it: 1.04 / sqrt(2^14).
pub(super) const ERROR: f64 = 1.04 / 128.0;

/// A sketch of a set of numbers: 16 KiB.
#[derive(Debug)]
pub(super) struct Sketch(Box<[u8; 1 << PICK]>);

impl Default for Sketch {
    fn default() -> Self {
        Self(Box::new([0; 1 << PICK]))
    }
}

impl Sketch {
    /// Adds a number.
    pub fn add(&mut self, number: u64) {
        let hash = mix(number);
        let register = &mut self.0[(hash >> LEFT) as usize];
        let rank = ((hash << PICK).leading_zeros().min(LEFT) + 1) as u8;
        *register = rank.max(*register);
    }

    /// How many distinct numbers were added, about.
    pub fn count(&self) -> f64 {
        let registers = f64::from(1 << PICK);
        let mut of_rank = [0u32; LEFT as usize + 2];
        for &rank in self.0.iter() {
            of_rank[usize::from(rank)] += 1;
        }
        let share = |rank: usize| f64::from(of_rank[rank]);
        let mut sum = registers * saturated(1.0 - share(LEFT as usize + 1) / registers);
        for rank in (1..=LEFT as usize).rev() {
            sum = 0.5 * (sum + share(rank));
        }
        sum += registers * empty(share(0) / registers);
        registers * registers / (2.0 * std::f64::consts::LN_2 * sum)
    }
}

/// What registers that are still empty add: Ertl's sigma, of their share.
fn empty(share: f64) -> f64 {
    if share >= 1.0 {
        return f64::INFINITY;
    }
    let (mut x, mut y, mut sum) = (share, 1.0, share);
    loop {
        x *= x;
        let before = sum;
        sum += x * y;
        y += y;
        if sum <= before {
            return sum;
        }
    }
}

/// What registers that are full take away: Ertl's tau, of the share of those that are not.
fn saturated(share: f64) -> f64 {
    if share <= 0.0 || share >= 1.0 {
        return 0.0;
    }
    let (mut x, mut y, mut sum) = (share, 1.0, 1.0 - share);
    loop {
        x = x.sqrt();
        let before = sum;
        y *= 0.5;
        sum -= (1.0 - x) * (1.0 - x) * y;
        if sum >= before {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_within_three_standard_errors() {
        let mut sketch = Sketch::default();
        assert!(sketch.count().abs() < 1e-9);
        let mut added = 0u64;
        for until in [1u64, 10, 1_000, 30_000, 60_000, 1_000_000] {
            for number in added..until {
                sketch.add(number * 512);
                sketch.add(number * 512);
            }
            added = until;
            let error = sketch.count() / until as f64 - 1.0;
            assert!(error.abs() < 3.0 * ERROR, "{until}: {error}");
        }
    }
}
