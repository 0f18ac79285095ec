//! Reading and writing files: what of the data path lies in a mount, an inode, an open description,
//! and the calls whose pages are in the cache. Everything slower is in `fill`, `write`, `writeback`.

use crate::core::{Core, Durability, MountOptions};
use crate::error::FsError;
use crate::extent::Extents;
use crate::file::File;
use crate::filedata::AS_MOUNTED;
use crate::inode::{Inode, State};
use crate::memory::{Memory, Slots};
use crate::status::OpenFlags;
use crate::write::PagePromise;
use crate::writeback::DirtyList;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use nvmed_cache::{Cache, Options, Readahead, Written};
use nvmed_io::{Device, Handle, Segment};
use nvmed_layout::Kind;
use nvmed_layout::record::FLAG_KEYED_EXTENTS;
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, BLOCK_SHIFT, DeviceAddress};

/// Share of the frames that may be dirty, unless the options say otherwise: one in two.
const DIRTY_SHARE: u32 = 2;
/// The share of frames that stays clean whatever the settings say: reads need some.
const CLEAN_SHARE: u32 = 8;
/// Share of the frames that one call fills at once at most: one in four.
const FILL_SHARE: u32 = 4;
/// Largest inline file: with it, a record still lies in its directory entry.
const INLINE_BYTES_MAX: u32 = 800;
/// Least alignment of offset, length and buffer under `O_DIRECT`, the smallest LBA format.
const DIRECT_ALIGN_MIN: u32 = 512;

/// The data path's part of a mount: cache, frames and their device addresses.
pub(crate) struct DataPath {
    device: Arc<Device>,
    pub(crate) cache: Cache,
    /// Where the device finds the mapping that the frames are in.
    address: DeviceAddress,
    pub(crate) slots: Slots,
    pub(crate) dirty: DirtyList,
    /// Pages of the largest readahead window, and of one fill.
    pub(crate) readahead_pages: u64,
    pub(crate) fill_pages: u64,
    pub(crate) prealloc_blocks: u32,
    /// Size of the largest file whose bytes its record holds.
    pub(crate) inline_bytes: u64,
    /// Inodes that programs may store into.
    pub(crate) maps_written: AtomicU32,
    direct_align: u32,
}

/// The data path's part of an open description.
pub(crate) struct Stream {
    pub(crate) readahead: Readahead,
    /// Largest readahead window in pages; [`u64::MAX`] leaves it to the mount.
    pub(crate) readahead_pages: AtomicU64,
    /// Failed write-backs of the inode that this description knows of.
    pub(crate) errors_seen: AtomicU32,
}

impl Stream {
    pub(crate) fn new(inode: &Inode) -> Self {
        let errors_seen = AtomicU32::new(inode.data.errors.load(Ordering::Relaxed));
        Self { readahead: Readahead::default(), readahead_pages: AtomicU64::new(u64::MAX), errors_seen }
    }
}

impl DataPath {
    pub(crate) fn new(
        device: &Arc<Device>,
        memory: &Memory,
        options: &MountOptions,
    ) -> Result<Self, FsError> {
        let layout = memory.layout.cache();
        let limit = match options.dirty_limit_bytes / BLOCK_BYTES as u64 {
            0 => layout.frames / DIRTY_SHARE,
            pages => {
                u32::try_from(pages).unwrap_or(u32::MAX).min(layout.frames - layout.frames / CLEAN_SHARE)
            }
        };
        let fill_pages = u64::from(layout.frames / FILL_SHARE).max(1);
        Ok(Self {
            device: Arc::clone(device),
            cache: Cache::new(
                Arc::clone(&memory.mapping),
                layout,
                Options { dirty_limit_frames: limit, policy: options.cache_policy },
            ),
            address: device.map(Arc::clone(&memory.mapping))?,
            slots: Slots::new(memory),
            dirty: DirtyList::default(),
            readahead_pages: (options.readahead_bytes / BLOCK_BYTES as u64).min(fill_pages),
            fill_pages,
            prealloc_blocks: u32::try_from(options.prealloc_bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX),
            inline_bytes: u64::from(options.inline_bytes.min(INLINE_BYTES_MAX)),
            maps_written: AtomicU32::new(0),
            direct_align: device.geometry().lba_bytes.max(DIRECT_ALIGN_MIN),
        })
    }

    /// Whether nothing of the inode waits to be written.
    pub(crate) fn is_clean(&self, inode: &Inode) -> bool {
        let data = &inode.data;
        !data.listed.load(Ordering::SeqCst) && !self.wants_write(inode) && !data.mapped.load(Ordering::SeqCst)
    }

    /// Whether the device lacks pages or the size of the inode.
    pub(crate) fn wants_write(&self, inode: &Inode) -> bool {
        let data = &inode.data;
        data.object.dirty_pages() > 0 || data.exposed.load(Ordering::SeqCst) || data.slot.lock().is_some()
    }

    /// Data blocks that the inode will need for what is not allocated yet.
    pub(crate) fn blocks_promised(&self, inode: &Inode) -> u64 {
        inode.data.purse.blocks()
    }

    /// The inode leaves memory: its pages go, promises and preallocation are given back.
    pub(crate) fn forget(&self, core: &Core, inode: &Arc<Inode>) {
        if inode.kind != Kind::File {
            return;
        }
        let data = &inode.data;
        let _quiet = data.quiet();
        self.cache.write_back(&data.object).discard(0..u64::MAX);
        drop(PagePromise::all_taken_back(core, inode));
        core.drop_prealloc(inode);
        if let Some(slot) = data.slot.lock().take() {
            self.slots.put_back(slot);
        }
        data.exposed.store(false, Ordering::SeqCst);
    }

    /// What a direct transfer is aligned to, in bytes.
    pub(crate) fn direct_align(&self) -> u32 {
        self.direct_align
    }

    /// The frame at an offset of the mapping, for the device.
    pub(crate) fn segment(&self, offset: usize) -> Segment {
        Segment { address: self.address.plus(offset as u64), bytes: BLOCK_BYTES as u32 }
    }
}

impl Drop for DataPath {
    fn drop(&mut self) {
        self.device.unmap(self.address);
    }
}

impl Core {
    /// Blocks allocated ahead of a file when it grows.
    pub(crate) fn prealloc_blocks(&self, inode: &Inode) -> u32 {
        match inode.data.prealloc_blocks.load(Ordering::Relaxed) {
            AS_MOUNTED => self.data.prealloc_blocks,
            blocks => blocks,
        }
    }

    /// Lets `use_them` work on the extents of an inode, whose state the caller has locked.
    ///
    /// # Errors
    /// What loading them answers, and what `use_them` does.
    pub(crate) fn with_extents<T>(
        &self,
        inode: &Inode,
        state: &mut State,
        use_them: impl FnOnce(&mut State, &mut Extents) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let mut held = inode.data.extents.lock();
        let extents = match &mut *held {
            Some(extents) => extents,
            none => none.insert(self.load_extents(inode.ino, state.record())?),
        };
        use_them(state, extents)
    }

    /// The handle by which an inode's data moves.
    pub(crate) fn handle_of(&self, inode: &Inode) -> Handle {
        inode.data.handle.lock().as_ref().map_or(&self.handle, |(_, handle)| handle).clone()
    }

    /// What is known of an inode's extents may be wrong: they are loaded again.
    pub(crate) fn forget_extents(&self, inode: &Inode) {
        *inode.data.extents.lock() = None;
    }

    /// Makes a file's size `size`, in the memory that outlives the process too.
    pub(crate) fn set_size(&self, inode: &Arc<Inode>, size: u64) {
        let data = &inode.data;
        let mtime = inode.times_ns()[1];
        let mut slot = data.slot.lock();
        match *slot {
            Some(slot) => self.data.slots.set(slot, size, mtime),
            None => *slot = self.data.slots.take(inode.ino, size, mtime),
        }
        inode.size.store(size, Ordering::Release);
        if slot.is_none() {
            data.exposed.store(true, Ordering::SeqCst);
        }
        drop(slot);
        self.list_dirty(inode);
    }

    /// The record has the size `recorded`: if that is the size, the memory need not keep it.
    pub(crate) fn size_recorded(&self, inode: &Inode, recorded: u64) {
        let mut slot = inode.data.slot.lock();
        if inode.size.load(Ordering::Acquire) == recorded {
            if let Some(slot) = slot.take() {
                self.data.slots.put_back(slot);
            }
            inode.data.exposed.store(false, Ordering::SeqCst);
        }
    }

    /// A description is being closed.
    pub(crate) fn closing(&self, file: &File) {
        let inode = &file.inode;
        let own = inode.data.handle.lock().take_if(|(number, _)| *number == file.number());
        drop(own);
        if inode.kind == Kind::File && inode.opens.load(Ordering::SeqCst) == 1 {
            self.drop_prealloc(inode);
            if inode.lock().record().flags & FLAG_KEYED_EXTENTS == 0 {
                // A small file's are in its record: no need to keep them twice.
                self.forget_extents(inode);
            }
        }
    }

    /// Reads what is there of `into.len()` bytes at an offset.
    #[inline]
    fn read_at(&self, file: &File, into: &mut [u8], offset: u64) -> Result<usize, FsError> {
        let inode = &file.inode;
        if inode.data.map_written.load(Ordering::Acquire) {
            return self.read_mapped(inode, into, offset);
        }
        let mut done = 0;
        loop {
            let position = offset + done as u64;
            let size = inode.size.load(Ordering::Acquire);
            if position >= size || done == into.len() {
                return Ok(done);
            }
            let (page, within) = (position >> BLOCK_SHIFT, position as usize % BLOCK_BYTES);
            let rest = (into.len() - done).min((size - position).min(usize::MAX as u64) as usize);
            let part = rest.min(BLOCK_BYTES - within);
            if self.data.cache.read(&inode.data.object, page, within, &mut into[done..done + part]) {
                done += part;
            } else if let Err(error) = self.miss(file, page, (within + rest) as u64) {
                return if done > 0 { Ok(done) } else { Err(error) };
            }
        }
    }

    /// Writes as long as pages are there and have blocks; answers the bytes written.
    #[inline]
    fn write_resident(&self, inode: &Arc<Inode>, from: &[u8], offset: u64) -> usize {
        let mut done = 0;
        while done < from.len() {
            let position = offset + done as u64;
            let (page, within) = (position >> BLOCK_SHIFT, position as usize % BLOCK_BYTES);
            let part = (from.len() - done).min(BLOCK_BYTES - within);
            let object = &inode.data.object;
            match self.data.cache.write(object, page, within, &from[done..done + part]) {
                Written::Done { first_dirty, .. } => {
                    if first_dirty {
                        self.list_dirty(inode);
                    }
                    done += part;
                }
                Written::Absent | Written::Unbacked => break,
            }
        }
        done
    }

    /// Writes at an offset. Fewer bytes than asked for are written only when something fails later.
    #[inline]
    pub(crate) fn write_at(&self, inode: &Arc<Inode>, from: &[u8], offset: u64) -> Result<usize, FsError> {
        let end = offset.checked_add(from.len() as u64).filter(|end| *end <= crate::FILE_BYTES_MAX);
        let end = end.ok_or(FsError::TooBig)?;
        let mut done = 0;
        if end <= inode.size.load(Ordering::Acquire) && !inode.data.mapped.load(Ordering::Acquire) {
            done = self.write_resident(inode, from, offset);
            if inode.data.mapped.load(Ordering::Acquire) {
                // Mapped meanwhile, perhaps after the page was copied for it.
                done = 0;
            }
        }
        if done < from.len() {
            match self.write_missing(inode, &from[done..], offset + done as u64) {
                Ok(more) => done += more,
                Err(error) if done == 0 => return Err(error),
                Err(_) => {}
            }
        }
        self.modified(inode);
        if self.data.cache.over_limit() {
            self.relieve();
        }
        Ok(done)
    }
}

impl Core {
    /// Reads all of `into` from the cache; the caller knows that it lies inside the file.
    pub(crate) fn read_cached(
        &self,
        inode: &Arc<Inode>,
        into: &mut [u8],
        offset: u64,
    ) -> Result<(), FsError> {
        let mut done = 0;
        while done < into.len() {
            let position = offset + done as u64;
            let (page, within) = (position >> BLOCK_SHIFT, position as usize % BLOCK_BYTES);
            let part = (into.len() - done).min(BLOCK_BYTES - within);
            if self.data.cache.read(&inode.data.object, page, within, &mut into[done..done + part]) {
                done += part;
            } else {
                let wanted = (into.len() - done).div_ceil(BLOCK_BYTES) as u64;
                self.fill(inode, page, wanted.min(self.data.fill_pages))?;
            }
        }
        Ok(())
    }
}

impl File {
    /// Has the file's data move by `handle` until this description is closed, whoever reads or writes it through the
    /// cache: its queues, scheduler, way of waiting, priority, stream. Of several descriptions' the last one counts.
    pub fn set_handle(&self, handle: &Handle) {
        *self.inode.data.handle.lock() = Some((self.number(), handle.clone()));
    }

    /// Whether data may be read through this description.
    #[inline]
    pub(crate) fn readable(&self, flags: OpenFlags) -> Result<(), FsError> {
        match self.inode.kind {
            _ if !flags.reads() => Err(FsError::BadDescriptor),
            Kind::File => Ok(()),
            Kind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }

    /// Whether data may be changed through this description.
    #[inline]
    pub(crate) fn changeable(&self, flags: OpenFlags) -> Result<(), FsError> {
        if !flags.writes() || self.inode.kind != Kind::File {
            return Err(FsError::BadDescriptor);
        }
        self.core.writable()
    }

    /// The rule of `O_DIRECT`: offset, length and address are multiples of the LBA size.
    ///
    /// The bytes go through the cache all the same; a direct write is on the device when it returns.
    fn aligned(&self, buffer: &[u8], offset: u64) -> Result<(), FsError> {
        let align = self.core.data.direct_align as usize;
        let aligned = (buffer.as_ptr().addr() | buffer.len() | offset as usize).is_multiple_of(align);
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
        self.readable(flags)?;
        if flags.has(OpenFlags::DIRECT) {
            self.aligned(into, offset)?;
        }
        let done = self.core.read_at(self, into, offset)?;
        if self.stamps(flags) {
            self.core.accessed(&self.inode);
        }
        Ok(done)
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
        const SPECIAL: u32 = OpenFlags::APPEND.0 | OpenFlags::SYNC.0 | OpenFlags::DIRECT.0;
        let flags = self.flags();
        self.changeable(flags)?;
        if from.is_empty() {
            return Ok(0);
        }
        if flags.0 & SPECIAL != 0 || self.core.options.durability == Durability::Device {
            return self.write_specially(flags, from, offset).map(|(written, _)| written);
        }
        let written = self.core.write_at(&self.inode, from, offset)?;
        if self.inode.data.exposed.load(Ordering::Relaxed) {
            self.core.write_back(&self.inode)?;
        }
        Ok(written)
    }

    /// A write that appends, or is on the device when it returns; answers bytes and offset too.
    fn write_specially(&self, flags: OpenFlags, from: &[u8], offset: u64) -> Result<(usize, u64), FsError> {
        if flags.has(OpenFlags::DIRECT) {
            self.aligned(from, offset)?;
        }
        let (written, at) = if flags.has(OpenFlags::APPEND) {
            self.core.append(&self.inode, from)?
        } else {
            (self.core.write_at(&self.inode, from, offset)?, offset)
        };
        if flags.has(OpenFlags::SYNC) {
            self.fsync()?;
        } else if flags.has(OpenFlags::DSYNC) {
            self.fdatasync()?;
        } else if self.core.options.durability == Durability::Device {
            self.core.write_back(&self.inode)?;
            self.core.commit(0)?;
        } else if flags.has(OpenFlags::DIRECT) || self.inode.data.exposed.load(Ordering::Relaxed) {
            self.core.write_back(&self.inode)?;
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
            let (done, at) = self.write_specially(flags, from, *offset)?;
            *offset = at + done as u64;
            return Ok(done);
        }
        let done = self.pwrite(from, *offset)?;
        *offset += done as u64;
        Ok(done)
    }
}
