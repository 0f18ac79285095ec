//! The store.

use crate::checkpoint::{Checkpointer, Room};
use crate::commit::{Barrier, Commits};
use crate::delta::Delta;
use crate::disk::{self, Disk, Written};
use crate::layout::{Layout, Seed};
use crate::log::{self, Appender};
use crate::nodes::Nodes;
use crate::pace::Pace;
use crate::pending::Pending;
use crate::pins::{Pins, Version};
use crate::record::{self, Expected, Next};
use crate::recovery;
use crate::reference::Root;
use crate::state::State;
use crate::stream::{PAYLOAD_BYTES, Position, Sequence};
use crate::superblock::Superblock;
use crate::tree::Tree;
use crate::{Batch, Flaw, KvError, Medium};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use nvmed_mutant::Mutant;
use nvmed_sys::sync::{Arc, Mutex, RwLock};
use nvmed_sys::{Mapping, Pages};

/// Settings of a store. `Default` is right for a file system.
#[derive(Clone, Debug)]
pub struct Options {
    /// Blocks of the log, at `format` only, 64 to 6144. `None`: an eighth of the region. It bounds what
    /// `open` reads after a crash, and the memory for changes that are not in the tree yet.
    pub log_blocks: Option<u32>,
    /// A number that differs between formats of one device (half a UUID): old blocks never pass for new.
    /// At `format` only.
    pub identity: u64,
    /// Bytes of tree nodes kept in memory, at `open` only.
    pub node_cache_bytes: usize,
    /// Blocks that one commit reads and writes at most to bring the tree up to date, at `open` only; at
    /// least 128. More makes fewer, longer pauses.
    pub commit_blocks_max: u64,
    /// Checkpoints that a snapshot may outlive, at `open` only. It is cut off after. Until then it may keep
    /// the changes of two checkpoints in memory: twice the log at most.
    pub snapshot_checkpoints_max: u64,
    /// Freed blocks that snapshots may keep from being used again, at `open` only. `None`: a quarter of the
    /// region. The oldest snapshot is cut off when there are more.
    pub snapshot_blocks_max: Option<u64>,
    /// Opens a store whose log is damaged as it was before the first damaged record, at `open` only: to
    /// read what is left. Nothing more can be made durable in it.
    pub salvage: bool,
}

/// Least for [`Options::commit_blocks_max`]: a path of the tree, what it splits into, and a long value.
const COMMIT_BLOCKS_MIN: u64 = 128;

impl Default for Options {
    fn default() -> Self {
        Self {
            log_blocks: None,
            identity: 0,
            node_cache_bytes: 16 << 20,
            commit_blocks_max: 512,
            snapshot_checkpoints_max: 64,
            snapshot_blocks_max: None,
            salvage: false,
        }
    }
}

/// Memory for the batches that are applied but not yet in the log on the medium.
///
/// If it outlives the process (shared memory), so do those batches: see [`Store::open`] and
/// [`Store::replay_pending`]. Zeroed memory is empty.
#[derive(Clone, Debug)]
pub struct PendingMemory {
    /// Where it lies.
    pub memory: Arc<Mapping>,
    /// Byte offset in `memory`, divisible by 8.
    pub offset: usize,
    /// Bytes; at least 128 KiB, 4 MiB is a good size.
    pub len: usize,
}

/// Counters since `open`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks read from the medium.
    pub blocks_read: u64,
    /// Blocks written to the medium.
    pub blocks_written: u64,
    /// The same, by what they hold.
    pub written: Written,
    /// Flushes sent.
    pub flushes: u64,
    /// Nodes of the tree that were looked for in memory and found.
    pub node_cache_hits: u64,
    /// Nodes that were not.
    pub node_cache_misses: u64,
    /// Blocks read by `open` itself.
    pub mount_blocks_read: u64,
    /// Batches that `open` found in the log.
    pub batches_recovered: u64,
    /// Batches applied.
    pub batches: u64,
    /// Log appends; several commits share one.
    pub log_appends: u64,
    /// Bytes of the log not yet in a checkpoint.
    pub log_bytes: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Blocks of the region that a tree may use, in all.
    pub tree_blocks: u64,
    /// Of those, blocks in use.
    pub tree_blocks_used: u64,
    /// Of the others, blocks that a snapshot or a reader keeps from being used.
    pub tree_blocks_pinned: u64,
    /// Snapshots that can be read.
    pub snapshots: u64,
    /// Steps of checkpoints, each ended by a superblock.
    pub steps: u64,
    /// Of those, steps that an `apply` had to wait for because commits did not keep up.
    pub steps_forced: u64,
    /// Blocks that any one commit has read and written for a checkpoint at most.
    pub commit_blocks_worst: u64,
}

impl PendingMemory {
    /// Memory of this process alone, 4 MiB: batches that were not committed go with the process.
    ///
    /// # Errors
    /// The host has no memory.
    pub fn private() -> Result<Self, KvError> {
        let len = 4 << 20;
        let memory = Mapping::anonymous(len, Pages::Base)
            .map_err(|_| KvError::PendingTooSmall { needed: len, found: 0 })?;
        Ok(Self { memory: Arc::new(memory), offset: 0, len })
    }
}

/// An ordered map on a medium. Share it between threads.
///
/// ```
/// use core::ops::{Bound, ControlFlow};
/// use nvmed_kv::{Barrier, Batch, MemoryMedium, Options, PendingMemory, Store};
/// use std::sync::Arc;
///
/// let medium = Arc::new(MemoryMedium::new(1024)); // 4 MiB; a FileMedium or DeviceMedium goes as well
/// Store::format(&*medium, &Options::default())?;
/// let store = Store::open(medium, PendingMemory::private()?, &Options::default())?;
///
/// let mut batch = Batch::new(); // all of it happens, or nothing
/// batch.put(b"fruit/apple", b"green");
/// batch.put(b"fruit/cherry", b"red");
/// batch.put(b"tree/oak", b"tall");
/// let sequence = store.apply(&batch)?; // visible
/// store.commit(sequence, Barrier::None)?; // durable
///
/// let before = store.snapshot();
/// batch.clear();
/// batch.delete_range(b"fruit/", b"fruit0");
/// store.apply(&batch)?;
///
/// let mut value = Vec::new();
/// assert!(!store.get(b"fruit/apple", &mut value)?);
/// assert!(before.get(b"fruit/apple", &mut value)? && value == b"green");
///
/// let mut iter = before.iter(Bound::Unbounded, Bound::Unbounded);
/// assert_eq!(iter.seek(b"fruit/b")?, Some((&b"fruit/cherry"[..], &b"red"[..])));
/// assert_eq!(iter.prev()?, Some((&b"fruit/apple"[..], &b"green"[..])));
///
/// let mut keys = Vec::new();
/// store.scan(Bound::Unbounded, Bound::Unbounded, &mut |key, _| {
///     keys.push(key.to_vec());
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(keys, [b"tree/oak"]);
/// # Ok::<(), nvmed_kv::KvError>(())
/// ```
pub struct Store {
    pub(crate) disk: Disk,
    pub(crate) identity: u64,
    /// Of its records.
    seed: Seed,
    pub(crate) ring_blocks: u64,
    /// What `open` found lost.
    flaws: Vec<Flaw>,
    pub(crate) limits: Limits,
    /// Of the records that this open appends.
    epoch: u64,
    /// The first of them.
    epoch_first: Sequence,
    pub(crate) state: RwLock<State>,
    pub(crate) pending: Pending<Arc<Mapping>>,
    pub(crate) commits: Commits,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) nodes: Nodes,
    pub(crate) pins: Pins,
    pub(crate) checkpointer: Mutex<Checkpointer>,
    /// Checkpoints finished.
    pub(crate) checkpoints: AtomicU64,
    pub(crate) pace: Pace,
    opened: Stats,
    /// The log's end when it was opened: where the pending memory of a dead process goes on.
    opened_at: Expected,
    opened_position: Position,
}

/// Bounds from the options.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) commit_blocks: u64,
    pub(crate) snapshot_checkpoints: u64,
    pub(crate) snapshot_blocks: Option<u64>,
}

impl core::fmt::Debug for Store {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Store").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Store {
    /// Writes an empty store to `medium`. Everything on it is lost.
    ///
    /// # Errors
    /// [`KvError::TooSmall`], or the medium's.
    pub fn format(medium: &dyn Medium, options: &Options) -> Result<(), KvError> {
        let layout = Layout::plan(medium.blocks(), options.log_blocks)?;
        // The slots and the log first: an interrupted format leaves no store, not two halves.
        let zeroes = [0; nvmed_units::BLOCK_BYTES];
        for block in [layout.superblock(0), layout.superblock(1)] {
            disk::write(medium, block, &zeroes, false)?;
        }
        log::format(medium, options.identity, &layout)?;
        disk::flush(medium)?;
        let bytes = Superblock::empty(options.identity, layout).encode();
        disk::write(medium, layout.superblock(0), &bytes, true)?;
        disk::write(medium, layout.superblock(1), &bytes, true)
    }

    /// Opens the store on `medium`: reads the superblocks and the log.
    ///
    /// If `pending` holds batches of a process that died and they continue the log exactly, they are
    /// applied (and are part of the next commit).
    ///
    /// # Errors
    /// Not a store, a newer version, a truncated medium, a damaged block, or the medium's.
    pub fn open(medium: Arc<dyn Medium>, pending: PendingMemory, options: &Options) -> Result<Self, KvError> {
        let disk = Disk::new(medium);
        let pending = Pending::new(pending.memory, pending.offset, pending.len)?;
        let mut superblock = Superblock::load(&disk)?;
        let (identity, layout) = (superblock.identity, superblock.layout);
        let mut state = State {
            sequence: superblock.head_sequence,
            end: superblock.head,
            flush_first: Sequence(0),
            head: superblock.head,
            active: Delta::new().since(superblock.head_sequence),
            frozen: None,
            version: Arc::new(Version { root: superblock.root, generation: superblock.generation }),
            used: superblock.used,
            total: layout.tree_blocks(),
            snapshots: Vec::new(),
            kept: Sequence(0),
        };
        let since = superblock.since();
        let expected = Expected { identity, sequence: superblock.head_sequence.next(), epoch: 0, since };
        let mut recovered =
            recovery::recover(&disk, &layout, superblock.head, expected, &mut |_, operations| {
                state.apply(operations);
            })?;
        if let Some(damage) = recovered.damage.as_ref().filter(|_| !options.salvage) {
            return Err(damage.clone());
        }
        superblock.heed_epoch(recovered.epoch);
        recovered.flaws.extend(superblock.flaw.clone());
        let batches_recovered = recovered.sequence - superblock.head_sequence;
        let opened_at =
            Expected { identity, sequence: recovered.sequence.next(), epoch: recovered.epoch, since };
        let appender = Appender::new(identity, layout, recovered.position, recovered.tail);
        let opened = Stats { mount_blocks_read: disk.blocks_read(), batches_recovered, ..Stats::default() };
        let mut store = Self {
            epoch_first: recovered.sequence.next(),
            epoch: superblock.epoch.max(recovered.epoch) + 1,
            commits: Commits::new(appender, recovered.sequence),
            opened_position: recovered.position,
            nodes: Nodes::new(identity, layout, options.node_cache_bytes),
            pins: Pins::default(),
            checkpointer: Mutex::new(Checkpointer::new(&superblock)),
            checkpoints: AtomicU64::new(0),
            pace: Pace::new(superblock.head, layout.ring_blocks()),
            limits: Limits {
                commit_blocks: options.commit_blocks_max.max(COMMIT_BLOCKS_MIN),
                snapshot_checkpoints: options.snapshot_checkpoints_max,
                snapshot_blocks: options.snapshot_blocks_max,
            },
            disk,
            identity,
            seed: Seed::of(identity),
            ring_blocks: layout.ring_blocks(),
            flaws: recovered.flaws,
            state: RwLock::new(state),
            pending,
            superblock: Mutex::new(superblock),
            opened,
            opened_at,
        };
        match recovered.damage {
            // What is in the pending memory continues a log that is gone.
            Some(damage) => {
                store.commits.fail(&damage);
                store.pending.reset(identity, recovered.position);
            }
            None => store.adopt_pending(),
        }
        // What was taken up keeps the epoch that it has.
        store.epoch_first = store.state.read().sequence.next();
        Ok(store)
    }

    /// Takes up what an earlier life of our own pending memory left; it stays where it is.
    fn adopt_pending(&self) {
        let left = self.pending.left_behind(self.identity, self.opened_position).unwrap_or_default();
        let mut state = self.state.write();
        let mut expected = self.opened_at;
        let mut rest = left.as_slice();
        while let Next::Record(header, operations) = record::next(rest, &expected) {
            rest = &rest[record::HEADER_BYTES + header.bytes..];
            (expected.sequence, expected.epoch) = (header.sequence.next(), header.epoch);
            state.apply(operations);
            state.flush_first = state.sequence;
        }
        if state.end == self.opened_position {
            self.pending.reset(self.identity, state.end);
        } else {
            self.pending.cut(state.end);
        }
    }

    /// What `open` found lost without needing it: a superblock, or a copy of the log's last block. The next
    /// [`Store::mend`] or [`Store::close`] writes it anew.
    #[must_use]
    pub fn flaws(&self) -> &[Flaw] {
        &self.flaws
    }

    /// Writes anew what `open` found lost.
    ///
    /// # Errors
    /// The medium's; [`KvError::Failed`].
    pub fn mend(&self) -> Result<(), KvError> {
        self.commits.check()?;
        let mut superblock = self.superblock.lock();
        if superblock.lost.is_some() {
            superblock.store(&self.disk).inspect_err(|error| self.commits.fail(error))?;
        }
        drop(superblock);
        if self.flaws.iter().any(|flaw| flaw.structure == "log") { self.settle() } else { Ok(()) }
    }

    /// Copies the value of `key` into `value`, replacing what is there; `false` when there is none.
    ///
    /// # Errors
    /// A damaged block, or the medium's.
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, KvError> {
        value.clear();
        let state = self.state.read();
        if let Some(known) = state.change(key) {
            value.extend_from_slice(known.unwrap_or(&[]));
            return Ok(known.is_some());
        }
        let pin = self.pins.pin(&state.version);
        drop(state);
        self.tree(pin.root()).get(key, value)
    }

    /// The tree below `root`, which the caller has pinned.
    pub(crate) fn tree(&self, root: Option<Root>) -> Tree<'_> {
        Tree { disk: &self.disk, nodes: &self.nodes, root }
    }

    /// Makes all of `batch` visible at once. Not durable before [`Store::commit`] of what it returns.
    /// An empty batch answers the last sequence.
    ///
    /// # Errors
    /// A key, value or batch that is too long; [`KvError::Full`]; [`KvError::Failed`]; the medium's when
    /// room had to be made. The batch is then not applied.
    pub fn apply(&self, batch: &Batch) -> Result<Sequence, KvError> {
        let operations = batch.encoded()?;
        let max = self.batch_bytes_max();
        if operations.len() > max {
            return Err(KvError::BatchTooLarge { bytes: operations.len(), max });
        }
        if operations.is_empty() {
            return Ok(self.applied());
        }
        let length = (record::HEADER_BYTES + operations.len()) as u64;
        loop {
            let mut state = self.state.write();
            match self.room(&state, length, batch) {
                Room::Enough => {
                    let sequence = self.apply_to(&mut state, operations, batch.flush_first());
                    let end = state.end;
                    drop(state);
                    self.step_if_urgent(end);
                    return Ok(sequence);
                }
                Room::PendingFull => {
                    let all = state.sequence;
                    drop(state);
                    self.commit(all, Barrier::Before)?;
                }
                Room::CheckpointDue => {
                    drop(state);
                    self.make_room(length, batch)?;
                }
            }
        }
    }

    fn apply_to(&self, state: &mut State, operations: &[u8], flush_first: bool) -> Sequence {
        let header = record::seal(self.seed, state.sequence.next(), self.epoch, operations);
        self.pending.append(state.end, [&header, operations]);
        state.apply(operations);
        if flush_first {
            state.flush_first = state.sequence;
        }
        state.sequence
    }

    /// The last batch applied.
    #[must_use]
    pub fn applied(&self) -> Sequence {
        self.state.read().sequence
    }

    /// The longest batch, in [`Batch::bytes`], that `apply` takes.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        let log = self.ring_blocks * PAYLOAD_BYTES / 4;
        let most = log.min(self.pending.capacity() / 2).min(record::OPERATION_BYTES_MAX as u64);
        most as usize - record::HEADER_BYTES
    }

    /// Applies the batches that a process which died left in its pending memory, those that continue
    /// this store exactly, and makes them durable. Answers how many. Call it before the first `apply`.
    ///
    /// # Errors
    /// As for `apply` and `commit`.
    pub fn replay_pending(&self, memory: &Mapping, offset: usize, len: usize) -> Result<u64, KvError> {
        let dead = Pending::new(memory, offset, len)?;
        let left = dead.left_behind(self.identity, self.opened_position).unwrap_or_default();
        let mut expected = self.opened_at;
        let mut rest = left.as_slice();
        let mut count = 0;
        let mut last = Sequence(0);
        while let Next::Record(header, operations) = record::next(rest, &expected) {
            rest = &rest[record::HEADER_BYTES + header.bytes..];
            (expected.sequence, expected.epoch) = (header.sequence.next(), header.epoch);
            last = self.apply(&Batch::from_encoded(operations))?;
            count += 1;
        }
        if count > 0 {
            self.commit(last, Barrier::Before)?;
        }
        Ok(count)
    }

    /// Tree blocks in all, those in use, and bytes of the log that no checkpoint has: of [`Store::stats`] what a
    /// program looks at that watches the room for its changes.
    #[must_use]
    pub fn room_stats(&self) -> [u64; 3] {
        let state = self.state.read();
        [state.total, state.used, state.end - state.head]
    }

    /// Counters since `open`.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let written = self.disk.written();
        let (node_cache_hits, node_cache_misses) = self.nodes.counts();
        let state = self.state.read();
        Stats {
            blocks_read: self.disk.blocks_read(),
            blocks_written: written.total(),
            written,
            flushes: self.disk.flushes(),
            node_cache_hits,
            node_cache_misses,
            batches: state.sequence.next() - self.opened_at.sequence,
            log_bytes: state.end - state.head,
            log_appends: self.commits.appends(),
            tree_blocks: state.total,
            tree_blocks_used: state.used,
            tree_blocks_pinned: self.pace.pinned.load(Relaxed),
            snapshots: state.snapshots.len() as u64,
            checkpoints: self.checkpoints.load(Relaxed),
            steps: self.pace.steps.load(Relaxed),
            steps_forced: self.pace.forced.load(Relaxed),
            commit_blocks_worst: self.pace.worst.load(Relaxed),
            ..self.opened
        }
    }

    /// The epoch of this open's records, to be on the medium before the first of them.
    pub(crate) fn store_epoch(&self) -> Result<(), KvError> {
        let mut superblock = self.superblock.lock();
        if superblock.epoch < self.epoch {
            // A process that died may have left records that only the device's cache holds. What is
            // appended now says that they are durable.
            if self.opened.batches_recovered > 0 && !Mutant::NoMountFlush.is_made() {
                self.disk.flush()?;
            }
            (superblock.epoch, superblock.epoch_first) = (self.epoch, self.epoch_first);
            superblock.store_far(&self.disk)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryMedium;

    fn pending() -> PendingMemory {
        let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).unwrap());
        PendingMemory { memory, offset: 0, len: 1 << 20 }
    }

    fn put(store: &Store, key: &[u8], value: &[u8]) -> Sequence {
        let mut batch = Batch::new();
        batch.put(key, value);
        store.apply(&batch).unwrap()
    }

    fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        store.get(key, &mut value).unwrap().then_some(value)
    }

    #[test]
    fn what_was_committed_is_there_after_the_next_open() {
        let medium = Arc::new(MemoryMedium::new(1024));
        Store::format(&*medium, &Options::default()).unwrap();
        for round in 0..5u8 {
            let store = Store::open(medium.clone(), pending(), &Options::default()).unwrap();
            for old in 0..round {
                assert_eq!(get(&store, &[old]), Some(vec![old; 900]), "round {round}");
            }
            assert_eq!(get(&store, b"lost"), None, "an uncommitted batch came back");
            let last = put(&store, &[round], &[round; 900]);
            store.commit(last, Barrier::None).unwrap();
            put(&store, b"lost", b"");
            assert_eq!(store.durable(), last);
        }
    }

    /// A medium on which `after` replaced `before`, but only in the sectors of each block that `kept` wants.
    fn torn(before: &[u8], after: &[u8], kept: impl Fn(usize) -> bool) -> Arc<MemoryMedium> {
        let sectors = before.chunks(512).zip(after.chunks(512)).enumerate();
        let bytes =
            sectors.flat_map(|(sector, (old, new))| if kept(sector % 8) { new } else { old }.to_vec());
        Arc::new(MemoryMedium::from_bytes(bytes.collect()))
    }

    #[test]
    fn what_an_interrupted_append_left_does_not_come_back_when_the_next_one_is_interrupted() {
        let medium = Arc::new(MemoryMedium::new(1024));
        Store::format(&*medium, &Options::default()).unwrap();
        let store = Store::open(medium.clone(), pending(), &Options::default()).unwrap();
        for (key, bytes) in [(b"y", 10), (b"z", 100), (b"b", 1400)] {
            store.commit(put(&store, key, &vec![1; bytes]), Barrier::None).unwrap();
        }
        let before = medium.to_bytes();
        store.commit(put(&store, b"lost", &[2; 300]), Barrier::None).unwrap();
        // Power goes while that is written over the version without `b`: of it only what comes after `b` is there.
        let medium = torn(&before, &medium.to_bytes(), |sector| sector >= 3);
        let store = Store::open(medium.clone(), pending(), &Options::default()).unwrap();
        assert!(get(&store, b"b").is_some() && get(&store, b"lost").is_none());
        let before = medium.to_bytes();
        store.commit(put(&store, b"next", &[3; 300]), Barrier::None).unwrap();
        let epoch_is_there = medium.to_bytes()[before.len() - 4096..].to_vec();
        let log_before = [&before[..before.len() - 4096], &epoch_is_there].concat();
        // It goes again while the next record is written there: of that only what comes before it is there.
        let medium = torn(&log_before, &medium.to_bytes(), |sector| sector < 3);
        let store = Store::open(medium, pending(), &Options::default()).unwrap();
        assert!(get(&store, b"b").is_some());
        assert!(
            get(&store, b"lost").is_none(),
            "what was not there after the first cut is there after the second"
        );
    }

    #[test]
    fn batches_of_a_dead_process_are_taken_up() {
        for same_memory in [true, false] {
            let medium = Arc::new(MemoryMedium::new(1024));
            Store::format(&*medium, &Options::default()).unwrap();
            let memory = pending();
            let store = Store::open(medium.clone(), memory.clone(), &Options::default()).unwrap();
            let durable = put(&store, b"a", b"1");
            store.commit(durable, Barrier::None).unwrap();
            put(&store, b"b", b"2");
            put(&store, b"a", b"3");
            drop(store); // dies: nothing was closed
            let next = if same_memory { memory.clone() } else { pending() };
            let store = Store::open(medium.clone(), next, &Options::default()).unwrap();
            if !same_memory {
                assert_eq!(get(&store, b"b"), None);
                assert_eq!(store.replay_pending(&memory.memory, 0, memory.len), Ok(2));
            }
            assert_eq!(get(&store, b"a"), Some(b"3".to_vec()));
            assert_eq!(get(&store, b"b"), Some(b"2".to_vec()));
            store.commit(store.applied(), Barrier::None).unwrap();
            drop(store);
            let store = Store::open(medium, pending(), &Options::default()).unwrap();
            assert_eq!(get(&store, b"b"), Some(b"2".to_vec()));
            assert_eq!(store.replay_pending(&memory.memory, 0, memory.len), Ok(0));
        }
    }
}
