//! A process's side of a shared mount: the calls of NVMeDFS, made at a server.
//!
//! In: the calls of `nvmed_fs`, without the caller's ids. Out: the same answers. Neighbours: `wire` below, the
//! wrapper above. Invariants: system calls are raw, no thread and no thread-local value of its own, descriptors are
//! quiet; nothing is half done over a fork between [`Session::before_fork`] and what follows it; once the server is
//! gone every call is `EIO` at once. Cached reads make no call. Source: docs/spec/shared.md.
#![forbid(unsafe_code)]

mod advice;
mod cached;
mod core;
mod data;
mod end;
mod error;
mod file;
mod filesystem;
mod lanes;
mod link;
mod listing;
mod lock;
mod node;
mod posted;
mod rhythm;
mod session;
mod shelf;

pub use error::ClientError;
pub use file::{File, MappedFile};
pub use filesystem::{FileSystem, Object};
pub use node::Node;
pub use nvmed_wire::{Address, Handle, Inherited, Token, Welcome};
pub use session::{Received, Session};
