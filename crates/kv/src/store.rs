//! The store.

use crate::batch::Operations;
use crate::checkpoint::{Checkpointer, Frozen, Room};
use crate::commit::{Barrier, Commits};
use crate::delta::Delta;
use crate::disk::{self, Disk};
use crate::guard::{lock, read, write};
use crate::layout::Layout;
use crate::log::{self, Appender};
use crate::nodes::Nodes;
use crate::pending::Pending;
use crate::pins::{Parity, Pins};
use crate::record::{self, Expected, Next};
use crate::superblock::{Root, Superblock};
use crate::tree::Tree;
use crate::{Batch, KvError, Medium};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use nvmed_sys::Mapping;
use std::sync::{Arc, Mutex, RwLock};

/// A batch's place in the order of all batches of a store; 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// Settings of a store. `Default` is right for a file system.
#[derive(Clone, Debug)]
pub struct Options {
    /// Blocks of the log, at `format` only. `None`: an eighth of the region, 64 to 8192 blocks.
    pub log_blocks: Option<u32>,
    /// A number that differs between formats of one device (half a UUID): old blocks never pass for new.
    /// At `format` only.
    pub identity: u64,
    /// Bytes of tree nodes kept in memory, at `open` only.
    pub node_cache_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { log_blocks: None, identity: 0, node_cache_bytes: 16 << 20 }
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
    /// Bytes; at least 64 KiB, 4 MiB is a good size.
    pub len: usize,
}

/// Counters since `open`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks read from the medium.
    pub blocks_read: u64,
    /// Blocks written to the medium.
    pub blocks_written: u64,
    /// Flushes sent.
    pub flushes: u64,
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
}

/// An ordered map on a medium. Share it between threads.
pub struct Store {
    pub(crate) disk: Disk,
    pub(crate) identity: u64,
    pub(crate) layout: Layout,
    /// Of the records that this open appends.
    epoch: u64,
    pub(crate) state: RwLock<State>,
    pub(crate) pending: Pending<Arc<Mapping>>,
    pub(crate) commits: Commits,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) nodes: Nodes,
    pub(crate) pins: Pins,
    pub(crate) checkpointer: Mutex<Checkpointer>,
    /// Checkpoints finished.
    pub(crate) checkpoints: AtomicU64,
    /// A commit that finds the stream at or past this position begins a checkpoint.
    pub(crate) due_at: AtomicU64,
    opened: Stats,
    /// The log's end when it was opened: where the pending memory of a dead process goes on.
    opened_at: Expected,
    opened_position: u64,
}

/// What readers and writers share. Never held during I/O.
pub(crate) struct State {
    /// The last batch applied.
    pub(crate) sequence: u64,
    /// The end of the stream: after that batch.
    pub(crate) end: u64,
    /// The last batch that asked for a flush before its append.
    pub(crate) flush_first: u64,
    /// Where the log begins: after the last batch that the tree holds.
    pub(crate) head: u64,
    /// Changes that no checkpoint has begun to take up.
    pub(crate) active: Delta,
    /// Changes that a checkpoint is merging into the tree.
    pub(crate) frozen: Option<Frozen>,
    pub(crate) root: Option<Root>,
    /// Of the readers of `root`.
    pub(crate) parity: Parity,
    /// Tree blocks in use.
    pub(crate) used: u64,
}

impl core::fmt::Debug for Store {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Store").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl State {
    fn apply(&mut self, operations: &[u8]) {
        for (key, value) in Operations::new(operations).flatten() {
            self.active.set(key, value);
        }
        self.sequence += 1;
        self.end += (record::HEADER_BYTES + operations.len()) as u64;
    }
}

impl Store {
    /// Writes an empty store to `medium`. Everything on it is lost.
    ///
    /// # Errors
    /// [`KvError::TooSmall`], or the medium's.
    pub fn format(medium: &dyn Medium, options: &Options) -> Result<(), KvError> {
        let layout = Layout::plan(medium.blocks(), options)?;
        // The slots and the first log block first: an interrupted format leaves no store, not two halves.
        let zeroes = [0; nvmed_units::BLOCK_BYTES];
        let bitmap = (0..layout.pages).map(|page| layout.bitmap_block(page, false));
        for block in
            [layout.superblock(0), layout.superblock(1), layout.log_block(0)].into_iter().chain(bitmap)
        {
            disk::write(medium, block, &zeroes, false)?;
        }
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
        let superblock = Superblock::load(&disk)?;
        let (identity, layout) = (superblock.identity, superblock.layout);
        let mut state = State {
            sequence: superblock.head_sequence,
            end: superblock.head,
            flush_first: 0,
            head: superblock.head,
            active: Delta::new(),
            frozen: None,
            root: superblock.root,
            parity: Parity::default(),
            used: superblock.used,
        };
        let expected = Expected { identity, sequence: superblock.head_sequence + 1, epoch: 0 };
        let recovered = log::recover(&disk, &layout, superblock.head, expected, &mut |_, operations| {
            state.apply(operations);
        })?;
        let batches_recovered = recovered.sequence - superblock.head_sequence;
        let opened_at = Expected { identity, sequence: recovered.sequence + 1, epoch: recovered.epoch };
        let appender = Appender::new(identity, layout, recovered.position, &recovered.tail);
        let opened = Stats { mount_blocks_read: disk.counts().0, batches_recovered, ..Stats::default() };
        let store = Self {
            epoch: superblock.epoch.max(recovered.epoch) + 1,
            commits: Commits::new(appender, recovered.sequence),
            opened_position: recovered.position,
            nodes: Nodes::new(identity, layout, options.node_cache_bytes),
            pins: Pins::default(),
            checkpointer: Mutex::new(Checkpointer::new(&superblock)),
            checkpoints: AtomicU64::new(0),
            due_at: AtomicU64::new(superblock.head + layout.log_blocks * log::PAYLOAD_BYTES / 2),
            disk,
            identity,
            layout,
            state: RwLock::new(state),
            pending,
            superblock: Mutex::new(superblock),
            opened,
            opened_at,
        };
        store.adopt_pending();
        Ok(store)
    }

    /// Takes up what an earlier life of our own pending memory left; it stays where it is.
    fn adopt_pending(&self) {
        let left = self.pending.left_behind(self.identity, self.opened_position).unwrap_or_default();
        let mut state = write(&self.state);
        let mut expected = self.opened_at;
        let mut rest = left.as_slice();
        while let Next::Record(header, operations) = record::next(rest, &expected) {
            rest = &rest[record::HEADER_BYTES + header.bytes..];
            (expected.sequence, expected.epoch) = (header.sequence + 1, header.epoch);
            state.apply(operations);
            state.flush_first = state.sequence;
        }
        if state.end == self.opened_position {
            self.pending.reset(self.identity, state.end);
        } else {
            self.pending.cut(state.end);
        }
    }

    /// Copies the value of `key` into `value`, replacing what is there; `false` when there is none.
    ///
    /// # Errors
    /// A damaged block, or the medium's.
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, KvError> {
        value.clear();
        let state = read(&self.state);
        let known = state.active.get(key);
        let known = known.or_else(|| state.frozen.as_ref().and_then(|frozen| frozen.delta().get(key)));
        if let Some(known) = known {
            value.extend_from_slice(known.unwrap_or(&[]));
            return Ok(known.is_some());
        }
        let _pin = self.pins.pin(state.parity);
        let tree = self.tree(state.root);
        drop(state);
        tree.get(key, value)
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
            let mut state = write(&self.state);
            match self.room(&state, length, batch) {
                Room::Enough => return Ok(self.apply_to(&mut state, operations, batch.flush_first())),
                Room::PendingFull => {
                    let all = Sequence(state.sequence);
                    drop(state);
                    self.commit_only(all, Barrier::Before)?;
                }
                Room::CheckpointDue => {
                    drop(state);
                    self.make_room(length, batch)?;
                }
            }
        }
    }

    fn apply_to(&self, state: &mut State, operations: &[u8], flush_first: bool) -> Sequence {
        let header = record::seal(self.identity, state.sequence + 1, self.epoch, operations);
        self.pending.append(state.end, [&header, operations]);
        state.apply(operations);
        if flush_first {
            state.flush_first = state.sequence;
        }
        Sequence(state.sequence)
    }

    /// The last batch applied.
    #[must_use]
    pub fn applied(&self) -> Sequence {
        Sequence(read(&self.state).sequence)
    }

    /// The longest batch, in [`Batch::bytes`], that `apply` takes.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        let log = self.layout.log_blocks * log::PAYLOAD_BYTES / 4;
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
            (expected.sequence, expected.epoch) = (header.sequence + 1, header.epoch);
            last = self.apply(&Batch::from_encoded(operations))?;
            count += 1;
        }
        if count > 0 {
            self.commit(last, Barrier::Before)?;
        }
        Ok(count)
    }

    /// Counters since `open`.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (blocks_read, blocks_written, flushes) = self.disk.counts();
        let state = read(&self.state);
        Stats {
            blocks_read,
            blocks_written,
            flushes,
            batches: state.sequence + 1 - self.opened_at.sequence,
            log_bytes: state.end - state.head,
            log_appends: self.commits.appends(),
            tree_blocks: self.layout.tree_blocks(),
            tree_blocks_used: state.used,
            checkpoints: self.checkpoints.load(Relaxed),
            ..self.opened
        }
    }

    /// The epoch of this open's records, to be on the medium before the first of them.
    pub(crate) fn store_epoch(&self) -> Result<(), KvError> {
        let mut superblock = lock(&self.superblock);
        if superblock.epoch < self.epoch {
            superblock.epoch = self.epoch;
            superblock.store_far(&self.disk)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryMedium;
    use nvmed_sys::Pages;

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
