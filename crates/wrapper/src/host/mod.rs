//! Objects and calls that stay the host's although their paths are ours.
//!
//! In: sockets and FIFOs by a path of ours, lists of mounts, limits, calls that no file of ours can take part in. Out:
//! the host's object behind our name, or the kernel's error. Neighbours: `find`, `calls`.

pub(crate) mod address;
pub(crate) mod end;
pub(crate) mod hosted;
pub(crate) mod limit;
pub(crate) mod mounts;
pub(crate) mod refused;
pub(crate) mod socket;
pub(crate) mod stand_in;
