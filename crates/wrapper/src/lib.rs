//! The LD_PRELOAD edge: an unmodified program's file calls, sorted into ours and the host's.
//!
//! In: libc's calls, by symbol. Out: calls on `fs::FileSystem`, or raw system calls when the path or
//! the descriptor is not ours. Neighbours: `stack` mounts, `fs` answers; the host program is above.
//! Invariants: no call of libc's interposable symbols from here; no panic crosses the edge; after a
//! fork the child never touches the mount. Source: design decisions 10 and 11; `docs/wrapper.md`.
#![deny(unsafe_op_in_unsafe_fn)]
// A test build exports no hook, or the test harness would run on itself.
#![cfg_attr(test, allow(dead_code))]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the wrapper speaks the system call and libc conventions of x86-64 Linux only");

#[macro_use]
mod raw;
#[macro_use]
mod edge;

mod credentials;
mod cwd;
mod data;
mod descriptor;
mod directory;
mod exec;
mod extent;
mod fcntl;
mod fence;
mod glob;
mod ioctl;
mod life;
mod mapping;
mod metadata;
mod mount;
mod name;
mod open;
mod place;
mod poll;
mod prefix;
mod real;
mod scan;
mod signal;
mod socket;
mod standard;
mod stat;
mod stdio;
mod sync;
mod syscall;
mod table;
mod temporary;
mod transfer;
mod vector;
mod walk;
mod xattr;
