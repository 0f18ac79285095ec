//! The medium with errors that name the block, and counters.

use crate::{KvError, Medium, MediumCall};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use nvmed_units::{BLOCK_BYTES, Block};
use std::sync::Arc;

/// What a block that is written holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Structure {
    Log,
    Node,
    Value,
    Bitmap,
    Superblock,
}

/// Blocks written, by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The log.
    pub log: u64,
    /// Nodes of the tree.
    pub nodes: u64,
    /// Long values.
    pub values: u64,
    /// Bitmap pages.
    pub bitmap: u64,
    /// Superblocks.
    pub superblock: u64,
}

impl Written {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.log + self.nodes + self.values + self.bitmap + self.superblock
    }
}

#[derive(Default)]
struct Counts {
    read: AtomicU64,
    written: [AtomicU64; 5],
    flushes: AtomicU64,
}

pub(crate) struct Disk {
    medium: Arc<dyn Medium>,
    counts: Arc<Counts>,
    /// Blocks read and written through this value, when it was made to tell.
    spent: Option<AtomicU64>,
}

impl Disk {
    pub(crate) fn new(medium: Arc<dyn Medium>) -> Self {
        Self { medium, counts: Arc::default(), spent: None }
    }

    /// The same medium and counters, and a count of its own.
    pub(crate) fn metered(&self) -> Self {
        let spent = Some(AtomicU64::new(0));
        Self { medium: Arc::clone(&self.medium), counts: Arc::clone(&self.counts), spent }
    }

    /// Blocks read and written since [`Disk::metered`].
    pub(crate) fn spent(&self) -> u64 {
        self.spent.as_ref().map_or(0, |spent| spent.load(Relaxed))
    }

    fn count(&self, counter: &AtomicU64, bytes: usize) {
        let blocks = (bytes / BLOCK_BYTES) as u64;
        counter.fetch_add(blocks, Relaxed);
        if let Some(spent) = &self.spent {
            spent.fetch_add(blocks, Relaxed);
        }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.medium.blocks()
    }

    pub(crate) fn read(&self, block: Block, into: &mut [u8]) -> Result<(), KvError> {
        self.count(&self.counts.read, into.len());
        read(&*self.medium, block, into)
    }

    pub(crate) fn write(
        &self,
        structure: Structure,
        block: Block,
        data: &[u8],
        fua: bool,
    ) -> Result<(), KvError> {
        self.count(&self.counts.written[structure as usize], data.len());
        write(&*self.medium, block, data, fua)
    }

    /// See [`Medium::stores_bytes`].
    pub(crate) fn stores_bytes(&self) -> bool {
        self.medium.stores_bytes()
    }

    /// A store to a part of a block, which counts as one.
    pub(crate) fn store(
        &self,
        structure: Structure,
        block: Block,
        within: usize,
        data: &[u8],
    ) -> Result<(), KvError> {
        self.count(&self.counts.written[structure as usize], BLOCK_BYTES);
        let operation = MediumCall::Write;
        let stored = self.medium.store(block, within, data);
        stored.map_err(|source| KvError::Medium { operation, block, source })
    }

    /// What was stored is durable: a flush that is a part of an append, as FUA is of a write, and not counted.
    pub(crate) fn fence(&self) -> Result<(), KvError> {
        flush(&*self.medium)
    }

    /// See [`Medium::has_urgent`].
    pub(crate) fn has_urgent(&self) -> bool {
        self.medium.has_urgent()
    }

    /// See [`Medium::has_urgent_here`].
    pub(crate) fn has_urgent_here(&self) -> bool {
        self.medium.has_urgent_here()
    }

    pub(crate) fn flush(&self) -> Result<(), KvError> {
        self.counts.flushes.fetch_add(1, Relaxed);
        flush(&*self.medium)
    }

    /// Blocks read.
    pub(crate) fn blocks_read(&self) -> u64 {
        self.counts.read.load(Relaxed)
    }

    /// Flushes sent.
    pub(crate) fn flushes(&self) -> u64 {
        self.counts.flushes.load(Relaxed)
    }

    /// Blocks written.
    pub(crate) fn written(&self) -> Written {
        let of = |structure: Structure| self.counts.written[structure as usize].load(Relaxed);
        Written {
            log: of(Structure::Log),
            nodes: of(Structure::Node),
            values: of(Structure::Value),
            bitmap: of(Structure::Bitmap),
            superblock: of(Structure::Superblock),
        }
    }
}

/// A read whose error names the block.
pub(crate) fn read(medium: &dyn Medium, block: Block, into: &mut [u8]) -> Result<(), KvError> {
    let operation = MediumCall::Read;
    medium.read(block, into).map_err(|source| KvError::Medium { operation, block, source })
}

/// A write whose error names the block.
pub(crate) fn write(medium: &dyn Medium, block: Block, data: &[u8], fua: bool) -> Result<(), KvError> {
    let operation = MediumCall::Write;
    medium.write(block, data, fua).map_err(|source| KvError::Medium { operation, block, source })
}

/// A flush whose error says so.
pub(crate) fn flush(medium: &dyn Medium) -> Result<(), KvError> {
    let operation = MediumCall::Flush;
    medium.flush().map_err(|source| KvError::Medium { operation, block: Block(0), source })
}
