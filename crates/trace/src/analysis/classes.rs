//! Distributions: counts and sums by classes whose limits double.

use nvmed_units::BLOCK_BYTES;

/// Classes of sizes: at most 4 KiB, 8 KiB, and so on to 16 MiB, and above. The first eight and the sum of the others
/// are those of Figure 4.
pub(crate) const SIZES: usize = 14;
/// Classes of times: at most 2^-10 ms, 2^-9 ms, and so on to 2^37 ms (4 years), and above. Those from 1 ms to 128 ms
/// are those of Figures 5 and 6.
pub(super) const TIMES: usize = 49;
/// The class of 1 ms.
pub(super) const MILLISECOND: usize = 10;

/// Counts and sums of what was put into `N` classes.
#[derive(Clone, Debug)]
pub(super) struct Classes<const N: usize> {
    /// How many.
    pub counts: [u64; N],
    /// Their sums.
    pub sums: [u64; N],
}

impl<const N: usize> Default for Classes<N> {
    fn default() -> Self {
        Self { counts: [0; N], sums: [0; N] }
    }
}

impl<const N: usize> Classes<N> {
    /// Counts one in a class.
    #[inline]
    pub fn count(&mut self, class: usize, value: u64) {
        self.counts[class] += 1;
        self.sums[class] = self.sums[class].saturating_add(value);
    }

    /// Counts what others have counted, too.
    pub fn merge(&mut self, other: &Self) {
        for class in 0..N {
            self.counts[class] += other.counts[class];
            self.sums[class] = self.sums[class].saturating_add(other.sums[class]);
        }
    }

    /// How many there are in all classes.
    pub fn all(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all classes.
    pub fn sum(&self) -> u64 {
        self.sums.iter().fold(0, |sum, &more| sum.saturating_add(more))
    }

    /// The mean of all classes; of nothing there is none.
    pub fn mean(&self) -> Option<f64> {
        let all = self.all();
        (all > 0).then(|| self.sum() as f64 / all as f64)
    }
}

/// The class of a size.
#[inline]
pub(crate) fn size_class(bytes: u64) -> usize {
    doublings(bytes.div_ceil(BLOCK_BYTES as u64)).min(SIZES - 1)
}

/// Sixteenths of a nanosecond in the least limit of a time, 2^-10 ms.
const LEAST_LIMIT: u64 = 15_625;
/// Bits of that number.
const LEAST_LIMIT_BITS: u32 = u64::BITS - LEAST_LIMIT.leading_zeros();

/// The class of a time.
#[inline]
pub(super) fn time_class(ns: u64) -> usize {
    // What is longer is in the last class, too, and has no sixteenths.
    let sixteenths = ns.min(1 << 58) * 16;
    // Of as many bits as the time, a limit is enough or half of what is; without a division.
    let class = (u64::BITS - sixteenths.leading_zeros()).saturating_sub(LEAST_LIMIT_BITS);
    (class as usize + usize::from(sixteenths > LEAST_LIMIT << class)).min(TIMES - 1)
}

/// The limit of a class of sizes in KiB; the last has none.
pub(super) fn size_limit_kib(class: usize) -> Option<u64> {
    (class + 1 < SIZES).then(|| 4 << class)
}

/// The limit of a class of times in ms; the last has none.
pub(super) fn time_limit_ms(class: usize) -> Option<f64> {
    (class + 1 < TIMES).then(|| 2f64.powi(class as i32 - MILLISECOND as i32))
}

/// How often 1 is doubled until it is at least `number`.
#[inline]
fn doublings(number: u64) -> usize {
    (u64::BITS - number.saturating_sub(1).leading_zeros()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_in_the_class_below_it() {
        let sizes = [1, 4096, 4097, 8192, 524_288, 524_289, 16 << 20, (16 << 20) + 1, u64::MAX];
        assert_eq!(sizes.map(size_class), [0, 0, 1, 1, 7, 8, 12, 13, 13]);
        assert_eq!(
            (size_limit_kib(0), size_limit_kib(12), size_limit_kib(13)),
            (Some(4), Some(16_384), None)
        );
        let times = [0, 1, 976, 977, 1_000_000, 1_000_001, 2_000_000, 128_000_000, 128_000_001, u64::MAX];
        assert_eq!(times.map(time_class), [0, 0, 0, 1, 10, 11, 11, 17, 18, 48]);
        for class in 0..TIMES - 1 {
            // The longest time that a limit does not end before.
            let limit_ns = (15_625u128 << class) / 16;
            let classes = [limit_ns as u64, limit_ns as u64 + 1].map(time_class);
            assert_eq!(classes, [class, class + 1], "{limit_ns} ns");
        }
        assert_eq!((time_limit_ms(10), time_limit_ms(17), time_limit_ms(48)), (Some(1.0), Some(128.0), None));
    }
}
