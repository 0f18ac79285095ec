//! I/O: handles, requests with tickets, and the choice of a queue.
//!
//! In: synchronous calls and requests on a [`Handle`]. Out: results, each exactly once, with the
//! device's status; a [`Ticket`] stands for one that is not there yet.
//! Neighbours: `engine` below, whose queue pairs are locked here; file system and metadata store above.
//! Invariants: thread A may submit while thread B polls, and whoever reaps a completion leaves it for
//! whoever waits for it; no call allocates; with a device that works inside the doorbell no call waits.
//! Source: NVMeDirect's handles and queues (TCE'17, III.B and fig. 4).
#![forbid(unsafe_code)]

mod device;
mod error;
mod handle;
mod lane;
mod pace;
mod parts;
mod stats;
mod ticket;

pub use device::{Device, DeviceOptions};
pub use error::{IoError, SubmitError};
pub use handle::{Binding, Handle};
pub use nvmed_engine::{DeviceError, Geometry, InvalidRequest, Operation, QueueFault, Request, Segment};
pub use stats::Stats;
pub use ticket::Ticket;
