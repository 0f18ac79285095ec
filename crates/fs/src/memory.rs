//! The memory of a mount, which may outlive its process.

use nvmed_kv::PendingMemory;
use nvmed_sys::Mapping;
use std::sync::Arc;

/// Where things lie in a mount's memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLayout {
    cache_bytes: u64,
}

/// Memory of a mount.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The bytes.
    pub mapping: Arc<Mapping>,
    /// What lies where.
    pub layout: MemoryLayout,
}

const PENDING: usize = 4 << 20;

impl MemoryLayout {
    /// For a cache of `cache_bytes` bytes.
    #[must_use]
    pub fn new(cache_bytes: u64) -> Self {
        Self { cache_bytes }
    }

    /// Bytes of the whole.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        PENDING + self.cache_bytes as usize
    }
}

impl Memory {
    /// The store's part.
    pub(crate) fn pending(&self) -> PendingMemory {
        PendingMemory { memory: Arc::clone(&self.mapping), offset: 0, len: PENDING }
    }
}
