//! When the commands to a solid-state drive complete: a model of its memory, buses and translation layer.
//!
//! In: commands with the times at which they arrive. Out: completions with theirs; the drive's health. No bytes, no
//! input or output, no threads, no clock. Neighbours: the virtual controller, which asks when what it executes is done,
//! and experiments. Invariants: docs/flash.md, "Interface"; above all, completion times depend on the list of arrivals
//! alone, and nothing is promised before it is due.
#![forbid(unsafe_code)]

mod calendar;
mod command;
mod fixed;
mod flash;
mod line;
mod profile;
mod rate;

pub use command::{Command, Completion, Kind, Ticket};
pub use flash::Flash;
pub use profile::{FixedProfile, Medium, Profile, ProfileError};
pub use rate::Rate;
