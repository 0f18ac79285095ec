//! Commands that wait for the translation layer: for room in the buffer, and for programs.

use std::collections::VecDeque;

/// Commands that wait for the layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    /// Writes that wait for room in the buffer, command and extent, and how many of them, the first ones, are urgent.
    pub writes: VecDeque<(u32, (u64, u64))>,
    pub(crate) urgent_writes: usize,
    /// Those that got it.
    pub admitted: VecDeque<(u32, u64)>,
    /// Flushes, with the version that is to be programmed.
    pub flushes: VecDeque<(u64, u32)>,
    /// By command, whether it is a write with FUA; of other commands, it says nothing.
    pub(crate) durable: Box<[bool]>,
    /// Units, by command, that have to be programmed before it completes.
    pub units: Box<[u32]>,
    /// Commands that wait no more, and whether they were refused.
    pub ended: VecDeque<(u32, bool)>,
}

impl Waiting {
    /// Nothing waits, of so many commands.
    pub fn new(tickets: usize) -> Self {
        Self { units: vec![0; tickets].into(), durable: vec![false; tickets].into(), ..Self::default() }
    }

    /// A write that is urgent waits behind others that are, and before the rest.
    #[cold]
    pub(crate) fn push_urgent(&mut self, command: u32, extent: (u64, u64)) {
        self.writes.insert(self.urgent_writes, (command, extent));
        self.urgent_writes += 1;
    }

    /// The first write has got room.
    #[inline]
    pub(crate) fn take_write(&mut self) {
        self.writes.pop_front();
        self.urgent_writes = self.urgent_writes.saturating_sub(1);
    }

    /// No write gets room: all are refused.
    pub(crate) fn refuse_writes(&mut self) {
        self.urgent_writes = 0;
        self.ended.extend(self.writes.drain(..).map(|(command, _)| (command, true)));
    }
}
