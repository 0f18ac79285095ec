//! YCSB's request distribution: Zipf's law over items whose order is scrambled by a hash.
//!
//! Gray et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994: one power and no table.

use nvmed_dice::mix;

/// YCSB's `ZIPFIAN_CONSTANT`.
const THETA: f64 = 0.99;

/// Picks items, few of them often.
#[derive(Debug)]
pub(super) struct Scrambled {
    items: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Scrambled {
    /// Over so many items.
    pub fn new(items: u64) -> Self {
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let whole = zeta(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / whole);
        Self { items, zeta: whole, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// The rank that a throw of the dice picks, from 0.
    fn rank(&self, dice: u64) -> u64 {
        let u = (dice >> 11) as f64 / (1u64 << 53) as f64;
        let along = u * self.zeta;
        if along < 1.0 {
            return 0;
        }
        if along < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }

    /// The item: ranks are spread over all of them.
    pub fn pick(&self, dice: u64) -> u64 {
        mix(self.rank(dice)) % self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_the_law() {
        let zipf = Scrambled::new(1000);
        let throws = 200_000u64;
        let mut counts = vec![0u64; 1000];
        (0..throws).for_each(|throw| counts[zipf.rank(mix(throw)) as usize] += 1);
        let share = |rank: usize| counts[rank] as f64 / throws as f64;
        let law = |rank: usize| ((rank + 1) as f64).powf(-THETA) / zipf.zeta;
        for rank in [0, 1, 9, 99] {
            assert!((share(rank) / law(rank) - 1.0).abs() < 0.15, "{rank}: {} {}", share(rank), law(rank));
        }
        assert!((0..throws).all(|throw| zipf.pick(mix(throw)) < 1000));
    }
}
