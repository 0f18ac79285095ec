//! The memory side of a call: pieces of the caller's memory, or a range of a registered buffer.

use crate::buffer::{Buffer, Pool};
use crate::error::BlockError;
use core::ops::Range;
use nvmed_io::Segment;
use nvmed_units::BLOCK_BYTES;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Alignment of memory that goes to the device without a copy. NVMe itself wants 4 bytes; engines over the kernel's
/// direct I/O want up to 512.
const MEMORY_ALIGN: u64 = 512;

/// Where a call's bytes come from or go to.
pub(crate) enum Memory<'a, 'b> {
    /// Written from here.
    From(&'a [IoSlice<'b>]),
    /// Read to here.
    Into(&'a mut [IoSliceMut<'b>]),
    /// Either, in memory that the device knows.
    Buffer(&'a Buffer, usize, usize),
}

impl<'a> Memory<'a, '_> {
    pub(crate) fn buffer(buffer: &'a Buffer, range: Range<usize>) -> Result<Self, BlockError> {
        let len = range.len();
        buffer.check(range.start, len)?;
        Ok(Self::Buffer(buffer, range.start, len))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::From(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
            Self::Into(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
            Self::Buffer(_, _, len) => *len,
        }
    }

    /// What the device is told for `len` bytes from `at` on, if it can have them without a copy: aligned, in a
    /// buffer of its own pool.
    pub(crate) fn segment(&self, pool: &Arc<Pool>, at: usize, len: usize) -> Option<Segment> {
        let Self::Buffer(buffer, start, _) = self else { return None };
        if !buffer.is_of(pool) {
            return None;
        }
        let segment = buffer.segment(start + at..start + at + len).ok()?;
        segment.address.0.is_multiple_of(MEMORY_ALIGN).then_some(segment)
    }

    /// Copies `len` bytes from `at` on into a buffer.
    pub(crate) fn copy_out(
        &self,
        at: usize,
        len: usize,
        to: &Buffer,
        to_start: usize,
    ) -> Result<(), BlockError> {
        match self {
            Self::Buffer(buffer, start, _) => buffer.copy(start + at..start + at + len, to, to_start),
            _ => {
                let mut done = 0;
                self.each(at, len, |bytes| {
                    let copied = to.write(to_start + done, bytes);
                    done += bytes.len();
                    copied
                })
            }
        }
    }

    /// Copies `len` bytes of a buffer to `at`.
    pub(crate) fn copy_in(
        &mut self,
        at: usize,
        len: usize,
        from: &Buffer,
        from_start: usize,
    ) -> Result<(), BlockError> {
        match self {
            Self::Buffer(buffer, start, _) => from.copy(from_start..from_start + len, buffer, *start + at),
            _ => {
                let mut done = 0;
                self.each_mut(at, len, |bytes| {
                    let copied = from.read(from_start + done, bytes);
                    done += bytes.len();
                    copied
                })
            }
        }
    }

    /// Shows `len` bytes from `at` on, piece by piece, each at most a page long where it is copied first.
    pub(crate) fn each<E>(
        &self,
        at: usize,
        len: usize,
        mut see: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::From(pieces) => walk(pieces, at, len, |piece, range| see(&piece[range])),
            Self::Into(pieces) => walk(pieces, at, len, |piece, range| see(&piece[range])),
            Self::Buffer(buffer, start, _) => {
                let mut page = [0; BLOCK_BYTES];
                in_pages(len, |done, bytes| {
                    let copied = buffer.read(start + at + done, &mut page[..bytes]);
                    debug_assert!(copied.is_ok(), "the range was checked when the call began");
                    see(&page[..bytes])
                })
            }
        }
    }

    /// Lets `len` bytes from `at` on be filled, piece by piece, as [`Memory::each`].
    pub(crate) fn each_mut<E>(
        &mut self,
        at: usize,
        len: usize,
        mut fill: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::From(_) => unreachable!("nobody reads into what is to be written"),
            Self::Into(pieces) => {
                let (mut skip, mut left) = (at, len);
                for piece in pieces.iter_mut() {
                    let from = skip.min(piece.len());
                    let bytes = left.min(piece.len() - from);
                    if bytes > 0 {
                        fill(&mut piece[from..from + bytes])?;
                    }
                    (skip, left) = (skip - from, left - bytes);
                }
                Ok(())
            }
            Self::Buffer(buffer, start, _) => {
                let mut page = [0; BLOCK_BYTES];
                in_pages(len, |done, bytes| {
                    fill(&mut page[..bytes])?;
                    let copied = buffer.write(*start + at + done, &page[..bytes]);
                    debug_assert!(copied.is_ok(), "the range was checked when the call began");
                    Ok(())
                })
            }
        }
    }
}

/// Shows the parts of `pieces` that `len` bytes from `at` on lie in.
fn walk<P: core::ops::Deref<Target = [u8]>, E>(
    pieces: &[P],
    at: usize,
    len: usize,
    mut see: impl FnMut(&P, Range<usize>) -> Result<(), E>,
) -> Result<(), E> {
    let (mut skip, mut left) = (at, len);
    for piece in pieces {
        if left == 0 {
            break;
        }
        let from = skip.min(piece.len());
        let bytes = left.min(piece.len() - from);
        if bytes > 0 {
            see(piece, from..from + bytes)?;
        }
        (skip, left) = (skip - from, left - bytes);
    }
    Ok(())
}

fn in_pages<E>(len: usize, mut part: impl FnMut(usize, usize) -> Result<(), E>) -> Result<(), E> {
    let mut done = 0;
    while done < len {
        let bytes = (len - done).min(BLOCK_BYTES);
        part(done, bytes)?;
        done += bytes;
    }
    Ok(())
}
