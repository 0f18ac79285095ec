//! One thread a function, asleep: it hears when the kernel wants the device back, and when it reported an error.

use crate::interrupt::{self, Vector};
use nvmed_sys::QuietFd;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// What the thread and the function share.
#[derive(Debug)]
pub(crate) struct Watched {
    pub vectors: Vec<Vector>,
    /// The kernel wants the device back, or its bus reported an uncorrectable error.
    pub error: QuietFd,
    pub request: QuietFd,
    /// Ends the thread, or makes it look at `vectors` again.
    nudge: QuietFd,
    stop: AtomicBool,
    gone: AtomicBool,
}

impl Watched {
    pub fn new(vectors: Vec<Vector>) -> Result<Self, Errno> {
        let (error, request, nudge) = (interrupt::event()?, interrupt::event()?, interrupt::event()?);
        let (stop, gone) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { vectors, error, request, nudge, stop, gone })
    }

    /// Whether the device is not to be used any more.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Has the thread count the interrupts of a vector from now on.
    pub(crate) fn relay(&self, vector: &Vector) {
        vector.relay();
        interrupt::signal(self.nudge.as_fd());
    }

    fn leave(&self) {
        self.gone.store(true, Ordering::Release);
        // Who waits looks at the registers, which answer all ones from now on. A leader sleeps on the eventfd.
        for vector in &self.vectors {
            interrupt::signal(vector.fd());
            vector.ring();
        }
    }

    /// Waits for one thing to happen and acts on it.
    fn turn(&self) {
        let relayed: Vec<_> = self.vectors.iter().filter(|vector| vector.is_relayed()).collect();
        let mut fds = vec![PollFd::new(&self.nudge, PollFlags::IN)];
        if !self.is_gone() {
            fds.extend([&self.error, &self.request].map(|fd| PollFd::new(fd, PollFlags::IN)));
        }
        fds.extend(relayed.iter().map(|vector| PollFd::from_borrowed_fd(vector.fd(), PollFlags::IN)));
        interrupt::wait_readable(&mut fds, None);
        drop(fds);
        interrupt::drain(self.nudge.as_fd());
        let error = interrupt::drain(self.error.as_fd());
        let request = interrupt::drain(self.request.as_fd());
        if error || request {
            self.leave();
        }
        for vector in relayed {
            if interrupt::drain(vector.fd()) {
                vector.ring();
            }
        }
    }
}

/// The thread. Dropping it ends it.
pub(crate) struct Watch {
    watched: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn start(watched: Arc<Watched>) -> Result<Self, std::io::Error> {
        let shared = Arc::clone(&watched);
        let body = move || {
            while !shared.stop.load(Ordering::Acquire) {
                shared.turn();
            }
        };
        let thread = Some(nvmed_sys::spawn_quiet("nvmed-vfio", body)?);
        Ok(Self { watched, thread })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watched.stop.store(true, Ordering::Release);
        interrupt::signal(self.watched.nudge.as_fd());
        if let Some(thread) = self.thread.take() {
            // The thread has no result; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_dma::Waited;
    use std::time::Duration;

    /// A wait that loses its event does not end.
    const LOST: Duration = Duration::from_secs(100_000);

    fn watched() -> Arc<Watched> {
        let vectors = (0..2).map(|_| Vector::new().expect("an eventfd")).collect();
        Arc::new(Watched::new(vectors).expect("eventfds"))
    }

    #[test]
    fn a_device_that_is_wanted_back_wakes_everybody_and_is_gone() {
        let watched = watched();
        let _watch = Watch::start(Arc::clone(&watched)).expect("a thread");
        let seen = watched.vectors[1].count();
        interrupt::signal(watched.request.as_fd());
        assert_eq!(watched.vectors[1].wait(seen, LOST), Waited::Event);
        assert!(watched.is_gone());
    }

    #[test]
    fn a_relayed_vector_is_heard_by_a_loop_and_by_a_thread() {
        let watched = watched();
        let _watch = Watch::start(Arc::clone(&watched)).expect("a thread");
        let vector = &watched.vectors[0];
        let (fd, _) = vector.outside().expect("an eventfd");
        watched.relay(vector);
        let seen = vector.count();
        interrupt::signal(vector.fd());
        assert!(interrupt::wait_readable(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(LOST)));
        assert_eq!(vector.wait(seen, LOST), Waited::Event);
        assert!(!watched.is_gone());
    }
}
