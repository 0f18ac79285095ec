//! A key-value load: keys and values whose sizes follow Zipf's law (TCE'17, IV.B).

use crate::error::LabError;
use crate::rival::Contender;
use nvmed_dice::{Dice, mix};
use nvmed_kv::{Barrier, Batch, KvError, Medium, Options, PendingMemory, Sequence, Store};
use nvmed_sys::{Mapping, Pages};
use std::sync::Arc;

/// Bytes of a key besides the eight that make it unlike the others: multiples of a step, by rank.
const KEY: Zipf = Zipf { step: 5, ranks: 16 };
/// Bytes of a value.
const VALUE: Zipf = Zipf { step: 38, ranks: 64 };
/// Pairs a batch while the store is filled.
const FILL_BATCH: u64 = 256;
/// Puts that one commit makes durable.
const PUTS_A_COMMIT: u64 = 64;
const PENDING_BYTES: usize = 4 << 20;

/// Sizes `step`, `2 step` … `ranks · step`, the k-th in proportion to 1/k.
struct Zipf {
    step: usize,
    ranks: u32,
}

impl Zipf {
    fn bytes(&self, dice: u64) -> usize {
        let whole: f64 = (1..=self.ranks).map(|rank| 1.0 / f64::from(rank)).sum();
        let mut left = dice as f64 / u64::MAX as f64 * whole;
        let rank = (1..self.ranks).find(|&rank| {
            left -= 1.0 / f64::from(rank);
            left < 0.0
        });
        rank.unwrap_or(self.ranks) as usize * self.step
    }
}

/// The pairs of a load.
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    /// How many.
    pub count: u64,
}

impl Pairs {
    /// Writes the key of a pair to `into`.
    pub fn key(self, index: u64, into: &mut Vec<u8>) {
        into.clear();
        into.extend_from_slice(&mix(index).to_be_bytes());
        fill(into, KEY.bytes(mix(index ^ 1 << 40)), index ^ 2 << 40);
    }

    /// Writes a value of a pair to `into`; `version` makes it another one, of the same size.
    pub fn value(self, index: u64, version: u64, into: &mut Vec<u8>) {
        into.clear();
        fill(into, VALUE.bytes(mix(index ^ 3 << 40)), index ^ version << 41);
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(self) -> u64 {
        // The averages of the two laws: step · ranks / harmonic number.
        self.count * 544
    }
}

/// Appends `bytes` bytes that do not compress.
fn fill(into: &mut Vec<u8>, bytes: usize, seed: u64) {
    let from = into.len();
    into.resize(from + bytes, 0);
    Dice::new(mix(seed)).fill(&mut into[from..]);
}

fn failed(error: KvError) -> LabError {
    LabError::Program { shown: "the store".to_owned(), reason: error.to_string() }
}

/// Makes a store on `medium` and fills it; `memory_bytes` is its node cache.
///
/// # Errors
/// The store's.
pub fn filled(medium: Arc<dyn Medium>, pairs: Pairs, memory_bytes: usize) -> Result<Arc<Store>, LabError> {
    let options = Options { identity: 7, node_cache_bytes: memory_bytes, ..Options::default() };
    Store::format(&*medium, &options).map_err(failed)?;
    let memory =
        Mapping::anonymous(PENDING_BYTES, Pages::Base).map_err(|errno| LabError::host("memory", errno))?;
    let pending = PendingMemory { memory: Arc::new(memory), offset: 0, len: PENDING_BYTES };
    let store = Store::open(medium, pending, &options).map_err(failed)?;
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut batch = Batch::new();
    // In the order of the keys, which is quick; what is measured comes after.
    let mut order: Vec<u64> = (0..pairs.count).collect();
    order.sort_unstable_by_key(|&index| mix(index));
    for (done, index) in (1..).zip(order) {
        pairs.key(index, &mut key);
        pairs.value(index, 0, &mut value);
        batch.put(&key, &value);
        if done % FILL_BATCH == 0 || done == pairs.count {
            let applied = store.apply(&batch).map_err(failed)?;
            store.commit(applied, Barrier::None).map_err(failed)?;
            batch = Batch::new();
        }
    }
    store.checkpoint().map_err(failed)?;
    Ok(Arc::new(store))
}

/// One thread that reads pairs at random.
pub(crate) struct Gets {
    store: Arc<Store>,
    pairs: Pairs,
    seed: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Gets {
    /// Reads of `store`.
    #[must_use]
    pub fn new(store: Arc<Store>, pairs: Pairs) -> Self {
        Self { store, pairs, seed: 1, key: Vec::new(), value: Vec::new() }
    }

    /// Reads one pair.
    ///
    /// # Errors
    /// The store's; it is not there.
    pub fn one(&mut self) -> Result<(), LabError> {
        self.seed += 1;
        self.pairs.key(mix(self.seed) % self.pairs.count, &mut self.key);
        self.value.clear();
        match self.store.get(&self.key, &mut self.value).map_err(failed)? {
            true => Ok(()),
            false => Err(LabError::Program { shown: "the store".into(), reason: "a pair is missing".into() }),
        }
    }
}

impl Contender for Gets {
    fn run(&mut self, count: u64) -> Result<(), LabError> {
        (0..count).try_for_each(|_| self.one())
    }
}

/// One thread that writes pairs at random, durable in groups.
pub(crate) struct Puts {
    store: Arc<Store>,
    pairs: Pairs,
    seed: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    applied: Sequence,
}

impl Puts {
    /// Writes to `store`.
    #[must_use]
    pub fn new(store: Arc<Store>, pairs: Pairs) -> Self {
        Self { store, pairs, seed: 1, key: Vec::new(), value: Vec::new(), applied: Sequence(0) }
    }
}

impl Contender for Puts {
    fn run(&mut self, count: u64) -> Result<(), LabError> {
        for step in 1..=count {
            self.seed += 1;
            let index = mix(!self.seed) % self.pairs.count;
            self.pairs.key(index, &mut self.key);
            self.pairs.value(index, self.seed, &mut self.value);
            let mut batch = Batch::new();
            batch.put(&self.key, &self.value);
            self.applied = self.store.apply(&batch).map_err(failed)?;
            if step.is_multiple_of(PUTS_A_COMMIT) || step == count {
                self.store.commit(self.applied, Barrier::None).map_err(failed)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_kv::MemoryMedium;

    #[test]
    fn sizes_have_the_averages_of_the_paper_and_a_store_holds_them() {
        let pairs = Pairs { count: 3000 };
        let (mut keys, mut values) = (0, 0);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for index in 0..pairs.count {
            pairs.key(index, &mut key);
            pairs.value(index, 0, &mut value);
            (keys, values) = (keys + key.len(), values + value.len());
        }
        let mean = |bytes: usize| bytes as f64 / pairs.count as f64;
        assert!((30.0..34.0).contains(&mean(keys)), "{}", mean(keys));
        assert!((480.0..545.0).contains(&mean(values)), "{}", mean(values));
        let store = filled(Arc::new(MemoryMedium::new(4096)), pairs, 1 << 20).unwrap();
        Puts::new(Arc::clone(&store), pairs).run(500).unwrap();
        Gets::new(store, pairs).run(2000).unwrap();
    }
}
