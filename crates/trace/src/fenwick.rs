//! Sums of prefixes in logarithmic time.
//!
//! Source: Fenwick, "A new data structure for cumulative frequency tables", Software: Practice and Experience, 1994.

/// Counts of a fixed number of slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fenwick {
    /// `sums[i]` is the sum of the `lowbit(i)` slots that end before slot `i`; the first is not used.
    sums: Vec<u64>,
    total: u64,
}

impl Fenwick {
    /// So many slots, which count 0.
    pub fn new(slots: usize) -> Self {
        Self { sums: vec![0; slots + 1], total: 0 }
    }

    /// Slots with these counts.
    pub fn of(counts: &[u64]) -> Self {
        let mut fenwick = Self::new(counts.len());
        for (slot, &count) in counts.iter().enumerate() {
            fenwick.add(slot, count);
        }
        fenwick
    }

    /// Counts more in a slot.
    pub fn add(&mut self, slot: usize, more: u64) {
        let mut at = slot + 1;
        while at < self.sums.len() {
            self.sums[at] += more;
            at += at & at.wrapping_neg();
        }
        self.total += more;
    }

    /// Counts one less in a slot, which has one.
    pub fn take(&mut self, slot: usize) {
        let mut at = slot + 1;
        while at < self.sums.len() {
            self.sums[at] -= 1;
            at += at & at.wrapping_neg();
        }
        self.total -= 1;
    }

    /// Counts so many less in a slot, which has as many.
    pub(crate) fn take_many(&mut self, slot: usize, less: u64) {
        let mut at = slot + 1;
        while at < self.sums.len() {
            self.sums[at] -= less;
            at += at & at.wrapping_neg();
        }
        self.total -= less;
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.sums.len() - 1
    }

    /// The sum of all slots.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The sum of the slots before this one.
    pub fn before(&self, slot: usize) -> u64 {
        let (mut at, mut sum) = (slot, 0);
        while at > 0 {
            sum += self.sums[at];
            at &= at - 1;
        }
        sum
    }

    /// The slot that the one of this rank is in, ranks counting from 0 through all slots; the rank is below the total.
    pub fn find(&self, rank: u64) -> usize {
        let (mut at, mut left) = (0, rank);
        let mut step = self.sums.len().next_power_of_two() / 2;
        while step > 0 {
            if let Some(&sum) = self.sums.get(at + step)
                && sum <= left
            {
                left -= sum;
                at += step;
            }
            step /= 2;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_ranks_are_those_of_a_list() {
        let counts = [3, 0, 0, 5, 1, 0, 2];
        let mut fenwick = Fenwick::of(&counts);
        let ranks: Vec<usize> = (0..fenwick.total()).map(|rank| fenwick.find(rank)).collect();
        assert_eq!(ranks, [0, 0, 0, 3, 3, 3, 3, 3, 4, 6, 6]);
        let sums: Vec<u64> = (0..=7).map(|slot| fenwick.before(slot)).collect();
        assert_eq!(sums, [0, 3, 3, 3, 8, 9, 9, 11]);
        fenwick.take(3);
        assert_eq!((fenwick.before(4), fenwick.total(), fenwick.find(7)), (7, 10, 4));
    }
}
