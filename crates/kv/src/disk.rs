//! The medium with errors that name the block, and counters.

use crate::{KvError, Medium};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use nvmed_units::BLOCK_BYTES;
use std::sync::Arc;

pub(crate) struct Disk {
    medium: Arc<dyn Medium>,
    blocks_read: AtomicU64,
    blocks_written: AtomicU64,
    flushes: AtomicU64,
}

impl Disk {
    pub(crate) fn new(medium: Arc<dyn Medium>) -> Self {
        let (blocks_read, blocks_written, flushes) = Default::default();
        Self { medium, blocks_read, blocks_written, flushes }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.medium.blocks()
    }

    pub(crate) fn read(&self, block: u64, into: &mut [u8]) -> Result<(), KvError> {
        self.blocks_read.fetch_add((into.len() / BLOCK_BYTES) as u64, Relaxed);
        let operation = "read";
        self.medium.read(block, into).map_err(|source| KvError::Medium { operation, block, source })
    }

    pub(crate) fn write(&self, block: u64, data: &[u8], fua: bool) -> Result<(), KvError> {
        self.blocks_written.fetch_add((data.len() / BLOCK_BYTES) as u64, Relaxed);
        write(&*self.medium, block, data, fua)
    }

    pub(crate) fn flush(&self) -> Result<(), KvError> {
        self.flushes.fetch_add(1, Relaxed);
        flush(&*self.medium)
    }

    /// Blocks read, blocks written, flushes.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        (self.blocks_read.load(Relaxed), self.blocks_written.load(Relaxed), self.flushes.load(Relaxed))
    }
}

/// A write whose error names the block.
pub(crate) fn write(medium: &dyn Medium, block: u64, data: &[u8], fua: bool) -> Result<(), KvError> {
    let operation = "write";
    medium.write(block, data, fua).map_err(|source| KvError::Medium { operation, block, source })
}

/// A flush whose error says so.
pub(crate) fn flush(medium: &dyn Medium) -> Result<(), KvError> {
    medium.flush().map_err(|source| KvError::Medium { operation: "flush", block: 0, source })
}
