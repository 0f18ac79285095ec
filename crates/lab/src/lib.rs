//! Measurements: loads on a device, the kernel's paths beside it, and the papers' experiments.
//!
//! In: a [`Load`] and a handle, or an experiment's name. Out: a [`Report`], an [`Outcome`] and a page of charts.
//! Neighbours: `stack` and `chart` below; the command line and the benchmarks above.
//! Invariants: the measured loop neither allocates nor writes anywhere but into its own memory; a rival runs in
//! the same process and run, alternating with us, on the same kind of medium; whatever was mounted or made is
//! undone.
//! Source: the papers named in `data/published.json`; `docs/lab.md`.
#![deny(unsafe_code)]

mod advice;
pub mod cache_policies;
pub mod calls;
mod cell;
pub mod cgroup;
pub mod duel;
mod error;
pub mod experiment;
mod experiments;
#[cfg(test)]
mod fake_experiment;
mod guest;
pub mod histogram;
pub mod job;
pub mod load;
pub mod machine;
mod measure;
pub mod medium;
mod mobile;
mod outcome;
mod page;
pub mod pairs;
mod paper;
pub mod recorder;
mod report;
pub mod rival;
pub mod samples;
#[allow(unsafe_code, reason = "scheduling classes are a libc call on a plain structure")]
pub mod seat;
pub mod shell;
pub mod smallfile;
pub mod undo;
pub mod verify;
pub mod ycsb;

pub use advice::{Advice, Evidence, Judgement};
pub use cell::Cell;
pub use error::{InvalidLoad, LabError};
pub use experiment::{Effort, Experiment, Finding, Goal};
pub use experiments::experiments;
pub use job::Job;
pub use load::{Load, Pattern};
pub use measure::{RunLength, measure};
pub use outcome::{Outcome, check, read_outcomes, run};
pub use page::page;
pub use paper::{Paper, paper};
pub use recorder::Time;
pub use report::{Report, Tick};
