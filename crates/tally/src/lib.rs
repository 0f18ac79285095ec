//! File calls counted, timed and recorded, in memory that a tree of processes shares.
//!
//! In: one [`Tally::note`] a call, on a [`Seat`] that one thread has. Out: a [`Row`] a kind of call, with percentiles;
//! and, if asked for, each call as a [`Record`]. Neighbours: the edges count, the command prints; `sys` maps, `io` has
//! the buckets. Invariants: counting takes no lock, makes no system call and never waits; memory that another process
//! can write is copied once and checked after the copy. Source: docs/seeing.md.
#![forbid(unsafe_code)]

mod beyond;
mod call_kind;
mod layout;
mod record;
mod row;
mod tally;

pub use beyond::{BEYOND_VARIABLE, Beyond};
pub use call_kind::CallKind;
pub use nvmed_sys::monotonic_ns as now_ns;
pub use record::{Call, File, Record};
pub use row::{Row, Sum};
pub use tally::{Seat, Tally};

/// Environment variable that names the memory in which a process counts its file calls, as `/proc/PID/fd/N`.
pub const TALLY_VARIABLE: &str = "NVMED_TALLY";
