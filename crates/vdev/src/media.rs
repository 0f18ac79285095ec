//! What the controller stores blocks in.

use crate::error::MediaError;
use crate::file::{FileMedium, FileOptions};
use crate::volatile::Volatile;
use nvmed_nvme::Status;
use nvmed_sys::{Mapping, Pages};

/// Bytes in a page of every host memory and medium.
pub(crate) const PAGE_BYTES: u64 = 4096;
const PAGE: usize = PAGE_BYTES as usize;
/// Bytes that a processor fetches at once.
const CACHE_LINE: usize = 64;

/// A store of bytes, addressed by byte offset. All accesses are inside [`Media::bytes`]: the controller
/// has checked the range.
#[derive(Debug)]
pub struct Media(Kind);

#[derive(Debug)]
enum Kind {
    Ram(Mapping),
    Null(u64),
    File(FileMedium),
    Volatile(Box<Volatile>),
}

impl Media {
    /// Zeroed memory of this process.
    ///
    /// # Errors
    /// The size is no whole number of pages, or there is no memory for it.
    pub fn ram(bytes: u64, pages: Pages) -> Result<Self, MediaError> {
        check_size("media=dram", bytes)?;
        let len = usize::try_from(bytes).map_err(|_| MediaError::size("media=dram", bytes))?;
        let memory = Mapping::anonymous(len, pages).map_err(|errno| MediaError::Memory { bytes, errno })?;
        Ok(Self(Kind::Ram(memory)))
    }

    /// Nothing: commands succeed and no data moves, to measure everything else.
    ///
    /// # Errors
    /// The size is no whole number of pages.
    pub fn null(bytes: u64) -> Result<Self, MediaError> {
        check_size("media=null", bytes)?;
        Ok(Self(Kind::Null(bytes)))
    }

    /// A file.
    ///
    /// # Errors
    /// It cannot be opened, is no image, or is in use.
    pub fn file(options: FileOptions) -> Result<Self, MediaError> {
        FileMedium::open(options).map(|file| Self(Kind::File(file)))
    }

    /// `inner` behind a write cache that loses its content with the process: what is neither flushed nor
    /// written with FUA never reaches `inner`.
    #[must_use]
    pub fn volatile(inner: Self) -> Self {
        Self(Kind::Volatile(Box::new(Volatile::new(inner))))
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Kind::Ram(memory) => memory.len() as u64,
            Kind::Null(bytes) => *bytes,
            Kind::File(file) => file.bytes(),
            Kind::Volatile(cache) => cache.bytes(),
        }
    }

    /// Asks for `len` bytes at `offset`, which may lie outside, to be at hand soon.
    #[inline]
    pub(crate) fn foresee(&self, offset: u64, len: usize) {
        if let Kind::Ram(memory) = &self.0 {
            for line in (0..len).step_by(CACHE_LINE) {
                memory.prefetch_read((offset as usize).wrapping_add(line));
            }
        }
    }

    /// Copies `len` bytes at `offset` to `to_offset` of `to`.
    #[inline]
    pub(crate) fn read(&self, offset: u64, to: &Mapping, to_offset: usize, len: usize) -> Result<(), Status> {
        match &self.0 {
            Kind::Ram(memory) => memory.copy(offset as usize, to, to_offset, len),
            Kind::Null(_) => {}
            Kind::File(file) => file.read(offset, to, to_offset, len)?,
            Kind::Volatile(cache) => cache.read(offset, to, to_offset, len)?,
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
            Kind::Ram(memory) => from.copy(from_offset, memory, offset as usize, len),
            Kind::Null(_) => {}
            Kind::File(file) => file.write(offset, from, from_offset, len)?,
            Kind::Volatile(cache) => cache.write(offset, from, from_offset, len),
        }
        Ok(())
    }

    /// Makes `len` bytes at `offset` read as zeroes; `release` gives their space back where it can.
    pub(crate) fn zero(&self, offset: u64, len: u64, release: bool) -> Result<(), Status> {
        match &self.0 {
            Kind::Ram(memory) => zero_memory(memory, offset as usize, len as usize),
            Kind::Null(_) => {}
            Kind::File(file) => file.zero(offset, len, release)?,
            Kind::Volatile(cache) => cache.zero(offset, len),
        }
        Ok(())
    }

    /// Whether writes must come in whole sectors, to whole sectors.
    #[inline]
    pub(crate) fn wants_sectors(&self) -> bool {
        matches!(self.0, Kind::Volatile(_))
    }

    /// Whether the medium has something to flush at all.
    pub(crate) fn has_write_cache(&self) -> bool {
        match &self.0 {
            Kind::Ram(_) | Kind::Null(_) => false,
            Kind::File(_) | Kind::Volatile(_) => true,
        }
    }

    /// Makes everything written before persistent.
    pub(crate) fn flush(&self) -> Result<(), Status> {
        match &self.0 {
            Kind::Ram(_) | Kind::Null(_) => Ok(()),
            Kind::File(file) => file.flush(),
            Kind::Volatile(cache) => cache.flush(),
        }
    }

    /// Makes the `len` bytes at `offset` persistent: the end of an FUA write.
    pub(crate) fn flush_range(&self, offset: u64, len: u64) -> Result<(), Status> {
        match &self.0 {
            Kind::Ram(_) | Kind::Null(_) => Ok(()),
            Kind::File(file) => file.flush(),
            Kind::Volatile(cache) => cache.flush_range(offset, len),
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

/// A device is a whole number of pages, at least one.
pub(crate) fn check_size(place: &str, bytes: u64) -> Result<(), MediaError> {
    if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(MediaError::size(place, bytes));
    }
    Ok(())
}
