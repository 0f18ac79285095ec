//! Interrupts of a device elsewhere: one eventfd a vector, however many threads wait for it.

use crate::socket::timespec;
use nvmed_sys::QuietFd;
use nvmed_sys::sync::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// One vector. The server writes the eventfd after it has posted completions.
///
/// Reading an eventfd takes the event from everybody else, so one waiting thread polls it for all: the
/// others wait for that thread.
#[derive(Debug)]
pub struct Vector {
    fd: QuietFd,
    count: AtomicU32,
    /// Whether a thread polls.
    polled: Mutex<bool>,
    changed: Condvar,
}

impl Vector {
    /// A vector that has not fired.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn new() -> Result<Self, Errno> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (count, polled, changed) = (AtomicU32::new(0), Mutex::new(false), Condvar::new());
        Ok(Self { fd: QuietFd::new(fd), count, polled, changed })
    }

    /// How often it fired, as far as anybody looked.
    pub fn events(&self) -> u32 {
        let polled = self.polled.lock();
        // A thread that polls must not find the event gone when it wakes; it will count it.
        if !*polled {
            self.drain();
        }
        drop(polled);
        self.count.load(Ordering::Acquire)
    }

    /// Waits until the count is not `seen`, the peer behind `socket` is gone or the time is over; whether
    /// anything but the time ended it.
    pub fn wait(&self, socket: BorrowedFd<'_>, seen: u32, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        let mut polled = self.polled.lock();
        loop {
            if !*polled {
                self.drain();
            }
            let left = end.saturating_duration_since(Instant::now());
            if self.count.load(Ordering::Acquire) != seen || left.is_zero() {
                return self.count.load(Ordering::Acquire) != seen;
            }
            if *polled {
                (polled, _) = self.changed.wait_timeout(polled, left);
                continue;
            }
            *polled = true;
            drop(polled);
            let gone = self.poll(socket, left);
            polled = self.polled.lock();
            self.drain();
            *polled = false;
            self.changed.notify_all();
            if gone {
                return true;
            }
        }
    }

    /// Sleeps until either descriptor has something to say; whether the peer is gone.
    fn poll(&self, socket: BorrowedFd<'_>, left: Duration) -> bool {
        let mut polled =
            [PollFd::new(&self.fd, PollFlags::IN), PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
        // A wait cut short by a signal makes the caller look again.
        let _ = rustix::event::poll(&mut polled, Some(&timespec(left)));
        polled[1].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    /// Takes the event, if there is one, and counts it.
    fn drain(&self) {
        if rustix::io::read(&self.fd, &mut [0; 8]).is_ok() {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl AsFd for Vector {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::pair;
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn one_event_ends_the_waits_of_all_threads_and_none_is_lost() {
        let (near, _far) = pair();
        let (vector, near) = (Arc::new(Vector::new().unwrap()), Arc::new(near));
        for _ in 0..200 {
            let seen = vector.events();
            let waiting: Vec<_> = (0..3)
                .map(|_| {
                    let (vector, near) = (Arc::clone(&vector), Arc::clone(&near));
                    std::thread::spawn(move || vector.wait(near.as_fd(), seen, LONG))
                })
                .collect();
            rustix::io::write(&*vector, &1u64.to_ne_bytes()).unwrap();
            assert!(waiting.into_iter().all(|thread| thread.join().unwrap()));
        }
    }

    #[test]
    fn who_only_looks_leaves_the_event_to_the_thread_that_polls() {
        let (near, _far) = pair();
        let vector = Vector::new().unwrap();
        rustix::io::write(&vector, &1u64.to_ne_bytes()).unwrap();
        *vector.polled.lock() = true;
        assert_eq!(vector.events(), 0);
        assert!(!vector.poll(near.as_fd(), LONG), "the poll ends at once, or after a long time");
        *vector.polled.lock() = false;
        assert_eq!((vector.events(), vector.events()), (1, 1));
    }

    #[test]
    fn a_peer_that_goes_ends_the_wait_and_time_does_too() {
        let (near, far) = pair();
        let vector = Vector::new().unwrap();
        assert!(!vector.wait(near.as_fd(), 0, Duration::from_millis(1)));
        rustix::io::write(&vector, &1u64.to_ne_bytes()).unwrap();
        assert!(vector.wait(near.as_fd(), 0, LONG));
        assert!(!vector.wait(near.as_fd(), vector.events(), Duration::ZERO));
        drop(far);
        assert!(vector.wait(near.as_fd(), vector.events(), LONG));
    }
}
