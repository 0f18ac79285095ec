//! Fallocate over the placements that lie on blocks: what is the same about it wherever the bytes are.

use crate::ZEROES;
use crate::bytes::Bytes;
use crate::error::FsError;
use crate::filedata::Growing;
use crate::inode::Inode;
use crate::metadata::holdings::edges;
use crate::status::Allocate;
use core::ops::Range;
use nvmed_sys::sync::Arc;
use nvmed_units::{ByteOffset, Page};

/// What a placement on blocks does of fallocate itself. The caller of each holds `grow`.
pub(crate) trait Allocation: Bytes {
    /// What there is to be done before blocks of a file come or go.
    ///
    /// # Errors
    /// The store's.
    fn prepare(&self, _grow: &Growing<'_>, _inode: &Arc<Inode>) -> Result<(), FsError> {
        Ok(())
    }

    /// Whether a page has data, so that a part of it has to be zeroed.
    ///
    /// # Errors
    /// The store's.
    fn has_data(&self, inode: &Inode, page: Page) -> Result<bool, FsError>;

    /// Makes holes of whole pages.
    ///
    /// # Errors
    /// The store's.
    fn take_away(&self, grow: &Growing<'_>, inode: &Arc<Inode>, pages: Range<Page>) -> Result<(), FsError>;

    /// Gives a file that lies in its record, or is about to, blocks instead.
    ///
    /// # Errors
    /// As for a write.
    fn move_out_of_record(&self, grow: &Growing<'_>, inode: &Arc<Inode>) -> Result<(), FsError>;

    /// Gives every page of a range a block; new ones read as zeroes. Without room for all of them, none is allocated.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Quota`]; the store's.
    fn allocate_holes(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        pages: Range<Page>,
    ) -> Result<(), FsError>;

    /// Allocates, punches or zeroes a range.
    ///
    /// # Errors
    /// Those of the others.
    fn allocate_range(
        &self,
        inode: &Arc<Inode>,
        how: Allocate,
        range: Range<ByteOffset>,
    ) -> Result<(), FsError> {
        let grow = inode.data.grow();
        let file_end = inode.end();
        let grows = range.end > file_end && !how.keep_size;
        self.prepare(&grow, inode)?;
        if how.punch_hole || how.zero_range {
            let inside = range.start..range.end.min(if how.keep_size { file_end } else { range.end });
            self.zero_edges(&grow, inode, &inside, file_end)?;
            let whole = range.start.page_end()..range.end.page();
            if whole.start < whole.end {
                self.take_away(&grow, inode, whole)?;
                inode.data.punch_mapped(range.clone())?;
            }
        }
        if !how.punch_hole {
            self.move_out_of_record(&grow, inode)?;
            self.allocate_holes(&grow, inode, range.start.page()..range.end.page_end())?;
        }
        if grows {
            self.extend(&grow, inode, file_end..range.end)?;
        }
        drop(grow);
        self.modified(inode);
        Ok(())
    }

    /// Zeroes the parts of a range that do not fill a page, where the file has data.
    ///
    /// # Errors
    /// As for a write.
    fn zero_edges(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        range: &Range<ByteOffset>,
        file_end: ByteOffset,
    ) -> Result<(), FsError> {
        for (from, to) in edges(range, file_end) {
            if self.has_data(inode, from.page())? {
                self.write_growing(grow, inode, &ZEROES[..(to - from) as usize], from)?;
            }
        }
        Ok(())
    }
}
