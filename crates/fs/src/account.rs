//! What a directory tree has used of what it may: data blocks and inodes (quotas by directory).
//!
//! An account counts, of every inode below its directory, the blocks that are allocated and those that are promised. An
//! inode that is loaded or made joins the account of its directory; links and renames stay inside one. A file with
//! names in and outside a tree counts for the one that it was found by. Nothing of it is on the device: who mounts
//! counts anew.

use crate::error::FsError;
use crate::inode::Inode;
use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_sys::sync::{Arc, Mutex, OnceLock};
use nvmed_units::{BLOCK_BYTES, Ino};
use std::collections::HashMap;

/// The accounts of a mount, by the number of their directory, which they keep in memory.
pub(crate) type Accounts = Mutex<HashMap<Ino, (Arc<Inode>, Arc<Account>)>>;

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
    /// Of nothing yet, without limits.
    pub(crate) fn new() -> Self {
        Self { blocks: Counted::new(), inodes: Counted::new() }
    }

    /// Where `before` blocks were counted, `after` are.
    pub(crate) fn recount(&self, before: u64, after: u64) {
        if before != after {
            self.blocks.change(before, after);
        }
    }

    /// What was used, and may be.
    pub(crate) fn usage(&self) -> Usage {
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_BYTES as u64);
        Usage {
            bytes: bytes(self.blocks.used()),
            inodes: self.inodes.used(),
            limits: Limits { bytes: bytes(self.blocks.limit()), inodes: self.inodes.limit() },
        }
    }

    /// Counts what it begins with.
    pub(crate) fn begin(&self, blocks: u64, inodes: u64) {
        self.recount(0, blocks);
        self.inodes.change(0, inodes);
    }

    /// Sets what may be used.
    pub(crate) fn limit(&self, limits: Limits) {
        self.blocks.limit.store(limits.bytes / BLOCK_BYTES as u64, Ordering::Relaxed);
        self.inodes.limit.store(limits.inodes, Ordering::Relaxed);
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
