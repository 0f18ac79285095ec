//! Hashing of names and inode numbers: both are looked up for every path component.
//!
//! A folded multiplication over eight bytes at a time, as wyhash and FxHash do. Names come from
//! programs of the same user, so a deliberate flood of colliding names costs only the one who made it.
//! What a hash must keep secret from other users is [`Keyed`].

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

/// A hash under a secret key: who knows what numbers and names hash to learns nothing of others'.
///
/// SipHash-1-3, with one round a word and three at the end (Aumasson, Bernstein: "SipHash: a fast short-input PRF",
/// 2012, section 2), of a number and the bytes behind it.
#[derive(Clone, Copy)]
pub(crate) struct Keyed([u64; 2]);

impl Keyed {
    pub(crate) fn new(key: [u64; 2]) -> Self {
        Self(key)
    }

    #[inline]
    pub(crate) fn hash(&self, number: u64, bytes: &[u8]) -> u64 {
        let [one, other] = self.0;
        let mut state = [
            one ^ 0x736f_6d65_7073_6575,
            other ^ 0x646f_7261_6e64_6f6d,
            one ^ 0x6c79_6765_6e65_7261,
            other ^ 0x7465_6462_7974_6573,
        ];
        add(&mut state, number);
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            add(&mut state, u64::from_le_bytes(word.try_into().expect("the chunk has eight bytes")));
        }
        let rest = words.remainder();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        add(&mut state, u64::from_le_bytes(last) | (8 + bytes.len() as u64) << 56);
        state[2] ^= 0xff;
        (0..3).for_each(|_| round(&mut state));
        state[0] ^ state[1] ^ state[2] ^ state[3]
    }
}

#[inline]
fn add(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    state[0] ^= word;
}

#[inline]
fn round(state: &mut [u64; 4]) {
    let [mut a, mut b, mut c, mut d] = *state;
    a = a.wrapping_add(b);
    c = c.wrapping_add(d);
    b = b.rotate_left(13) ^ a;
    d = d.rotate_left(16) ^ c;
    a = a.rotate_left(32).wrapping_add(d);
    c = c.wrapping_add(b);
    d = d.rotate_left(21) ^ a;
    b = b.rotate_left(17) ^ c;
    *state = [a, b, c.rotate_left(32), d];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyed_hash_is_siphash() {
        // With the key 0 it is what the standard library hashes by.
        for len in 0..40 {
            let bytes: Vec<u8> = (0..len).map(|at| at * 5).collect();
            let mut theirs = std::hash::DefaultHasher::new();
            theirs.write(&99u64.to_le_bytes());
            theirs.write(&bytes);
            assert_eq!(Keyed::new([0; 2]).hash(99, &bytes), theirs.finish(), "{len} bytes");
        }
        assert_ne!(Keyed::new([1, 0]).hash(99, b""), Keyed::new([0, 1]).hash(99, b""));
    }
}
