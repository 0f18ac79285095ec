//! The frames that have a place in a buffer, in an order for the hand of its clock, and found by their number.

use core::ops::Index;
use std::collections::HashMap;

/// Frames that are resident or on their way.
#[derive(Debug, Default)]
pub(super) struct Taken {
    frames: Vec<u64>,
    /// Where in `frames` each is.
    places: HashMap<u64, usize>,
}

impl Taken {
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Where a frame is among the others.
    pub(super) fn position(&self, frame: u64) -> Option<usize> {
        self.places.get(&frame).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &u64> {
        self.frames.iter()
    }

    /// A frame has a place from now on; it had none.
    pub(super) fn push(&mut self, frame: u64) {
        let before = self.places.insert(frame, self.frames.len());
        assert!(before.is_none(), "frame {frame} has a place already");
        self.frames.push(frame);
    }

    /// The frame at an index has none any more; the last one comes to that index.
    pub(super) fn swap_remove(&mut self, index: usize) {
        let gone = self.frames.swap_remove(index);
        self.places.remove(&gone);
        if let Some(&moved) = self.frames.get(index) {
            self.places.insert(moved, index);
        }
    }

    /// Frames of which `keep` says no have none any more.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.frames.retain(|&frame| keep(frame));
        self.places = self.frames.iter().enumerate().map(|(index, &frame)| (frame, index)).collect();
    }
}

impl Index<usize> for Taken {
    type Output = u64;

    fn index(&self, index: usize) -> &u64 {
        &self.frames[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_where_they_are() {
        let mut taken = Taken::default();
        (10..20).for_each(|frame| taken.push(frame));
        taken.swap_remove(3);
        taken.swap_remove(8);
        taken.retain(|frame| frame != 11);
        let found: Vec<u64> = taken.iter().copied().collect();
        assert_eq!(found, [10, 12, 19, 14, 15, 16, 17]);
        for frame in 10..20 {
            let place = found.iter().position(|&one| one == frame);
            assert_eq!(taken.position(frame), place, "frame {frame}");
        }
    }
}
