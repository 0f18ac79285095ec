//! A device in memory whose power can be cut, and that fails when told.
//!
//! In: requests of the trait `Engine`, or stores to `nvm::Memory`; switches of a test. Out: completions, and what a
//! power cut leaves. Neighbours: the device trait below; tests of the rooms above, and `sim`.
//! Invariants: what was not flushed is at the mercy of a cut, by sectors or by words of 8 bytes; the same dice do the
//! same things; no product has it.
//! Source: docs/spec/crash.md, "The device" and "The proof".
#![forbid(unsafe_code)]

mod disk;
mod media;
mod memory;
mod queue;
mod words;

pub use disk::{Counts, Death, Disk, Fault};
pub use media::{BLOCK, Block, Command, Event, Image, Kind, Manner, SECTOR, Trace, Volatile, What};
pub use words::Words;
