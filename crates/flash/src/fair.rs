//! Who goes first: by rank, unless others waited too long.

use crate::calendar::NEVER;

/// A choice among queues by rank. How often in a row one was taken that was not the oldest is counted; at the limit,
/// the oldest is next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fair {
    overtaken: u32,
}

impl Fair {
    /// Which queue is next: `orders` says, by rank, since when the first of each waits, [`NEVER`] of an empty one.
    #[inline]
    pub fn choice(self, orders: &[u64], overtakes: u32) -> Option<usize> {
        let first = orders.iter().position(|&order| order != NEVER)?;
        if self.overtaken < overtakes { Some(first) } else { oldest(orders) }
    }

    /// The choice was made.
    #[inline]
    pub fn took(&mut self, choice: usize, orders: &[u64]) {
        let was_oldest = orders.iter().all(|&order| order >= orders[choice]);
        self.overtaken = if was_oldest { 0 } else { self.overtaken + 1 };
    }
}

fn oldest(orders: &[u64]) -> Option<usize> {
    let least = orders.iter().copied().min()?;
    orders.iter().position(|&order| order == least)
}

#[cfg(test)]
mod tests {
    use super::Fair;
    use crate::calendar::NEVER;

    #[test]
    fn the_oldest_is_overtaken_so_often_and_no_more() {
        let mut fair = Fair::default();
        let mut taken = Vec::new();
        for order in 10..18 {
            let orders = [NEVER, order, 1];
            let choice = fair.choice(&orders, 3).unwrap();
            fair.took(choice, &orders);
            taken.push(choice);
        }
        assert_eq!(taken, [1, 1, 1, 2, 1, 1, 1, 2]);
        assert_eq!(fair.choice(&[NEVER; 3], 3), None);
    }
}
