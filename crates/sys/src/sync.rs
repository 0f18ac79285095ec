//! Locks. A product has those of the standard library and nothing else.
//!
//! A thread that panics with a lock leaves it to the next one: what a lock guards is changed in steps that leave it
//! whole, and a panic that matters stops changes where it is caught. So no lock here is poisoned, and none is asked
//! whether it is.
//!
//! With the feature `schedule` a thread can have a hook (`on_pause`): it calls it before it takes a lock, and where it
//! would sleep for another thread, and then looks again. A test that lets one thread run at a time hands on there. A
//! thread without a hook sleeps as it does with the locks of the standard library. With the feature `model` they are
//! those of the module `model`.

pub(crate) mod plain;
#[cfg(feature = "schedule")]
mod scheduled;

#[cfg(feature = "model")]
pub use crate::model::{Condvar, Mutex, MutexGuard};
#[cfg(feature = "model")]
pub use plain::RwLock;
#[cfg(not(any(feature = "schedule", feature = "model")))]
pub use plain::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(feature = "schedule")]
pub use scheduled::{Condvar, Mutex, MutexGuard, Pause, RwLock, has_hook, look, on_pause, yield_now};
pub use std::sync::{Arc, Once, OnceLock, RwLockReadGuard, RwLockWriteGuard, Weak};
#[cfg(not(feature = "schedule"))]
pub use std::thread::yield_now;
