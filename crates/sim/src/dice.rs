//! Chance from a seed.

/// A small generator (SplitMix64): one number replays everything that it decided.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall differently for each row of numbers.
    #[must_use]
    pub fn of(numbers: &[u64]) -> Self {
        let mut dice = Self(0x006e_766d_6564);
        for &number in numbers {
            dice.0 ^= number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            dice.0 = dice.next();
        }
        dice
    }

    /// 64 random bits.
    #[allow(clippy::should_implement_trait, reason = "dice never end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `sides`; 0 for none.
    pub fn roll(&mut self, sides: u64) -> u64 {
        if sides == 0 { 0 } else { self.next() % sides }
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }

    /// One of `things`, if there is any.
    pub fn pick<'a, T>(&mut self, things: &'a [T]) -> Option<&'a T> {
        things.get(self.roll(things.len() as u64) as usize)
    }
}

/// Bytes that are like no others: from a serial number, at a place.
pub fn fill(bytes: &mut [u8], serial: u64) {
    let mut dice = Dice::of(&[serial, 0xf111]);
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&dice.next().to_le_bytes()[..chunk.len()]);
    }
}
