//! Memory that somebody else may be writing: a device, another thread, another process.
//!
//! In: sizes and descriptors. Out: [`Mapping`], bytes reached only by bounded copies and atomics,
//! never by `&` or `&mut` (style rule 12); a program's memory that may not be there (`door`); quiet threads and
//! descriptors. Neighbours: everybody above; below is the kernel. Invariant: every access is inside the mapping, or the
//! caller's mistake panics before it happens. Source: rust-vmm's `VolatileSlice` for the idea.
#![deny(unsafe_code)]

#[cfg_attr(feature = "model", path = "model/access.rs")]
#[allow(unsafe_code, reason = "raw memory lives here and in `mapping`")]
mod access;
pub mod atomic;
#[allow(unsafe_code, reason = "the time stamp counter is read by an instruction")]
mod clock;
#[allow(unsafe_code, reason = "an instruction that not every processor has")]
mod crc;
mod descriptor;
#[allow(unsafe_code, reason = "copies to and from addresses that a program names")]
#[cfg_attr(feature = "model", allow(dead_code, reason = "in a model nothing is copied from a program"))]
pub mod door;
#[allow(unsafe_code, reason = "a lock is a cell that one thread at a time reaches")]
mod fork;
#[allow(unsafe_code, reason = "a signal handler that maps memory")]
mod guard;
#[allow(unsafe_code, reason = "a system call that no library has a safe function for")]
mod hold;
#[allow(unsafe_code, reason = "a system call that no library has a safe function for")]
mod io_class;
#[allow(unsafe_code, reason = "a call of the kernel that is handed on")]
mod ioctl;
#[allow(unsafe_code, reason = "raw memory lives here and in `access`")]
mod mapping;
#[cfg(feature = "model")]
pub mod model;
mod nursery;
#[allow(unsafe_code, reason = "a socket option that is a libc call on raw memory")]
mod peer;
#[allow(unsafe_code, reason = "device registers are reached by volatile accesses")]
mod registers;
#[allow(unsafe_code, reason = "signal masks are libc calls on raw sets")]
mod signal;
pub mod sync;
#[allow(unsafe_code, reason = "signal masks are libc calls on raw sets")]
mod thread;
#[allow(unsafe_code, reason = "memory that is mapped at addresses, and calls of the kernel about it")]
mod userfault;
#[allow(unsafe_code, reason = "a mapping of one owner is a slice")]
mod words;

pub use clock::{TickClock, host_clock, monotonic_ns};
pub use crc::crc32c_of_few;
pub use descriptor::{QUIET, QUIET_LEAST, QuietFd, forget_quiet, is_quiet, next_quiet};
pub use fork::{ForkGuard, ForkLock};
pub use guard::survive_cut_files;
pub use hold::{hold, is_held};
pub use io_class::{IoClass, io_class_of, io_class_of_group, unset_io_class};
pub use ioctl::ioctl;
pub use mapping::{HUGE_BYTES, Mapping, Pages};
pub use nursery::Nursery;
pub use peer::peer_groups;
pub use registers::Registers;
pub use signal::{Signal, Signals, kill_here, stop_here};
pub use thread::spawn_quiet;
pub use userfault::{Addresses, Userfault};
pub use words::Words;
