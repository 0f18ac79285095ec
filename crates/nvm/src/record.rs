//! What was stored, settled and fenced, in order: for those who ask what a cut of power leaves.

use nvmed_sys::sync::{Arc, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};

/// One thing that a thread did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which thread, numbered in the order of their first stores.
    pub thread: u64,
    /// What it did.
    pub what: What,
}

/// What a thread does to a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// It is about to store.
    Store {
        /// Where.
        at: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// It is about to make a range read as zeroes.
    Zero {
        /// Where.
        at: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Bytes go from a buffer to the medium behind it.
    WrittenHome {
        /// Where.
        at: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// The lines of a range that it stored to are on their way, once it settles.
    WrittenBack {
        /// Where.
        at: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// It has settled what it stored.
    Settle,
    /// A fence began.
    FenceBegun {
        /// Which one.
        fence: u64,
    },
    /// That fence has returned.
    FenceDone {
        /// Which one.
        fence: u64,
    },
}

/// What a medium does is told to.
type Listener = Box<dyn Fn(Event) + Send + Sync>;

/// A medium's record. Nothing of it is in a release.
#[derive(Default)]
pub struct Record {
    events: Mutex<Vec<Event>>,
    /// Who is told of each event, before the thread that causes it goes on; nothing is kept then.
    listener: Option<Listener>,
    fences: AtomicU64,
}

impl core::fmt::Debug for Record {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Record").finish_non_exhaustive()
    }
}

impl Record {
    /// An empty one.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// One that keeps nothing and tells `listener`, which touches no medium: a simulator, to which what is stored, and
    /// what a death finds, is known at once.
    #[must_use]
    pub fn told(listener: impl Fn(Event) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { listener: Some(Box::new(listener)), ..Self::default() })
    }

    /// Takes what was recorded since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<Event> {
        core::mem::take(&mut self.events.lock())
    }

    pub(crate) fn note(&self, what: What) {
        let event = Event { thread: thread(), what };
        match &self.listener {
            Some(listener) => listener(event),
            None => self.events.lock().push(event),
        }
    }

    /// Notes that a fence begins, and numbers it.
    pub(crate) fn begin_fence(&self) -> u64 {
        let fence = self.fences.fetch_add(1, Ordering::Relaxed);
        self.note(What::FenceBegun { fence });
        fence
    }
}

/// This thread's number.
fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|&number| number)
}
