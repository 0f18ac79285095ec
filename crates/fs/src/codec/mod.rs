//! What is on the device, as bytes: superblock, keys and values of the metadata store (docs/spec/fs.md).
//!
//! In: bytes that may say anything. Out: values that make sense, or none. It does no I/O, and uses no other room.

pub(crate) mod bitmap;
pub(crate) mod keys;
pub(crate) mod kind;
pub(crate) mod record;
pub(crate) mod superblock;
pub(crate) mod varint;
pub(crate) mod xattrs;

use nvmed_units::Ino;

/// The inode of the root directory.
pub(crate) const ROOT: Ino = Ino(1);
/// Longest name of a directory entry, in bytes: what every POSIX file system offers, and a key of the
/// metadata store holds four of them.
pub const NAME_BYTES_MAX: usize = 255;
/// Largest file: offsets stay well inside `i64` and block numbers inside 44 bits.
pub const FILE_BYTES_MAX: u64 = 1 << 56;
