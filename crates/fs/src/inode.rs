//! Inodes in memory, and the table that finds them by number.

use crate::account::{self, Account};
use crate::broken::take_from;
use crate::directory::Directory;
use crate::error::FsError;
use crate::filedata::FileData;
use crate::lock::Locks;
use crate::versions::{Change, Counts, Version};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
use nvmed_layout::record::Record;
use nvmed_layout::{FileType, MODE_KIND};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard, OnceLock};
use nvmed_units::{ByteOffset, Ino};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// One inode. Everything that a path walk or a `stat` needs is an atomic; what changes together with
/// records lies under `state`.
///
/// Order of locks: the namespace, one inode's `state` (several only under the namespace's write
/// lock), the open batch.
pub(crate) struct Inode {
    pub(crate) ino: Ino,
    pub(crate) kind: FileType,
    /// Mirrors of the record, written under `state`.
    mode: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
    nlink: AtomicU32,
    blocks: AtomicU64,
    /// The size that programs see; the record's is what the device has bytes for.
    pub(crate) size: AtomicU64,
    atime_ns: AtomicI64,
    mtime_ns: AtomicI64,
    ctime_ns: AtomicI64,
    btime_ns: i64,
    /// Device number of a special file.
    pub(crate) rdev: u64,
    /// Whether the times are newer than the record.
    late: AtomicBool,
    /// Whether it is on the list of those whose times wait, of which it is not taken when they are written.
    late_listed: AtomicBool,
    /// Open descriptions.
    pub(crate) opens: AtomicU32,
    /// Those who keep it as it is without having it open: see `Kept`.
    pub(crate) kept: AtomicU32,
    /// Whether it was found since inodes were evicted last.
    recent: AtomicBool,
    /// Whether the inode is gone from the device: no name, no description.
    pub(crate) reaped: AtomicBool,
    /// Whether a program has synced the file: then the end of its name is worth a commit, too.
    pub(crate) synced: AtomicBool,
    pub(crate) state: Mutex<State>,
    /// Where its blocks are counted; set once, with what it has then.
    pub(crate) account: OnceLock<Arc<Account>>,
    /// Pages, extents, reservations: the data path's.
    pub(crate) data: FileData,
    /// Only a directory has one.
    pub(crate) directory: Option<Box<Directory>>,
    locks: OnceLock<Box<Locks>>,
    /// Whether the record lies under a key of its own, not in the entry of the only name. Changes with the
    /// batch that moves it, under the lock of the open batch.
    own: AtomicBool,
    /// Names of it that went, so far: a path that led here before may not any more.
    pub(crate) unnamed: AtomicU32,
    /// A name that it has. If the record lies in an entry, it is that of this name; it changes with the batch
    /// that renames, under the namespace's write lock and the open batch's. A directory that was removed
    /// keeps it, for `..`.
    dentry: Mutex<Option<Dentry>>,
    /// Where its changes are counted for those who read its version.
    counts: OnceLock<Arc<Counts>>,
}

/// Where an inode's record lies.
pub(crate) struct Home {
    /// Under a key of its own.
    pub(crate) own: bool,
    /// A name of it.
    pub(crate) dentry: Option<Dentry>,
    /// Of a directory: whether it is a zone's root.
    pub(crate) zone: bool,
}

/// What changes together with the inode's records.
pub(crate) struct State {
    /// The record as it was last applied to the store.
    pub(crate) record: Record,
}

/// A directory and a name in it. What is in memory holds the directories above it there.
#[derive(Clone)]
pub(crate) struct Dentry {
    pub(crate) parent: Arc<Inode>,
    pub(crate) name: Arc<[u8]>,
}

/// By what the place of a directory is counted, and who may search it: apart from inodes and names, which change more
/// often.
fn way_of(ino: Ino) -> u64 {
    !ino.0
}

impl Inode {
    /// Where the file ends, as programs see it.
    #[inline]
    pub(crate) fn end(&self) -> ByteOffset {
        ByteOffset(self.size.load(Ordering::Acquire))
    }

    /// An inode as its record describes it.
    pub(crate) fn new(ino: Ino, record: Record, home: Home) -> Self {
        let kind = record.kind();
        let inline = record.inline_data().is_some();
        let directory = (kind == FileType::Directory).then(|| Box::new(Directory::new(home.zone)));
        Self {
            ino,
            kind,
            mode: AtomicU32::new(record.mode),
            uid: AtomicU32::new(record.uid),
            gid: AtomicU32::new(record.gid),
            nlink: AtomicU32::new(record.nlink),
            blocks: AtomicU64::new(record.blocks),
            size: AtomicU64::new(record.size),
            atime_ns: AtomicI64::new(record.atime_ns),
            mtime_ns: AtomicI64::new(record.mtime_ns),
            ctime_ns: AtomicI64::new(record.ctime_ns),
            btime_ns: record.btime_ns,
            rdev: record.rdev,
            late: AtomicBool::new(false),
            late_listed: AtomicBool::new(false),
            opens: AtomicU32::new(0),
            kept: AtomicU32::new(0),
            recent: AtomicBool::new(true),
            reaped: AtomicBool::new(false),
            synced: AtomicBool::new(false),
            state: Mutex::new(State { record }),
            account: account::inherited(home.dentry.as_ref().map(|dentry| &*dentry.parent)),
            data: FileData::new(ino, inline),
            directory,
            locks: OnceLock::new(),
            own: AtomicBool::new(home.own),
            unnamed: AtomicU32::new(0),
            dentry: Mutex::new(home.dentry),
            counts: OnceLock::new(),
        }
    }

    /// Its version, unless it is being changed, or nobody counts.
    pub(crate) fn version(&self) -> Option<Version> {
        self.counts.get()?.settled(self.ino.0)
    }

    /// A directory's version as something on a path: that of its place, and of who may search it.
    pub(crate) fn way_version(&self) -> Option<Version> {
        self.counts.get()?.settled(way_of(self.ino))
    }

    /// The version of what a name in this directory stands for.
    pub(crate) fn name_version(&self, name: &[u8]) -> Option<Version> {
        self.counts.get()?.settled_name(self.ino.0, name)
    }

    /// The place of this inode changes from now on, until the answer is dropped; where it is counted. What is no
    /// directory leads nowhere, and nobody asks for it.
    #[inline]
    pub(crate) fn way_changes(&self) -> Option<Change<'_>> {
        self.counts.get().map(|counts| counts.change(way_of(self.ino)))
    }

    /// What a name in this directory stands for changes from now on, until the answer is dropped; where it is counted.
    /// It begins before anything of the change is to be seen, in the counts of links too.
    #[inline]
    pub(crate) fn name_changes(&self, name: &[u8]) -> Option<Change<'_>> {
        self.counts.get().map(|counts| counts.change_of_name(self.ino.0, name))
    }

    /// Makes a change of its status, its place, or of who may search it, where it is counted.
    #[inline]
    pub(crate) fn counted<T>(&self, change: impl FnOnce() -> T) -> T {
        match self.counts.get() {
            Some(counts) if self.directory.is_some() => {
                counts.counted(way_of(self.ino), || self.counted_status(change))
            }
            _ => self.counted_status(change),
        }
    }

    /// As [`Inode::counted`], of what leads paths through a directory as before.
    #[inline]
    fn counted_status<T>(&self, change: impl FnOnce() -> T) -> T {
        match self.counts.get() {
            None => change(),
            Some(counts) => counts.counted(self.ino.0, change),
        }
    }

    /// The state, locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the state was held left the last published record, which is whole.
        self.state.lock()
    }

    /// The state, locked, unless somebody holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock()
    }

    /// The directory's part.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`].
    pub(crate) fn directory(&self) -> Result<&Directory, FsError> {
        self.directory.as_deref().ok_or(FsError::NotDirectory)
    }

    /// Kind and mode bits.
    pub(crate) fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }

    /// Owner.
    pub(crate) fn uid(&self) -> u32 {
        self.uid.load(Ordering::Relaxed)
    }

    /// Group.
    pub(crate) fn gid(&self) -> u32 {
        self.gid.load(Ordering::Relaxed)
    }

    /// Links.
    pub(crate) fn nlink(&self) -> u32 {
        self.nlink.load(Ordering::SeqCst)
    }

    /// Data blocks in its extents.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Times: access, change of data, change of the inode, creation.
    #[inline]
    pub(crate) fn times_ns(&self) -> [i64; 4] {
        let load = |time: &AtomicI64| time.load(Ordering::Relaxed);
        [load(&self.atime_ns), load(&self.mtime_ns), load(&self.ctime_ns), self.btime_ns]
    }

    /// The record that would be written now: the last one with the newest times. The times count as
    /// written from here on; one set later makes the inode late again.
    pub(crate) fn compose(&self, state: &State) -> Record {
        self.late.store(false, Ordering::SeqCst);
        let [atime_ns, mtime_ns, ctime_ns, _] = self.times_ns();
        Record { atime_ns, mtime_ns, ctime_ns, ..state.record.clone() }
    }

    /// A record was applied: it is the inode's state from now on.
    #[inline]
    pub(crate) fn publish(&self, state: &mut State, record: Record) {
        self.publish_charged(state, record, 0);
    }

    /// As [`Inode::publish`], where the account was charged for `charged` of the record's blocks before.
    #[inline]
    pub(crate) fn publish_charged(&self, state: &mut State, record: Record, charged: u64) {
        assert_eq!(record.mode & MODE_KIND, self.kind.mode(), "an inode became one of another type");
        let told = |record: &Record| {
            (record.mode, record.uid, record.gid, record.nlink, record.blocks, record.xattrs.is_some())
        };
        let way = |record: &Record| (record.mode, record.uid, record.gid, record.nlink == 0);
        let publish = || self.publish_record(&record, charged);
        // Times that were told before, extents, bytes that the record holds: nobody sees them change.
        if self.counts.get().is_none() || told(&state.record) == told(&record) {
            publish();
        } else if way(&state.record) == way(&record) {
            self.counted_status(publish);
        } else {
            self.counted(publish);
        }
        state.record = record;
    }

    /// As [`Inode::publish`], of a record that differs by size, times and where the blocks lie alone: the size is told
    /// elsewhere, the times were told before, and of the rest nobody but the store knows.
    #[inline]
    pub(crate) fn publish_extents(&self, state: &mut State, record: Record) {
        assert_eq!(record.blocks, self.blocks(), "inode {} has got blocks, or lost some", self.ino);
        state.record = record;
    }

    #[inline]
    fn publish_record(&self, record: &Record, charged: u64) {
        self.data.residence.recorded(record.inline_data().is_some());
        self.mode.store(record.mode, Ordering::Relaxed);
        self.uid.store(record.uid, Ordering::Relaxed);
        self.gid.store(record.gid, Ordering::Relaxed);
        self.nlink.store(record.nlink, Ordering::SeqCst);
        let before = self.blocks.swap(record.blocks, Ordering::Relaxed);
        if let Some(account) = self.account.get() {
            account.recount(before + charged, record.blocks);
        }
    }

    /// Sets the times of access and of both changes; none leaves one as it is. True when the inode was
    /// not late before: the caller then lists it.
    #[must_use]
    #[inline]
    pub(crate) fn touch(&self, atime: Option<i64>, mtime: Option<i64>, ctime: Option<i64>) -> bool {
        let set = || {
            for (place, time) in [(&self.atime_ns, atime), (&self.mtime_ns, mtime), (&self.ctime_ns, ctime)] {
                if let Some(time) = time {
                    place.store(time, Ordering::Relaxed);
                }
            }
        };
        // A directory that gets or loses a name changes with its modification time, and stays where it is.
        if ctime.is_some() && mtime.is_none() {
            self.counted(set)
        } else {
            self.counted_status(set)
        }
        // Who composes a record takes `late` back and then loads the times: these are there before it is looked at.
        fence(Ordering::SeqCst);
        !self.late.load(Ordering::Relaxed) && !self.late.swap(true, Ordering::SeqCst)
    }

    /// Whether its times of modification and change are this one, and wait to be written.
    #[inline]
    pub(crate) fn is_late_since(&self, now: i64) -> bool {
        let is_now = |time: &AtomicI64| time.load(Ordering::Relaxed) == now;
        self.late.load(Ordering::SeqCst) && is_now(&self.mtime_ns) && is_now(&self.ctime_ns)
    }

    /// Whether somebody has it open, or keeps it: without a name it lives on.
    pub(crate) fn is_used(&self) -> bool {
        self.opens.load(Ordering::SeqCst) > 0 || self.kept.load(Ordering::SeqCst) > 0
    }

    /// It was found by name.
    #[inline]
    pub(crate) fn found(&self) {
        // Mostly it is set already, and a store would take the line from other cores.
        if !self.recent.load(Ordering::Relaxed) {
            self.recent.store(true, Ordering::Relaxed);
        }
    }

    /// Whether times wait to be written.
    pub(crate) fn is_late(&self) -> bool {
        self.late.load(Ordering::SeqCst)
    }

    /// It is to be listed as late; whether it is not yet.
    pub(crate) fn lists_late(&self) -> bool {
        !self.late_listed.swap(true, Ordering::SeqCst)
    }

    /// It is taken off that list, and looked at afterwards: one that becomes late from here on lists itself anew.
    pub(crate) fn unlists_late(&self) {
        self.late_listed.store(false, Ordering::SeqCst);
    }

    /// It is taken off that list; whether it is to be on it once more, which nobody else has seen to.
    pub(crate) fn stays_listed(&self) -> bool {
        self.unlists_late();
        self.is_late() && self.lists_late()
    }

    /// The locks, made at the first use.
    pub(crate) fn locks(&self) -> &Locks {
        self.locks.get_or_init(Box::default)
    }

    /// The locks, if there ever were any.
    pub(crate) fn locks_if_any(&self) -> Option<&Locks> {
        self.locks.get().map(|locks| &**locks)
    }

    /// Whether its record lies under a key of its own.
    pub(crate) fn is_own(&self) -> bool {
        self.own.load(Ordering::SeqCst)
    }

    /// Its record was moved; the caller holds the open batch.
    pub(crate) fn set_own(&self, own: bool) {
        self.own.store(own, Ordering::SeqCst);
    }

    /// A name of it, if one is known.
    pub(crate) fn with_dentry<T>(&self, look: impl FnOnce(Option<&Dentry>) -> T) -> T {
        look(self.dentry.lock().as_ref())
    }

    /// A name of it, if one is known.
    pub(crate) fn dentry(&self) -> Option<Dentry> {
        self.with_dentry(|dentry| dentry.cloned())
    }

    /// The directory of that name; of a removed directory, the one that was above it.
    pub(crate) fn parent(&self) -> Option<Arc<Inode>> {
        self.with_dentry(|dentry| dentry.map(|dentry| Arc::clone(&dentry.parent)))
    }

    /// Whether `name` in `directory` is the name that is remembered.
    pub(crate) fn is_at(&self, directory: &Inode, name: &[u8]) -> bool {
        self.with_dentry(|dentry| {
            dentry.is_some_and(|dentry| dentry.parent.ino == directory.ino && *dentry.name == *name)
        })
    }

    /// Remembers a name, or none.
    pub(crate) fn set_dentry(&self, dentry: Option<Dentry>) {
        let before = {
            let mut held = self.dentry.lock();
            core::mem::replace(&mut *held, dentry)
        };
        // Outside the lock: it may be the last that held the directory.
        drop(before);
    }
}

impl Drop for InodeTable {
    fn drop(&mut self) {
        // Bottom up, so that no drop of a directory goes on to the one above it, and so on.
        for inode in self.collect(|_| true) {
            inode.set_dentry(None);
        }
    }
}

/// Shards of the table: more than the threads that meet on a small machine.
const SHARDS: usize = 16;

type Shard = HashMap<Ino, Arc<Inode>, crate::hash::Numbers>;

/// Inodes in memory by number.
pub(crate) struct InodeTable {
    shards: [Mutex<Shard>; SHARDS],
    count: AtomicU64,
    /// Where changes of inodes are counted, if they are.
    counts: OnceLock<Arc<Counts>>,
}

impl InodeTable {
    pub(crate) fn new() -> Self {
        Self {
            shards: core::array::from_fn(|_| Mutex::default()),
            count: AtomicU64::new(0),
            counts: OnceLock::new(),
        }
    }

    /// From now on changes of inodes are counted. Before anybody changes one.
    pub(crate) fn count_changes(&self, counts: &Arc<Counts>) {
        let _ = self.counts.set(Arc::clone(counts));
        self.collect(|_| true).iter().for_each(|inode| self.count_those_of(inode));
    }

    fn count_those_of(&self, inode: &Inode) {
        if let Some(counts) = self.counts.get() {
            let _ = inode.counts.set(Arc::clone(counts));
        }
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        self.shards[ino.0 as usize % SHARDS].lock()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The inode, if it is in memory.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).get(&ino).cloned()
    }

    /// The inode, loaded by `load` if it is not in memory. The shard is locked meanwhile, so that no
    /// inode is ever in memory twice.
    ///
    /// # Errors
    /// What `load` answers.
    pub(crate) fn get_or_load(
        &self,
        ino: Ino,
        load: impl FnOnce() -> Result<(Record, Home), FsError>,
    ) -> Result<Arc<Inode>, FsError> {
        match self.shard(ino).entry(ino) {
            Entry::Occupied(found) => Ok(Arc::clone(found.get())),
            Entry::Vacant(free) => {
                let (record, home) = load()?;
                let inode = Arc::new(Inode::new(ino, record, home));
                self.count_those_of(&inode);
                self.count.fetch_add(1, Ordering::Relaxed);
                Ok(Arc::clone(free.insert(inode)))
            }
        }
    }

    /// Adds a new inode.
    pub(crate) fn insert(&self, inode: &Arc<Inode>) {
        self.count_those_of(inode);
        let before = self.shard(inode.ino).insert(inode.ino, Arc::clone(inode));
        assert!(before.is_none(), "inode {} was made twice", inode.ino);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets an inode that is gone from the device.
    pub(crate) fn remove(&self, ino: Ino) {
        if self.shard(ino).remove(&ino).is_some() {
            take_from(&self.count, 1, "inodes in memory");
        }
    }

    /// Spoils the count.
    #[cfg(test)]
    pub(crate) fn forget_count(&self) {
        self.count.store(0, Ordering::Relaxed);
    }

    /// Takes inodes out that nobody else holds and that `may_go`, about `limit` of them, and spares those
    /// found since the last time; the caller holds the namespace's write lock, so that nobody finds one
    /// meanwhile through a directory.
    pub(crate) fn evict(&self, limit: usize, may_go: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let mut gone = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let idle = shard.values().filter(|inode| {
                Arc::strong_count(inode) == 1 && may_go(inode) && !inode.recent.swap(false, Ordering::Relaxed)
            });
            let numbers: Vec<Ino> = idle.take(limit.div_ceil(SHARDS)).map(|inode| inode.ino).collect();
            gone.extend(numbers.iter().filter_map(|ino| shard.remove(ino)));
        }
        take_from(&self.count, gone.len() as u64, "inodes in memory");
        gone
    }

    /// Every inode in memory that `wanted` accepts.
    pub(crate) fn collect(&self, wanted: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            found.extend(shard.values().filter(|inode| wanted(inode)).cloned());
        }
        found
    }
}
