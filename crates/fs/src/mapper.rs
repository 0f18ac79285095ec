//! Files that programs map where they lie: what lies where, and who maps it.
//!
//! Who maps keeps the addresses; the file system keeps counts, and tells him under the file's lock what a range of
//! pages is now. A block that it has told of stays the file's until the last mapping is gone.

use crate::map::MappedFile;
use core::ops::Range;
use nvmed_sys::QuietFd;
use nvmed_sys::sync::Arc;

/// What some pages of a file are for those who map them in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPiece {
    /// Where they begin in the file, in bytes.
    pub offset: u64,
    /// How many bytes: whole pages.
    pub bytes: u64,
    /// Where they lie.
    pub lies: Lies,
}

/// Where a piece of a file lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    /// From this byte of the medium on.
    At(u64),
    /// Nowhere: it reads as zeroes, and nobody can have stored there.
    Nowhere,
    /// Behind the end of the file, where a touch is SIGBUS.
    Behind,
}

/// Who maps files in place into the memory of programs.
pub trait Mapper: Send + Sync {
    /// Has all mappings of a file show a piece of it as it is now. He makes no call of the file system, whose locks are
    /// held.
    fn show(&self, ino: u64, piece: &MapPiece);

    /// Between which bytes of a file programs may store by mappings.
    fn stored_to(&self, ino: u64) -> Option<Range<u64>>;
}

/// How a file was mapped.
#[derive(Debug)]
pub enum Mapped {
    /// As memory of its own, which is mapped from the range's own offset on.
    Memory(MappedFile),
    /// Where it lies: this is the medium, open only to be read unless stores are to become the file's.
    InPlace(Arc<QuietFd>),
}
