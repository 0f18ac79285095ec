//! Which ring stands behind which interrupt vector: one each.

use crate::ring::Face;
use nvmed_engine::Waited;
use nvmed_sys::QuietFd;
use nvmed_sys::sync::{Arc, OnceLock, RwLock};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd};

/// Queue pairs that can exist at once: more than the cores of most machines.
pub(crate) const QUEUES_MAX: u16 = 64;

/// One vector.
#[derive(Default)]
struct Vector {
    /// The ring that stands behind it now.
    face: RwLock<Option<Arc<Face>>>,
    /// Made when somebody asks for it, and told of every completion from then on.
    event: OnceLock<QuietFd>,
}

/// The rings of all living queues, by vector.
pub(crate) struct Vectors {
    vectors: Box<[Vector]>,
}

impl Default for Vectors {
    fn default() -> Self {
        Self { vectors: (0..QUEUES_MAX).map(|_| Vector::default()).collect() }
    }
}

impl Vectors {
    /// A vector for a new queue; `None` when all are in use.
    pub(crate) fn take(&self, face: &Arc<Face>) -> Option<u16> {
        let free = self.vectors.iter().position(|vector| {
            let mut held = vector.face.write();
            if held.is_some() {
                return false;
            }
            if let Some(event) = vector.event.get() {
                // Without it, those who asked wait by `wait`.
                let _ = face.announce(event.as_fd());
            }
            *held = Some(Arc::clone(face));
            true
        });
        free.map(|index| index as u16)
    }

    /// Ends a queue's use of its vector.
    pub(crate) fn give_back(&self, vector: u16) {
        if let Some(vector) = self.vectors.get(usize::from(vector)) {
            *vector.face.write() = None;
        }
    }

    pub(crate) fn face(&self, vector: u16) -> Option<Arc<Face>> {
        let vector = self.vectors.get(usize::from(vector))?;
        vector.face.read().clone()
    }

    /// A descriptor that the vector's completions make readable.
    pub(crate) fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        let vector = self.vectors.get(usize::from(vector))?;
        if vector.event.get().is_none() {
            // Held, so that a queue made meanwhile sees the descriptor.
            let held = vector.face.write();
            if let Some(event) = vector.event.get() {
                return Some(event.as_fd());
            }
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let event = QuietFd::new(rustix::event::eventfd(0, flags).ok()?);
            if held.as_ref().is_some_and(|face| face.announce(event.as_fd()).is_err()) {
                return None;
            }
            return Some(vector.event.get_or_init(|| event).as_fd());
        }
        vector.event.get().map(|event| event.as_fd())
    }

    /// Completions posted on the vector; 0 of one that no queue has.
    pub(crate) fn events(&self, vector: u16) -> u32 {
        self.face(vector).map_or(0, |face| face.posted())
    }

    /// Waits for completions on the vector. One that no queue has never gets any.
    pub(crate) fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        match self.face(vector) {
            Some(face) if face.wait(seen, timeout_us) => Waited::Event,
            Some(_) => Waited::Timeout,
            None => nowhere(timeout_us),
        }
    }
}

/// Lets the time pass, for a vector on which nothing will ever come.
fn nowhere(timeout_us: u32) -> Waited {
    let span = rustix::time::Timespec {
        tv_sec: i64::from(timeout_us / 1_000_000),
        tv_nsec: i64::from(timeout_us % 1_000_000) * 1000,
    };
    // A wait cut short by a signal only makes the caller look once more.
    let _ = rustix::thread::nanosleep(&span);
    Waited::Timeout
}
