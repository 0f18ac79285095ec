//! The blocks of one kind in one plane, and what is under way with them.

use crate::blocks::{ByValid, FreeBlocks};
use crate::layer::{COLD, MAP, MOVED, URGENT};
use crate::room::STREAMS;
use std::collections::VecDeque;

/// The blocks of one kind in one plane.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub free: FreeBlocks,
    /// The block that is programmed next, by stream.
    pub open: [Option<u32>; STREAMS],
    pub closed: ByValid,
    /// The block whose valid units are moved, and its next page.
    pub victim: Option<u32>,
    pub page: u32,
    /// Whether it was chosen since it is cold.
    pub is_cold: bool,
    /// Pages of it that are being read.
    pub reading: u32,
    /// Units that were read, by stream from [`MOVED`] to [`COLD`]: logical unit and where it was.
    pub moved: [VecDeque<(u32, u32)>; URGENT - MOVED],
    /// Units of them that are in programs.
    pub in_rows: u32,
    /// Blocks that were read and are not erased yet, since units of theirs are not elsewhere.
    pub drained: Vec<u32>,
    /// Blocks that are being erased.
    pub erasing: u32,
    /// Programs that have not ended.
    pub programs: u32,
    /// Whether one was, since wear was looked at.
    pub has_erased: bool,
}

impl Group {
    pub fn new(free: FreeBlocks, block_units: u32) -> Self {
        Self {
            free,
            open: [None; STREAMS],
            closed: ByValid::new(block_units),
            victim: None,
            page: 0,
            is_cold: false,
            reading: 0,
            moved: Default::default(),
            in_rows: 0,
            drained: Vec::new(),
            erasing: 0,
            programs: 0,
            has_erased: false,
        }
    }

    /// Whether nothing is under way that may make room.
    pub fn is_at_rest(&self) -> bool {
        let moves = self.victim.is_some() || !self.drained.is_empty();
        self.programs == 0 && self.erasing == 0 && (!moves || self.is_stuck())
    }

    /// Whether units that were read have no block to go to, since all others are bad: theirs is not erased then.
    fn is_stuck(&self) -> bool {
        let waits = |stream: usize| !self.moved[stream - MOVED].is_empty() && !self.has_open(stream);
        self.free.len() == 0 && self.reading == 0 && (MOVED..=COLD).any(waits)
    }

    /// Whether a stream of moved units has a block to go on with, or may use another one's.
    fn has_open(&self, stream: usize) -> bool {
        let streams: &[usize] = if stream == MAP { &[MAP] } else { &[MOVED, COLD] };
        streams.iter().any(|&stream| self.open[stream].is_some())
    }

    /// The stream of what the victim has, but for pages of the map.
    pub(crate) fn victim_stream(&self) -> usize {
        if self.is_cold { COLD } else { MOVED }
    }

    /// Units of the victim that are on their way, at most.
    pub fn moving(&self, page_units: u32) -> u32 {
        let moved = [self.victim_stream(), MAP].map(|stream| self.moved[stream - MOVED].len() as u32);
        self.reading * page_units + moved[0] + moved[1] + self.in_rows
    }
}
