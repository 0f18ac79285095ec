//! Whose a path or a descriptor is, and the file system that has ours.
//!
//! In: a path, a working directory, a descriptor number. Out: the place of a call, ours or the host's, and the open
//! description behind a number. Neighbours: the calls ask here first; `stack` and `client` answer for what is ours.
//! Invariant: what is not ours is found out by a look at memory, without a call.

pub(crate) mod above;
pub(crate) mod backend;
pub(crate) mod credentials;
pub(crate) mod cwd;
pub(crate) mod magic_link;
pub(crate) mod mount;
pub(crate) mod place;
pub(crate) mod placeholder;
pub(crate) mod prefix;
pub(crate) mod private;
pub(crate) mod redirect;
pub(crate) mod setting;
pub(crate) mod table;
pub(crate) mod walk;
