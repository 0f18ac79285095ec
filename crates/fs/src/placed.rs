//! Where a mount has the bytes of files: the placement that was chosen when it was mounted.
//!
//! Calls ask this; a placement knows of no other. Each call is a match that is inlined, with the code of one placement
//! behind each arm, so that a call on pages costs what it costs without it.

use crate::allocation::Allocation;
use crate::bytes::{Bytes, Data, Placement};
use crate::error::FsError;
use crate::filedata::Stream;
use crate::flight::{DirectIo, Wish};
use crate::in_place::InPlace;
use crate::in_place::location::Location;
use crate::inode::{Inode, InodeTable};
use crate::map::{MappedFile, Mappings};
use crate::mapper::{MapPiece, Mapped, Mapper};
use crate::memory::SizeLeft;
use crate::pages::Pages;
use crate::status::Allocate;
use core::any::Any;
use core::ops::Range;
use nvmed_io::Handle;
use nvmed_nvm::Hint;
use nvmed_sys::QuietFd;
use nvmed_sys::sync::Arc;
use nvmed_units::{ByteOffset, Page};
use std::thread::Thread;

/// The bytes of the files of a mount.
#[expect(clippy::large_enum_variant, reason = "a mount has one, which never moves")]
pub(crate) enum Placed {
    /// In pages of the cache, over blocks of the device.
    Pages(Pages),
    /// Where they stay, in memory that keeps its bytes.
    InPlace(InPlace),
}

/// Asks the placement that there is.
macro_rules! ask {
    ($placed:expr, $placement:ident => $call:expr) => {
        match $placed {
            Placed::Pages($placement) => $call,
            Placed::InPlace($placement) => $call,
        }
    };
}

/// What calls make of byte ranges; see [`Bytes`] and [`Placement`].
impl Placed {
    #[inline]
    pub(crate) fn read_at(
        &self,
        inode: &Arc<Inode>,
        stream: &Stream,
        into: &mut [u8],
        offset: ByteOffset,
    ) -> Result<usize, FsError> {
        ask!(self, placement => placement.read_at(inode, stream, into, offset))
    }

    /// The files' bytes where they stay, if that is where they are.
    #[inline]
    pub(crate) fn in_place(&self) -> Option<&InPlace> {
        match self {
            Self::Pages(_) => None,
            Self::InPlace(place) => Some(place),
        }
    }

    #[inline]
    pub(crate) fn write_at(&self, inode: &Arc<Inode>, from: &[u8], at: ByteOffset) -> Result<usize, FsError> {
        ask!(self, placement => placement.write_at(inode, from, at))
    }

    #[inline]
    pub(crate) fn append(&self, inode: &Arc<Inode>, from: &[u8]) -> Result<(usize, ByteOffset), FsError> {
        ask!(self, placement => placement.append(inode, from))
    }

    pub(crate) fn truncate(&self, inode: &Arc<Inode>, bytes: u64) -> Result<(), FsError> {
        ask!(self, placement => placement.truncate(inode, bytes))
    }

    pub(crate) fn next_of(
        &self,
        inode: &Arc<Inode>,
        at: ByteOffset,
        data: bool,
    ) -> Result<Option<ByteOffset>, FsError> {
        ask!(self, placement => placement.next_of(inode, at, data))
    }

    pub(crate) fn transfer(
        &self,
        file: (&Arc<Inode>, &Arc<dyn Any + Send + Sync>),
        handle: &Handle,
        wish: &Wish,
    ) -> Result<Option<Arc<DirectIo>>, FsError> {
        ask!(self, placement => placement.transfer(file, handle, wish))
    }

    #[inline]
    pub(crate) fn settle(
        &self,
        inode: &Arc<Inode>,
        range: Range<ByteOffset>,
        how: Data,
    ) -> Result<(), FsError> {
        ask!(self, placement => placement.settle(inode, range, how))
    }

    /// Gives pages of a range blocks, or takes them away.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Quota`]; the device's and the store's.
    pub(crate) fn allocate_range(
        &self,
        inode: &Arc<Inode>,
        how: Allocate,
        range: Range<ByteOffset>,
    ) -> Result<(), FsError> {
        ask!(self, placement => placement.allocate_range(inode, how, range))
    }
}

/// For who reads the medium itself.
impl Placed {
    /// Where bytes of a file lie; none where they lie in no memory that another process can map.
    ///
    /// # Errors
    /// As [`InPlace::location`].
    pub(crate) fn location(&self, inode: &Inode, at: ByteOffset) -> Result<Option<Location>, FsError> {
        match self {
            Self::Pages(_) => Ok(None),
            Self::InPlace(place) => place.location(inode, at),
        }
    }
}

/// Mappings; see [`Mappings`].
impl Placed {
    pub(crate) fn map(&self, inode: &Arc<Inode>, write: bool) -> Result<Arc<QuietFd>, FsError> {
        ask!(self, placement => placement.map(inode, write))
    }

    pub(crate) fn unmap(&self, inode: &Arc<Inode>, write: bool) -> Result<(), FsError> {
        match self {
            Self::InPlace(place) if inode.data.in_place.is_any() => place.unmap_in_place(inode, write),
            Self::InPlace(place) => place.unmap(inode, write),
            Self::Pages(pages) => pages.unmap(inode, write),
        }
    }

    /// Maps a range where it lies, if that can be, else as memory of the file.
    ///
    /// # Errors
    /// As [`crate::File::map_range`].
    pub(crate) fn map_range(
        &self,
        inode: &Arc<Inode>,
        write: bool,
        range: Range<ByteOffset>,
    ) -> Result<Mapped, FsError> {
        match self {
            Self::Pages(pages) => pages.map(inode, write).map(|fd| Mapped::Memory(MappedFile { fd })),
            Self::InPlace(place) => place.map_range(inode, write, range),
        }
    }

    /// Tells where a range lies, while nobody changes it.
    ///
    /// # Errors
    /// As [`crate::File::lay_out`].
    pub(crate) fn lay_out(
        &self,
        inode: &Arc<Inode>,
        write: bool,
        range: Range<ByteOffset>,
        tell: &mut dyn FnMut(&MapPiece),
    ) -> Result<(), FsError> {
        match self {
            Self::Pages(_) => Err(FsError::NotSupported),
            Self::InPlace(place) => place.lay_out(inode, write, range, tell),
        }
    }

    /// Who shows files where they lie; the first one counts.
    pub(crate) fn shown_by(&self, mapper: Arc<dyn Mapper>) {
        if let Self::InPlace(place) = self {
            place.shown_by(mapper);
        }
    }

    pub(crate) fn gather_mapped(&self, inode: &Arc<Inode>, range: Range<ByteOffset>) -> Result<(), FsError> {
        ask!(self, placement => placement.gather_mapped(inode, range))
    }

    pub(crate) fn gather_all_mapped(&self, inodes: &InodeTable) -> Result<(), FsError> {
        ask!(self, placement => placement.gather_all_mapped(inodes))
    }
}

/// What waits to be written.
impl Placed {
    /// Makes an inode durable: its data, its record if `times` or the data asks for it, and every change of metadata
    /// before.
    ///
    /// # Errors
    /// What could not be written, which stays to be.
    #[inline]
    pub(crate) fn sync_inode(&self, inode: &Arc<Inode>, times: bool) -> Result<(), FsError> {
        ask!(self, placement => placement.sync_inode(inode, times))
    }

    /// Writes everything back.
    ///
    /// # Errors
    /// The first that occurred; the others were tried.
    pub(crate) fn write_back_all(&self) -> Result<(), FsError> {
        ask!(self, placement => placement.write_back_all())
    }

    /// Writes back what has waited since a time that `due` accepts.
    ///
    /// # Errors
    /// As [`Placed::write_back_all`].
    pub(crate) fn write_back_due(&self, due: &dyn Fn(i64) -> bool) -> Result<(), FsError> {
        ask!(self, placement => placement.write_back_due(due))
    }

    /// Whether nothing of the inode waits to be written.
    pub(crate) fn is_clean(&self, inode: &Inode) -> bool {
        ask!(self, placement => placement.unrecorded.is_clean(inode))
    }

    /// The last description of an inode is being closed.
    pub(crate) fn closing(&self, inode: &Arc<Inode>) {
        ask!(self, placement => placement.unrecorded.closing(inode));
        match self {
            Self::Pages(pages) => pages.meta.closing(inode),
            Self::InPlace(place) => place.closing(inode),
        }
    }

    /// Promises pages of a file ahead.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Quota`]; the host has no room.
    pub(crate) fn promise_ahead(&self, inode: &Inode, pages: u64) -> Result<(), FsError> {
        match self {
            Self::Pages(held) => held.meta.promise_ahead(inode, pages),
            Self::InPlace(place) => place.promise_ahead(inode, pages),
        }
    }

    /// Gives back what was promised ahead and not used.
    pub(crate) fn give_back_ahead(&self, inode: &Inode) {
        match self {
            Self::Pages(held) => held.meta.give_back_ahead(inode),
            Self::InPlace(place) => place.give_back_ahead(inode),
        }
    }

    /// The inode leaves memory: what is held for it goes.
    pub(crate) fn forget(&self, inode: &Arc<Inode>) {
        ask!(self, placement => placement.forget(inode));
    }
}

/// What is said of how files will be used.
impl Placed {
    /// A file was opened to be read.
    #[inline]
    pub(crate) fn opened(&self, inode: &Inode) {
        match self {
            // Each read tells where it is.
            Self::Pages(_) => {}
            Self::InPlace(place) => place.opened(inode),
        }
    }

    /// Whether the medium listens to what is said of files.
    #[inline]
    pub(crate) fn takes_hints(&self) -> bool {
        match self {
            Self::Pages(_) => false,
            Self::InPlace(place) => place.takes_hints(),
        }
    }

    /// A program has said how it will read a file; with pages its description keeps that.
    pub(crate) fn expect(&self, inode: &Inode, hint: Hint) {
        match self {
            Self::Pages(_) => {}
            Self::InPlace(place) => place.advise(inode, ByteOffset::FIRST, ByteOffset::END, hint),
        }
    }
}

/// What only a cache has.
impl Placed {
    /// Pages of the largest readahead window, and of one fill.
    pub(crate) fn window_pages(&self) -> (u64, u64) {
        match self {
            Self::Pages(pages) => pages.window_pages(),
            // Nothing is read ahead: everything is at hand.
            Self::InPlace(_) => (0, 0),
        }
    }

    /// Reads missing pages, as far as one call may; memory begins to bring them, where it has to.
    ///
    /// # Errors
    /// The device's and the store's.
    pub(crate) fn fill_range(&self, inode: &Arc<Inode>, range: Range<Page>) -> Result<(), FsError> {
        match self {
            Self::Pages(pages) => pages.fill_range(inode, range),
            Self::InPlace(place) => {
                place.advise(inode, range.start.start(), range.end.start(), Hint::WillNeed);
                Ok(())
            }
        }
    }

    /// Has the cache, or the buffer before memory, forget the clean pages of a range.
    pub(crate) fn forget_range(&self, inode: &Arc<Inode>, range: Range<Page>) {
        match self {
            Self::Pages(pages) => pages.forget_range(inode, range),
            Self::InPlace(place) => {
                place.advise(inode, range.start.start(), range.end.start(), Hint::DontNeed);
            }
        }
    }

    /// What a direct transfer is aligned to, in bytes.
    pub(crate) fn direct_align(&self) -> u32 {
        match self {
            Self::Pages(pages) => pages.direct_align(),
            Self::InPlace(place) => place.direct_align(),
        }
    }

    /// Counters of the cache.
    pub(crate) fn cache_stats(&self) -> nvmed_cache::Stats {
        match self {
            Self::Pages(pages) => pages.cache().stats(),
            Self::InPlace(_) => nvmed_cache::Stats::default(),
        }
    }

    /// Counters of the buffer before the medium, if it has one.
    pub(crate) fn buffer_stats(&self) -> Option<nvmed_nvm::BufferStats> {
        match self {
            Self::Pages(_) => None,
            Self::InPlace(place) => place.buffer_stats(),
        }
    }

    /// Has `thread` be unparked when [`Placed::make_present`] has something to do.
    pub(crate) fn made_present_by(&self, thread: Thread) {
        match self {
            Self::Pages(pages) => pages.cache().made_present_by(thread),
            Self::InPlace(_) => {}
        }
    }

    /// Makes memory of the cache present that is about to be used, if there is any to be.
    pub(crate) fn make_present(&self) {
        match self {
            Self::Pages(pages) => pages.cache().make_present(),
            Self::InPlace(_) => {}
        }
    }

    /// Has `thread` be unparked when [`Placed::relieve_ahead`] has something to do.
    pub(crate) fn relieved_by(&self, thread: Thread) {
        match self {
            Self::Pages(pages) => pages.relieved_by(thread),
            Self::InPlace(_) => {}
        }
    }

    /// Writes a step back ahead of writers where callers may be urgent; whether there is more to do.
    pub(crate) fn relieve_ahead(&self) -> bool {
        match self {
            Self::Pages(pages) => pages.relieve_ahead(),
            Self::InPlace(_) => false,
        }
    }

    /// Whether readers want to be read ahead of, and nobody does.
    pub(crate) fn wants_read_ahead(&self) -> bool {
        match self {
            Self::Pages(pages) => pages.wants_read_ahead(),
            Self::InPlace(_) => false,
        }
    }

    /// `thread` calls [`Placed::read_ahead`] whenever it is unparked.
    pub(crate) fn read_ahead_by(&self, thread: Thread) {
        match self {
            Self::Pages(pages) => pages.read_ahead_by(thread),
            Self::InPlace(_) => {}
        }
    }

    /// Fills a window that a reader is about to come to; whether there was one.
    pub(crate) fn read_ahead(&self) -> bool {
        match self {
            Self::Pages(pages) => pages.read_ahead(),
            Self::InPlace(_) => false,
        }
    }

    /// The pages, where a test knows that there are.
    #[cfg(test)]
    pub(crate) fn pages(&self) -> &Pages {
        match self {
            Self::Pages(pages) => pages,
            Self::InPlace(_) => panic!("the bytes of files are in place"),
        }
    }
}

/// What a dead process left.
impl Placed {
    /// Whether files are where they stay, so that what no record tells of lies in free blocks.
    pub(crate) fn is_in_place(&self) -> bool {
        matches!(self, Self::InPlace(_))
    }

    /// Makes files as long as a dead process had made them. Nobody has allocated a block yet.
    ///
    /// # Errors
    /// The first that occurred; the others were tried.
    pub(crate) fn restore_sizes<'a>(
        &self,
        left: impl Iterator<Item = (&'a Arc<Inode>, &'a SizeLeft)>,
    ) -> Result<(), FsError> {
        let mut result = Ok(());
        match self {
            Self::Pages(pages) => {
                left.for_each(|(inode, left)| {
                    let restored = pages.truncate(inode, left.size);
                    result = core::mem::replace(&mut result, Ok(())).and(restored);
                });
            }
            Self::InPlace(place) => {
                // All of them before the first batch, which may need blocks for itself.
                let found: Vec<_> =
                    left.map(|(inode, left)| place.find(inode, left)).collect::<Result<_, _>>()?;
                for found in &found {
                    result = result.and(place.restore(found));
                }
            }
        }
        result
    }
}
