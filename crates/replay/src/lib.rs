//! Traces given to devices.
//!
//! In: requests of a trace. Out: the same requests, with the times of a device: a simulated one ([`Simulation`]), or
//! any that an engine drives ([`Replay`]); what many drives do with many traces ([`sweep`]).
//! Neighbours: `trace`; `flash` and `io` below. See docs/trace.md, "Simulation", "Sweep" and "Replay".
//! Invariants: requests come out in the order in which they arrive, each once; they are given to the device in that
//! order, and none before it is due; memory does not grow with their number.
#![forbid(unsafe_code)]

mod around;
mod digest;
mod error;
mod feed;
mod input;
mod known;
mod pacing;
mod payload;
mod placement;
mod replay;
mod replayed;
mod simulation;
mod state;
mod stretch;
mod survey;
mod sweep;
mod times;
mod trial;
mod waiting;

pub use error::{Found, ReplayError};
pub use feed::{Fed, Feed, Outcome};
pub use input::{Input, InputError, Reading, is_stream};
pub use pacing::Pacing;
pub use placement::Remap;
pub use replay::{Replay, ReplayOptions};
pub use replayed::Replayed;
pub use simulation::{Simulated, Simulation};
pub use state::{Identity, State};
pub use survey::Survey;
pub use sweep::{WORKERS_MAX, front, sweep};
pub use times::Times;
pub use trial::{Answer, Digested, Trial, TrialError};
