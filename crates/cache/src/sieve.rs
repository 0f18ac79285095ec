//! SIEVE (Zhang et al., "SIEVE is simpler than LRU", NSDI 2024, algorithm 1).
//!
//! One queue and a hand that goes from the oldest frame to the newest. A frame used since the hand's
//! last visit is spared and keeps its place; so new pages are looked at soon after they came, while
//! those that were spared lie behind the hand until it starts again.

use crate::clock::{FIRST_TURN, spare};
use crate::policy::{Key, Policy, Turn, Uses};
use crate::queue::{Links, NONE, Queue};

/// A spared frame loses its mark, so after two rounds every frame was offered; the third is for those
/// that were used meanwhile.
const ROUNDS: u64 = 3;

/// Frames in one queue, with a hand.
pub(crate) struct Sieve {
    links: Links,
    queue: Queue,
    /// The frame whose turn it is; none: the oldest.
    hand: u32,
}

impl Sieve {
    pub(crate) fn new(frames: u32) -> Self {
        Self { links: Links::new(frames), queue: Queue::EMPTY, hand: NONE }
    }
}

impl Policy for Sieve {
    fn insert(&mut self, frame: u32, _: Key) {
        self.links.admit(frame);
        self.links.set_note(frame, FIRST_TURN);
        self.queue.push(&mut self.links, frame);
    }

    fn rejoin(&mut self, frame: u32) {
        self.queue.push(&mut self.links, frame);
    }

    fn remove(&mut self, frame: u32) {
        if self.hand == frame {
            self.hand = self.links.newer(frame);
        }
        self.queue.unlink(&mut self.links, frame);
    }

    fn begin(&mut self) -> u64 {
        ROUNDS * u64::from(self.queue.len())
    }

    fn turn(&mut self, uses: &Uses) -> Turn {
        if self.hand == NONE {
            let Some(oldest) = self.queue.oldest() else { return Turn::Empty };
            self.hand = oldest;
        }
        if !spare(&mut self.links, self.hand, uses) {
            return Turn::Offer(self.hand);
        }
        self.hand = self.links.newer(self.hand);
        Turn::Spared
    }

    fn evicted(&mut self, frame: u32, _: Option<Key>) {
        self.remove(frame);
    }

    fn pass(&mut self, frame: u32) {
        self.hand = self.links.newer(frame);
    }
}
