//! Data that says where it belongs: a function of a seed and the logical block.

use crate::error::LabError;
use crate::load::Load;
use nvmed_dice::mix;
use nvmed_engine::Segment;
use nvmed_io::Handle;
use nvmed_sys::Pages;
use nvmed_units::Lba;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Fills and checks data, and knows which blocks of a region have been written.
///
/// A block's content depends on its LBA and the seed alone, so that requests of different sizes, threads and
/// runs agree on it, and a block in the wrong place is noticed.
#[derive(Debug)]
pub struct Verify {
    seed: u64,
    lba_bytes: usize,
    first: u64,
    /// A bit a logical block of the region.
    written: Box<[AtomicU64]>,
}

impl Verify {
    /// For the region of `lbas` logical blocks from `first`.
    #[must_use]
    pub fn new(seed: u64, lba_bytes: u32, first: u64, lbas: u64) -> Self {
        let written = (0..lbas.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { seed, lba_bytes: lba_bytes as usize, first, written }
    }

    /// The same pattern on the same region, of which nothing has been written.
    #[must_use]
    pub fn unwritten(&self) -> Self {
        let written = self.written.iter().map(|_| AtomicU64::new(0)).collect();
        Self { written, ..*self }
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    #[inline]
    fn word(&self, lba: u64, word: usize) -> u64 {
        mix(self.seed ^ mix(lba).wrapping_add((word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Puts the pattern of the blocks from `lba` into `data`.
    pub fn fill(&self, lba: u64, data: &mut [u8]) {
        for (index, block) in data.chunks_exact_mut(self.lba_bytes).enumerate() {
            for (word, bytes) in block.chunks_exact_mut(8).enumerate() {
                bytes.copy_from_slice(&self.word(lba + index as u64, word).to_le_bytes());
            }
        }
    }

    /// Whether `data` holds the pattern of the blocks from `lba`.
    ///
    /// # Errors
    /// [`LabError::Differs`] names the first word that does not.
    pub fn check(&self, lba: u64, data: &[u8]) -> Result<(), LabError> {
        for (index, block) in data.chunks_exact(self.lba_bytes).enumerate() {
            for (word, bytes) in block.chunks_exact(8).enumerate() {
                let lba = lba + index as u64;
                let expected = self.word(lba, word);
                let found = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
                if found != expected {
                    return Err(LabError::Differs { lba, word, found, expected, seed: self.seed });
                }
            }
        }
        Ok(())
    }

    /// Notes that the blocks from `lba` have been written.
    pub fn note(&self, lba: u64, lbas: u64) {
        for at in lba - self.first..lba - self.first + lbas {
            self.written[(at / 64) as usize].fetch_or(1 << (at % 64), Ordering::Release);
        }
    }

    /// Whether all blocks from `lba` have been written.
    #[must_use]
    pub fn is_written(&self, lba: u64, lbas: u64) -> bool {
        (lba - self.first..lba - self.first + lbas)
            .all(|at| self.written[(at / 64) as usize].load(Ordering::Acquire) >> (at % 64) & 1 == 1)
    }
}

/// Reads every block of the load's region that has been written, and checks it; answers how many.
///
/// # Errors
/// A read failed, or a block is not what was written.
pub fn read_back(handle: &Handle, load: &Load, verify: &Verify) -> Result<u64, LabError> {
    let device = handle.device();
    let shift = device.geometry().lba_bytes.trailing_zeros();
    let bytes = load.block_bytes as usize;
    let memory = Arc::new(device.engine().memory(bytes, Pages::Base)?);
    let address = device.map(Arc::clone(&memory))?;
    let data = [Segment { address, bytes: load.block_bytes }];
    let mut scratch = vec![0; bytes];
    let read = |block: u64| {
        let lba = Lba((load.offset + block * bytes as u64) >> shift);
        if !verify.is_written(lba.0, u64::from(load.block_bytes) >> shift) {
            return Ok(0);
        }
        handle.read(lba, &data)?;
        memory.read(0, &mut scratch);
        verify.check(lba.0, &scratch).map(|()| 1)
    };
    let checked = (0..load.blocks()).map(read).sum();
    device.unmap(address);
    checked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_in_the_wrong_place_or_changed_is_noticed() {
        let verify = Verify::new(7, 512, 0, 64);
        let mut data = vec![0; 2048];
        verify.fill(10, &mut data);
        verify.check(10, &data).unwrap();
        verify.check(11, &data[512..]).unwrap();
        assert!(matches!(verify.check(11, &data), Err(LabError::Differs { lba: 11, word: 0, .. })));
        assert!(Verify::new(8, 512, 0, 64).check(10, &data).is_err(), "another seed");
        data[1030] ^= 1;
        assert!(matches!(verify.check(10, &data), Err(LabError::Differs { lba: 12, word: 0, .. })));
    }

    #[test]
    fn what_was_written_is_known_block_by_block() {
        let verify = Verify::new(7, 512, 100, 130);
        verify.note(160, 8);
        assert!(verify.is_written(160, 8) && verify.is_written(163, 2));
        assert!(!verify.is_written(159, 8) && !verify.is_written(160, 9));
    }
}
