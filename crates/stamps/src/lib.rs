//! Requests with three stamps (arrival, start of service, finish), in rings of memory that processes share.
//!
//! In: a [`Producer`] for each probe, which puts a [`Stamped`] a request. Out: a [`Reader`], which takes them in
//! another process, and a [`Timescale`], which makes times of their ticks. Neighbours: `sys` maps the memory and has
//! the clock.
//! Invariants: a producer takes no lock, makes no system call and never waits, and what finds no room is counted; what
//! is read may be a stranger's, and is copied before it is checked. Source: docs/trace.md, "Our own stack".
#![forbid(unsafe_code)]

mod layout;
mod producer;
mod reader;
mod stamped;
mod stamps;
mod timescale;

pub use producer::Producer;
pub use reader::{Drained, Reader};
pub use stamped::{Op, Probe, Stamped};
pub use stamps::Stamps;
pub use timescale::Timescale;

/// Environment variable that names the memory in which a process records its requests, as `/proc/PID/fd/N`.
pub const STAMPS_VARIABLE: &str = "NVMED_STAMPS";
/// Requests that a ring holds if nobody says how many: 16 ms at two million a second, in 1.3 MB.
pub const REQUESTS_DEFAULT: usize = 1 << 15;
/// Most requests that a ring can hold: 168 MB each of 64 rings.
pub const REQUESTS_MAX: usize = 1 << 22;
