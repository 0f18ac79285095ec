//! Pages as a placement of bytes: what is at hand is copied here, in a loop over pages without a lock.

use crate::bytes::{Data, Placement, Short};
use crate::error::FsError;
use crate::filedata::{Growing, Stream};
use crate::flight::{DirectIo, Wish};
use crate::inode::Inode;
use crate::pages::Pages;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::AtomicU32;
use nvmed_cache::Written;
use nvmed_io::Handle;
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, ByteOffset};

impl Placement for Pages {
    // Called from each form of a read: without this it is a call of its own in all of them.
    #[inline(always)]
    fn read(&self, inode: &Inode, into: &mut [u8], at: ByteOffset) -> usize {
        let mut done = 0;
        loop {
            let position = at + done as u64;
            let (page, within) = (position.page(), position.within());
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

    fn bring(
        &self,
        inode: &Arc<Inode>,
        stream: Option<&Stream>,
        range: Range<ByteOffset>,
    ) -> Result<(), FsError> {
        assert!(range.start < range.end, "no byte of {}..{} is missing", range.start, range.end);
        if let Some(stream) = stream {
            return self.miss(inode, stream, range);
        }
        let page = range.start.page();
        let wanted = range.end.page_end() - page;
        self.fill(inode, page, wanted.min(self.fill_pages))
    }

    #[inline]
    fn overwrite(&self, inode: &Arc<Inode>, from: &[u8], at: ByteOffset) -> usize {
        let mut done = 0;
        while done < from.len() {
            let position = at + done as u64;
            let (page, within) = (position.page(), position.within());
            let part = (from.len() - done).min(BLOCK_BYTES - within);
            let object = &inode.data.object;
            match self.cache.write(object, page, within, &from[done..done + part]) {
                Written::Done { first_dirty, .. } => {
                    if first_dirty {
                        self.unrecorded.list(inode);
                    }
                    done += part;
                }
                Written::Absent | Written::Unbacked => break,
            }
        }
        done
    }

    fn write(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        from: &[u8],
        at: ByteOffset,
    ) -> Result<(), Short> {
        self.write_pages(grow, inode, from, at)
    }

    fn zero_tail(&self, grow: &Growing<'_>, inode: &Arc<Inode>, end: ByteOffset) -> Result<(), FsError> {
        self.zero_last(grow, inode, end)
    }

    fn grown(&self, inode: &Arc<Inode>, end: ByteOffset) {
        let before = inode.end();
        let grows = before <= end && end.0 <= crate::FILE_BYTES_MAX;
        assert!(grows, "a file of {before} bytes grows to {end}");
        self.unrecorded.set_size(inode, end, None);
    }

    fn cut(&self, grow: &Growing<'_>, inode: &Arc<Inode>, end: ByteOffset) -> Result<(), FsError> {
        let before = inode.end();
        assert!(end <= before, "a file of {before} bytes is cut to {end}");
        self.shrink(grow, inode, end)
    }

    fn next_of(&self, inode: &Arc<Inode>, at: ByteOffset, data: bool) -> Result<Option<ByteOffset>, FsError> {
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

    fn settle(&self, inode: &Arc<Inode>, range: Range<ByteOffset>, how: Data) -> Result<(), FsError> {
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
        if self.device.has_urgent() {
            self.relieve_beside_urgent();
        } else if self.cache.over_limit() {
            self.relieve();
        }
    }
}
