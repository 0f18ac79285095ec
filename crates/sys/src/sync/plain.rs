//! The locks of the standard library, which nobody can poison.

use core::time::Duration;
pub use std::sync::MutexGuard;
use std::sync::{self, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult};

/// The guard, whoever panicked with the lock; none while another thread has it.
#[inline]
fn unless_taken<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// As [`sync::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// As [`sync::Mutex::new`].
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// As [`sync::Mutex::into_inner`].
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// As [`sync::Mutex::lock`].
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`sync::Mutex::try_lock`]; none while another thread has the lock.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        unless_taken(self.0.try_lock())
    }

    /// As [`sync::Mutex::get_mut`].
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As [`sync::RwLock`].
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// As [`sync::RwLock::new`].
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// As [`sync::RwLock::read`].
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`sync::RwLock::write`].
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`sync::RwLock::try_read`]; none while another thread changes what the lock guards.
    #[cfg(feature = "schedule")]
    pub(super) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        unless_taken(self.0.try_read())
    }

    /// As [`sync::RwLock::try_write`]; none while another thread has the lock.
    #[cfg(feature = "schedule")]
    pub(super) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        unless_taken(self.0.try_write())
    }
}

/// As [`sync::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// As [`sync::Condvar::new`].
    #[must_use]
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// As [`sync::Condvar::wait`].
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`sync::Condvar::wait_while`].
    #[cfg(not(feature = "schedule"))]
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`sync::Condvar::wait_timeout`]. The flag says that the time is over.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, most: Duration) -> (MutexGuard<'a, T>, bool) {
        let (guard, result) = self.0.wait_timeout(guard, most).unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }

    /// As [`sync::Condvar::notify_one`].
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// As [`sync::Condvar::notify_all`].
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
