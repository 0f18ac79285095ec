//! Response times: their exact sum, and their distribution in classes.

/// Classes for each doubling of the time: a class is at most 1/64 of a time wide.
const PARTS: u64 = 64;
/// Times below this have a class each; then 57 doublings are left in 64 bits.
const EXACT: u64 = 2 * PARTS;
const CLASSES: usize = (EXACT + 57 * PARTS) as usize;

/// Response times in nanoseconds, in memory of one size (30 KiB).
#[derive(Clone, Debug)]
pub(crate) struct Responses {
    count: u64,
    sum_ns: u64,
    classes: Vec<u64>,
}

impl Default for Responses {
    fn default() -> Self {
        Self { count: 0, sum_ns: 0, classes: vec![0; CLASSES] }
    }
}

/// The class of a time, and the largest time in a class.
fn class(ns: u64) -> usize {
    if ns < EXACT {
        return ns as usize;
    }
    let doubling = u64::from(ns.ilog2() - EXACT.ilog2());
    (EXACT + doubling * PARTS + (ns >> (doubling + 1)) - PARTS) as usize
}

fn limit(class: usize) -> u64 {
    let class = class as u64;
    if class < EXACT {
        return class;
    }
    let (doubling, part) = ((class - EXACT) / PARTS, (class - EXACT) % PARTS);
    // The last class ends at 2^64.
    (((u128::from(PARTS + part) + 1) << (doubling + 1)) - 1) as u64
}

impl Responses {
    /// Takes a time.
    pub fn push(&mut self, ns: u64) {
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.classes[class(ns)] += 1;
    }

    /// Sum of all times.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The time that so many of a thousand do not exceed, or at most 1/64 more; 0 of nothing.
    pub(crate) fn permille_ns(&self, permille: u64) -> u64 {
        let wanted = (u128::from(self.count) * u128::from(permille)).div_ceil(1000) as u64;
        let mut below = 0;
        let found = self.classes.iter().position(|count| {
            below += count;
            below >= wanted
        });
        if self.count == 0 { 0 } else { found.map_or(u64::MAX, limit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_what_is_up_to_its_limit_and_at_most_a_64th_less() {
        let mut times: Vec<u64> = (0..5000).collect();
        times.extend((7..64).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 12_345]));
        times.push(u64::MAX);
        for ns in times {
            let limit = limit(class(ns));
            assert!(ns <= limit && limit - ns <= ns / PARTS, "{ns}: {limit}");
            assert!(class(ns) < CLASSES && (limit == u64::MAX || class(limit + 1) == class(ns) + 1), "{ns}");
        }
    }

    #[test]
    fn the_99th_percentile_is_not_exceeded_by_99_of_100() {
        let mut responses = Responses::default();
        assert_eq!(responses.permille_ns(990), 0);
        (1..=100).for_each(|ns| responses.push(ns));
        assert_eq!(
            (responses.permille_ns(990), responses.permille_ns(500), responses.sum_ns()),
            (99, 50, 5050)
        );
        responses.push(1_000_000);
        assert_eq!(responses.permille_ns(990), 100);
        assert!((1_000_000..=1_015_625).contains(&responses.permille_ns(1000)));
    }
}
