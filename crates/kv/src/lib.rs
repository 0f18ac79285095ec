//! Ordered map of byte strings with atomic, durable, group-committed batches.
//!
//! In: a [`Medium`] of 4 KiB blocks, and memory for the log that is not on it yet. Out: [`Store`]:
//! `get`, `scan`, `apply`, `commit`.
//! Neighbours: the file system above keeps all its metadata here; below is whoever implements [`Medium`].
//! Invariants: what a crash leaves is the state after some whole batch at or after the last one
//! committed; a mount reads a bounded number of blocks; a damaged block is an error that names it.
//! Format: `docs/spec/kv.md`. The tree inside is to become an HB+Trie; this interface stays.
#![forbid(unsafe_code)]

mod batch;
mod checkpoint;
mod commit;
mod delta;
mod disk;
mod error;
mod guard;
mod layout;
mod log;
mod medium;
mod merge;
mod node;
mod nodes;
mod pack;
mod pending;
mod pins;
mod record;
mod scan;
mod space;
mod store;
mod superblock;
mod table;
mod tree;
mod verify;

pub use batch::Batch;
pub use commit::Barrier;
pub use error::{KvError, MediumError};
pub use medium::{Medium, MemoryMedium};
pub use scan::Visit;
pub use store::{Options, PendingMemory, Sequence, Stats, Store};

/// Bytes in the longest key.
///
/// A name of 255 bytes, escaped, and its directory fit; three such keys still fit an inner node.
pub const KEY_BYTES_MAX: usize = 1024;
/// Bytes in the longest value: with the longest key, a leaf still holds one record and half another.
pub const VALUE_BYTES_MAX: usize = 1024;
