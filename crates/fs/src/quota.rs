//! Bounds for directory trees: what is there already is counted once, and joins an account.

use crate::account::{Account, Limits, Usage};
use crate::core::Core;
use crate::error::FsError;
use crate::filesystem::{FileSystem, Node};
use crate::inode::Inode;
use core::ops::{Bound, ControlFlow};
use nvmed_layout::record::{Entry, Record};
use nvmed_layout::{Damage, FileType, keys};
use nvmed_sys::sync::Arc;
use nvmed_units::Ino;
use std::collections::HashSet;

/// A name, and the number and kind of what it stands for.
type Named = (Box<[u8]>, Ino, FileType);

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
                    FileType::Directory => {
                        let found = self.core.child(&directory, &name)?;
                        let lower = found.ok_or(Damage::Name(ino))?;
                        if lower.account.get().is_some() {
                            // Its use is counted already.
                            return Err(FsError::TreeInTree);
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
            core.meta.with_prefix(directory, |prefix| (keys::entry(prefix, b""), keys::entries_end(prefix)));
        core.meta.journal.store.scan(Bound::Excluded(&from), Bound::Excluded(&to), &mut |key, value| {
            if let (Some((_, name)), Some(entry)) = (keys::entry_parts(key), Entry::decode(value)) {
                entries.push((name.into(), entry.ino, entry.kind));
            }
            ControlFlow::Continue(())
        })?;
        Ok(entries)
    }

    fn file(&mut self, directory: &Arc<Inode>, name: &[u8], ino: Ino) -> Result<(), FsError> {
        if let Some(inode) = self.core.meta.inodes.get(ino) {
            if inode.nlink() > 1 && !self.linked.insert(ino) {
                self.inodes -= 1;
                return Ok(());
            }
            self.found.push(inode);
            return Ok(());
        }
        // Not loaded: a large tree is counted in little memory.
        let mut value = Vec::new();
        let key = self.core.meta.with_prefix(directory, |prefix| keys::entry(prefix, name));
        let damaged = || Damage::Inode(ino);
        let found = self.core.meta.journal.store.get(&key, &mut value)?;
        let entry = found.then(|| Entry::decode(&value)).flatten().ok_or_else(damaged)?;
        let record = match entry.record {
            Some(bytes) => Record::decode(bytes).ok_or_else(damaged)?,
            None => self.core.meta.read_own(ino)?,
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
                self.account.recount(
                    0,
                    inode.blocks() + self.core.meta.blocks_promised(inode) + inode.data.advance.blocks(),
                );
            }
        }
        self.account.begin(self.blocks, self.inodes);
    }
}

impl FileSystem {
    /// Bounds what a directory and everything below it may use together: from now on, what would need more is
    /// [`FsError::Quota`], and links and renames across its border are [`FsError::OtherTree`]. What is there already is
    /// counted first, while names wait; a limit below it only stops growth. Holds until the file system is mounted
    /// anew.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`]; [`FsError::TreeInTree`] where a directory above or below is bounded; the store's.
    pub fn bound_tree(&self, directory: &Node, limits: Limits) -> Result<Usage, FsError> {
        directory.inode.directory()?;
        let core = &self.core;
        let _namespace = core.names_write();
        let mut accounts = core.accounts.lock();
        let account = match accounts.get(&directory.inode.ino) {
            Some((_, account)) => Arc::clone(account),
            None if directory.inode.account.get().is_some() => return Err(FsError::TreeInTree),
            None => {
                let account = Arc::new(Account::new());
                let (linked, found) = (HashSet::new(), vec![Arc::clone(&directory.inode)]);
                let mut count = Count { core, account: &account, linked, found, blocks: 0, inodes: 0 };
                count.walk(&directory.inode)?;
                count.join();
                accounts.insert(directory.inode.ino, (Arc::clone(&directory.inode), Arc::clone(&account)));
                account
            }
        };
        account.limit(limits);
        Ok(account.usage())
    }

    /// What the bounded tree uses in which an inode is, if there is one.
    #[must_use]
    pub fn usage(&self, node: &Node) -> Option<Usage> {
        node.inode.account.get().map(|account| account.usage())
    }
}
