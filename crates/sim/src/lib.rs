//! Crash states of the file system, made and judged from a seed.
//!
//! In: a seed. Out: a workload, every device write of it with the power cut there, and whether what
//! survived is what was promised (docs/spec/crash.md). Neighbours: the file system and the device trait.
//! Invariants: a seed, a cut and an outcome make the same state always; nothing here is in a product.
//! Source: TigerBeetle's storage fault model, littlefs's power-loss tests.
#![forbid(unsafe_code)]

mod campaign;
mod chooser;
mod content;
mod coverage;
mod cuts;
mod damage;
mod deaths;
mod faults;
mod mends;
mod model;
mod mount;
pub mod mutants;
mod operation;
mod rare;
mod recording;
mod runner;
#[cfg(feature = "schedule")]
mod schedule;
mod survey;
#[cfg(feature = "schedule")]
pub mod threads;
mod times;
mod victims;

pub use campaign::{Campaign, Report, describe};
pub use coverage::Coverage;
pub use cuts::{Case, Failure, Plan, Tally};
pub use damage::of_workload as damages;
pub use rare::RareStates;
pub use recording::MEMORY;
