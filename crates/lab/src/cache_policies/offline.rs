//! What a cache that knows more could do: the two bounds beside the measured policies.

use std::collections::{BTreeSet, HashMap};

/// Hits of exact least-recently-used, which a cache whose readers take no lock cannot have.
#[must_use]
pub fn lru(accesses: &[u32], frames: usize) -> u64 {
    keep(accesses, frames, |at| at as u64)
}

/// Hits of the optimal policy, which evicts the page whose next access is furthest away (Belady, "A
/// study of replacement algorithms for a virtual-storage computer", 1966).
#[must_use]
pub fn belady(accesses: &[u32], frames: usize) -> u64 {
    let mut next = vec![u64::MAX; accesses.len()];
    let mut seen = HashMap::new();
    for (at, page) in accesses.iter().enumerate().rev() {
        next[at] = seen.insert(page, at as u64).unwrap_or(u64::MAX);
    }
    keep(accesses, frames, |at| u64::MAX - next[at])
}

/// Replays with the value that `worth` gives a page at each access: the lowest goes.
fn keep(accesses: &[u32], frames: usize, worth: impl Fn(usize) -> u64) -> u64 {
    let mut worths: HashMap<u32, u64> = HashMap::new();
    let mut order = BTreeSet::new();
    let mut hits = 0;
    for (at, page) in accesses.iter().enumerate() {
        let value = worth(at);
        match worths.insert(*page, value) {
            Some(old) => {
                hits += 1;
                order.remove(&(old, *page));
            }
            None if order.len() == frames => {
                if let Some((_, victim)) = order.pop_first() {
                    worths.remove(&victim);
                }
            }
            None => {}
        }
        order.insert((value, *page));
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_those_of_the_textbook() {
        // Belady's own example (Silberschatz, "Operating System Concepts", 9.4): 20 references, 3 frames;
        // 9 faults of the optimum, 12 of LRU.
        let references = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        assert_eq!(belady(&references, 3), 20 - 9);
        assert_eq!(lru(&references, 3), 20 - 12);
        assert_eq!((belady(&references, 6), lru(&references, 6)), (20 - 6, 20 - 6));
    }
}
