//! The checker: reads all metadata and says what contradicts what (docs/spec/fs.md, "Consistency").
//!
//! It changes nothing. What it keeps in memory grows with the number of files, about 100 bytes each.

use crate::finding::Finding;
use core::ops::ControlFlow;
use nvmed_io::{Binding, Device};
use nvmed_kv::{KvError, PendingMemory, Store};
use nvmed_layout::bitmap::{CHUNK_BLOCKS, CHUNK_BYTES};
use nvmed_layout::keys::{self, PREFIX_BYTES_MAX, Subject, TARGET_PART_BYTES, ZONE_BYTES};
use nvmed_layout::record::{Counters, Entry, Extent, FLAG_KEYED_EXTENTS, INLINE_TARGET_BYTES, Record, Tail};
use nvmed_layout::{
    FileType, LayoutError, LostCopy, NAME_BYTES_MAX, PATH_BYTES_MAX, ROOT, Superblock, copies, region, xattrs,
};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{BLOCK_BYTES, Block, Ino, Page};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Findings after which the checker stops: more say nothing new.
const FINDINGS_MAX: usize = 1000;
/// Memory for the store's log; the checker applies nothing, a repair as much as fits at once.
const PENDING_BYTES: usize = 4 << 20;

/// Checks the file system of a device that is not mounted.
///
/// # Errors
/// It is no file system of ours, or the device fails. Damage inside is a finding, not an error.
pub fn fsck(device: &Arc<Device>) -> Result<Vec<Finding>, LayoutError> {
    let handle = device.handle(Binding::Spread);
    let (superblock, lost) = copies::load(device, &handle)?;
    let mut check = Check::new(superblock.clone());
    lost.into_iter().for_each(|lost| check.find(Finding::Copy(lost)));
    let read = open_store(device, &superblock, false)?.and_then(|store| {
        store.flaws().iter().cloned().for_each(|flaw| check.find(Finding::Copy(LostCopy::Store(flaw))));
        store.verify_visiting(&mut |key, value| check.visit(key, value))
    });
    match read {
        Err(KvError::Medium { .. }) => {
            return Err(read.err().map_or(LayoutError::NotOurs, LayoutError::from));
        }
        Err(damage) => check.find(Finding::Store { message: damage.to_string() }),
        Ok(_) => check.conclude(),
    }
    Ok(check.findings)
}

/// A file system's superblock and metadata store, open without a mount.
pub(crate) struct Opened {
    pub(crate) superblock: Superblock,
    /// The copy of the superblock that does not say what the other one does.
    pub(crate) superblock_lost: Option<LostCopy>,
    pub(crate) store: Store,
}

/// Opens a file system's parts without mounting it.
pub(crate) fn open(device: &Arc<Device>) -> Result<Opened, LayoutError> {
    let (superblock, superblock_lost) = copies::load(device, &device.handle(Binding::Spread))?;
    let store = open_store(device, &superblock, false)??;
    Ok(Opened { superblock, superblock_lost, store })
}

/// The same for reading what is left; what is wrong with the log of the store, if it is that.
pub(crate) fn open_wreck(device: &Arc<Device>) -> Result<(Opened, Option<KvError>), LayoutError> {
    let (superblock, superblock_lost) = copies::load(device, &device.handle(Binding::Spread))?;
    let (store, damage) = match open_store(device, &superblock, false)? {
        Err(damage @ KvError::Corrupt { structure: "log", .. }) => {
            (open_store(device, &superblock, true)??, Some(damage))
        }
        opened => (opened?, None),
    };
    Ok((Opened { superblock, superblock_lost, store }, damage))
}

fn open_store(
    device: &Arc<Device>,
    superblock: &Superblock,
    salvage: bool,
) -> Result<Result<Store, KvError>, LayoutError> {
    let region = region::metadata(device, None, superblock)?;
    let memory = Arc::new(Mapping::anonymous(PENDING_BYTES, Pages::Base)?);
    let pending = PendingMemory { memory, offset: 0, len: PENDING_BYTES };
    let options = nvmed_kv::Options { salvage, ..nvmed_kv::Options::default() };
    Ok(Store::open(Arc::new(region), pending, &options))
}

/// What is kept of an inode.
struct Summary {
    kind: FileType,
    nlink: u32,
    size: u64,
    blocks: u64,
    extent_count: u32,
    keyed: bool,
    /// Counted while extents are read.
    blocks_found: u64,
    extents_found: u32,
}

/// The prefixes of keys that a directory's name tells.
struct Prefixes {
    /// That of the names in it.
    own: Box<[u8]>,
    /// That of its own name; the root's is empty.
    above: Box<[u8]>,
    zone: bool,
}

/// What the names with one prefix say.
#[derive(Default)]
struct Contents {
    subdirectories: u32,
}

/// Names below the directory right below a zone's root, in that zone.
struct Below {
    prefix: Box<[u8]>,
    names: u32,
    bytes: u64,
}

/// A name for an inode that may not be there, or be something else.
struct Unproven {
    prefix: Box<[u8]>,
    name: Box<[u8]>,
    ino: Ino,
    kind: FileType,
}

/// How far the extents that were looked at reach, and whose the furthest is.
struct Covered {
    end: Block,
    by: Ino,
}

struct Check {
    superblock: Superblock,
    findings: Vec<Finding>,
    inodes: HashMap<Ino, Summary>,
    /// How many names an inode has.
    names: HashMap<Ino, u32>,
    /// Directories by number, and their numbers by prefix.
    prefixes: HashMap<Ino, Prefixes>,
    directories: HashMap<Box<[u8]>, Ino>,
    contents: HashMap<Box<[u8]>, Contents>,
    below: Vec<Below>,
    /// The prefix checked last: keys come in order.
    checked: Vec<u8>,
    /// Entries without a record, until their inodes are known.
    entries: Vec<Unproven>,
    extents: Vec<(Extent, Ino)>,
    bitmap: BTreeMap<u64, [u8; CHUNK_BYTES]>,
    orphans: HashSet<Ino>,
    targets: HashMap<Ino, u64>,
    /// Bytes of long extended attributes that are there, less those that the inodes tell of.
    xattrs: HashMap<(Ino, Box<[u8]>), u64>,
    long_xattrs: Vec<(Ino, Box<[u8]>, u64)>,
    counters: Option<Counters>,
}

impl Check {
    fn new(superblock: Superblock) -> Self {
        let root = Prefixes { own: keys::zone(ROOT).into(), above: Box::default(), zone: true };
        Self {
            superblock,
            findings: Vec::new(),
            inodes: HashMap::new(),
            names: HashMap::new(),
            directories: HashMap::from([(root.own.clone(), ROOT)]),
            prefixes: HashMap::from([(ROOT, root)]),
            contents: HashMap::new(),
            below: Vec::new(),
            checked: Vec::new(),
            entries: Vec::new(),
            extents: Vec::new(),
            bitmap: BTreeMap::new(),
            orphans: HashSet::new(),
            targets: HashMap::new(),
            xattrs: HashMap::new(),
            long_xattrs: Vec::new(),
            counters: None,
        }
    }

    fn find(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    fn visit(&mut self, key: &[u8], value: &[u8]) -> ControlFlow<()> {
        if self.keep(key, value).is_none() {
            self.find(Finding::Record { key: key.to_vec() });
        }
        if self.findings.len() < FINDINGS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Keeps what a record says; none when it says nothing.
    fn keep(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match keys::subject(key)? {
            Subject::Entry { prefix, name } => {
                self.entry(prefix, name, &Entry::decode(value)?)?;
                self.count_below(prefix, value.len());
            }
            Subject::Inode(ino) => self.inode(ino, &Record::decode(value)?)?,
            Subject::Extent { ino, logical } => {
                let extent = Extent::decode(logical, value)?;
                self.extents.push((extent, ino));
                let summary = self.inodes.get_mut(&ino).filter(|summary| summary.keyed)?;
                summary.blocks_found += u64::from(extent.blocks);
                summary.extents_found += 1;
            }
            Subject::Bitmap(chunk) => drop(self.bitmap.insert(chunk, value.try_into().ok()?)),
            Subject::Orphan(ino) => drop(self.orphans.insert(ino)),
            Subject::Target { ino, part } => {
                let bytes = self.targets.entry(ino).or_default();
                let follows = part.checked_mul(TARGET_PART_BYTES as u64) == Some(*bytes);
                *bytes += value.len() as u64;
                return follows.then_some(());
            }
            Subject::Xattr { ino, name, .. } => {
                *self.xattrs.entry((ino, name.into())).or_default() += value.len() as u64;
            }
            Subject::Counters => self.counters = Some(Counters::decode(value)?),
        }
        Some(())
    }

    fn entry(&mut self, prefix: &[u8], name: &[u8], entry: &Entry<'_>) -> Option<()> {
        if !is_name(name) || !self.is_prefix(prefix) {
            return None;
        }
        if let Some(record) = entry.record {
            let record = Record::decode(record).filter(|record| record.kind() == entry.kind)?;
            self.inode(entry.ino, &record)?;
        } else {
            let (ino, kind) = (entry.ino, entry.kind);
            self.entries.push(Unproven { prefix: prefix.into(), name: name.into(), ino, kind });
        }
        *self.names.entry(entry.ino).or_default() += 1;
        let contents = match self.contents.get_mut(prefix) {
            Some(contents) => contents,
            None => self.contents.entry(prefix.into()).or_default(),
        };
        if entry.kind == FileType::Directory {
            contents.subdirectories += 1;
            let mut own = keys::zone(entry.ino).to_vec();
            if !entry.zone {
                own = prefix.to_vec();
                keys::push_step(&mut own, name);
            }
            let prefixes = Prefixes { own: own.into(), above: prefix.into(), zone: entry.zone };
            self.directories.insert(prefixes.own.clone(), entry.ino);
            self.prefixes.insert(entry.ino, prefixes);
        }
        Some(())
    }

    /// Whether a prefix is made of names.
    fn is_prefix(&mut self, prefix: &[u8]) -> bool {
        if self.checked == prefix {
            return true;
        }
        let mut rest = prefix;
        while let Some((above, name)) = keys::pop_step(rest) {
            if !is_name(&name) {
                return false;
            }
            rest = above;
        }
        let good = rest.len() == ZONE_BYTES && rest != [0; ZONE_BYTES] && prefix.len() <= PREFIX_BYTES_MAX;
        if good {
            prefix.clone_into(&mut self.checked);
        }
        good
    }

    /// Counts a name for the directory right below its zone's root that leads to it.
    fn count_below(&mut self, prefix: &[u8], bytes: usize) {
        if prefix.len() == ZONE_BYTES {
            return;
        }
        if let Some(last) = self.below.last_mut().filter(|last| keys::is_below(prefix, &last.prefix)) {
            last.names += 1;
            last.bytes += bytes as u64;
            return;
        }
        let mut top = prefix.to_vec();
        while let Some((above, _)) = keys::pop_step(&top).filter(|(above, _)| above.len() > ZONE_BYTES) {
            top.truncate(above.len());
        }
        self.below.push(Below { prefix: top.into(), names: 1, bytes: bytes as u64 });
    }

    /// None when the inode has a record already.
    fn inode(&mut self, ino: Ino, record: &Record) -> Option<()> {
        let inline = record.inline_extents();
        let bytes = record.inline_data().map_or(0, |data| data.len() as u64);
        if bytes > record.size.min(BLOCK_BYTES as u64) {
            self.find(Finding::Inode { ino, field: "inline bytes", recorded: bytes, found: record.size });
        }
        if let Tail::Target(target) = &record.tail {
            let is_long = record.size > INLINE_TARGET_BYTES as u64;
            let found = if is_long { record.size } else { target.len() as u64 };
            if found != record.size || !(1..PATH_BYTES_MAX as u64).contains(&record.size) {
                self.find(Finding::Inode { ino, field: "target", recorded: record.size, found });
            }
        }
        match xattrs::long_values(record) {
            Some(long) => self.long_xattrs.extend(long.into_iter().map(|(name, bytes)| (ino, name, bytes))),
            None => self.find(Finding::Inode { ino, field: "attributes", recorded: 0, found: 0 }),
        }
        for name in xattrs::not_served(record) {
            self.find(Finding::Attribute { ino, name: name.into() });
        }
        self.extents.extend(inline.iter().map(|extent| (*extent, ino)));
        let summary = Summary {
            kind: record.kind(),
            nlink: record.nlink,
            size: record.size,
            blocks: record.blocks,
            extent_count: record.extent_count,
            keyed: record.flags & FLAG_KEYED_EXTENTS != 0,
            blocks_found: inline.iter().map(|extent| u64::from(extent.blocks)).sum(),
            // Four at most.
            extents_found: inline.len().try_into().unwrap_or(u32::MAX),
        };
        self.inodes.insert(ino, summary).is_none().then_some(())
    }

    /// Everything was read: compares.
    fn conclude(&mut self) {
        self.check_entries();
        self.check_zones();
        self.check_inodes();
        self.check_xattrs();
        self.check_tree();
        let used = self.check_extents();
        self.check_bitmap(&used);
        self.check_counters(&used);
    }

    fn check_entries(&mut self) {
        for Unproven { prefix, name, ino, kind } in core::mem::take(&mut self.entries) {
            if self.inodes.get(&ino).is_none_or(|summary| summary.kind != kind) {
                let zone = keys::zone_of(&prefix).unwrap_or_default();
                let directory = self.directories.get(&prefix).copied().unwrap_or(zone);
                self.find(Finding::Entry { directory, name: name.into_vec(), ino });
            }
        }
        let lost: Vec<Box<[u8]>> =
            self.contents.keys().filter(|prefix| !self.directories.contains_key(*prefix)).cloned().collect();
        for prefix in lost {
            let zone = keys::zone_of(&prefix).unwrap_or_default();
            let finding = match prefix.len() {
                ZONE_BYTES => Finding::Directory { ino: zone },
                _ => Finding::Path { zone, path: path_of(&prefix) },
            };
            self.find(finding);
        }
        let is_link =
            |ino: &Ino| self.inodes.get(ino).is_some_and(|summary| summary.kind == FileType::Symlink);
        let stray: Vec<Ino> = self.targets.keys().copied().filter(|ino| !is_link(ino)).collect();
        for ino in stray {
            self.find(Finding::Record { key: keys::target(ino, 0).to_vec() });
        }
    }

    /// Whether the long extended attributes that inodes tell of are there, and no others.
    fn check_xattrs(&mut self) {
        for (ino, name, bytes) in core::mem::take(&mut self.long_xattrs) {
            let found = self.xattrs.remove(&(ino, name)).unwrap_or(0);
            if found != bytes {
                self.find(Finding::Inode { ino, field: "attribute bytes", recorded: bytes, found });
            }
        }
        for ((ino, name), _) in core::mem::take(&mut self.xattrs) {
            self.find(Finding::Record { key: keys::xattr(ino, &name, 0).to_vec() });
        }
    }

    /// Whether the directories that are no zones are small enough for it.
    fn check_zones(&mut self) {
        /// Bytes of a value beyond which a writer may find a batch too small to make a zone.
        const ORDINARY_BYTES: u64 = 256;
        let bound = self.superblock.zone_bound;
        for below in core::mem::take(&mut self.below) {
            let large = below.names > bound && below.bytes / u64::from(below.names) <= ORDINARY_BYTES;
            if let Some(&ino) = self.directories.get(&below.prefix).filter(|_| large) {
                self.find(Finding::Zone { ino, names: below.names, bound });
            }
        }
        if bound == 0 {
            let small = self.prefixes.iter().filter(|(_, prefixes)| !prefixes.zone);
            let small: Vec<Ino> = small.map(|(ino, _)| *ino).collect();
            small.into_iter().for_each(|ino| self.find(Finding::Zone { ino, names: 0, bound }));
        }
    }

    fn check_inodes(&mut self) {
        let mut found = Vec::new();
        for (&ino, summary) in &self.inodes {
            let names = self.names.get(&ino).copied().unwrap_or(0);
            let orphan = self.orphans.contains(&ino);
            if ino != ROOT && (names == 0) != orphan {
                found.push(Finding::Orphan { ino, names });
            }
            let is_directory = summary.kind == FileType::Directory;
            let inside = self.prefixes.get(&ino).and_then(|prefixes| self.contents.get(&prefixes.own));
            let subdirectories = inside.map_or(0, |contents| contents.subdirectories);
            let links = if is_directory { 2 + subdirectories } else { names };
            let is_long_link = summary.kind == FileType::Symlink && summary.size > INLINE_TARGET_BYTES as u64;
            let target =
                if is_long_link { self.targets.get(&ino).copied().unwrap_or(0) } else { summary.size };
            let numbers = [
                ("target", summary.size, target),
                ("links", u64::from(summary.nlink), u64::from(links)),
                ("blocks", summary.blocks, summary.blocks_found),
                ("extents", u64::from(summary.extent_count), u64::from(summary.extents_found)),
                ("names", u64::from(is_directory && names > 1), 0),
            ];
            let wrong = numbers.into_iter().filter(|(_, recorded, counted)| recorded != counted);
            found.extend(wrong.map(|(field, recorded, counted)| Finding::Inode {
                ino,
                field,
                recorded,
                found: counted,
            }));
        }
        found.into_iter().for_each(|finding| self.find(finding));
        let lost: Vec<Ino> =
            self.orphans.iter().copied().filter(|ino| !self.inodes.contains_key(ino)).collect();
        for ino in lost {
            self.find(Finding::Orphan { ino, names: 0 });
        }
    }

    /// Whether the way up from every directory leads to the root.
    fn check_tree(&mut self) {
        let mut good: HashSet<Ino> = HashSet::from([ROOT]);
        let mut lost = Vec::new();
        let above = |ino: Ino| {
            let prefixes = self.prefixes.get(&ino)?;
            self.directories.get(&prefixes.above).copied()
        };
        for (&ino, _) in self.inodes.iter().filter(|(_, summary)| summary.kind == FileType::Directory) {
            let mut way = HashSet::from([ino]);
            let mut at = above(ino);
            // Who comes by twice goes round in a circle.
            while let Some(next) = at.filter(|next| !good.contains(next) && way.insert(*next)) {
                at = above(next);
            }
            if at.is_some_and(|at| good.contains(&at)) {
                good.extend(way);
            } else if !good.contains(&ino) {
                lost.push(ino);
            }
        }
        if self.inodes.get(&ROOT).is_none_or(|root| root.kind != FileType::Directory) {
            lost.push(ROOT);
        }
        lost.into_iter().for_each(|ino| self.find(Finding::Unreachable { ino }));
    }

    /// The blocks that extents use, by chunk.
    fn check_extents(&mut self) -> BTreeMap<u64, [u64; 16]> {
        let first = Block(self.superblock.data_first);
        let end = first + self.superblock.data_blocks;
        let mut extents = core::mem::take(&mut self.extents);
        extents.extend(self.metadata_extents());
        extents.sort_unstable_by_key(|(extent, _)| extent.physical);
        let mut used: BTreeMap<u64, [u64; 16]> = BTreeMap::new();
        let mut covered = Covered { end: first, by: Ino::default() };
        for (extent, ino) in extents {
            if extent.physical < first || extent.physical_end() > end {
                self.find(Finding::Extent { ino, block: extent.physical, other: None });
                continue;
            }
            if extent.physical < covered.end {
                self.find(Finding::Extent { ino, block: extent.physical, other: Some(covered.by) });
            }
            if extent.physical_end() > covered.end {
                covered = Covered { end: extent.physical_end(), by: ino };
            }
            for block in extent.physical - first..extent.physical_end() - first {
                let bit = (block % CHUNK_BLOCKS) as usize;
                used.entry(block / CHUNK_BLOCKS).or_default()[bit / 64] |= 1 << (bit % 64);
            }
        }
        used
    }

    /// What metadata took from the data region, as extents of inode 0. Of a run that it was about to take, only
    /// what is marked: the next mount marks the rest.
    fn metadata_extents(&self) -> Vec<(Extent, Ino)> {
        let runs = self.superblock.taken_runs();
        let mut extents = Vec::new();
        for (index, run) in runs.iter().enumerate() {
            let about_to = self.superblock.growing && index + 1 == runs.len();
            let taken = run.clone().filter(|block| !about_to || self.is_marked(*block));
            extents.extend(taken.map(|physical| {
                (Extent { logical: Page::FIRST, physical: Block(physical), blocks: 1, flags: 0 }, Ino(0))
            }));
        }
        extents
    }

    fn is_marked(&self, block: u64) -> bool {
        let block = block - self.superblock.data_first;
        let bit = (block % CHUNK_BLOCKS) as usize;
        self.bitmap.get(&(block / CHUNK_BLOCKS)).is_some_and(|bytes| bytes[bit / 8] >> (bit % 8) & 1 == 1)
    }

    fn check_bitmap(&mut self, used: &BTreeMap<u64, [u64; 16]>) {
        let recorded = core::mem::take(&mut self.bitmap);
        let chunks: std::collections::BTreeSet<u64> = recorded.keys().chain(used.keys()).copied().collect();
        for chunk in chunks {
            let marked = recorded.get(&chunk).copied().unwrap_or([0; CHUNK_BYTES]);
            let inside = used.get(&chunk).copied().unwrap_or_default();
            let (mut leaked, mut unmarked) = (0, 0);
            for (bytes, word) in marked.chunks_exact(8).zip(inside) {
                let marks = u64::from_le_bytes(bytes.try_into().expect("the chunk has eight bytes"));
                leaked += (marks & !word).count_ones();
                unmarked += (word & !marks).count_ones();
            }
            if leaked + unmarked > 0 {
                // Forged keys name chunks that no device has.
                let block = chunk.saturating_mul(CHUNK_BLOCKS).saturating_add(self.superblock.data_first);
                self.find(Finding::Bitmap { block: Block(block), leaked, unmarked });
            }
        }
    }

    fn check_counters(&mut self, used: &BTreeMap<u64, [u64; 16]>) {
        let Some(counters) = self.counters else {
            return self.find(Finding::Record { key: keys::counters().to_vec() });
        };
        let in_use: u64 = used.values().flatten().map(|word| u64::from(word.count_ones())).sum();
        let free = self.superblock.data_blocks.saturating_sub(in_use);
        let next = self.inodes.keys().copied().max().map_or(ROOT, Ino::next);
        let numbers = [
            ("free blocks", counters.free_blocks, free),
            ("next inode", counters.next_ino.0, next.max(counters.next_ino).0),
        ];
        for (field, recorded, found) in numbers.into_iter().filter(|(_, recorded, found)| recorded != found) {
            self.find(Finding::Counter { field, recorded, found });
        }
    }
}

/// Whether an entry may be called so.
pub(crate) fn is_name(name: &[u8]) -> bool {
    let plain = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name != b"." && name != b"..";
    plain && !name.contains(&b'/') && !name.contains(&0)
}

/// The path in a prefix, with slashes.
pub(crate) fn path_of(prefix: &[u8]) -> Vec<u8> {
    let mut steps = Vec::new();
    let mut rest = prefix;
    while let Some((above, name)) = keys::pop_step(rest) {
        steps.push(name);
        rest = above;
    }
    steps.reverse();
    steps.join(&b'/')
}
