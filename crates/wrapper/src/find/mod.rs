//! Whether a path or a descriptor is ours or the host's, and the file system that has what is ours.
//!
//! In: a path, a working directory, a descriptor number. Out: whether a call goes to our file system or to the host,
//! and the open description behind a number. Neighbours: `calls` asks here first; `stack` and `client` answer for what
//! is ours. Invariant: that a descriptor or a path is the host's is found out by a look at memory, without a call.

pub(crate) mod above;
pub(crate) mod backend;
pub(crate) mod credentials;
pub(crate) mod cwd;
pub(crate) mod magic_link;
pub(crate) mod mount;
pub(crate) mod placeholder;
pub(crate) mod prefix;
pub(crate) mod private;
pub(crate) mod redirect;
pub(crate) mod route;
pub(crate) mod setting;
pub(crate) mod table;
pub(crate) mod waiting;
pub(crate) mod walk;
