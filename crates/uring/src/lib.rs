//! Engines over io_uring: the kernel keeps the device, and this process submits in batches.
//!
//! In: a path and options. Out: [`UringEngine`] (a file or block device) and [`UringCmdEngine`] (NVMe
//! commands through `/dev/ngXnY`), both `Engine`s. Neighbours: `engine`, whose traits they implement; the
//! kernel below.
//! Invariants: memory that the kernel may still touch outlives the request, whatever the caller does
//! with it; one system call a ring, none a poll unless a request has to go on; descriptors are quiet.
//! Source: io_uring(7), Linux `include/uapi/linux/{io_uring,nvme_ioctl}.h`; Joshi, Gupta et al., "I/O
//! Passthru" (FAST'24) for the second.
#![deny(unsafe_code)]

mod buffers;
mod calls;
mod check;
mod command;
mod error;
mod file;
mod geometry;
#[allow(unsafe_code, reason = "requests carry addresses of slices")]
mod ioctl;
mod namespace;
mod queue;
#[allow(unsafe_code, reason = "the kernel acts on addresses in submitted entries")]
mod ring;
mod sqe;
mod transfer;
mod vectors;
mod work;

pub use error::UringError;
pub use file::{DeviceLock, UringEngine, UringOptions};
pub use namespace::{UringCmdEngine, UringCmdOptions};
