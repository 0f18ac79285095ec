//! A medium that loses power, a plain model, and numbers from a seed.
#![allow(dead_code, reason = "each test program uses its part")]

use core::ops::{Bound, ControlFlow};
use nvmed_kv::{Batch, KvError, Medium, MediumError, Options, PendingMemory, Store};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Block;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const BLOCK: usize = 4096;
const SECTOR: usize = 512;
const WORD: usize = 8;

pub use nvmed_dice::Dice;

/// A device with a volatile write cache, in which power is cut at one write.
///
/// What was not flushed is torn at the cut: each 512-byte sector of it holds any of the versions written
/// since the last flush, or what was there before. The write that is cut is one of these. A medium that stores bytes
/// is torn between words of 8.
pub struct VolatileMedium {
    inner: Mutex<MediumState>,
    /// Bytes that are never torn.
    unit: usize,
}

struct MediumState {
    durable: Vec<u8>,
    now: Vec<u8>,
    /// Versions of units since they were last durable, oldest first.
    cached: BTreeMap<usize, Vec<Vec<u8>>>,
    writes: u64,
    cut_at: u64,
    off: bool,
    /// The first block of the write that was cut.
    cut_block: Option<u64>,
}

const CUT: MediumError = MediumError { errno: 5 };

impl VolatileMedium {
    /// Holds `bytes`; power goes at the write with number `cut_at`, from 0.
    pub fn new(bytes: Vec<u8>, cut_at: u64) -> Arc<Self> {
        Self::of(bytes, cut_at, false)
    }

    /// As [`VolatileMedium::new`]; with `bytes_stored`, one that stores bytes, of which each store counts as a write.
    pub fn of(bytes: Vec<u8>, cut_at: u64, bytes_stored: bool) -> Arc<Self> {
        let (now, cached) = (bytes.clone(), BTreeMap::new());
        let inner =
            MediumState { durable: bytes, now, cached, writes: 0, cut_at, off: false, cut_block: None };
        Arc::new(Self { inner: Mutex::new(inner), unit: if bytes_stored { WORD } else { SECTOR } })
    }

    pub fn was_cut(&self) -> bool {
        self.inner.lock().unwrap().off
    }

    /// Where the write that was cut begins.
    pub fn cut_block(&self) -> Option<u64> {
        self.inner.lock().unwrap().cut_block
    }

    /// What is there for certain.
    pub fn durable(&self) -> Vec<u8> {
        self.inner.lock().unwrap().durable.clone()
    }

    pub fn writes(&self) -> u64 {
        self.inner.lock().unwrap().writes
    }

    /// What the medium may hold when power comes back.
    pub fn after_power_cut(&self, random: &mut Dice) -> Vec<u8> {
        let inner = self.inner.lock().unwrap();
        let mut bytes = inner.durable.clone();
        // Now and then all or nothing: the cases in between would hide them.
        let style = random.roll(4);
        for (&unit, versions) in &inner.cached {
            let pick = match style {
                0 => versions.len() as u64,
                1 => 0,
                _ => random.roll(versions.len() as u64 + 1),
            };
            if let Some(version) = pick.checked_sub(1).map(|index| &versions[index as usize]) {
                bytes[unit * self.unit..][..self.unit].copy_from_slice(version);
            }
        }
        bytes
    }
}

impl VolatileMedium {
    fn put(&self, block: Block, within: usize, data: &[u8], fua: bool) -> Result<(), MediumError> {
        let mut inner = self.inner.lock().unwrap();
        if inner.off {
            return Err(CUT);
        }
        let cut = inner.writes == inner.cut_at;
        inner.writes += 1;
        let at = block.0 as usize * BLOCK + within;
        inner.now[at..at + data.len()].copy_from_slice(data);
        for number in at / self.unit..(at + data.len()).div_ceil(self.unit) {
            let version = inner.now[number * self.unit..][..self.unit].to_vec();
            if fua && !cut {
                inner.durable[number * self.unit..][..self.unit].copy_from_slice(&version);
                inner.cached.remove(&number);
            } else {
                inner.cached.entry(number).or_default().push(version);
            }
        }
        inner.off = cut;
        inner.cut_block = cut.then_some(block.0);
        if cut { Err(CUT) } else { Ok(()) }
    }
}

impl Medium for VolatileMedium {
    fn blocks(&self) -> u64 {
        (self.inner.lock().unwrap().now.len() / BLOCK) as u64
    }

    fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
        let inner = self.inner.lock().unwrap();
        if inner.off {
            return Err(CUT);
        }
        into.copy_from_slice(&inner.now[block.0 as usize * BLOCK..][..into.len()]);
        Ok(())
    }

    fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError> {
        self.put(block, 0, data, fua)
    }

    fn stores_bytes(&self) -> bool {
        self.unit == WORD
    }

    fn store(&self, block: Block, within: usize, data: &[u8]) -> Result<(), MediumError> {
        assert!(self.unit == WORD && within + data.len() <= BLOCK, "{} bytes at {within}", data.len());
        self.put(block, within, data, false)
    }

    fn flush(&self) -> Result<(), MediumError> {
        let mut inner = self.inner.lock().unwrap();
        if inner.off {
            return Err(CUT);
        }
        for (unit, versions) in core::mem::take(&mut inner.cached) {
            let last = versions.last().expect("a cached unit has a version");
            inner.durable[unit * self.unit..][..self.unit].copy_from_slice(last);
        }
        Ok(())
    }
}

pub fn pending(bytes: usize) -> PendingMemory {
    let memory = Arc::new(Mapping::anonymous(bytes, Pages::Base).unwrap());
    PendingMemory { memory, offset: 0, len: bytes }
}

pub fn open(medium: Arc<dyn Medium>) -> Result<Store, KvError> {
    // Small steps: a checkpoint of the little that a test has is not over at once.
    let options = Options { node_cache_bytes: 0, commit_blocks_max: 128, ..Options::default() };
    Store::open(medium, pending(256 << 10), &options)
}

/// What a store should hold.
pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A change of one key.
pub type Change = (Vec<u8>, Option<Vec<u8>>);

/// A change of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// What goes to a batch and to a model.
pub trait Play {
    fn encode(&self, batch: &mut Batch);
    fn play(&self, model: &mut Model);
}

impl Play for Op {
    fn encode(&self, batch: &mut Batch) {
        match self {
            Self::Put(key, value) => batch.put(key, value),
            Self::Delete(key) => batch.delete(key),
            Self::DeleteRange(from, to) => batch.delete_range(from, to),
        }
    }

    fn play(&self, model: &mut Model) {
        match self {
            Self::Put(key, value) => drop(model.insert(key.clone(), value.clone())),
            Self::Delete(key) => drop(model.remove(key)),
            Self::DeleteRange(from, to) => model.retain(|key, _| key < from || key >= to),
        }
    }
}

impl Play for Change {
    fn encode(&self, batch: &mut Batch) {
        match &self.1 {
            Some(value) => batch.put(&self.0, value),
            None => batch.delete(&self.0),
        }
    }

    fn play(&self, model: &mut Model) {
        match &self.1 {
            Some(value) => drop(model.insert(self.0.clone(), value.clone())),
            None => drop(model.remove(&self.0)),
        }
    }
}

pub fn encode(changes: &[impl Play]) -> Batch {
    let mut batch = Batch::new();
    changes.iter().for_each(|change| change.encode(&mut batch));
    batch
}

pub fn play(model: &mut Model, changes: &[impl Play]) {
    changes.iter().for_each(|change| change.play(model));
}

pub fn contents(store: &Store) -> Model {
    let mut all = Model::new();
    store
        .scan(Bound::Unbounded, Bound::Unbounded, &mut |key, value| {
            let in_order = all.last_key_value().is_none_or(|(last, _)| last.as_slice() < key);
            assert!(in_order, "keys out of order");
            all.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    all
}

pub fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    store.get(key, &mut value).unwrap().then_some(value)
}
