//! What a device is asked for: which blocks, how long, how many at once.

use crate::error::{InvalidLoad, LabError};
use nvmed_dice::{Dice, mix};
use nvmed_units::Lba;

/// Which blocks, and reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Blocks follow one another; otherwise each is drawn from the region.
    pub sequential: bool,
    /// Reads among a hundred requests.
    pub reads_percent: u8,
}

impl Pattern {
    /// Sequential reads.
    pub const READ: Self = Self { sequential: true, reads_percent: 100 };
    /// Sequential writes.
    pub const WRITE: Self = Self { sequential: true, reads_percent: 0 };
    /// Random reads.
    pub const RANDREAD: Self = Self { sequential: false, reads_percent: 100 };
    /// Random writes.
    pub(crate) const RANDWRITE: Self = Self { sequential: false, reads_percent: 0 };

    /// Whether anything is written.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.reads_percent < 100
    }

    /// Its name, as fio has it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match (self.sequential, self.reads_percent) {
            (true, 100) => "read",
            (true, 0) => "write",
            (true, _) => "rw",
            (false, 100) => "randread",
            (false, 0) => "randwrite",
            (false, _) => "randrw",
        }
    }
}

/// What one thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Which blocks.
    pub pattern: Pattern,
    /// Bytes of one request.
    pub block_bytes: u32,
    /// Requests in flight, at least 1.
    pub depth: u16,
    /// First byte of the region.
    pub offset: u64,
    /// Bytes of the region.
    pub bytes: u64,
    /// Where the random numbers begin.
    pub seed: u64,
}

/// The most requests that one thread has in flight: the longest queue that there is.
pub const DEPTH_MAX: u16 = nvmed_engine::QUEUE_DEPTH_MAX;
/// The largest request: longer ones are split anyway.
pub(crate) const BLOCK_BYTES_MAX: u32 = 16 << 20;

impl Load {
    /// Whether it makes sense on a device of `device_bytes` in logical blocks of `lba_bytes`.
    ///
    /// # Errors
    /// [`LabError::Load`] says what does not fit.
    pub fn check(&self, device_bytes: u64, lba_bytes: u32) -> Result<(), LabError> {
        let wrong = |error| Err(LabError::Load(error));
        let block = self.block_bytes;
        if block == 0 || !block.is_multiple_of(lba_bytes) || block > BLOCK_BYTES_MAX {
            return wrong(InvalidLoad::RequestBytes { bytes: block, lba_bytes });
        }
        if self.depth == 0 || self.depth > DEPTH_MAX {
            return wrong(InvalidLoad::Depth { depth: self.depth });
        }
        if !self.offset.is_multiple_of(u64::from(lba_bytes)) {
            return wrong(InvalidLoad::Offset { offset: self.offset, lba_bytes });
        }
        if self.offset.checked_add(self.bytes).is_none_or(|end| end > device_bytes) {
            let (offset, bytes) = (self.offset, self.bytes);
            return wrong(InvalidLoad::OutOfRange { offset, bytes, device_bytes });
        }
        if self.bytes < u64::from(block) {
            return wrong(InvalidLoad::Empty { bytes: self.bytes, block_bytes: block });
        }
        Ok(())
    }

    /// Requests that cover the region.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.bytes / u64::from(self.block_bytes)
    }

    /// The same load for one of several threads: a seed of its own, and of a sequential region its share.
    #[must_use]
    pub fn share(&self, thread: u64, threads: u64) -> Self {
        let mut load = *self;
        load.seed = mix(self.seed ^ mix(thread + 1));
        let blocks = self.blocks() / threads;
        if self.pattern.sequential && blocks > 0 {
            load.offset += thread * blocks * u64::from(self.block_bytes);
            load.bytes = blocks * u64::from(self.block_bytes);
        }
        load
    }
}

/// One request of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Byte offset on the device.
    pub offset: u64,
    /// Read or write.
    pub read: bool,
}

impl Step {
    /// Its first logical block on a device whose blocks have `1 << shift` bytes.
    #[inline]
    #[must_use]
    pub fn lba(&self, shift: u32) -> Lba {
        Lba(self.offset >> shift)
    }
}

/// The endless sequence of requests of a load: the same for the same load.
#[derive(Clone, Debug)]
pub struct Walk {
    dice: Dice,
    next: u64,
    blocks: u64,
    block_bytes: u64,
    offset: u64,
    pattern: Pattern,
}

impl Walk {
    /// The walk of a load.
    #[must_use]
    pub fn new(load: &Load) -> Self {
        Self {
            dice: Dice::new(load.seed),
            next: 0,
            blocks: load.blocks().max(1),
            block_bytes: u64::from(load.block_bytes),
            offset: load.offset,
            pattern: load.pattern,
        }
    }

    /// The next request.
    #[inline]
    pub fn step(&mut self) -> Step {
        let block = if self.pattern.sequential {
            let block = self.next;
            self.next = if block + 1 == self.blocks { 0 } else { block + 1 };
            block
        } else {
            // A product instead of a remainder: no division on the measured path.
            ((u128::from(self.dice.next()) * u128::from(self.blocks)) >> 64) as u64
        };
        let read = match self.pattern.reads_percent {
            100 => true,
            0 => false,
            percent => self.dice.next() >> 32 < (u64::from(percent) << 32) / 100,
        };
        Step { offset: self.offset + block * self.block_bytes, read }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(pattern: Pattern) -> Load {
        Load { pattern, block_bytes: 4096, depth: 1, offset: 8192, bytes: 1 << 20, seed: 1 }
    }

    #[test]
    fn random_walks_cover_the_region_and_nothing_else() {
        let load = load(Pattern::RANDREAD);
        let mut walk = Walk::new(&load);
        let mut seen = vec![0u32; load.blocks() as usize];
        for _ in 0..256 * 40 {
            let step = walk.step();
            assert!(step.read && step.offset >= 8192 && step.offset.is_multiple_of(4096));
            seen[((step.offset - 8192) / 4096) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| count > 0), "a block is never drawn");
    }

    #[test]
    fn sequential_walks_go_round_and_mixes_mix() {
        let mut walk = Walk::new(&load(Pattern::WRITE));
        let first: Vec<u64> = (0..257).map(|_| walk.step().offset).collect();
        assert_eq!((first[0], first[1], first[255], first[256]), (8192, 12288, 8192 + 255 * 4096, 8192));
        let mut walk = Walk::new(&load(Pattern { sequential: false, reads_percent: 70 }));
        let reads = (0..10_000).filter(|_| walk.step().read).count();
        assert!((6_700..7_300).contains(&reads), "{reads} reads of 10,000");
    }

    #[test]
    fn threads_share_a_sequential_region() {
        let whole = load(Pattern::READ);
        let (a, b) = (whole.share(0, 2), whole.share(1, 2));
        assert_eq!((a.offset, a.bytes, b.offset, b.bytes), (8192, 1 << 19, 8192 + (1 << 19), 1 << 19));
        assert_ne!(a.seed, b.seed);
        assert_eq!(load(Pattern::RANDREAD).share(1, 2).bytes, 1 << 20);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let good = load(Pattern::READ);
        good.check(2 << 20, 512).unwrap();
        for (bad, words) in [
            (Load { block_bytes: 100, ..good }, "multiple of the device's 512"),
            (Load { block_bytes: 0, ..good }, "multiple of the device's 512"),
            (Load { depth: 0, ..good }, "depth of 0"),
            (Load { offset: 7, ..good }, "begins at byte 7"),
            (Load { offset: u64::MAX - 511, ..good }, "passes the end"),
            (Load { bytes: 4 << 20, ..good }, "passes the end"),
            (Load { bytes: 512, ..good }, "holds no request"),
        ] {
            let said = bad.check(2 << 20, 512).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
    }
}
