//! Interrupts: what one side rings and the other waits for.

use nvmed_sys::QuietFd;
use nvmed_sys::sync::{Condvar, Mutex, OnceLock};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Somebody looked at the count, or has a descriptor: from now on rings count.
const WATCHED: u8 = 1;
/// Rings are held back (Base 2.0, 3.1.3.3, Interrupt Mask Set).
const MASKED: u8 = 2;

/// One interrupt vector, or the device thread's bell. Vectors of different processors share no cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Bell {
    mode: AtomicU8,
    /// Rung while masked.
    held: AtomicBool,
    count: AtomicU32,
    /// Sleepers and descriptors: with none, ringing is counting.
    listeners: AtomicU32,
    /// The descriptor of an outside host, an eventfd.
    connected: Mutex<Option<QuietFd>>,
    changed: Condvar,
    /// The descriptor of a host in this process, made on demand.
    event: OnceLock<QuietFd>,
}

impl Bell {
    /// A bell whose rings count from the begin.
    #[must_use]
    pub fn watched() -> Self {
        Self { mode: AtomicU8::new(WATCHED), ..Self::default() }
    }

    /// Makes rings count; whether they did already. A caller to whom they did not must then wait until every
    /// ringer that may have seen the old mode is done.
    pub fn watch(&self) -> bool {
        let watched = |mode: u8| mode & WATCHED != 0;
        watched(self.mode.load(Ordering::Acquire)) || watched(self.mode.fetch_or(WATCHED, Ordering::SeqCst))
    }

    /// Rings so far, as far as they count.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Rings: an interrupt.
    #[inline]
    pub fn ring(&self) {
        // Relaxed: who begins to watch waits for ringers, see `watch`.
        match self.mode.load(Ordering::Relaxed) {
            0 => {}
            WATCHED => self.add(true),
            _ => self.hold(),
        }
    }

    /// Wakes this process's host, without an interrupt: a status changed.
    pub fn nudge(&self) {
        self.add(false);
    }

    #[inline]
    fn add(&self, interrupt: bool) {
        // Pairs with `wait` and `descriptor`, which count themselves before they look at `count`: either they
        // see this, or we see them.
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.listeners.load(Ordering::SeqCst) > 0 {
            self.wake(interrupt);
        }
    }

    #[cold]
    fn wake(&self, interrupt: bool) {
        // Taking the lock waits until a sleeper sleeps.
        let connected = self.connected.lock();
        self.changed.notify_all();
        // A descriptor whose counter is full is readable, which is all that it has to say.
        if let Some(fd) = connected.as_ref().filter(|_| interrupt) {
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
        if let Some(fd) = self.event.get() {
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    #[cold]
    fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
        // Pairs with `unmask`: either that sees the held ring, or this sees the mask gone.
        if self.mode.load(Ordering::SeqCst) & MASKED == 0 {
            self.release();
        }
    }

    /// Holds rings back from now on.
    pub fn mask(&self) {
        self.mode.fetch_or(MASKED, Ordering::SeqCst);
    }

    /// Lets rings through again, with one for those that were held back.
    pub fn unmask(&self) {
        self.mode.fetch_and(!MASKED, Ordering::SeqCst);
        self.release();
    }

    fn release(&self) {
        if self.held.swap(false, Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Waits until the count is no longer `seen`, at most `timeout`; whether it changed.
    pub fn wait(&self, seen: u32, timeout: Duration) -> bool {
        let begun = Instant::now();
        let mut guard = self.connected.lock();
        self.listeners.fetch_add(1, Ordering::SeqCst);
        while self.count() == seen
            && let Some(left) = timeout.checked_sub(begun.elapsed())
        {
            (guard, _) = self.changed.wait_timeout(guard, left);
        }
        self.listeners.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
        self.count() != seen
    }

    /// A descriptor that becomes readable when the count changes, or `None` when the host has none left.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        if self.event.get().is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let fresh = QuietFd::new(rustix::event::eventfd(0, flags).ok()?);
            let _guard = self.connected.lock();
            if self.event.set(fresh).is_ok() {
                self.listeners.fetch_add(1, Ordering::SeqCst);
            }
        }
        self.event.get().map(AsFd::as_fd)
    }

    /// Rings go to `fd`, too, from now on; `None` ends that.
    pub fn connect(&self, fd: Option<QuietFd>) {
        let mut connected = self.connected.lock();
        let change = i32::from(fd.is_some()) - i32::from(connected.is_some());
        self.listeners.fetch_add(change as u32, Ordering::SeqCst);
        *connected = fd;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fd: BorrowedFd<'_>) -> Option<u64> {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).ok().map(|_| u64::from_ne_bytes(bytes))
    }

    #[test]
    fn a_masked_ring_comes_when_the_mask_goes() {
        let bell = Bell::watched();
        let fd = bell.descriptor().unwrap();
        bell.ring();
        assert_eq!((bell.count(), read(fd)), (1, Some(1)));
        bell.mask();
        bell.ring();
        bell.ring();
        assert_eq!((bell.count(), read(fd)), (1, None));
        bell.unmask();
        assert_eq!((bell.count(), read(fd)), (2, Some(1)));
        bell.unmask();
        assert_eq!((bell.count(), read(fd)), (2, None));
    }

    #[test]
    fn an_outside_host_hears_interrupts_while_it_is_connected() {
        let bell = Bell::watched();
        let outside = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        bell.connect(Some(QuietFd::new(outside.try_clone().unwrap())));
        bell.nudge();
        assert_eq!(read(outside.as_fd()), None, "a changed status is no interrupt");
        bell.ring();
        assert_eq!(read(outside.as_fd()), Some(1));
        bell.connect(None);
        bell.ring();
        assert_eq!(read(outside.as_fd()), None);
        assert_eq!(bell.listeners.load(Ordering::SeqCst), 0);
        assert!(bell.wait(0, Duration::ZERO) && !bell.wait(3, Duration::ZERO));
    }

    #[test]
    fn nobody_counts_for_nobody() {
        let bell = Bell::default();
        bell.ring();
        assert_eq!(bell.count(), 0);
        assert!(!bell.watch() && bell.watch());
        bell.ring();
        assert_eq!(bell.count(), 1);
    }
}
