//! The data of files that a repair puts right: which of their blocks the device gives, and which of them can be copied
//! out whole.

use crate::blocks::BlockCopy;
use crate::fsck::path_of;
use crate::model::{Model, Node};
use nvmed_kv::DeviceMedium;
use nvmed_layout::keys::{self, Subject, ZONE_BYTES};
use nvmed_layout::record::EXTENT_UNWRITTEN;
use nvmed_layout::{LayoutError, ROOT, region};
use nvmed_units::{BLOCK_BYTES, Block, Ino, Page};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Blocks that are read with one request; where one of them fails, each is read by itself.
const READ_BLOCKS: u64 = 32;

/// The device's data blocks, as they can be read.
pub(crate) struct Data<'a> {
    whole: &'a DeviceMedium,
    /// Blocks that were to be copied, and that the device does not give.
    refused: BTreeSet<Block>,
    buffer: Vec<u8>,
}

/// What is wrong with a file.
struct Unreadable {
    blocks: u64,
    of: u64,
    /// A page of the file.
    first: Page,
    error: LayoutError,
}

impl<'a> Data<'a> {
    pub(crate) fn new(whole: &'a DeviceMedium) -> Self {
        Self { whole, refused: BTreeSet::new(), buffer: vec![0; READ_BLOCKS as usize * BLOCK_BYTES] }
    }

    /// Whether the device gives a block that is to be copied.
    pub(crate) fn gives(&mut self, block: Block) -> bool {
        let given = self.read(block, 1).is_ok();
        if !given {
            self.refused.insert(block);
        }
        given
    }

    fn read(&mut self, block: Block, blocks: u64) -> Result<(), LayoutError> {
        region::fetch(self.whole, block, &mut self.buffer[..blocks as usize * BLOCK_BYTES])
    }

    /// Of the files to which the keys of changed records belong, and of those that a copy was to be made of, the ones
    /// that cannot be read whole: a line each. What is yet to be copied was read before.
    pub(crate) fn unreadable<'k>(
        &mut self,
        model: &Model,
        changed: impl Iterator<Item = &'k [u8]>,
        copies: &[BlockCopy],
    ) -> Vec<String> {
        let fresh: BTreeSet<Block> = copies.iter().map(|copy| copy.to).collect();
        let mut inos: BTreeSet<Ino> = changed.filter_map(|key| owner(model, key)).collect();
        let shares = |node: &Node| {
            let mut extents = node.extents.iter();
            extents.any(|extent| self.refused.range(extent.physical_blocks()).next().is_some())
        };
        if !self.refused.is_empty() {
            inos.extend(model.nodes.iter().filter(|(_, node)| shares(node)).map(|(ino, _)| *ino));
        }
        let found = inos.into_iter().filter_map(|ino| {
            let wrong = self.look(model.nodes.get(&ino)?, &fresh)?;
            Some((ino, wrong))
        });
        let found: BTreeMap<Ino, Unreadable> = found.collect();
        if found.is_empty() {
            return Vec::new();
        }
        let names = Names::of(model, &found);
        found.iter().map(|(ino, wrong)| names.tell(*ino, wrong)).collect()
    }

    /// Reads all that was written of a file.
    fn look(&mut self, node: &Node, fresh: &BTreeSet<Block>) -> Option<Unreadable> {
        let mut wrong: Option<Unreadable> = None;
        let written = node.extents.iter().filter(|extent| extent.flags & EXTENT_UNWRITTEN == 0);
        for extent in written {
            let mut at = 0;
            let blocks = u64::from(extent.blocks);
            while at < blocks {
                let count = READ_BLOCKS.min(blocks - at);
                let first = extent.physical + at;
                if fresh.range(first..first + count).next().is_some() || self.read(first, count).is_err() {
                    for one in (0..count).filter(|one| !fresh.contains(&(first + *one))) {
                        let Err(error) = self.read(first + one, 1) else { continue };
                        let page = extent.logical + at + one;
                        let all = wrong.get_or_insert(Unreadable { blocks: 0, of: 0, first: page, error });
                        all.blocks += 1;
                    }
                }
                at += count;
            }
        }
        if let Some(wrong) = &mut wrong {
            wrong.of = node.extents.iter().map(|extent| u64::from(extent.blocks)).sum();
        }
        wrong
    }
}

/// The inode that a record is about.
fn owner(model: &Model, key: &[u8]) -> Option<Ino> {
    match keys::subject(key)? {
        Subject::Entry { .. } => model.names.get(key).map(|name| name.ino),
        Subject::Inode(ino) | Subject::Extent { ino, .. } => Some(ino),
        _ => None,
    }
}

/// Where files are.
struct Names<'a> {
    /// A key of each.
    files: HashMap<Ino, &'a [u8]>,
    zones: HashMap<Ino, &'a [u8]>,
}

impl<'a> Names<'a> {
    fn of(model: &'a Model, wanted: &BTreeMap<Ino, Unreadable>) -> Self {
        let names = || model.names.iter().map(|(key, name)| (key.as_slice(), name));
        let files = names().filter(|(_, name)| wanted.contains_key(&name.ino));
        let zones = names().filter(|(_, name)| name.zone);
        Self {
            files: files.map(|(key, name)| (name.ino, key)).collect(),
            zones: zones.map(|(key, name)| (name.ino, key)).collect(),
        }
    }

    fn tell(&self, ino: Ino, wrong: &Unreadable) -> String {
        let name = match self.path(ino) {
            Some(path) => format!("{:?} (inode {ino})", String::from_utf8_lossy(&path)),
            None => format!("inode {ino}, which has no name,"),
        };
        let Unreadable { blocks, of, first, error } = wrong;
        let offset = first.start();
        format!(
            "{name} cannot be copied out whole: the device does not give {blocks} of its {of} blocks, \
             the first at byte {offset}: {error}"
        )
    }

    /// The path of a file, from the root.
    fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        let mut key = *self.files.get(&ino)?;
        let mut parts = Vec::new();
        // A zone for each step at most; more would be a circle.
        for _ in 0..=self.zones.len() {
            let (prefix, name) = keys::entry_parts(key)?;
            parts.push(name.to_vec());
            if prefix.len() > ZONE_BYTES {
                parts.push(path_of(prefix));
            }
            let zone = keys::zone_of(prefix).filter(|zone| *zone != ROOT);
            let Some(zone) = zone else { break };
            key = *self.zones.get(&zone)?;
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }
}
