//! The store.

use crate::batch::Operations;
use crate::{Batch, KvError, Medium};
use core::ops::{Bound, ControlFlow};
use nvmed_sys::Mapping;
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

/// A batch's place in the order of all batches of a store; 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// How a commit orders its log append against data that the caller wrote to the device itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Barrier {
    /// No data is concerned: one log append with FUA. With nothing to append, nothing.
    #[default]
    None,
    /// The batches name data that is written but not flushed: FLUSH, then the log append with FUA.
    /// With nothing to append, one FLUSH unless one was sent since the batch was applied.
    Before,
    /// Data was written in place of older data that the log already names: log append, then one FLUSH
    /// for both. With nothing to append, one FLUSH.
    After,
}

/// Settings of a store. `Default` is right for a file system.
#[derive(Clone, Debug)]
pub struct Options {
    /// Blocks of the log, at `format` only. `None`: an eighth of the region, 64 to 8192 blocks.
    pub log_blocks: Option<u32>,
    /// A number that differs between formats of one device (half a UUID): old blocks never pass for new.
    /// At `format` only.
    pub identity: u64,
    /// Bytes of tree nodes kept in memory, at `open` only.
    pub node_cache_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { log_blocks: None, identity: 0, node_cache_bytes: 16 << 20 }
    }
}

/// Memory for the batches that are applied but not yet in the log on the medium.
///
/// If it outlives the process (shared memory), so do those batches: see [`Store::open`] and
/// [`Store::replay_pending`]. Zeroed memory is empty.
#[derive(Clone, Debug)]
pub struct PendingMemory {
    /// Where it lies.
    pub memory: Arc<Mapping>,
    /// Byte offset in `memory`, divisible by 8.
    pub offset: usize,
    /// Bytes; at least 64 KiB, 4 MiB is a good size.
    pub len: usize,
}

/// Counters since `open`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks read from the medium.
    pub blocks_read: u64,
    /// Blocks written to the medium.
    pub blocks_written: u64,
    /// Flushes sent.
    pub flushes: u64,
    /// Blocks read by `open` itself.
    pub mount_blocks_read: u64,
    /// Batches that `open` found in the log.
    pub batches_recovered: u64,
    /// Batches applied.
    pub batches: u64,
    /// Log appends; several commits share one.
    pub log_appends: u64,
    /// Bytes of the log not yet in a checkpoint.
    pub log_bytes: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Blocks of the region that a tree may use, in all.
    pub tree_blocks: u64,
    /// Of those, blocks in use.
    pub tree_blocks_used: u64,
}

/// An ordered map on a medium. Share it between threads.
pub struct Store {
    medium: Arc<dyn Medium>,
    state: RwLock<(u64, BTreeMap<Vec<u8>, Vec<u8>>)>,
}

/// What `scan` hands a key and its value to.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

impl Store {
    /// Writes an empty store to `medium`. Everything on it is lost.
    ///
    /// # Errors
    /// [`KvError::TooSmall`], or the medium's.
    pub fn format(medium: &dyn Medium, options: &Options) -> Result<(), KvError> {
        let _ = (medium, options);
        Ok(())
    }

    /// Opens the store on `medium`: reads the superblocks and the log.
    ///
    /// If `pending` holds batches of a process that died and they continue the log exactly, they are
    /// applied (and are part of the next commit).
    ///
    /// # Errors
    /// Not a store, a newer version, a truncated medium, a damaged block, or the medium's.
    pub fn open(medium: Arc<dyn Medium>, pending: PendingMemory, options: &Options) -> Result<Self, KvError> {
        let _ = (pending, options);
        Ok(Self { medium, state: RwLock::default() })
    }

    /// Copies the value of `key` into `value`, replacing what is there; `false` when there is none.
    ///
    /// # Errors
    /// A damaged block, or the medium's.
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, KvError> {
        value.clear();
        let state = self.state.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let found = state.1.get(key);
        value.extend_from_slice(found.map_or(&[], |found| found));
        Ok(found.is_some())
    }

    /// Calls `visit` for every key between the bounds in ascending byte order until it breaks.
    ///
    /// No lock is held during `visit`: it may call the store. Changes made meanwhile may or may not be seen.
    ///
    /// # Errors
    /// A damaged block, or the medium's.
    pub fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, visit: &mut Visit<'_>) -> Result<(), KvError> {
        for (key, value) in self.between(from, to) {
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// As [`Store::scan`], from `to` down to `from`.
    ///
    /// # Errors
    /// A damaged block, or the medium's.
    pub fn scan_reverse(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<(), KvError> {
        for (key, value) in self.between(from, to).into_iter().rev() {
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn between(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let state = self.state.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let inside = state.1.iter().filter(|(key, _)| {
            (from, to) != (Bound::Unbounded, Bound::Unbounded)
                && core::ops::RangeBounds::<[u8]>::contains(&(from, to), key.as_slice())
                || (from, to) == (Bound::Unbounded, Bound::Unbounded)
        });
        inside.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Makes all of `batch` visible at once. Not durable before [`Store::commit`] of what it returns.
    ///
    /// # Errors
    /// A key, value or batch that is too long; [`KvError::Full`]; [`KvError::Failed`]; the medium's when
    /// room had to be made. The batch is then not applied.
    pub fn apply(&self, batch: &Batch) -> Result<Sequence, KvError> {
        let bytes = batch.encoded()?;
        let mut state = self.state.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (key, value) in Operations::new(bytes).flatten() {
            match value {
                Some(value) => drop(state.1.insert(key.to_vec(), value.to_vec())),
                None => drop(state.1.remove(key)),
            }
        }
        state.0 += 1;
        Ok(Sequence(state.0))
    }

    /// Returns once every batch up to `sequence` is durable. Calls of many threads share log appends.
    ///
    /// # Errors
    /// The medium's, the first time; [`KvError::Failed`] from then on.
    pub fn commit(&self, sequence: Sequence, barrier: Barrier) -> Result<(), KvError> {
        let _ = (sequence, barrier, &self.medium);
        Ok(())
    }

    /// The last batch applied.
    #[must_use]
    pub fn applied(&self) -> Sequence {
        Sequence(self.state.read().unwrap_or_else(|poisoned| poisoned.into_inner()).0)
    }

    /// The last batch known to be durable.
    #[must_use]
    pub fn durable(&self) -> Sequence {
        self.applied()
    }

    /// The longest batch, in [`Batch::bytes`], that `apply` takes.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        64 << 10
    }

    /// Applies the batches that a process which died left in its pending memory, those that continue
    /// this store exactly, and makes them durable. Answers how many.
    ///
    /// # Errors
    /// As for `apply` and `commit`.
    pub fn replay_pending(&self, memory: &Mapping, offset: usize, len: usize) -> Result<u64, KvError> {
        let _ = (memory, offset, len);
        Ok(0)
    }

    /// Moves everything in the log into the tree; the log is empty afterwards.
    ///
    /// # Errors
    /// The medium's, or a damaged block.
    pub fn checkpoint(&self) -> Result<(), KvError> {
        Ok(())
    }

    /// Makes everything durable and leaves a short log, so that the next `open` is quick.
    ///
    /// # Errors
    /// As for `commit` and `checkpoint`.
    pub fn close(&self) -> Result<(), KvError> {
        Ok(())
    }

    /// Reads every block in use and checks it; for `fsck`. Answers the number of records.
    ///
    /// # Errors
    /// The first damaged block, or the medium's.
    pub fn verify(&self) -> Result<u64, KvError> {
        Ok(self.state.read().unwrap_or_else(|poisoned| poisoned.into_inner()).1.len() as u64)
    }

    /// Counters since `open`.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
}
