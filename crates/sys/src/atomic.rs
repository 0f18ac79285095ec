//! Atomic words that lie in a [`crate::Mapping`], and those that stand beside it in its protocols.
//!
//! They are those of the language. With the feature `model` they are those of the module `model`.

#[cfg(feature = "model")]
pub use crate::model::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, fence};
pub use core::sync::atomic::Ordering;
#[cfg(not(feature = "model"))]
pub use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, fence};
