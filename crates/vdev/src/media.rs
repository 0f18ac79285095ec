//! What the controller stores blocks in.

use crate::backing::{self, Backing};
use crate::volatile::Volatile;
use nvmed_image::{FileOptions, Identity, Image, MediaError, PAGE_BYTES, Span, check_size};
use nvmed_nvme::Status;
use nvmed_sys::{Mapping, Pages};
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = PAGE_BYTES as usize;
/// Bytes that a processor fetches at once.
const CACHE_LINE: usize = 64;
/// A medium of nothing is bounded by what byte offsets can say.
const NULL_BYTES_MAX: u64 = 1 << 62;

/// A store of bytes, addressed by byte offset. All accesses are inside [`Media::bytes`]: the controller
/// has checked the range.
#[derive(Debug)]
pub struct Media(Medium);

#[derive(Debug)]
enum Medium {
    Ram(Mapping, AtomicU64),
    Null(AtomicU64),
    File(Image),
    Volatile(Box<Volatile>),
    Backed(Box<dyn Backing>),
}

impl Media {
    /// Zeroed memory of this process.
    ///
    /// # Errors
    /// The size is no whole number of pages, or there is no memory for it.
    pub fn ram(bytes: u64, pages: Pages) -> Result<Self, MediaError> {
        Self::ram_with_room(bytes, bytes, pages)
    }

    /// As [`Media::ram`], that can grow to `room` bytes; memory is taken as it is touched.
    ///
    /// # Errors
    /// As [`Media::ram`].
    pub fn ram_with_room(bytes: u64, room: u64, pages: Pages) -> Result<Self, MediaError> {
        check_size("media=dram", bytes)?;
        check_size("media=dram", room.max(bytes))?;
        let len = usize::try_from(room.max(bytes))
            .map_err(|_| MediaError::Size { path: "media=dram".to_owned(), bytes: room })?;
        let memory = Mapping::anonymous(len, pages).map_err(|errno| MediaError::Memory { bytes, errno })?;
        Ok(Self(Medium::Ram(memory, AtomicU64::new(bytes))))
    }

    /// Nothing: commands succeed and no data moves, to measure everything else.
    ///
    /// # Errors
    /// The size is no whole number of pages.
    pub fn null(bytes: u64) -> Result<Self, MediaError> {
        check_size("media=null", bytes)?;
        Ok(Self(Medium::Null(AtomicU64::new(bytes))))
    }

    /// A file.
    ///
    /// # Errors
    /// It cannot be opened, is no image, or is in use.
    pub fn file(options: FileOptions) -> Result<Self, MediaError> {
        Image::open(options).map(|file| Self(Medium::File(file)))
    }

    /// `inner` behind a write cache that loses its content with the process: what is neither flushed nor
    /// written with FUA never reaches `inner`.
    #[must_use]
    pub fn volatile(inner: Self) -> Self {
        Self(Medium::Volatile(Box::new(Volatile::new(inner))))
    }

    /// Blocks that lie elsewhere.
    ///
    /// # Errors
    /// The size is no whole number of pages.
    pub fn backed(backing: Box<dyn Backing>) -> Result<Self, MediaError> {
        check_size("a backed medium", backing.bytes())?;
        Ok(Self(Medium::Backed(backing)))
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Medium::Ram(_, bytes) | Medium::Null(bytes) => bytes.load(Ordering::Acquire),
            Medium::File(file) => file.bytes(),
            Medium::Volatile(cache) => cache.bytes(),
            Medium::Backed(backing) => backing.bytes(),
        }
    }

    /// What tells it from other media: of an image the same at each opening, of memory drawn anew. Of blocks that lie
    /// elsewhere it says nothing: their device is given a serial number of its own.
    pub(crate) fn identity(&self) -> Identity {
        match &self.0 {
            Medium::File(file) => file.identity(),
            Medium::Volatile(cache) => cache.identity(),
            Medium::Ram(..) | Medium::Null(_) => Identity::drawn(),
            Medium::Backed(_) => Identity::NONE,
        }
    }

    /// Asks for `len` bytes at `offset`, which may lie outside, to be at hand soon.
    #[inline]
    pub(crate) fn foresee(&self, offset: u64, len: usize) {
        if let Medium::Ram(memory, _) = &self.0 {
            for line in (0..len).step_by(CACHE_LINE) {
                memory.prefetch_read((offset as usize).wrapping_add(line));
            }
        }
    }

    /// Bytes that it can grow to while it is open.
    #[must_use]
    pub fn room(&self) -> u64 {
        match &self.0 {
            Medium::Ram(memory, _) => memory.len() as u64,
            Medium::Null(_) => NULL_BYTES_MAX,
            Medium::File(file) => file.room(),
            Medium::Volatile(cache) => cache.room(),
            Medium::Backed(backing) => backing.bytes(),
        }
    }

    /// Whether [`Media::resize`] can make it this large.
    pub(crate) fn check_room(&self, bytes: u64) -> Result<(), MediaError> {
        check_size("a resized medium", bytes)?;
        let room = self.room();
        if bytes > room { Err(MediaError::Room { bytes, room }) } else { Ok(()) }
    }

    /// Changes the size. What is new reads as zeroes. The caller has checked the room, and made sure that
    /// nobody reads or writes what goes.
    pub(crate) fn resize(&self, bytes: u64) -> Result<(), MediaError> {
        match &self.0 {
            Medium::Ram(memory, size) => {
                let before = size.swap(bytes, Ordering::AcqRel);
                if bytes < before {
                    zero_memory(memory, bytes as usize, (before - bytes) as usize);
                }
                Ok(())
            }
            Medium::Null(size) => {
                size.store(bytes, Ordering::Release);
                Ok(())
            }
            Medium::File(file) => file.resize(bytes),
            Medium::Volatile(cache) => cache.resize(bytes),
            Medium::Backed(backing) => Err(MediaError::Room { bytes, room: backing.bytes() }),
        }
    }

    /// Copies `len` bytes at `offset` to `to_offset` of `to`.
    #[inline]
    pub(crate) fn read(&self, offset: u64, to: &Mapping, to_offset: usize, len: usize) -> Result<(), Status> {
        match &self.0 {
            Medium::Ram(memory, _) => memory.copy(offset as usize, to, to_offset, len),
            Medium::Null(_) => {}
            Medium::File(file) => file.read(offset, to, to_offset, len)?,
            Medium::Volatile(cache) => cache.read(offset, to, to_offset, len)?,
            Medium::Backed(from) => backing::read(&**from, offset, to, to_offset, len)?,
        }
        Ok(())
    }

    /// Copies `len` bytes at `from_offset` of `from` to `offset`.
    #[inline]
    pub(crate) fn write(
        &self,
        offset: u64,
        from: &Mapping,
        from_offset: usize,
        len: usize,
    ) -> Result<(), Status> {
        match &self.0 {
            Medium::Ram(memory, _) => from.copy(from_offset, memory, offset as usize, len),
            Medium::Null(_) => {}
            Medium::File(file) => file.write(offset, from, from_offset, len)?,
            Medium::Volatile(cache) => cache.write(offset, from, from_offset, len),
            Medium::Backed(to) => backing::write(&**to, offset, from, from_offset, len)?,
        }
        Ok(())
    }

    /// Makes bytes read as zeroes; `release` gives their space back where it can.
    pub(crate) fn zero(&self, span: Span, release: bool) -> Result<(), Status> {
        match &self.0 {
            Medium::Ram(memory, _) => zero_memory(memory, span.offset as usize, span.bytes as usize),
            Medium::Null(_) => {}
            Medium::File(file) => file.zero(span, release)?,
            Medium::Volatile(cache) => cache.zero(span),
            Medium::Backed(backing) => backing.zero(span.offset, span.bytes, release)?,
        }
        Ok(())
    }

    /// Whether writes must come in whole sectors, to whole sectors.
    #[inline]
    pub(crate) fn wants_sectors(&self) -> bool {
        matches!(self.0, Medium::Volatile(_) | Medium::Backed(_))
    }

    /// Whether the medium has something to flush at all.
    pub(crate) fn has_write_cache(&self) -> bool {
        match &self.0 {
            Medium::Ram(..) | Medium::Null(_) => false,
            Medium::File(_) | Medium::Volatile(_) | Medium::Backed(_) => true,
        }
    }

    /// Makes everything written before persistent.
    pub(crate) fn flush(&self) -> Result<(), Status> {
        match &self.0 {
            Medium::Ram(..) | Medium::Null(_) => Ok(()),
            Medium::File(file) => file.flush(),
            Medium::Volatile(cache) => cache.flush(),
            Medium::Backed(backing) => backing.flush(),
        }
    }

    /// Makes bytes persistent: the end of an FUA write.
    pub(crate) fn flush_range(&self, span: Span) -> Result<(), Status> {
        match &self.0 {
            Medium::Ram(..) | Medium::Null(_) => Ok(()),
            Medium::File(file) => file.flush(),
            Medium::Volatile(cache) => cache.flush_range(span),
            Medium::Backed(backing) => backing.flush(),
        }
    }
}

/// From this length on, giving pages back is cheaper than filling them, whose memory it also frees.
const RELEASE_BYTES: usize = 256 << 10;

fn zero_memory(memory: &Mapping, offset: usize, len: usize) {
    let (begin, end) = (offset.next_multiple_of(PAGE), (offset + len) & !(PAGE - 1));
    if len < RELEASE_BYTES || memory.release(begin, end - begin).is_err() {
        return memory.fill(offset, len, 0);
    }
    memory.fill(offset, begin - offset, 0);
    memory.fill(end, offset + len - end, 0);
}
