//! Memory that somebody else may be writing: a device, another thread, another process.
//!
//! In: sizes and descriptors. Out: [`Mapping`], bytes reached only by bounded copies and atomics,
//! never by `&` or `&mut` (style rule 12). Neighbours: everybody above; below is the kernel.
//! Invariant: every access is inside the mapping, or the caller's mistake panics before it happens.
//! Source: rust-vmm's `VolatileSlice` for the idea.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "raw memory lives here and nowhere else")]
mod mapping;

pub use mapping::{Mapping, Pages};
