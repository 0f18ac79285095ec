//! What was promised: names as a list of what they may be, files as what each sector may show.
//!
//! An operation first widens what may be (`begin`), then, when it has returned, narrows it to what it
//! promised (`end`). A cut in between finds the wide form.

use crate::media::SECTOR;
use crate::operation::{Done, Op, Step};
use crate::survey::Survey;
use nvmed_fs::{Kind, RenameFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The inode of the root.
pub const ROOT: u64 = 1;

/// What an inode is, beside its content and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its kind.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// All names and what they stand for, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Path without a leading slash, inode number.
    pub names: BTreeMap<String, u64>,
    /// By number; inodes without a name are not in it.
    pub inodes: BTreeMap<u64, Arc<Inode>>,
}

impl Shape {
    /// What a path stands for.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<(u64, &Arc<Inode>)> {
        let ino = *self.names.get(path)?;
        self.inodes.get(&ino).map(|inode| (ino, inode))
    }

    /// Paths of a kind.
    #[must_use]
    pub fn paths(&self, kind: Kind) -> Vec<&String> {
        let is = |ino: &u64| self.inodes.get(ino).is_some_and(|inode| inode.kind == kind);
        self.names.iter().filter(|(_, ino)| is(ino)).map(|(path, _)| path).collect()
    }

    /// Whether a directory has nothing in it.
    #[must_use]
    pub fn is_empty_directory(&self, path: &str) -> bool {
        let below = format!("{path}/");
        !self.names.range(below.clone()..).next().is_some_and(|(name, _)| name.starts_with(&below))
    }

    fn links(&self, ino: u64) -> usize {
        self.names.values().filter(|&&other| other == ino).count()
    }

    fn remove(&mut self, path: &str) {
        if let Some(ino) = self.names.remove(path)
            && self.links(ino) == 0
        {
            self.inodes.remove(&ino);
        }
    }

    /// Takes a name and all below it out.
    fn uproot(&mut self, path: &str) -> Vec<(String, u64)> {
        let below = format!("{path}/");
        let taken: Vec<(String, u64)> = self
            .names
            .iter()
            .filter(|(name, _)| *name == path || name.starts_with(&below))
            .map(|(name, ino)| (name[path.len()..].to_owned(), *ino))
            .collect();
        for (rest, _) in &taken {
            self.names.remove(&format!("{path}{rest}"));
        }
        taken
    }

    fn plant(&mut self, path: &str, taken: Vec<(String, u64)>) {
        for (rest, ino) in taken {
            self.names.insert(format!("{path}{rest}"), ino);
        }
    }

    fn rename(&mut self, from: &str, to: &str, flags: RenameFlags) {
        if self.names.get(from) == self.names.get(to) {
            return; // two names of one file: rename(2) does nothing
        }
        let moved = self.uproot(from);
        if flags == RenameFlags::Exchange {
            let other = self.uproot(to);
            self.plant(from, other);
        } else {
            self.remove(to);
        }
        self.plant(to, moved);
    }

    fn alter(&mut self, ino: u64, change: impl FnOnce(&mut Inode)) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            change(Arc::make_mut(inode));
        }
    }

    /// The shape after an operation on names.
    fn after(&self, step: &Step) -> Option<Self> {
        let mut new = self.clone();
        match &step.op {
            Op::Create { path } | Op::Mkdir { path } | Op::Symlink { path, .. } => {
                let (kind, mode, target) = match &step.op {
                    Op::Create { .. } => (Kind::File, 0o644, Vec::new()),
                    Op::Mkdir { .. } => (Kind::Directory, 0o755, Vec::new()),
                    Op::Symlink { target, .. } => (Kind::Symlink, 0o777, target.clone()),
                    _ => return None,
                };
                let inode = Inode { kind, mode, target, xattrs: BTreeMap::new() };
                new.names.insert(path.clone(), step.made);
                new.inodes.insert(step.made, Arc::new(inode));
            }
            Op::Unlink { path, .. } | Op::Rmdir { path } => new.remove(path),
            Op::Link { from, to } => {
                let ino = *self.names.get(from)?;
                new.names.insert(to.clone(), ino);
            }
            Op::Rename { from, to, flags } => new.rename(from, to, *flags),
            Op::Chmod { path, mode } => {
                let (ino, _) = self.at(path)?;
                new.alter(ino, |inode| inode.mode = *mode);
            }
            Op::SetXattr { path, name, value } => {
                let (ino, _) = self.at(path)?;
                new.alter(ino, |inode| _ = inode.xattrs.insert(name.clone(), value.clone()));
            }
            Op::RemoveXattr { path, name } => {
                let (ino, _) = self.at(path)?;
                new.alter(ino, |inode| _ = inode.xattrs.remove(name));
            }
            _ => return None,
        }
        Some(new)
    }
}

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
        let mut bytes: Vec<u8> =
            self.sectors.iter().filter_map(|v| v.last()).flat_map(|v| v.to_vec()).collect();
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

    fn resize(&mut self, size: u64) {
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
        for sector in end / SECTOR..end.next_multiple_of(crate::media::BLOCK) / SECTOR {
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

    fn write(&mut self, at: u64, from: &[u8]) {
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
    fn store(&mut self, at: u64, from: &[u8]) {
        let unstored = self.unstored.take().unwrap_or_else(|| self.bytes());
        self.write(at, from);
        self.unstored = Some(unstored);
    }

    /// Stores into a mapping have been taken over.
    fn gather(&mut self, bytes: core::ops::Range<u64>) {
        let now = self.bytes();
        let Some(unstored) = &mut self.unstored else { return };
        let page = crate::media::BLOCK as u64;
        let end = bytes.end.min(now.len() as u64).next_multiple_of(page).min(now.len() as u64) as usize;
        let start = ((bytes.start / page * page) as usize).min(end);
        unstored[start..end].copy_from_slice(&now[start..end]);
        if *unstored == now {
            self.unstored = None;
        }
    }

    fn durable(&mut self, bytes: core::ops::Range<u64>) {
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

    /// Whether a file may show `bytes`; if not, why.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, bytes: &[u8]) -> Result<(), String> {
        let size = bytes.len() as u64;
        let between = size >= self.floor && self.sizes.iter().any(|&high| size <= high);
        // A file written in several steps ends, between two of them, where a block does.
        let at_block = between && size.is_multiple_of(crate::media::BLOCK as u64);
        if !(self.sizes.contains(&size) || at_block) {
            return Err(format!("has {size} bytes, not one of {:?}", self.sizes));
        }
        for (sector, found) in bytes.chunks(SECTOR).enumerate() {
            let versions = self.sectors.get(sector).map_or(&[][..], |versions| versions);
            let fits = |version: &Version| version.len() >= found.len() && version[..found.len()] == *found;
            let besides = self.besides.get(&sector).map_or(&[][..], |versions| versions);
            if !versions.iter().chain(besides).any(fits) {
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

/// What is promised.
#[derive(Clone, Debug)]
pub struct Model {
    /// Names as they may be; the last one is now.
    moments: Vec<Arc<Shape>>,
    /// Files, those without a name any more included as long as a moment has them.
    files: BTreeMap<u64, Content>,
    /// Files that this mount has synced: removing them is durable.
    synced: BTreeSet<u64>,
    /// Completed calls survive: a process died, the device did not.
    only_process_dies: bool,
    /// Each call is durable when it returns.
    written_through: bool,
    /// Files with stores into a mapping that no call has taken over yet: they die with the process.
    mapped: BTreeSet<u64>,
}

impl Model {
    /// An empty file system.
    #[must_use]
    pub fn new(written_through: bool) -> Self {
        let root = Inode { kind: Kind::Directory, mode: 0o755, target: Vec::new(), xattrs: BTreeMap::new() };
        let shape = Shape { names: BTreeMap::new(), inodes: BTreeMap::from([(ROOT, Arc::new(root))]) };
        Self {
            moments: vec![Arc::new(shape)],
            files: BTreeMap::new(),
            synced: BTreeSet::new(),
            only_process_dies: false,
            written_through,
            mapped: BTreeSet::new(),
        }
    }

    /// The model of a process that dies while the device lives: everything completed stays.
    #[must_use]
    pub fn for_death(mut self) -> Self {
        self.all_durable();
        self.only_process_dies = true;
        self
    }

    /// The names now.
    #[must_use]
    pub fn shape(&self) -> &Arc<Shape> {
        self.moments.last().expect("there is always a moment: now")
    }

    /// A file's content.
    #[must_use]
    pub fn file(&self, ino: u64) -> Option<&Content> {
        self.files.get(&ino)
    }

    /// The names that may be.
    #[must_use]
    pub fn moments(&self) -> &[Arc<Shape>] {
        &self.moments
    }

    /// The operation may have happened from now on, wholly or not.
    pub fn begin(&mut self, step: &Step) {
        if let Some(shape) = self.shape().after(step) {
            if matches!(step.op, Op::Create { .. }) {
                self.files.insert(step.made, Content::default());
            }
            self.moments.push(Arc::new(shape));
            return;
        }
        if let Some(content) = self.files.get_mut(&step.ino) {
            match &step.op {
                Op::Write { at, serial, len, .. } | Op::MapStore { at, serial, len, .. } => {
                    let mut bytes = vec![0; *len as usize];
                    crate::dice::fill(&mut bytes, *serial);
                    match &step.op {
                        Op::Write { .. } => content.write(*at, &bytes),
                        _ => content.store(*at, &bytes),
                    }
                }
                Op::Truncate { size, .. } => content.resize(*size),
                Op::Allocate { how, at, len, .. } => {
                    let size = content.size();
                    let end = if how.keep_size { (at + len).min(size) } else { at + len };
                    if end > size {
                        content.resize(end);
                    }
                    if (how.punch_hole || how.zero_range) && *at < end {
                        content.write(*at, &vec![0; (end - at) as usize]);
                    }
                }
                _ => {}
            }
        }
    }

    /// An operation failed, perhaps half-way: this is what is there now.
    fn observe(&mut self, ino: u64, left: &Survey) {
        if **self.shape() != left.shape {
            self.moments.push(Arc::new(left.shape.clone()));
        }
        for (made, bytes) in &left.contents {
            let content = self.files.entry(*made).or_default();
            if *made == ino {
                content.resize(bytes.len() as u64);
                content.write(0, bytes);
            }
        }
    }

    /// The operation has returned.
    pub fn end(&mut self, step: &Step) {
        if step.done == Done::Failed {
            // It may have happened or not, or in part.
            if let Some(left) = &step.left {
                self.observe(step.ino, left);
            }
            return;
        }
        let everywhere = 0..u64::MAX;
        self.gathered(&step.op, step.ino);
        match &step.op {
            Op::Fsync { .. } | Op::Fdatasync { .. } => {
                self.synced.insert(step.ino);
                self.file_durable(step.ino, everywhere);
                self.names_durable();
            }
            Op::SyncDirectory { .. } => self.names_durable(),
            Op::Sync => self.all_durable(),
            Op::Write { sync, at, len, .. } if sync.is_some() => {
                self.synced.insert(step.ino);
                self.file_durable(step.ino, *at..at + len);
                self.names_durable();
            }
            Op::Msync { at, len, .. } => {
                self.file_durable(step.ino, *at..at + len);
                self.names_durable();
            }
            Op::Unlink { .. } if self.synced.contains(&step.ino) => self.names_durable(),
            _ => {}
        }
        if self.written_through {
            self.through(step);
        }
        match &step.op {
            Op::MapStore { .. } => _ = self.mapped.insert(step.ino),
            Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Unmap { .. } => {
                self.mapped.remove(&step.ino);
            }
            Op::Sync | Op::Age => self.mapped.clear(),
            _ => {}
        }
        if self.only_process_dies {
            self.names_durable();
            let mapped = &self.mapped;
            let all = self.files.iter_mut().filter(|(ino, _)| !mapped.contains(ino));
            all.for_each(|(_, content)| content.durable(0..u64::MAX));
        }
    }

    fn gathered(&mut self, op: &Op, ino: u64) {
        match op {
            Op::Sync | Op::Age => self.files.values_mut().for_each(|content| content.gather(0..u64::MAX)),
            Op::Msync { at, len, .. } => {
                if let Some(content) = self.files.get_mut(&ino) {
                    content.gather(*at..at + len);
                }
            }
            Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Unmap { .. } | Op::Allocate { .. } => {
                if let Some(content) = self.files.get_mut(&ino) {
                    content.gather(0..u64::MAX);
                }
            }
            _ => {}
        }
    }

    /// With durability `device`: what the call has changed of the metadata is durable. Its data has reached
    /// the device, whose cache a power cut may still take.
    fn through(&mut self, step: &Step) {
        match &step.op {
            Op::MapStore { .. } | Op::Unmap { .. } | Op::Age | Op::Trim | Op::Check { .. } | Op::Close => {}
            _ => self.names_durable(),
        }
    }

    fn file_durable(&mut self, ino: u64, bytes: core::ops::Range<u64>) {
        if let Some(content) = self.files.get_mut(&ino) {
            content.durable(bytes);
        }
    }

    fn names_durable(&mut self) {
        let keep = self.moments.len() - 1;
        self.moments.drain(..keep);
        let now = Arc::clone(self.shape());
        self.files.retain(|ino, _| now.inodes.contains_key(ino));
    }

    /// Everything is as it is now, for good: an unmount.
    pub fn all_durable(&mut self) {
        self.names_durable();
        self.files.values_mut().for_each(|content| content.durable(0..u64::MAX));
    }

    /// The mount ended: what it knew of synced files is gone with it.
    pub fn remounted(&mut self) {
        self.all_durable();
        self.synced.clear();
    }
}
