//! What one file may look like: of each sector, what it may show, and which sizes there may be.

use nvmed_disk::SECTOR;
use std::collections::BTreeMap;
use std::sync::Arc;

type Version = Arc<[u8]>;

/// What one file may look like.
#[derive(Clone, Debug)]
pub struct Content {
    /// Of each sector, what it was since it was durable last: as many bytes as the file had of it.
    sectors: Vec<Vec<Version>>,
    /// Sizes since the file was durable last; the last one is now.
    sizes: Vec<u64>,
    /// What a sector may show besides: around the end of a file that was cut off, while that is not durable
    /// and the data before it is, zeroes or what was there; where a mapping was stored to, what was written
    /// without the stores that no call has taken over.
    besides: BTreeMap<usize, Vec<Version>>,
    /// The content without stores into a mapping that no call has taken over, if there are any.
    unstored: Option<Vec<u8>>,
    /// The file has at least as many bytes.
    floor: u64,
}

/// An empty file.
impl Default for Content {
    fn default() -> Self {
        Self { sectors: Vec::new(), sizes: vec![0], besides: BTreeMap::new(), unstored: None, floor: 0 }
    }
}

impl Content {
    /// Bytes now.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.sizes.last().copied().unwrap_or(0)
    }

    fn now(&self, sector: usize) -> &[u8] {
        self.sectors.get(sector).and_then(|versions| versions.last()).map_or(&[], |version| version)
    }

    /// The whole content now.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.sectors.len() * SECTOR);
        self.sectors
            .iter()
            .filter_map(|versions| versions.last())
            .for_each(|last| bytes.extend_from_slice(last));
        bytes.truncate(self.size() as usize);
        bytes
    }

    fn put(&mut self, sector: usize, version: &[u8]) {
        if self.sectors.len() <= sector {
            self.sectors.resize_with(sector + 1, || vec![Arc::from([].as_slice())]);
        }
        if self.now(sector) != version {
            self.sectors[sector].push(Arc::from(version));
        }
    }

    /// The file has another size.
    pub fn resize(&mut self, size: u64) {
        let before = self.size();
        let (low, high) = (before.min(size), before.max(size));
        for sector in low as usize / SECTOR..(high as usize).div_ceil(SECTOR) {
            let mut bytes = self.now(sector).to_vec();
            bytes.resize((size as usize).saturating_sub(sector * SECTOR).min(SECTOR), 0);
            self.put(sector, &bytes);
        }
        if size != before {
            self.sizes.push(size);
        }
        self.floor = self.floor.min(size);
        if let Some(unstored) = &mut self.unstored {
            unstored.resize(size as usize, 0);
            for sector in low as usize / SECTOR..(size as usize).div_ceil(SECTOR) {
                let bytes = &unstored[sector * SECTOR..(size as usize).min((sector + 1) * SECTOR)];
                self.besides.entry(sector).or_default().push(Arc::from(bytes));
            }
        }
        self.note_end();
    }

    /// Once the file was cut off, the rest of the block that it ends in may be on the device before its end.
    fn note_end(&mut self) {
        let end = self.size() as usize;
        if !self.sizes.windows(2).any(|pair| pair[1] < pair[0]) {
            return;
        }
        for sector in end / SECTOR..end.next_multiple_of(nvmed_disk::BLOCK) / SECTOR {
            let now = self.now(sector).to_vec();
            let before = self.sectors.get(sector).map_or(&[][..], |versions| versions);
            let mut mixed = vec![[0; SECTOR]];
            mixed.extend(before.iter().filter(|version| version.len() > now.len()).map(|version| {
                let mut bytes = [0; SECTOR];
                bytes[..version.len()].copy_from_slice(version);
                bytes
            }));
            for mut bytes in mixed {
                bytes[..now.len()].copy_from_slice(&now);
                self.besides.entry(sector).or_default().push(Arc::from(bytes.as_slice()));
            }
        }
    }

    /// Bytes were written, by a call or as zeroes.
    pub fn write(&mut self, at: u64, from: &[u8]) {
        let end = at + from.len() as u64;
        if end > self.size() {
            // The file grows with the write, not before it: only what lies below it is extended first.
            let size = self.size();
            if at > size {
                self.resize(at);
                self.sizes.pop();
            }
            self.sizes.push(end);
        }
        let size = self.size() as usize;
        for sector in at as usize / SECTOR..(end as usize).div_ceil(SECTOR) {
            let start = sector * SECTOR;
            let mut bytes = self.now(sector).to_vec();
            bytes.resize((size - start).min(SECTOR), 0);
            let (from_start, to_start) =
                (start.saturating_sub(at as usize), (at as usize).saturating_sub(start));
            let count = (from.len() - from_start).min(SECTOR - to_start);
            bytes[to_start..to_start + count].copy_from_slice(&from[from_start..from_start + count]);
            self.put(sector, &bytes);
        }
        if let Some(unstored) = &mut self.unstored {
            unstored.resize(size, 0);
            unstored[at as usize..end as usize].copy_from_slice(from);
            for sector in at as usize / SECTOR..(end as usize).div_ceil(SECTOR) {
                let bytes = &unstored[sector * SECTOR..size.min((sector + 1) * SECTOR)];
                self.besides.entry(sector).or_default().push(Arc::from(bytes));
            }
        }
        self.note_end();
    }

    /// A store into a mapping: the file's when some call takes it over.
    pub fn store(&mut self, at: u64, from: &[u8]) {
        let unstored = self.unstored.take().unwrap_or_else(|| self.bytes());
        self.write(at, from);
        self.unstored = Some(unstored);
    }

    /// Stores into a mapping have been taken over.
    pub fn gather(&mut self, bytes: core::ops::Range<u64>) {
        let now = self.bytes();
        let Some(unstored) = &mut self.unstored else { return };
        let page = nvmed_disk::BLOCK as u64;
        let end = bytes.end.min(now.len() as u64).next_multiple_of(page).min(now.len() as u64) as usize;
        let start = ((bytes.start / page * page) as usize).min(end);
        unstored[start..end].copy_from_slice(&now[start..end]);
        if *unstored == now {
            self.unstored = None;
        }
    }

    /// The bytes of a range are on the device for good; of all, with the size.
    pub fn durable(&mut self, bytes: core::ops::Range<u64>) {
        let end = bytes.end.min(self.size());
        let sectors = bytes.start as usize / SECTOR..(end as usize).div_ceil(SECTOR);
        for versions in self.sectors.iter_mut().take(sectors.end).skip(sectors.start) {
            versions.drain(..versions.len().saturating_sub(1));
        }
        if bytes.end == u64::MAX {
            let sectors = (self.size() as usize).div_ceil(SECTOR);
            self.sectors.truncate(sectors);
            self.sizes.drain(..self.sizes.len().saturating_sub(1));
            self.besides.clear();
            self.unstored = None;
            self.floor = self.size();
        } else if self.sizes.len() > 1 {
            // The range is there: the file reaches to its end.
            let now = self.size();
            self.floor = end;
            self.sizes.retain(|&size| size >= end);
            if self.sizes.last() != Some(&now) {
                self.sizes.push(now);
            }
        }
    }

    /// Whether a file may show `bytes`, on a device that tears between parts of `unit` bytes; if not, why.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, bytes: &[u8], unit: usize) -> Result<(), String> {
        let size = bytes.len() as u64;
        let between = size >= self.floor && self.sizes.iter().any(|&high| size <= high);
        // A file written in several steps ends, between two of them, where a block does.
        let at_block = between && size.is_multiple_of(nvmed_disk::BLOCK as u64);
        if !(self.sizes.contains(&size) || at_block) {
            return Err(format!("has {size} bytes, not one of {:?}", self.sizes));
        }
        for (sector, found) in bytes.chunks(SECTOR).enumerate() {
            let versions = self.sectors.get(sector).map_or(&[][..], |versions| versions);
            let besides = self.besides.get(&sector).map_or(&[][..], |versions| versions);
            let all = || versions.iter().chain(besides);
            // Mostly it is one of them as a whole.
            let whole = |version: &Version| version.get(..found.len()) == Some(found);
            let fits = |(at, part): (usize, &[u8])| {
                all().any(|version| version.get(at * unit..at * unit + part.len()) == Some(part))
            };
            if !all().any(whole) && !found.chunks(unit).enumerate().all(fits) {
                return Err(self.describe(sector, found, versions));
            }
        }
        Ok(())
    }

    fn describe(&self, sector: usize, found: &[u8], versions: &[Version]) -> String {
        let first = |bytes: &[u8]| -> String {
            let zero = bytes.iter().take_while(|&&byte| byte == 0).count();
            let differs = bytes.iter().position(|&byte| byte != bytes[0]).unwrap_or(bytes.len());
            let head: String = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!("{}×[{head}…, {zero} zeroes first, equal up to {differs}]", bytes.len())
        };
        let may: Vec<String> = versions.iter().map(|version| first(version)).collect();
        let agree: Vec<usize> = versions
            .iter()
            .map(|version| version.iter().zip(found).take_while(|(one, other)| one == other).count())
            .collect();
        format!(
            "sector {sector} (byte {}) shows {}, none of {may:?}; they agree up to byte {agree:?} of it; sizes {:?}",
            sector * SECTOR,
            first(found),
            self.sizes
        )
    }
}
