//! The keys of pages that were evicted a short while ago.

use nvmed_units::Page;

/// Entries that one key may lie in.
const WAYS: usize = 4;

/// A bounded memory of keys: a hash table whose entries age out by count of evictions, as the S3-FIFO
/// paper proposes (SOSP 2023, 4.2), so that nothing has to be removed.
///
/// An entry is `fingerprint:32 | time:32`; time counts insertions. A collision makes one page look as if
/// it had been seen before, which costs one wrong placement.
pub(crate) struct Ghost {
    entries: Vec<u64>,
    time: u32,
    life: u32,
}

fn hash(owner: u64, page: Page) -> u64 {
    // Fibonacci hashing of both words; the multiplier is 2^64 / golden ratio.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (owner.wrapping_mul(GOLDEN) ^ page.0).wrapping_mul(GOLDEN);
    mixed ^ mixed >> 29
}

impl Ghost {
    /// Remembers the last `life` keys, roughly.
    pub(crate) fn new(life: u32) -> Self {
        let entries = (life as usize).next_power_of_two().max(WAYS);
        // Zeroed memory from the allocator stays untouched until used. Time 0 is never inserted.
        Self { entries: vec![0; entries], time: 0, life }
    }

    fn bucket(&self, key: u64) -> usize {
        (key as usize % self.entries.len()) / WAYS * WAYS
    }

    fn is_live(&self, entry: u64) -> bool {
        let age = self.time.wrapping_sub(entry as u32);
        entry as u32 != 0 && age < self.life
    }

    pub(crate) fn insert(&mut self, owner: u64, page: Page) {
        self.time = self.time.checked_add(1).unwrap_or(1);
        let key = hash(owner, page);
        let (bucket, now) = (self.bucket(key), self.time);
        let entries = &mut self.entries[bucket..bucket + WAYS];
        let oldest = entries.iter_mut().max_by_key(|entry| now.wrapping_sub(**entry as u32));
        *oldest.expect("a bucket has four entries") = key >> 32 << 32 | u64::from(now);
    }

    /// Whether the key was inserted lately; it is forgotten by being asked for.
    pub(crate) fn take(&mut self, owner: u64, page: Page) -> bool {
        let key = hash(owner, page);
        let bucket = self.bucket(key);
        let found = (bucket..bucket + WAYS)
            .find(|at| self.entries[*at] >> 32 == key >> 32 && self.is_live(self.entries[*at]));
        if let Some(at) = found {
            self.entries[at] = 0;
        }
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_keys_are_remembered_once() {
        let mut ghost = Ghost::new(1000);
        for page in 0..3000 {
            ghost.insert(1, Page(page));
        }
        assert!((0..2000).filter(|page| ghost.take(1, Page(*page))).count() == 0, "old keys age out");
        let kept = (2000..3000).filter(|page| ghost.take(1, Page(*page))).count();
        assert!(kept > 700, "only {kept} of the last 1000 keys are remembered");
        assert!((2000..3000).filter(|page| ghost.take(1, Page(*page))).count() == 0, "a key is told once");
    }
}
