//! A queue pair that several threads share.

use crate::stats::Stats;
use crate::ticket::Tickets;
use nvmed_engine::{Completion, DeviceError, QueuePair, Request, SubmitError};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Completions taken from the queue pair at once.
const BATCH: usize = 64;
/// Tickets for each command that the queue holds: a result may lie for a while before it is taken.
const TICKETS_PER_COMMAND: usize = 2;

/// One queue pair and the tickets of what is in it, under one lock.
pub(crate) struct Lane {
    inner: Mutex<Inner>,
    vector: u16,
}

impl core::fmt::Debug for Lane {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Lane")
    }
}

/// What the lock of a lane guards.
pub(crate) struct Inner {
    pub(crate) pair: Box<dyn QueuePair>,
    pub(crate) tickets: Tickets,
    /// By handle.
    stats: Vec<Stats>,
    batch: Vec<Completion>,
    lba_bytes: u32,
}

/// What became of a call.
pub(crate) enum Called {
    /// It is done.
    Done(Result<(), DeviceError>),
    /// Its result will be in this place.
    Waiting(usize),
}

impl Lane {
    pub(crate) fn new(pair: Box<dyn QueuePair>, depth: u16, lba_bytes: u32) -> Self {
        let vector = pair.vector();
        let tickets = Tickets::new(usize::from(depth) * TICKETS_PER_COMMAND);
        let inner = Inner { pair, tickets, stats: Vec::new(), batch: Vec::with_capacity(BATCH), lba_bytes };
        Self { inner: Mutex::new(inner), vector }
    }

    /// The interrupt vector of its queue.
    pub(crate) fn vector(&self) -> u16 {
        self.vector
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        self.inner.try_lock().ok()
    }
}

impl Inner {
    /// Queues one request for the place `index` of `handle`.
    ///
    /// # Errors
    /// As [`QueuePair::submit`].
    #[inline]
    pub(crate) fn submit(
        &mut self,
        request: &Request<'_>,
        index: usize,
        handle: u32,
    ) -> Result<(), SubmitError> {
        self.pair.submit(&Request { tag: index as u64, ..*request })?;
        self.tickets.expect(index);
        let lba_bytes = self.lba_bytes;
        self.stats[handle as usize].count(request, lba_bytes);
        Ok(())
    }

    /// Submits one request of `handle`, rings, and takes all completions that are there. Answers the
    /// request's result, or the place where it will be.
    ///
    /// # Errors
    /// As [`QueuePair::submit`]; [`SubmitError::NoSlot`] also when too many calls are under way.
    #[inline]
    pub(crate) fn call(&mut self, request: &Request<'_>, handle: u32) -> Result<Called, SubmitError> {
        let index = self.tickets.next_for_call().ok_or(SubmitError::NoSlot)?;
        let tag = index as u64;
        self.pair.execute(&Request { tag, ..*request }, &mut self.batch)?;
        let lba_bytes = self.lba_bytes;
        self.stats[handle as usize].count(request, lba_bytes);
        if let [done] = self.batch[..]
            && done.tag == tag
        {
            self.batch.clear();
            self.stats[handle as usize].errors += u64::from(done.result.is_err());
            return Ok(Called::Done(done.result));
        }
        Ok(self.sort_out(tag, handle))
    }

    /// [`Inner::call`], when what came is not just the answer.
    #[cold]
    fn sort_out(&mut self, tag: u64, handle: u32) -> Called {
        self.tickets.keep(handle);
        self.settle();
        self.reap();
        Called::Waiting(tag as usize)
    }

    /// Takes all completions that are there and leaves each for whoever waits for it.
    #[inline]
    pub(crate) fn reap(&mut self) {
        while self.pair.poll(&mut self.batch) > 0 {
            self.settle();
        }
    }

    /// Leaves what was taken for whoever waits for it.
    fn settle(&mut self) {
        for done in &self.batch {
            if let Some(handle) = self.tickets.complete(done) {
                self.stats[handle as usize].errors += 1;
            }
        }
        self.batch.clear();
    }

    /// Makes room for the counts of handles up to `handle`.
    pub(crate) fn admit(&mut self, handle: u32) {
        self.stats.resize(self.stats.len().max(handle as usize + 1), Stats::default());
    }

    pub(crate) fn stats(&self, handle: u32) -> Stats {
        self.stats[handle as usize]
    }

    pub(crate) fn stats_of_all(&self) -> Stats {
        let mut all = Stats::default();
        for one in &self.stats {
            all += *one;
        }
        all
    }
}
