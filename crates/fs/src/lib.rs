//! NVMeDFS: a POSIX file system in user space (TCE 2017, III.C).
//!
//! In: paths, buffers and credentials. Out: metadata records for `kv`, cached pages for `cache`,
//! device requests for `io`. Neighbours: those three below, `stack` above.
//! Invariants: an operation is one atomic batch of records, or nothing; a record is durable only after
//! the data that it tells of; blocks are reused only after the record that freed them is durable.
//! Source: docs/spec/fs.md for the format; POSIX.1-2017 and the Linux manual pages for behaviour.
#![forbid(unsafe_code)]

mod account;
mod advice;
mod allocation;
mod attributes;
// For tests here that use what the integration tests have, which name this crate as others do.
#[cfg(test)]
extern crate self as nvmed_fs;

mod blocks;
mod broken;
#[cfg(test)]
mod broken_tests;
mod bytes;
#[cfg(test)]
mod bytes_tests;
mod core;
mod data;
mod directory;
mod end;
mod error;
mod extent;
mod extent_map;

mod file;
mod filedata;
mod filesystem;
mod flight;
mod following;
mod format;
mod glob;
mod hash;
mod health;
mod in_place;
mod inode;
mod journal;
mod listing;
mod lock;
mod map;
mod mapper;
mod memory;
mod metadata;
mod namespace;
mod object;
mod open;
mod options;
mod orphan;
mod pages;
mod paths;

mod permission;
mod placed;
pub mod posted;

mod quiet;
mod quota;
mod rename;
mod resolve;
mod rooted;
mod salvage;
mod special;
mod status;
mod trouble;
mod unrecorded;
pub mod versions;
mod view;
mod xattr;

pub use crate::account::{Limits, Usage};
pub use crate::advice::Advice;
pub use crate::core::MountParts;
pub use crate::options::{Clock, Durability, MountOptions};
pub use broken::tell_panics;
pub use error::FsError;
pub use file::File;
pub use filesystem::{FileSystem, Kept, Node};
pub use flight::DirectIo;
pub use format::FormatOptions;
pub use glob::Glob;
pub use hash::Fold;
pub use health::Trouble;
pub use in_place::location::Location;
pub use lock::{LockHeld, LockKind, LockOwner, LockRange, Wait};
pub use map::{MappedFile, expect_maps};
pub use mapper::{Lies, MapPiece, Mapped, Mapper};
pub use memory::{Memory, MemoryLayout};
pub use metadata::zone::{ZONE_BOUND, ZONE_BOUND_NONE};
pub use nvmed_layout::superblock::{LABEL_BYTES_MAX, Superblock, VERSION};
pub use nvmed_layout::xattrs::XATTR_VALUE_BYTES_MAX;
pub use nvmed_layout::{
    Damage, FILE_BYTES_MAX, FileType, LayoutError, LostCopy, NAME_BYTES_MAX, PATH_BYTES_MAX,
};
pub use object::Object;
pub use salvage::salvage;
pub use status::{
    Allocate, Credentials, DirEntry, Follow, OpenFlags, RenameFlags, STATFS_MAGIC, Stat, StatFs, Time, Whence,
};
pub use xattr::{SetXattr, error_without_xattrs};

/// Symbolic links followed in one resolution: Linux's limit.
pub const SYMLINKS_MAX: u32 = 40;
/// Names that one inode can have, and subdirectories of a directory: what XFS allows.
pub const LINKS_MAX: u32 = (1 << 31) - 1;

/// What a block holds in which nobody has stored.
static ZEROES: [u8; nvmed_units::BLOCK_BYTES] = [0; nvmed_units::BLOCK_BYTES];
