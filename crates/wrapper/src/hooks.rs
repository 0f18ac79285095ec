//! The modules that `rows` names, under the names that it has for them.

#![cfg_attr(test, allow(unused_imports, reason = "a test build exports nothing"))]

pub(crate) use crate::calls::{
    aio, data, descriptor, extent, fcntl, identity, ioctl, mapping, metadata, name, open, openat2, poll,
    posix_aio, real, rights, splice, stat, sync, terminal, transfer, vector, xattr,
};
pub(crate) use crate::find::credentials;
pub(crate) use crate::host::{limit, refused, socket};
pub(crate) use crate::loader::library;
pub(crate) use crate::process::{actions, command, exec, fork, life, signal, spawn};
pub(crate) use crate::stdio;
pub(crate) use crate::stdio::{catalogue, format, logins, temporary, wide};
pub(crate) use crate::tier::{ring, syscall, thread};
pub(crate) use crate::tree::{directory, fts, glob, scan};
