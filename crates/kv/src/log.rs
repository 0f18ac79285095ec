//! The log on the medium: the stream of records, cut into blocks of a ring, and the twin, where every other
//! version of the block goes that the stream ends in, or, in place, the mark of the last append (`docs/spec/kv.md`,
//! "Log").

use crate::disk::{self, Disk, Structure};
use crate::layout::{Layout, Seed, checksum, put_u32, put_u64, u32_at, u64_at};
use crate::pending::Pending;
use crate::stream::{HEADER_BYTES, Position, StreamBlock};
use crate::{KvError, Medium};
use nvmed_mutant::Mutant;
use nvmed_sys::Mapping;
use nvmed_units::{BLOCK_BYTES, Block};
use std::sync::Arc;

const MAGIC: u32 = u32::from_le_bytes(*b"KVLB");
/// Of a block that was settled: its other slot holds the stream up to the durable mark as well.
const MAGIC_SETTLED: u32 = u32::from_le_bytes(*b"KVLS");
/// Blocks in one write: 512 KiB, one command on most devices.
const APPEND_BLOCKS_MAX: usize = 128;

/// What the header of a block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The stream block number.
    pub(crate) number: StreamBlock,
    /// The durable mark.
    pub(crate) durable: Position,
    /// Whether the other slot of the block holds the same, up to the mark.
    pub(crate) settled: bool,
}

impl Head {
    /// The header of a block that is written when the log is durable up to `durable`.
    fn written(number: StreamBlock, durable: Position) -> Self {
        Self { number, durable, settled: false }
    }

    fn encode(self, seed: Seed) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        put_u64(&mut header, 8, self.number.0);
        put_u64(&mut header, 16, self.durable.0);
        let crc = seed.checksum(&[&header[8..]]);
        put_u32(&mut header, 0, if self.settled { MAGIC_SETTLED } else { MAGIC });
        put_u32(&mut header, 4, crc);
        header
    }

    /// The header of `block`, wherever that lies; none if it is not one of this store's log.
    pub(crate) fn decode(identity: u64, block: &[u8]) -> Option<Self> {
        let settled = match u32_at(block, 0) {
            MAGIC => false,
            MAGIC_SETTLED => true,
            _ => return None,
        };
        let (number, durable) = (StreamBlock(u64_at(block, 8)), Position(u64_at(block, 16)));
        let head = Self { number, durable, settled };
        (u32_at(block, 4) == checksum(identity, &[&block[8..HEADER_BYTES]])).then_some(head)
    }

    /// Whether `block`, which has no header, begins with what a power cut leaves of one that was stored in words: words
    /// of two, of which none says anything that was not so in a log that ends at `end`.
    pub(crate) fn is_torn(block: &[u8], end: Position) -> bool {
        matches!(u32_at(block, 0), MAGIC | MAGIC_SETTLED)
            && StreamBlock(u64_at(block, 8)) <= end.block()
            && Position(u64_at(block, 16)) <= end
    }
}

/// Writes an empty log: its first block in both slots. What an earlier store with the same identity left is
/// zeroed: by its marks a new, empty log would look damaged. Nothing else is written, so a sparse medium stays
/// sparse.
pub(crate) fn format(medium: &dyn Medium, identity: u64, layout: &Layout) -> Result<(), KvError> {
    let mut bytes = Vec::new();
    let (first, end) = (layout.log_block(StreamBlock(0)).0, layout.twin_block().0 + 1);
    for first in (first..end).step_by(APPEND_BLOCKS_MAX) {
        let count = (end - first).min(APPEND_BLOCKS_MAX as u64);
        bytes.resize(count as usize * BLOCK_BYTES, 0);
        disk::read(medium, Block(first), &mut bytes)?;
        for (number, block) in Block(first).onward().zip(bytes.chunks_exact(BLOCK_BYTES)) {
            if Head::decode(identity, block).is_some() {
                disk::write(medium, number, &[0; BLOCK_BYTES], false)?;
            }
        }
    }
    let mut block = [0; BLOCK_BYTES];
    let header = Head { number: StreamBlock(0), durable: Position(0), settled: true };
    let header = header.encode(Seed::of(identity));
    block[..HEADER_BYTES].copy_from_slice(&header);
    disk::write(medium, layout.log_block(StreamBlock(0)), &block, false)?;
    disk::write(medium, layout.twin_block(), &block, false)
}

/// One of the two slots of the block that the stream ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TailSlot {
    /// Its block of the ring.
    Home,
    /// The block behind the ring.
    Twin,
}

impl TailSlot {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Home => Self::Twin,
            Self::Twin => Self::Home,
        }
    }

    /// Where stream block `number` lies in this slot.
    pub(crate) fn block(self, layout: &Layout, number: StreamBlock) -> Block {
        match self {
            Self::Home => layout.log_block(number),
            Self::Twin => layout.twin_block(),
        }
    }
}

/// What an appender knows of the block that the stream ends in.
#[derive(Debug)]
pub(crate) struct Tail {
    /// Its payload up to the end.
    pub(crate) payload: Vec<u8>,
    /// Where its newest version is: the next one goes to the other slot.
    pub(crate) newest: TailSlot,
    /// Both slots hold it, and say so.
    pub(crate) settled: bool,
    /// Its home has its header.
    pub(crate) begun: bool,
    /// Of which block the twin holds a version.
    pub(crate) twin: Option<StreamBlock>,
    /// It was read, so a process that died may have left it in the device's cache alone.
    pub(crate) read: bool,
    /// A whole block that only its twin held: its home is written before anything else.
    pub(crate) homeless: Option<(Block, Vec<u8>)>,
}

/// Appends to the log. One at a time.
pub(crate) struct Appender {
    seed: Seed,
    layout: Layout,
    /// The end of what is durable, in the stream.
    position: Position,
    /// Whole blocks, zero behind the end of the stream; the first one's first bytes repeat what is durable in it.
    buffer: Vec<u8>,
    newest: TailSlot,
    settled: bool,
    /// In place: the home of the block that the stream ends in has its header.
    begun: bool,
    /// In place: of which block the twin holds a version.
    twin: Option<StreamBlock>,
    read: bool,
    homeless: Option<(Block, Vec<u8>)>,
    /// The epoch of what is appended is on the medium.
    has_epoch: bool,
}

impl Appender {
    /// Goes on at `position`, in the block whose `tail` that is.
    pub(crate) fn new(identity: u64, layout: Layout, position: Position, tail: Tail) -> Self {
        assert_eq!(tail.payload.len(), position.within(), "the tail of another block");
        let mut buffer = vec![0; BLOCK_BYTES];
        buffer[HEADER_BYTES..][..tail.payload.len()].copy_from_slice(&tail.payload);
        let Tail { newest, settled, begun, twin, read, homeless, .. } = tail;
        let seed = Seed::of(identity);
        let has_epoch = false;
        Self { seed, layout, position, buffer, newest, settled, begun, twin, read, homeless, has_epoch }
    }

    /// Whether a superblock with the epoch of what is appended was written.
    pub(crate) fn has_epoch(&self) -> bool {
        self.has_epoch
    }

    /// It was.
    pub(crate) fn epoch_stored(&mut self) {
        self.has_epoch = true;
    }

    pub(crate) fn position(&self) -> Position {
        self.position
    }

    /// Writes the stream from here to `end` out of `pending`.
    ///
    /// Everything before must be durable: the blocks say so, and recovery takes their word for it.
    pub(crate) fn append(
        &mut self,
        disk: &Disk,
        pending: &Pending<Arc<Mapping>>,
        end: Position,
        fua: bool,
    ) -> Result<(), KvError> {
        let durable = self.position;
        assert!(end >= durable, "the log would end at {end}, before {durable}");
        assert!(pending.start() <= durable && end <= pending.end(), "what is appended is not pending");
        self.bring_home(disk)?;
        let mark = if Mutant::MarkTooHigh.is_made() { end } else { durable };
        if disk.stores_bytes() {
            return self.append_in_place(disk, pending, (mark, end), fua);
        }
        self.settled &= end == durable;
        while self.position < end {
            let first = self.position.block();
            let ring = self.layout.ring_blocks();
            let blocks = (ring - first.0 % ring).min(APPEND_BLOCKS_MAX as u64);
            let upto = end.min((first + blocks).start());
            self.fill(pending, upto, mark);
            let slot = self.aim(first, upto, durable, end);
            disk.write(Structure::Log, slot.block(&self.layout, first), &self.buffer, fua)?;
            self.keep_tail(upto);
        }
        self.read = false;
        Ok(())
    }

    /// As [`Appender::append`], by stores behind the end of what is durable, which none of them touches. A block gets
    /// its header with its first record, once; the twin gets that of the append, as the witness that it began here.
    fn append_in_place(
        &mut self,
        disk: &Disk,
        pending: &Pending<Arc<Mapping>>,
        (mark, end): (Position, Position),
        fua: bool,
    ) -> Result<(), KvError> {
        if self.position == end {
            return Ok(());
        }
        self.take_up(disk)?;
        // Settled, both slots say so already.
        if !core::mem::take(&mut self.settled) {
            let number = self.twin.unwrap_or(self.position.block());
            let header = Head::written(number, mark).encode(self.seed);
            disk.store(Structure::Log, self.layout.twin_block(), 0, &header)?;
            self.twin = Some(number);
        }
        while self.position < end {
            let (number, within) = (self.position.block(), self.position.within());
            let upto = end.min((number + 1).start());
            let behind = HEADER_BYTES + within + (upto - self.position) as usize;
            let stored = if self.begun && !Mutant::LogHeaderRewritten.is_made() {
                let stored = HEADER_BYTES + within..behind;
                pending.copy_out(self.position, &mut self.buffer[stored.clone()]);
                stored
            } else {
                self.fill(pending, upto, mark);
                0..if self.begun { behind } else { BLOCK_BYTES }
            };
            disk.store(Structure::Log, self.layout.log_block(number), stored.start, &self.buffer[stored])?;
            self.begun = upto.within() > 0;
            self.keep_tail(upto);
        }
        self.read = false;
        if fua { disk.fence() } else { Ok(()) }
    }

    /// Has the home of the block that the stream ends in hold all of it, where a log that was written by blocks left
    /// the newest version in the twin. That stays until the home is durable.
    fn take_up(&mut self, disk: &Disk) -> Result<(), KvError> {
        let (number, within) = (self.position.block(), self.position.within());
        if self.newest == TailSlot::Twin && within > 0 {
            let header = Head::written(number, self.position).encode(self.seed);
            self.buffer[..HEADER_BYTES].copy_from_slice(&header);
            let stored = if self.begun { HEADER_BYTES..HEADER_BYTES + within } else { 0..self.buffer.len() };
            disk.store(Structure::Log, self.layout.log_block(number), stored.start, &self.buffer[stored])?;
            disk.fence()?;
            self.begun = true;
        }
        self.newest = TailSlot::Home;
        Ok(())
    }

    /// Where the buffer goes, which holds stream block `first` and perhaps more, up to `upto`.
    ///
    /// A block that stays unfinished goes to the slot that does not hold its newest version: that one is
    /// there whatever becomes of the write. Others go home, as they will stay. One that is finished there over its
    /// newest version has no other witness than what comes next, so the empty header of the next block goes along:
    /// right behind it lies that block's home, or behind the ring, the twin.
    fn aim(&mut self, first: StreamBlock, upto: Position, durable: Position, end: Position) -> TailSlot {
        let last = upto.block();
        if last == first {
            // Goes on at its start when what came before was part of the same append: there is nothing of it yet.
            self.newest = self.newest.other();
            return self.newest;
        }
        let at_its_end = upto.within() == 0;
        let alone = last == first + 1 && upto == end && durable.block() == first;
        if at_its_end && alone && self.newest == TailSlot::Home {
            let header = Head::written(last, durable).encode(self.seed);
            let length = self.buffer.len() + BLOCK_BYTES;
            self.buffer.extend_from_slice(&header);
            self.buffer.resize(length, 0);
            let behind = self.layout.log_block(first) + 1;
            self.newest = if behind == self.layout.twin_block() { TailSlot::Twin } else { TailSlot::Home };
        } else {
            // Of a block that has begun the newest version is at home. Of one that has not there is none: the next
            // write of it goes home.
            self.newest = if at_its_end { TailSlot::Twin } else { TailSlot::Home };
        }
        TailSlot::Home
    }

    /// Whether [`Appender::settle`] would write anything.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled && self.homeless.is_none()
    }

    /// Writes the block that the stream ends in to both slots, marked as durable to its end, unless both hold it
    /// already: from now on no block's loss takes anything along in silence. The last append must be durable, or have
    /// been read.
    pub(crate) fn settle(&mut self, disk: &Disk) -> Result<(), KvError> {
        self.bring_home(disk)?;
        if self.settled {
            return Ok(());
        }
        if self.read {
            disk.flush()?;
            self.read = false;
        }
        let number = self.position.block();
        let head = Head { number, durable: self.position, settled: true };
        self.buffer[..HEADER_BYTES].copy_from_slice(&head.encode(self.seed));
        // The newest version stays until the other slot has the same.
        for slot in [self.newest.other(), self.newest] {
            disk.write(Structure::Log, slot.block(&self.layout, number), &self.buffer, true)?;
        }
        (self.settled, self.begun, self.twin) = (true, true, Some(number));
        Ok(())
    }

    /// Writes the block that only its twin held to its home.
    fn bring_home(&mut self, disk: &Disk) -> Result<(), KvError> {
        if let Some((block, bytes)) = &self.homeless {
            disk.write(Structure::Log, *block, bytes, true)?;
            self.homeless = None;
        }
        Ok(())
    }

    /// Extends the buffer to the blocks that hold the stream up to `upto`, each marked with `durable`.
    fn fill(&mut self, pending: &Pending<Arc<Mapping>>, upto: Position, durable: Position) {
        let first = self.position.block();
        let blocks = Position(upto.0 - 1).block() + 1 - first;
        self.buffer.resize(blocks as usize * BLOCK_BYTES, 0);
        for (number, block) in first.onward().zip(self.buffer.chunks_exact_mut(BLOCK_BYTES)) {
            let start = number.start();
            let (from, to) = (self.position.max(start), upto.min((number + 1).start()));
            let (header, payload) = block.split_at_mut(HEADER_BYTES);
            header.copy_from_slice(&Head::written(number, durable).encode(self.seed));
            pending.copy_out(from, &mut payload[(from - start) as usize..(to - start) as usize]);
        }
    }

    /// After `fill` and a write: the start of the next write is the block that `upto` lies in.
    fn keep_tail(&mut self, upto: Position) {
        if upto.within() == 0 {
            self.buffer.clear();
            self.buffer.resize(BLOCK_BYTES, 0);
        } else if self.buffer.len() > BLOCK_BYTES {
            let last = self.buffer.len() - BLOCK_BYTES;
            self.buffer.copy_within(last.., 0);
            self.buffer.truncate(BLOCK_BYTES);
        }
        self.buffer.shrink_to(APPEND_BLOCKS_MAX * BLOCK_BYTES);
        self.position = upto;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Since;
    use crate::record::{self, Expected, Header};
    use crate::recovery::{Recovered, recover};
    use crate::stream::{PAYLOAD_BYTES, Sequence};
    use crate::{Batch, MemoryMedium};
    use nvmed_sys::Pages;
    use proptest::prelude::*;

    const IDENTITY: u64 = 3;

    fn ring() -> (Disk, Layout) {
        let layout = Layout::plan(300, Some(64)).unwrap();
        let medium = MemoryMedium::new(300);
        format(&medium, IDENTITY, &layout).unwrap();
        (Disk::new(Arc::new(medium)), layout)
    }

    fn begun(payload: Vec<u8>, newest: TailSlot) -> Tail {
        Tail { payload, newest, settled: false, begun: true, twin: None, read: false, homeless: None }
    }

    fn found(disk: &Disk, layout: &Layout, position: Position) -> (Recovered, Vec<usize>) {
        let mut lengths = Vec::new();
        let since = Since::default();
        let expected = Expected { identity: IDENTITY, sequence: Sequence(1), epoch: 0, since };
        let take = &mut |_: &Header, operations: &[u8]| lengths.push(operations.len());
        let recovered = recover(disk, layout, position, expected, take).unwrap();
        (recovered, lengths)
    }

    #[test]
    #[should_panic(expected = "the log would end at 99, before 100")]
    fn an_append_that_goes_back_is_our_mistake() {
        let (disk, layout) = ring();
        let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).unwrap());
        let pending = Pending::new(memory, 0, 1 << 20).unwrap();
        let payload = vec![0; 100];
        let tail = begun(payload, TailSlot::Home);
        let _ =
            Appender::new(IDENTITY, layout, Position(100), tail).append(&disk, &pending, Position(99), true);
    }

    proptest! {
        /// Appends of any sizes from any position around the ring are found again, record by record,
        /// whether they were written in one go or in many; and an appender goes on where they end.
        #[test]
        fn what_is_appended_is_recovered(
            start in (0..3 * 64 * PAYLOAD_BYTES).prop_map(Position),
            lengths in prop::collection::vec(prop_oneof![0usize..300, 3000usize..9000], 1..18),
            every in 1usize..6,
        ) {
            let (disk, layout) = ring();
            let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).unwrap());
            let pending = Pending::new(memory, 0, 1 << 20).unwrap();
            pending.reset(IDENTITY, start);
            let payload = vec![0; start.within()];
            let tail = begun(payload, TailSlot::Twin);
            let mut appender = Appender::new(IDENTITY, layout, start, tail);
            let (mut end, mut sizes) = (start, Vec::new());
            for (index, length) in lengths.iter().enumerate() {
                let mut batch = Batch::new();
                (0..length / 100).for_each(|n| batch.put(&n.to_le_bytes(), &[index as u8; 87]));
                let operations = batch.encoded().unwrap();
                let header = record::seal(Seed::of(IDENTITY), Sequence(index as u64 + 1), 1, operations);
                pending.append(end, [&header, operations]);
                end += (header.len() + operations.len()) as u64;
                sizes.push(operations.len());
                if index % every == 0 || index + 1 == lengths.len() {
                    let (from, before) = (appender.position(), disk.written().log);
                    appender.append(&disk, &pending, end, true).unwrap();
                    let touched = Position(end.0 - 1).block() - from.block() + 1;
                    let witness = u64::from(end.within() == 0);
                    let written = disk.written().log - before;
                    let expected = written == touched || written == touched + witness;
                    prop_assert!(expected, "blocks that did not change were written");
                    pending.release(end);
                }
            }
            let (recovered, lengths) = found(&disk, &layout, start);
            prop_assert_eq!(lengths, sizes);
            prop_assert_eq!(recovered.position, end);
            prop_assert_eq!(recovered.damage, None);
            prop_assert_eq!(recovered.flaws, []);
            let again = Appender::new(IDENTITY, layout, recovered.position, recovered.tail);
            let from_start = start.block() != end.block() || start.within() == 0;
            let payload = |appender: &Appender| appender.buffer[HEADER_BYTES..].to_vec();
            prop_assert!(!from_start || payload(&again) == payload(&appender));
        }

        /// Any bytes in blocks whose headers are good, and records whose checksums are: recovery ends.
        #[test]
        fn fuzz_a_log(
            start in (0..2 * PAYLOAD_BYTES).prop_map(Position),
            noise in prop::collection::vec(any::<u8>(), 0..PAYLOAD_BYTES as usize),
            lengths in prop::collection::vec(0usize..3000, 0..4),
        ) {
            let (disk, layout) = ring();
            let mut stream = vec![0; start.within()];
            for (index, &length) in lengths.iter().enumerate() {
                let length = if noise.is_empty() { 0 } else { length };
                let body: Vec<u8> = noise.iter().cycle().take(length).copied().collect();
                stream.extend_from_slice(&record::seal(Seed::of(IDENTITY), Sequence(index as u64 + 1), 1, &body));
                stream.extend_from_slice(&body);
            }
            stream.extend_from_slice(&noise);
            for (index, payload) in stream.chunks(PAYLOAD_BYTES as usize).enumerate() {
                let number = start.block() + index as u64;
                let mut block = Head::written(number, Position(0)).encode(Seed::of(IDENTITY)).to_vec();
                block.extend_from_slice(payload);
                block.resize(BLOCK_BYTES, 0xff);
                disk.write(Structure::Log, layout.log_block(number), &block, true).unwrap();
            }
            let (recovered, _) = found(&disk, &layout, start);
            prop_assert!(recovered.position >= start);
        }
    }
}
