//! Ordered map of byte strings with atomic, durable, group-committed batches.
//!
//! In: a [`Medium`] of 4 KiB blocks, and memory for the log that is not on it yet. Out: [`Store`]:
//! `get`, `scan`, `apply`, `commit`.
//! Neighbours: the file system above keeps all its metadata here; below is a device's blocks
//! ([`DeviceMedium`]), a file ([`FileMedium`]), or whoever else implements [`Medium`].
//! Invariants: what a crash leaves is the state after some whole batch at or after the last one
//! committed; a mount reads a bounded number of blocks; a damaged block is an error that names it.
//! Format: `docs/spec/kv.md`; the tree inside is an HB+Trie.
#![forbid(unsafe_code)]

mod batch;
mod checkpoint;
mod commit;
mod delta;
mod device_medium;
mod disk;
mod emit;
mod error;
mod file_medium;
mod flaw;
mod grow;
mod intervals;
mod iter;
mod layout;
mod leaf;
mod log;
mod medium;
mod merge;
#[cfg(test)]
mod merge_tests;
#[doc(hidden)]
mod node;
mod nodes;
mod pace;
mod pack;
mod pending;
mod pins;
mod record;
mod recovery;
mod reference;
mod scan;
mod snapshot;
mod space;
mod state;
mod store;
mod stream;
mod superblock;
mod table;
mod tree;
mod value;
mod verify;

pub use batch::Batch;
pub use commit::Barrier;
pub use device_medium::DeviceMedium;
pub use disk::Written;
pub use error::{KvError, MediumCall, MediumError, OpenError};
pub use file_medium::{FileMedium, FileOptions};
pub use flaw::Flaw;
pub use iter::{Iter, Record};
pub use medium::{Medium, MemoryMedium};
pub use scan::Visit;
pub use snapshot::Snapshot;
pub use store::{Options, PendingMemory, Stats, Store};
pub use stream::Sequence;

/// Bytes in the longest key.
///
/// A name of 255 bytes, escaped, and its directory fit.
pub const KEY_BYTES_MAX: usize = 1024;
/// Bytes in the longest value: eight blocks. Up to 960 bytes it lies beside its key, a longer one in blocks of
/// its own.
pub const VALUE_BYTES_MAX: usize = 32 << 10;
