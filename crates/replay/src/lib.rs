//! Traces given to devices.
//!
//! In: requests of a trace. Out: the same requests, with the times of a device that is simulated ([`Simulation`]).
//! Neighbours: `trace`, `flash`. See docs/trace.md, "Simulation".
//! Invariant: requests come out in the order in which they arrive, each once.
#![forbid(unsafe_code)]

mod simulation;

pub use simulation::{Simulated, Simulation};
