//! Memory that keeps its bytes, as a medium and as a device.
//!
//! In: bytes for a place, and when they must have arrived. Out: [`Memory`], the only code that stores to the medium,
//! and [`NvmEngine`], the same bytes behind queue pairs that copy. Neighbours: `image` and `engine` below; stores of
//! records and assemblies above.
//! Invariants: what was settled before a fence began is durable when it has returned; of two stores with a fence
//! between them the second is never durable without the first; a release records nothing.
//! Source: SNIA NVM Programming Model 1.2; Intel SDM 1, 11.4.4 and 11.6.13; docs/nvm.md.
#![deny(unsafe_code)]

mod buffer;
mod cut;
mod dirty;
mod engine;
mod error;
#[allow(unsafe_code, reason = "stores that go past the caches are instructions")]
mod instructions;
mod medium;
mod memory;
mod queue;
mod ram;
mod record;
mod view;

pub use buffer::{
    BufferClock, BufferOptions, BufferStats, Extent, Hint, MediaProfile, Prefetch, least_buffer_bytes,
};
pub use cut::Cut;
pub use engine::{NvmEngine, NvmOptions};
pub use error::{HintError, NvmError};
pub use medium::{FlushTo, MemoryOptions, Place};
pub use memory::{Memory, Pinned};
pub use ram::new_memory;
pub use record::{Event, Record, What};
pub use view::{View, ViewOptions};
