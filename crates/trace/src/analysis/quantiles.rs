//! What a share of values does not pass: log-linear buckets, made when something falls into them.

use nvmed_units::Buckets;

/// Each power of two has so many: a bucket is no wider than 1/128 of its values, and those below 256 are exact.
const STEPS: usize = 128;
/// Enough for every value below 2^63, as all times of a request are.
const GROUPS: usize = 57;
/// Most groups, of all devices and processes together, 1 KiB each: 256 MiB. Times of one kind are in some 20.
const ROOM_MAX: u32 = 1 << 18;

type Steps = Buckets<STEPS, GROUPS>;

/// What all of them may still take.
#[derive(Debug)]
pub(super) struct Room {
    groups: u32,
}

impl Default for Room {
    fn default() -> Self {
        Self { groups: ROOM_MAX }
    }
}

/// Counts of values.
#[derive(Clone, Debug, Default)]
pub(super) struct Quantiles {
    groups: Vec<Option<Box<[u64; STEPS]>>>,
    max: u64,
    /// Values that found no room.
    lost: u64,
}

impl Quantiles {
    /// Counts a value.
    #[inline]
    pub(super) fn count(&mut self, value: u64, room: &mut Room) {
        let bucket = Steps::of(value);
        self.max = self.max.max(value);
        match self.groups.get_mut(bucket / STEPS) {
            Some(Some(group)) => group[bucket % STEPS] += 1,
            _ => self.count_new(bucket, room),
        }
    }

    /// Counts the first value of a group.
    #[cold]
    fn count_new(&mut self, bucket: usize, room: &mut Room) {
        if room.groups == 0 {
            self.lost += 1;
            return;
        }
        room.groups -= 1;
        super::slot(&mut self.groups, bucket / STEPS).get_or_insert_with(|| Box::new([0; STEPS]))
            [bucket % STEPS] += 1;
    }

    /// Counts what another one has counted, too. This is at the end, when no room is needed any more.
    pub(super) fn merge(&mut self, other: &Self) {
        for (number, group) in other.groups.iter().enumerate() {
            let Some(group) = group else { continue };
            let mine = super::slot(&mut self.groups, number).get_or_insert_with(|| Box::new([0; STEPS]));
            mine.iter_mut().zip(group.iter()).for_each(|(mine, more)| *mine += more);
        }
        self.max = self.max.max(other.max);
        self.lost += other.lost;
    }

    /// The values that so many thousandths of all do not pass, in ascending order of these; and the largest value.
    /// `None` of nothing, and where some value found no room.
    pub(super) fn at<const N: usize>(&self, thousandths: [u64; N]) -> Option<([u64; N], u64)> {
        let groups =
            self.groups.iter().enumerate().filter_map(|(number, group)| Some((number, group.as_ref()?)));
        let counts = groups.flat_map(|(number, group)| {
            group.iter().enumerate().map(move |(step, &count)| (number * STEPS + step, count))
        });
        let all: u64 = counts.clone().map(|(_, count)| count).sum();
        if all == 0 || self.lost > 0 {
            return None;
        }
        let (mut found, mut next, mut seen) = ([self.max; N], 0, 0u64);
        for (bucket, count) in counts {
            seen += count;
            // 999 thousandths of 1,000 values are 999 of them.
            let is_reached = |of: u64| u128::from(seen) * 1000 >= u128::from(all) * u128::from(of);
            while seen > 0 && next < N && is_reached(thousandths[next]) {
                found[next] = Steps::upper(bucket).min(self.max);
                next += 1;
            }
        }
        Some((found, self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_dice::Dice;

    #[test]
    fn quantiles_are_within_a_hundredth_of_those_of_the_sorted_values() {
        let (mut dice, mut room) = (Dice::new(4), Room::default());
        for count in [1usize, 2, 10, 999, 1000, 1001, 30_000] {
            let (mut one, mut other, mut values) = (Quantiles::default(), Quantiles::default(), Vec::new());
            for number in 0..count {
                let value = dice.next() >> 1 >> dice.roll(63);
                values.push(value);
                if number % 3 == 0 { &mut one } else { &mut other }.count(value, &mut room);
            }
            one.merge(&other);
            values.sort_unstable();
            let (found, max) = one.at([1, 500, 900, 990, 999, 1000]).expect("there are some");
            assert_eq!((max, found[5]), (values[count - 1], max));
            for (found, of) in found.into_iter().zip([1, 500, 900, 990, 999, 1000]) {
                let right = values[(of * count).div_ceil(1000) - 1];
                assert!(
                    found >= right && found - right <= right / 100,
                    "{of} of {count}: {found}, not {right}"
                );
            }
        }
    }

    #[test]
    fn small_values_are_exact_and_what_has_no_room_is_told() {
        let (mut depths, mut room) = (Quantiles::default(), Room { groups: 2 });
        assert_eq!(depths.at([500]), None);
        (1..=255).for_each(|depth| depths.count(depth, &mut room));
        assert_eq!(depths.at([500, 1000]), Some(([128, 255], 255)));
        depths.count(1 << 40, &mut room);
        assert_eq!(depths.at([500]), None);
    }
}
