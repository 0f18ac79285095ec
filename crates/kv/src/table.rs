//! A hash table from keys to places in an arena; it holds no keys.

use nvmed_units::Halves;

/// Slots at first.
const SLOTS_MIN: usize = 64;
/// An empty slot; no entry lies at the arena's last byte.
const EMPTY: u64 = u64::MAX;

/// Open addressing with linear probing, at most half full. A slot is the upper half of the hash, then the entry.
pub(crate) struct Table {
    slots: Vec<u64>,
    len: usize,
}

/// A hash of `key`: eight bytes at a time, each folded in by a wide multiplication (as wyhash does).
pub(crate) fn hash(key: &[u8]) -> u64 {
    const SEED: u64 = 0xa076_1d64_78bd_642f;
    let fold = |hash: u64, word: u64| {
        let wide = u128::from(hash ^ word).wrapping_mul(0xe703_7ed1_a0b4_28db_8ebc_6af0_9c88_c6e3);
        (wide as u64) ^ ((wide >> 64) as u64)
    };
    let (words, rest) = key.as_chunks::<8>();
    let hash = words.iter().fold(SEED ^ key.len() as u64, |hash, word| fold(hash, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    fold(fold(hash, u64::from_le_bytes(last)), SEED)
}

fn pack(hash: u64, entry: u32) -> u64 {
    (hash & 0xffff_ffff_0000_0000) | u64::from(entry)
}

impl Table {
    pub(crate) fn new() -> Self {
        Self { slots: vec![EMPTY; SLOTS_MIN], len: 0 }
    }

    /// Empties it; it keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(EMPTY);
        self.len = 0;
    }

    fn start(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.slots.len() - 1)
    }

    /// The slot of the entry with `hash` that `is` recognises, or the empty one where it would be.
    fn probe(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.start(hash);
        loop {
            let slot = self.slots[at];
            if slot == EMPTY || (pack(slot, 0) == pack(hash, 0) && is(slot.low())) {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    /// The entry with `hash` that `is` recognises.
    pub(crate) fn find(&self, hash: u64, is: impl FnMut(u32) -> bool) -> Option<u32> {
        let slot = self.slots[self.probe(hash, is)];
        (slot != EMPTY).then_some(slot.low())
    }

    /// Adds `entry`, which is not there.
    pub(crate) fn insert(&mut self, hash: u64, entry: u32) {
        if 2 * (self.len + 1) > self.slots.len() {
            self.grow();
        }
        let at = self.probe(hash, |_| false);
        self.slots[at] = pack(hash, entry);
        self.len += 1;
    }

    /// Puts `new` in the place of `old`, which is there.
    pub(crate) fn replace(&mut self, hash: u64, old: u32, new: u32) {
        let at = self.probe(hash, |entry| entry == old);
        self.slots[at] = pack(hash, new);
    }

    fn grow(&mut self) {
        let slots = vec![EMPTY; 2 * self.slots.len()];
        let old = core::mem::replace(&mut self.slots, slots);
        for slot in old.into_iter().filter(|&slot| slot != EMPTY) {
            let at = self.probe(slot, |_| false);
            self.slots[at] = slot;
        }
    }
}
