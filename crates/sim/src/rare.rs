//! Workloads in which something rare happens: a checkpoint of several steps, growth of the metadata region, a log
//! that goes round, a full device. What must be there before is made here; the states of each are counted.

use crate::content::Content;
use crate::operation::{BALLAST, Op};
use crate::recording::{MEMORY, Session, full};
use nvmed_fs::Allocate;
use nvmed_kv::Stats;
use serde::{Deserialize, Serialize};

/// The first seeds have one of them each, and so have these of every so many.
const EVERY: u64 = 8;
/// Growth takes a large tree, which makes slow states: fewer seeds have it, of blocks and of memory.
const GROWTH_EVERY: u64 = 48;
const GROWTH_ON_MEMORY_EVERY: u64 = 24;
/// Attributes of the ballast, in files of so many: short ones, each with a record of its own, in more leaves than
/// one step of a checkpoint takes.
const FILES: u64 = 20;
const ATTRIBUTES: u64 = 20;
const VALUE_BYTES: u64 = 900;
/// Long ones, which fill the tree or the log soon.
const LONG_BYTES: usize = 30_000;
const LONG_MAX: u64 = 150;
/// Tree blocks that are left before it grows.
const GROWTH_LEFT: u64 = 24;
/// Blocks of the ring that are left before it goes round, at most.
const RING_LEFT: u64 = 5;
/// Blocks of data that are left on a full device.
const DATA_LEFT: u64 = 5;
/// Bytes of log that are left before a checkpoint of several steps begins, about.
const STEPS_LEFT: u64 = 9000;
/// Bytes of a file before it grows within its last block: no record holds so many.
const TAIL_BEGINS: u64 = 5000;
/// Operations that bring something close at most.
const APPROACH_MAX: u64 = 1000;
/// The log is an eighth of the region that was formatted.
const LOG_SHARE: u64 = 8;

/// What is rare, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rare {
    /// Nothing: a workload of chance alone.
    Nothing,
    /// A checkpoint of several steps.
    Steps,
    /// The device is nearly full.
    Full,
    /// The log is about to go round.
    Wrap,
    /// The metadata region is about to grow.
    Growth,
    /// No file has data, so that nothing but checkpoints sends a flush: what they leave in the device's cache
    /// stays there while the log goes round.
    Dry,
    /// On memory: a file grows within its last block and is written back, again and again, and nobody syncs it.
    Tails,
}

impl Rare {
    /// What a seed has.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        match seed % EVERY {
            0 => Self::Steps,
            1 => Self::Full,
            2 => Self::Wrap,
            4 => Self::Dry,
            // Blocks have write-backs enough by chance.
            5 if seed >= MEMORY => Self::Tails,
            3 if seed % growth_every(seed) == 3 => Self::Growth,
            _ => Self::Nothing,
        }
    }
}

/// Of how many seeds one has growth.
fn growth_every(seed: u64) -> u64 {
    // A word of a superblock is less of all that is stored than a block is of all that is written.
    if seed >= MEMORY { GROWTH_ON_MEMORY_EVERY } else { GROWTH_EVERY }
}

/// What was going on during a step of a workload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    /// A checkpoint had done a step, or did, that was not its last.
    pub steps: bool,
    /// Something had found no room.
    pub full: bool,
    /// The log had gone round since the last checkpoint.
    pub wrapped: bool,
    /// The metadata region grew.
    pub growth: bool,
}

/// Crash states of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RareStates {
    /// Between two steps of a checkpoint, or within one that is not the only one.
    pub steps: u64,
    /// After something had found no room.
    pub full: u64,
    /// With a log that had gone round since the last checkpoint.
    pub wrapped: u64,
    /// While the metadata region grew.
    pub growth: u64,
}

impl RareStates {
    /// Counts `states` more with these marks.
    pub fn count(&mut self, marks: Marks, states: u64) {
        self.steps += u64::from(marks.steps) * states;
        self.full += u64::from(marks.full) * states;
        self.wrapped += u64::from(marks.wrapped) * states;
        self.growth += u64::from(marks.growth) * states;
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.full += other.full;
        self.wrapped += other.wrapped;
        self.growth += other.growth;
    }
}

/// Watches a session from step to step.
pub struct Watch {
    before: Stats,
    /// Steps when the last checkpoint ended.
    ended: u64,
    meta_blocks: u64,
    log_block: u64,
    marks: Marks,
}

impl Watch {
    /// Begins with a mount.
    #[must_use]
    pub fn new(session: &Session) -> Self {
        let before = session.runner.files.store_stats();
        let meta_blocks = session.runner.files.superblock().meta_blocks;
        let (ended, log_block) = (before.steps, session.disk.log_block());
        Self { before, ended, meta_blocks, log_block, marks: Marks::default() }
    }

    /// After a step that found room or did not: what was going on.
    pub fn after(&mut self, session: &Session, refused: bool) -> Marks {
        let now = session.runner.files.store_stats();
        let midway = self.before.steps > self.ended;
        if now.checkpoints > self.before.checkpoints {
            self.ended = now.steps;
            self.marks.wrapped = false;
        }
        let meta_blocks = session.runner.files.superblock().meta_blocks;
        let log_block = session.disk.log_block();
        self.marks.steps = midway || now.steps > self.ended;
        self.marks.full |= refused;
        self.marks.wrapped |= log_block < self.log_block;
        self.marks.growth = meta_blocks > self.meta_blocks;
        (self.before, self.meta_blocks, self.log_block) = (now, meta_blocks, log_block);
        self.marks
    }
}

impl Session {
    /// Makes what must be there before anything else.
    ///
    /// # Errors
    /// The file system did something wrong.
    pub fn prepare(&mut self, rare: Rare) -> Result<(), String> {
        match rare {
            Rare::Nothing => return Ok(()),
            Rare::Steps | Rare::Growth | Rare::Wrap | Rare::Full | Rare::Dry | Rare::Tails => {
                self.perform(Op::Mkdir { path: BALLAST.to_owned() }, &full)?;
            }
        }
        for number in 0..if rare == Rare::Steps { FILES } else { 1 } {
            self.perform(Op::Create { path: format!("{BALLAST}/{number}") }, &full)?;
        }
        match rare {
            Rare::Steps => {
                for attribute in 0..FILES * ATTRIBUTES {
                    self.set_short(attribute)?;
                }
                self.perform(Op::Sync, &full).map(drop)
            }
            Rare::Growth => self.fill_tree(),
            Rare::Full => self.fill_device(),
            Rare::Tails => {
                let op = self.append(TAIL_BEGINS);
                self.perform(op, &full)?;
                self.perform(Op::Sync, &full).map(drop)
            }
            Rare::Wrap | Rare::Dry | Rare::Nothing => Ok(()),
        }
    }

    /// Brings a mounted file system close to it.
    ///
    /// # Errors
    /// The file system did something wrong.
    pub(crate) fn approach(&mut self, rare: Rare) -> Result<(), String> {
        match rare {
            Rare::Steps => self.approach_steps(),
            Rare::Wrap => self.approach_wrap(),
            Rare::Nothing | Rare::Growth | Rare::Full | Rare::Dry | Rare::Tails => Ok(()),
        }
    }

    /// Goes on until the log is about as long as it was when the last checkpoint of several steps began.
    fn approach_steps(&mut self) -> Result<(), String> {
        let (mut watch, mut begun_at) = (Watch::new(self), None);
        for _ in 0..APPROACH_MAX {
            let log_bytes = self.runner.files.store_stats().log_bytes;
            let number = self.roll(FILES * ATTRIBUTES);
            self.set_short(number)?;
            let before = watch.marks.steps;
            let now = watch.after(self, false).steps;
            if now && !before {
                begun_at = Some(log_bytes);
            }
            if !now && begun_at.is_some_and(|begun_at| log_bytes + STEPS_LEFT > begun_at) {
                break;
            }
        }
        Ok(())
    }

    fn approach_wrap(&mut self) -> Result<(), String> {
        let first = self.runner.files.superblock().meta_runs[0].clone();
        let end = first.start + 1 + (first.end - first.start) / LOG_SHARE;
        for number in 0..APPROACH_MAX {
            if self.disk.log_block() + 1 + self.roll(RING_LEFT) >= end {
                break;
            }
            let long = self.disk.log_block() + 12 < end;
            self.set(0, number % 4, if long { LONG_BYTES } else { 2000 })?;
            self.perform(Op::Sync, &full)?;
        }
        Ok(())
    }

    /// The operation that pushes a recording on, if one is wanted.
    pub fn push(&mut self, rare: Rare) -> Option<Op> {
        let attribute = self.roll(FILES * ATTRIBUTES);
        let value = |len: usize| vec![b'p'; len];
        match rare {
            Rare::Steps => Some(self.short(attribute)),
            Rare::Growth => Some(self.attribute(0, attribute, value(LONG_BYTES))),
            Rare::Wrap => Some(self.attribute(0, attribute % 4, value(3000))),
            Rare::Full => self.fill(1 + attribute),
            Rare::Dry if attribute.is_multiple_of(2) => Some(Op::SyncDirectory { path: String::new() }),
            Rare::Dry => Some(self.attribute(0, attribute % 4, value(LONG_BYTES - attribute as usize * 8))),
            Rare::Tails if attribute.is_multiple_of(2) => Some(Op::Age),
            Rare::Tails => Some(self.append(1 + attribute % 300)),
            Rare::Nothing => None,
        }
        .filter(|op| {
            op.path().is_none_or(|path| path.is_empty() || self.model.shape().names.contains_key(path))
        })
    }

    /// `len` bytes more for the first file of the ballast.
    fn append(&mut self, len: u64) -> Op {
        let path = format!("{BALLAST}/0");
        let ino = self.model.shape().at(&path).map_or(0, |(ino, _)| ino);
        let at = self.model.file(ino).map_or(0, Content::size);
        Op::Write { path, at, len, serial: self.serial(), append: true, sync: None }
    }

    fn attribute(&self, file: u64, number: u64, value: Vec<u8>) -> Op {
        Op::SetXattr { path: format!("{BALLAST}/{file}"), name: format!("user.{number}"), value }
    }

    fn short(&mut self, number: u64) -> Op {
        let mut value = vec![0; (VALUE_BYTES - self.roll(200)) as usize];
        crate::model::fill(&mut value, number);
        self.attribute(number % FILES, number / FILES, value)
    }

    fn set_short(&mut self, number: u64) -> Result<(), String> {
        let op = self.short(number);
        if op.path().is_some_and(|path| self.model.shape().names.contains_key(path)) {
            self.perform(op, &full)?;
        }
        if self.roll(16) == 0 {
            self.perform(Op::SyncDirectory { path: String::new() }, &full)?;
        }
        Ok(())
    }

    fn set(&mut self, file: u64, number: u64, bytes: usize) -> Result<(), String> {
        let op = self.attribute(file, number, vec![b'b'; bytes]);
        self.perform(op, &full).map(drop)
    }

    /// Fills the tree until the metadata region is about to grow. It does when as much is used as is free.
    fn fill_tree(&mut self) -> Result<(), String> {
        for number in 0..LONG_MAX {
            let stats = self.runner.files.store_stats();
            let coming = stats.log_bytes / nvmed_units::BLOCK_BYTES as u64;
            if 2 * stats.tree_blocks_used + 3 * coming + GROWTH_LEFT > stats.tree_blocks {
                break;
            }
            if number % 4 == 0 && number > 0 {
                self.perform(Op::Create { path: format!("{BALLAST}/{}", number / 4) }, &full)?;
            }
            self.set(number / 4, number % 4, LONG_BYTES)?;
            self.perform(Op::Sync, &full)?;
        }
        Ok(())
    }

    /// Takes nearly all blocks for a file that never has bytes in them.
    fn fill_device(&mut self) -> Result<(), String> {
        if let Some(op) = self.fill(0) {
            self.perform(op, &full)?;
        }
        self.perform(Op::Sync, &full).map(drop)
    }

    /// Takes what is free, but for a few blocks, for the `number`-th time; or, of those few, more than there are.
    fn fill(&mut self, number: u64) -> Option<Op> {
        let how = Allocate { keep_size: true, ..Allocate::default() };
        let free = self.runner.files.statfs().blocks_free;
        let blocks = if free > DATA_LEFT { free - self.roll(DATA_LEFT) } else { free + 1 };
        let len = blocks * nvmed_units::BLOCK_BYTES as u64;
        Some(Op::Allocate { path: format!("{BALLAST}/0"), how, at: number << 24, len })
    }
}
