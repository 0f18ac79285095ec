//! The LD_PRELOAD edge: an unmodified program's file calls, sorted into ours and the host's.
//!
//! In: libc's calls, by symbol. Out: calls on a file system of ours (`backend`), or raw system calls when the path or
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
mod watch;
#[macro_use]
mod edge;
mod end;

mod above;
mod actions;
mod address;
mod aio;
mod backend;
mod beyond;
mod catalogue;
mod command;
mod credentials;
mod cwd;
mod data;
mod descriptor;
mod directory;
mod dispatch;
mod elf;
mod environment;
mod exec;
mod extent;
mod fault;
mod fcntl;
mod fence;
mod flags;
mod fork;
mod format;
mod fts;
mod fts_entry;
mod fts_stream;
mod gate;
mod given;
mod glob;
mod heir;
mod hosted;
mod image;
mod instructions;
mod ioctl;
mod library;
mod life;
mod limit;
mod logins;
mod magic_link;
mod mapping;
mod metadata;
mod mount;
mod mounts;
mod name;
mod needed;
mod open;
mod openat2;
mod place;
mod poll;
mod posix_aio;
mod prefix;
mod program;
mod real;
mod refused;
mod rights;
mod ring;
mod scan;
mod script;
mod shape;
mod signal;
mod socket;
mod spawn;
mod splice;
mod stand_in;
mod standard;
mod stat;
mod stdio;
mod sync;
mod syscall;
mod table;
mod temporary;
mod terminal;
mod thread;
mod transfer;
mod vector;
mod walk;
mod wide;
mod xattr;
