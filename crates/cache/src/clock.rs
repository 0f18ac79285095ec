//! CLOCK, or second chance (Corbató, "A paging experiment with the Multics system", 1968).
//!
//! One queue. A frame that was used since its last turn goes to the end once more; else it is given up.
//! That is the hand on the circle of frames, with the frame under the hand at the head of a queue: in a
//! queue, frames that may not be given up at present are out of the hand's way.

use crate::policy::{Key, Policy, Turn, Uses};
use crate::queue::{Links, Queue};

/// A spared frame loses its mark, so after two rounds every frame was offered; the third is for those
/// that were used meanwhile.
const ROUNDS: u64 = 3;

/// Note beside a frame that had no turn yet: one of its uses is the one that it was brought in for.
pub(crate) const FIRST_TURN: u8 = 1;

/// Whether a frame was used since its last turn. If so the mark is taken away.
pub(crate) fn spare(links: &mut Links, frame: u32, uses: &Uses) -> bool {
    let spared = uses.get(frame) > u8::from(links.note(frame) == FIRST_TURN);
    if spared {
        uses.set(frame, 0);
        links.set_note(frame, 0);
    }
    spared
}

/// Frames in one queue.
pub(crate) struct Clock {
    links: Links,
    queue: Queue,
}

impl Clock {
    pub(crate) fn new(frames: u32) -> Self {
        Self { links: Links::new(frames), queue: Queue::EMPTY }
    }
}

impl Policy for Clock {
    fn insert(&mut self, frame: u32, _: Key) {
        self.links.admit(frame);
        self.links.set_note(frame, FIRST_TURN);
        self.queue.push(&mut self.links, frame);
    }

    fn rejoin(&mut self, frame: u32) {
        self.queue.push(&mut self.links, frame);
    }

    fn remove(&mut self, frame: u32) {
        self.queue.unlink(&mut self.links, frame);
    }

    fn begin(&mut self) -> u64 {
        ROUNDS * u64::from(self.queue.len())
    }

    fn turn(&mut self, uses: &Uses) -> Turn {
        let Some(frame) = self.queue.oldest() else { return Turn::Empty };
        if !spare(&mut self.links, frame, uses) {
            return Turn::Offer(frame);
        }
        self.queue.renew(&mut self.links, frame);
        Turn::Spared
    }

    fn evicted(&mut self, frame: u32, _: Option<Key>) {
        self.remove(frame);
    }

    fn pass(&mut self, frame: u32) {
        self.queue.renew(&mut self.links, frame);
    }
}
