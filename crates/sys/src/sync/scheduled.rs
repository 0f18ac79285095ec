//! Locks whose threads hand on to each other where a test wants it.

use super::plain;
use core::cell::RefCell;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::sync::Arc;
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

/// Why a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The thread is about to take a lock.
    May,
    /// It looks at what is not memory: a device.
    Look,
    /// It cannot go on before another thread has done something.
    Must,
}

type Hook = Arc<dyn Fn(Pause) + Send + Sync>;

std::thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// From now on this thread calls `hook` before it takes a lock, and where it would sleep for another thread.
pub fn on_pause(hook: Option<Hook>) {
    HOOK.with(|own| *own.borrow_mut() = hook);
}

/// Whether this thread has a hook.
pub fn has_hook() -> bool {
    HOOK.with(|own| own.borrow().is_some())
}

/// This thread looks at a device, or could as well.
pub fn look() {
    pause(Pause::Look);
}

/// Calls the hook; false if there is none.
fn pause(why: Pause) -> bool {
    let hook = HOOK.with(|own| own.borrow().clone());
    hook.is_some_and(|hook| {
        hook(why);
        true
    })
}

/// As [`std::thread::yield_now`].
pub fn yield_now() {
    if !pause(Pause::Must) {
        std::thread::yield_now();
    }
}

/// As [`std::sync::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(plain::Mutex<T>);

/// As [`std::sync::MutexGuard`].
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    guard: plain::MutexGuard<'a, T>,
}

/// Takes a lock that another thread may have: `try_take` as often as the hook lets others run meanwhile, else `take`.
fn take<G>(try_take: impl Fn() -> Option<G>, take: impl FnOnce() -> G) -> G {
    pause(Pause::May);
    loop {
        if let Some(guard) = try_take() {
            return guard;
        }
        if !pause(Pause::Must) {
            return take();
        }
    }
}

impl<T> Mutex<T> {
    /// As [`std::sync::Mutex::new`].
    pub const fn new(value: T) -> Self {
        Self(plain::Mutex::new(value))
    }

    /// As [`std::sync::Mutex::into_inner`].
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    fn held<'a>(&'a self, guard: plain::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { mutex: self, guard }
    }

    /// As [`std::sync::Mutex::lock`].
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.held(take(|| self.0.try_lock(), || self.0.lock()))
    }

    /// As [`std::sync::Mutex::try_lock`]; none while another thread has the lock.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().map(|guard| self.held(guard))
    }

    /// As [`std::sync::Mutex::get_mut`].
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// As [`std::sync::RwLock`].
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(plain::RwLock<T>);

impl<T> RwLock<T> {
    /// As [`std::sync::RwLock::new`].
    pub const fn new(value: T) -> Self {
        Self(plain::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// As [`std::sync::RwLock::read`].
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        take(|| self.0.try_read(), || self.0.read())
    }

    /// As [`std::sync::RwLock::write`].
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        take(|| self.0.try_write(), || self.0.write())
    }
}

/// As [`std::sync::Condvar`]. Whoever waits with a hook may wake without a reason, each time the hook returns.
#[derive(Debug, Default)]
pub struct Condvar(plain::Condvar);

impl Condvar {
    /// As [`std::sync::Condvar::new`].
    #[must_use]
    pub const fn new() -> Self {
        Self(plain::Condvar::new())
    }

    /// Gives the lock back and lets others run, and takes it again; or does nothing, without a hook.
    fn pass<'a, T>(guard: MutexGuard<'a, T>) -> Result<MutexGuard<'a, T>, MutexGuard<'a, T>> {
        let hooked = HOOK.with(|hook| hook.borrow().is_some());
        if !hooked {
            return Err(guard);
        }
        let mutex = guard.mutex;
        drop(guard);
        pause(Pause::Must);
        Ok(mutex.lock())
    }

    /// As [`std::sync::Condvar::wait`].
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        Self::pass(guard).unwrap_or_else(|guard| guard.mutex.held(self.0.wait(guard.guard)))
    }

    /// As [`std::sync::Condvar::wait_while`].
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut guard) {
            guard = self.wait(guard);
        }
        guard
    }

    /// As [`std::sync::Condvar::wait_timeout`]. The flag says that the time is over.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, most: Duration) -> (MutexGuard<'a, T>, bool) {
        let (guard, most) = match Self::pass(guard) {
            Ok(guard) => (guard, Duration::ZERO),
            Err(guard) => (guard, most),
        };
        let mutex = guard.mutex;
        let (guard, is_over) = self.0.wait_timeout(guard.guard, most);
        (mutex.held(guard), is_over)
    }

    /// As [`std::sync::Condvar::notify_one`].
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// As [`std::sync::Condvar::notify_all`].
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
