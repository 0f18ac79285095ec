//! The block cache of a disk: pages of the device in frames that the device knows.

use crate::disk::Disk;
use crate::error::{BlockError, short};
use crate::memory::Memory;
use crate::range::{Mode, RangeGuard};
use crate::readahead::Ahead;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use nvmed_cache::{
    Cache, Claim, Claimed, EvictionPolicy, FRAMES_MAX, Layout, Object, Options, PageState, Written,
};
use nvmed_io::{Device, Handle, IoError, Operation, Scatter, Segment};
use nvmed_sys::Pages;
use nvmed_units::{BLOCK_BYTES, BLOCK_SHIFT, ByteOffset, DeviceAddress, Lba, Page};
use rustix::io::Errno;
use std::sync::Arc;

/// Fewest frames: below, a call of some length would write back what it has just written.
const FRAMES_MIN: u64 = 64;
/// Share of the frames that may be dirty unless the options say otherwise: one in two.
const DIRTY_SHARE: u32 = 2;
/// Share of the frames that stays clean whatever the options say: reads need some.
const CLEAN_SHARE: u32 = 8;
/// Share of the frames that one miss fills at most, and the most pages that it does: 4 MiB.
const FILL_SHARE: u32 = 4;
const FILL_PAGES_MAX: u64 = 1024;
/// Tries to find a frame while others hold or write back all of them, before giving up.
const ROUNDS_MAX: u32 = 10_000;

/// When data that was written reaches the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritePolicy {
    /// At a flush, when too much is dirty, or when its frame is needed.
    #[default]
    Back,
    /// Before the write returns.
    Through,
}

/// How a block cache behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Bytes of all frames; at least 256 KiB are taken.
    pub bytes: u64,
    /// What stands behind the frames: huge pages are used if the kernel has them.
    pub pages: Pages,
    /// When data reaches the device.
    pub write: WritePolicy,
    /// In which order clean pages are given up.
    pub policy: EvictionPolicy,
    /// Dirty bytes above which a writer writes back first; 0 is half of the cache. An eighth stays clean in any case.
    pub dirty_bytes: u64,
}

impl CacheOptions {
    /// A write-back cache of so many bytes, in huge pages if there are any.
    #[must_use]
    pub fn bytes(bytes: u64) -> Self {
        let policy = EvictionPolicy::default();
        Self { bytes, pages: Pages::Huge, write: WritePolicy::Back, policy, dirty_bytes: 0 }
    }
}

/// What a cache did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Frames.
    pub frames: u64,
    /// Pages, or parts of pages, that a call found.
    pub hits: u64,
    /// Pages that were brought in, by reading ahead too.
    pub misses: u64,
    /// Clean pages given up for others.
    pub evictions: u64,
    /// Dirty pages now.
    pub dirty: u64,
    /// Pages written back.
    pub write_backs: u64,
    /// Write-backs of this disk that failed; their pages stayed dirty.
    pub write_backs_failed: u64,
}

/// Pages of one device.
pub(crate) struct BlockCache {
    device: Arc<Device>,
    pub(crate) cache: Cache,
    pub(crate) object: Arc<Object>,
    address: DeviceAddress,
    frames: u32,
    options: CacheOptions,
    fill_pages: u64,
    hits: AtomicU64,
    /// Threads that write back at this moment.
    pub(crate) busy: AtomicU32,
    /// Failed write-backs of this disk.
    pub(crate) failed: Arc<AtomicU32>,
    /// Where the next write-back for want of clean frames begins.
    pub(crate) cursor: AtomicU64,
}

/// Bytes of the host's memory.
fn host_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}

/// The page of a byte, and the byte's place in it.
fn split(offset: u64) -> (Page, usize) {
    let at = ByteOffset(offset);
    (at.page(), at.within())
}

/// The pages that a range of bytes touches.
pub(crate) fn pages_of(offset: u64, len: u64) -> Range<Page> {
    ByteOffset(offset).page()..ByteOffset(offset + len).page_end()
}

/// The bytes of pages.
pub(crate) fn bytes_of(pages: &Range<Page>) -> Range<u64> {
    pages.start.start().0..pages.end.start().0
}

impl BlockCache {
    pub(crate) fn new(
        device: &Arc<Device>,
        options: CacheOptions,
        failed: &Arc<AtomicU32>,
    ) -> Result<Arc<Self>, BlockError> {
        let frames = (options.bytes / BLOCK_BYTES as u64).clamp(FRAMES_MIN, u64::from(FRAMES_MAX)) as u32;
        let table_offset = frames as usize * BLOCK_BYTES;
        let bytes = table_offset + Layout::table_bytes(frames);
        // The kernel would give addresses for more, and memory for none of it.
        if bytes as u64 > host_bytes() {
            return Err(BlockError::Memory { bytes, errno: Errno::NOMEM });
        }
        let memory = device.engine().memory(bytes, options.pages);
        let memory = memory.map_err(|error| BlockError::Memory { bytes, errno: error.errno() })?;
        // A forked child must not make the parent's pages change under the device.
        memory.forbid_fork().map_err(|errno| BlockError::Memory { bytes, errno })?;
        let memory = Arc::new(memory);
        let address = device.map(Arc::clone(&memory))?;
        let layout = Layout { table_offset, frames_offset: 0, frames };
        let dirty = match options.dirty_bytes >> BLOCK_SHIFT {
            0 => frames / DIRTY_SHARE,
            pages => u32::try_from(pages).unwrap_or(u32::MAX).min(frames - frames / CLEAN_SHARE),
        };
        Ok(Arc::new(Self {
            device: Arc::clone(device),
            cache: Cache::new(memory, layout, Options { dirty_limit_frames: dirty, policy: options.policy }),
            object: Object::new(0),
            address,
            frames,
            options,
            fill_pages: u64::from(frames / FILL_SHARE).min(FILL_PAGES_MAX),
            hits: AtomicU64::new(0),
            busy: AtomicU32::new(0),
            failed: Arc::clone(failed),
            cursor: AtomicU64::new(0),
        }))
    }

    pub(crate) fn options(&self) -> &CacheOptions {
        &self.options
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let cache = self.cache.stats();
        CacheStats {
            frames: u64::from(self.frames),
            hits: self.hits.load(Ordering::Relaxed),
            misses: cache.misses,
            evictions: cache.evictions,
            dirty: cache.dirty,
            write_backs: cache.writebacks,
            write_backs_failed: u64::from(self.failed.load(Ordering::Relaxed)),
        }
    }

    /// The frame at an offset of the mapping, for the device.
    fn segment(&self, offset: usize) -> Segment {
        Segment { address: self.address.plus(offset as u64), bytes: BLOCK_BYTES as u32 }
    }

    fn lba(&self, page: Page) -> Lba {
        Lba(page.0 << (BLOCK_SHIFT - self.device.geometry().lba_bytes.trailing_zeros()))
    }

    /// Reads pages into frames or writes frames to pages, each given with the offset of its frame.
    pub(crate) fn transfer(
        &self,
        io: &Handle,
        operation: Operation,
        pages: impl ExactSizeIterator<Item = (Page, usize)>,
    ) -> Result<(), IoError> {
        let mut list = Scatter::with_capacity(pages.len());
        for (page, offset) in pages {
            let lba = self.lba(page);
            list.push(lba, (self.lba(page + 1).0 - lba.0) as u32, self.segment(offset));
        }
        io.scatter(operation, &list)
    }

    /// Reads as long as pages are there; answers how many bytes.
    fn read_resident(&self, memory: &mut Memory<'_, '_>, at: usize, offset: u64, len: usize) -> usize {
        let (mut done, mut hits) = (0, 0);
        while done < len {
            let (page, within) = split(offset + done as u64);
            let part = (len - done).min(BLOCK_BYTES - within);
            let mut copied = 0;
            let found = memory.each_mut(at + done, part, |bytes| {
                let found = self.cache.read(&self.object, page, within + copied, bytes);
                copied += bytes.len();
                if found { Ok(()) } else { Err(()) }
            });
            if found.is_err() {
                break;
            }
            (done, hits) = (done + part, hits + 1);
        }
        self.hits.fetch_add(hits, Ordering::Relaxed);
        done
    }

    /// Fills a page, and as many of the `pages` from it on as are missing and at hand. The caller holds
    /// their range.
    fn fill(&self, io: &Handle, pages: Range<Page>) -> Result<(), BlockError> {
        let Claimed::Fill(first) = self.claim(io, pages.start)? else { return Ok(()) };
        let pages = pages.start..pages.end.min(pages.start + self.fill_pages);
        let mut claims = Vec::with_capacity((pages.end - pages.start) as usize);
        claims.push(first);
        for page in Page::each(pages.start + 1..pages.end) {
            match self.cache.try_claim(&self.object, page) {
                Ok(Some(claim)) => claims.push(claim),
                // There already, or no frame left for reading ahead.
                Ok(None) | Err(_) => break,
            }
        }
        if let Err(error) = self.load(io, &claims) {
            if claims.len() == 1 {
                return Err(error);
            }
            // What nobody has asked for may fail; the page itself is tried alone.
            claims.truncate(1);
            self.load(io, &claims)?;
        }
        for claim in claims {
            claim.publish(PageState { dirty: false, backed: true });
        }
        Ok(())
    }

    /// Reads pages into their claimed frames.
    fn load(&self, io: &Handle, claims: &[Claim<'_>]) -> Result<(), BlockError> {
        Ok(self.transfer(io, Operation::Read, claims.iter().map(|claim| (claim.page(), claim.offset())))?)
    }

    /// Claims a page, writing others back if there is no frame. The caller holds no claim.
    fn claim(&self, io: &Handle, page: Page) -> Result<Claimed<'_>, BlockError> {
        for _ in 0..ROUNDS_MAX {
            if let Ok(claimed) = self.cache.claim(&self.object, page) {
                return Ok(claimed);
            }
            if self.relieve(io)? == 0 {
                // Others hold all clean frames at this moment, or write back.
                std::thread::yield_now();
            }
        }
        Err(BlockError::CacheFull)
    }

    /// Writes to pages, bringing in those that are not there and not written whole. The caller holds their range.
    fn write(
        &self,
        io: &Handle,
        memory: &Memory<'_, '_>,
        offset: u64,
        len: usize,
    ) -> Result<usize, BlockError> {
        let (mut done, mut hits) = (0, 0);
        while done < len {
            let (page, within) = split(offset + done as u64);
            let part = (len - done).min(BLOCK_BYTES - within);
            if self.write_resident(memory, done, page, within, part) {
                hits += 1;
            } else if let Err(error) = self.write_missing(io, memory, done, page, within, part) {
                return short(done, error);
            }
            done += part;
        }
        self.hits.fetch_add(hits, Ordering::Relaxed);
        Ok(len)
    }

    /// Writes to a page if it is there. A page that goes away between two pieces of memory is written as missing.
    fn write_resident(
        &self,
        memory: &Memory<'_, '_>,
        at: usize,
        page: Page,
        within: usize,
        len: usize,
    ) -> bool {
        let mut copied = 0;
        let found = memory.each(at, len, |bytes| {
            let written = self.cache.write(&self.object, page, within + copied, bytes);
            copied += bytes.len();
            // Every page of a device has its blocks: none is `Unbacked`.
            if matches!(written, Written::Done { .. }) { Ok(()) } else { Err(()) }
        });
        found.is_ok()
    }

    fn write_missing(
        &self,
        io: &Handle,
        memory: &Memory<'_, '_>,
        at: usize,
        page: Page,
        within: usize,
        len: usize,
    ) -> Result<(), BlockError> {
        loop {
            if let Claimed::Fill(claim) = self.claim(io, page)? {
                if len < BLOCK_BYTES {
                    self.load(io, core::slice::from_ref(&claim))?;
                }
                let mut copied = 0;
                let Ok(()) = memory.each(at, len, |bytes| {
                    claim.write(within + copied, bytes);
                    copied += bytes.len();
                    Ok::<(), core::convert::Infallible>(())
                });
                claim.publish(PageState { dirty: true, backed: true });
                return Ok(());
            }
            if self.write_resident(memory, at, page, within, len) {
                return Ok(());
            }
        }
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        self.device.unmap(self.address);
    }
}

impl Disk {
    /// Reads through the cache, or straight where there is none.
    pub(crate) fn read_cached(
        &self,
        io: &Handle,
        ahead: &Ahead,
        memory: &mut Memory<'_, '_>,
        offset: u64,
        len: usize,
    ) -> Result<usize, BlockError> {
        let mut done = 0;
        while let Some(cache) = self.cache() {
            let whole = self.cached_len(offset, len);
            done += cache.read_resident(memory, done, offset + done as u64, whole.saturating_sub(done));
            if done >= whole {
                break;
            }
            if let Err(error) = self.miss(io, &cache, ahead, offset + done as u64, whole - done) {
                return short(done, error);
            }
        }
        if done < len {
            return match self.read_direct(io, memory, done, offset + done as u64, len - done) {
                Ok(more) => Ok(done + more),
                Err(error) => short(done, error),
            };
        }
        Ok(done)
    }

    /// How much of a range lies on whole pages; the rest, less than a page at the end of an odd device, is not cached.
    fn cached_len(&self, offset: u64, len: usize) -> usize {
        let end = self.bytes() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        len.min(usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX))
    }

    /// Brings in the page of `offset`, and what is wanted or expected behind it.
    #[cold]
    fn miss(
        &self,
        io: &Handle,
        cache: &Arc<BlockCache>,
        ahead: &Ahead,
        offset: u64,
        len: usize,
    ) -> Result<(), BlockError> {
        let wanted = pages_of(offset, len as u64);
        let mut windows = Vec::new();
        ahead.miss(wanted, ByteOffset(self.bytes()).page(), cache.fill_pages, &mut windows);
        for (index, window) in windows.into_iter().enumerate() {
            let _held = self.lock(bytes_of(&window), Mode::Shared);
            if !self.is_current(cache) {
                return Ok(());
            }
            match cache.fill(io, window) {
                Err(error) if index == 0 => return Err(error),
                // Reading ahead may fail: the call that needs the page will fail.
                Err(_) => return Ok(()),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Writes through the cache, or straight where there is none.
    pub(crate) fn write_cached(
        &self,
        io: &Handle,
        memory: &Memory<'_, '_>,
        offset: u64,
        len: usize,
        fua: bool,
    ) -> Result<usize, BlockError> {
        let pages = pages_of(offset, len as u64);
        let held = self.lock(bytes_of(&pages), Mode::Shared);
        let whole = self.cached_len(offset, len);
        let Some(cache) = self.cache().filter(|_| whole == len) else {
            drop(held);
            return self.write_past(io, memory, offset, len, fua);
        };
        let done = cache.write(io, memory, offset, len)?;
        if fua || cache.options.write == WritePolicy::Through {
            cache.write_durable(io, pages_of(offset, done as u64), fua)?;
        }
        drop(held);
        if cache.cache.over_limit() {
            // Who writes faster than the device waits for it here. An error is told by the next flush.
            let _ = cache.relieve(io);
        }
        Ok(done)
    }

    /// Writes straight to the device; the cache forgets what it had of the range.
    pub(crate) fn write_past(
        &self,
        io: &Handle,
        memory: &Memory<'_, '_>,
        offset: u64,
        len: usize,
        fua: bool,
    ) -> Result<usize, BlockError> {
        let _held = self.lock_past(io, offset, len as u64)?;
        self.write_direct(io, memory, offset, len, fua)
    }

    /// The right to change a range past the cache, which has nothing of it from then on.
    pub(crate) fn lock_past(&self, io: &Handle, offset: u64, len: u64) -> Result<RangeGuard<'_>, BlockError> {
        loop {
            let cache = self.cache();
            let (range, mode) = match &cache {
                // Alone: a page that is brought in meanwhile could be older than what is written.
                Some(_) => (bytes_of(&pages_of(offset, len)), Mode::Exclusive),
                None if self.is_aligned(offset, len) => (self.blocks_of(offset, len), Mode::Shared),
                None => (self.blocks_of(offset, len), Mode::Exclusive),
            };
            let held = self.lock(range, mode);
            match cache {
                None if !self.has_cache() => return Ok(held),
                Some(cache) if self.is_current(&cache) => {
                    cache.forget(io, offset, len)?;
                    return Ok(held);
                }
                // Switched on or off meanwhile.
                _ => {}
            }
        }
    }

    /// Before a range is read past the cache: what is newer in the cache goes to the device.
    pub(crate) fn settle(&self, io: &Handle, offset: u64, len: u64) -> Result<(), BlockError> {
        match self.cache() {
            Some(cache) => cache.settle(io, pages_of(offset, len)),
            None => Ok(()),
        }
    }
}
