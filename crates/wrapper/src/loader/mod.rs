//! Programs and libraries that lie in our file system, for a kernel and a dynamic loader that cannot read there.
//!
//! In: a path of ours that is to be executed or loaded. Out: a sealed copy in memory. Neighbours: `process`, `find`.

pub(crate) mod elf;
pub(crate) mod image;
pub(crate) mod library;
pub(crate) mod needed;
