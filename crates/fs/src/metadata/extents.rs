//! The extents of a file in the store: read from its record or from records of their own, and logged into a change.

use crate::error::FsError;
use crate::extent::Extents;
use crate::metadata::Metadata;
use crate::metadata::change::Change;
use core::ops::{Bound, ControlFlow};
use nvmed_layout::Damage;
use nvmed_layout::keys::{self, Subject};
use nvmed_layout::record::{Extent, FLAG_KEYED_EXTENTS, INLINE_EXTENTS, Record, Tail};
use nvmed_units::{Block, Ino, Page};

impl Metadata {
    /// Reads the extents of an inode.
    ///
    /// # Errors
    /// [`FsError::Layout`] when they overlap or lie outside the data region; the store's.
    pub(crate) fn load_extents(&self, ino: Ino, record: &Record) -> Result<Extents, FsError> {
        let mut all = Extents::default();
        let mut sane = true;
        let (first, blocks) = (Block(self.superblock.data_first), self.superblock.data_blocks);
        let mut add = |extent: Extent| {
            let is_inside = extent.physical >= first && extent.physical_end() <= first + blocks;
            sane &= all.push(extent) && is_inside;
        };
        if record.flags & FLAG_KEYED_EXTENTS == 0 {
            record.inline_extents().iter().copied().for_each(&mut add);
        } else {
            let (from, to) = (keys::extent(ino, Page::FIRST), keys::extent(ino, Page::END));
            self.journal.store.scan(Bound::Included(&from), Bound::Included(&to), &mut |key, value| {
                if let Some(Subject::Extent { logical, .. }) = keys::subject(key) {
                    Extent::decode(logical, value).into_iter().for_each(&mut add);
                }
                ControlFlow::Continue(())
            })?;
        }
        if sane { Ok(all) } else { Err(Damage::Extents(ino).into()) }
    }
}

impl Change<'_> {
    /// Puts what has changed in the extents of an inode into the change, and into the inode's record of it.
    pub(crate) fn put_extents(&mut self, extents: &mut Extents, ino: Ino, record: &mut Record) {
        record.extent_count = u32::try_from(extents.len()).expect("fewer extents than 2^32 fit memory");
        record.blocks = extents.blocks();
        if record.flags & FLAG_KEYED_EXTENTS != 0 {
            extents.touched(|logical, extent| match extent {
                Some(extent) => self.put_extent(ino, extent),
                None => self.delete_extent(ino, logical),
            });
            if extents.len() == 0 {
                record.flags &= !FLAG_KEYED_EXTENTS;
            }
        } else if extents.len() == 0 && record.inline_data().is_some() {
            // The record holds the file's bytes itself.
        } else if extents.len() <= INLINE_EXTENTS {
            let mut inline = [Extent::default(); INLINE_EXTENTS];
            match extents.few() {
                Some(few) => inline[..few.len()].copy_from_slice(few),
                None => inline.iter_mut().zip(extents.iter()).for_each(|(place, extent)| *place = *extent),
            }
            record.tail = Tail::Extents(inline);
        } else {
            record.flags |= FLAG_KEYED_EXTENTS;
            record.tail = Tail::EMPTY;
            extents.iter().for_each(|extent| self.put_extent(ino, extent));
        }
        extents.logged();
    }
}
