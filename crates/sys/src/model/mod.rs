//! Memory and locks in a model: `loom` runs a few threads of it in every order of their steps, and gives each load
//! every value that the memory model of the language allows.
//!
//! A [`crate::Mapping`] made in a model has the words that the model touches, and no other bytes: which those are is
//! learnt while it runs, and then it begins anew. Limits: docs/spec/models.md.

pub mod atomic;
mod check;
mod lock;
mod sleep;
mod weak;
mod words;

pub use check::{Model, is_running};
pub use lock::{Condvar, Mutex, MutexGuard};
/// Threads of a model.
pub use loom::thread;
pub use sleep::{sleep, wake};
pub use weak::{Barrier, weaken};
pub(crate) use words::Words;
