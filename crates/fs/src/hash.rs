//! Hashing of names and inode numbers: both are looked up for every path component.
//!
//! A folded multiplication over eight bytes at a time, as wyhash and FxHash do. Names come from
//! programs of the same user, so a deliberate flood of colliding names costs only the one who made it.

use core::hash::{BuildHasherDefault, Hasher};

/// An odd number without structure: 2^64 divided by the golden ratio.
const STIR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The state of a hash.
#[derive(Default)]
pub struct Fold(u64);

/// Builds hashers for maps by inode number or by name.
pub(crate) type Numbers = BuildHasherDefault<Fold>;

impl Fold {
    #[inline]
    fn add(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word).wrapping_mul(u128::from(STIR) << 1 | 1);
        self.0 = (wide as u64) ^ ((wide >> 64) as u64) ^ word.rotate_left(23);
    }
}

impl Hasher for Fold {
    #[inline]
    fn finish(&self) -> u64 {
        let wide = u128::from(self.0 ^ STIR) * u128::from(STIR);
        (wide as u64) ^ ((wide >> 64) as u64)
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.add(u64::from_le_bytes(word.try_into().expect("the chunk has eight bytes")));
        }
        let rest = words.remainder();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        // The length in front of a slice: `write` stirs it in already.
        let _ = word;
    }
}
