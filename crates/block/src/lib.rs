//! A device as bytes: positions, lengths and memory of any alignment over requests of whole blocks.
//!
//! In: byte ranges on a [`ByteHandle`], in any memory or in a [`Buffer`] that the device knows. Out: bytes moved, or
//! an error with its errno; of asynchronous calls, finished [`Aio`]s, each exactly once.
//! Neighbours: `io` and `cache` below; the C library and tools above.
//! Invariants: an acknowledged write is seen by every later read of the same [`Disk`], cached or direct; a write that
//! is not block-aligned never takes back bytes that another call wrote beside it; calls hold a byte range, then the
//! cache's write-back right, never the other way round; what is formatted is not written over unless asked for.
//! Source: NVMeDirect's calls (TCE'17, III.B); Linux block devices for what happens at the end of a device.
#![forbid(unsafe_code)]

mod aio;
mod buffer;
mod cached;
mod direct;
mod disk;
mod error;
mod guard;
mod handle;
mod memory;
mod range;
mod readahead;
pub mod signature;
mod writeback;

pub use aio::{AIO_MAX, Aio, Finished};
pub use buffer::Buffer;
pub use cached::{CacheOptions, CacheStats, WritePolicy};
pub use disk::{Disk, DiskOptions, find_on};
pub use error::{BlockError, InvalidOption};
pub use handle::{Access, ByteHandle, Choice, Route, Settings};
pub use nvmed_cache::EvictionPolicy;
pub use readahead::ADVICE_MAX;
