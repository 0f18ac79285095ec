//! Ranges of keys that are gone: disjoint, in order, none next to another.

use core::ops::Bound;
use std::collections::BTreeMap;

/// From the first key of each range to the key that ends it, which is not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Intervals {
    ends: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The keys at or below `key`.
fn upto(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Unbounded, Bound::Included(key))
}

impl Intervals {
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds the keys at or above `from` and below `to`; `from` is below `to`.
    pub(crate) fn insert(&mut self, from: &[u8], to: &[u8]) {
        assert!(from < to, "a range of keys that ends before it begins");
        let (mut from, mut to) = (from.to_vec(), to.to_vec());
        // Those that begin at or before our end and end at or after our start become part of us.
        while let Some((start, end)) = self.ends.range::<[u8], _>(upto(&to)).next_back() {
            if end.as_slice() < from.as_slice() {
                break;
            }
            let start = start.clone();
            if let Some(end) = self.ends.remove(&start) {
                to = to.max(end);
            }
            from = from.min(start);
        }
        self.ends.insert(from, to);
    }

    /// The range that `key` is in.
    pub(crate) fn around(&self, key: &[u8]) -> Option<(&[u8], &[u8])> {
        if self.ends.is_empty() {
            return None;
        }
        let (from, to) = self.ends.range::<[u8], _>(upto(key)).next_back()?;
        (key < to.as_slice()).then_some((from, to))
    }

    /// Whether `key` is in a range.
    pub(crate) fn contain(&self, key: &[u8]) -> bool {
        self.around(key).is_some()
    }

    /// The first range that has a key at or above `key`.
    pub(crate) fn after(&self, key: &[u8]) -> Option<(&[u8], &[u8])> {
        self.around(key).or_else(|| {
            let next = self.ends.range::<[u8], _>((Bound::Included(key), Bound::Unbounded)).next()?;
            Some((next.0.as_slice(), next.1.as_slice()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn they_are_a_set_of_keys(ranges in prop::collection::vec((0u8..60, 1u8..12), 0..25)) {
            let (mut intervals, mut model) = (Intervals::default(), BTreeSet::new());
            for (from, length) in ranges {
                intervals.insert(&[from], &[from + length]);
                model.extend(from..from + length);
            }
            for key in 0..80u8 {
                prop_assert_eq!(intervals.contain(&[key]), model.contains(&key), "{}", key);
                let after = intervals.after(&[key]).map(|(from, to)| (from[0].max(key), to[0]));
                let first = model.range(key..).next().copied();
                prop_assert_eq!(after.map(|(from, _)| from), first);
                if let Some((_, to)) = after {
                    prop_assert!(!model.contains(&to), "two ranges touch at {}", to);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "ends before it begins")]
    fn a_range_that_goes_back_is_our_mistake() {
        Intervals::default().insert(b"b", b"a");
    }
}
