//! Ranges of a medium, and sizes that one can have.

use crate::error::MediaError;

/// Bytes in a page of every host memory and medium.
pub const PAGE_BYTES: u64 = 4096;

/// A range of a medium, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

impl Span {
    /// So many bytes from `offset` on.
    #[inline]
    #[must_use]
    pub fn new(offset: u64, bytes: usize) -> Self {
        Self { offset, bytes: bytes as u64 }
    }

    /// Where it ends.
    #[inline]
    #[must_use]
    pub fn end(self) -> u64 {
        self.offset + self.bytes
    }
}

/// A device is a whole number of pages, at least one.
///
/// # Errors
/// [`MediaError::Size`], with the place that is named.
pub fn check_size(place: &str, bytes: u64) -> Result<(), MediaError> {
    if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(MediaError::size(place, bytes));
    }
    Ok(())
}
