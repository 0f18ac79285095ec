//! The bytes of files, whatever holds them: what read, write, truncate and a mapping make of byte ranges over a
//! [`Placement`], which knows where the bytes are (docs/spec/rooms-of-fs.md, "The seam of the data path").
//!
//! A placement answers how far it came by copying, and each call says who completes the rest. Nothing here knows pages,
//! blocks or devices.

use crate::error::FsError;
use crate::filedata::{Growing, Stream};
use crate::flight::{DirectIo, Wish};
use crate::inode::Inode;
use crate::map::Mappings;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use nvmed_io::Handle;
use nvmed_sys::sync::Arc;
use nvmed_units::ByteOffset;

/// Why a write ended early, and how many bytes it had written until then.
#[derive(Debug)]
pub(crate) struct Short {
    pub(crate) done: usize,
    pub(crate) why: FsError,
}

/// What is asked of the device about bytes that are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// It may stay in the device's cache: whoever makes it durable sends a flush.
    Cached,
    /// One write over blocks of the file is to be durable itself (FUA) and spares the flush; others are as
    /// [`Data::Cached`].
    Durable,
}

/// Where the bytes of files are. Offsets and ranges are in bytes, and need no alignment.
pub(crate) trait Placement: Sized {
    /// Copies bytes that lie inside the file, up to the first that is not at hand; answers how many. The caller
    /// completes the rest, by [`Placement::bring`] and another call.
    fn read(&self, inode: &Inode, into: &mut [u8], at: ByteOffset) -> usize;

    /// Has at least the first byte of a range at hand for the next read, by whatever input that takes, and the others
    /// as far as it likes: `stream` is the reader's, for what it reads ahead. The placement completes this; the caller
    /// waits.
    ///
    /// # Errors
    /// [`FsError::NoMemory`]; the device's and the store's.
    fn bring(
        &self,
        inode: &Arc<Inode>,
        stream: Option<&Stream>,
        range: Range<ByteOffset>,
    ) -> Result<(), FsError>;

    /// Copies over bytes that lie inside the file, up to the first for which a copy is not all that it takes; answers
    /// how many. The caller completes the rest by [`Placement::write`].
    fn overwrite(&self, inode: &Arc<Inode>, from: &[u8], at: ByteOffset) -> usize;

    /// Writes anywhere, whatever that takes; the size is left to the caller. The placement completes this.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Quota`], [`FsError::NoMemory`]; the device's and the store's.
    fn write(&self, grow: &Growing<'_>, inode: &Arc<Inode>, from: &[u8], at: ByteOffset)
    -> Result<(), Short>;

    /// Before a file grows past its `end`: what may lie behind its end is zero from now on.
    ///
    /// # Errors
    /// As for a write.
    fn zero_tail(&self, grow: &Growing<'_>, inode: &Arc<Inode>, end: ByteOffset) -> Result<(), FsError>;

    /// Makes a file end at `end`, where it ends or behind.
    fn grown(&self, inode: &Arc<Inode>, end: ByteOffset);

    /// As [`Placement::grown`], where nobody has written what lies between: it is zeroes.
    ///
    /// # Errors
    /// The store's.
    fn lengthened(&self, _grow: &Growing<'_>, inode: &Arc<Inode>, end: ByteOffset) -> Result<(), FsError> {
        self.grown(inode, end);
        Ok(())
    }

    /// Makes a file end at `end`, where it ends or before, and takes away what lies behind it.
    ///
    /// # Errors
    /// The store's.
    fn cut(&self, grow: &Growing<'_>, inode: &Arc<Inode>, end: ByteOffset) -> Result<(), FsError>;

    /// The offset of the next data, or hole, at or after an offset, whatever the size of the file.
    ///
    /// # Errors
    /// The store's.
    fn next_of(&self, inode: &Arc<Inode>, at: ByteOffset, data: bool) -> Result<Option<ByteOffset>, FsError>;

    /// Begins to transfer a range inside the file from or to a caller's device-visible memory; `open` stays open until
    /// its end. The device completes this, and the caller waits for what is answered. `None`: nothing has begun, and
    /// the caller copies instead.
    ///
    /// # Errors
    /// What had to be settled first and could not.
    fn transfer(
        &self,
        _file: (&Arc<Inode>, &Arc<dyn Any + Send + Sync>),
        _handle: &Handle,
        _wish: &Wish,
    ) -> Result<Option<Arc<DirectIo>>, FsError> {
        Ok(None)
    }

    /// Brings what was written of a range to where it stays, with the size. Durable it is by a later commit. The
    /// placement completes this.
    ///
    /// # Errors
    /// What could not be written, which stays to be.
    fn settle(&self, inode: &Arc<Inode>, range: Range<ByteOffset>, how: Data) -> Result<(), FsError>;

    /// Before a file grows from one end to another: there is room for what programs may store between them by
    /// mappings that show the file where it lies.
    ///
    /// # Errors
    /// As for a write.
    fn make_room(
        &self,
        _grow: &Growing<'_>,
        _inode: &Arc<Inode>,
        _range: Range<ByteOffset>,
    ) -> Result<(), FsError> {
        Ok(())
    }

    /// Mappings that show the file where it lies show a range as it is now, where the file is about to end at `end`:
    /// nobody is told of the end before.
    fn show_maps(
        &self,
        _grow: &Growing<'_>,
        _inode: &Arc<Inode>,
        _range: Range<ByteOffset>,
        _end: ByteOffset,
    ) {
    }

    /// How many files programs may store into.
    fn maps_written(&self) -> &AtomicU32;

    /// A call has changed the file: its times follow.
    fn modified(&self, inode: &Arc<Inode>);

    /// After a write, when the caller holds nothing: makes room if too much waits to be settled.
    #[inline]
    fn relieve_if_full(&self) {}
}

/// What calls make of the bytes of a file.
pub(crate) trait Bytes: Placement {
    /// Reads what is there of `into.len()` bytes at an offset.
    #[inline]
    fn read_at(
        &self,
        inode: &Arc<Inode>,
        stream: &Stream,
        into: &mut [u8],
        offset: ByteOffset,
    ) -> Result<usize, FsError> {
        if inode.data.map_written.load(Ordering::Acquire) {
            return self.read_mapped(inode, into, offset);
        }
        let mut done = 0;
        loop {
            let position = offset + done as u64;
            let end = inode.end();
            if position >= end || done == into.len() {
                return Ok(done);
            }
            let rest = (into.len() - done).min((end - position).min(usize::MAX as u64) as usize);
            let copied = self.read(inode, &mut into[done..done + rest], position);
            done += copied;
            if done == into.len() {
                return Ok(done);
            }
            if copied == rest {
                continue;
            }
            let missing = position + copied as u64..position + rest as u64;
            if let Err(error) = self.bring(inode, Some(stream), missing) {
                return if done > 0 { Ok(done) } else { Err(error) };
            }
        }
    }

    /// Reads all of `into`; the caller knows that it lies inside the file.
    fn read_inside(&self, inode: &Arc<Inode>, into: &mut [u8], offset: ByteOffset) -> Result<(), FsError> {
        let end = offset + into.len() as u64;
        let mut done = 0;
        loop {
            done += self.read(inode, &mut into[done..], offset + done as u64);
            if done == into.len() {
                return Ok(());
            }
            self.bring(inode, None, offset + done as u64..end)?;
        }
    }

    /// Writes at an offset. Fewer bytes than asked for are written only when something fails later.
    ///
    /// # Errors
    /// [`FsError::TooBig`]; those of [`Placement::write`].
    #[inline]
    fn write_at(&self, inode: &Arc<Inode>, from: &[u8], offset: ByteOffset) -> Result<usize, FsError> {
        let end = end_of(offset, from)?;
        let mut done = 0;
        if end <= inode.end() && !inode.data.mapped.load(Ordering::Acquire) {
            done = self.overwrite(inode, from, offset);
            if inode.data.mapped.load(Ordering::Acquire) {
                // Mapped meanwhile, perhaps after the bytes were copied for it.
                done = 0;
            }
        }
        if done < from.len() {
            match self.write_alone(inode, &from[done..], offset + done as u64) {
                Ok(more) => done += more,
                Err(error) if done == 0 => return Err(error),
                Err(_) => {}
            }
        }
        self.modified(inode);
        self.relieve_if_full();
        Ok(done)
    }

    /// As [`Bytes::write_growing`], once nobody else changes the size.
    #[cold]
    fn write_alone(&self, inode: &Arc<Inode>, from: &[u8], offset: ByteOffset) -> Result<usize, FsError> {
        let grow = inode.data.grow();
        self.write_growing(&grow, inode, from, offset)
    }

    /// Appends; answers bytes written, and where.
    ///
    /// # Errors
    /// As [`Bytes::write_at`].
    fn append(&self, inode: &Arc<Inode>, from: &[u8]) -> Result<(usize, ByteOffset), FsError> {
        let grow = inode.data.grow();
        let at = inode.end();
        end_of(at, from)?;
        let written = self.write_growing(&grow, inode, from, at);
        drop(grow);
        self.modified(inode);
        self.relieve_if_full();
        written.map(|written| (written, at))
    }

    /// Writes at an offset, whatever lies there. Fewer bytes than asked for are written when something fails after some
    /// were.
    ///
    /// # Errors
    /// Those of [`Placement::write`].
    fn write_growing(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        from: &[u8],
        offset: ByteOffset,
    ) -> Result<usize, FsError> {
        let end = inode.end();
        if offset > end {
            self.clean_tail(grow, inode, end)?;
            self.make_room(grow, inode, end..offset)?;
        }
        let (done, failed) = match self.write(grow, inode, from, offset) {
            Ok(()) => (from.len(), None),
            Err(Short { done, why }) => (done, Some(why)),
        };
        let bytes = from.len();
        assert!(done < bytes || failed.is_none(), "a write of {bytes} bytes failed after {done}");
        if done > 0 {
            inode.data.write_mapped(&from[..done], offset)?;
            self.show_maps(grow, inode, offset.min(end)..offset + done as u64, end.max(offset + done as u64));
            if offset + done as u64 > end {
                self.grown(inode, offset + done as u64);
            }
        }
        match failed {
            Some(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// Before a file grows past its `end`: what lies behind it is zero, also for those who have it mapped.
    ///
    /// Whatever lay there until now (what a truncation left, what a slow writer wrote that a truncation overtook, what
    /// a program stored past the end of a mapping) nobody ever sees.
    ///
    /// # Errors
    /// Those of [`Placement::write`].
    fn clean_tail(&self, grow: &Growing<'_>, inode: &Arc<Inode>, end: ByteOffset) -> Result<(), FsError> {
        self.zero_tail(grow, inode, end)?;
        inode.data.zero_mapped_tail(end)
    }

    /// Makes a file longer by a range of zeroes, which begins where it ends.
    ///
    /// # Errors
    /// Those of [`Placement::write`].
    fn extend(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        zeroes: Range<ByteOffset>,
    ) -> Result<(), FsError> {
        self.clean_tail(grow, inode, zeroes.start)?;
        inode.data.resize_mapped(zeroes.end)?;
        self.make_room(grow, inode, zeroes.clone())?;
        self.show_maps(grow, inode, zeroes.clone(), zeroes.end);
        self.lengthened(grow, inode, zeroes.end)
    }

    /// Sets the size of a file, which the caller may write.
    ///
    /// # Errors
    /// [`FsError::TooBig`]; the store's. A file of many extents shrinks in steps, each of them durable
    /// or not as a whole.
    fn truncate(&self, inode: &Arc<Inode>, bytes: u64) -> Result<(), FsError> {
        if bytes > crate::FILE_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        let grow = inode.data.grow();
        let (before, end) = (inode.end(), ByteOffset(bytes));
        if end > before {
            self.extend(&grow, inode, before..end)?;
        } else {
            self.gather(&grow, inode, ByteOffset::FIRST..end)?;
            self.cut(&grow, inode, end)?;
        }
        drop(grow);
        self.modified(inode);
        Ok(())
    }
}

impl<P: Placement> Bytes for P {}

/// Where a write ends.
#[inline]
fn end_of(offset: ByteOffset, from: &[u8]) -> Result<ByteOffset, FsError> {
    let end = offset.plus(from.len() as u64).filter(|end| end.0 <= crate::FILE_BYTES_MAX);
    end.ok_or(FsError::TooBig)
}
