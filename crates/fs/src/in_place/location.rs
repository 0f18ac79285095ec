//! Where bytes of a file lie, for who reads the medium itself.

use crate::error::FsError;
use crate::extent::BlockMapping;
use crate::in_place::{InPlace, place};
use crate::inode::Inode;
use core::sync::atomic::Ordering;
use nvmed_io::Operation;
use nvmed_units::{ByteOffset, Page};

/// Where bytes of a file lie on memory that keeps its bytes, and how many lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// There, at this offset of the medium, which has memory for them.
    At {
        /// In bytes.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Nowhere: they are zeroes.
    Zeroes {
        /// How many.
        bytes: u64,
    },
}

/// Bytes that are told of at once: room is seen to on the host for all of them.
const TOLD_BYTES: u64 = 16 << 20;

impl InPlace {
    /// Where the page of a byte lies that the file has, and those behind it. None of a file whose bytes are in its
    /// record, or that programs store into.
    ///
    /// What is told stays so as long as the file is open, until its size changes, or room is taken away from it or
    /// given to it: a write over bytes that lie somewhere leaves them there. The host has memory for what is told, so
    /// that such a write goes to no spare block ([`super::spare`]).
    ///
    /// # Errors
    /// [`FsError::NoData`] behind the end; the store's; the host has no room.
    pub(crate) fn location(&self, inode: &Inode, at: ByteOffset) -> Result<Option<Location>, FsError> {
        if at >= inode.end() {
            return Err(FsError::NoData);
        }
        if inode.data.residence.is_in_record() || inode.data.map_written.load(Ordering::Acquire) {
            return Ok(None);
        }
        let page = at.page();
        let upto = |end: Page| page.start().until(end.start()).min(TOLD_BYTES);
        Ok(Some(match self.mapping(inode, page)? {
            BlockMapping::Block { block, end, unwritten: false } => {
                let (offset, bytes) = (place(block, 0), upto(end));
                // Who maps the medium touches no hole of the host's.
                let held = self.medium.pin(offset, bytes as usize);
                held.map_err(|status| self.failed(Operation::Read, offset, status))?;
                Location::At { offset, bytes }
            }
            BlockMapping::Block { end, .. } | BlockMapping::Hole { end } => {
                Location::Zeroes { bytes: upto(end) }
            }
        }))
    }
}
