//! How much one request asks for.

use nvmed_engine::{Geometry, Operation};

/// How much a synchronous call asks for in one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) lba_shift: u32,
    data_blocks: u32,
    zero_blocks: u32,
    discard_blocks: u32,
    /// Blocks that one command moves.
    pub(crate) command_blocks: u32,
}

impl Limits {
    /// Those of a queue whose largest requests are `most`.
    pub(crate) fn new(geometry: &Geometry, most: impl Fn(Operation) -> u32) -> Self {
        /// A request asks for at most this share of a queue's slots, so that others fit beside it.
        const SHARE: u32 = 4;
        let lba_bytes = geometry.lba_bytes;
        let command = (geometry.transfer_bytes_max / lba_bytes).max(1);
        let data = most(Operation::Read);
        let share = |most: u32| (most / SHARE).max(1);
        Self {
            lba_shift: lba_bytes.trailing_zeros(),
            data_blocks: if data / SHARE < command { data.min(command) } else { data / SHARE },
            zero_blocks: share(most(Operation::WriteZeroes { fua: false })),
            discard_blocks: share(most(Operation::Discard)),
            command_blocks: command,
        }
    }

    /// What suits both of two queues.
    pub(crate) fn both(self, other: Self) -> Self {
        assert!(self.lba_shift == other.lba_shift, "two queues of one device have blocks of different sizes");
        Self {
            lba_shift: self.lba_shift,
            data_blocks: self.data_blocks.min(other.data_blocks),
            zero_blocks: self.zero_blocks.min(other.zero_blocks),
            discard_blocks: self.discard_blocks.min(other.discard_blocks),
            command_blocks: self.command_blocks.min(other.command_blocks),
        }
    }

    #[cfg(test)]
    pub(crate) fn of(lba_bytes: u32, blocks: u32) -> Self {
        let lba_shift = lba_bytes.trailing_zeros();
        Self {
            lba_shift,
            data_blocks: blocks,
            zero_blocks: blocks,
            discard_blocks: blocks,
            command_blocks: blocks,
        }
    }

    /// Logical blocks of one request.
    #[inline]
    pub(crate) fn blocks(&self, operation: Operation) -> u32 {
        match operation {
            Operation::WriteZeroes { .. } => self.zero_blocks,
            Operation::Discard | Operation::Flush | Operation::Passthrough { .. } => self.discard_blocks,
            Operation::Read | Operation::Write { .. } | Operation::Compare => self.data_blocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "blocks of different sizes")]
    fn queues_of_one_device_have_its_blocks() {
        let _ = Limits::of(512, 8).both(Limits::of(4096, 8));
    }
}
