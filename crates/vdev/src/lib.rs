//! A virtual NVMe controller: registers, queues, commands and media, in process.
//!
//! In: register writes and doorbells over [`InProcess`], a [`nvmed_dma::Transport`]; data by DMA from
//! mapped memory. Out: completion entries. Neighbours: `nvme` and `dma` below; a host driver drives it,
//! ours or, later, a kernel's. Invariants: whatever a host sends is answered by a status, an event or a
//! fatal state, never by a panic; DMA leaves mapped memory never; a completion queue is never overrun.
//! Source: NVM Express Base Specification 2.0, NVM Command Set 1.0, PCIe Transport 1.0.
#![forbid(unsafe_code)]

mod admin;
mod arbiter;
mod backing;
mod config;
mod controller;
mod counters;
mod directive;
mod doorbell;
mod drive;
mod drive_error;
mod drive_file;
mod drive_identity;
mod drive_journal;
mod drive_layout;
mod fault;
mod fault_text;
mod features;
mod group;
mod hmb_io;
mod host_memory;
mod identify;
mod io_command;
mod io_error;
mod io_slots;
mod kept;
mod lending;
mod log;
mod media;
mod namespace;
mod outstanding;
mod pci;
mod pending;
mod probe;
mod prp;
mod queue;
mod recorder;
mod replay;
mod round;
mod serve;
mod shift;
mod time;
mod transport;
mod volatile;

pub use arbiter::{Arbiter, Turn, Weights};
pub use backing::Backing;
pub use config::{Clock, ControllerConfig, DriveName, QUEUE_ENTRIES_MAX};
pub use controller::Controller;
pub use counters::Counters;
pub use directive::StreamUse;
pub use drive_error::DriveFileError;
pub use drive_file::{DriveDescription, DriveFile, Loaded};
pub use drive_layout::LIFE_COUNTERS;
pub use fault::{Corrupt, FaultAction, FaultPlan, FaultQueue, FaultRule};
pub use fault_text::FaultError;
pub use host_memory::HostMemoryConfig;
pub use kept::{KeptDrive, Life};
pub use media::Media;
pub use recorder::{Arrival, BufferChange, DriveEvent, EventSink};
pub use replay::{OtherTime, Replay, ReplayError, Replayed};
pub use serve::PciFunction;
pub use time::VIRTUAL_LOOK_NS;
pub use transport::InProcess;

pub use nvmed_image::{FileOptions, Flush, ImageLock, MediaError, fnv};
