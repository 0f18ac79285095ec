//! The file system as a kernel mount: requests of FUSE become calls of NVMeDFS.
//!
//! In: a configuration, a directory, [`MountOptions`]. Out: a mount that every program of the machine can use,
//! until it is unmounted. Neighbours: `stack` below, the command line above.
//! Invariants: an inode is held as long as the kernel counts lookups of it; a call that was answered is in the
//! mount's memory or on the device; permissions are the kernel's to check, and asked for (`default_permissions`).
//! Source: docs/mount.md; the kernel's Documentation/filesystems/fuse; protocol 7.31 and later.
#![forbid(unsafe_code)]

mod attribute;
mod error;
mod guarded;
mod handle;
mod listing;
mod node;
mod options;
mod place;
mod request;
mod server;
mod session;

pub use error::MountError;
pub use options::{MountOptions, OptionError};
pub use place::{MountPoint, holder, is_dead, unmount};
pub use session::{Serving, serve};
