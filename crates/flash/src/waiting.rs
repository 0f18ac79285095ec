//! Commands that wait for the translation layer: for room in the buffer, and for programs.

use std::collections::VecDeque;

/// Commands that wait for the layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    /// Writes that wait for room in the buffer: command and extent.
    pub writes: VecDeque<(u32, (u64, u64))>,
    /// Those that are urgent, which go first.
    pub urgent_writes: VecDeque<(u32, (u64, u64))>,
    /// Those that got it.
    pub admitted: VecDeque<(u32, u64)>,
    /// Flushes, with the version that is to be programmed.
    pub flushes: VecDeque<(u64, u32)>,
    /// Units, by command, that have to be programmed before it completes.
    pub units: Box<[u32]>,
    /// Commands that wait no more, and whether they were refused.
    pub ended: VecDeque<(u32, bool)>,
}

impl Waiting {
    /// The write that gets room next.
    pub fn next_write(&self) -> Option<&(u32, (u64, u64))> {
        self.urgent_writes.front().or(self.writes.front())
    }

    pub fn take_write(&mut self) {
        let _ = self.urgent_writes.pop_front().or_else(|| self.writes.pop_front());
    }
}
