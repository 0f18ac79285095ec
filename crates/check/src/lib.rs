//! The checker and the repair of a file system that is not mounted, and what can be read of one that is beyond repair
//! (docs/spec/fs.md, "Consistency").
//!
//! In: a device. Out: what contradicts what, in words; a plan that puts it right; files that can still be read.
//! Neighbours: `layout` below, which says what the bytes mean; the command above. It knows nothing of the mounted
//! file system: what both believe they read from the format.
#![forbid(unsafe_code)]

mod blocks;
mod data;
mod finding;
mod fsck;
mod model;
mod names;
mod repair;
mod used;
mod wreck;

pub use finding::Finding;
pub use fsck::fsck;
pub use repair::{Plan, plan_repair};
pub use wreck::{Rescued, Wreck};
