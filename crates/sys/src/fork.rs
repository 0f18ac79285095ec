//! A lock that can be kept over fork(2).

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use rustix::thread::futex;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and somebody may be waiting.
const WAITED_FOR: u32 = 2;

/// A mutual exclusion of threads that a thread about to fork can take before and give back afterwards, in parent and
/// child: so the child never finds it taken by a thread that it does not have.
#[derive(Debug, Default)]
pub struct ForkLock<T> {
    word: AtomicU32,
    /// Taken by [`ForkLock::hold`].
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time, the holder of `word`; as for std's mutex.
unsafe impl<T: Send> Sync for ForkLock<T> {}

/// The value, while the lock is taken.
#[derive(Debug)]
pub struct ForkGuard<'a, T>(&'a ForkLock<T>);

impl<T> ForkLock<T> {
    /// A free lock around a value.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(FREE), held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits until it is free and takes it.
    pub fn lock(&self) -> ForkGuard<'_, T> {
        self.take();
        ForkGuard(self)
    }

    /// Takes it, if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<ForkGuard<'_, T>> {
        let taken = self.word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        // Made only then: a guard that is dropped gives the lock back.
        taken.is_ok().then(|| ForkGuard(self))
    }

    /// Takes it until [`ForkLock::release`]; meanwhile nobody reaches the value.
    pub fn hold(&self) {
        self.take();
        self.held.store(true, Ordering::Relaxed);
    }

    /// Gives back what [`ForkLock::hold`] took, in the parent and in the child. Nothing happens when it is not held.
    pub fn release(&self) {
        if self.held.swap(false, Ordering::Relaxed) {
            self.give();
        }
    }

    fn take(&self) {
        if self.word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        while self.word.swap(WAITED_FOR, Ordering::Acquire) != FREE {
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, WAITED_FOR, None);
        }
    }

    fn give(&self) {
        if self.word.swap(FREE, Ordering::Release) == WAITED_FOR {
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
        }
    }
}

impl<T> Deref for ForkGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while this thread has taken the lock, and `release` gives back only what `hold`
        // took, which makes no guard: nobody else reaches the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for ForkGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`; the guard is borrowed uniquely.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for ForkGuard<'_, T> {
    fn drop(&mut self) {
        self.0.give();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let lock = ForkLock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }

    #[test]
    fn who_finds_it_taken_leaves_it_taken() {
        let lock = ForkLock::new(1);
        let taken = lock.lock();
        for _ in 0..3 {
            assert!(lock.try_lock().is_none());
        }
        drop(taken);
        let taken = lock.try_lock();
        assert!(taken.is_some() && lock.try_lock().is_none());
        drop(taken);
        assert_eq!(lock.try_lock().map(|value| *value), Some(1));
    }

    #[test]
    fn what_is_held_waits_for_its_release() {
        let lock = ForkLock::new(1);
        lock.release();
        lock.hold();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| *lock.lock());
            assert!(!waiter.is_finished());
            lock.release();
            assert_eq!(waiter.join().unwrap(), 1);
        });
        lock.release();
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn a_forked_child_goes_on_with_what_its_parent_held() {
        let lock = ForkLock::new(1);
        lock.hold();
        // SAFETY: the child makes only system calls before it ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            lock.release();
            let value = *lock.lock();
            // SAFETY: ends the child at once, without its parent's destructors.
            unsafe { libc::_exit(value + 6) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable and lives on this stack.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 7);
        lock.release();
        assert_eq!(*lock.lock(), 1);
    }
}
