//! Buckets whose width grows with their values: log-linear, as HdrHistogram has them.

/// Counts of values in `GROUPS` groups of `STEPS` buckets. In the first group each value below `STEPS` has a bucket
/// of its own; each further group covers a factor of two, so that a bucket is no wider than `1 / STEPS` of its
/// values. What is larger than all of them counts in the last.
///
/// With 16 steps, 1000 = 0b11_1110_1000 is in 992..=1023: its group begins at 512 and its buckets are 32 wide.
#[derive(Debug)]
pub enum Buckets<const STEPS: usize, const GROUPS: usize> {}

impl<const STEPS: usize, const GROUPS: usize> Buckets<STEPS, GROUPS> {
    const STEP_BITS: u32 = {
        // The largest value of the last bucket must fit 64 bits.
        assert!(STEPS.is_power_of_two() && GROUPS > 0 && STEPS.trailing_zeros() as usize + GROUPS <= 64);
        STEPS.trailing_zeros()
    };
    /// How many buckets there are.
    pub const COUNT: usize = STEPS * GROUPS;

    /// Which bucket `value` belongs to.
    #[inline]
    #[must_use]
    pub const fn of(value: u64) -> usize {
        // Of a value below `STEPS` this is 0, and without a branch. The highest bit of what is left makes it the bucket
        // of the next group.
        let doubling = (value | STEPS as u64).ilog2() - Self::STEP_BITS;
        let bucket = STEPS * doubling as usize + (value >> doubling) as usize;
        if bucket < Self::COUNT { bucket } else { Self::COUNT - 1 }
    }

    /// The largest value of a bucket below [`Buckets::COUNT`].
    #[must_use]
    pub const fn upper(bucket: usize) -> u64 {
        if bucket < STEPS {
            return bucket as u64;
        }
        let (doubling, step) = (bucket / STEPS - 1, bucket % STEPS);
        (((STEPS + step + 1) as u64) << doubling) - 1
    }

    /// The largest value of the bucket that `percent` of what was counted does not pass; `None` of nothing.
    #[must_use]
    pub fn percentile(counts: &[u64], percent: f64) -> Option<u64> {
        let count: u64 = counts.iter().sum();
        // In whole numbers: 99.9 percent of 1,000 are 999, and more than that as floating-point numbers.
        let millionths = (percent * 1e4).round() as u128;
        let wanted = (millionths * u128::from(count)).div_ceil(1_000_000).max(1) as u64;
        let mut seen = 0;
        let reached = |here: &u64| {
            seen += here;
            seen >= wanted
        };
        counts.iter().position(reached).map(Self::upper)
    }

    /// Every bucket with something in it: its largest value, and how many.
    pub fn filled(counts: &[u64]) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(at, &count)| (Self::upper(at), count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A bucket holds its values, borders on the one before, and is no wider than `1 / STEPS` of them.
    fn narrow<const STEPS: usize, const GROUPS: usize>(value: u64) {
        let at = Buckets::<STEPS, GROUPS>::of(value);
        let upper = Buckets::<STEPS, GROUPS>::upper(at);
        assert!(upper >= value && upper - value <= value / STEPS as u64, "{value} in {at}: {upper}");
        assert!(at == 0 || Buckets::<STEPS, GROUPS>::upper(at - 1) < value, "{value} in {at}");
    }

    proptest! {
        #[test]
        fn buckets_are_narrow(value in 0u64..1 << 38, bits in 0u32..38) {
            narrow::<16, 37>(value >> bits);
            narrow::<64, 33>(value >> bits);
        }
    }

    #[test]
    fn the_last_bucket_takes_what_is_longer() {
        assert_eq!((Buckets::<16, 37>::COUNT, Buckets::<64, 33>::COUNT), (592, 2112));
        assert_eq!(Buckets::<16, 37>::upper(591), (1 << 40) - 1);
        assert_eq!(Buckets::<64, 33>::upper(2111), (1 << 38) - 1);
        for value in [1 << 40, u64::MAX] {
            assert_eq!((Buckets::<16, 37>::of(value), Buckets::<64, 33>::of(value)), (591, 2111));
        }
    }

    #[test]
    fn the_example_holds() {
        let at = Buckets::<16, 37>::of(1000);
        assert_eq!((Buckets::<16, 37>::upper(at - 1), Buckets::<16, 37>::upper(at)), (991, 1023));
        assert_eq!(Buckets::<16, 37>::percentile(&[0; 592], 50.0), None);
    }

    #[test]
    fn a_percentile_is_of_as_many_as_it_says() {
        let mut counts = [0; 592];
        (counts[1], counts[2]) = (999, 1);
        let at = |percent| Buckets::<16, 37>::percentile(&counts, percent);
        assert_eq!([0.0, 50.0, 99.9, 99.91, 100.0].map(at), [1, 1, 1, 2, 2].map(Some));
    }
}
