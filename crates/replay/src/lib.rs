//! Traces given to devices.
//!
//! In: requests of a trace. Out: the same requests, with the times of a device that is simulated ([`Simulation`]); what
//! many drives do with many traces ([`sweep`]).
//! Neighbours: `trace`, `flash`. See docs/trace.md, "Simulation".
//! Invariant: requests come out in the order in which they arrive, each once.
#![forbid(unsafe_code)]

mod digest;
mod input;
mod responses;
mod simulation;
mod sweep;
mod trial;

pub use input::{Input, InputError, Reading};
pub use simulation::{Simulated, Simulation};
pub use sweep::{WORKERS_MAX, front, sweep};
pub use trial::{Answer, Surveyed, Trial, TrialError, survey};
