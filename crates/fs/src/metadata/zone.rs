//! Zones: which names lie together under which keys, and when a directory gets a zone of its own
//! (decision 5; docs/spec/fs.md, "Zones").
//!
//! A directory's prefix is computed from the names that lead to it, and remembered until names below a
//! directory that is no zone's root are re-keyed: the *epoch*. Who computes one holds the namespace or
//! the open batch, and who re-keys holds both.

use crate::directory::{Directory, Prefix, Size};
use crate::error::FsError;
use crate::inode::Inode;
use crate::metadata::Metadata;
use core::ops::{Bound, ControlFlow};
use core::sync::atomic::Ordering;
use nvmed_layout::keys::{self, PREFIX_BYTES_MAX};
use nvmed_layout::record::Entry;
use nvmed_layout::{Damage, FileType};
use nvmed_sys::sync::{Arc, MutexGuard};

/// The zone bound of a new file system: what the rename of a directory costs at most is then some tens of
/// microseconds, and small directories lie beside the one above them.
pub const ZONE_BOUND: u32 = 64;
/// No bound: for experiments. A directory is made a zone by the length of its path only, and renaming one with
/// more names below it than a batch takes is refused.
pub const ZONE_BOUND_NONE: u32 = u32::MAX;

/// Bytes that a name costs in a batch that re-keys it, beside its key twice: what most records have, and
/// headers.
const REKEYED_BYTES: u64 = 128;
/// Of a batch, the share that the names of one directory may take: a rename may re-key those of two, and
/// records grow.
const REKEY_SHARE: u64 = 3;

/// Names below a directory in its zone, as the store has them.
pub(crate) struct Below {
    /// Keys without the directory's prefix, and values, one after the other.
    bytes: Vec<u8>,
    /// Where each key and each value ends.
    ends: Vec<(usize, usize)>,
    pub(crate) size: Size,
    /// Longest prefix of a directory below, without this directory's.
    pub(crate) longest: usize,
}

impl Below {
    /// Keys, without the prefix, and values.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let starts = core::iter::once(0).chain(self.ends.iter().map(|ends| ends.1));
        starts.zip(&self.ends).map(|(start, ends)| (&self.bytes[start..ends.0], &self.bytes[ends.0..ends.1]))
    }
}

/// What one more name, or several, would make of the zone's directory that is right below its root.
pub(crate) struct Pressure {
    pub(crate) top: Arc<Inode>,
    /// It has to become a zone, or one below it.
    pub(crate) crowded: bool,
    /// Because of how many names there are.
    pub(crate) by_names: bool,
}

impl Metadata {
    /// The prefix of a directory's keys. The caller holds the namespace or the open batch.
    #[inline]
    pub(crate) fn with_prefix<T>(&self, directory: &Inode, look: impl FnOnce(&[u8]) -> T) -> T {
        match directory.directory.as_deref() {
            Some(part) => look(&self.prefix(directory, part).bytes),
            None => look(&keys::zone(directory.ino)),
        }
    }

    fn prefix<'a>(&self, directory: &Inode, part: &'a Directory) -> MutexGuard<'a, Prefix> {
        let epoch = self.rekeyed.load(Ordering::SeqCst);
        let mut prefix = part.prefix();
        if prefix.bytes.is_empty() || prefix.epoch != epoch {
            prefix.bytes.clear();
            match directory.dentry().filter(|_| !part.is_zone()) {
                Some(dentry) => {
                    // A path has a bounded length, and so many steps at most.
                    self.with_prefix(&dentry.parent, |above| prefix.bytes.extend_from_slice(above));
                    keys::push_step(&mut prefix.bytes, &dentry.name);
                }
                None => prefix.bytes.extend_from_slice(&keys::zone(directory.ino)),
            }
            prefix.epoch = epoch;
        }
        prefix
    }

    /// Whether so much below a directory makes it a zone.
    pub(crate) fn is_crowded(&self, size: Size) -> bool {
        let bound = self.superblock.zone_bound;
        if bound == ZONE_BOUND_NONE {
            return false;
        }
        let bytes = u64::from(size.names) * REKEYED_BYTES + 2 * size.bytes;
        size.names > bound || bytes > self.journal.store.batch_bytes_max() as u64 / REKEY_SHARE
    }

    /// Whether a directory of this name must be a zone from its start.
    pub(crate) fn begins_zone(&self, directory: &Inode, name: &[u8]) -> bool {
        self.superblock.zone_bound == 0 || self.prefix_below(directory, name).len() > PREFIX_BYTES_MAX
    }

    /// The prefix that a directory of this name has if it is no zone.
    pub(crate) fn prefix_below(&self, directory: &Inode, name: &[u8]) -> Vec<u8> {
        let mut prefix = self.with_prefix(directory, <[u8]>::to_vec);
        keys::push_step(&mut prefix, name);
        prefix
    }

    /// What a name costs where it is.
    pub(crate) fn size_of_name(&self, directory: &Inode, name: &[u8]) -> Size {
        let bytes = self.with_prefix(directory, <[u8]>::len) + 1 + name.len();
        Size { names: 1, bytes: bytes as u64 }
    }

    /// The directory right below a zone's root that leads to `directory`, or is it; none for the root itself.
    pub(crate) fn top(&self, directory: &Arc<Inode>) -> Option<Arc<Inode>> {
        let is_zone = |inode: &Inode| inode.directory.as_ref().is_some_and(|part| part.is_zone());
        if is_zone(directory) {
            return None;
        }
        let mut top = Arc::clone(directory);
        loop {
            let above = top.parent()?;
            if is_zone(&above) {
                return Some(top);
            }
            top = above;
        }
    }

    /// What becomes of the zone when `more` is added in a directory. The caller holds the namespace's write
    /// lock.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn pressure(&self, directory: &Arc<Inode>, more: Size) -> Result<Option<Pressure>, FsError> {
        let Some(top) = self.top(directory) else { return Ok(None) };
        let part = top.directory()?;
        let known = *part.size();
        let size = match known {
            Some(size) => size,
            None => self.count_below(&top)?,
        };
        let size = size.plus(more);
        let by_names = size.names > self.superblock.zone_bound;
        Ok(Some(Pressure { crowded: self.is_crowded(size), by_names, top }))
    }

    /// A name came to a directory or went from it. The caller holds the namespace's write lock.
    pub(crate) fn count_name(&self, directory: &Arc<Inode>, name: &[u8], came: bool) {
        let Some(top) = self.top(directory) else { return };
        let Ok(part) = top.directory() else { return };
        let one = self.size_of_name(directory, name);
        let mut size = part.size();
        *size = size.map(|size| if came { size.plus(one) } else { size.minus(one) });
    }

    /// Names were moved below a directory, or away: what was counted may be wrong.
    pub(crate) fn recount(&self, directory: &Arc<Inode>) {
        if let Some(Ok(part)) = self.top(directory).as_ref().map(|top| top.directory()) {
            *part.size() = None;
        }
    }

    /// Counts what is below a directory, until it is crowded, and remembers it.
    fn count_below(&self, directory: &Inode) -> Result<Size, FsError> {
        let prefix = self.with_prefix(directory, <[u8]>::to_vec);
        let (from, to) = (keys::entry(&prefix, b""), keys::subtree_end(&prefix));
        let mut size = Size::default();
        let all = self.superblock.zone_bound == ZONE_BOUND_NONE;
        self.journal.store.scan(Bound::Excluded(&from), Bound::Excluded(&to), &mut |key, _| {
            size = size.plus(Size { names: 1, bytes: key.len() as u64 });
            if all || self.is_crowded(size) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        *directory.directory()?.size() = Some(size);
        Ok(size)
    }

    /// Reads the names below the directory with a prefix. The caller holds the open batch.
    ///
    /// # Errors
    /// [`FsError::TooManyNames`] when one batch cannot re-key them all; [`FsError::Layout`]; the store's.
    pub(crate) fn read_below(&self, prefix: &[u8]) -> Result<Below, FsError> {
        let most = self.journal.store.batch_bytes_max() / 2;
        let (from, to) = (keys::entry(prefix, b""), keys::subtree_end(prefix));
        let mut below = Below { bytes: Vec::new(), ends: Vec::new(), size: Size::default(), longest: 0 };
        let (mut bytes, mut damaged) = (0, false);
        self.journal.store.scan(Bound::Excluded(&from), Bound::Excluded(&to), &mut |key, value| {
            let (Some((above, name)), Some(entry)) = (keys::entry_parts(key), Entry::decode(value)) else {
                damaged = true;
                return ControlFlow::Break(());
            };
            if entry.kind == FileType::Directory && !entry.zone {
                let mut inner = above.to_vec();
                keys::push_step(&mut inner, name);
                below.longest = below.longest.max(inner.len() - prefix.len());
            }
            below.bytes.extend_from_slice(&key[prefix.len()..]);
            let key_end = below.bytes.len();
            below.bytes.extend_from_slice(value);
            below.ends.push((key_end, below.bytes.len()));
            below.size = below.size.plus(Size { names: 1, bytes: key.len() as u64 });
            // Twice, in case the new key is as long as one can be; and headers.
            bytes += 2 * key.len() + value.len() + 16;
            if bytes > most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if damaged {
            return Err(Damage::Zone(keys::zone_of(prefix).unwrap_or_default()).into());
        }
        if bytes > most { Err(FsError::TooManyNames) } else { Ok(below) }
    }
}
