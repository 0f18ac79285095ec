//! A long call, or one of blocks here and there, cut into requests.

use crate::limits::Limits;
use crate::scatter::Span;
use nvmed_engine::{Cursor, Operation, Request, Segment};
use nvmed_units::Lba;

/// Segments that one request of a long call has at most: 256 KiB of single pages.
pub(crate) const PART_SEGMENTS: usize = 64;

/// What is left of a call.
pub(crate) struct Parts<'a> {
    operation: Operation,
    /// Where the next request begins, and the blocks side by side from there on.
    lba: Lba,
    left: u64,
    /// What comes after these.
    more: &'a [Span],
    /// Blocks of one request at most.
    most: u32,
    lba_shift: u32,
    /// Memory from there on.
    memory: Cursor<'a>,
    /// Blocks of the request made last.
    made: u32,
    done: bool,
    stream: u16,
}

impl<'a> Parts<'a> {
    /// All of `whole`, but `blocks` long.
    pub(crate) fn new(whole: &Request<'a>, blocks: u64, limits: &Limits) -> Self {
        let most = limits.blocks(whole.operation);
        assert!(most > 0, "a call is to be cut into requests of no blocks");
        Self {
            operation: whole.operation,
            lba: whole.lba,
            left: blocks,
            more: &[],
            most,
            lba_shift: limits.lba_shift,
            memory: Cursor::new(whole.data),
            made: 0,
            done: false,
            stream: whole.stream,
        }
    }

    /// And the spans `more`, whose memory comes after that of the first.
    pub(crate) fn and(self, more: &'a [Span]) -> Self {
        Self { more, ..self }
    }

    /// Whether every request was taken.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// The blocks side by side where the next request begins, and those that come after them.
    pub(crate) fn left(&self) -> (Span, &'a [Span]) {
        (Span { lba: self.lba, blocks: self.left }, self.more)
    }

    /// The next request, its memory described in `room`.
    pub(crate) fn request<'b>(&mut self, room: &'b mut [Segment]) -> Request<'b> {
        let blocks = self.next_blocks();
        let (count, blocks) = if self.operation.has_data() { self.gather(blocks, room) } else { (0, blocks) };
        self.make(&room[..count], blocks)
    }

    /// As [`Parts::request`], for a queue that does not keep the segments: they may be as many as they are.
    pub(crate) fn longest<'b>(&mut self, room: &'b mut [Segment]) -> Request<'b>
    where
        'a: 'b,
    {
        match self.memory.whole(self.next_blocks() << self.lba_shift) {
            Some(whole) => self.make(whole, self.next_blocks()),
            None => self.request(room),
        }
    }

    fn next_blocks(&self) -> u64 {
        self.left.min(u64::from(self.most))
    }

    fn make<'b>(&mut self, data: &'b [Segment], blocks: u64) -> Request<'b> {
        self.made = blocks as u32;
        let Self { operation, lba, stream, .. } = *self;
        Request { operation, lba, blocks: self.made, data, tag: 0, stream }
    }

    /// Describes the memory of the next `blocks` blocks, or of as many as `room` has segments for.
    ///
    /// Blocks of 4096 bytes over memory that starts 512 bytes before a page end: 64 segments hold
    /// 512 + 63 · 4096 bytes, which is 63 blocks, the last 512 bytes of the last segment left for next time.
    fn gather(&self, blocks: u64, room: &mut [Segment]) -> (usize, u64) {
        let wanted = blocks << self.lba_shift;
        let (mut bytes, mut count, mut memory) = (0, 0, self.memory.clone());
        while bytes < wanted
            && count < room.len()
            && let Some(piece) = memory.next(wanted - bytes)
        {
            room[count] = piece;
            (bytes, count) = (bytes + u64::from(piece.bytes), count + 1);
        }
        let blocks = bytes >> self.lba_shift;
        let surplus = (bytes - (blocks << self.lba_shift)) as u32;
        match room[..count].last_mut() {
            // Segments too short for the PRP rule stay as they are: the queue refuses them.
            Some(last) if last.bytes > surplus => last.bytes -= surplus,
            _ => {}
        }
        (count, blocks)
    }

    /// The request made last was taken.
    pub(crate) fn advance(&mut self) {
        let made = u64::from(self.made);
        assert!(made <= self.left, "{made} blocks were taken of a call that had {} left", self.left);
        self.left -= made;
        self.lba = Lba(self.lba.0.wrapping_add(made));
        if self.left == 0 {
            match self.more.split_first() {
                Some((next, more)) => (self.lba, self.left, self.more) = (next.lba, next.blocks, more),
                None => self.done = true,
            }
        }
        if !self.operation.has_data() {
            return;
        }
        let mut bytes = made << self.lba_shift;
        while bytes > 0
            && let Some(piece) = self.memory.next(bytes)
        {
            bytes -= u64::from(piece.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_units::DeviceAddress;
    use proptest::prelude::*;

    fn limits(most: u32, lba_bytes: u32) -> Limits {
        Limits::of(lba_bytes, most)
    }

    proptest! {
        /// The requests of a call, end to end, are the call: blocks and memory.
        #[test]
        fn parts_add_up(
            lead in 0u64..8, pages in prop::collection::vec(1u32..6, 1..200), most in 1u32..1000,
            small in any::<bool>(), kept in any::<bool>(), elsewhere in 0u64..100,
        ) {
            let lba_bytes = if small { 512 } else { 4096 };
            let mut data = vec![Segment { address: DeviceAddress(4096 + lead * 512), bytes: 4096 - lead as u32 * 512 }];
            data.extend(pages.iter().zip(1..).map(|(&n, at)| Segment {
                address: DeviceAddress(at << 20), bytes: n * 4096,
            }));
            if lead > 0 {
                data.push(Segment { address: DeviceAddress(1 << 30), bytes: lead as u32 * 512 });
            }
            let bytes = |data: &[Segment]| -> Vec<(u64, u64)> {
                data.iter().map(|s| (s.address.0, u64::from(s.bytes))).collect()
            };
            let blocks: u64 = bytes(&data).iter().map(|piece| piece.1).sum::<u64>() / lba_bytes as u64;
            let whole = Request { operation: Operation::Read, lba: Lba(9), blocks: 0, data: &data, tag: 0, stream: 0 };
            // The last blocks may be somewhere else.
            let apart = elsewhere.min(blocks - 1);
            let (beside, more) = (blocks - apart, [Span { lba: Lba(1 << 40), blocks: apart }]);
            let more = &more[..usize::from(apart > 0)];
            let mut parts = Parts::new(&whole, beside, &limits(most, lba_bytes)).and(more);
            let (mut at, mut seen) = (0, vec![]);
            while !parts.is_done() {
                let mut room = [Segment { address: DeviceAddress(0), bytes: 0 }; PART_SEGMENTS];
                let part = if kept { parts.request(&mut room) } else { parts.longest(&mut room) };
                let lba = if at < beside { 9 + at } else { (1 << 40) + at - beside };
                prop_assert_eq!(part.lba, Lba(lba));
                prop_assert!(part.blocks >= 1 && part.blocks <= most);
                let moved: u64 = bytes(part.data).iter().map(|piece| piece.1).sum();
                prop_assert_eq!(moved, u64::from(part.blocks) * u64::from(lba_bytes));
                at += u64::from(part.blocks);
                seen.extend(bytes(part.data));
                parts.advance();
            }
            prop_assert_eq!(at, blocks);
            prop_assert_eq!(merged(&seen), merged(&bytes(&data)));
        }
    }

    fn merged(pieces: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut out: Vec<(u64, u64)> = vec![];
        for &(address, bytes) in pieces {
            match out.last_mut() {
                Some(last) if last.0 + last.1 == address => last.1 += bytes,
                _ => out.push((address, bytes)),
            }
        }
        out
    }

    #[test]
    #[should_panic(expected = "8 blocks were taken of a call that had 0 left")]
    fn a_part_is_taken_once() {
        let whole =
            Request { operation: Operation::Discard, lba: Lba(0), blocks: 0, data: &[], tag: 0, stream: 0 };
        let mut parts = Parts::new(&whole, 8, &limits(8, 512));
        parts.request(&mut [Segment { address: DeviceAddress(0), bytes: 0 }; PART_SEGMENTS]);
        parts.advance();
        parts.advance();
    }

    #[test]
    #[should_panic(expected = "requests of no blocks")]
    fn a_request_has_room_for_a_block() {
        let whole =
            Request { operation: Operation::Read, lba: Lba(0), blocks: 8, data: &[], tag: 0, stream: 0 };
        Parts::new(&whole, 8, &limits(0, 512));
    }

    #[test]
    fn a_flush_is_one_request_of_no_blocks() {
        let whole =
            Request { operation: Operation::Flush, lba: Lba(0), blocks: 0, data: &[], tag: 0, stream: 0 };
        let mut parts = Parts::new(&whole, 0, &limits(8, 512));
        let mut room = [Segment { address: DeviceAddress(0), bytes: 0 }; PART_SEGMENTS];
        assert!(!parts.is_done());
        assert_eq!(parts.request(&mut room).blocks, 0);
        parts.advance();
        assert!(parts.is_done());
    }
}
