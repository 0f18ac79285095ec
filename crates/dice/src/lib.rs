//! Chance from a seed.
//!
//! In: a seed, or a row of numbers that stands for one. Out: numbers, choices and bytes that do not compress, the same
//! wherever the seed is the same: what a test or an experiment decided by chance is replayed from one number, and on
//! record are tables and images that were made from seeds. Neighbours: tests, experiments and benchmarks.
//! Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014 (SplitMix64).

#![forbid(unsafe_code)]

/// What the state moves on by: the odd number next to 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generator of numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Dice that fall differently for each row of numbers.
    #[must_use]
    pub fn of(numbers: &[u64]) -> Self {
        let mut dice = Self(0x006e_766d_6564);
        for &number in numbers {
            dice.0 ^= number.wrapping_mul(STEP);
            dice.0 = dice.next();
        }
        dice
    }

    /// 64 random bits.
    #[allow(clippy::should_implement_trait, reason = "dice never end")]
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `sides`; 0 for none.
    #[inline]
    pub fn roll(&mut self, sides: u64) -> u64 {
        if sides == 0 { 0 } else { self.next() % sides }
    }

    /// An index of a list of `len` things; 0 for none.
    pub fn index(&mut self, len: usize) -> usize {
        self.roll(len as u64) as usize
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }

    /// One of `things`, if there is any.
    pub fn pick<'a, T>(&mut self, things: &'a [T]) -> Option<&'a T> {
        things.get(self.index(things.len()))
    }

    /// Fills `bytes` with what does not compress.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Spreads the bits of a number over all of it.
#[inline]
#[must_use]
pub const fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_what_it_always_said() {
        // The first numbers of SplitMix64 from 1234567, as its authors' program prints them.
        let mut dice = Dice::new(1_234_567);
        let numbers = [0; 3].map(|_| dice.next());
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
        assert_ne!(Dice::of(&[1, 2]).next(), Dice::of(&[2, 1]).next());
    }

    #[test]
    fn nothing_is_picked_from_nothing() {
        let mut dice = Dice::new(1);
        assert_eq!((dice.roll(0), dice.index(0), dice.pick::<u8>(&[])), (0, 0, None));
        let mut bytes = [0; 13];
        dice.fill(&mut bytes);
        assert!(bytes[8..].iter().any(|&byte| byte != 0));
    }
}
