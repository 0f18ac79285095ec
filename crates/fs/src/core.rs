//! A mounted file system from inside: what all operations share.

use crate::blocks::Blocks;
use crate::change::OpenBatch;
use crate::data::DataPath;
use crate::end::Ends;
use crate::error::FsError;
use crate::growth::Growth;
use crate::health::Health;
use crate::inode::{Home, Inode, InodeTable, State};
use crate::journal::Journal;
use crate::memory::Memory;
use crate::paths::Paths;
use crate::quota::Accounts;
use core::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};
use nvmed_cache::EvictionPolicy;
use nvmed_io::{Binding, Device, Handle};
use nvmed_kv::{DeviceMedium, PendingMemory, Store};
use nvmed_layout::record::{Counters, Record};
use nvmed_layout::{Damage, Kind, LostCopy, ROOT, Superblock, copies, keys, region};
use nvmed_mutant::Mutant;
use nvmed_sys::host_clock;
use nvmed_sys::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use nvmed_units::Ino;

/// Inodes kept in memory, about 600 bytes each without their pages; beyond, unused ones go.
const INODES_MAX: u64 = 1 << 16;
/// Names remembered in all directories together, about 80 bytes each.
const NAMES_MAX: isize = 1 << 18;
/// The share of them that goes when there are too many: one walk of the table pays for many loads.
const EVICT_SHARE: u64 = 8;
/// Inodes whose times wait to be written. Each holds its inode in memory, so the list is bounded.
const LATE_MAX: usize = 4096;

/// Size of the largest file that lies in its record, unless told otherwise. Measured in
/// crates/fs/examples/small_cost.rs.
const INLINE_BYTES: u32 = 512;

/// What a SIGKILL of the program costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Completed calls live in the mount's memory: SIGKILL loses what was not synced, unless the memory outlives the process
    /// (`nvmed run` holds it). Exit and signals that end in exit lose nothing.
    #[default]
    Process,
    /// Each completed call has reached the device: a SIGKILL loses nothing, at the price of a device write per call.
    Device,
}

/// Nanoseconds since 1970.
pub type Clock = fn() -> i64;

/// Settings of a mount. `Default` is right for most.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Bytes allocated ahead of a growing file; 0 is none.
    pub prealloc_bytes: u64,
    /// Largest readahead window; 0 is none.
    pub readahead_bytes: u64,
    /// Files of up to so many bytes lie in their records, at most 800; 0 is none. A new one is durable by one write of
    /// the log then.
    pub inline_bytes: u32,
    /// Dirty bytes at which writers begin to write back; 0 is half the cache.
    pub dirty_limit_bytes: u64,
    /// In which order the cache gives up clean pages.
    pub cache_policy: EvictionPolicy,
    /// What a SIGKILL costs.
    pub durability: Durability,
    /// Blocks of metadata that one commit reads and writes at most to bring the tree up to date, at least 128. More
    /// makes fewer, longer pauses.
    pub commit_blocks_max: u64,
    /// Whether the device is told of freed blocks, in batches, once they are durably free.
    pub discard: bool,
    /// Nothing is changed; nor is what an unclean end left behind cleaned up.
    pub read_only: bool,
    /// Time stamps come from here.
    pub clock: Clock,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            prealloc_bytes: 0,
            readahead_bytes: 128 << 10,
            inline_bytes: INLINE_BYTES,
            dirty_limit_bytes: 0,
            cache_policy: EvictionPolicy::default(),
            durability: Durability::Process,
            commit_blocks_max: nvmed_kv::Options::default().commit_blocks_max,
            discard: false,
            read_only: false,
            clock: host_clock,
        }
    }
}

/// What a mount is made of.
pub struct MountParts {
    /// The device.
    pub device: Arc<Device>,
    /// Memory for cached pages and for the log that is not on the device yet.
    pub memory: Memory,
    /// Settings.
    pub options: MountOptions,
}

/// Everything that the operations share.
pub(crate) struct Core {
    pub(crate) options: MountOptions,
    /// As the mount found it: `growth` has the one that counts now.
    pub(crate) superblock: Superblock,
    /// Requests for file data.
    pub(crate) handle: Handle,
    pub(crate) lbas_per_block: u64,
    /// Cache, frames and their device addresses.
    pub(crate) data: DataPath,
    pub(crate) journal: Arc<Journal>,
    pub(crate) blocks: Blocks,
    /// The batch that a change puts together.
    pub(crate) open: Mutex<OpenBatch>,
    pub(crate) growth: Growth,
    pub(crate) inodes: InodeTable,
    /// Readers look names up; a writer changes them.
    namespace: RwLock<()>,
    root: OnceLock<Arc<Inode>>,
    pub(crate) paths: Paths,
    /// How often names were re-keyed: prefixes computed before may be wrong.
    pub(crate) rekeyed: AtomicU64,
    /// No inode has this number or a higher one.
    pub(crate) next_ino: AtomicU64,
    /// Names remembered in all directories.
    names: AtomicIsize,
    late: Mutex<Vec<Arc<Inode>>>,
    late_full: AtomicBool,
    /// Inodes in memory at which unused ones go.
    inodes_limit: AtomicU64,
    next_description: AtomicU64,
    pub(crate) health: Arc<Health>,
    pub(crate) accounts: Accounts,
    pub(crate) ends: Ends,
    /// Copies that were lost when it was mounted, and were written again.
    pub(crate) mended: Vec<LostCopy>,
    /// Whether orphans of an earlier mount may be left.
    pub(crate) orphans_left: AtomicBool,
}

/// Reads the counters.
pub(crate) fn read_counters(store: &Store) -> Result<Counters, FsError> {
    let mut value = Vec::new();
    let found = store.get(&keys::counters(), &mut value)?;
    let counters = found.then(|| Counters::decode(&value)).flatten();
    counters.ok_or(Damage::Counters.into())
}

impl Core {
    /// Mounts: reads the superblock, opens the store, reads counters and root.
    pub(crate) fn mount(parts: MountParts) -> Result<Arc<Self>, FsError> {
        Self::mount_over(parts, None)
    }

    /// As [`Core::mount`], over what a dead process left: its batches go on where the log ends.
    pub(crate) fn mount_over(parts: MountParts, dead: Option<&Memory>) -> Result<Arc<Self>, FsError> {
        let MountParts { device, memory, options } = parts;
        let handle = device.handle(Binding::Spread);
        let (superblock, superblock_lost) = copies::load(&device, &handle)?;
        let medium = Arc::new(region::metadata(&device, &superblock)?);
        let commit_blocks_max = options.commit_blocks_max;
        let settings = nvmed_kv::Options { commit_blocks_max, ..nvmed_kv::Options::default() };
        let store = Store::open(medium.clone(), memory.pending(), &settings)?;
        if !options.read_only && !Mutant::NoMountFlush.is_made() {
            // A process that died may have left log and data in the device's cache: what is read from here on, and
            // what is written behind it, counts as durable.
            handle.flush()?;
        }
        let mut mended = Vec::new();
        if !options.read_only {
            mended.extend(superblock_lost.clone());
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
        let lbas_per_block = DeviceMedium::lbas_per_block(&device)?;
        let journal = Arc::new(Journal::new(store, handle.clone(), Arc::clone(&health)));
        let discards = (lbas_per_block, options.discard);
        let blocks = Blocks::new(Arc::clone(&journal), &superblock, &counters, handle.clone(), discards);
        let core = Arc::new(Self {
            data: DataPath::new(&device, &memory, &options)?,
            journal,
            blocks,
            open: Mutex::new(OpenBatch::new(counters)),
            growth: Growth::new(medium, superblock.clone()),
            inodes: InodeTable::new(),
            namespace: RwLock::new(()),
            root: OnceLock::new(),
            paths: Paths::new(),
            rekeyed: AtomicU64::new(1),
            next_ino: AtomicU64::new(counters.next_ino.0),
            names: AtomicIsize::new(0),
            late: Mutex::default(),
            late_full: AtomicBool::new(false),
            inodes_limit: AtomicU64::new(INODES_MAX),
            next_description: AtomicU64::new(1),
            health,
            accounts: Accounts::default(),
            ends: Ends::default(),
            orphans_left: AtomicBool::new(true),
            mended,
            options,
            superblock,
            handle,
            lbas_per_block,
        });
        let root = core.load_own(ROOT)?;
        if root.directory.is_none() {
            return Err(Damage::Root.into());
        }
        let _ = core.root.set(root);
        core.look_at_tree();
        if !core.options.read_only {
            if !core.journal.store.flaws().is_empty() {
                core.journal.store.mend()?;
            }
            core.finish_growth(superblock_lost.is_none())?;
            core.reap_orphans()?;
        }
        Ok(core)
    }

    /// Now, by the mount's clock.
    pub(crate) fn now_ns(&self) -> i64 {
        (self.options.clock)()
    }

    /// The namespace, to look names up. The caller holds no other lock.
    #[inline]
    pub(crate) fn names_read(&self) -> RwLockReadGuard<'_, ()> {
        if self.is_overfull() {
            self.trim();
        }
        // The lock guards no data of its own: a panic under it broke nothing.
        self.namespace.read()
    }

    /// The namespace, to change names. The caller holds no other lock.
    #[inline]
    pub(crate) fn names_write(&self) -> RwLockWriteGuard<'_, ()> {
        self.grow_if_low();
        if self.is_overfull() {
            self.trim();
        }
        self.namespace.write()
    }

    /// A number for a new open description.
    pub(crate) fn new_description(&self) -> u64 {
        self.next_description.fetch_add(1, Ordering::Relaxed)
    }

    /// The root directory.
    pub(crate) fn root(&self) -> Arc<Inode> {
        Arc::clone(self.root.get().expect("the mount loaded the root before anybody else came"))
    }

    /// The inode with a number whose record has a key of its own, from memory or from the store.
    ///
    /// # Errors
    /// [`FsError::Layout`] when there is none or its record makes no sense; the store's.
    pub(crate) fn load_own(&self, ino: Ino) -> Result<Arc<Inode>, FsError> {
        self.check_number(ino)?;
        let home = Home { own: true, place: None, zone: ino == ROOT };
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
    /// As [`Core::load_own`].
    pub(crate) fn read_own(&self, ino: Ino) -> Result<Record, FsError> {
        let mut value = Vec::with_capacity(nvmed_layout::record::RECORD_BYTES_USUAL);
        let found = self.journal.store.get(&keys::inode(ino), &mut value)?;
        let record = found.then(|| Record::decode(&value)).flatten();
        record.ok_or(Damage::Inode(ino).into())
    }

    /// Sets times of an inode that are written to its record later.
    pub(crate) fn touch(
        &self,
        inode: &Arc<Inode>,
        atime: Option<i64>,
        mtime: Option<i64>,
        ctime: Option<i64>,
    ) {
        if inode.touch(atime, mtime, ctime) {
            self.list_late(inode);
        }
    }

    fn list_late(&self, inode: &Arc<Inode>) {
        let mut late = self.late.lock();
        late.push(Arc::clone(inode));
        if late.len().is_multiple_of(LATE_MAX) {
            late.retain(|inode| inode.is_late());
            if late.len() >= LATE_MAX / 2 {
                // Not here: the caller may hold locks that writing records takes.
                self.late_full.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Writes the times that wait; with no room for them in the metadata region, they wait on.
    ///
    /// # Errors
    /// The store's; what was not written waits on.
    pub(crate) fn write_all_late(&self) -> Result<(), FsError> {
        let late = core::mem::take(&mut *self.late.lock());
        self.late_full.store(false, Ordering::Relaxed);
        let mut result = Ok(());
        let mut full = false;
        for inode in &late {
            if inode.is_late() && result.is_ok() && !full {
                result = self.alter(inode, |_| Ok(()));
                // Later times may take more bytes, and leaves that are full split. Nobody was promised that: they
                // wait for room, and everything else is saved.
                full = matches!(result, Err(FsError::NoSpace));
                if full {
                    result = Ok(());
                }
            } else if inode.is_late() {
                self.late.lock().push(Arc::clone(inode));
            }
        }
        result
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

    /// A name of an inode went: paths that led to it, and through it, are not to be believed.
    pub(crate) fn unnamed(&self, inode: &Inode) {
        if inode.kind == Kind::Directory || inode.kind == Kind::Symlink {
            self.paths.mistrust();
        }
        inode.unnamed.fetch_add(1, Ordering::SeqCst);
    }

    /// More or fewer names are remembered.
    pub(crate) fn count_names(&self, more: isize) {
        self.names.fetch_add(more, Ordering::Relaxed);
    }

    /// Whether memory for inodes, names or late times is over its limit.
    #[inline]
    fn is_overfull(&self) -> bool {
        self.inodes.len() > self.inodes_limit.load(Ordering::Relaxed)
            || self.names.load(Ordering::Relaxed) > NAMES_MAX
            || self.late_full.load(Ordering::Relaxed)
    }

    /// Forgets inodes that nobody uses, and names.
    #[cold]
    fn trim(&self) {
        // A failure leaves the inodes late and in memory; whoever syncs them is told.
        let _ = self.write_all_late();
        let _namespace = self.namespace.write();
        if self.names.load(Ordering::Relaxed) > NAMES_MAX {
            for inode in self.inodes.collect(|inode| inode.directory.is_some()) {
                if let Ok(directory) = inode.directory() {
                    self.count_names(-directory.names_mut().clear());
                }
            }
        }
        self.paths.clear();
        // Twice, because the first time spares what was used lately.
        for _ in 0..2 {
            let over = self.inodes.len().saturating_sub(INODES_MAX - INODES_MAX / EVICT_SHARE);
            let gone = self.inodes.evict(over as usize, |inode| {
                inode.ino != ROOT && !inode.is_late() && inode.nlink() > 0 && self.data.is_clean(inode)
            });
            gone.iter().for_each(|inode| self.forget(inode));
        }
        // Those that are open or dirty stay; look again only when there are many more.
        let limit = (self.inodes.len() + INODES_MAX / EVICT_SHARE).max(INODES_MAX);
        self.inodes_limit.store(limit, Ordering::Relaxed);
    }

    /// An inode leaves memory.
    pub(crate) fn forget(&self, inode: &Arc<Inode>) {
        if let Ok(directory) = inode.directory() {
            self.count_names(-directory.names_mut().clear());
        }
        self.data.forget(self, inode);
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
    /// As [`Core::commit`].
    pub(crate) fn commit_all(&self) -> Result<(), FsError> {
        self.blocks.commit_all()
    }

    /// With durability `device`: makes what the call has changed durable before it returns. Times that are
    /// written late are no call's result and wait as ever.
    pub(crate) fn written_through(&self) -> Result<(), FsError> {
        if self.options.durability == Durability::Device { self.commit(0) } else { Ok(()) }
    }
}

impl State {
    /// The record as it was last applied.
    pub(crate) fn record(&self) -> &Record {
        &self.record
    }
}
