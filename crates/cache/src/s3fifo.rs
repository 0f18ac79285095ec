//! S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! New pages enter a small queue of a tenth of the frames; those used more than once meanwhile, and
//! those that come back soon after they were evicted, enter the main queue. So a scan, whose pages are
//! used once, passes through the small queue and leaves the main queue alone.

use crate::ghost::Ghost;
use crate::policy::{Key, Policy, Turn, Uses};
use crate::queue::{Links, Queue};

/// Share of the small queue: one in ten (SOSP 2023, 4.1).
const SMALL_SHARE: u32 = 10;
/// Uses above which a page leaves the small queue for the main one.
const USES_TO_STAY: u8 = 1;
/// A spared frame spends a use or moves on; it has at most 3 uses and one move. So after five rounds
/// whatever is left is in use at this moment.
const ROUNDS: u64 = 5;

/// Notes beside a frame: the queue that it is in.
const SMALL: u8 = 0;
const MAIN: u8 = 1;

/// Frames in two queues.
pub(crate) struct S3Fifo {
    links: Links,
    small: Queue,
    main: Queue,
    ghost: Ghost,
    small_target: u32,
    /// Frames found in use since the search began: in the small queue, in the main one.
    passed: [u32; 2],
}

impl S3Fifo {
    pub(crate) fn new(frames: u32) -> Self {
        let small_target = (frames / SMALL_SHARE).max(1);
        let ghost = Ghost::new(frames - small_target);
        let (links, passed) = (Links::new(frames), [0; 2]);
        Self { links, small: Queue::EMPTY, main: Queue::EMPTY, ghost, small_target, passed }
    }

    fn push(&mut self, frame: u32, note: u8) {
        self.links.set_note(frame, note);
        let queue = if note == SMALL { &mut self.small } else { &mut self.main };
        queue.push(&mut self.links, frame);
    }

    fn turn_small(&mut self, frame: u32, uses: &Uses) -> Turn {
        if uses.get(frame) <= USES_TO_STAY {
            return Turn::Offer(frame);
        }
        uses.set(frame, 0);
        self.small.unlink(&mut self.links, frame);
        self.push(frame, MAIN);
        Turn::Spared
    }

    fn turn_main(&mut self, frame: u32, uses: &Uses) -> Turn {
        let count = uses.get(frame);
        if count == 0 {
            return Turn::Offer(frame);
        }
        uses.set(frame, count - 1);
        self.main.renew(&mut self.links, frame);
        Turn::Spared
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, frame: u32, key: Key) {
        self.links.admit(frame);
        let note = if self.ghost.take(key.owner, key.page) { MAIN } else { SMALL };
        self.push(frame, note);
    }

    fn rejoin(&mut self, frame: u32) {
        self.push(frame, SMALL);
    }

    fn remove(&mut self, frame: u32) {
        let queue = if self.links.note(frame) == SMALL { &mut self.small } else { &mut self.main };
        queue.unlink(&mut self.links, frame);
    }

    fn begin(&mut self) -> u64 {
        self.passed = [0; 2];
        ROUNDS * (u64::from(self.small.len()) + u64::from(self.main.len()))
    }

    fn turn(&mut self, uses: &Uses) -> Turn {
        // A queue whose every frame is in use must not keep the search from the other one.
        let from_small = match self.passed {
            [small, _] if small >= self.small.len() => false,
            [_, main] if main >= self.main.len() => true,
            _ => self.small.len() > self.small_target,
        };
        let queue = if from_small { self.small } else { self.main };
        match queue.oldest() {
            None => Turn::Empty,
            Some(frame) if from_small => self.turn_small(frame, uses),
            Some(frame) => self.turn_main(frame, uses),
        }
    }

    fn evicted(&mut self, frame: u32, key: Option<Key>) {
        if let Some(key) = key
            && self.links.note(frame) == SMALL
        {
            self.ghost.insert(key.owner, key.page);
        }
        self.remove(frame);
    }

    fn pass(&mut self, frame: u32) {
        self.passed[usize::from(self.links.note(frame))] += 1;
        let queue = if self.links.note(frame) == SMALL { &mut self.small } else { &mut self.main };
        queue.renew(&mut self.links, frame);
    }
}
