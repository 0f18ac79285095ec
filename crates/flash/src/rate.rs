//! How fast bytes pass.

/// So many bytes in so many nanoseconds; zero bytes is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Bytes that pass in [`Self::ns`].
    pub bytes: u64,
    /// Nanoseconds.
    pub ns: u64,
}

impl Rate {
    /// No limit.
    pub const UNLIMITED: Self = Self { bytes: 0, ns: 0 };

    /// Bytes a second; 0 is no limit.
    #[must_use]
    pub const fn per_second(bytes: u64) -> Self {
        Self { bytes, ns: 1_000_000_000 }
    }

    /// Whether bytes pass in no time.
    #[must_use]
    pub const fn is_unlimited(self) -> bool {
        self.bytes == 0 || self.ns == 0
    }

    /// Nanoseconds that `bytes` take, rounded up.
    #[inline]
    #[must_use]
    pub fn time_of(self, bytes: u64) -> u64 {
        if self.is_unlimited() {
            return 0;
        }
        match bytes.checked_mul(self.ns) {
            Some(product) => product.div_ceil(self.bytes),
            None => (u128::from(bytes) * u128::from(self.ns)).div_ceil(u128::from(self.bytes)) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rate;

    #[test]
    fn times_are_exact_and_rounded_up() {
        // HMB-I/O, Table 4: a register of 4 KiB is read in 60 us.
        let register = Rate { bytes: 4096, ns: 60_000 };
        assert_eq!([register.time_of(4096), register.time_of(512), register.time_of(1)], [60_000, 7_500, 15]);
        assert_eq!(Rate::per_second(3).time_of(1), 333_333_334);
        assert_eq!(
            Rate::per_second(1).time_of(1 << 33),
            (1 << 33) * 1_000_000_000,
            "beyond 64 bits on the way"
        );
        assert_eq!(Rate::UNLIMITED.time_of(u64::MAX), 0);
    }
}
