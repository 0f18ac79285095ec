//! The checker: reads all metadata and says what contradicts what (docs/spec/fs.md, "Consistency").
//!
//! It changes nothing. What it keeps in memory grows with the number of files, about 100 bytes each.

use crate::alloc::{CHUNK_BLOCKS, CHUNK_BYTES};
use crate::core::{ROOT, read_superblock};
use crate::error::FsError;
use crate::keys::{self, Subject};
use crate::record::{Counters, Extent, FLAG_KEYED_EXTENTS, INLINE_TARGET_BYTES, Record, decode_entry};
use crate::region::Region;
use crate::status::Kind;
use crate::superblock::Superblock;
use core::fmt;
use core::ops::{Bound, ControlFlow};
use nvmed_io::{Binding, Device};
use nvmed_kv::{KvError, PendingMemory, Store};
use nvmed_sys::{Mapping, Pages};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Findings after which the checker stops: more say nothing new.
const FINDINGS_MAX: usize = 1000;
/// Memory for the store's log; the checker applies nothing.
const PENDING_BYTES: usize = 64 << 10;

/// One contradiction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// The metadata store itself is damaged; nothing else could be checked.
    Store {
        /// What it says.
        message: String,
    },
    /// A key or value that means nothing.
    Record {
        /// The key.
        key: Vec<u8>,
    },
    /// A name whose inode does not exist, or is of another kind than the name says.
    Entry {
        /// The directory.
        directory: u64,
        /// The name.
        name: Vec<u8>,
        /// The inode that it should be.
        ino: u64,
    },
    /// Names in something that is no directory.
    Directory {
        /// Its inode number.
        ino: u64,
    },
    /// An inode without a name and without an orphan record, or with both.
    Orphan {
        /// Its number.
        ino: u64,
        /// How many names it has.
        names: u32,
    },
    /// A directory that the root does not lead to.
    Unreachable {
        /// Its number.
        ino: u64,
    },
    /// A number in an inode record that differs from what was counted.
    Inode {
        /// Its number.
        ino: u64,
        /// `links`, `parent`, `blocks`, `extents`, `target` bytes, or `names` of a directory beyond its one.
        field: &'static str,
        /// In the record.
        recorded: u64,
        /// Counted.
        found: u64,
    },
    /// An extent outside the data region, or one that shares blocks with another.
    Extent {
        /// The inode.
        ino: u64,
        /// The first block that is wrong.
        block: u64,
        /// Whose it is too, if it is shared.
        other: Option<u64>,
    },
    /// The bitmap and the extents disagree about some of 1,024 blocks.
    Bitmap {
        /// The first of them.
        block: u64,
        /// Marked, but in no extent.
        leaked: u32,
        /// In an extent, but not marked.
        unmarked: u32,
    },
    /// A counter is wrong.
    Counter {
        /// `free blocks`, `inodes` or `next inode`.
        field: &'static str,
        /// Recorded.
        recorded: u64,
        /// Counted.
        found: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { message } => write!(f, "the metadata store is damaged: {message}"),
            Self::Record { key } => write!(f, "the record with key {key:02x?} means nothing"),
            Self::Entry { directory, name, ino } => {
                let name = String::from_utf8_lossy(name);
                write!(
                    f,
                    "{name:?} in directory {directory} names inode {ino}, which is not there or of another kind"
                )
            }
            Self::Directory { ino } => write!(f, "there are names in inode {ino}, which is no directory"),
            Self::Orphan { ino, names: 0 } => {
                write!(f, "inode {ino} has no name and is not marked as an orphan")
            }
            Self::Orphan { ino, names } => {
                write!(f, "inode {ino} is marked as an orphan and has {names} names")
            }
            Self::Unreachable { ino } => write!(f, "the root does not lead to directory {ino}"),
            Self::Inode { ino, field, recorded, found } => {
                write!(f, "inode {ino} records {recorded} as its {field}; counted: {found}")
            }
            Self::Extent { ino, block, other: None } => {
                write!(f, "inode {ino} has block {block}, which is outside the data region")
            }
            Self::Extent { ino, block, other: Some(other) } => {
                write!(f, "inodes {ino} and {other} share block {block}")
            }
            Self::Bitmap { block, leaked, unmarked } => write!(
                f,
                "of 1024 blocks from {block}, {leaked} are marked and in no file, {unmarked} in a file and not marked"
            ),
            Self::Counter { field, recorded, found } => {
                write!(f, "the counter of {field} says {recorded}; counted: {found}")
            }
        }
    }
}

/// Checks the file system of a device that is not mounted.
///
/// # Errors
/// It is no file system of ours, or the device fails. Damage inside is a finding, not an error.
pub fn fsck(device: &Arc<Device>) -> Result<Vec<Finding>, FsError> {
    let handle = device.handle(Binding::Spread);
    let superblock = read_superblock(device, &handle)?;
    let end = superblock.meta_first + superblock.meta_blocks;
    let region = Region::new(device, handle, superblock.meta_first..end)?;
    let memory = Arc::new(Mapping::anonymous(PENDING_BYTES, Pages::Base)?);
    let pending = PendingMemory { memory, offset: 0, len: PENDING_BYTES };
    let mut check = Check::new(superblock);
    let read = Store::open(Arc::new(region), pending, &nvmed_kv::Options::default()).and_then(|store| {
        store.verify()?;
        store.scan(Bound::Unbounded, Bound::Unbounded, &mut |key, value| check.visit(key, value))
    });
    match read {
        Err(KvError::Medium { .. }) => return Err(read.err().map_or(FsError::NotOurs, FsError::from)),
        Err(damage) => check.find(Finding::Store { message: damage.to_string() }),
        Ok(()) => check.conclude(),
    }
    Ok(check.findings)
}

/// What is kept of an inode.
struct Summary {
    kind: Kind,
    nlink: u32,
    parent: u64,
    size: u64,
    blocks: u64,
    extent_count: u32,
    keyed: bool,
    /// Counted while extents are read.
    blocks_found: u64,
    extents_found: u32,
}

/// What the names say about an inode.
#[derive(Default)]
struct Named {
    names: u32,
    parent: u64,
    subdirectories: u32,
    has_entries: bool,
}

struct Check {
    superblock: Superblock,
    findings: Vec<Finding>,
    inodes: HashMap<u64, Summary>,
    named: HashMap<u64, Named>,
    /// Entries, until their inodes are known: directory, name, inode, kind.
    entries: Vec<(u64, Box<[u8]>, u64, Kind)>,
    extents: Vec<(Extent, u64)>,
    bitmap: BTreeMap<u64, [u8; CHUNK_BYTES]>,
    orphans: HashSet<u64>,
    targets: HashMap<u64, u64>,
    counters: Option<Counters>,
}

impl Check {
    fn new(superblock: Superblock) -> Self {
        Self {
            superblock,
            findings: Vec::new(),
            inodes: HashMap::new(),
            named: HashMap::new(),
            entries: Vec::new(),
            extents: Vec::new(),
            bitmap: BTreeMap::new(),
            orphans: HashSet::new(),
            targets: HashMap::new(),
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
            Subject::Entry { directory, name } => {
                let (ino, kind) = decode_entry(value)?;
                self.entry(directory, name, ino, kind)?;
            }
            Subject::Inode(ino) => self.inode(ino, &Record::decode(value)?),
            Subject::Extent { ino, logical } => {
                let extent = Extent::decode(logical, value)?;
                self.extents.push((extent, ino));
                let summary = self.inodes.get_mut(&ino).filter(|summary| summary.keyed)?;
                summary.blocks_found += u64::from(extent.blocks);
                summary.extents_found += 1;
            }
            Subject::Bitmap(chunk) => drop(self.bitmap.insert(chunk, value.try_into().ok()?)),
            Subject::Orphan(ino) => drop(self.orphans.insert(ino)),
            Subject::Target { ino, .. } => {
                *self.targets.entry(ino).or_default() += value.len() as u64;
            }
            Subject::Counters => self.counters = Some(Counters::decode(value)?),
        }
        Some(())
    }

    fn entry(&mut self, directory: u64, name: &[u8], ino: u64, kind: Kind) -> Option<()> {
        let plain = !name.is_empty() && name.len() <= crate::NAME_BYTES_MAX && name != b"." && name != b"..";
        if !plain || name.contains(&b'/') || name.contains(&0) {
            return None;
        }
        let named = self.named.entry(ino).or_default();
        named.names += 1;
        named.parent = directory;
        let above = self.named.entry(directory).or_default();
        above.has_entries = true;
        above.subdirectories += u32::from(kind == Kind::Directory);
        self.entries.push((directory, name.into(), ino, kind));
        Some(())
    }

    fn inode(&mut self, ino: u64, record: &Record) {
        let inline = record.inline_extents();
        self.extents.extend(inline.iter().map(|extent| (*extent, ino)));
        let summary = Summary {
            kind: record.kind(),
            nlink: record.nlink,
            parent: record.parent,
            size: record.size,
            blocks: record.blocks,
            extent_count: record.extent_count,
            keyed: record.flags & FLAG_KEYED_EXTENTS != 0,
            blocks_found: inline.iter().map(|extent| u64::from(extent.blocks)).sum(),
            extents_found: inline.len() as u32,
        };
        self.inodes.insert(ino, summary);
    }

    /// Everything was read: compares.
    fn conclude(&mut self) {
        self.check_entries();
        self.check_inodes();
        self.check_tree();
        let used = self.check_extents();
        self.check_bitmap(&used);
        self.check_counters(&used);
    }

    fn check_entries(&mut self) {
        for (directory, name, ino, kind) in core::mem::take(&mut self.entries) {
            if self.inodes.get(&ino).is_none_or(|summary| summary.kind != kind) {
                self.find(Finding::Entry { directory, name: name.into_vec(), ino });
            }
        }
        let is_directory =
            |ino: &u64| self.inodes.get(ino).is_some_and(|summary| summary.kind == Kind::Directory);
        let with_entries = self.named.iter().filter(|(_, named)| named.has_entries);
        let wrong: Vec<u64> = with_entries.map(|(ino, _)| *ino).filter(|ino| !is_directory(ino)).collect();
        for ino in wrong {
            self.find(Finding::Directory { ino });
        }
        let is_link = |ino: &u64| self.inodes.get(ino).is_some_and(|summary| summary.kind == Kind::Symlink);
        let stray: Vec<u64> = self.targets.keys().copied().filter(|ino| !is_link(ino)).collect();
        for ino in stray {
            self.find(Finding::Record { key: keys::target(ino, 0).to_vec() });
        }
    }

    fn check_inodes(&mut self) {
        let mut found = Vec::new();
        for (&ino, summary) in &self.inodes {
            let nothing = Named::default();
            let named = self.named.get(&ino).unwrap_or(&nothing);
            let orphan = self.orphans.contains(&ino);
            if ino != ROOT && (named.names == 0) != orphan {
                found.push(Finding::Orphan { ino, names: named.names });
            }
            let is_directory = summary.kind == Kind::Directory;
            let links = if is_directory { 2 + named.subdirectories } else { named.names };
            let parent = match (is_directory, ino) {
                (true, ROOT) => ROOT,
                (true, _) => named.parent,
                (false, _) => 0,
            };
            let is_long_link = summary.kind == Kind::Symlink && summary.size > INLINE_TARGET_BYTES as u64;
            let target =
                if is_long_link { self.targets.get(&ino).copied().unwrap_or(0) } else { summary.size };
            let numbers = [
                ("target", summary.size, target),
                ("links", u64::from(summary.nlink), u64::from(links)),
                ("parent", summary.parent, parent),
                ("blocks", summary.blocks, summary.blocks_found),
                ("extents", u64::from(summary.extent_count), u64::from(summary.extents_found)),
                ("names", u64::from(is_directory && named.names > 1), 0),
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
        let lost: Vec<u64> =
            self.orphans.iter().copied().filter(|ino| !self.inodes.contains_key(ino)).collect();
        for ino in lost {
            self.find(Finding::Orphan { ino, names: 0 });
        }
    }

    /// Whether every directory's parents lead to the root.
    fn check_tree(&mut self) {
        let mut good: HashSet<u64> = HashSet::from([ROOT]);
        let mut lost = Vec::new();
        for (&ino, summary) in self.inodes.iter().filter(|(_, summary)| summary.kind == Kind::Directory) {
            let mut way = vec![ino];
            let mut at = summary.parent;
            // A way longer than there are directories goes round in a circle.
            while !good.contains(&at) && !way.contains(&at) && self.inodes.contains_key(&at) {
                way.push(at);
                at = self.inodes[&at].parent;
            }
            if good.contains(&at) {
                good.extend(way);
            } else if !good.contains(&ino) {
                lost.push(ino);
            }
        }
        if !self.inodes.contains_key(&ROOT) {
            lost.push(ROOT);
        }
        lost.into_iter().for_each(|ino| self.find(Finding::Unreachable { ino }));
    }

    /// The blocks that extents use, by chunk.
    fn check_extents(&mut self) -> BTreeMap<u64, [u64; 16]> {
        let first = self.superblock.data_first;
        let end = first + self.superblock.data_blocks;
        let mut extents = core::mem::take(&mut self.extents);
        extents.sort_unstable_by_key(|(extent, _)| extent.physical);
        let mut used: BTreeMap<u64, [u64; 16]> = BTreeMap::new();
        let mut covered = (first, 0);
        for (extent, ino) in extents {
            if extent.physical < first || extent.physical_end() > end {
                self.find(Finding::Extent { ino, block: extent.physical, other: None });
                continue;
            }
            if extent.physical < covered.0 {
                self.find(Finding::Extent { ino, block: extent.physical, other: Some(covered.1) });
            }
            if extent.physical_end() > covered.0 {
                covered = (extent.physical_end(), ino);
            }
            for block in extent.physical - first..extent.physical_end() - first {
                let bit = (block % CHUNK_BLOCKS) as usize;
                used.entry(block / CHUNK_BLOCKS).or_default()[bit / 64] |= 1 << (bit % 64);
            }
        }
        used
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
                let block = self.superblock.data_first + chunk * CHUNK_BLOCKS;
                self.find(Finding::Bitmap { block, leaked, unmarked });
            }
        }
    }

    fn check_counters(&mut self, used: &BTreeMap<u64, [u64; 16]>) {
        let Some(counters) = self.counters else {
            return self.find(Finding::Record { key: keys::counters().to_vec() });
        };
        let in_use: u64 = used.values().flatten().map(|word| u64::from(word.count_ones())).sum();
        let free = self.superblock.data_blocks.saturating_sub(in_use);
        let inodes = self.inodes.len() as u64;
        let next = self.inodes.keys().copied().max().map_or(ROOT, |ino| ino + 1);
        let numbers = [
            ("free blocks", counters.free_blocks, free),
            ("inodes", counters.inodes, inodes),
            ("next inode", counters.next_ino, next.max(counters.next_ino)),
        ];
        for (field, recorded, found) in numbers.into_iter().filter(|(_, recorded, found)| recorded != found) {
            self.find(Finding::Counter { field, recorded, found });
        }
    }
}
