//! What a directory tree has used of what it may: data blocks and inodes (quotas by directory).
//!
//! An account counts, of every inode below its directory, the blocks that are allocated and those that are promised. An
//! inode that is loaded or made joins the account of its directory; links and renames stay inside one. A file with names in
//! and outside a tree counts for the one that it was found by. Nothing of it is on the device: who mounts counts anew.

use crate::codec::keys;
use crate::codec::kind::Kind;
use crate::codec::record::{Entry, Record};
use crate::core::Core;
use crate::error::FsError;
use crate::filesystem::{FileSystem, Node};
use crate::inode::Inode;
use core::ops::{Bound, ControlFlow};
use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_sys::sync::{Arc, Mutex, OnceLock, PoisonError};
use nvmed_units::{BLOCK_BYTES, Ino};
use std::collections::{HashMap, HashSet};

/// How much a tree may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of data, counted in whole blocks of 4 KiB.
    pub bytes: u64,
    /// Files, directories and links of all kinds.
    pub inodes: u64,
}

impl Limits {
    /// No limit.
    pub const NONE: Self = Self { bytes: u64::MAX, inodes: u64::MAX };
}

/// What a tree uses, and what it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in whole blocks, allocated or promised to data that waits in the cache.
    pub bytes: u64,
    /// Inodes, its root not among them.
    pub inodes: u64,
    /// The most of both.
    pub limits: Limits,
}

/// A count and its limit.
struct Counted {
    used: AtomicU64,
    limit: AtomicU64,
}

impl Counted {
    fn new() -> Self {
        Self { used: AtomicU64::new(0), limit: AtomicU64::new(u64::MAX) }
    }

    fn take(&self, more: u64) -> Result<(), FsError> {
        let limit = self.limit.load(Ordering::Relaxed);
        let add = |used: u64| used.checked_add(more).filter(|sum| *sum <= limit);
        let added = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map(drop).map_err(|_| FsError::Quota)
    }

    fn change(&self, less: u64, more: u64) {
        let changed = |used: u64| match more.checked_sub(less) {
            Some(growth) => used.saturating_add(growth),
            // What the account began with is counted from the device, which may be damaged.
            None => used.saturating_sub(less - more),
        };
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(changed(used)));
    }

    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }
}

/// What one tree has used.
pub(crate) struct Account {
    blocks: Counted,
    inodes: Counted,
}

impl Account {
    fn new() -> Self {
        Self { blocks: Counted::new(), inodes: Counted::new() }
    }

    /// Where `before` blocks were counted, `after` are.
    pub(crate) fn recount(&self, before: u64, after: u64) {
        if before != after {
            self.blocks.change(before, after);
        }
    }

    fn usage(&self) -> Usage {
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_BYTES as u64);
        Usage {
            bytes: bytes(self.blocks.used()),
            inodes: self.inodes.used(),
            limits: Limits { bytes: bytes(self.blocks.limit()), inodes: self.inodes.limit() },
        }
    }

    /// Total and free blocks, total and free inodes, at most those given.
    pub(crate) fn bounds(&self, [blocks, free, files, files_free]: [u64; 4]) -> [u64; 4] {
        let within = |counted: &Counted, all: u64, free: u64| {
            let total = counted.limit().min(all);
            (total, counted.limit().saturating_sub(counted.used()).min(free))
        };
        let (blocks, free) = within(&self.blocks, blocks, free);
        let (files, files_free) = within(&self.inodes, files, files_free);
        [blocks, free, files, files_free]
    }
}

/// The accounts of a mount, by the number of their directory, which they keep in memory.
pub(crate) type Accounts = Mutex<HashMap<Ino, (Arc<Inode>, Arc<Account>)>>;

/// Room for one more inode of a directory's account; given back unless kept.
pub(crate) struct Room(Option<Arc<Account>>);

impl Room {
    /// # Errors
    /// [`FsError::Quota`].
    pub(crate) fn take(directory: &Inode) -> Result<Self, FsError> {
        let account = directory.account.get();
        account.map_or(Ok(()), |account| account.inodes.take(1))?;
        Ok(Self(account.cloned()))
    }

    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(account) = &self.0 {
            account.inodes.change(1, 0);
        }
    }
}

/// The account that an inode below a directory begins with.
pub(crate) fn inherited(directory: Option<&Inode>) -> OnceLock<Arc<Account>> {
    directory.map_or_else(OnceLock::new, |directory| directory.account.clone())
}

impl Inode {
    /// Its account takes `blocks` more.
    ///
    /// # Errors
    /// [`FsError::Quota`].
    pub(crate) fn charge(&self, blocks: u64) -> Result<(), FsError> {
        self.account.get().map_or(Ok(()), |account| account.blocks.take(blocks))
    }

    /// Blocks that it was charged for are not needed.
    pub(crate) fn discharge(&self, blocks: u64) {
        if let Some(account) = self.account.get() {
            account.recount(blocks, 0);
        }
    }

    /// It is gone from the device, with the blocks of its last record.
    pub(crate) fn leave_account(&self) {
        if let Some(account) = self.account.get() {
            account.recount(self.blocks(), 0);
            account.inodes.change(1, 0);
        }
    }

    /// A new inode without a name counts where the directory does for which it was made.
    pub(crate) fn count_with(&self, directory: &Inode) {
        if let Some(account) = directory.account.get() {
            let _ = self.account.set(Arc::clone(account));
        }
    }

    /// Whether it may get a name in a directory.
    ///
    /// # Errors
    /// [`FsError::OtherTree`].
    pub(crate) fn same_account(&self, directory: &Inode) -> Result<(), FsError> {
        let same = match (self.account.get(), directory.account.get()) {
            (None, None) => true,
            (Some(mine), Some(its)) => Arc::ptr_eq(mine, its),
            _ => false,
        };
        if same { Ok(()) } else { Err(FsError::OtherTree) }
    }
}

/// A name, and the number and kind of what it stands for.
type Named = (Box<[u8]>, Ino, Kind);

/// A walk through a tree that counts it. The walker holds the namespace for writing: no name appears or goes, and no
/// inode is loaded or leaves memory.
struct Count<'a> {
    core: &'a Core,
    account: &'a Arc<Account>,
    /// Inodes with several names that were counted.
    linked: HashSet<Ino>,
    /// In memory, and not in the account yet.
    found: Vec<Arc<Inode>>,
    blocks: u64,
    inodes: u64,
}

impl Count<'_> {
    /// Counts what is below a directory.
    fn walk(&mut self, root: &Arc<Inode>) -> Result<(), FsError> {
        let mut directories = vec![Arc::clone(root)];
        while let Some(directory) = directories.pop() {
            for (name, ino, kind) in self.entries(&directory)? {
                self.inodes += 1;
                match kind {
                    Kind::Directory => {
                        let found = self.core.child(&directory, &name)?;
                        let lower = found.ok_or(FsError::Damaged { what: "the name of inode", of: ino.0 })?;
                        if lower.account.get().is_some() {
                            // Its use is counted already.
                            return Err(FsError::Busy);
                        }
                        self.found.push(Arc::clone(&lower));
                        directories.push(lower);
                    }
                    _ => self.file(&directory, &name, ino)?,
                }
            }
        }
        Ok(())
    }

    /// Names, numbers and kinds in a directory.
    fn entries(&self, directory: &Arc<Inode>) -> Result<Vec<Named>, FsError> {
        let mut entries = Vec::new();
        let core = self.core;
        let (from, to) =
            core.with_prefix(directory, |prefix| (keys::entry(prefix, b""), keys::entries_end(prefix)));
        core.journal.store.scan(Bound::Excluded(&from), Bound::Excluded(&to), &mut |key, value| {
            if let (Some((_, name)), Some(entry)) = (keys::entry_parts(key), Entry::decode(value)) {
                entries.push((name.into(), entry.ino, entry.kind));
            }
            ControlFlow::Continue(())
        })?;
        Ok(entries)
    }

    fn file(&mut self, directory: &Arc<Inode>, name: &[u8], ino: Ino) -> Result<(), FsError> {
        if let Some(inode) = self.core.inodes.get(ino) {
            if inode.nlink() > 1 && !self.linked.insert(ino) {
                self.inodes -= 1;
                return Ok(());
            }
            self.found.push(inode);
            return Ok(());
        }
        // Not loaded: a large tree is counted in little memory.
        let mut value = Vec::new();
        let key = self.core.with_prefix(directory, |prefix| keys::entry(prefix, name));
        let damaged = || FsError::Damaged { what: "the record of inode", of: ino.0 };
        let found = self.core.journal.store.get(&key, &mut value)?;
        let entry = found.then(|| Entry::decode(&value)).flatten().ok_or_else(damaged)?;
        let record = match entry.record {
            Some(bytes) => Record::decode(bytes).ok_or_else(damaged)?,
            None => self.core.read_own(ino)?,
        };
        if record.nlink > 1 && !self.linked.insert(ino) {
            self.inodes -= 1;
            return Ok(());
        }
        self.blocks += record.blocks;
        Ok(())
    }

    /// Has what is in memory join the account, with what it has now.
    fn join(self) {
        for inode in &self.found {
            // Nobody gives it a block or a promise, or takes one, meanwhile.
            let _grow = inode.data.grow();
            let _quiet = inode.data.quiet();
            let _state = inode.lock();
            if inode.account.set(Arc::clone(self.account)).is_ok() {
                self.account.recount(0, inode.blocks() + self.core.data.blocks_promised(inode));
            }
        }
        self.account.recount(0, self.blocks);
        self.account.inodes.change(0, self.inodes);
    }
}

impl FileSystem {
    /// Bounds what a directory and everything below it may use together: from now on, what would need more is
    /// [`FsError::Quota`], and links and renames across its border are [`FsError::OtherTree`]. What is there already is
    /// counted first, while names wait; a limit below it only stops growth. Holds until the file system is mounted anew.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`]; [`FsError::Busy`] where a directory above or below is bounded; the store's.
    pub fn bound_tree(&self, directory: &Node, limits: Limits) -> Result<Usage, FsError> {
        directory.0.directory()?;
        let core = &self.0;
        let _namespace = core.names_write();
        let mut accounts = core.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let account = match accounts.get(&directory.0.ino) {
            Some((_, account)) => Arc::clone(account),
            None if directory.0.account.get().is_some() => return Err(FsError::Busy),
            None => {
                let account = Arc::new(Account::new());
                let (linked, found) = (HashSet::new(), vec![Arc::clone(&directory.0)]);
                let mut count = Count { core, account: &account, linked, found, blocks: 0, inodes: 0 };
                count.walk(&directory.0)?;
                count.join();
                accounts.insert(directory.0.ino, (Arc::clone(&directory.0), Arc::clone(&account)));
                account
            }
        };
        account.blocks.limit.store(limits.bytes / BLOCK_BYTES as u64, Ordering::Relaxed);
        account.inodes.limit.store(limits.inodes, Ordering::Relaxed);
        Ok(account.usage())
    }

    /// What the bounded tree uses in which an inode is, if there is one.
    #[must_use]
    pub fn usage(&self, node: &Node) -> Option<Usage> {
        node.0.account.get().map(|account| account.usage())
    }
}
