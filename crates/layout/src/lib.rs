//! What NVMeDFS has on a device: its records as bytes, and the blocks where they are (docs/spec/fs.md).
//!
//! In: bytes that may say anything. Out: values that make sense, or the reason why not. Neighbours: `kv`, in which the
//! records are, below; the file system and the checker above. Invariant: what decodes encodes to the same bytes.
//! Only `region` and `copies` do I/O.
#![forbid(unsafe_code)]

pub mod bitmap;
pub mod copies;
mod error;
mod file_type;
pub mod keys;
pub mod record;
pub mod region;
pub mod superblock;
mod varint;
pub mod xattrs;

pub use copies::LostCopy;
pub use error::{Damage, LayoutError};
pub use file_type::{FileType, MODE_KIND};
pub use superblock::Superblock;

use nvmed_units::Ino;

/// The inode of the root directory.
pub const ROOT: Ino = Ino(1);
/// Longest name of a directory entry, in bytes: what every POSIX file system offers, and a key of the
/// metadata store holds four of them.
pub const NAME_BYTES_MAX: usize = 255;
/// Shortest path that is too long, in bytes: `PATH_MAX`, which counts the terminating NUL.
pub const PATH_BYTES_MAX: usize = 4096;
/// Largest file: offsets stay well inside `i64` and block numbers inside 44 bits.
pub const FILE_BYTES_MAX: u64 = 1 << 56;
