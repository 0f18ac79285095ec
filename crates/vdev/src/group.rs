//! A completion queue and what completes to it.

use crate::counters::Counters;
use crate::outstanding::{Done, OutstandingCommands};
use crate::queue::{CompletionQueue, HeadDoorbell, SubmissionQueue};
use crate::time::NEVER;
use nvmed_dma::{AddressSpace, View};
use nvmed_stamps::Producer;
use nvmed_sys::sync::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// What a group's lock guards: the queues, and their commands under way. One lock for all of a command.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub cq: Option<CompletionQueue>,
    pub sqs: Vec<SubmissionQueue>,
    /// Host memory as these commands see it; refreshed at the begin of each round.
    pub view: View,
    /// Commands of these queues that were taken and are not completed.
    pub outstanding: OutstandingCommands,
    /// Completions that the completion queue has no room for.
    pub waiting: VecDeque<Done>,
    /// Of the admin queue, where doorbells have times: when the last one was rung that was served.
    pub rung_ns: u64,
    /// Where their requests are recorded, from the first one on.
    pub producer: Option<Producer>,
}

impl Queues {
    /// Sees what is mapped now.
    #[inline]
    pub fn refresh(&mut self, space: &AddressSpace) {
        if self.view.refresh(space) {
            self.move_queues();
        }
    }

    #[cold]
    fn move_queues(&mut self) {
        let Self { cq, sqs, view, .. } = self;
        cq.iter_mut().for_each(|cq| cq.memory.refresh(view));
        sqs.iter_mut().for_each(|sq| sq.memory.refresh(view));
    }
}

/// A completion queue with the submission queues that complete to it, or room for one; and what the host's head
/// doorbell reaches without the lock. Queues of different processors share no cache line (two, as lines are fetched
/// in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Group {
    pub queues: Mutex<Queues>,
    pub head: HeadDoorbell,
    /// Entries of the completion queue; 0 is no queue.
    pub entries: AtomicU32,
    /// A submission queue waits for room in the completion queue.
    pub blocked: AtomicBool,
    /// When the next outstanding command can complete.
    pub due: Due,
}

/// A time that is read without the group's lock.
#[derive(Debug)]
pub(crate) struct Due(AtomicU64);

impl Default for Due {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl Due {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub fn set(&self, ns: u64) {
        self.0.store(ns, Ordering::Release);
    }
}

impl Group {
    /// Puts a completion queue into the group, whose lock the caller holds.
    pub fn open(&self, queues: &mut Queues, cq: CompletionQueue) {
        self.head.set(0);
        self.blocked.store(false, Ordering::Release);
        self.entries.store(u32::from(cq.entries), Ordering::Release);
        queues.cq = Some(cq);
    }

    /// Empties the group, whose lock the caller holds; answers the counters of the queues that were in it.
    pub fn close(&self, queues: &mut Queues) -> Counters {
        self.entries.store(0, Ordering::Release);
        self.due.set(NEVER);
        let gone = std::mem::take(queues);
        gone.sqs.iter().map(|sq| sq.counters).fold(Counters::default(), Counters::plus)
    }

    /// Whether one more entry fits; if not, the host's next head doorbell resumes the queue.
    #[inline]
    pub fn has_room(&self, cq: &CompletionQueue) -> bool {
        if !cq.is_full(self.head.get()) {
            return true;
        }
        // Pairs with the swap in `head_doorbell`: either that sees `blocked`, or this sees the new head.
        self.blocked.store(true, Ordering::SeqCst);
        !cq.is_full(self.head.get())
    }
}
