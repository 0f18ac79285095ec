//! Interrupts: eventfds that the kernel writes when the device raises a vector, and the waiting for them.

use nvmed_dma::Waited;
use nvmed_sys::QuietFd;
use nvmed_sys::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A fresh eventfd that is out of the host program's way.
pub(crate) fn event() -> Result<QuietFd, Errno> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).map(QuietFd::new)
}

/// Whether the eventfd was written since it was last read.
pub(crate) fn drain(fd: BorrowedFd<'_>) -> bool {
    let mut count = [0; 8];
    matches!(rustix::io::read(fd, &mut count), Ok(8))
}

pub(crate) fn signal(fd: BorrowedFd<'_>) {
    // A counter that is full is readable already, which is all that it has to say.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Waits until one of `fds` is readable, at most `timeout`, or for ever without one.
pub(crate) fn wait_readable(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> bool {
    let span = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    // A signal ends the wait early; every caller looks again.
    rustix::event::poll(fds, span.as_ref()).is_ok_and(|ready| ready > 0)
}

/// One interrupt vector.
///
/// Interrupts collect in the kernel's eventfd; nothing is paid for them by those who only look. Of several
/// threads that wait, one (the leader) reads the eventfd and counts; the others sleep until the count changes
/// or the lead is free. An interrupt that came before a wait began ends it at once: it is still in the eventfd,
/// or somebody has counted it since the caller looked at the count.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Vector {
    fd: QuietFd,
    count: AtomicU32,
    /// Whether a thread is reading the eventfd, or is about to.
    led: Mutex<bool>,
    changed: Condvar,
    /// For callers with an event loop: written by whoever counts. Once it is there, a thread counts always.
    outside: OnceLock<QuietFd>,
    relayed: AtomicBool,
}

impl Vector {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            fd: event()?,
            count: AtomicU32::new(0),
            led: Mutex::new(false),
            changed: Condvar::new(),
            outside: OnceLock::new(),
            relayed: AtomicBool::new(false),
        })
    }

    /// The eventfd that the kernel writes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    fn led(&self) -> MutexGuard<'_, bool> {
        // A flag is valid whatever happened to the thread that held the lock.
        self.led.lock()
    }

    /// Counts, and tells everybody who waits.
    pub fn ring(&self) {
        // Under the lock: a follower that saw the old count is asleep by now and hears the notification.
        let _led = self.led();
        self.count.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
        if let Some(outside) = self.outside.get() {
            signal(outside.as_fd());
        }
    }

    /// Waits until the count is no longer `seen`, at most `timeout`.
    pub fn wait(&self, seen: u32, timeout: Duration) -> Waited {
        let end = Instant::now() + timeout;
        let mut led = self.led();
        loop {
            if self.count() != seen {
                return Waited::Event;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() && timeout > Duration::ZERO {
                return Waited::Timeout;
            }
            if *led || self.relayed.load(Ordering::Acquire) {
                (led, _) = self.changed.wait_timeout(led, left);
            } else {
                *led = true;
                drop(led);
                self.lead(left);
                led = self.led();
                *led = false;
                // Whoever follows takes the lead, or sees the count.
                self.changed.notify_all();
            }
            if timeout.is_zero() {
                return if self.count() == seen { Waited::Timeout } else { Waited::Event };
            }
        }
    }

    /// Waits for the eventfd, as the only thread that does, and counts.
    fn lead(&self, left: Duration) {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        if wait_readable(&mut fds, Some(left)) && drain(self.fd.as_fd()) {
            self.ring();
        }
    }

    /// A descriptor for an event loop, and whether this call made it: then a thread must begin to count.
    pub fn outside(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let mut fresh = false;
        if self.outside.get().is_none() {
            let _led = self.led();
            fresh = self.outside.get().is_none() && self.outside.set(event().ok()?).is_ok();
        }
        self.outside.get().map(|fd| (fd.as_fd(), fresh))
    }

    /// From now on somebody else reads the eventfd and rings.
    pub(crate) fn relay(&self) {
        self.relayed.store(true, Ordering::Release);
    }

    pub(crate) fn is_relayed(&self) -> bool {
        self.relayed.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// A wait that loses its event does not end.
    const LOST: Duration = Duration::from_secs(100_000);

    #[test]
    fn an_interrupt_between_the_look_and_the_wait_is_not_lost() {
        let vector = Vector::new().expect("an eventfd");
        let seen = vector.count();
        signal(vector.fd());
        assert_eq!(vector.wait(seen, LOST), Waited::Event);
        let seen = vector.count();
        assert_eq!(vector.wait(seen, Duration::from_micros(1)), Waited::Timeout);
        assert_eq!(vector.wait(seen, Duration::ZERO), Waited::Timeout);
        signal(vector.fd());
        assert_eq!(vector.wait(seen, Duration::ZERO), Waited::Event);
    }

    #[test]
    fn one_interrupt_wakes_every_thread_that_waits_for_it() {
        const THREADS: usize = 4;
        let vector = Vector::new().expect("an eventfd");
        let round = Barrier::new(THREADS + 1);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let seen = vector.count();
                        round.wait();
                        assert_eq!(vector.wait(seen, LOST), Waited::Event);
                        round.wait();
                    }
                });
            }
            for _ in 0..200 {
                round.wait();
                signal(vector.fd());
                round.wait();
            }
        });
    }

    #[test]
    fn a_leader_whose_time_is_over_hands_the_lead_on() {
        let vector = Vector::new().expect("an eventfd");
        let seen = vector.count();
        std::thread::scope(|scope| {
            let short = scope.spawn(|| vector.wait(seen, Duration::from_millis(5)));
            let long = scope.spawn(|| vector.wait(seen, LOST));
            assert_eq!(short.join().expect("no panic"), Waited::Timeout);
            signal(vector.fd());
            assert_eq!(long.join().expect("no panic"), Waited::Event);
        });
    }

    #[test]
    fn an_event_loop_has_a_descriptor_of_its_own() {
        let vector = Vector::new().expect("an eventfd");
        let fresh = vector.outside().map(|(_, fresh)| fresh);
        let again = vector.outside().map(|(_, fresh)| fresh);
        assert_eq!((fresh, again), (Some(true), Some(false)));
        vector.relay();
        let seen = vector.count();
        vector.ring();
        let (fd, _) = vector.outside().expect("made above");
        assert!(drain(fd) && !drain(fd));
        assert_eq!(vector.wait(seen, LOST), Waited::Event);
    }
}
