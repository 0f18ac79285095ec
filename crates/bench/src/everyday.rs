//! Rows of what programs do all day with small files: single calls, whole jobs, and how they begin.
//!
//! Ours is the shared mount unless a row says otherwise, since that is what `nvmed run` prefers.

pub mod calls;
pub mod cold;
mod ground;
pub mod jobs;
mod memory;
pub mod pair;
pub mod readers;
pub mod small;
pub mod start;
pub mod trips;

use nvmed_lab::samples::Samples;

/// Median and range, for a row's conditions.
fn told(name: &str, samples: &Samples) -> String {
    let (low, high) = samples.range();
    format!("{name} {:.2} ({low:.2} to {high:.2})", samples.median())
}

/// Whether a row of this name was asked for: by its whole name, by what it begins with, or with all of a group.
fn asked(wanted: &str, name: &str) -> bool {
    name.starts_with(wanted) || wanted.starts_with(name)
}
