//! Pages as a placement of bytes: what is at hand is copied here, in a loop over pages without a lock.

use crate::bytes::{Data, Placement, Short};
use crate::error::FsError;
use crate::filedata::{Growing, Stream};
use crate::flight::{DirectIo, Wish};
use crate::inode::Inode;
use crate::pages::Pages;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use nvmed_cache::Written;
use nvmed_io::Handle;
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, BLOCK_SHIFT};

impl Placement for Pages {
    // Called from each form of a read: without this it is a call of its own in all of them.
    #[inline(always)]
    fn read(&self, inode: &Inode, into: &mut [u8], at: u64) -> usize {
        let mut done = 0;
        loop {
            let position = at + done as u64;
            let (page, within) = (position >> BLOCK_SHIFT, position as usize % BLOCK_BYTES);
            let part = (into.len() - done).min(BLOCK_BYTES - within);
            if !self.cache.read(&inode.data.object, page, within, &mut into[done..done + part]) {
                return done;
            }
            done += part;
            if done == into.len() {
                return done;
            }
        }
    }

    fn bring(&self, inode: &Arc<Inode>, stream: Option<&Stream>, range: Range<u64>) -> Result<(), FsError> {
        assert!(range.start < range.end, "no byte of {range:?} is missing");
        if let Some(stream) = stream {
            return self.miss(inode, stream, range);
        }
        let page = range.start >> BLOCK_SHIFT;
        let wanted = range.end.div_ceil(BLOCK_BYTES as u64) - page;
        self.fill(inode, page, wanted.min(self.fill_pages))
    }

    #[inline]
    fn overwrite(&self, inode: &Arc<Inode>, from: &[u8], at: u64) -> usize {
        let mut done = 0;
        while done < from.len() {
            let position = at + done as u64;
            let (page, within) = (position >> BLOCK_SHIFT, position as usize % BLOCK_BYTES);
            let part = (from.len() - done).min(BLOCK_BYTES - within);
            let object = &inode.data.object;
            match self.cache.write(object, page, within, &from[done..done + part]) {
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

    fn write(&self, grow: &Growing<'_>, inode: &Arc<Inode>, from: &[u8], at: u64) -> Result<(), Short> {
        self.write_pages(grow, inode, from, at)
    }

    fn zero_tail(&self, grow: &Growing<'_>, inode: &Arc<Inode>, size: u64) -> Result<(), FsError> {
        self.zero_last(grow, inode, size)
    }

    fn grown(&self, inode: &Arc<Inode>, size: u64) {
        let before = inode.size.load(Ordering::Acquire);
        let grows = before <= size && size <= crate::FILE_BYTES_MAX;
        assert!(grows, "a file of {before} bytes grows to {size}");
        self.set_size(inode, size);
    }

    fn cut(&self, grow: &Growing<'_>, inode: &Arc<Inode>, size: u64) -> Result<(), FsError> {
        let before = inode.size.load(Ordering::Acquire);
        assert!(size <= before, "a file of {before} bytes is cut to {size}");
        self.shrink(grow, inode, size)
    }

    fn next_of(&self, inode: &Arc<Inode>, at: u64, data: bool) -> Result<Option<u64>, FsError> {
        self.next_place(inode, at, data)
    }

    fn transfer(
        &self,
        file: (&Arc<Inode>, &Arc<dyn Any + Send + Sync>),
        handle: &Handle,
        wish: &Wish,
    ) -> Result<Option<Arc<DirectIo>>, FsError> {
        self.transfer_directly(file, handle, wish)
    }

    fn settle(&self, inode: &Arc<Inode>, range: Range<u64>, how: Data) -> Result<(), FsError> {
        self.write_back_range(inode, range, how)
    }

    fn maps_written(&self) -> &AtomicU32 {
        &self.maps_written
    }

    #[inline]
    fn modified(&self, inode: &Arc<Inode>) {
        self.meta.modified(inode);
    }

    #[inline]
    fn relieve_if_full(&self) {
        if self.cache.over_limit() {
            self.relieve();
        }
    }
}
