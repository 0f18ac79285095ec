//! A line: what enters leaves in the same order, each at a time that is known when it enters.

use std::collections::VecDeque;

/// Things that are done at times that never go back.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    ends: VecDeque<(u64, u32)>,
}

impl Line {
    /// A line in which at most `capacity` things are at once.
    pub fn new(capacity: usize) -> Self {
        Self { ends: VecDeque::with_capacity(capacity) }
    }

    /// Lets `what` leave at `end`, which is no earlier than that of what entered before; whether it is the first.
    #[inline]
    pub fn enter(&mut self, end: u64, what: u32) -> bool {
        debug_assert!(self.ends.back().is_none_or(|&(last, _)| last <= end), "a line's times go back");
        self.ends.push_back((end, what));
        self.ends.len() == 1
    }

    /// When the first one leaves.
    #[inline]
    pub fn next_due(&self) -> u64 {
        self.ends.front().map_or(u64::MAX, |&(end, _)| end)
    }

    /// When the last one leaves; 0 when there is none.
    #[inline]
    pub(crate) fn last_due(&self) -> u64 {
        self.ends.back().map_or(0, |&(end, _)| end)
    }

    /// Takes the first one.
    #[inline]
    pub fn leave(&mut self) -> Option<u32> {
        self.ends.pop_front().map(|(_, what)| what)
    }
}
