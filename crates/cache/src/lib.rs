//! The block cache: 4 KiB frames in one mapping, found by object and page.
//!
//! In: an object (a file) and a page number. Out: the page's bytes, a claim on a missing page, or the
//! dirty pages in ascending order. It does no I/O: the room above fills claims and writes pages back.
//! Neighbours: `sys` for memory; `fs` above. Invariants: a reader takes no lock and sees one version of
//! a page or retries; only clean frames are evicted; a dirty frame's owner and page are in the mapping,
//! so that they outlive the process. Sources: S3-FIFO (SOSP 2023); sequence locks (Lameter 2005).
#![forbid(unsafe_code)]

mod ahead;
mod cache;
mod claim;
mod clock;
mod entry;
mod eviction;
mod ghost;
mod index;
mod layout;
mod object;
mod policy;
mod queue;
mod readahead;
mod s3fifo;
mod sieve;
mod waiting;
mod writeback;

pub use cache::{Cache, Options, Stats, Written};
pub use claim::{Claim, Claimed, PageState};
pub use layout::{Layout, Survivor};
pub use object::Object;
pub use policy::EvictionPolicy;
pub use readahead::{Readahead, Window};
pub use writeback::{DirtyPage, Outcome, WriteBack};

/// Highest page number of an object plus one: files end at 2^56 bytes.
pub const PAGES_MAX: u64 = 1 << 44;
/// Most frames of one cache: 1 TiB of memory, and 28 bits in an index entry.
pub const FRAMES_MAX: u32 = 1 << 28;

/// Every frame holds data that is not on the device yet: write something back, then try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("every cache frame is dirty or in use; write back first")]
pub struct NoCleanFrame;
