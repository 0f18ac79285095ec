//! Reading the log back: where it ends, what was damaged, and which of the two slots of its last block counts
//! (`docs/spec/kv.md`, "Recovery").

use crate::disk::Disk;
use crate::layout::Layout;
use crate::log::{Head, Tail, TailSlot};
use crate::record::{self, Expected, Header, Next};
use crate::stream::{HEADER_BYTES, PAYLOAD_BYTES, Position, Sequence, StreamBlock};
use crate::{Flaw, KvError};
use nvmed_units::{BLOCK_BYTES, Block};

/// Blocks in the first read of a recovery; each further read doubles, so a short log costs few blocks.
const RECOVERY_BLOCKS_FIRST: u64 = 4;
/// Blocks in one read at most.
const RECOVERY_BLOCKS_MAX: u64 = 128;
/// Blocks in a row without a header of the log, after which the look past its end goes on in ever larger
/// steps. More would make every mount read more; what is missing for longer is found where a step ends.
const GAP_BLOCKS: u64 = 16;

/// Where recovery left off.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The end of the log, in the stream.
    pub(crate) position: Position,
    /// The last record's sequence.
    pub(crate) sequence: Sequence,
    /// The last record's epoch.
    pub(crate) epoch: u64,
    /// The block of `position`.
    pub(crate) tail: Tail,
    /// What is wrong, if records after `position` were durable.
    pub(crate) damage: Option<KvError>,
    /// Copies that are lost, of what was found elsewhere.
    pub(crate) flaws: Vec<Flaw>,
}

/// What recovery hands each record to: its header and its operations.
type Take<'a> = dyn FnMut(&Header, &[u8]) + 'a;

/// How far a walk along the records came.
struct Walked {
    /// The end of its last record.
    position: Position,
    /// What would have come next.
    expected: Expected,
    /// The payload before `position`, of the block that it lies in; the part that was not read is zero.
    tail: Vec<u8>,
}

/// What lies behind the ring.
struct Twin {
    head: Option<Head>,
    bytes: Vec<u8>,
    /// Its bytes with what the ring has before them in the same block, if they were taken.
    spliced: Vec<u8>,
}

/// A log and where in it.
struct Log<'a> {
    disk: &'a Disk,
    layout: &'a Layout,
    identity: u64,
    /// The block that it begins in.
    first: StreamBlock,
}

/// Reads the log from `position`, after which `expected` comes, and hands every record to `take`.
///
/// Along the ring first; then, from where that ends, with the twin in place of the ring's block of that number:
/// either may be the newer version of the block that the stream ends in, or the only one.
pub(crate) fn recover(
    disk: &Disk,
    layout: &Layout,
    position: Position,
    expected: Expected,
    take: &mut Take<'_>,
) -> Result<Recovered, KvError> {
    let log = Log { disk, layout, identity: expected.identity, first: position.block() };
    let mut twin = log.read_twin()?;
    let mut walked = log.walk(position, expected, None, take)?;
    let limit = log.first + layout.ring_blocks();
    let ring_end = walked.position.block();
    let mut by_twin = None;
    if let Some(number) = twin.head.map(|head| head.number)
        && (ring_end..limit).contains(&number)
    {
        let mut bytes = twin.bytes.clone();
        if number == ring_end {
            // Of what comes before, only the ring's version was checked.
            bytes[HEADER_BYTES..HEADER_BYTES + walked.tail.len()].copy_from_slice(&walked.tail);
        }
        // Most often the twin has no record to add, and says so at once.
        let goes_on = number != ring_end || {
            let rest = &bytes[HEADER_BYTES + walked.tail.len()..];
            !matches!(record::next(rest, &walked.expected), Next::End)
        };
        if goes_on {
            let along = log.walk(walked.position, walked.expected, Some((number, &bytes)), take)?;
            if along.position > walked.position {
                (walked, by_twin, twin.spliced) = (along, Some(number), bytes);
            }
        }
    }
    let end = walked.position;
    let damage = log.damage_after(end, twin.head.as_ref())?;
    let copies = log.copies(position, &walked, &twin, by_twin)?;
    let number = by_twin.filter(|&number| number != end.block());
    let homeless = number.map(|number| (layout.log_block(number), twin.spliced));
    let Walked { expected, tail: payload, .. } = walked;
    let Copies { newest, settled, begun, flaws } = copies;
    let number = twin.head.map(|head| head.number);
    let tail = Tail { payload, newest, settled, begun, twin: number, read: true, homeless };
    let (sequence, epoch) = (Sequence(expected.sequence.0 - 1), expected.epoch);
    Ok(Recovered { position: end, sequence, epoch, tail, damage, flaws })
}

/// What the two slots of the block that the stream ends in are worth.
struct Copies {
    newest: TailSlot,
    settled: bool,
    /// The home has its header.
    begun: bool,
    flaws: Vec<Flaw>,
}

impl Log<'_> {
    fn read_twin(&self) -> Result<Twin, KvError> {
        let mut bytes = vec![0; BLOCK_BYTES];
        self.disk.read(self.layout.twin_block(), &mut bytes)?;
        Ok(Twin { head: Head::decode(self.identity, &bytes), bytes, spliced: Vec::new() })
    }

    /// Takes records from `position` on while they fit. `instead` is a block by its number, and its bytes, to be
    /// read in place of the ring's.
    fn walk(
        &self,
        position: Position,
        mut expected: Expected,
        instead: Option<(StreamBlock, &[u8])>,
        take: &mut Take<'_>,
    ) -> Result<Walked, KvError> {
        let first = position.block();
        let mut reader = Reader { log: self, instead, first, next: first, ended: false, bytes: Vec::new() };
        // `stream` holds payload from stream position `base` on; `at` is the offset of the next record in it.
        let mut stream = Vec::new();
        let mut base = first.start();
        let mut at = (position - base) as usize;
        loop {
            let seen = stream.get(at..).unwrap_or(&[]);
            let more = match record::next(seen, &expected) {
                Next::Record(header, operations) => {
                    take(&header, operations);
                    at += record::HEADER_BYTES + header.bytes;
                    (expected.sequence, expected.epoch) = (header.sequence.next(), header.epoch);
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
        let tail_start = at - position.within();
        let mut tail = stream.get(tail_start..at).unwrap_or(&[]).to_vec();
        tail.resize(position.within(), 0);
        Ok(Walked { position, expected, tail })
    }

    /// Looks for a block that was written when the log was durable beyond `end`, where its records end: in the
    /// blocks of the ring from that of `end` on, one round, and in the `twin`. If there is one, records were
    /// damaged. Its number says nothing: a write may have gone astray, and its mark is true wherever it lies.
    ///
    /// An append that a power cut interrupted leaves no such block, nor does anything older: what is durable
    /// never becomes less, so each mark ever written is at most any end found later.
    fn damage_after(&self, end: Position, twin: Option<&Head>) -> Result<Option<KvError>, KvError> {
        let Self { disk, layout, identity, first } = *self;
        let limit = first + layout.ring_blocks();
        let mut number = end.block();
        // The first block that lacks its header, and how many in a row do.
        let (mut broken, mut missing) = (None, 0u64);
        let mut bytes = Vec::new();
        while number < limit {
            let to_wrap = layout.ring_blocks() - number.0 % layout.ring_blocks();
            // Beyond a gap, a block at a time.
            let wanted = if missing < GAP_BLOCKS { GAP_BLOCKS - missing } else { 1 };
            let count = wanted.min(to_wrap).min(limit - number);
            bytes.resize(count as usize * BLOCK_BYTES, 0);
            disk.read(layout.log_block(number), &mut bytes)?;
            for block in bytes.chunks_exact(BLOCK_BYTES) {
                let head = Head::decode(identity, block);
                if head.is_some_and(|head| head.number == number) {
                    missing = 0;
                } else {
                    broken.get_or_insert(number);
                    missing += 1;
                }
                if head.is_some_and(|head| head.durable > end) {
                    return Ok(Some(self.cut_short(broken.unwrap_or(end.block()))));
                }
                number += 1;
            }
            if missing >= GAP_BLOCKS {
                // 16, 32, 64 … blocks on: one of them is in any log that goes on for as long as it was broken.
                number += missing;
                missing *= 2;
            }
        }
        Ok(twin
            .filter(|head| head.durable > end)
            .map(|head| self.cut_short(broken.filter(|&number| number < head.number).unwrap_or(end.block()))))
    }

    fn cut_short(&self, number: StreamBlock) -> KvError {
        let reason = "a record that begins or goes on in it was durable and cannot be read, nor can any later one; \
                      `nvmed fsck --salvage` copies out what came before";
        KvError::Corrupt { block: self.layout.log_block(number), structure: "log", reason }
    }

    /// Looks at both slots of the block that the stream ends in. The log begins at `head`; `by_twin` is the
    /// number of the block that the twin was the better version of.
    fn copies(
        &self,
        head: Position,
        walked: &Walked,
        twin: &Twin,
        by_twin: Option<StreamBlock>,
    ) -> Result<Copies, KvError> {
        let end = walked.position;
        let number = end.block();
        let mut home = vec![0; BLOCK_BYTES];
        self.disk.read(self.layout.log_block(number), &mut home)?;
        let home_head = Head::decode(self.identity, &home).filter(|head| head.number == number);
        let twin_head = twin.head.filter(|head| head.number == number);
        // What is before the head of the log is of no use any more.
        let from = (head.max(number.start()) - number.start()) as usize;
        let holds = |block: &[u8]| {
            let payload = &block[HEADER_BYTES..HEADER_BYTES + walked.tail.len()];
            payload[from.min(walked.tail.len())..] == walked.tail[from.min(walked.tail.len())..]
        };
        let at_home = home_head.is_some() && holds(&home);
        let at_twin = twin_head.is_some() && holds(&twin.bytes);
        let says = |head: Option<Head>| head.is_some_and(|head| head.settled && head.durable == end);
        let (home_says, twin_says) = (says(home_head), says(twin_head));
        // A block that has begun has a header at home, and the twin always has one: only a block of the device's can
        // be without; but where bytes are stored, a power cut tears the one that is being written.
        let begun = !walked.tail.is_empty();
        let torn = |block: &[u8]| Head::decode(self.identity, block).is_none() && Head::is_torn(block, end);
        let (home_torn, twin_torn) = (torn(&home), torn(&twin.bytes));
        let home_lost = begun && (home_head.is_none() || (twin_says && !at_home));
        let twin_lost = twin.head.is_none() || (begun && home_says && !at_twin);
        let strayed = by_twin.filter(|&by_twin| by_twin != number);
        let lost = [
            (self.layout.log_block(number), home_lost && !home_torn),
            (self.layout.twin_block(), twin_lost && !twin_torn),
            (self.layout.log_block(strayed.unwrap_or(number)), strayed.is_some()),
        ];
        let flaws = lost.into_iter().filter(|(_, lost)| *lost).map(|(block, _)| lost_copy(block)).collect();
        let newest =
            if by_twin == Some(number) || home_head.is_none() { TailSlot::Twin } else { TailSlot::Home };
        let settled = home_says && twin_says && at_home && at_twin;
        Ok(Copies { newest, settled, begun: home_head.is_some(), flaws })
    }
}

fn lost_copy(block: Block) -> Flaw {
    let reason = "one of the two copies of the log's last block is lost or old; the other one has everything";
    Flaw { block, structure: "log", reason }
}

/// Reads blocks of the ring in stream order.
struct Reader<'a> {
    log: &'a Log<'a>,
    /// The number and the bytes of a block that is not read from the ring.
    instead: Option<(StreamBlock, &'a [u8])>,
    first: StreamBlock,
    next: StreamBlock,
    ended: bool,
    /// What was read last; its memory is used again, since fresh pages cost as much as reading them.
    bytes: Vec<u8>,
}

impl Reader<'_> {
    /// Adds the payload of further blocks to `stream`; `false` when there are none.
    fn more(&mut self, stream: &mut Vec<u8>) -> Result<bool, KvError> {
        let Log { disk, layout, identity, first } = *self.log;
        let seen = self.next - self.first;
        let to_wrap = layout.ring_blocks() - self.next.0 % layout.ring_blocks();
        let wanted = seen.clamp(RECOVERY_BLOCKS_FIRST, RECOVERY_BLOCKS_MAX);
        let count = wanted.min(to_wrap).min(layout.ring_blocks() - (self.next - first));
        if self.ended || count == 0 {
            return Ok(false);
        }
        self.bytes.resize(count as usize * BLOCK_BYTES, 0);
        disk.read(layout.log_block(self.next), &mut self.bytes)?;
        let before = stream.len();
        for block in self.bytes.chunks_exact(BLOCK_BYTES) {
            let block =
                self.instead.filter(|(number, _)| *number == self.next).map_or(block, |(_, bytes)| bytes);
            if Head::decode(identity, block).is_none_or(|head| head.number != self.next) {
                self.ended = true;
                break;
            }
            stream.extend_from_slice(&block[HEADER_BYTES..]);
            self.next += 1;
        }
        Ok(stream.len() > before)
    }
}
