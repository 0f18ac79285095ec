//! What is written, and what reads must find.
//!
//! A block that is checked later, in bytes: magic 8, its offset 8, version 4, leg 4, seed 8, then noise that follows
//! from these four, and in the last 4 bytes the CRC-32C of all before. Numbers are little-endian.

use crate::error::{Found, ReplayError};
use crate::placement::Run;
use nvmed_dice::{Dice, mix};
use nvmed_engine::{Engine, Segment};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::DeviceAddress;
use std::collections::BTreeMap;
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"nvmedrpl";
const AT_OFFSET: usize = 8;
const AT_VERSION: usize = 16;
const AT_LEG: usize = 20;
const AT_SEED: usize = 24;
const AT_NOISE: usize = 32;
const CRC_BYTES: usize = 4;
/// Noise that is written where nothing is checked: the same 4 KiB come again after so many bytes.
const NOISE_BYTES: usize = 4 << 20;
/// Memory of all requests under way, where each needs its own.
const MEMORY_BYTES_MAX: usize = 256 << 20;
/// A device's pages.
const PAGE_BYTES: usize = 4096;
/// Blocks whose versions lie together, and how many such groups there are at most: 2^26 blocks, 256 MiB.
const GROUP: usize = 4096;
const GROUPS_MAX: usize = 1 << 14;
/// In a version: what the block holds is not known.
const UNKNOWN: u32 = 1 << 31;

/// Which write of each block was the last one.
#[derive(Debug, Default)]
struct Versions {
    groups: BTreeMap<u64, Box<[u32; GROUP]>>,
}

impl Versions {
    fn slot(&mut self, lba: u64) -> Option<&mut u32> {
        let (group, at) = (lba / GROUP as u64, (lba % GROUP as u64) as usize);
        if !self.groups.contains_key(&group) && self.groups.len() == GROUPS_MAX {
            return None;
        }
        Some(&mut self.groups.entry(group).or_insert_with(|| Box::new([UNKNOWN; GROUP]))[at])
    }

    /// The version of a block, if it is known.
    fn known(&self, lba: u64) -> Option<u32> {
        let group = self.groups.get(&(lba / GROUP as u64))?;
        Some(group[(lba % GROUP as u64) as usize]).filter(|version| version & UNKNOWN == 0)
    }

    /// The version of the next write of a block; 0 where it cannot be kept.
    fn next(&mut self, lba: u64) -> u32 {
        let Some(slot) = self.slot(lba) else { return 0 };
        *slot = (*slot & !UNKNOWN) % (UNKNOWN - 1) + 1;
        *slot
    }

    fn forget(&mut self, run: Run) {
        let groups = run.lba / GROUP as u64..=(run.lba + run.blocks) / GROUP as u64;
        for (&number, group) in self.groups.range_mut(groups) {
            let first = run.lba.saturating_sub(number * GROUP as u64).min(GROUP as u64) as usize;
            let end = (run.lba + run.blocks).saturating_sub(number * GROUP as u64).min(GROUP as u64) as usize;
            group[first..end].iter_mut().for_each(|version| *version |= UNKNOWN);
        }
    }
}

/// Blocks whose content is known and can be asked for.
#[derive(Debug)]
pub(crate) struct Checks {
    lba_bytes: usize,
    seed: u64,
    leg: u32,
    versions: Versions,
    /// Where one part is made and looked at.
    scratch: Vec<u8>,
    /// Blocks that were compared, and those that could not be.
    pub checked: u64,
    pub unchecked: u64,
}

impl Checks {
    fn new(lba_bytes: usize, part_bytes: usize, seed: u64, leg: u32) -> Self {
        let scratch = vec![0; part_bytes];
        Self { lba_bytes, seed, leg, versions: Versions::default(), scratch, checked: 0, unchecked: 0 }
    }

    /// Makes a block.
    fn make(seed: u64, leg: u32, version: u32, offset: u64, block: &mut [u8]) {
        let (body, crc) = block.split_at_mut(block.len() - CRC_BYTES);
        body[..AT_OFFSET].copy_from_slice(&MAGIC);
        body[AT_OFFSET..AT_VERSION].copy_from_slice(&offset.to_le_bytes());
        body[AT_VERSION..AT_LEG].copy_from_slice(&version.to_le_bytes());
        body[AT_LEG..AT_SEED].copy_from_slice(&leg.to_le_bytes());
        body[AT_SEED..AT_NOISE].copy_from_slice(&seed.to_le_bytes());
        let written = mix(u64::from(leg) << 32 | u64::from(version));
        Dice::new(mix(seed ^ mix(offset) ^ written)).fill(&mut body[AT_NOISE..]);
        crc.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    }

    fn offset(&self, lba: u64) -> u64 {
        lba * self.lba_bytes as u64
    }

    /// Makes what a write of a run puts there.
    fn write(&mut self, run: Run, into: &mut [u8]) {
        for (lba, block) in (run.lba..).zip(into.chunks_exact_mut(self.lba_bytes)) {
            let version = self.versions.next(lba);
            Self::make(self.seed, self.leg, version, self.offset(lba), block);
        }
    }

    /// Compares what was read of a run.
    fn compare(&mut self, run: Run, data: &[u8]) -> Result<(), ReplayError> {
        let mut wanted = [0; PAGE_BYTES];
        let wanted = &mut wanted[..self.lba_bytes];
        for (lba, block) in (run.lba..).zip(data.chunks_exact(self.lba_bytes)) {
            let Some(version) = self.versions.known(lba) else {
                self.unchecked += 1;
                continue;
            };
            let offset = self.offset(lba);
            Self::make(self.seed, self.leg, version, offset, wanted);
            if block != wanted {
                return Err(ReplayError::Differs { offset, version, found: self.found(block, wanted) });
            }
            self.checked += 1;
        }
        Ok(())
    }

    /// What a block holds that is not what is wanted.
    fn found(&self, block: &[u8], wanted: &[u8]) -> Found {
        let (body, crc) = block.split_at(block.len() - CRC_BYTES);
        let word = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap_or_default());
        let (version, leg) = (word(AT_VERSION) as u32, (word(AT_VERSION) >> 32) as u32);
        let is_ours = body[..AT_OFFSET] == MAGIC && word(AT_SEED) == self.seed && leg == self.leg;
        if is_ours && crc32c::crc32c(body).to_le_bytes() == crc {
            return Found::Other { offset: word(AT_OFFSET), version };
        }
        match block.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
            Some(at) if at >= AT_OFFSET => Found::Damaged { at },
            _ => Found::Foreign,
        }
    }
}

/// Memory of the requests under way, and what is in it.
pub(crate) struct Payload {
    engine: Arc<dyn Engine>,
    memory: Arc<Mapping>,
    address: DeviceAddress,
    part_bytes: usize,
    pub checks: Option<Checks>,
}

/// How the data of a replay is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub seed: u64,
    /// Which part of an interrupted replay this is; none where nothing is checked.
    pub checked_leg: Option<u32>,
}

impl Payload {
    /// Memory for `depth` parts of at most `part_bytes`; answers how many parts it has, if each needs its own.
    pub fn new(
        engine: &Arc<dyn Engine>,
        part_bytes: usize,
        depth: usize,
        terms: Terms,
    ) -> Result<(Self, usize), ReplayError> {
        let part_bytes = part_bytes.next_multiple_of(PAGE_BYTES);
        let own = (MEMORY_BYTES_MAX / part_bytes).clamp(1, depth);
        // One to read into, which nobody looks at, and behind it what is written.
        let shared = part_bytes + NOISE_BYTES + part_bytes;
        let bytes = if terms.checked_leg.is_some() { own * part_bytes } else { shared };
        let memory = Arc::new(engine.memory(bytes, Pages::Huge)?);
        let address = engine.map(Arc::clone(&memory))?;
        if terms.checked_leg.is_none() {
            let mut dice = Dice::new(terms.seed);
            let mut page = [0; PAGE_BYTES];
            for at in (0..bytes).step_by(PAGE_BYTES) {
                dice.fill(&mut page);
                memory.write(at, &page);
            }
        }
        let lba_bytes = engine.geometry().lba_bytes as usize;
        let checks = terms.checked_leg.map(|leg| Checks::new(lba_bytes, part_bytes, terms.seed, leg));
        let depth = if checks.is_some() { own } else { depth };
        Ok((Self { engine: Arc::clone(engine), memory, address, part_bytes, checks }, depth))
    }

    /// The most bytes of one part.
    pub fn part_bytes(&self) -> usize {
        self.part_bytes
    }

    fn segment(&self, at: usize, bytes: usize) -> Segment {
        Segment { address: self.address.plus(at as u64), bytes: bytes as u32 }
    }

    /// The memory of a part in slot `slot` that reads so many bytes.
    pub fn read_into(&self, slot: usize, bytes: usize) -> Segment {
        self.segment(if self.checks.is_some() { slot * self.part_bytes } else { 0 }, bytes)
    }

    /// The memory of a part in slot `slot` that writes a run: number `number` of all parts.
    pub fn put(&mut self, slot: usize, number: u64, run: Run, bytes: usize) -> Segment {
        let Some(checks) = &mut self.checks else {
            let page = number.wrapping_mul(0x9e37_79b9) as usize % (NOISE_BYTES / PAGE_BYTES);
            return self.segment(self.part_bytes + page * PAGE_BYTES, bytes);
        };
        let mut scratch = std::mem::take(&mut checks.scratch);
        checks.write(run, &mut scratch[..bytes]);
        self.memory.write(slot * self.part_bytes, &scratch[..bytes]);
        checks.scratch = scratch;
        self.segment(slot * self.part_bytes, bytes)
    }

    /// A read into slot `slot` is done.
    pub fn was_read(&mut self, slot: usize, run: Run, bytes: usize) -> Result<(), ReplayError> {
        let Some(checks) = &mut self.checks else { return Ok(()) };
        let mut scratch = std::mem::take(&mut checks.scratch);
        self.memory.read(slot * self.part_bytes, &mut scratch[..bytes]);
        let compared = checks.compare(run, &scratch[..bytes]);
        checks.scratch = scratch;
        compared
    }

    /// What a run holds is not known any more.
    pub fn forget(&mut self, run: Run) {
        if let Some(checks) = &mut self.checks {
            checks.versions.forget(run);
        }
    }

    /// The next run of known blocks from `lba` on, of at most one part.
    pub(crate) fn next_known(&self, lba: u64) -> Option<Run> {
        let checks = self.checks.as_ref()?;
        let most = (self.part_bytes / checks.lba_bytes) as u64;
        let versions = &checks.versions;
        let groups = versions.groups.range(lba / GROUP as u64..);
        let all = groups.flat_map(|(number, _)| number * GROUP as u64..(number + 1) * GROUP as u64);
        let first = all.filter(|&at| at >= lba).find(|&at| versions.known(at).is_some())?;
        let blocks = (first..first + most).take_while(|&at| versions.known(at).is_some()).count() as u64;
        Some(Run { lba: first, blocks })
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.engine.unmap(self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::{Checks, GROUP, Run, UNKNOWN, Versions};
    use crate::error::{Found, ReplayError};

    fn written(checks: &mut Checks, run: Run) -> Vec<u8> {
        let mut data = vec![0; run.blocks as usize * 512];
        checks.write(run, &mut data);
        data
    }

    #[test]
    fn what_differs_is_found_and_named() {
        let mut checks = Checks::new(512, 4096, 7, 1);
        let run = Run { lba: 4090, blocks: 8 };
        let first = written(&mut checks, run);
        let mut second = written(&mut checks, run);
        checks.compare(run, &second).unwrap();
        assert_eq!((checks.checked, checks.unchecked), (8, 0));
        let found = |checks: &mut Checks, data: &[u8]| match checks.compare(run, data) {
            Err(ReplayError::Differs { offset, version, found }) => (offset, version, found),
            other => panic!("{other:?}"),
        };
        let base = 4090 * 512;
        assert_eq!(found(&mut checks, &first), (base, 2, Found::Other { offset: base, version: 1 }));
        second.rotate_left(512);
        assert_eq!(found(&mut checks, &second), (base, 2, Found::Other { offset: base + 512, version: 2 }));
        second.rotate_right(512);
        second[3 * 512 + 511] ^= 1;
        assert_eq!(found(&mut checks, &second), (base + 1536, 2, Found::Damaged { at: 511 }));
        assert_eq!(found(&mut checks, &[0; 4096]), (base, 2, Found::Foreign));
        // Another leg wrote other bytes.
        let other = written(&mut Checks::new(512, 4096, 7, 2), run);
        assert!(matches!(found(&mut checks, &other), (_, 2, Found::Damaged { .. } | Found::Foreign)));
    }

    #[test]
    fn what_is_not_known_is_not_compared() {
        let mut checks = Checks::new(512, 4096, 7, 1);
        let run = Run { lba: GROUP as u64 - 2, blocks: 4 };
        written(&mut checks, run);
        checks.versions.forget(Run { lba: run.lba + 1, blocks: 2 });
        let known = |checks: &Checks| {
            (run.lba..run.lba + 4).map(|lba| checks.versions.known(lba)).collect::<Vec<_>>()
        };
        assert_eq!(known(&checks), [Some(1), None, None, Some(1)]);
        // A version is not given twice, so that what was there before is told from what is.
        written(&mut checks, run);
        assert_eq!(known(&checks), [Some(2); 4]);
        checks.versions.forget(Run { lba: 0, blocks: 1 << 40 });
        assert_eq!(known(&checks), [None; 4]);
        assert!(checks.compare(run, &[0; 2048]).is_ok() && checks.unchecked == 4);
        let mut versions = Versions::default();
        *versions.slot(0).unwrap() = UNKNOWN - 1;
        assert_eq!(versions.next(0), 1, "versions go round, past the mark of what is not known");
    }
}
