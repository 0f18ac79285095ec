//! Locks. A product has those of the standard library and nothing else.
//!
//! With the feature `schedule` a thread can have a hook (`on_pause`): it calls it before it takes a lock, and where it would
//! sleep for another thread, and then looks again. A test that lets one thread run at a time hands on there. A thread
//! without a hook sleeps as it does with the locks of the standard library.

#[cfg(feature = "schedule")]
pub use scheduled::{
    Condvar, Mutex, MutexGuard, Pause, RwLock, RwLockReadGuard, RwLockWriteGuard, on_pause, yield_now,
};
pub use std::sync::{Arc, OnceLock, PoisonError, TryLockError, Weak};
#[cfg(not(feature = "schedule"))]
pub use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(feature = "schedule"))]
pub use std::thread::yield_now;

#[cfg(feature = "schedule")]
mod scheduled {
    use core::cell::RefCell;
    use core::ops::{Deref, DerefMut};
    use core::time::Duration;
    use std::sync::{self, Arc, LockResult, PoisonError, TryLockError, TryLockResult, WaitTimeoutResult};
    pub use std::sync::{RwLockReadGuard, RwLockWriteGuard};

    /// Why a hook is called.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Pause {
        /// The thread is about to take a lock.
        May,
        /// It cannot go on before another thread has done something.
        Must,
    }

    type Hook = Arc<dyn Fn(Pause) + Send + Sync>;

    std::thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// From now on this thread calls `hook` before it takes a lock, and where it would sleep for another thread.
    pub fn on_pause(hook: Option<Hook>) {
        HOOK.with(|place| *place.borrow_mut() = hook);
    }

    /// Calls the hook; false if there is none.
    fn pause(why: Pause) -> bool {
        let hook = HOOK.with(|place| place.borrow().clone());
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

    /// As [`sync::Mutex`].
    #[derive(Debug, Default)]
    pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

    /// As [`sync::MutexGuard`].
    #[derive(Debug)]
    pub struct MutexGuard<'a, T: ?Sized> {
        mutex: &'a Mutex<T>,
        guard: sync::MutexGuard<'a, T>,
    }

    impl<T> Mutex<T> {
        /// As [`sync::Mutex::new`].
        pub const fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        /// As [`sync::Mutex::into_inner`].
        ///
        /// # Errors
        /// A thread panicked with the lock.
        pub fn into_inner(self) -> LockResult<T> {
            self.0.into_inner()
        }
    }

    impl<T: ?Sized> Mutex<T> {
        fn held<'a>(&'a self, result: LockResult<sync::MutexGuard<'a, T>>) -> LockResult<MutexGuard<'a, T>> {
            match result {
                Ok(guard) => Ok(MutexGuard { mutex: self, guard }),
                Err(error) => Err(PoisonError::new(MutexGuard { mutex: self, guard: error.into_inner() })),
            }
        }

        /// As [`sync::Mutex::lock`].
        ///
        /// # Errors
        /// A thread panicked with the lock.
        pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            pause(Pause::May);
            loop {
                match self.0.try_lock() {
                    Ok(guard) => return self.held(Ok(guard)),
                    Err(TryLockError::Poisoned(error)) => return self.held(Err(error)),
                    Err(TryLockError::WouldBlock) if pause(Pause::Must) => {}
                    Err(TryLockError::WouldBlock) => return self.held(self.0.lock()),
                }
            }
        }

        /// As [`sync::Mutex::try_lock`].
        ///
        /// # Errors
        /// Another thread has the lock, or panicked with it.
        pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Ok(MutexGuard { mutex: self, guard }),
                Err(TryLockError::Poisoned(error)) => self.held(Err(error)).map_err(TryLockError::Poisoned),
                Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
            }
        }

        /// As [`sync::Mutex::get_mut`].
        ///
        /// # Errors
        /// A thread panicked with the lock.
        pub fn get_mut(&mut self) -> LockResult<&mut T> {
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

    /// As [`sync::RwLock`].
    #[derive(Debug, Default)]
    pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

    impl<T> RwLock<T> {
        /// As [`sync::RwLock::new`].
        pub const fn new(value: T) -> Self {
            Self(sync::RwLock::new(value))
        }

        /// As [`sync::RwLock::into_inner`].
        ///
        /// # Errors
        /// A thread panicked with the lock.
        pub fn into_inner(self) -> LockResult<T> {
            self.0.into_inner()
        }
    }

    impl<T: ?Sized> RwLock<T> {
        /// As [`sync::RwLock::read`].
        ///
        /// # Errors
        /// A thread panicked with the lock.
        pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
            pause(Pause::May);
            loop {
                match self.0.try_read() {
                    Ok(guard) => return Ok(guard),
                    Err(TryLockError::Poisoned(error)) => return Err(error),
                    Err(TryLockError::WouldBlock) if pause(Pause::Must) => {}
                    Err(TryLockError::WouldBlock) => return self.0.read(),
                }
            }
        }

        /// As [`sync::RwLock::write`].
        ///
        /// # Errors
        /// A thread panicked with the lock.
        pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
            pause(Pause::May);
            loop {
                match self.0.try_write() {
                    Ok(guard) => return Ok(guard),
                    Err(TryLockError::Poisoned(error)) => return Err(error),
                    Err(TryLockError::WouldBlock) if pause(Pause::Must) => {}
                    Err(TryLockError::WouldBlock) => return self.0.write(),
                }
            }
        }

        /// As [`sync::RwLock::get_mut`].
        ///
        /// # Errors
        /// A thread panicked with the lock.
        pub fn get_mut(&mut self) -> LockResult<&mut T> {
            self.0.get_mut()
        }
    }

    /// As [`sync::Condvar`]. Whoever waits with a hook may wake without a reason, each time the hook returns.
    #[derive(Debug, Default)]
    pub struct Condvar(sync::Condvar);

    impl Condvar {
        /// As [`sync::Condvar::new`].
        #[must_use]
        pub const fn new() -> Self {
            Self(sync::Condvar::new())
        }

        /// Gives the lock back and lets others run, and takes it again; or does nothing, without a hook.
        fn pass<'a, T>(guard: MutexGuard<'a, T>) -> Result<LockResult<MutexGuard<'a, T>>, MutexGuard<'a, T>> {
            let hooked = HOOK.with(|place| place.borrow().is_some());
            if !hooked {
                return Err(guard);
            }
            let mutex = guard.mutex;
            drop(guard);
            pause(Pause::Must);
            Ok(mutex.lock())
        }

        /// As [`sync::Condvar::wait`].
        ///
        /// # Errors
        /// A thread panicked with the lock.
        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            Self::pass(guard).unwrap_or_else(|guard| guard.mutex.held(self.0.wait(guard.guard)))
        }

        /// As [`sync::Condvar::wait_while`].
        ///
        /// # Errors
        /// A thread panicked with the lock.
        pub fn wait_while<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            mut condition: impl FnMut(&mut T) -> bool,
        ) -> LockResult<MutexGuard<'a, T>> {
            while condition(&mut guard) {
                guard = self.wait(guard)?;
            }
            Ok(guard)
        }

        /// As [`sync::Condvar::wait_timeout`].
        ///
        /// # Errors
        /// A thread panicked with the lock.
        pub fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            most: Duration,
        ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
            let (guard, most) = match Self::pass(guard) {
                Ok(guard) => (guard.unwrap_or_else(PoisonError::into_inner), Duration::ZERO),
                Err(guard) => (guard, most),
            };
            let mutex = guard.mutex;
            match self.0.wait_timeout(guard.guard, most) {
                Ok((guard, result)) => Ok((MutexGuard { mutex, guard }, result)),
                Err(error) => {
                    let (guard, result) = error.into_inner();
                    Err(PoisonError::new((MutexGuard { mutex, guard }, result)))
                }
            }
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
}
