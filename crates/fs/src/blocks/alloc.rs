//! Which data blocks are free.
//!
//! The data region is cut into groups, each with a lock of its own, so that writers of different files do
//! not meet. The bitmap lies in the metadata store in chunks, loaded when the search first comes by. Each
//! chunk has two images: what the records say (`logged`), and what must not be handed out (`taken`): the
//! same, plus blocks of writes in flight, plus blocks whose freeing is not durable yet. So a block is
//! reused only after the record that freed it is on the device (decision 6).

use crate::error::FsError;
use crate::hash::Numbers;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nvmed_layout::Damage;
use nvmed_layout::bitmap::{self, CHUNK_BLOCKS, CHUNK_BYTES, WORDS, Words};
use nvmed_sys::sync::{Mutex, MutexGuard};
use nvmed_units::Block;
use std::collections::HashMap;

/// Chunks kept in memory, some 300 bytes each; beyond, unchanged ones are dropped and loaded again.
const CHUNKS_MAX: usize = 1 << 16;
/// Blocks of a run that is long: 256 KiB, from where on a piece more or less costs a device nothing.
const LONG_RUN: u32 = 64;
/// Chunks looked at for a run of the wanted length before the longest so far is taken.
const SEARCH_CHUNKS: u64 = 4;
/// Groups of a region: more than the threads that meet on a small machine.
const GROUPS_MAX: u64 = 16;
/// Blocks of the smallest group, 64 MiB: below, files would be cut at its end too often.
const GROUP_BLOCKS_MIN: u64 = 16 * CHUNK_BLOCKS;

/// Blocks side by side on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First block, device-wide.
    pub(crate) start: Block,
    /// How many.
    pub(crate) blocks: u32,
}

impl Run {
    /// One past the last block.
    pub(crate) fn end(&self) -> Block {
        self.start + u64::from(self.blocks)
    }

    /// The numbers of its blocks, as the metadata store and the superblock speak of them.
    pub(crate) fn numbers(&self) -> Range<u64> {
        self.start.0..self.end().0
    }
}

struct Chunk {
    logged: Words,
    taken: Words,
    /// The open batch changes its record: it stays in memory until the batch was applied.
    open: bool,
}

/// Loads a chunk's record; none when there is none.
pub(crate) type Load<'a> = &'a dyn Fn(u64) -> Result<Option<[u8; CHUNK_BYTES]>, FsError>;

/// Where blocks would best lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Near {
    /// Right there, if that block is free: behind what the file has.
    pub(crate) goal: Option<Block>,
    /// Else in this group: where the file's or its directory's blocks were found last.
    pub(crate) group: Option<u32>,
}

impl Near {
    /// At a block.
    pub(crate) fn goal(goal: Option<Block>) -> Self {
        Self { goal, group: None }
    }
}

/// What the open batch changes in the bitmap. One batch is open at a time.
#[derive(Default)]
pub(crate) struct Edits {
    /// Chunks whose record it changes.
    touched: Vec<u64>,
    /// What it logged, to be undone if it fails: run, and whether it was freed.
    undo: Vec<(Run, bool)>,
}

impl Edits {
    /// Whether nothing was changed since the last batch was closed.
    pub(crate) fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.undo.is_empty()
    }
}

/// The allocator of the data region.
pub(crate) struct Allocator {
    first: Block,
    blocks: u64,
    group_blocks: u64,
    groups: Box<[Group]>,
}

/// A part of the region.
struct Group {
    space: Mutex<Space>,
    /// Nothing was found in it since a block was given back.
    full: AtomicBool,
    /// A copy of [`Space::low`], for who does not hold the lock.
    low: AtomicU64,
}

/// What the lock of a group guards. Blocks are counted from the region's first.
struct Space {
    start: u64,
    end: u64,
    chunks: HashMap<u64, Box<Chunk>, Numbers>,
    chunks_max: usize,
    /// Few blocks below this one are free: short runs are looked for from here on, so that what was freed is
    /// used again before the medium grows (a sparse image stays small).
    low: u64,
    /// Where the last long run ended: the next one is looked for from here on, past the small gaps.
    cursor: u64,
}

impl Allocator {
    /// An allocator for `blocks` blocks from block `first`; few are free below block `cursor`.
    pub(crate) fn new(first: Block, blocks: u64, cursor: Block) -> Self {
        let wanted = (blocks / GROUP_BLOCKS_MIN).clamp(1, GROUPS_MAX);
        let group_blocks = blocks.div_ceil(wanted).next_multiple_of(CHUNK_BLOCKS);
        // The device's hint, which may be damaged.
        let cursor = cursor.0.saturating_sub(first.0).min(blocks);
        let groups = (0..blocks.div_ceil(group_blocks).max(1)).map(|group| {
            let (start, end) = (group * group_blocks, ((group + 1) * group_blocks).min(blocks));
            let low = cursor.clamp(start, end);
            let chunks_max = CHUNKS_MAX / GROUPS_MAX as usize;
            Group {
                space: Mutex::new(Space {
                    start,
                    end,
                    chunks: HashMap::default(),
                    chunks_max,
                    low,
                    cursor: low,
                }),
                full: AtomicBool::new(low == end),
                low: AtomicU64::new(low),
            }
        });
        Self { first, blocks, group_blocks, groups: groups.collect() }
    }

    /// Where the next search begins, a block of the device.
    pub(crate) fn cursor(&self) -> Block {
        let open = self.groups.iter().find(|group| !group.full.load(Ordering::Relaxed));
        self.first + open.map_or(self.blocks, |group| group.low.load(Ordering::Relaxed))
    }

    /// Whether a run lies inside the data region.
    pub(crate) fn contains(&self, run: Run) -> bool {
        run.start >= self.first
            && run.start < self.first + self.blocks
            && run.end() <= self.first + self.blocks
    }

    /// The group that a block of the device lies in.
    pub(crate) fn group_of(&self, block: Block) -> u32 {
        // A goal, which an extent of the device gives: any group will do for one that is none.
        (block.0.saturating_sub(self.first.0) / self.group_blocks).min(self.groups.len() as u64 - 1) as u32
    }

    /// How many groups there are.
    pub(crate) fn groups(&self) -> u32 {
        u32::try_from(self.groups.len()).expect("there are few groups")
    }

    fn group(&self, chunk: u64) -> &Group {
        let index = (chunk * CHUNK_BLOCKS / self.group_blocks) as usize;
        &self.groups[index.min(self.groups.len() - 1)]
    }

    /// Takes up to `want` blocks, at the goal if that block is free, else in the group that is near, else
    /// wherever the search finds room; none when every block is taken. They stay free in the records until
    /// [`Self::log_use`].
    ///
    /// # Errors
    /// What loading a chunk answers.
    pub(crate) fn take(&self, near: Near, want: u32, load: Load<'_>) -> Result<Option<Run>, FsError> {
        let goal =
            near.goal.and_then(|goal| goal.0.checked_sub(self.first.0)).filter(|&goal| goal < self.blocks);
        let mut home = near.group.map_or(0, |group| group as usize);
        if let Some(goal) = goal {
            home = (goal / self.group_blocks) as usize;
            let group = &self.groups[home];
            let mut space = group.lock();
            if space.is_free(goal, load)? {
                return space.take_at(group, goal, want, load).map(|run| Some(self.on_device(run)));
            }
        }
        // First where nobody else is at work and room is known, then anywhere.
        for waits in [false, true] {
            for step in 0..self.groups.len() {
                let group = &self.groups[(home + step) % self.groups.len()];
                if !waits && group.full.load(Ordering::Relaxed) {
                    continue;
                }
                let Some(mut space) = (if waits { Some(group.lock()) } else { group.try_lock() }) else {
                    continue;
                };
                match space.search(want, load)? {
                    Some(start) => {
                        let run = space.take_at(group, start, want, load)?;
                        return Ok(Some(self.on_device(run)));
                    }
                    None => group.full.store(true, Ordering::Relaxed),
                }
            }
        }
        Ok(None)
    }

    fn on_device(&self, (start, blocks): (u64, u32)) -> Run {
        Run { start: self.first + start, blocks }
    }

    /// Gives back blocks that were taken and never logged, or whose freeing is durable.
    pub(crate) fn give_back(&self, run: Run) {
        assert!(self.contains(run), "{} blocks from {} on were never taken", run.blocks, run.start.0);
        for (number, from, to) in parts(self.first, run) {
            let group = self.group(number);
            let mut space = group.lock();
            space.low = space.low.min(number * CHUNK_BLOCKS + from as u64);
            group.low.store(space.low, Ordering::Relaxed);
            space.with_loaded(number, |chunk| mark(&mut chunk.taken, from, to, false));
            group.full.store(false, Ordering::Relaxed);
        }
    }

    /// Records taken blocks as used, in the open batch.
    ///
    /// # Errors
    /// [`FsError::Layout`] outside the region; what loading a chunk answers.
    pub(crate) fn log_use(&self, edits: &mut Edits, run: Run, load: Load<'_>) -> Result<(), FsError> {
        self.log(edits, run, true, load)
    }

    /// Records used blocks as free, in the open batch; they stay taken until it is durable.
    ///
    /// # Errors
    /// As [`Self::log_use`].
    pub(crate) fn log_free(&self, edits: &mut Edits, run: Run, load: Load<'_>) -> Result<(), FsError> {
        self.log(edits, run, false, load)
    }

    fn log(&self, edits: &mut Edits, run: Run, used: bool, load: Load<'_>) -> Result<(), FsError> {
        if !self.contains(run) {
            return Err(Damage::Extent(run.start).into());
        }
        for (number, from, to) in parts(self.first, run) {
            let mut space = self.group(number).lock();
            let chunk = space.chunk(number, load)?;
            mark(&mut chunk.logged, from, to, used);
            if used {
                mark(&mut chunk.taken, from, to, true);
            }
            if !core::mem::replace(&mut chunk.open, true) {
                edits.touched.push(number);
            }
            let part =
                Run { start: self.first + number * CHUNK_BLOCKS + from as u64, blocks: (to - from) as u32 };
            edits.undo.push((part, !used));
        }
        Ok(())
    }

    /// Tells the records that the open batch changes: chunk, and its bytes, none when all are free.
    pub(crate) fn changed(&self, edits: &Edits, mut put: impl FnMut(u64, Option<[u8; CHUNK_BYTES]>)) {
        for number in &edits.touched {
            let mut space = self.group(*number).lock();
            let chunk = space.open_chunk(*number);
            let empty = chunk.logged == [0; WORDS];
            put(*number, (!empty).then(|| bitmap::bytes(&chunk.logged)));
        }
    }

    /// The open batch was applied; tells the runs that it freed.
    pub(crate) fn applied(&self, edits: &mut Edits, mut freed: impl FnMut(Run)) {
        self.close(edits);
        edits.undo.drain(..).filter(|(_, was_freed)| *was_freed).for_each(|(run, _)| freed(run));
    }

    /// The open batch was not applied: the records are as they were. Blocks it used stay taken.
    pub(crate) fn undone(&self, edits: &mut Edits) {
        for (run, freed) in edits.undo.drain(..).rev() {
            for (number, from, to) in parts(self.first, run) {
                let mut space = self.group(number).lock();
                mark(&mut space.open_chunk(number).logged, from, to, freed);
            }
        }
        self.close(edits);
    }

    fn close(&self, edits: &mut Edits) {
        for number in edits.touched.drain(..) {
            self.group(number).lock().open_chunk(number).open = false;
        }
    }

    /// Takes every free block of the chunks `chunks`, in runs of at least `blocks_min`, for somebody who gives
    /// them back: [`Self::give_back`].
    ///
    /// # Errors
    /// What loading a chunk answers.
    pub(crate) fn take_free(
        &self,
        chunks: core::ops::Range<u64>,
        blocks_min: u32,
        load: Load<'_>,
        runs: &mut Vec<Run>,
    ) -> Result<(), FsError> {
        for number in chunks {
            let mut space = self.group(number).lock();
            let chunk = space.chunk(number, load)?;
            let mut bit = 0;
            loop {
                let from = next_bit(&chunk.taken, bit, CHUNK_BLOCKS as usize, false);
                if from == CHUNK_BLOCKS as usize {
                    break;
                }
                bit = next_bit(&chunk.taken, from, CHUNK_BLOCKS as usize, true);
                if bit - from >= blocks_min as usize {
                    mark(&mut chunk.taken, from, bit, true);
                    let start = self.first + number * CHUNK_BLOCKS + from as u64;
                    runs.push(Run { start, blocks: (bit - from) as u32 });
                }
            }
        }
        Ok(())
    }

    /// How many blocks of a run the records do not say are used; all of them are taken from now on.
    ///
    /// # Errors
    /// [`FsError::Layout`] outside the region; what loading a chunk answers.
    pub(crate) fn unmarked(&self, run: Run, load: Load<'_>) -> Result<u64, FsError> {
        if !self.contains(run) {
            return Err(Damage::MetadataRun(run.start).into());
        }
        let mut blocks = 0;
        for (number, from, to) in parts(self.first, run) {
            let mut space = self.group(number).lock();
            let chunk = space.chunk(number, load)?;
            blocks += (from..to).filter(|bit| chunk.logged[bit / 64] >> (bit % 64) & 1 == 0).count() as u64;
            mark(&mut chunk.taken, from, to, true);
        }
        Ok(blocks)
    }

    /// How many chunks the region has.
    pub(crate) fn chunks(&self) -> u64 {
        self.blocks.div_ceil(CHUNK_BLOCKS)
    }
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Space> {
        // A panic under the lock left two images of a chunk, of which each is whole.
        self.space.lock()
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Space>> {
        self.space.try_lock()
    }
}

impl Space {
    fn chunk(&mut self, number: u64, load: Load<'_>) -> Result<&mut Chunk, FsError> {
        if !self.chunks.contains_key(&number) {
            if self.chunks.len() >= self.chunks_max {
                self.chunks.retain(|_, chunk| chunk.logged != chunk.taken || chunk.open);
            }
            let logged = load(number)?.map_or([0; WORDS], |bytes| bitmap::words(&bytes));
            let mut taken = logged;
            let first = number * CHUNK_BLOCKS;
            assert!(first < self.end, "chunk {number} lies past a group that ends with block {}", self.end);
            let inside = (self.end - first).min(CHUNK_BLOCKS);
            mark(&mut taken, inside as usize, CHUNK_BLOCKS as usize, true);
            self.chunks.insert(number, Box::new(Chunk { logged, taken, open: false }));
        }
        Ok(self.chunks.get_mut(&number).expect("the chunk was just put there"))
    }

    /// Runs `change` on a chunk that is in memory, since a block of it was taken: one with a difference
    /// between its images is never dropped.
    fn with_loaded(&mut self, number: u64, change: impl FnOnce(&mut Chunk)) {
        if let Some(chunk) = self.chunks.get_mut(&number) {
            change(chunk);
        }
    }

    /// A chunk whose record the open batch changes: it stays in memory until the batch is closed.
    fn open_chunk(&mut self, number: u64) -> &mut Chunk {
        let chunk = self.chunks.get_mut(&number).expect("what the open batch changes stays in memory");
        assert!(chunk.open, "the open batch does not change chunk {number}");
        chunk
    }

    fn is_free(&mut self, block: u64, load: Load<'_>) -> Result<bool, FsError> {
        let chunk = self.chunk(block / CHUNK_BLOCKS, load)?;
        let bit = (block % CHUNK_BLOCKS) as usize;
        Ok(chunk.taken[bit / 64] >> (bit % 64) & 1 == 0)
    }

    /// Takes blocks from a free one on.
    fn take_at(
        &mut self,
        group: &Group,
        start: u64,
        want: u32,
        load: Load<'_>,
    ) -> Result<(u64, u32), FsError> {
        let blocks = self.grab(start, want, load)?;
        let end = start + u64::from(blocks);
        let is_inside = self.start <= start && end <= self.end;
        assert!(0 < blocks && blocks <= want && is_inside, "{blocks} blocks of {want} from {start} on");
        if start == self.low {
            self.low = end;
        }
        if want >= LONG_RUN {
            self.cursor = end;
        }
        group.low.store(self.low, Ordering::Relaxed);
        Ok((start, blocks))
    }

    /// The start of a run of `want` free blocks, or of the longest among the first few chunks with any.
    fn search(&mut self, want: u32, load: Load<'_>) -> Result<Option<u64>, FsError> {
        let first = self.start / CHUNK_BLOCKS;
        let count = self.end.div_ceil(CHUNK_BLOCKS) - first;
        let begin = if want >= LONG_RUN { self.cursor } else { self.low };
        let from = if begin >= self.end { self.start } else { begin };
        let mut best: Option<(usize, u64)> = None;
        let mut fruitful = 0;
        // The first chunk comes twice: from the cursor on, and at last from its start.
        for step in 0..=count {
            let number = first + (from / CHUNK_BLOCKS - first + step) % count;
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
            if block >= self.end {
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
}

/// The chunks under a run: number, first bit, one past the last bit.
fn parts(first: Block, run: Run) -> impl Iterator<Item = (u64, usize, usize)> {
    let (start, end) = (run.start - first, run.end() - first);
    (start / CHUNK_BLOCKS..end.div_ceil(CHUNK_BLOCKS)).map(move |number| {
        let base = number * CHUNK_BLOCKS;
        let from = start.max(base) - base;
        let to = end.min(base + CHUNK_BLOCKS) - base;
        (number, from as usize, to as usize)
    })
}

/// Sets or clears bits `from..to`.
fn mark(words: &mut Words, from: usize, to: usize, set: bool) {
    assert!(from <= to && to <= CHUNK_BLOCKS as usize, "blocks {from} to {to} of a chunk");
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
    const NOWHERE: Near = Near { goal: None, group: None };

    fn run(start: u64, blocks: u32) -> Run {
        Run { start: Block(start), blocks }
    }

    #[test]
    #[should_panic(expected = "chunk 9 lies past a group")]
    fn a_chunk_past_its_group() {
        let alloc = Allocator::new(Block(0), 8, Block(0));
        let _ = alloc.groups[0].lock().chunk(9, &|_| Ok(None));
    }

    #[test]
    fn a_goal_is_honoured_and_runs_cross_chunks() {
        let alloc = Allocator::new(Block(100), 5000, Block(100));
        assert_eq!(alloc.take(NOWHERE, 1000, NOTHING).unwrap(), Some(run(100, 1000)));
        assert_eq!(alloc.take(Near::goal(Some(Block(1100))), 100, NOTHING).unwrap(), Some(run(1100, 100)));
        assert_eq!(alloc.take(Near::goal(Some(Block(4000))), 10, NOTHING).unwrap(), Some(run(4000, 10)));
        assert_eq!(
            alloc.take(Near::goal(Some(Block(3990))), 100, NOTHING).unwrap(),
            Some(run(3990, 10)),
            "up to the taken one"
        );
        let outside = alloc.take(Near::goal(Some(Block(9_999_999))), 1, NOTHING).unwrap().unwrap();
        assert!(alloc.contains(outside));
    }

    #[test]
    fn short_runs_fill_what_was_freed_and_long_ones_pass_over_it() {
        let alloc = Allocator::new(Block(0), 9000, Block(0));
        alloc.take(NOWHERE, 3000, NOTHING).unwrap();
        alloc.give_back(run(10, 2));
        alloc.give_back(run(500, 1));
        assert_eq!(alloc.take(NOWHERE, LONG_RUN, NOTHING).unwrap(), Some(run(3000, LONG_RUN)));
        assert_eq!(alloc.take(NOWHERE, 1, NOTHING).unwrap(), Some(run(10, 1)));
        assert_eq!(alloc.take(NOWHERE, 1, NOTHING).unwrap(), Some(run(11, 1)));
        assert_eq!(alloc.take(NOWHERE, 1, NOTHING).unwrap(), Some(run(500, 1)));
        assert_eq!(alloc.take(NOWHERE, 1, NOTHING).unwrap(), Some(run(3000 + u64::from(LONG_RUN), 1)));
    }

    #[test]
    fn every_block_is_handed_out_once_and_none_outside() {
        let alloc = Allocator::new(Block(10), 2500, Block(2000));
        let mut seen = BTreeSet::new();
        while let Some(run) = alloc.take(NOWHERE, 7, NOTHING).unwrap() {
            for block in run.numbers() {
                assert!((10..2510).contains(&block) && seen.insert(block), "block {block} twice or outside");
            }
        }
        assert_eq!(seen.len(), 2500);
    }

    #[test]
    fn a_failed_batch_leaves_the_records_as_they_were() {
        let alloc = Allocator::new(Block(0), 2000, Block(0));
        let first = alloc.take(NOWHERE, 1500, NOTHING).unwrap().unwrap();
        let mut edits = Edits::default();
        alloc.log_use(&mut edits, first, NOTHING).unwrap();
        alloc.applied(&mut edits, |_| panic!("nothing was freed"));
        let records = || [0, 1].map(|number| alloc.group(number).lock().chunks[&number].logged);
        let before = records();
        let second = alloc.take(NOWHERE, 100, NOTHING).unwrap().unwrap();
        alloc.log_free(&mut edits, run(1000, 100), NOTHING).unwrap();
        alloc.log_use(&mut edits, second, NOTHING).unwrap();
        assert_ne!(records(), before);
        alloc.undone(&mut edits);
        assert_eq!(records(), before);
        alloc.give_back(second);
        assert_eq!(alloc.take(Near::goal(Some(second.start)), 100, NOTHING).unwrap(), Some(second));
    }

    #[test]
    fn what_a_batch_freed_is_told_when_it_is_applied() {
        let alloc = Allocator::new(Block(0), 3000, Block(0));
        alloc.take(NOWHERE, 3000, NOTHING).unwrap().unwrap();
        let mut edits = Edits::default();
        alloc.log_use(&mut edits, run(0, 3000), NOTHING).unwrap();
        alloc.applied(&mut edits, |_| ());
        alloc.log_free(&mut edits, run(1000, 100), NOTHING).unwrap();
        let mut freed = Vec::new();
        alloc.applied(&mut edits, |run| freed.push(run));
        assert_eq!(freed, [run(1000, 24), run(1024, 76)]);
        assert_eq!(alloc.take(NOWHERE, 1, NOTHING).unwrap(), None, "not free before it is given back");
    }

    #[test]
    fn groups_fill_one_after_the_other_and_a_near_one_comes_first() {
        let blocks = 4 * GROUP_BLOCKS_MIN;
        let alloc = Allocator::new(Block(7), blocks, Block(7));
        assert_eq!(alloc.groups(), 4);
        let near = Near { goal: None, group: Some(2) };
        let got = alloc.take(near, 100, NOTHING).unwrap().unwrap();
        assert_eq!((got.start, alloc.group_of(got.start)), (Block(7 + 2 * GROUP_BLOCKS_MIN), 2));
        let got = alloc.take(NOWHERE, 100, NOTHING).unwrap().unwrap();
        assert_eq!(got.start, Block(7));
        let busy = alloc.groups[0].lock();
        let got = alloc.take(NOWHERE, 100, NOTHING).unwrap().unwrap();
        assert_eq!(alloc.group_of(got.start), 1, "past a group that somebody is at work in");
        drop(busy);
        let mut all = 300;
        while let Some(run) = alloc.take(near, 5000, NOTHING).unwrap() {
            all += u64::from(run.blocks);
            assert!(
                alloc.group_of(run.start) == alloc.group_of(Block(run.end().0 - 1)),
                "a run lies in one group"
            );
        }
        assert_eq!(all, blocks);
        alloc.give_back(run(7 + GROUP_BLOCKS_MIN - 1, 2));
        let first = alloc.take(NOWHERE, 5, NOTHING).unwrap();
        let second = alloc.take(NOWHERE, 5, NOTHING).unwrap();
        assert_eq!((first, second), (Some(run(6 + GROUP_BLOCKS_MIN, 1)), Some(run(7 + GROUP_BLOCKS_MIN, 1))));
    }

    #[test]
    fn many_threads_never_get_the_same_block() {
        let alloc = Allocator::new(Block(0), 2 * GROUP_BLOCKS_MIN, Block(0));
        let all = std::thread::scope(|scope| {
            let take = |thread: u32| {
                let mut mine = Vec::new();
                for round in 0..400 {
                    let near = Near { goal: None, group: Some(thread % 2) };
                    mine.extend(alloc.take(near, 1 + (thread + round) % 9, NOTHING).unwrap());
                    if round % 3 == 0 {
                        mine.pop().into_iter().for_each(|run| alloc.give_back(run));
                    }
                }
                mine
            };
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || take(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<Run>>()
        });
        let mut seen = BTreeSet::new();
        assert!(all.iter().flat_map(|run| run.numbers()).all(|block| seen.insert(block)));
    }

    #[test]
    fn free_space_is_told_in_runs() {
        let alloc = Allocator::new(Block(10), 3000, Block(10));
        alloc.take(NOWHERE, 1000, NOTHING).unwrap();
        alloc.give_back(run(15, 2));
        let mut runs = Vec::new();
        alloc.take_free(0..alloc.chunks(), 3, NOTHING, &mut runs).unwrap();
        assert_eq!(runs, [run(1010, 24), run(1034, 1024), run(2058, 952)]);
        assert_eq!(alloc.take(NOWHERE, 9, NOTHING).unwrap(), Some(run(15, 2)), "the short one was left");
        assert_eq!(alloc.take(NOWHERE, 9, NOTHING).unwrap(), None);
    }

    #[test]
    fn records_are_loaded_and_believed() {
        let load: Load<'_> = &|chunk| Ok((chunk == 0).then_some([0xff; CHUNK_BYTES]));
        let alloc = Allocator::new(Block(0), 2048, Block(0));
        assert_eq!(alloc.take(NOWHERE, 2, load).unwrap(), Some(run(1024, 2)));
        assert!(alloc.log_free(&mut Edits::default(), run(2047, 2), load).is_err(), "past the region");
    }

    #[test]
    #[should_panic(expected = "2 blocks from 2047 on were never taken")]
    fn what_is_given_back_lies_in_the_region() {
        Allocator::new(Block(0), 2048, Block(0)).give_back(run(2047, 2));
    }

    #[test]
    #[should_panic(expected = "the open batch does not change chunk 1")]
    fn only_the_open_batch_changes_records() {
        let alloc = Allocator::new(Block(0), 2048, Block(0));
        alloc.take(Near::goal(Some(Block(1024))), 1, NOTHING).unwrap();
        alloc.changed(&Edits { touched: vec![1], undo: Vec::new() }, |_, _| ());
    }

    #[test]
    #[should_panic(expected = "0 blocks of 0 from 0 on")]
    fn nobody_takes_no_block() {
        let _ = Allocator::new(Block(0), 2048, Block(0)).take(NOWHERE, 0, NOTHING);
    }

    #[test]
    #[should_panic(expected = "blocks 7 to 3 of a chunk")]
    fn blocks_of_a_chunk_are_in_order() {
        mark(&mut [0; WORDS], 7, 3, true);
    }
}
