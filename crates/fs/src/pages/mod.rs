//! The bytes of files in pages of the cache, over blocks of the device: a [`crate::bytes::Placement`].
//!
//! In: byte ranges. Out: copies, requests to the device, changes of extents. What lies at hand is copied in
//! `placement`; everything slower is in `fill`, `write`, `resize`, `writeback`.

mod ahead;
#[cfg(test)]
mod ahead_tests;
mod convoy;
mod direct;
mod fill;
#[cfg(test)]
mod guard_tests;
mod placement;
#[cfg(test)]
mod rank_tests;
mod resize;
mod steps;
mod write;
mod writeback;

use crate::error::FsError;
use crate::flight::DIRECT_ALIGN_MIN;
use crate::inode::Inode;
use crate::memory::Memory;
use crate::metadata::Metadata;
use crate::metadata::promises::PagePromise;
use crate::options::{INLINE_BYTES_MAX, MountOptions};
use crate::pages::ahead::Ahead;
use crate::pages::steps::Steps;
use crate::pages::writeback::RELIEF_PAGES;
use crate::unrecorded::Unrecorded;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use nvmed_cache::{Cache, Options};
use nvmed_io::{Device, Handle, Segment};
use nvmed_kv::DeviceMedium;
use nvmed_layout::FileType;
use nvmed_sys::sync::{Arc, OnceLock};
use nvmed_units::{BLOCK_BYTES, DeviceAddress, Page};

/// Share of the frames that may be dirty, unless the options say otherwise: one in two.
const DIRTY_SHARE: u32 = 2;
/// The share of frames that stays clean whatever the settings say: reads need some.
const CLEAN_SHARE: u32 = 8;
/// Share of the frames that one call fills at once at most: one in four.
const FILL_SHARE: u32 = 4;

/// The pages of a mount: cache, frames and their device addresses, and what of them waits to be written.
pub(crate) struct Pages {
    pub(crate) meta: Arc<Metadata>,
    device: Arc<Device>,
    lbas_per_block: u64,
    cache: Cache,
    /// Where the device finds the mapping that the frames are in.
    address: DeviceAddress,
    pub(crate) unrecorded: Unrecorded,
    steps: Steps,
    /// Unparked when it should write back ahead of writers, or start who reads ahead.
    relief: OnceLock<std::thread::Thread>,
    ahead: Ahead,
    /// Pages that a writer over the limit tries to write back: fewer when the device has refused some.
    relief_pages: AtomicUsize,
    /// Pages of the largest readahead window, and of one fill.
    readahead_pages: u64,
    /// Whether a window may be larger for who waits long for it.
    readahead_grows: bool,
    fill_pages: u64,
    /// Size of the largest file whose bytes its record holds.
    inline_bytes: u64,
    /// Inodes that programs may store into.
    maps_written: AtomicU32,
    direct_align: u32,
}

impl Pages {
    pub(crate) fn new(
        meta: &Arc<Metadata>,
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
            meta: Arc::clone(meta),
            device: Arc::clone(device),
            lbas_per_block: DeviceMedium::lbas_per_block(device)?,
            cache: Cache::new(
                Arc::clone(&memory.mapping),
                layout,
                Options { dirty_limit_frames: limit, policy: options.cache_policy },
            ),
            address: device.map(Arc::clone(&memory.mapping))?,
            unrecorded: Unrecorded::new(meta, memory),
            steps: Steps::default(),
            relief: OnceLock::new(),
            ahead: Ahead::default(),
            relief_pages: AtomicUsize::new(RELIEF_PAGES),
            readahead_pages: (options.readahead_bytes / BLOCK_BYTES as u64).min(fill_pages),
            readahead_grows: options.readahead_grows,
            fill_pages,
            inline_bytes: u64::from(options.inline_bytes.min(INLINE_BYTES_MAX)),
            maps_written: AtomicU32::new(0),
            direct_align: device.geometry().lba_bytes.max(DIRECT_ALIGN_MIN),
        })
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The inode leaves memory: its pages go, promises and preallocation are given back.
    pub(crate) fn forget(&self, inode: &Arc<Inode>) {
        if inode.kind != FileType::File {
            return;
        }
        let data = &inode.data;
        let opens = inode.opens.load(Ordering::SeqCst);
        assert_eq!(opens, 0, "inode {} leaves memory while it is open", inode.ino);
        let _quiet = data.quiet();
        self.cache.write_back(&data.object).discard(Page::ALL);
        let dirty = data.object.dirty_pages();
        assert_eq!(dirty, 0, "inode {} leaves memory and has dirty pages", inode.ino);
        drop(PagePromise::all_taken_back(&self.meta, inode));
        self.meta.give_back_ahead(inode);
        self.meta.drop_prealloc(inode);
        self.unrecorded.forget(inode);
        self.meta.journal.order.forget(data.ticket.load(Ordering::SeqCst));
    }

    /// Pages of the largest readahead window, and of one fill.
    pub(crate) fn window_pages(&self) -> (u64, u64) {
        (self.readahead_pages, self.fill_pages)
    }

    /// What a direct transfer is aligned to, in bytes.
    pub(crate) fn direct_align(&self) -> u32 {
        self.direct_align
    }

    /// The frame at an offset of the mapping, for the device.
    fn segment(&self, offset: usize) -> Segment {
        assert!(offset.is_multiple_of(BLOCK_BYTES), "a frame at offset {offset}");
        Segment { address: self.address.plus(offset as u64), bytes: BLOCK_BYTES as u32 }
    }

    /// The handle by which an inode's data moves.
    fn handle_of(&self, inode: &Inode) -> Handle {
        inode.data.handle.lock().as_ref().map_or(&self.meta.handle, |(_, handle)| handle).clone()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.device.unmap(self.address);
    }
}
