//! What a program says about how it will use a file: posix_fadvise(2), and the paper's `ffs_prealloc` and
//! `ffs_readahead` for one file.

use crate::bytes::Data;
use crate::error::FsError;
use crate::file::File;
use crate::filedata::AS_MOUNTED;
use crate::status::OpenFlags;
use core::sync::atomic::Ordering;
use nvmed_layout::FileType;
use nvmed_nvm::Hint;
use nvmed_units::{BLOCK_BYTES, ByteOffset, Page};
use serde::{Deserialize, Serialize};

/// A sequential reader's window, in windows of the mount (as Linux does it).
const SEQUENTIAL_WINDOWS: u64 = 2;
const PAGE: u64 = BLOCK_BYTES as u64;

/// How a file will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Advice {
    /// As the mount says: `POSIX_FADV_NORMAL`.
    Normal,
    /// From start to end: twice the readahead.
    Sequential,
    /// Anywhere: no readahead.
    Random,
    /// The range is wanted soon: it is read into the cache, as far as the cache has room for one call.
    WillNeed,
    /// The range is not wanted any more: what is dirty of it is written back, and its pages leave the cache.
    DontNeed,
}

impl File {
    /// Takes a program's advice. `Normal`, `Sequential` and `Random` are about this open description and the whole
    /// file (in place, about the file, whoever reads it); 0 bytes reach to its end.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`] for what is no open file; with `WillNeed` and `DontNeed` what reading or writing
    /// answers.
    pub fn advise(&self, advice: Advice, offset: u64, bytes: u64) -> Result<(), FsError> {
        if self.flags().has(OpenFlags::PATH) || self.inode.kind != FileType::File {
            return Err(FsError::BadDescriptor);
        }
        let (offset, file_end) = (ByteOffset(offset), self.inode.end());
        let end = if bytes == 0 { ByteOffset::END } else { offset.saturating_plus(bytes) };
        match advice {
            Advice::Normal => {
                self.set_readahead(self.core.placed.window_pages().0 * PAGE);
                self.core.placed.expect(&self.inode, Hint::Normal);
            }
            Advice::Sequential => {
                self.set_readahead(self.core.placed.window_pages().0 * PAGE * SEQUENTIAL_WINDOWS);
                self.core.placed.expect(&self.inode, Hint::Sequential);
            }
            Advice::Random => {
                self.set_readahead(0);
                self.core.placed.expect(&self.inode, Hint::Random);
            }
            Advice::WillNeed => {
                self.core.placed.fill_range(&self.inode, offset.page()..end.min(file_end).page_end())?;
            }
            Advice::DontNeed => {
                // Whole pages only: the edges may be wanted still.
                let pages = offset.page_end()..if end >= file_end { Page::END } else { end.page() };
                if pages.start < pages.end {
                    if !self.core.options.read_only {
                        let range = pages.start.start()..pages.end.start();
                        self.core.placed.settle(&self.inode, range, Data::Cached)?;
                    }
                    self.core.placed.forget_range(&self.inode, pages);
                }
            }
        }
        Ok(())
    }

    /// The largest readahead window of this open description, in bytes; 0 is none (`ffs_readahead` for one file).
    pub fn set_readahead(&self, bytes: u64) {
        let pages = (bytes / PAGE).min(self.core.placed.window_pages().1);
        self.stream.readahead_pages.store(pages, Ordering::Relaxed);
    }

    /// How many bytes are allocated ahead of the file when it grows, while it is open (`ffs_prealloc` for one file);
    /// none leaves it to the mount. What was allocated and not used goes back at the last close.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`] for what is not a file open for writing.
    pub fn preallocate(&self, bytes: Option<u64>) -> Result<(), FsError> {
        self.changeable(self.flags())?;
        let blocks = bytes.map_or(AS_MOUNTED, |bytes| {
            u32::try_from(bytes.div_ceil(PAGE)).unwrap_or(AS_MOUNTED).min(AS_MOUNTED - 1)
        });
        self.inode.data.prealloc_blocks.store(blocks, Ordering::Relaxed);
        Ok(())
    }
}
