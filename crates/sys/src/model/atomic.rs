//! Atomics of `loom`, with five differences.
//!
//! - `loom` takes an access that is `SeqCst` for one that is `AcqRel`, and finds mistakes where there are none. Here a
//!   thread that has written with `SeqCst` makes a full barrier before it reads with `SeqCst`. That orders the two as
//!   the language does; it also orders what lies between them, which the language does not.
//! - `loom` looks for other orders of a store and the last access before it, and misses those of a load before that one
//!   (as where a thread loads a word and then swaps it). Here loads of a word are told to it as what depends on each
//!   other, and so are full barriers.
//! - The place of an access can be made `Relaxed`, and that of a fence nothing: see [`super::weaken`].
//! - A relaxed store of what the same thread has stored there last is left out, since who reads can do so in fewer ways
//!   only after it. Entries of which little changes have too many orders otherwise.
//! - A thread that ends by a panic changes nothing more: there is no model any more then.

use super::weak;
use core::cell::{Cell, RefCell};
use core::panic::Location;
use core::sync::atomic::Ordering::{self, Relaxed, SeqCst};
use std::rc::Rc;

std::thread_local! {
    /// Threads of models so far.
    static THREADS: Cell<u64> = const { Cell::new(0) };
    /// What all full barriers depend on.
    static BARRIERS: RefCell<Option<Rc<Order>>> = const { RefCell::new(None) };
}

/// What depends on each other, and does nothing else: waking whoever waits for what nobody waits for.
#[derive(Debug)]
struct Order(loom::sync::Condvar);

impl Order {
    fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    fn step(&self) {
        self.0.notify_one();
    }
}

/// The model begins anew.
pub(super) fn begin() {
    BARRIERS.with(|barriers| *barriers.borrow_mut() = Some(Rc::new(Order::new())));
}

fn full_barrier() {
    // Not borrowed while other threads run.
    let order = BARRIERS.with(|barriers| barriers.borrow().clone());
    order.iter().for_each(|order| order.step());
    loom::sync::atomic::fence(SeqCst);
    HAS_WRITTEN.with(|written| written.set(false));
}

loom::thread_local! {
    /// The number of this thread, from 1 on.
    static NUMBER: u64 = {
        THREADS.set(THREADS.get() + 1);
        THREADS.get()
    };
    /// Whether this thread has written with `SeqCst` since its last full barrier.
    static HAS_WRITTEN: Cell<bool> = Cell::new(false);
}

/// As [`core::sync::atomic::fence`].
#[track_caller]
pub fn fence(order: Ordering) {
    if std::thread::panicking() || weak::is_weak(Location::caller()) {
        return;
    }
    if order == SeqCst {
        full_barrier();
    } else {
        loom::sync::atomic::fence(order);
    }
}

fn before_read(order: Ordering) {
    if order == SeqCst && HAS_WRITTEN.with(Cell::get) {
        full_barrier();
    }
}

fn after_write(order: Ordering) {
    if order == SeqCst {
        HAS_WRITTEN.with(|written| written.set(true));
    }
}

/// What all kinds of words have.
macro_rules! common {
    ($name:ident, $value:ty) => {
        #[doc = concat!("As [`core::sync::atomic::", stringify!($name), "`].")]
        #[derive(Debug)]
        pub struct $name {
            word: loom::sync::atomic::$name,
            /// What was stored last, and by which thread; 0 by none alone.
            stored: core::sync::atomic::$name,
            by: core::sync::atomic::AtomicU64,
            loads: Order,
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(Default::default())
            }
        }

        impl $name {
            /// A word with this value.
            #[must_use]
            pub fn new(value: $value) -> Self {
                Self {
                    word: loom::sync::atomic::$name::new(value),
                    stored: core::sync::atomic::$name::new(value),
                    by: core::sync::atomic::AtomicU64::new(NUMBER.with(|number| *number)),
                    loads: Order::new(),
                }
            }

            /// Its value.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                if std::thread::panicking() {
                    return Default::default();
                }
                let order = weak::order(order, Location::caller());
                before_read(order);
                self.loads.step();
                self.word.load(order)
            }

            /// Changes it.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                if std::thread::panicking() {
                    return;
                }
                let order = weak::order(order, Location::caller());
                let number = NUMBER.with(|number| *number);
                let is_again =
                    self.by.swap(number, Relaxed) == number && self.stored.swap(value, Relaxed) == value;
                self.stored.store(value, Relaxed);
                if is_again && order == Relaxed {
                    return;
                }
                self.word.store(value, order);
                after_write(order);
            }

            /// Changes it; what it was.
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.change(order, |word, order| word.swap(value, order))
            }

            /// Changes it if it is `current`.
            ///
            /// # Errors
            /// What it is.
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                if std::thread::panicking() {
                    return Err(Default::default());
                }
                let caller = Location::caller();
                let (success, failure) = (weak::order(success, caller), weak::order(failure, caller));
                before_read(success);
                self.by.store(0, Relaxed);
                self.word.compare_exchange(current, new, success, failure).inspect(|_| after_write(success))
            }

            #[track_caller]
            fn change(
                &self,
                order: Ordering,
                change: impl FnOnce(&loom::sync::atomic::$name, Ordering) -> $value,
            ) -> $value {
                if std::thread::panicking() {
                    return Default::default();
                }
                let order = weak::order(order, Location::caller());
                before_read(order);
                self.by.store(0, Relaxed);
                let before = change(&self.word, order);
                after_write(order);
                before
            }
        }
    };
}

/// What numbers have besides.
macro_rules! number {
    ($name:ident, $value:ty) => {
        common!($name, $value);

        impl $name {
            /// As [`Self::compare_exchange`], which never fails without a reason here.
            ///
            /// # Errors
            /// What it is.
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            /// Adds, wrapping around; what it was.
            #[track_caller]
            pub fn fetch_add(&self, more: $value, order: Ordering) -> $value {
                self.change(order, |word, order| word.fetch_add(more, order))
            }

            /// Subtracts, wrapping around; what it was.
            #[track_caller]
            pub fn fetch_sub(&self, less: $value, order: Ordering) -> $value {
                self.change(order, |word, order| word.fetch_sub(less, order))
            }

            /// Sets bits; what it was.
            #[track_caller]
            pub fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                self.change(order, |word, order| word.fetch_or(bits, order))
            }

            /// Clears other bits; what it was.
            #[track_caller]
            pub fn fetch_and(&self, bits: $value, order: Ordering) -> $value {
                self.change(order, |word, order| word.fetch_and(bits, order))
            }

            /// Changes it to what `next` says, again and again until nobody was faster.
            ///
            /// # Errors
            /// What it is, when `next` says nothing.
            #[track_caller]
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut seen = self.load(failure);
                while let Some(new) = next(seen) {
                    match self.compare_exchange(seen, new, success, failure) {
                        Ok(before) => return Ok(before),
                        Err(now) => seen = now,
                    }
                }
                Err(seen)
            }
        }
    };
}

common!(AtomicBool, bool);
number!(AtomicU8, u8);
number!(AtomicU16, u16);
number!(AtomicU32, u32);
number!(AtomicU64, u64);
