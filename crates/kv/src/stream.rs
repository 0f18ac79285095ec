//! Places in the stream of records: the log holds a part of it, and it only grows.

use core::fmt;
use core::ops::Sub;
use nvmed_units::{BLOCK_BYTES, place};

/// Bytes of a log block before its part of the stream.
pub(crate) const HEADER_BYTES: usize = 24;
/// Stream bytes in one log block.
pub(crate) const PAYLOAD_BYTES: u64 = (BLOCK_BYTES - HEADER_BYTES) as u64;

/// A batch's place in the order of all batches of a store; 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The batch after it.
    #[inline]
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Sub for Sequence {
    type Output = u64;

    #[inline]
    fn sub(self, from: Self) -> u64 {
        self.0 - from.0
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A place in the stream, in bytes from its first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct Position(pub(crate) u64);

/// A log block's worth of the stream, counted from its first; where in the ring it lies, the layout knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct StreamBlock(pub(crate) u64);

impl Position {
    /// The stream block that it lies in.
    #[inline]
    pub(crate) fn block(self) -> StreamBlock {
        StreamBlock(self.0 / PAYLOAD_BYTES)
    }

    /// Bytes of that block before it.
    #[inline]
    pub(crate) fn within(self) -> usize {
        (self.0 % PAYLOAD_BYTES) as usize
    }
}

impl StreamBlock {
    /// Where it begins.
    #[inline]
    pub(crate) fn start(self) -> Position {
        Position(self.0 * PAYLOAD_BYTES)
    }

    /// It and those after it, without an end.
    #[inline]
    pub(crate) fn onward(self) -> impl Iterator<Item = Self> {
        (self.0..).map(Self)
    }
}

place!(Position);

place!(StreamBlock);
