//! The C library `libnvmed`: `include/nvmed.h` over a [`nvmed_block::Disk`], `include/nvmedfs.h` over
//! [`nvmed_files::Files`].
//!
//! In: C calls. Out: their results, errno, and the text of the last error. An edge: it unwraps arguments and maps
//! errors, and decides nothing.
//! Neighbours: `block`, `files` and `stack` below; programs above. Invariants: what C holds are names in a table, never
//! addresses, so that a wrong one is EBADF; no panic leaves a call; no lock is held while a callback runs.
//! Source: NVMeDirect 1.0, its names; docs/capi.md says what differs.

mod aio;
mod buffer;
mod calls;
mod descriptors;
mod device;
mod directories;
mod error;
mod features;
mod file_aio;
mod file_calls;
mod handle;
mod mounts;
mod passthrough;
mod paths;
mod queue;
mod table;
#[cfg(test)]
mod tests;
