//! The calls of an open file on its bytes: read, write, sync, truncate, map, transfer directly.
//!
//! What each means for byte ranges is in `bytes`; here stand rights, flags, the shared offset and times.

use crate::bytes::Data;
use crate::error::FsError;
use crate::file::File;
use crate::filesystem::FileSystem;
use crate::flight::{DirectIo, Wish};
use crate::in_place::location::Location;
use crate::map::MappedFile;
use crate::mapper::{MapPiece, Mapped};
use crate::options::Durability;
use crate::status::{Allocate, OpenFlags};
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::Ordering;
use nvmed_io::{Handle, Operation, Segment};
use nvmed_layout::FileType;
use nvmed_mutant::Mutant;
use nvmed_sys::sync::Arc;
use nvmed_units::ByteOffset;
use std::time::Duration;

impl File {
    /// Has the file's data move by `handle` until this description is closed, whoever reads or writes it through the
    /// cache: its queues, scheduler, way of waiting, priority, stream. Of several descriptions' the last one counts.
    pub fn set_handle(&self, handle: &Handle) {
        *self.inode.data.handle.lock() = Some((self.number(), handle.clone()));
    }

    /// Writes everything of the file back: pages, then the record with the size.
    fn settle(&self) -> Result<(), FsError> {
        self.core.placed.settle(&self.inode, ByteOffset::ALL, Data::Cached)
    }

    /// Whether data may be read through this description.
    #[inline]
    pub(crate) fn readable(&self, flags: OpenFlags) -> Result<(), FsError> {
        match self.inode.kind {
            _ if !flags.reads() => Err(FsError::BadDescriptor),
            FileType::File => Ok(()),
            FileType::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }

    /// Whether data may be changed through this description.
    #[inline]
    pub(crate) fn changeable(&self, flags: OpenFlags) -> Result<(), FsError> {
        if !flags.writes() || self.inode.kind != FileType::File {
            return Err(FsError::BadDescriptor);
        }
        self.core.meta.writable()
    }

    /// The rule of `O_DIRECT`: offset, length and address are multiples of the LBA size.
    ///
    /// The bytes go through the cache all the same; a direct write is on the device when it returns.
    fn aligned(&self, buffer: &[u8], offset: ByteOffset) -> Result<(), FsError> {
        let align = self.core.placed.direct_align() as usize;
        let aligned = (buffer.as_ptr().addr() | buffer.len() | offset.0 as usize).is_multiple_of(align);
        if aligned { Ok(()) } else { Err(FsError::Invalid) }
    }

    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`], [`FsError::IsDirectory`], [`FsError::Invalid`] for a misaligned direct
    /// read, [`FsError::NoMemory`]; the device's.
    #[inline]
    pub fn pread(&self, into: &mut [u8], offset: u64) -> Result<usize, FsError> {
        let flags = self.flags();
        // No device answers what memory does, so that nobody's urgency counts.
        let done = match self.core.placed.in_place() {
            Some(place)
                if self.inode.kind == FileType::File
                    && flags.reads_plainly()
                    && place.read_usual(&self.inode, into, ByteOffset(offset)) =>
            {
                into.len()
            }
            _ => self.pread_as_ruled(flags, into, ByteOffset(offset))?,
        };
        if self.stamps(flags) {
            self.core.meta.accessed(&self.inode);
        }
        Ok(done)
    }

    /// As [`File::pread`], whatever it takes; the access time is the caller's.
    #[inline]
    fn pread_as_ruled(
        &self,
        flags: OpenFlags,
        into: &mut [u8],
        offset: ByteOffset,
    ) -> Result<usize, FsError> {
        self.readable(flags)?;
        if flags.has(OpenFlags::DIRECT) {
            self.aligned(into, offset)?;
        }
        self.ruled(|| self.core.placed.read_at(&self.inode, &self.stream, into, offset))
    }

    /// Writes at an offset (with `O_APPEND` at the end, as Linux does). Fewer bytes than asked for are
    /// written only when room or the device gave out in between.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`], [`FsError::NoSpace`], [`FsError::TooBig`], [`FsError::Invalid`] for a
    /// misaligned direct write, [`FsError::ReadOnly`]; the device's.
    #[inline]
    pub fn pwrite(&self, from: &[u8], offset: u64) -> Result<usize, FsError> {
        /// Any of these makes a write more than a copy.
        const SPECIAL: OpenFlags = OpenFlags::APPEND.with(OpenFlags::SYNC).with(OpenFlags::DIRECT);
        let flags = self.flags();
        self.changeable(flags)?;
        if from.is_empty() {
            return Ok(0);
        }
        if flags.has_any(SPECIAL) || self.core.options.durability == Durability::Device {
            return self.write_specially(flags, from, ByteOffset(offset)).map(|(written, _)| written);
        }
        let written = self.ruled(|| self.core.placed.write_at(&self.inode, from, ByteOffset(offset)))?;
        if self.inode.data.exposed.load(Ordering::Relaxed) {
            self.ruled(|| self.settle())?;
        }
        Ok(written)
    }

    /// A write that appends, or is on the device when it returns; answers bytes and offset too.
    fn write_specially(
        &self,
        flags: OpenFlags,
        from: &[u8],
        offset: ByteOffset,
    ) -> Result<(usize, ByteOffset), FsError> {
        self.ruled(|| self.write_specially_as_ruled(flags, from, offset))
    }

    fn write_specially_as_ruled(
        &self,
        flags: OpenFlags,
        from: &[u8],
        offset: ByteOffset,
    ) -> Result<(usize, ByteOffset), FsError> {
        if flags.has(OpenFlags::DIRECT) {
            self.aligned(from, offset)?;
        }
        let (written, at) = if flags.has(OpenFlags::APPEND) {
            self.core.placed.append(&self.inode, from)?
        } else {
            (self.core.placed.write_at(&self.inode, from, offset)?, offset)
        };
        if flags.has(OpenFlags::SYNC) {
            self.fsync()?;
        } else if flags.has(OpenFlags::DSYNC) {
            self.fdatasync()?;
        } else if self.core.options.durability == Durability::Device {
            self.settle()?;
            self.core.meta.commit(0)?;
        } else if flags.has(OpenFlags::DIRECT) || self.inode.data.exposed.load(Ordering::Relaxed) {
            self.settle()?;
        }
        Ok((written, at))
    }

    /// Reads at the shared offset and moves it.
    ///
    /// # Errors
    /// As [`File::pread`].
    pub fn read(&self, into: &mut [u8]) -> Result<usize, FsError> {
        let mut offset = self.offset();
        let done = self.pread(into, *offset)?;
        *offset += done as u64;
        Ok(done)
    }

    /// Lets `transfer` read or write at the shared offset, which nobody else uses meanwhile, and moves it by what was
    /// transferred: how much, and the offset afterwards.
    ///
    /// # Errors
    /// What `transfer` answers.
    pub fn at_offset(
        &self,
        transfer: impl FnOnce(u64) -> Result<usize, FsError>,
    ) -> Result<(usize, u64), FsError> {
        let mut offset = self.offset();
        let done = transfer(*offset)?;
        *offset += done as u64;
        Ok((done, *offset))
    }

    /// Writes at the shared offset (with `O_APPEND` at the end, atomically) and moves it.
    ///
    /// # Errors
    /// As [`File::pwrite`].
    pub fn write(&self, from: &[u8]) -> Result<usize, FsError> {
        let mut offset = self.offset();
        let flags = self.flags();
        if flags.has(OpenFlags::APPEND) && !from.is_empty() {
            self.changeable(flags)?;
            let (done, at) = self.write_specially(flags, from, ByteOffset(*offset))?;
            *offset = (at + done as u64).0;
            return Ok(done);
        }
        let done = self.pwrite(from, *offset)?;
        *offset += done as u64;
        Ok(done)
    }
}

/// Durability.
impl File {
    /// Makes data and metadata of the file durable, and every metadata operation before this call.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`] with `O_PATH`; what could not be written, which stays dirty. A failure
    /// of an earlier write-back is told once to each description that was open then.
    pub fn fsync(&self) -> Result<(), FsError> {
        self.sync(true)
    }

    /// As [`File::fsync`], without times.
    ///
    /// # Errors
    /// As [`File::fsync`].
    pub fn fdatasync(&self) -> Result<(), FsError> {
        self.sync(false)
    }

    fn sync(&self, times: bool) -> Result<(), FsError> {
        if self.flags().has(OpenFlags::PATH) {
            return Err(FsError::BadDescriptor);
        }
        let synced = self.ruled(|| self.core.placed.sync_inode(&self.inode, times));
        let errors = self.inode.data.errors.load(Ordering::SeqCst);
        let told = self.stream.errors_seen.swap(errors, Ordering::SeqCst);
        synced?;
        if told == errors { Ok(()) } else { Err(FsError::Host(rustix::io::Errno::IO)) }
    }

    /// Writes a range of dirty pages back, without making it durable (`sync_file_range`); 0 bytes reach
    /// to the end of the file.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`], [`FsError::Invalid`]; what could not be written.
    pub fn sync_range(&self, offset: u64, bytes: u64) -> Result<(), FsError> {
        if self.flags().has(OpenFlags::PATH) || self.inode.kind != FileType::File {
            return Err(FsError::BadDescriptor);
        }
        if self.core.options.read_only {
            return Ok(());
        }
        let offset = ByteOffset(offset);
        let end = if bytes == 0 { ByteOffset::END } else { offset.plus(bytes).ok_or(FsError::Invalid)? };
        self.ruled(|| self.core.placed.settle(&self.inode, offset..end, Data::Cached))
    }
}

/// Size and room.
impl File {
    /// Sets the size.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`], [`FsError::Invalid`] for what is not a file open for writing,
    /// [`FsError::TooBig`], [`FsError::ReadOnly`]; the store's.
    pub fn truncate(&self, bytes: u64) -> Result<(), FsError> {
        let flags = self.flags();
        if !flags.writes() && !flags.has(OpenFlags::PATH) {
            // ftruncate(2): EINVAL for a descriptor that is not open for writing.
            return Err(FsError::Invalid);
        }
        self.changeable(flags)?;
        self.ruled(|| {
            self.core.placed.truncate(&self.inode, bytes)?;
            self.written_through()
        })
    }

    /// Allocates, punches or zeroes a range.
    ///
    /// # Errors
    /// Those of fallocate(2): [`FsError::Invalid`] for an empty range, [`FsError::NotSupported`] for a
    /// combination that makes no sense, [`FsError::TooBig`], [`FsError::NoSpace`].
    pub fn fallocate(&self, how: Allocate, offset: u64, bytes: u64) -> Result<(), FsError> {
        self.changeable(self.flags())?;
        if bytes == 0 {
            return Err(FsError::Invalid);
        }
        if how.punch_hole && (!how.keep_size || how.zero_range) {
            return Err(FsError::NotSupported);
        }
        let offset = ByteOffset(offset);
        let end = offset.plus(bytes).filter(|end| end.0 <= crate::FILE_BYTES_MAX);
        let end = end.ok_or(FsError::TooBig)?;
        self.ruled(|| {
            self.core.placed.gather_mapped(&self.inode, ByteOffset::ALL)?;
            self.core.placed.allocate_range(&self.inode, how, offset..end)?;
            self.written_through()
        })
    }

    /// The next data, or hole, at or after an offset; the end of the file counts as a hole.
    ///
    /// # Errors
    /// [`FsError::NoData`] at or past the end, or when no data follows.
    #[inline(never)]
    pub(crate) fn data_or_hole(&self, offset: ByteOffset, data: bool) -> Result<ByteOffset, FsError> {
        self.core.placed.gather_mapped(&self.inode, ByteOffset::ALL)?;
        let end = self.inode.end();
        if offset >= end {
            return Err(FsError::NoData);
        }
        match self.core.placed.next_of(&self.inode, offset, data)?.filter(|found| *found < end) {
            Some(found) => Ok(found),
            None if data => Err(FsError::NoData),
            None => Ok(end),
        }
    }

    /// With durability `device`, what was done is on the device before the call returns.
    fn written_through(&self) -> Result<(), FsError> {
        let everything = self.core.options.durability == Durability::Device;
        if everything || self.inode.data.exposed.load(Ordering::Relaxed) {
            self.settle()?;
        }
        if everything { self.core.meta.commit(0) } else { Ok(()) }
    }
}

/// Mappings.
impl File {
    /// The file's memory for mmap; `write` when stores into it are to become the file's.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`], [`FsError::NotSupported`] for what is no file, [`FsError::Access`] for stores
    /// through a description that is not open for writing; the host has no memory; the device's.
    pub fn map(&self, write: bool) -> Result<MappedFile, FsError> {
        self.check_map(write)?;
        self.core.placed.map(&self.inode, write).map(|fd| MappedFile { fd })
    }

    /// As [`File::map`], of a range in bytes that the caller maps by pages: in place, where the mount has somebody who
    /// maps ([`FileSystem::map_in_place_by`]) and the range lies in memory that can be mapped. The caller asks
    /// [`File::lay_out`] then what to map where, and the one who maps is told what changes until [`File::unmap`].
    ///
    /// # Errors
    /// As [`File::map`]. [`FsError::NoSpace`], [`FsError::Quota`], and `ENOMEM` for a range in too many pieces, while
    /// another range is mapped in place.
    pub fn map_range(&self, write: bool, range: Range<u64>) -> Result<Mapped, FsError> {
        self.check_map(write)?;
        self.core.placed.map_range(&self.inode, write, ByteOffset(range.start)..ByteOffset(range.end))
    }

    /// Tells where the pages of a range lie, in order, of a file that [`File::map_range`] has mapped in place; nobody
    /// changes that until this returns. With `write` holes have blocks first. `tell` makes no call of the file system.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Quota`]; the store's.
    pub fn lay_out(
        &self,
        write: bool,
        range: Range<u64>,
        tell: &mut dyn FnMut(&MapPiece),
    ) -> Result<(), FsError> {
        let range = ByteOffset(range.start)..ByteOffset(range.end);
        self.core.placed.lay_out(&self.inode, write, range, tell)
    }

    fn check_map(&self, write: bool) -> Result<(), FsError> {
        if self.flags().has(OpenFlags::PATH) {
            return Err(FsError::BadDescriptor);
        }
        if self.inode.kind != FileType::File {
            return Err(FsError::NotSupported);
        }
        match write {
            true if !self.flags().writes() => Err(FsError::Access),
            true => self.core.meta.writable(),
            false => Ok(()),
        }
    }

    /// What programs have stored into their mappings by now is the file's: in the cache, not on the device.
    ///
    /// # Errors
    /// As for a write.
    pub fn gather(&self) -> Result<(), FsError> {
        self.core.placed.gather_mapped(&self.inode, ByteOffset::ALL)
    }

    /// Where the page of a byte lies, and how many bytes from its first one on lie side by side; none where files lie
    /// in no memory that another process can map, and of one whose bytes are in its record.
    ///
    /// What is told stays so as long as the file is open, until its size changes, or it is given room or loses some: a
    /// write over bytes that lie somewhere leaves them there.
    ///
    /// # Errors
    /// [`FsError::NoData`] behind the end; the store's; the host has no memory.
    pub fn location(&self, offset: u64) -> Result<Option<Location>, FsError> {
        self.core.placed.location(&self.inode, ByteOffset(offset))
    }

    /// One mapping fewer, made with the same `write`; with it, stores become the file's.
    ///
    /// # Errors
    /// [`FsError::Invalid`] without such a mapping. What could not be written to the cache is lost.
    pub fn unmap(&self, write: bool) -> Result<(), FsError> {
        self.core.placed.unmap(&self.inode, write)
    }

    /// Makes a mapped range durable.
    ///
    /// # Errors
    /// As [`File::fsync`].
    pub fn msync(&self, offset: u64, bytes: u64) -> Result<(), FsError> {
        if self.core.options.read_only {
            return Ok(());
        }
        self.ruled(|| self.msync_as_ruled(ByteOffset(offset), bytes))
    }

    fn msync_as_ruled(&self, offset: ByteOffset, bytes: u64) -> Result<(), FsError> {
        let end = offset.saturating_plus(bytes);
        self.core.placed.settle(&self.inode, offset..end, Data::Cached)?;
        // Bytes past the recorded size would not be there after a power cut: a file that was extended and
        // then mapped. The record grows only when nothing below it is dirty.
        let file_end = self.inode.end();
        let recorded = ByteOffset(self.inode.lock().record().size);
        if recorded < end.min(file_end) && !Mutant::MsyncForgetsSize.is_made() {
            self.settle()?;
        }
        self.core.meta.commit(self.inode.data.ticket.load(Ordering::SeqCst))
    }
}

/// Direct transfers.
impl File {
    /// What offset, length and memory address of a direct transfer are multiples of, in bytes.
    #[must_use]
    pub fn direct_align(&self) -> u32 {
        self.core.placed.direct_align()
    }

    /// Begins to read from the blocks of the file into `into`, by `handle`. `None`: the range cannot be read
    /// directly, and nothing has begun; [`File::pread`] reads it.
    ///
    /// The memory must stay mapped until the end, and nobody else use it.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`]; [`FsError::Invalid`] for what is not aligned; what had to be written back first
    /// and could not.
    pub fn read_direct(
        self: &Arc<Self>,
        handle: &Handle,
        into: Segment,
        offset: u64,
    ) -> Result<Option<Arc<DirectIo>>, FsError> {
        let flags = self.flags();
        self.readable(flags)?;
        let begun =
            self.begin(handle, &Wish { operation: Operation::Read, data: into, offset: ByteOffset(offset) })?;
        if begun.is_some() && self.stamps(flags) {
            self.core.meta.accessed(&self.inode);
        }
        Ok(begun)
    }

    /// Begins to write `from` over blocks of the file, by `handle`; with `O_DSYNC` it is durable at the end. `None`:
    /// the range cannot be written directly, and nothing has begun; [`File::pwrite`] writes it.
    ///
    /// The memory must stay mapped and unchanged until the end.
    ///
    /// # Errors
    /// As [`File::read_direct`]; [`FsError::ReadOnly`].
    pub fn write_direct(
        self: &Arc<Self>,
        handle: &Handle,
        from: Segment,
        offset: u64,
    ) -> Result<Option<Arc<DirectIo>>, FsError> {
        let flags = self.flags();
        self.changeable(flags)?;
        let through = self.core.options.durability == Durability::Device;
        if flags.has(OpenFlags::APPEND) || flags.has(OpenFlags::SYNC) || through {
            return Ok(None);
        }
        let operation = Operation::Write { fua: flags.has(OpenFlags::DSYNC) };
        let begun = self.begin(handle, &Wish { operation, data: from, offset: ByteOffset(offset) })?;
        if begun.is_some() {
            self.core.meta.modified(&self.inode);
        }
        Ok(begun)
    }

    /// As [`File::pwrite`], but from memory of any alignment, and on the device when it returns: what a direct write
    /// of a range is that cannot go directly.
    ///
    /// # Errors
    /// As [`File::pwrite`].
    pub fn pwrite_through(&self, from: &[u8], offset: u64) -> Result<usize, FsError> {
        let written = self.pwrite(from, offset)?;
        self.ruled(|| self.settle())?;
        Ok(written)
    }

    fn begin(self: &Arc<Self>, handle: &Handle, wish: &Wish) -> Result<Option<Arc<DirectIo>>, FsError> {
        let align = u64::from(self.direct_align());
        if !(wish.offset.0 | u64::from(wish.data.bytes) | wish.data.address.0).is_multiple_of(align) {
            return Err(FsError::Invalid);
        }
        let open: Arc<dyn Any + Send + Sync> = Arc::<Self>::clone(self);
        self.ruled(|| self.core.placed.transfer((&self.inode, &open), handle, wish))
    }
}

impl FileSystem {
    /// Writes back data that has been dirty for longer than `age`, then makes durable what is on the
    /// device and in the store: called every so often, it bounds what a power cut can take.
    ///
    /// # Errors
    /// What could not be written; it stays dirty.
    pub fn write_back_older_than(&self, age: Duration) -> Result<(), FsError> {
        if self.core.options.read_only {
            return Ok(());
        }
        self.core.placed.gather_all_mapped(&self.core.meta.inodes)?;
        let now = self.core.meta.now_ns();
        let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
        // A time to come means that somebody has set the clock back.
        let written =
            self.core.placed.write_back_due(&|since| since > now || now.saturating_sub(since) >= age);
        self.core.meta.commit_all()?;
        if self.core.options.discard {
            self.core.meta.blocks.discard();
        }
        written
    }
}
