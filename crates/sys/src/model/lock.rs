//! Locks that a model takes in every order.

use crate::sync::plain;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::sync::OnceLock;

/// As [`std::sync::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized> {
    /// Made when a model takes it first.
    modelled: OnceLock<loom::sync::Mutex<()>>,
    value: plain::Mutex<T>,
}

/// As [`std::sync::MutexGuard`].
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    // In this order: the value is nobody's when the next thread of a model is let in.
    value: plain::MutexGuard<'a, T>,
    _modelled: Option<loom::sync::MutexGuard<'a, ()>>,
}

impl<T> Mutex<T> {
    /// As [`std::sync::Mutex::new`].
    pub const fn new(value: T) -> Self {
        Self { modelled: OnceLock::new(), value: plain::Mutex::new(value) }
    }

    /// As [`std::sync::Mutex::into_inner`].
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    fn modelled(&self) -> Option<&loom::sync::Mutex<()>> {
        super::is_running().then(|| self.modelled.get_or_init(|| loom::sync::Mutex::new(())))
    }

    /// As [`std::sync::Mutex::lock`].
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let modelled = self.modelled().and_then(|lock| lock.lock().ok());
        MutexGuard { value: self.value.lock(), _modelled: modelled }
    }

    /// As [`std::sync::Mutex::try_lock`]; none while another thread has the lock.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let modelled = match self.modelled() {
            Some(lock) => Some(lock.try_lock().ok()?),
            None => None,
        };
        Some(MutexGuard { value: self.value.try_lock()?, _modelled: modelled })
    }

    /// As [`std::sync::Mutex::get_mut`].
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// As [`std::sync::Condvar`]. No model waits for one.
#[derive(Debug, Default)]
pub struct Condvar(plain::Condvar);

impl Condvar {
    /// As [`std::sync::Condvar::new`].
    #[must_use]
    pub const fn new() -> Self {
        Self(plain::Condvar::new())
    }

    fn plain<T>(guard: MutexGuard<'_, T>) -> plain::MutexGuard<'_, T> {
        assert!(!super::is_running(), "no model waits for a condition");
        guard.value
    }

    fn held<T>(value: plain::MutexGuard<'_, T>) -> MutexGuard<'_, T> {
        MutexGuard { value, _modelled: None }
    }

    /// As [`std::sync::Condvar::wait`].
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        Self::held(self.0.wait(Self::plain(guard)))
    }

    /// As [`std::sync::Condvar::wait_while`].
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        Self::held(self.0.wait_while(Self::plain(guard), condition))
    }

    /// As [`std::sync::Condvar::wait_timeout`]. The flag says that the time is over.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, most: Duration) -> (MutexGuard<'a, T>, bool) {
        let (value, is_over) = self.0.wait_timeout(Self::plain(guard), most);
        (Self::held(value), is_over)
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
