//! The LD_PRELOAD edge: an unmodified program's file calls, sorted into ours and the host's.
//!
//! In: libc's calls, by symbol. Out: calls on a file system of ours (`backend`), or raw system calls when the path or
//! the descriptor is not ours. Neighbours: `stack` mounts, `fs` answers; the host program is above.
//! Invariants: no call of libc's interposable symbols from here; no panic crosses the edge; after a
//! fork the child never touches the mount. Source: decisions 7, 8 and 11; `docs/wrapper.md`.
#![deny(unsafe_op_in_unsafe_fn)]
// A test build exports no hook, or the test harness would run on itself.
#![cfg_attr(test, allow(dead_code))]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the wrapper speaks the system call and libc conventions of x86-64 Linux only");

#[macro_use]
mod rows;
#[macro_use]
mod raw;
#[macro_use]
mod watch;
#[macro_use]
mod edge;
#[macro_use]
mod hook;

mod calls;
mod find;
mod gate;
mod hooks;
mod host;
mod load;
mod loader;
mod process;
mod stdio;
mod tier;
mod tree;
