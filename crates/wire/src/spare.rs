//! Calls that a client did not make because it could answer itself, counted in a line of its session's first lane.
//! Layout: docs/spec/shared.md, "Lanes".

use crate::post;
use nvmed_sys::Mapping;
use nvmed_sys::atomic::Ordering;

/// Nothing but these counts is in this line, which the server reads when somebody asks for them: to count is a plain
/// store to memory that the client has in its processor's cache.
const LINE: usize = post::END - 64;
/// Counts of a lane.
pub const SPARES: usize = 8;
const _: () = assert!(LINE.is_multiple_of(64) && SPARES * 8 == 64);

/// What made a call needless, and how many bytes were read without calls: the words of the line, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spare {
    /// A name, a status, a listing or a link's target that the shelf had or that was known.
    Name,
    /// A read from the shelf.
    ShelfRead,
    /// Bytes of those.
    ShelfBytes,
    /// A read from a window.
    WindowRead,
    /// Bytes of those.
    WindowBytes,
    /// An open that was posted.
    Open,
    /// The close of one, which the server hears nothing of.
    Close,
    /// An fdatasync that had nothing left to do.
    Sync,
}

/// The counts of a lane, as both sides see them. What a client says of itself is only shown.
#[derive(Clone, Copy, Debug)]
pub struct Spares<'a>(pub(crate) &'a Mapping);

impl Spares<'_> {
    /// Client: counts one.
    #[inline]
    pub fn count(self, what: Spare) {
        self.add(what, 1);
    }

    /// Client: counts `more`.
    #[inline]
    pub fn add(self, what: Spare, more: u64) {
        let count = self.0.u64(LINE + what as usize * 8);
        // No locked instruction: threads of a process that count at the same moment lose some.
        count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Server: all counts, by [`Spare`], as the client says.
    #[must_use]
    pub fn all(self) -> [u64; SPARES] {
        core::array::from_fn(|at| self.0.u64(LINE + at * 8).load(Ordering::Relaxed))
    }
}
