//! Frames that will come ahead, in the order in which they begin to.

use std::collections::{HashSet, VecDeque};

/// Frames that wait for the medium: they have no place in the buffer yet.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// In their order; some may have been taken since.
    order: VecDeque<u64>,
    frames: HashSet<u64>,
}

impl Wanted {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// A frame comes after all others, or where it is already.
    pub(super) fn push(&mut self, frame: u64) {
        if self.frames.insert(frame) {
            self.order.push_back(frame);
        }
    }

    /// A frame comes before all others.
    pub(super) fn push_first(&mut self, frame: u64) {
        if self.frames.insert(frame) {
            self.order.push_front(frame);
        }
    }

    /// Takes the next one.
    pub(super) fn pop(&mut self) -> Option<u64> {
        loop {
            let frame = self.order.pop_front()?;
            if self.frames.remove(&frame) {
                return Some(frame);
            }
        }
    }

    /// Takes a frame, whatever its turn is; whether it was there.
    pub(super) fn take(&mut self, frame: u64) -> bool {
        let was_there = self.frames.remove(&frame);
        if self.frames.is_empty() {
            self.order.clear();
        }
        was_there
    }

    /// Takes frames of which `keep` says no.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        if self.frames.is_empty() {
            return;
        }
        self.frames.retain(|&frame| keep(frame));
        self.order.retain(|frame| self.frames.contains(frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_in_their_order_and_once() {
        let mut wanted = Wanted::default();
        [5, 3, 5, 9].into_iter().for_each(|frame| wanted.push(frame));
        assert_eq!((wanted.len(), wanted.take(3), wanted.take(3)), (3, true, false));
        wanted.push(3);
        wanted.push_first(1);
        let order: Vec<u64> = std::iter::from_fn(|| wanted.pop()).collect();
        assert_eq!(order, [1, 5, 3, 9], "what was taken and comes again has the place that it had");
        wanted.push(7);
        assert!(wanted.take(7) && wanted.order.is_empty());
    }

    #[test]
    fn frames_that_are_taken_at_once_have_no_turn() {
        let mut wanted = Wanted::default();
        (0..10).for_each(|frame| wanted.push(frame));
        wanted.take(5);
        wanted.retain(|frame| frame % 3 != 0);
        assert_eq!((wanted.len(), wanted.order.len()), (5, 5));
        wanted.push(3);
        let order: Vec<u64> = std::iter::from_fn(|| wanted.pop()).collect();
        assert_eq!(order, [1, 2, 4, 7, 8, 3]);
    }
}
