//! The metadata of a mount: inodes in memory, their records in the store, and the batches that change both.
//!
//! In: changes, one after the other. Out: records that are applied, and durable by a commit. Knows nothing of paths,
//! of pages, or of who calls.

mod allocation;
pub(crate) mod change;
mod entries;
mod extents;
pub(crate) mod growth;
pub(crate) mod holdings;
pub(crate) mod promises;
mod room;
mod spare;
pub(crate) mod times;
pub(crate) mod zone;

use crate::blocks::Blocks;
use crate::error::FsError;
use crate::health::Health;
use crate::inode::{Home, Inode, InodeTable};
use crate::journal::Journal;
use crate::memory::Memory;
use crate::metadata::change::OpenBatch;
use crate::metadata::growth::Growth;
use crate::metadata::spare::Spare;
use crate::metadata::times::Late;
use crate::options::{Clock, MountOptions};
use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_io::{Device, Handle};
use nvmed_kv::{DeviceMedium, PendingMemory, Store};
use nvmed_layout::record::{Counters, RECORD_BYTES_USUAL, Record};
use nvmed_layout::{Damage, LostCopy, ROOT, Superblock, copies, keys, region};
use nvmed_mutant::Mutant;
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_units::{BLOCK_BYTES, Ino};

/// The metadata of a mount.
pub(crate) struct Metadata {
    /// As the mount found it: `growth` has the one that counts now.
    pub(crate) superblock: Superblock,
    /// Requests for superblocks, and for what has no handle of its own.
    pub(crate) handle: Handle,
    pub(crate) journal: Arc<Journal>,
    pub(crate) blocks: Blocks,
    spare: Mutex<Spare>,
    /// The batch that a change puts together.
    open: Mutex<OpenBatch>,
    growth: Growth,
    pub(crate) inodes: InodeTable,
    /// How often names were re-keyed: prefixes computed before may be wrong.
    rekeyed: AtomicU64,
    /// No inode has this number or a higher one.
    next_ino: AtomicU64,
    late: Late,
    pub(crate) health: Arc<Health>,
    pub(crate) read_only: bool,
    /// Blocks allocated ahead of a file when it grows, unless the file says something else.
    prealloc_blocks: u32,
    clock: Clock,
}

/// What opening the metadata found.
pub(crate) struct Opened {
    pub(crate) metadata: Metadata,
    /// Copies that were lost; a mount that may write has them written again.
    pub(crate) mended: Vec<LostCopy>,
    /// Whether both copies of the superblock are good.
    pub(crate) copies_agree: bool,
}

/// Reads the counters.
fn read_counters(store: &Store) -> Result<Counters, FsError> {
    let mut value = Vec::new();
    let found = store.get(&keys::counters(), &mut value)?;
    let counters = found.then(|| Counters::decode(&value)).flatten();
    counters.ok_or(Damage::Counters.into())
}

impl Metadata {
    /// Reads superblock, log and counters. Over what a dead process left in its memory, the log goes on with its
    /// batches.
    ///
    /// # Errors
    /// [`FsError::Layout`]; the store's and the device's.
    pub(crate) fn open(
        (device, bytes, handle): (&Arc<Device>, Option<Arc<nvmed_nvm::Memory>>, Handle),
        (memory, dead): (&Memory, Option<&Memory>),
        options: &MountOptions,
    ) -> Result<Opened, FsError> {
        let (superblock, superblock_lost) = copies::load(device, &handle)?;
        let medium = Arc::new(region::metadata(device, bytes, &superblock)?);
        let commit_blocks_max = options.commit_blocks_max;
        let settings = nvmed_kv::Options { commit_blocks_max, ..nvmed_kv::Options::default() };
        let store = Store::open(medium.clone(), memory.pending(), &settings)?;
        if !options.read_only && !Mutant::NoMountFlush.is_made() {
            // A process that died may have left log and data in the device's cache: what is read from here on, and
            // what is written behind it, counts as durable.
            handle.flush()?;
        }
        let copies_agree = superblock_lost.is_none();
        let mut mended = Vec::new();
        if !options.read_only {
            mended.extend(superblock_lost);
            mended.extend(store.flaws().iter().cloned().map(LostCopy::Store));
        }
        if let Some(dead) = dead.filter(|_| !Mutant::PendingForgotten.is_made()) {
            let PendingMemory { memory, offset, len } = dead.pending();
            store.replay_pending(&memory, offset, len)?;
        }
        let counters = read_counters(&store)?;
        if counters.free_blocks > superblock.data_blocks || counters.next_ino >= keys::INO_END {
            return Err(Damage::Counted(counters.free_blocks).into());
        }
        let health = Arc::<Health>::default();
        let journal = Arc::new(Journal::new(store, handle.clone(), Arc::clone(&health)));
        let discards = (DeviceMedium::lbas_per_block(device)?, options.discard);
        let blocks = Blocks::new(Arc::clone(&journal), &superblock, &counters, handle.clone(), discards);
        let metadata = Self {
            journal,
            blocks,
            spare: Mutex::default(),
            open: Mutex::new(OpenBatch::new(counters)),
            growth: Growth::new(medium, superblock.clone()),
            inodes: InodeTable::new(),
            rekeyed: AtomicU64::new(1),
            next_ino: AtomicU64::new(counters.next_ino.0),
            late: Late::default(),
            health,
            read_only: options.read_only,
            prealloc_blocks: u32::try_from(options.prealloc_bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX),
            clock: options.clock,
            superblock,
            handle,
        };
        Ok(Opened { metadata, mended, copies_agree })
    }

    /// The superblock as it is on the device.
    pub(crate) fn current_superblock(&self) -> Superblock {
        self.growth.superblock()
    }

    /// Brings what an earlier mount left undone to its end.
    ///
    /// # Errors
    /// The store's and the device's.
    pub(crate) fn mend(&self, copies_agree: bool) -> Result<(), FsError> {
        if !self.journal.store.flaws().is_empty() {
            self.journal.store.mend()?;
        }
        self.finish_growth(copies_agree)
    }

    /// Now, by the mount's clock.
    pub(crate) fn now_ns(&self) -> i64 {
        (self.clock)()
    }

    /// # Errors
    /// [`FsError::ReadOnly`].
    #[inline]
    pub(crate) fn writable(&self) -> Result<(), FsError> {
        if self.read_only || !self.health.is_open() { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// The inode with a number whose record has a key of its own, from memory or from the store.
    ///
    /// # Errors
    /// [`FsError::Layout`] when there is none or its record makes no sense; the store's.
    pub(crate) fn load_own(&self, ino: Ino) -> Result<Arc<Inode>, FsError> {
        self.check_number(ino)?;
        let home = Home { own: true, dentry: None, zone: ino == ROOT };
        self.inodes.get_or_load(ino, || Ok((self.read_own(ino)?, home)))
    }

    /// Whether an inode may have this number.
    ///
    /// # Errors
    /// [`FsError::Layout`].
    pub(crate) fn check_number(&self, ino: Ino) -> Result<(), FsError> {
        if ino < Ino(self.next_ino.load(Ordering::SeqCst)) {
            return Ok(());
        }
        Err(Damage::Number(ino).into())
    }

    /// Reads an inode's own record.
    ///
    /// # Errors
    /// As [`Metadata::load_own`].
    pub(crate) fn read_own(&self, ino: Ino) -> Result<Record, FsError> {
        let mut value = Vec::with_capacity(RECORD_BYTES_USUAL);
        let found = self.journal.store.get(&keys::inode(ino), &mut value)?;
        let record = found.then(|| Record::decode(&value)).flatten();
        record.ok_or(Damage::Inode(ino).into())
    }

    /// Changes an inode's record and applies it with the newest times. An inode that is gone from the
    /// device, a removed directory that somebody still holds, changes in memory only.
    ///
    /// # Errors
    /// What `change` answers; the store's. Nothing changed then.
    pub(crate) fn alter(
        &self,
        inode: &Arc<Inode>,
        change: impl FnOnce(&mut Record) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let mut state = inode.lock();
        let mut record = inode.compose(&state);
        let result = change(&mut record).and_then(|()| self.put_record(inode, &record));
        match result {
            Ok(()) => inode.publish(&mut state, record),
            Err(_) => self.touch(inode, None, None, None),
        }
        result
    }

    fn put_record(&self, inode: &Arc<Inode>, record: &Record) -> Result<(), FsError> {
        let given = (record.uid, record.gid) != (inode.uid(), inode.gid());
        if inode.reaped.load(Ordering::SeqCst) || given && Mutant::OwnerForgotten.is_made() {
            return Ok(());
        }
        let mut change = self.change();
        change.put_inode(inode, record);
        // Times and modes take the place of what is there: a full device takes them, and its unmount.
        change.use_headroom();
        change.apply().map(drop)
    }

    /// Makes every change so far durable, and the data that was written up to `ticket`.
    ///
    /// # Errors
    /// The store's or the device's.
    #[inline]
    pub(crate) fn commit(&self, ticket: u64) -> Result<(), FsError> {
        self.blocks.commit(ticket)
    }

    /// Makes every change so far durable, and all data that was written to the device.
    ///
    /// # Errors
    /// As [`Metadata::commit`].
    pub(crate) fn commit_all(&self) -> Result<(), FsError> {
        self.blocks.commit_all()
    }
}
