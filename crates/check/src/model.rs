//! What the metadata store says, taken apart so that it can be put right, and put together again.

use crate::fsck::{is_name, path_of};
use crate::used::Used;
use nvmed_layout::bitmap::{CHUNK_BLOCKS, CHUNK_BYTES};
use nvmed_layout::keys::{self, PREFIX_BYTES_MAX, Subject, TARGET_PART_BYTES, ZONE_BYTES};
use nvmed_layout::record::{
    Counters, ENTRY_RECORD_BYTES_MAX, Entry, Extent, FLAG_KEYED_EXTENTS, INLINE_EXTENTS, INLINE_TARGET_BYTES,
    Record, Tail,
};
use nvmed_layout::{FileType, ROOT, Superblock};
use nvmed_units::Ino;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A name.
#[derive(Clone)]
pub(crate) struct Name {
    pub(crate) ino: Ino,
    pub(crate) kind: FileType,
    pub(crate) zone: bool,
    /// Its inode's record lay with it.
    pub(crate) held: bool,
}

/// An inode, with all that is known of it.
pub(crate) struct Node {
    pub(crate) record: Record,
    /// Its extents, wherever they were recorded.
    pub(crate) extents: Vec<Extent>,
    keyed: bool,
    /// Its record lies under its number.
    pub(crate) apart: bool,
}

/// Everything that the store holds, by meaning. Memory: about 400 bytes a file.
pub(crate) struct Model {
    pub(crate) superblock: Superblock,
    /// By key.
    pub(crate) names: BTreeMap<Vec<u8>, Name>,
    pub(crate) nodes: HashMap<Ino, Node>,
    pub(crate) orphans: BTreeSet<Ino>,
    pub(crate) targets: HashMap<Ino, BTreeMap<u64, Vec<u8>>>,
    /// Symbolic links whose targets are not whole, and how many bytes are left.
    pub(crate) cut_targets: HashMap<Ino, usize>,
    /// Long extended attributes: by inode and name, their parts.
    pub(crate) xattrs: BTreeMap<(Ino, Vec<u8>), BTreeMap<u8, Vec<u8>>>,
    /// The bitmap as it is.
    pub(crate) bitmap: BTreeMap<u64, [u8; CHUNK_BYTES]>,
    pub(crate) counters: Counters,
    /// The next inode number that nobody has.
    pub(crate) next_ino: Ino,
    keyed: HashMap<Ino, Vec<Extent>>,
    /// Records beyond the first of an inode: its number, the key of the name that held it, the record.
    doubles: Vec<(Ino, Option<Vec<u8>>, Record)>,
    /// What is wrong, and what becomes of it.
    pub(crate) plan: Vec<String>,
}

/// Whether a prefix is one that a directory can have.
fn is_prefix(prefix: &[u8]) -> bool {
    let mut rest = prefix;
    while let Some((above, name)) = keys::pop_step(rest) {
        if !is_name(&name) {
            return false;
        }
        rest = above;
    }
    rest.len() == ZONE_BYTES && rest != [0; ZONE_BYTES] && prefix.len() <= PREFIX_BYTES_MAX
}

/// A name for people.
pub(crate) fn shown(key: &[u8]) -> String {
    let Some((prefix, name)) = keys::entry_parts(key) else { return format!("{key:02x?}") };
    let mut path = path_of(prefix);
    path.push(b'/');
    path.extend_from_slice(name);
    match keys::zone_of(prefix) {
        Some(ROOT) => String::from_utf8_lossy(&path).trim_start_matches('/').to_owned(),
        zone => format!("<{}>{}", zone.map_or(0, |zone| zone.0), String::from_utf8_lossy(&path)),
    }
}

impl Node {
    pub(crate) fn new(record: Record, apart: bool) -> Self {
        let extents = record.inline_extents().to_vec();
        Self { keyed: record.flags & FLAG_KEYED_EXTENTS != 0, extents, record, apart }
    }

    pub(crate) fn kind(&self) -> FileType {
        self.record.kind()
    }
}

impl Model {
    pub(crate) fn new(superblock: Superblock) -> Self {
        Self {
            superblock,
            names: BTreeMap::new(),
            nodes: HashMap::new(),
            orphans: BTreeSet::new(),
            targets: HashMap::new(),
            cut_targets: HashMap::new(),
            xattrs: BTreeMap::new(),
            bitmap: BTreeMap::new(),
            counters: Counters::default(),
            next_ino: ROOT.next(),
            keyed: HashMap::new(),
            doubles: Vec::new(),
            plan: Vec::new(),
        }
    }

    pub(crate) fn say(&mut self, text: impl Into<String>) {
        self.plan.push(text.into());
    }

    pub(crate) fn fresh_ino(&mut self) -> Ino {
        let ino = self.next_ino;
        self.next_ino = ino.next();
        ino
    }

    /// Takes a record of the store up.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) {
        if self.keep(key, value).is_none() {
            let what = match keys::subject(key) {
                Some(Subject::Entry { .. }) => format!("the entry of {:?}", shown(key)),
                Some(Subject::Inode(ino)) => format!("the record of inode {ino}"),
                Some(Subject::Extent { ino, logical }) => {
                    format!("the extent of inode {ino} at page {logical}")
                }
                Some(Subject::Bitmap(chunk)) => format!("part {chunk} of the bitmap"),
                Some(Subject::Counters) => "the counters' record".to_owned(),
                _ => format!("the record with key {key:02x?}"),
            };
            self.say(format!("{what} means nothing: it is removed"));
        }
    }

    fn keep(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match keys::subject(key)? {
            Subject::Entry { prefix, name } => {
                let entry = Entry::decode(value).filter(|_| is_name(name) && is_prefix(prefix))?;
                let held = entry.record.is_some();
                if let Some(bytes) = entry.record {
                    let record = Record::decode(bytes).filter(|record| record.kind() == entry.kind)?;
                    self.take(entry.ino, record, Some(key));
                }
                let Entry { ino, kind, zone, .. } = entry;
                self.names.insert(key.to_vec(), Name { ino, kind, zone, held });
            }
            Subject::Inode(ino) => {
                let record = Record::decode(value).filter(|_| (ROOT..keys::INO_END).contains(&ino))?;
                self.take(ino, record, None);
            }
            Subject::Extent { ino, logical } => {
                self.keyed.entry(ino).or_default().push(Extent::decode(logical, value)?);
            }
            Subject::Bitmap(chunk) => drop(self.bitmap.insert(chunk, value.try_into().ok()?)),
            Subject::Orphan(ino) => drop(self.orphans.insert(ino)),
            Subject::Target { ino, part } => {
                self.targets.entry(ino).or_default().insert(part, value.to_vec());
            }
            Subject::Xattr { ino, name, part } => {
                self.xattrs.entry((ino, name.to_vec())).or_default().insert(part, value.to_vec());
            }
            Subject::Counters => self.counters = Counters::decode(value)?,
        }
        Some(())
    }

    fn take(&mut self, ino: Ino, record: Record, name: Option<&[u8]>) {
        self.next_ino = self.next_ino.max(ino.next());
        let node = Node::new(record, name.is_none());
        if let Some(first) = self.nodes.insert(ino, node) {
            // The first stays for now.
            let second = self.nodes.insert(ino, first).map(|node| node.record);
            self.doubles.extend(second.map(|record| (ino, name.map(<[u8]>::to_vec), record)));
        }
    }

    /// Everything was loaded: gives extents to their inodes, and second records numbers of their own.
    pub(crate) fn join(&mut self) {
        if self.counters.next_ino < keys::INO_END {
            self.next_ino = self.next_ino.max(self.counters.next_ino);
        }
        for (ino, name, record) in core::mem::take(&mut self.doubles) {
            self.part(ino, name, record);
        }
        for (ino, extents) in core::mem::take(&mut self.keyed) {
            match self.nodes.get_mut(&ino).filter(|node| node.keyed) {
                Some(node) => node.extents = extents,
                None => {
                    let count = extents.len();
                    self.say(format!(
                        "{count} extents of inode {ino}, which has none in records: they are removed"
                    ));
                }
            }
        }
    }

    /// Gives one of two inodes with the same number another: the one of which no other record tells by its number.
    fn part(&mut self, ino: Ino, name: Option<Vec<u8>>, record: Record) {
        let Some(first) = self.nodes.get(&ino) else { return };
        if first.record == record {
            self.say(format!("inode {ino} has its record twice: one is removed"));
            return;
        }
        let fresh = self.fresh_ino();
        self.say(format!("two inodes have the number {ino}: one becomes {fresh}"));
        let second = Node::new(record, name.is_none());
        let first_named =
            self.names.iter().find(|(key, held)| held.held && held.ino == ino && Some(*key) != name.as_ref());
        let first_named = first_named.map(|(key, _)| key.clone());
        let Some(first) = self.nodes.remove(&ino) else { return };
        let (kept, mut moved, key) = if self.needs_number(ino, &second) > self.needs_number(ino, &first) {
            (second, first, first_named)
        } else {
            (first, second, name)
        };
        if core::mem::take(&mut moved.keyed) {
            self.say(format!("inode {fresh} LOSES its blocks: their records tell of {ino}"));
            moved.record.flags &= !FLAG_KEYED_EXTENTS;
        }
        self.nodes.insert(ino, kept);
        self.nodes.insert(fresh, moved);
        if let Some(held) = key.and_then(|key| self.names.get_mut(&key)) {
            held.ino = fresh;
        }
    }

    /// How much else tells of an inode by its number.
    fn needs_number(&self, ino: Ino, node: &Node) -> u32 {
        let extents = self.keyed.get(&ino).map_or(0, Vec::len);
        let long_link = node.kind() == FileType::Symlink && node.record.size > INLINE_TARGET_BYTES as u64;
        let matches = node.keyed && extents == node.record.extent_count as usize;
        let named = self.names.values().any(|name| !name.held && name.ino == ino && name.kind == node.kind());
        let zone = keys::zone(ino).to_vec();
        let inside = self.names.range(zone.clone()..).next().is_some_and(|(key, _)| key.starts_with(&zone));
        let leads_on = node.kind() == FileType::Directory && inside;
        2 * u32::from(named && node.apart)
            + u32::from(node.keyed || long_link)
            + u32::from(matches)
            + u32::from(leads_on)
    }

    /// Names of each inode.
    pub(crate) fn counts(&self) -> HashMap<Ino, u32> {
        let mut counts = HashMap::new();
        for name in self.names.values() {
            *counts.entry(name.ino).or_default() += 1;
        }
        counts
    }

    /// The target of a link that lies in records of its own.
    pub(crate) fn long_target(&self, ino: Ino) -> Vec<u8> {
        let parts = self.targets.get(&ino);
        parts.into_iter().flat_map(|parts| parts.values().flatten()).copied().collect()
    }

    /// The number of each directory, by the prefix of what is in it.
    pub(crate) fn directories(&self) -> HashMap<Vec<u8>, Ino> {
        let mut found = HashMap::from([(keys::zone(ROOT).to_vec(), ROOT)]);
        for (key, name) in self.names.iter().filter(|(_, name)| name.kind == FileType::Directory) {
            found.insert(own_prefix(key, name), name.ino);
        }
        found
    }

    /// Sets link counts.
    pub(crate) fn count_links(&mut self) {
        let mut links = self.counts();
        let directories = self.directories();
        let is_directory = |node: &Node| node.kind() == FileType::Directory;
        for (ino, _) in self.nodes.iter().filter(|(_, node)| is_directory(node)) {
            links.insert(*ino, 2);
        }
        for (key, _) in self.names.iter().filter(|(_, name)| name.kind == FileType::Directory) {
            let above = keys::entry_parts(key).and_then(|(prefix, _)| directories.get(prefix));
            *above.and_then(|ino| links.get_mut(ino)).unwrap_or(&mut 0) += 1;
        }
        for (ino, node) in &mut self.nodes {
            let counted = links.get(ino).copied().unwrap_or(0);
            if node.record.nlink != counted {
                self.plan
                    .push(format!("inode {ino} records {} links: {counted} are counted", node.record.nlink));
                node.record.nlink = counted;
            }
        }
    }

    /// Everything as the store is to hold it; `used` are the data blocks in use.
    pub(crate) fn encode(&self, used: &Used) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let counts = self.counts();
        let mut all = BTreeMap::new();
        let mut inline: HashMap<Ino, Vec<u8>> = HashMap::new();
        for (&ino, node) in &self.nodes {
            let value = self.encode_node(ino, node, &mut all);
            let alone = counts.get(&ino) == Some(&1) && ino != ROOT && !node.apart;
            if alone && value.len() <= ENTRY_RECORD_BYTES_MAX {
                inline.insert(ino, value);
            } else {
                all.insert(keys::inode(ino).to_vec(), value);
            }
        }
        for (key, name) in &self.names {
            let mut value = Vec::new();
            let record = inline.get(&name.ino).map(Vec::as_slice);
            Entry { ino: name.ino, kind: name.kind, zone: name.zone, record }.encode_to(&mut value);
            all.insert(key.clone(), value);
        }
        for ((ino, name), parts) in &self.xattrs {
            let parts =
                parts.iter().map(|(part, bytes)| (keys::xattr(*ino, name, *part).to_vec(), bytes.clone()));
            all.extend(parts);
        }
        for &ino in &self.orphans {
            all.insert(keys::orphan(ino).to_vec(), vec![0]);
        }
        let mut in_use = 0;
        for (&chunk, words) in &used.chunks {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            in_use += words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
            all.insert(keys::bitmap(chunk).to_vec(), bytes);
        }
        for &chunk in self.bitmap.keys().filter(|chunk| !used.chunks.contains_key(chunk)) {
            // A part that is all free may be there or not; where it is, it stays.
            let inside = chunk < self.superblock.data_blocks.div_ceil(CHUNK_BLOCKS);
            inside.then(|| all.insert(keys::bitmap(chunk).to_vec(), vec![0; CHUNK_BYTES]));
        }
        let counters = Counters {
            free_blocks: self.superblock.data_blocks.saturating_sub(in_use),
            inodes: self.nodes.len() as u64,
            next_ino: self.next_ino,
            ..self.counters
        };
        all.insert(keys::counters().to_vec(), counters.encode().to_vec());
        all
    }

    fn encode_node(&self, ino: Ino, node: &Node, all: &mut BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<u8> {
        let mut record = node.record.clone();
        if record.kind() == FileType::File && !matches!(record.tail, Tail::Data(_)) {
            record.extent_count =
                u32::try_from(node.extents.len()).expect("fewer extents than 2^32 fit memory");
            record.blocks = node.extents.iter().map(|extent| u64::from(extent.blocks)).sum();
            record.tail = Tail::EMPTY;
            record.flags &= !FLAG_KEYED_EXTENTS;
            if node.keyed || node.extents.len() > INLINE_EXTENTS {
                record.flags |= FLAG_KEYED_EXTENTS;
                for extent in &node.extents {
                    all.insert(keys::extent(ino, extent.logical).to_vec(), extent.encode().to_vec());
                }
            } else {
                let mut extents = [Extent::default(); INLINE_EXTENTS];
                extents[..node.extents.len()].copy_from_slice(&node.extents);
                record.tail = Tail::Extents(extents);
            }
        }
        if record.kind() == FileType::Symlink && record.size > INLINE_TARGET_BYTES as u64 {
            for (part, bytes) in self.long_target(ino).chunks(TARGET_PART_BYTES).enumerate() {
                all.insert(keys::target(ino, part as u64).to_vec(), bytes.to_vec());
            }
        }
        record.encode()
    }
}

/// The prefix of what is in a directory with this name.
pub(crate) fn own_prefix(key: &[u8], name: &Name) -> Vec<u8> {
    match keys::entry_parts(key) {
        Some((prefix, step)) if !name.zone => {
            let mut own = prefix.to_vec();
            keys::push_step(&mut own, step);
            own
        }
        _ => keys::zone(name.ino).to_vec(),
    }
}
