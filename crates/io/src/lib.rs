//! I/O: handles, requests with tickets, queues with schedulers, and ways of waiting.
//!
//! In: synchronous calls and requests on a [`Handle`]. Out: results, each exactly once, with the
//! device's status; a [`Ticket`] stands for one that is not there yet, and can be awaited.
//! Neighbours: `engine` below, whose queue pairs are locked here; file system and metadata store above.
//! Invariants: thread A may submit while thread B polls, and a thread that reaps another's completion leaves its
//! result where the other finds it; no request allocates; with a device that works inside the doorbell no call waits.
//! Source: NVMeDirect's handles and queues (TCE'17, III.B and fig. 4); `docs/io.md`.
#![forbid(unsafe_code)]

mod call;
pub mod caller;
mod device;
mod error;
mod flight;
mod handle;
mod learn;
mod limits;
mod measure;
mod parts;
mod queue;
mod queued;
mod recording;
mod recover;
mod replay;
mod scatter;
mod schedule;
mod service;
mod settings;
mod shared_queue;
mod slots;
mod stats;
mod ticket;
mod urgent;
mod wait;

pub use device::{Device, DeviceOptions};
pub use error::{InvalidSetting, IoError, SubmitError};
pub use flight::Flight;
pub use handle::{Binding, Handle};
pub use measure::{Histogram, Measured};
pub use nvmed_engine::{
    AsyncEvent, Command, DeviceError, Geometry, InvalidRequest, Operation, Priority, QueueFault, Request,
    Segment, Transfer, UrgentPath,
};
pub use queue::{QueueNumber, QueueSettings, Scheduler};
pub use scatter::Scatter;
pub use service::{CompletionThreads, ThreadStats};
pub use settings::{Completions, HandleSettings, OnReset, Rate};
pub use stats::Stats;
pub use ticket::Ticket;
pub use urgent::Source;
