//! Which blocks of the data region are in use.

use nvmed_layout::bitmap::CHUNK_BLOCKS;
use nvmed_units::Block;
use std::collections::BTreeMap;

/// Blocks of the data region in use, as the bitmap has them.
pub(crate) struct Used {
    first: Block,
    pub(crate) chunks: BTreeMap<u64, [u64; 16]>,
}

/// Where a block's bit is.
struct Bit {
    chunk: u64,
    word: usize,
    mask: u64,
}

impl Used {
    /// None of the region that begins with `first`.
    pub(crate) fn new(first: Block) -> Self {
        Self { first, chunks: BTreeMap::new() }
    }

    fn bit(&self, block: Block) -> Bit {
        let at = block - self.first;
        let bit = at % CHUNK_BLOCKS;
        Bit { chunk: at / CHUNK_BLOCKS, word: (bit / 64) as usize, mask: 1 << (bit % 64) }
    }

    pub(crate) fn has(&self, block: Block) -> bool {
        let bit = self.bit(block);
        self.chunks.get(&bit.chunk).is_some_and(|words| words[bit.word] & bit.mask != 0)
    }

    pub(crate) fn mark(&mut self, block: Block) {
        let bit = self.bit(block);
        self.chunks.entry(bit.chunk).or_default()[bit.word] |= bit.mask;
    }
}
