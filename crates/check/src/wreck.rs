//! What can still be read of a file system whose metadata store is damaged: files are found by the records before the
//! first damaged block and after the last one, and their bytes by their extents. Nothing is changed.

use crate::fsck::open_wreck;
use crate::model::{Model, Name, own_prefix};
use core::ops::{Bound, ControlFlow};
use nvmed_io::{Binding, Device};
use nvmed_kv::DeviceMedium;
use nvmed_layout::record::{EXTENT_UNWRITTEN, Extent, Tail};
use nvmed_layout::{FileType, LayoutError, ROOT, keys, region};
use nvmed_sys::host_clock;
use nvmed_units::{BLOCK_BYTES, Block, ByteOffset, Ino, Page};
use std::collections::btree_map::Range;
use std::sync::Arc;

/// A file system that cannot be mounted, or not be trusted, as far as it can be read.
pub struct Wreck {
    model: Model,
    whole: DeviceMedium,
    damage: Option<String>,
}

/// Something in a wreck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescued {
    /// Its name.
    pub name: Vec<u8>,
    /// How many directories lie between it and the root. It lies in the last one before it in the list that is one less
    /// deep.
    pub depth: usize,
    /// What it is.
    pub kind: FileType,
    /// Permissions.
    pub mode: u32,
    /// Bytes of a file.
    pub size: u64,
    /// Of a symbolic link; none when not all of it is left.
    pub target: Option<Vec<u8>>,
    ino: Ino,
}

impl core::fmt::Debug for Wreck {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Wreck").field("damage", &self.damage).finish_non_exhaustive()
    }
}

impl Wreck {
    /// Reads what can be read of the metadata of a device that is not mounted.
    ///
    /// # Errors
    /// It is no file system of ours, the device fails, or the metadata store cannot even be opened.
    pub fn open(device: &Arc<Device>) -> Result<Self, LayoutError> {
        let (opened, log_damage) = open_wreck(device)?;
        let mut model = Model::new(opened.superblock.clone());
        let mut last: Option<Vec<u8>> = None;
        let mut load = |key: &[u8], value: &[u8]| {
            model.load(key, value);
            last = Some(key.to_vec());
            ControlFlow::Continue(())
        };
        let scanned = opened.store.scan(Bound::Unbounded, Bound::Unbounded, &mut load);
        let damage = scanned.err().map(|error| error.to_string());
        if damage.is_some() {
            let mut from_the_end = |key: &[u8], value: &[u8]| {
                if last.as_deref().is_some_and(|last| key <= last) {
                    return ControlFlow::Break(());
                }
                model.load(key, value);
                ControlFlow::Continue(())
            };
            // It ends at the last damaged block, as the other one did at the first.
            let _ = opened.store.scan_reverse(Bound::Unbounded, Bound::Unbounded, &mut from_the_end);
        }
        let damage = log_damage.map(|error| error.to_string()).or(damage);
        model.join();
        model.fix_names(host_clock());
        model.trim_all();
        let whole = DeviceMedium::new(
            device,
            device.handle(Binding::Spread),
            Block(0)..Block(opened.superblock.blocks),
        )?;
        Ok(Self { model, whole, damage })
    }

    /// The damaged block at which reading ended, if there is one.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// Everything that was found, each directory followed by what is in it. What nothing leads to is in `lost+found`.
    pub fn entries(&self) -> impl Iterator<Item = Rescued> + '_ {
        // Paths are left to whoever makes them: those of a deep tree are longer than the tree.
        let mut open = vec![self.names_in(&keys::zone(ROOT))];
        core::iter::from_fn(move || {
            loop {
                let depth = open.len().checked_sub(1)?;
                let Some((key, name)) = open[depth].next() else {
                    open.pop();
                    continue;
                };
                let Some(rescued) = self.rescued(key, name, depth) else { continue };
                if name.kind == FileType::Directory {
                    open.push(self.names_in(&own_prefix(key, name)));
                }
                return Some(rescued);
            }
        })
    }

    fn names_in(&self, prefix: &[u8]) -> Range<'_, Vec<u8>, Name> {
        self.model.names.range(keys::entry(prefix, b"").to_vec()..keys::entries_end(prefix).to_vec())
    }

    fn rescued(&self, key: &[u8], name: &Name, depth: usize) -> Option<Rescued> {
        let (_, step) = keys::entry_parts(key)?;
        let node = self.model.nodes.get(&name.ino)?;
        let target = match &node.record.tail {
            _ if self.model.cut_targets.contains_key(&name.ino) => None,
            Tail::Target(target) if !target.is_empty() => Some(target.to_vec()),
            Tail::Target(_) => Some(self.model.long_target(name.ino)),
            _ => None,
        };
        let (mode, size) = (node.record.mode & 0o7777, node.record.size);
        Some(Rescued { name: step.to_vec(), depth, kind: name.kind, mode, size, target, ino: name.ino })
    }

    /// Reads a page of a file; what is a hole, or was never written, is zero.
    ///
    /// # Errors
    /// The device's.
    pub fn read_page(
        &self,
        of: &Rescued,
        page: Page,
        into: &mut [u8; BLOCK_BYTES],
    ) -> Result<(), LayoutError> {
        into.fill(0);
        let Some(node) = self.model.nodes.get(&of.ino) else { return Ok(()) };
        if let Tail::Data(bytes) = &node.record.tail {
            let bytes = if page == Page::FIRST { &bytes[..bytes.len().min(BLOCK_BYTES)] } else { &[] };
            into[..bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        let extent = node.extents.iter().find(|extent| extent.pages().contains(&page));
        match extent.filter(|extent| extent.flags & EXTENT_UNWRITTEN == 0) {
            Some(extent) => region::fetch(&self.whole, extent.physical + (page - extent.logical), into),
            None => Ok(()),
        }
    }

    /// The pages of a file that may hold something else than zeroes.
    #[must_use]
    pub fn pages(&self, of: &Rescued) -> Vec<Page> {
        let Some(node) = self.model.nodes.get(&of.ino) else { return Vec::new() };
        let end = ByteOffset(of.size).page_end();
        if matches!(node.record.tail, Tail::Data(_)) {
            return Page::each(Page::FIRST..end.min(Page(1))).collect();
        }
        let of_extent = |extent: &Extent| Page::each(extent.logical..extent.logical_end().min(end));
        let pages = node.extents.iter().flat_map(of_extent);
        pages.collect()
    }
}
