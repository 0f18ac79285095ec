//! The log on the medium: the stream of records, cut into blocks of a ring.

use crate::disk::{self, Disk, Kind};
use crate::layout::{Layout, checksum, put_u32, put_u64, u32_at, u64_at};
use crate::pending::Pending;
use crate::record::{self, Expected, Header, Next};
use crate::{KvError, Medium};
use nvmed_sys::Mapping;
use nvmed_units::BLOCK_BYTES;
use std::sync::Arc;

const MAGIC: u32 = u32::from_le_bytes(*b"KVLB");
const HEADER_BYTES: usize = 24;
/// Stream bytes in one log block.
pub(crate) const PAYLOAD_BYTES: u64 = (BLOCK_BYTES - HEADER_BYTES) as u64;
/// Blocks in one write: 512 KiB, one command on most devices.
const APPEND_BLOCKS_MAX: usize = 128;
/// Blocks in the first read of a recovery; each further read doubles, so a short log costs few blocks.
const RECOVERY_BLOCKS_FIRST: u64 = 4;
/// Blocks in one read at most.
const RECOVERY_BLOCKS_MAX: u64 = 128;
/// Blocks in a row without a header of the log, after which the look past its end goes on in ever larger
/// steps. More would make every mount read more; what is missing for longer is found where a step ends.
const GAP_BLOCKS: u64 = 16;

/// The stream block that position `position` lies in.
pub(crate) fn stream_block(position: u64) -> u64 {
    position / PAYLOAD_BYTES
}

/// The header of a block that is written when the log is durable up to `durable`.
fn header(identity: u64, stream_block: u64, durable: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    put_u64(&mut header, 8, stream_block);
    put_u64(&mut header, 16, durable);
    let crc = checksum(identity, &[&header[8..]]);
    put_u32(&mut header, 0, MAGIC);
    put_u32(&mut header, 4, crc);
    header
}

/// The durable mark of `block`, if it is the one with the number `stream_block`.
fn mark(identity: u64, stream_block: u64, block: &[u8]) -> Option<u64> {
    let whole = u32_at(block, 0) == MAGIC
        && u64_at(block, 8) == stream_block
        && u32_at(block, 4) == checksum(identity, &[&block[8..HEADER_BYTES]]);
    whole.then(|| u64_at(block, 16))
}

/// Zeroes what an earlier store with the same identity left in the log: by its marks a new, empty log would
/// look damaged. Nothing else is written, so a sparse medium stays sparse.
pub(crate) fn wipe(medium: &dyn Medium, identity: u64, layout: &Layout) -> Result<(), KvError> {
    let mut bytes = Vec::new();
    for first in (0..layout.log_blocks).step_by(APPEND_BLOCKS_MAX) {
        let count = (layout.log_blocks - first).min(APPEND_BLOCKS_MAX as u64);
        bytes.resize(count as usize * BLOCK_BYTES, 0);
        disk::read(medium, layout.log_block(first), &mut bytes)?;
        for (place, block) in (layout.log_block(first)..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            let number = u64_at(block, 8);
            if layout.log_block(number) == place && mark(identity, number, block).is_some() {
                disk::write(medium, place, &[0; BLOCK_BYTES], false)?;
            }
        }
    }
    Ok(())
}

/// Appends to the log. One at a time.
pub(crate) struct Appender {
    identity: u64,
    layout: Layout,
    /// The end of what is durable, in the stream.
    position: u64,
    /// Whole blocks to write; the first `tail` bytes of the first repeat what is durable in it.
    buffer: Vec<u8>,
}

impl Appender {
    /// Goes on at `position`; `tail` is the payload before it in its block.
    pub(crate) fn new(identity: u64, layout: Layout, position: u64, tail: &[u8]) -> Self {
        debug_assert_eq!(tail.len() as u64, position % PAYLOAD_BYTES);
        let mut buffer = Vec::with_capacity(BLOCK_BYTES);
        buffer.extend_from_slice(&header(identity, stream_block(position), position));
        buffer.extend_from_slice(tail);
        Self { identity, layout, position, buffer }
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Writes the stream from here to `end` out of `pending`.
    ///
    /// Everything before must be durable: the blocks say so, and recovery takes their word for it.
    pub(crate) fn append(
        &mut self,
        disk: &Disk,
        pending: &Pending<Arc<Mapping>>,
        end: u64,
        fua: bool,
    ) -> Result<(), KvError> {
        let durable = if crate::mutant::is(crate::mutant::Mutant::MarkTooHigh) { end } else { self.position };
        while self.position < end {
            let first = stream_block(self.position);
            let room = self.layout.log_blocks - first % self.layout.log_blocks;
            let blocks = room.min(APPEND_BLOCKS_MAX as u64);
            let upto = end.min((first + blocks) * PAYLOAD_BYTES);
            self.fill(pending, upto, durable);
            disk.write(Kind::Log, self.layout.log_block(first), &self.buffer, fua)?;
            self.keep_tail(upto);
        }
        Ok(())
    }

    /// Extends the buffer to whole blocks that hold the stream up to `upto`, each marked with `durable`.
    fn fill(&mut self, pending: &Pending<Arc<Mapping>>, upto: u64, durable: u64) {
        let mut at = self.position;
        let first = header(self.identity, stream_block(at), durable);
        self.buffer[..HEADER_BYTES].copy_from_slice(&first);
        while at < upto {
            let block_end = (stream_block(at) + 1) * PAYLOAD_BYTES;
            if at.is_multiple_of(PAYLOAD_BYTES) && at != self.position {
                self.buffer.extend_from_slice(&header(self.identity, stream_block(at), durable));
            }
            let length = (block_end.min(upto) - at) as usize;
            let old = self.buffer.len();
            self.buffer.resize(old + length, 0);
            pending.copy_out(at, &mut self.buffer[old..]);
            at += length as u64;
        }
        self.buffer.resize(self.buffer.len().next_multiple_of(BLOCK_BYTES), 0);
    }

    /// After `fill` and a write: the start of the next write is the block that `upto` lies in.
    fn keep_tail(&mut self, upto: u64) {
        let tail = HEADER_BYTES + (upto % PAYLOAD_BYTES) as usize;
        if upto.is_multiple_of(PAYLOAD_BYTES) {
            self.buffer.clear();
            self.buffer.extend_from_slice(&header(self.identity, stream_block(upto), upto));
        } else {
            let last = self.buffer.len() - BLOCK_BYTES;
            self.buffer.copy_within(last..last + tail, 0);
            self.buffer.truncate(tail);
        }
        self.buffer.shrink_to(APPEND_BLOCKS_MAX * BLOCK_BYTES);
        self.position = upto;
    }
}

/// Where recovery left off.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The end of the log, in the stream.
    pub(crate) position: u64,
    /// The last record's sequence.
    pub(crate) sequence: u64,
    /// The last record's epoch.
    pub(crate) epoch: u64,
    /// The payload of the block of `position`, up to it.
    pub(crate) tail: Vec<u8>,
    /// What is wrong, if records after `position` were durable.
    pub(crate) damage: Option<KvError>,
}

/// Reads the log from `position`, after which `expected` comes, and hands every record to `take`.
pub(crate) fn recover(
    disk: &Disk,
    layout: &Layout,
    position: u64,
    mut expected: Expected,
    take: &mut dyn FnMut(&Header, &[u8]),
) -> Result<Recovered, KvError> {
    let first = stream_block(position);
    let identity = expected.identity;
    let mut reader = Reader { disk, layout, identity, first, next: first, ended: false, bytes: Vec::new() };
    // `stream` holds payload from stream position `base` on; `at` is the offset of the next record in it.
    let mut stream = Vec::new();
    let mut base = first * PAYLOAD_BYTES;
    let mut at = (position - base) as usize;
    loop {
        let seen = stream.get(at..).unwrap_or(&[]);
        let more = match record::next(seen, &expected) {
            Next::Record(header, operations) => {
                take(&header, operations);
                at += record::HEADER_BYTES + header.bytes;
                (expected.sequence, expected.epoch) = (header.sequence + 1, header.epoch);
                false
            }
            Next::Short => true,
            Next::End => break,
        };
        if more && !reader.more(&mut stream)? {
            break;
        }
        // Whole blocks before the one of `at` are done with.
        let done = (at as u64 / PAYLOAD_BYTES * PAYLOAD_BYTES) as usize;
        if done > RECOVERY_BLOCKS_MAX as usize * BLOCK_BYTES {
            stream.drain(..done);
            base += done as u64;
            at -= done;
        }
    }
    let position = base + at as u64;
    let tail_start = at - (position % PAYLOAD_BYTES) as usize;
    let mut tail = stream.get(tail_start..at).unwrap_or(&[]).to_vec();
    tail.resize((position % PAYLOAD_BYTES) as usize, 0);
    let damage = damage_at(disk, layout, identity, position, first + layout.log_blocks)?;
    Ok(Recovered { position, sequence: expected.sequence - 1, epoch: expected.epoch, tail, damage })
}

/// Looks for a block that was written when the log was durable beyond `end`, where its records end, in
/// the blocks from that of `end` to below `limit`, one round of the ring. If there is one, records were
/// damaged.
///
/// An append that a power cut interrupted leaves no such block, nor does anything older: what is durable
/// never becomes less, so each mark ever written is at most any end found later.
fn damage_at(
    disk: &Disk,
    layout: &Layout,
    identity: u64,
    end: u64,
    limit: u64,
) -> Result<Option<KvError>, KvError> {
    let mut number = stream_block(end);
    // The first block that lacks its header, and how many in a row do.
    let (mut broken, mut missing) = (None, 0u64);
    let mut bytes = Vec::new();
    while number < limit {
        let to_wrap = layout.log_blocks - number % layout.log_blocks;
        let count = GAP_BLOCKS.saturating_sub(missing).clamp(1, to_wrap.min(limit - number));
        bytes.resize(count as usize * BLOCK_BYTES, 0);
        disk.read(layout.log_block(number), &mut bytes)?;
        for block in bytes.chunks_exact(BLOCK_BYTES) {
            match mark(identity, number, block) {
                Some(durable) if durable > end => {
                    let block = layout.log_block(broken.unwrap_or(stream_block(end)));
                    let reason = "a record that begins or goes on in it was durable and cannot be read, nor can any later one; `nvmed fsck --salvage` copies out what came before";
                    return Ok(Some(KvError::Corrupt { block, structure: "log", reason }));
                }
                Some(_) => missing = 0,
                None => {
                    broken.get_or_insert(number);
                    missing += 1;
                }
            }
            number += 1;
        }
        if missing >= GAP_BLOCKS {
            // 16, 32, 64 … blocks on: one of them is in any log that goes on for as long as it was broken.
            number += missing;
            missing *= 2;
        }
    }
    Ok(None)
}

/// Reads blocks of the ring in stream order.
struct Reader<'a> {
    disk: &'a Disk,
    layout: &'a Layout,
    identity: u64,
    first: u64,
    next: u64,
    ended: bool,
    /// What was read last; its memory is used again, since fresh pages cost as much as reading them.
    bytes: Vec<u8>,
}

impl Reader<'_> {
    /// Adds the payload of further blocks to `stream`; `false` when there are none.
    fn more(&mut self, stream: &mut Vec<u8>) -> Result<bool, KvError> {
        let seen = self.next - self.first;
        let to_wrap = self.layout.log_blocks - self.next % self.layout.log_blocks;
        let wanted = seen.clamp(RECOVERY_BLOCKS_FIRST, RECOVERY_BLOCKS_MAX);
        let count = wanted.min(to_wrap).min(self.layout.log_blocks - seen);
        if self.ended || count == 0 {
            return Ok(false);
        }
        self.bytes.resize(count as usize * BLOCK_BYTES, 0);
        self.disk.read(self.layout.log_block(self.next), &mut self.bytes)?;
        let before = stream.len();
        for block in self.bytes.chunks_exact(BLOCK_BYTES) {
            if mark(self.identity, self.next, block).is_none() {
                self.ended = true;
                break;
            }
            stream.extend_from_slice(&block[HEADER_BYTES..]);
            self.next += 1;
        }
        Ok(stream.len() > before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, MemoryMedium, Options};
    use nvmed_sys::Pages;
    use proptest::prelude::*;

    const IDENTITY: u64 = 3;

    fn ring() -> (Disk, Layout) {
        let options = Options { log_blocks: Some(64), ..Options::default() };
        let layout = Layout::plan(300, &options).unwrap();
        (Disk::new(Arc::new(MemoryMedium::new(300))), layout)
    }

    fn found(disk: &Disk, layout: &Layout, position: u64, sequence: u64) -> (Recovered, Vec<usize>) {
        let mut lengths = Vec::new();
        let expected = Expected { identity: IDENTITY, sequence, epoch: 0 };
        let take = &mut |_: &Header, operations: &[u8]| lengths.push(operations.len());
        let recovered = recover(disk, layout, position, expected, take).unwrap();
        (recovered, lengths)
    }

    proptest! {
        /// Appends of any sizes from any position around the ring are found again, record by record,
        /// whether they were written in one go or in many; and an appender goes on where they end.
        #[test]
        fn what_is_appended_is_recovered(
            start in 0u64..3 * 64 * PAYLOAD_BYTES,
            lengths in prop::collection::vec(prop_oneof![0usize..300, 3000usize..9000], 1..18),
            every in 1usize..6,
        ) {
            let (disk, layout) = ring();
            let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).unwrap());
            let pending = Pending::new(memory, 0, 1 << 20).unwrap();
            pending.reset(IDENTITY, start);
            let mut appender = Appender::new(IDENTITY, layout, start, &vec![0; (start % PAYLOAD_BYTES) as usize]);
            let (mut end, mut sizes) = (start, Vec::new());
            for (index, length) in lengths.iter().enumerate() {
                let mut batch = Batch::new();
                (0..length / 100).for_each(|n| batch.put(&n.to_le_bytes(), &[index as u8; 87]));
                let operations = batch.encoded().unwrap();
                let header = record::seal(IDENTITY, index as u64 + 1, 1, operations);
                pending.append(end, [&header, operations]);
                end += (header.len() + operations.len()) as u64;
                sizes.push(operations.len());
                if index % every == 0 || index + 1 == lengths.len() {
                    let (from, before) = (appender.position(), disk.written().log);
                    appender.append(&disk, &pending, end, true).unwrap();
                    let touched = stream_block(end - 1) - stream_block(from) + 1;
                    prop_assert_eq!(disk.written().log - before, touched, "blocks that did not change were written");
                    pending.release(end);
                }
            }
            let (recovered, lengths) = found(&disk, &layout, start, 1);
            prop_assert_eq!(lengths, sizes);
            prop_assert_eq!(recovered.position, end);
            let again = Appender::new(IDENTITY, layout, recovered.position, &recovered.tail);
            prop_assert_eq!(recovered.damage, None);
            let from_start = stream_block(start) != stream_block(end) || start % PAYLOAD_BYTES == 0;
            let payload = |appender: &Appender| appender.buffer[HEADER_BYTES..].to_vec();
            prop_assert!(!from_start || payload(&again) == payload(&appender));
        }

        /// Any bytes in blocks whose headers are good, and records whose checksums are: recovery ends.
        #[test]
        fn fuzz_a_log(
            start in 0u64..2 * PAYLOAD_BYTES,
            noise in prop::collection::vec(any::<u8>(), 0..PAYLOAD_BYTES as usize),
            lengths in prop::collection::vec(0usize..3000, 0..4),
        ) {
            let (disk, layout) = ring();
            let mut stream = vec![0; (start % PAYLOAD_BYTES) as usize];
            for (index, &length) in lengths.iter().enumerate() {
                let body: Vec<u8> = noise.iter().cycle().take(if noise.is_empty() { 0 } else { length }).copied().collect();
                stream.extend_from_slice(&record::seal(IDENTITY, index as u64 + 1, 1, &body));
                stream.extend_from_slice(&body);
            }
            stream.extend_from_slice(&noise);
            for (index, payload) in stream.chunks(PAYLOAD_BYTES as usize).enumerate() {
                let number = stream_block(start) + index as u64;
                let mut block = header(IDENTITY, number, 0).to_vec();
                block.extend_from_slice(payload);
                block.resize(BLOCK_BYTES, 0xff);
                disk.write(Kind::Log, layout.log_block(number), &block, true).unwrap();
            }
            let (recovered, _) = found(&disk, &layout, start, 1);
            prop_assert!(recovered.position >= start);
        }
    }
}
