//! Our store, on a block device or file, past the page cache.

use crate::{Job, Key, Store, Value};
use nvmed_kv::{Barrier, Batch, FileMedium, FileOptions, Options, PendingMemory};
use nvmed_sys::{Mapping, Pages};
use std::path::Path;
use std::sync::Arc;

/// Bytes for batches that are not in the log yet.
const PENDING_BYTES: usize = 4 << 20;
/// Pairs a batch of the fill.
const BATCH: usize = 256;
/// The log's share of the memory: what is in it is also in memory, with an index, while a checkpoint merges it once
/// more so.
const LOG_SHARE: usize = 16;
/// The node cache's share.
const NODES_SHARE: usize = 2;

pub(crate) struct Nvmed(nvmed_kv::Store);

impl Nvmed {
    pub(crate) fn open(path: &Path, job: &Job, new: bool) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let medium = FileMedium::open(path, &FileOptions { direct: true }).map_err(|error| text(&error))?;
        let log_blocks = u32::try_from(job.memory_bytes / LOG_SHARE / 4096).ok();
        let node_cache_bytes = job.memory_bytes / NODES_SHARE;
        let options = Options { identity: 1, node_cache_bytes, log_blocks, ..Options::default() };
        if new {
            nvmed_kv::Store::format(&medium, &options).map_err(|error| text(&error))?;
        }
        let memory = Mapping::anonymous(PENDING_BYTES, Pages::Base).map_err(|error| text(&error))?;
        let pending = PendingMemory { memory: Arc::new(memory), offset: 0, len: PENDING_BYTES };
        let store =
            nvmed_kv::Store::open(Arc::new(medium), pending, &options).map_err(|error| text(&error))?;
        Ok(Self(store))
    }
}

fn failed(error: nvmed_kv::KvError) -> String {
    error.to_string()
}

impl Store for Nvmed {
    fn fill(&self, pairs: &mut dyn Iterator<Item = (Key, Value)>) -> Result<(), String> {
        let mut batch = Batch::new();
        let mut held = 0;
        loop {
            let next = pairs.next();
            if let Some((key, value)) = &next {
                batch.put(key, value);
                held += 1;
            }
            if held == BATCH || next.is_none() && held > 0 {
                let applied = self.0.apply(&batch).map_err(failed)?;
                self.0.commit(applied, Barrier::None).map_err(failed)?;
                (batch, held) = (Batch::new(), 0);
            }
            if next.is_none() {
                return self.0.checkpoint().map_err(failed);
            }
        }
    }

    fn get(&self, key: &Key, value: &mut Vec<u8>) -> Result<bool, String> {
        self.0.get(key, value).map_err(failed)
    }

    fn put(&self, key: &Key, value: &Value) -> Result<(), String> {
        let mut batch = Batch::new();
        batch.put(key, value);
        let applied = self.0.apply(&batch).map_err(failed)?;
        self.0.commit(applied, Barrier::None).map_err(failed)
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        self.0.close().map_err(failed)
    }
}
