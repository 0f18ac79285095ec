//! Which data blocks are free.
//!
//! The bitmap lies in the metadata store in chunks, loaded when the search first comes by. Each chunk
//! has two images: what the records say (`logged`), and what must not be handed out (`taken`): the
//! same, plus blocks of writes in flight, plus blocks whose freeing is not durable yet. So a block is
//! reused only after the record that freed it is on the device (design decision 9).

use crate::error::FsError;
use nvmed_kv::Sequence;
use std::collections::{HashMap, VecDeque};

/// Data blocks of one bitmap record: 128 bytes of value beside 16 of key.
pub(crate) const CHUNK_BLOCKS: u64 = 1024;
/// Bytes of a bitmap record.
pub(crate) const CHUNK_BYTES: usize = 128;
const WORDS: usize = 16;
/// Chunks kept in memory, some 300 bytes each; beyond, unchanged ones are dropped and loaded again.
const CHUNKS_MAX: usize = 1 << 16;
/// Blocks of a run that is long: 256 KiB, from where on a piece more or less costs a device nothing.
const LONG_RUN: u32 = 64;
/// Chunks looked at for a run of the wanted length before the longest so far is taken.
const SEARCH_CHUNKS: u64 = 4;

/// Blocks side by side on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First block, device-wide.
    pub(crate) start: u64,
    /// How many.
    pub(crate) blocks: u32,
}

impl Run {
    /// One past the last block.
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.blocks)
    }
}

type Words = [u64; WORDS];

struct Chunk {
    logged: Words,
    taken: Words,
}

/// Loads a chunk's record; none when there is none.
pub(crate) type Load<'a> = &'a dyn Fn(u64) -> Result<Option<[u8; CHUNK_BYTES]>, FsError>;

/// The allocator of the data region.
pub(crate) struct Allocator {
    first: u64,
    blocks: u64,
    chunks: HashMap<u64, Box<Chunk>>,
    /// Few blocks below this one are free, counted from the region's first: short runs are looked for from
    /// here on, so that what was freed is used again before the medium grows (a sparse image stays small).
    low: u64,
    /// Where the last long run ended: the next one is looked for from here on, past the small gaps.
    cursor: u64,
    /// Chunks whose record the open batch changes.
    touched: Vec<u64>,
    /// What the open batch logged, to be undone if it fails: run, and whether it was freed.
    undo: Vec<(Run, bool)>,
    /// Freed by batches that are not durable yet, oldest first.
    held: VecDeque<(Sequence, Run)>,
}

impl Allocator {
    /// An allocator for `blocks` blocks from block `first`; the search starts at block `cursor`.
    pub(crate) fn new(first: u64, blocks: u64, cursor: u64) -> Self {
        Self {
            first,
            blocks,
            chunks: HashMap::new(),
            low: cursor.saturating_sub(first).min(blocks),
            cursor: cursor.saturating_sub(first).min(blocks),
            touched: Vec::new(),
            undo: Vec::new(),
            held: VecDeque::new(),
        }
    }

    /// Where the next search begins, a block of the device.
    pub(crate) fn cursor(&self) -> u64 {
        self.first + self.low
    }

    /// Whether a run lies inside the data region.
    pub(crate) fn contains(&self, run: Run) -> bool {
        run.start >= self.first
            && run.start < self.first + self.blocks
            && run.end() <= self.first + self.blocks
    }

    fn chunk(&mut self, number: u64, load: Load<'_>) -> Result<&mut Chunk, FsError> {
        if !self.chunks.contains_key(&number) {
            if self.chunks.len() >= CHUNKS_MAX {
                let touched = &self.touched;
                self.chunks.retain(|number, chunk| chunk.logged != chunk.taken || touched.contains(number));
            }
            let logged = load(number)?.map_or([0; WORDS], |bytes| words(&bytes));
            let mut taken = logged;
            let inside = self.blocks.saturating_sub(number * CHUNK_BLOCKS).min(CHUNK_BLOCKS);
            mark(&mut taken, inside as usize, CHUNK_BLOCKS as usize, true);
            self.chunks.insert(number, Box::new(Chunk { logged, taken }));
        }
        Ok(self.chunks.get_mut(&number).expect("the chunk was just put there"))
    }

    /// Takes up to `want` blocks, at `goal` if that block is free, else wherever the search finds room;
    /// none when every block is taken. They stay free in the records until [`Self::log_use`].
    ///
    /// # Errors
    /// What loading a chunk answers.
    pub(crate) fn take(
        &mut self,
        goal: Option<u64>,
        want: u32,
        load: Load<'_>,
    ) -> Result<Option<Run>, FsError> {
        let goal = goal.and_then(|goal| goal.checked_sub(self.first)).filter(|&goal| goal < self.blocks);
        let start = match goal {
            Some(goal) if self.is_free(goal, load)? => goal,
            _ => match self.search(want, load)? {
                Some(start) => start,
                None => return Ok(None),
            },
        };
        let blocks = self.grab(start, want, load)?;
        let end = start + u64::from(blocks);
        if start == self.low {
            self.low = end;
        }
        if want >= LONG_RUN {
            self.cursor = end;
        }
        Ok(Some(Run { start: self.first + start, blocks }))
    }

    fn is_free(&mut self, block: u64, load: Load<'_>) -> Result<bool, FsError> {
        let chunk = self.chunk(block / CHUNK_BLOCKS, load)?;
        let bit = (block % CHUNK_BLOCKS) as usize;
        Ok(chunk.taken[bit / 64] >> (bit % 64) & 1 == 0)
    }

    /// The start of a run of `want` free blocks, or of the longest among the first few chunks with any.
    fn search(&mut self, want: u32, load: Load<'_>) -> Result<Option<u64>, FsError> {
        let count = self.blocks.div_ceil(CHUNK_BLOCKS);
        let begin = if want >= LONG_RUN { self.cursor } else { self.low };
        let from = if begin >= self.blocks { 0 } else { begin };
        let mut best: Option<(usize, u64)> = None;
        let mut fruitful = 0;
        // The first chunk comes twice: from the cursor on, and at last from its start.
        for step in 0..=count {
            let number = (from / CHUNK_BLOCKS + step) % count;
            let first_bit = if step == 0 { (from % CHUNK_BLOCKS) as usize } else { 0 };
            let chunk = self.chunk(number, load)?;
            let Some((bit, length)) = longest_free(&chunk.taken, first_bit, want as usize) else { continue };
            let gap = next_bit(&chunk.taken, first_bit, CHUNK_BLOCKS as usize, false);
            if best.is_none_or(|(longest, _)| length > longest) {
                best = Some((length, number * CHUNK_BLOCKS + bit as u64));
            }
            if fruitful == 0 && want < LONG_RUN {
                self.low = number * CHUNK_BLOCKS + gap as u64;
            }
            fruitful += 1;
            if length >= want as usize || fruitful == SEARCH_CHUNKS {
                break;
            }
        }
        Ok(best.map(|(_, start)| start))
    }

    /// Marks free blocks from `start` on as taken, up to `want` or the first taken one.
    fn grab(&mut self, start: u64, want: u32, load: Load<'_>) -> Result<u32, FsError> {
        let mut got = 0;
        while got < want {
            let block = start + u64::from(got);
            if block >= self.blocks {
                break;
            }
            let bit = (block % CHUNK_BLOCKS) as usize;
            let chunk = match self.chunk(block / CHUNK_BLOCKS, load) {
                Ok(chunk) => chunk,
                Err(error) if got == 0 => return Err(error),
                Err(_) => break,
            };
            let limit = (bit + (want - got) as usize).min(CHUNK_BLOCKS as usize);
            let end = next_bit(&chunk.taken, bit, limit, true);
            mark(&mut chunk.taken, bit, end, true);
            got += (end - bit) as u32;
            if end < limit || end == bit {
                break;
            }
        }
        Ok(got)
    }

    /// Gives back blocks that were taken and never logged.
    pub(crate) fn give_back(&mut self, run: Run) {
        self.low = self.low.min(run.start.saturating_sub(self.first));
        self.each_loaded(run, |chunk, from, to| mark(&mut chunk.taken, from, to, false));
    }

    /// Runs `change` on the parts of a run, whose chunks are in memory since it was taken: a chunk with
    /// a difference between its images is never dropped.
    fn each_loaded(&mut self, run: Run, mut change: impl FnMut(&mut Chunk, usize, usize)) {
        for (number, from, to) in parts(self.first, run) {
            if let Some(chunk) = self.chunks.get_mut(&number) {
                change(chunk, from, to);
            }
        }
    }

    /// Records taken blocks as used, in the open batch.
    ///
    /// # Errors
    /// [`FsError::Damaged`] outside the region; what loading a chunk answers.
    pub(crate) fn log_use(&mut self, run: Run, load: Load<'_>) -> Result<(), FsError> {
        self.log(run, true, load)
    }

    /// Records used blocks as free, in the open batch; they stay taken until it is durable.
    ///
    /// # Errors
    /// As [`Self::log_use`].
    pub(crate) fn log_free(&mut self, run: Run, load: Load<'_>) -> Result<(), FsError> {
        self.log(run, false, load)
    }

    fn log(&mut self, run: Run, used: bool, load: Load<'_>) -> Result<(), FsError> {
        if !self.contains(run) {
            return Err(FsError::Damaged {
                what: "an extent outside the data region, at block",
                of: run.start,
            });
        }
        for (number, from, to) in parts(self.first, run) {
            let chunk = self.chunk(number, load)?;
            mark(&mut chunk.logged, from, to, used);
            if used {
                mark(&mut chunk.taken, from, to, true);
            }
            if !self.touched.contains(&number) {
                self.touched.push(number);
            }
            let part =
                Run { start: self.first + number * CHUNK_BLOCKS + from as u64, blocks: (to - from) as u32 };
            self.undo.push((part, !used));
        }
        Ok(())
    }

    /// Tells the records that the open batch changes: chunk, and its bytes, none when all are free.
    pub(crate) fn changed(&self, mut put: impl FnMut(u64, Option<[u8; CHUNK_BYTES]>)) {
        for number in &self.touched {
            let chunk = &self.chunks[number];
            let empty = chunk.logged == [0; WORDS];
            put(*number, (!empty).then(|| bytes(&chunk.logged)));
        }
    }

    /// The open batch was applied as `sequence`.
    pub(crate) fn applied(&mut self, sequence: Sequence) {
        self.touched.clear();
        for (run, freed) in self.undo.drain(..) {
            if freed {
                self.held.push_back((sequence, run));
            }
        }
    }

    /// The open batch was not applied: the records are as they were. Blocks it used stay taken.
    pub(crate) fn undone(&mut self) {
        self.touched.clear();
        let mut undo = core::mem::take(&mut self.undo);
        for (run, freed) in undo.drain(..).rev() {
            self.each_loaded(run, |chunk, from, to| mark(&mut chunk.logged, from, to, freed));
        }
        self.undo = undo;
    }

    /// Lets blocks be reused whose freeing is durable now.
    pub(crate) fn settle(&mut self, durable: Sequence) {
        while let Some(&(sequence, run)) = self.held.front() {
            if sequence > durable {
                break;
            }
            self.held.pop_front();
            self.give_back(run);
        }
    }

    /// Whether freed blocks wait for their batch to become durable.
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }
}

/// The chunks under a run: number, first bit, one past the last bit.
fn parts(first: u64, run: Run) -> impl Iterator<Item = (u64, usize, usize)> {
    let (start, end) = (run.start - first, run.end() - first);
    (start / CHUNK_BLOCKS..end.div_ceil(CHUNK_BLOCKS)).map(move |number| {
        let base = number * CHUNK_BLOCKS;
        let from = start.max(base) - base;
        let to = end.min(base + CHUNK_BLOCKS) - base;
        (number, from as usize, to as usize)
    })
}

fn words(bytes: &[u8; CHUNK_BYTES]) -> Words {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("the chunk has eight bytes"));
    }
    words
}

fn bytes(words: &Words) -> [u8; CHUNK_BYTES] {
    let mut bytes = [0; CHUNK_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Sets or clears bits `from..to`.
fn mark(words: &mut Words, from: usize, to: usize, set: bool) {
    let mut bit = from;
    while bit < to {
        let (word, low) = (bit / 64, bit % 64);
        let count = (64 - low).min(to - bit);
        let mask = (u64::MAX >> (64 - count)) << low;
        if set {
            words[word] |= mask
        } else {
            words[word] &= !mask
        }
        bit += count;
    }
}

/// The first bit in `from..limit` that is set, or clear; `limit` when none is.
fn next_bit(words: &Words, from: usize, limit: usize, set: bool) -> usize {
    let mut bit = from;
    while bit < limit {
        let word = if set { words[bit / 64] } else { !words[bit / 64] };
        let rest = word >> (bit % 64);
        if rest != 0 {
            return (bit + rest.trailing_zeros() as usize).min(limit);
        }
        bit = (bit / 64 + 1) * 64;
    }
    limit
}

/// The first run of `want` clear bits at or after `from`, else the longest; position and length.
fn longest_free(taken: &Words, from: usize, want: usize) -> Option<(usize, usize)> {
    let limit = CHUNK_BLOCKS as usize;
    let mut best: Option<(usize, usize)> = None;
    let mut bit = next_bit(taken, from, limit, false);
    while bit < limit {
        let end = next_bit(taken, bit, limit, true);
        if best.is_none_or(|(_, length)| end - bit > length) {
            best = Some((bit, end - bit));
        }
        if end - bit >= want {
            break;
        }
        bit = next_bit(taken, end, limit, false);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const NOTHING: Load<'static> = &|_| Ok(None);

    fn run(start: u64, blocks: u32) -> Run {
        Run { start, blocks }
    }

    #[test]
    fn a_goal_is_honoured_and_runs_cross_chunks() {
        let mut alloc = Allocator::new(100, 5000, 100);
        assert_eq!(alloc.take(None, 1000, NOTHING).unwrap(), Some(run(100, 1000)));
        assert_eq!(alloc.take(Some(1100), 100, NOTHING).unwrap(), Some(run(1100, 100)));
        assert_eq!(alloc.take(Some(4000), 10, NOTHING).unwrap(), Some(run(4000, 10)));
        assert_eq!(alloc.take(Some(3990), 100, NOTHING).unwrap(), Some(run(3990, 10)), "up to the taken one");
        let outside = alloc.take(Some(9_999_999), 1, NOTHING).unwrap().unwrap();
        assert!(alloc.contains(outside));
    }

    #[test]
    fn short_runs_fill_what_was_freed_and_long_ones_pass_over_it() {
        let mut alloc = Allocator::new(0, 9000, 0);
        alloc.take(None, 3000, NOTHING).unwrap();
        alloc.give_back(run(10, 2));
        alloc.give_back(run(500, 1));
        assert_eq!(alloc.take(None, LONG_RUN, NOTHING).unwrap(), Some(run(3000, LONG_RUN)));
        assert_eq!(alloc.take(None, 1, NOTHING).unwrap(), Some(run(10, 1)));
        assert_eq!(alloc.take(None, 1, NOTHING).unwrap(), Some(run(11, 1)));
        assert_eq!(alloc.take(None, 1, NOTHING).unwrap(), Some(run(500, 1)));
        assert_eq!(alloc.take(None, 1, NOTHING).unwrap(), Some(run(3000 + u64::from(LONG_RUN), 1)));
    }

    #[test]
    fn every_block_is_handed_out_once_and_none_outside() {
        let mut alloc = Allocator::new(10, 2500, 2000);
        let mut seen = BTreeSet::new();
        while let Some(run) = alloc.take(None, 7, NOTHING).unwrap() {
            for block in run.start..run.end() {
                assert!((10..2510).contains(&block) && seen.insert(block), "block {block} twice or outside");
            }
        }
        assert_eq!(seen.len(), 2500);
    }

    #[test]
    fn a_freed_block_waits_for_its_record_to_be_durable() {
        let mut alloc = Allocator::new(0, 8, 0);
        let all = alloc.take(None, 8, NOTHING).unwrap().unwrap();
        alloc.log_use(all, NOTHING).unwrap();
        alloc.applied(Sequence(1));
        alloc.log_free(run(2, 3), NOTHING).unwrap();
        alloc.applied(Sequence(5));
        alloc.settle(Sequence(4));
        assert_eq!(alloc.take(None, 1, NOTHING).unwrap(), None);
        alloc.settle(Sequence(5));
        assert_eq!(alloc.take(None, 8, NOTHING).unwrap(), Some(run(2, 3)));
    }

    #[test]
    fn a_failed_batch_leaves_the_records_as_they_were() {
        let mut alloc = Allocator::new(0, 2000, 0);
        let first = alloc.take(None, 1500, NOTHING).unwrap().unwrap();
        alloc.log_use(first, NOTHING).unwrap();
        alloc.applied(Sequence(1));
        let records = |alloc: &mut Allocator| {
            alloc.touched = vec![0, 1];
            let mut all = Vec::new();
            alloc.changed(|number, bytes| all.push((number, bytes)));
            alloc.touched.clear();
            all
        };
        let before = records(&mut alloc);
        let second = alloc.take(None, 100, NOTHING).unwrap().unwrap();
        alloc.log_free(run(1000, 100), NOTHING).unwrap();
        alloc.log_use(second, NOTHING).unwrap();
        alloc.undone();
        assert_eq!(records(&mut alloc), before);
        alloc.give_back(second);
        assert_eq!(alloc.take(Some(second.start), 100, NOTHING).unwrap(), Some(second));
        assert!(!alloc.holds());
    }

    #[test]
    fn records_are_loaded_and_believed() {
        let load: Load<'_> = &|chunk| Ok((chunk == 0).then_some([0xff; CHUNK_BYTES]));
        let mut alloc = Allocator::new(0, 2048, 0);
        assert_eq!(alloc.take(None, 2, load).unwrap(), Some(run(1024, 2)));
        assert!(alloc.log_free(run(2047, 2), load).is_err(), "past the region");
    }
}
