//! What puts requests into a ring.

use crate::layout as at;
use crate::stamped::Stamped;
use crate::stamps::Stamps;
use nvmed_sys::TickClock;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The one writer of a ring. Dropped, it leaves the ring to the reader.
#[derive(Debug)]
pub struct Producer {
    stamps: Arc<Stamps>,
    clock: TickClock,
    /// Where the ring is, if there is one.
    ring: Option<usize>,
    /// Requests that were written; the word in memory follows.
    written: u64,
    /// Requests that were read, as far as it was looked at: not before the ring looks full.
    read: u64,
    requests: u64,
}

impl Producer {
    pub(crate) fn new(stamps: Arc<Stamps>, ring: Option<usize>) -> Self {
        let word = |offset| ring.map_or(0, |ring| stamps.memory().u64(ring + offset).load(Acquire));
        let (written, read) = (word(at::WRITTEN_AT), word(at::READ_AT));
        let (clock, requests) = (stamps.clock(), stamps.requests() as u64);
        Self { stamps, clock, ring, written, read, requests }
    }

    /// Now, in ticks.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Puts a request into the ring, or counts it as lost.
    #[inline]
    pub fn put(&mut self, request: &Stamped) {
        let Some(ring) = self.ring else { return self.lose_without_ring() };
        if self.written.wrapping_sub(self.read) >= self.requests && !self.has_room(ring) {
            return;
        }
        let place = (self.written & (self.requests - 1)) as usize;
        let first = ring + at::CIRCLE_AT + place * at::REQUEST_BYTES;
        let memory = self.stamps.memory();
        for (word, value) in request.words().into_iter().enumerate() {
            memory.u64(first + word * 8).store(value, Relaxed);
        }
        self.written = self.written.wrapping_add(1);
        // Pairs with the reader's load: it sees the words of each request that it is told of.
        memory.u64(ring + at::WRITTEN_AT).store(self.written, Release);
    }

    /// Looks how far the reader is; without room the request is lost.
    #[cold]
    fn has_room(&mut self, ring: usize) -> bool {
        let memory = self.stamps.memory();
        // Pairs with the reader's store: it has copied what this lets us overwrite.
        self.read = memory.u64(ring + at::READ_AT).load(Acquire);
        let has_room = self.written.wrapping_sub(self.read) < self.requests;
        if !has_room {
            self.count_lost(ring);
        }
        has_room
    }

    /// Counts a request that cannot be put.
    #[cold]
    pub fn lose(&mut self) {
        match self.ring {
            Some(ring) => self.count_lost(ring),
            None => self.lose_without_ring(),
        }
    }

    fn count_lost(&self, ring: usize) {
        let lost = self.stamps.memory().u64(ring + at::LOST_AT);
        lost.store(lost.load(Relaxed).wrapping_add(1), Relaxed);
    }

    #[cold]
    fn lose_without_ring(&self) {
        self.stamps.memory().u64(at::RINGLESS_AT).fetch_add(1, Relaxed);
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if let Some(ring) = self.ring {
            self.stamps.memory().u64(ring + at::OWNER_AT).fetch_or(at::OWNER_HAS_LEFT, Release);
        }
    }
}
