//! Calls that a client did not make because it could answer itself, counted in lines of its session's first lane.
//! Layout: docs/spec/shared.md, "Lanes".

use crate::post;
use nvmed_sys::Mapping;
use nvmed_sys::atomic::Ordering;

/// Nothing but these counts is in these lines, which the server reads when somebody asks for them: to count is a plain
/// store to memory that the client has in its processor's cache. Threads count in several, so that few share one.
pub(crate) const START: usize = post::END - LINES * LINE_BYTES;
const LINES: usize = 4;
const LINE_BYTES: usize = 64;
/// Counts of a line.
pub const SPARES: usize = 8;
const _: () = assert!(START.is_multiple_of(LINE_BYTES) && SPARES * 8 == LINE_BYTES);

/// Where the line of this thread begins: stacks are more than a page apart, and are seldom more than one deep.
#[inline]
fn line() -> usize {
    let on_stack = 0_u8;
    START + (core::ptr::from_ref(&on_stack).addr() >> 12) % LINES * LINE_BYTES
}

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
        self.add_in(line(), what, more);
    }

    /// Client: counts a read of so many bytes.
    #[inline]
    pub fn add_read(self, [what, bytes_of]: [Spare; 2], bytes: u64) {
        let line = line();
        self.add_in(line, what, 1);
        self.add_in(line, bytes_of, bytes);
    }

    #[inline]
    fn add_in(self, line: usize, what: Spare, more: u64) {
        let count = self.0.u64(line + what as usize * 8);
        // No locked instruction: threads that count in one line at the same moment lose some.
        count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Server: all counts, by [`Spare`], as the client says.
    #[must_use]
    pub fn all(self) -> [u64; SPARES] {
        let count =
            |line: usize, at: usize| self.0.u64(START + line * LINE_BYTES + at * 8).load(Ordering::Relaxed);
        core::array::from_fn(|at| (0..LINES).map(|line| count(line, at)).fold(0, u64::wrapping_add))
    }
}
