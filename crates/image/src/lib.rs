//! A file whose bytes are memory: what a mapping of a file does badly is done here by calls.
//!
//! In: a path, ranges of bytes. Out: [`Image`], whose bytes are copied from and to a mapping without a call, and
//! statuses. Neighbours: `sys` below; devices that keep their bytes in a file above. Invariants: a full host, a hole
//! and a file that is cut short under us are statuses, never signals; what could not be made durable is never said to
//! be, also later; one process at a time has a file that it locks. Source: mmap(2), fallocate(2), `guard` of `sys`.
#![forbid(unsafe_code)]

mod data;
mod error;
mod holder;
mod identity;
mod image;
mod span;

pub use data::data_from;
pub use error::MediaError;
pub use holder::check_maps;
pub use identity::{Identity, fnv};
pub use image::{FileOptions, Flush, Image, ImageLock, Owed, Piece, SyncCall};
pub use span::{PAGE_BYTES, Span, check_size};
