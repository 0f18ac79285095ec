//! The file calls of NVMeDFS for a program that links them (TCE 2017, III.C): sync or async, direct or buffered as each
//! file's policy says, on an I/O handle of that policy.
//!
//! In: paths, buffers, a [`Policy`] a file. Out: results, and a [`Ticket`] for each asynchronous call.
//! Neighbours: `stack` mounts, `fs` has the files, `block` the buffers; the C library above.
//! Invariants: a buffer is the call's from submission until its ticket gives it back; of one file, asynchronous calls
//! that go through the cache run in the order of their submission; a file's queue ends with the file.
#![forbid(unsafe_code)]

mod file;
mod files;
mod path;
mod policy;
mod ticket;
mod worker;

pub use file::OpenFile;
pub use files::Files;
pub use nvmed_block::Buffer;
pub use nvmed_fs::{
    Allocate, DirEntry, FileType, Follow, FsError, NAME_BYTES_MAX, OpenFlags, RenameFlags, SetXattr, Stat,
    StatFs, Time, Whence,
};
pub use nvmed_io::{Completions, HandleSettings, Priority, QueueSettings, Scheduler};
pub use nvmed_stack::{Config, DeviceSpec, StackError};
pub use policy::Policy;
pub use ticket::{Finished, Ticket};
