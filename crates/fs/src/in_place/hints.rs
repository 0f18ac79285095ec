//! What a mount says about files to a medium that has a buffer: where they lie, and what programs say of them. All of
//! it is hints, so nothing here fails: what cannot be read now is told to who reads it.

use crate::in_place::{InPlace, place};
use crate::inode::Inode;
use core::sync::atomic::Ordering;
use nvmed_layout::FileType;
use nvmed_layout::record::EXTENT_UNWRITTEN;
use nvmed_nvm::{BufferStats, Extent, Hint, HintError};
use nvmed_units::{BLOCK_BYTES, ByteOffset};

/// Of its size, by how much a file grows before a medium is told again where it lies: all tellings together list few
/// times the extents that it has at the end.
const GROWTH_SHARE: u64 = 8;
/// The least of that, in bytes: what comes ahead of a reader at least.
const GROWTH_BYTES_MIN: u64 = 64 << 10;

impl InPlace {
    /// Whether the medium has a buffer that listens.
    #[inline]
    pub(crate) fn takes_hints(&self) -> bool {
        self.takes_hints
    }

    /// A file was opened to be read: the medium is told where it lies, so that what follows a read comes ahead.
    #[inline]
    pub(crate) fn opened(&self, inode: &Inode) {
        if self.takes_hints {
            self.tell_extents(inode);
        }
    }

    /// A file that the medium was told of has grown: it is told again, now and then.
    #[inline]
    pub(super) fn has_grown(&self, inode: &Inode, end: ByteOffset) {
        if self.takes_hints {
            let known = inode.data.known_end.load(Ordering::Relaxed);
            let due = known.saturating_add((known / GROWTH_SHARE).max(GROWTH_BYTES_MIN));
            if end.0 >= due {
                self.tell_extents(inode);
            }
        }
    }

    /// A program has said how bytes of a file will be used.
    pub(crate) fn advise(&self, inode: &Inode, from: ByteOffset, to: ByteOffset, hint: Hint) {
        if !self.takes_hints || from >= to {
            return;
        }
        let known = inode.data.known_end.load(Ordering::Relaxed);
        if known < to.0.min(inode.end().0) {
            self.tell_extents(inode);
        }
        let say = || self.medium.advise_object(inode.ino.0, from.0, from.until(to), hint);
        if matches!(say(), Err(HintError::Unknown { .. })) {
            self.tell_extents(inode);
            let _ = say();
        }
    }

    /// What the medium's buffer has done, if it has one.
    pub(crate) fn buffer_stats(&self) -> Option<BufferStats> {
        self.medium.buffer_stats()
    }

    /// What the medium knows of a file counts no more: its blocks are not where they were, or nobody asks for it.
    #[inline]
    pub(super) fn forget_extents(&self, inode: &Inode) {
        if self.takes_hints {
            self.medium.forget_object(inode.ino.0);
            // Who grows it from here tells of it, if anybody has.
            let known = &inode.data.known_end;
            if known.load(Ordering::Relaxed) != u64::MAX {
                known.store(inode.end().0, Ordering::Relaxed);
            }
        }
    }

    #[cold]
    fn tell_extents(&self, inode: &Inode) {
        let end = inode.end();
        inode.data.known_end.store(end.0, Ordering::Relaxed);
        let is_in_blocks = inode.kind == FileType::File && !inode.data.residence.is_in_record();
        if !is_in_blocks || self.load(inode).is_err() {
            return;
        }
        let end = end.page_end().start();
        let extents: Vec<Extent> = {
            let held = inode.data.extents.read();
            let recorded = held.recorded.iter().flat_map(|extents| extents.iter());
            let all = recorded.chain(held.fresh.iter().map(|fresh| &fresh.extent));
            let written = all.filter(|extent| extent.flags & EXTENT_UNWRITTEN == 0);
            // Blocks past the end are allocated for later.
            let before_end = written.take_while(|extent| extent.logical.start() < end);
            let on_medium = before_end.map(|extent| {
                let position = extent.logical.start();
                let bytes = (u64::from(extent.blocks) * BLOCK_BYTES as u64).min(position.until(end));
                Extent { position: position.0, at: place(extent.physical, 0), bytes }
            });
            on_medium.collect()
        };
        let _ = self.medium.object(inode.ino.0, &extents);
    }
}
