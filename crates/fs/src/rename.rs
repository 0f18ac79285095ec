//! Renaming: both sides are one batch (rename(2), renameat2(2)).

use crate::core::{Core, ROOT};
use crate::error::FsError;
use crate::inode::{Inode, State};
use crate::namespace::{Dropped, grown};
use crate::permission::{self, WRITE};
use crate::record::Record;
use crate::resolve::{Component, Last, Resolved};
use crate::status::{Credentials, Kind, RenameFlags};
use std::sync::{Arc, MutexGuard};

/// A directory whose record changes with a rename: its locked state, and the record to be.
struct Edit<'a> {
    inode: &'a Arc<Inode>,
    state: MutexGuard<'a, State>,
    record: Record,
}

impl<'a> Edit<'a> {
    /// A directory gets `more` subdirectories.
    fn links(inode: &'a Arc<Inode>, more: i32) -> Result<Option<Self>, FsError> {
        if more == 0 {
            return Ok(None);
        }
        let (state, record) = grown(inode, more)?;
        Ok(Some(Self { inode, state, record }))
    }

    /// A directory moves below another one.
    fn parent(inode: &'a Arc<Inode>, above: &Inode, crosses: bool) -> Option<Self> {
        if !crosses || !is_directory(inode) {
            return None;
        }
        let state = inode.lock();
        let record = Record { parent: above.ino, ..*state.record() };
        Some(Self { inode, state, record })
    }

    /// The change was applied.
    fn publish(mut self) {
        if let Some(directory) = &self.inode.directory {
            directory.set_parent(self.record.parent);
        }
        self.inode.publish(&mut self.state, self.record);
    }
}

fn is_directory(inode: &Inode) -> bool {
    inode.kind == Kind::Directory
}

impl Core {
    /// Renames `old` below `from` to `new` below `to`.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when a directory would move below itself; [`FsError::NotEmpty`],
    /// [`FsError::IsDirectory`], [`FsError::NotDirectory`] for what would be replaced;
    /// [`FsError::Exists`], [`FsError::Busy`]; those of resolution and the store's.
    pub(crate) fn rename_at(
        &self,
        (from, old): (&Arc<Inode>, &[u8]),
        (to, new): (&Arc<Inode>, &[u8]),
        flags: RenameFlags,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.writable()?;
        let namespace = self.names_write();
        let source = self.resolve(from, old, Last::Name, who)?;
        let target = self.resolve(to, new, Last::Name, who)?;
        match (source.component, target.component, flags) {
            (Component::Name, Component::Name, _) => {}
            (Component::Name, _, RenameFlags::NoReplace) => return Err(FsError::Exists),
            _ => return Err(FsError::Busy),
        }
        let moved = source.inode.as_ref().ok_or(FsError::NotFound)?;
        match (&target.inode, flags) {
            (Some(_), RenameFlags::NoReplace) => return Err(FsError::Exists),
            (None, RenameFlags::Exchange) => return Err(FsError::NotFound),
            _ => {}
        }
        // A slash asks for a directory: after the old name, and after the new one where, in an exchange,
        // it is the other's.
        let exchange = flags == RenameFlags::Exchange;
        let meant = target.inode.as_ref().filter(|_| exchange).unwrap_or(moved);
        if source.slash && !is_directory(moved) || target.slash && !is_directory(meant) {
            return Err(FsError::NotDirectory);
        }
        match &target.inode {
            Some(victim) if victim.ino == moved.ino => Ok(()),
            Some(victim) if exchange => {
                self.check_exchange(&source, &target, moved, victim, who)?;
                self.exchange(&source, &target, moved, victim)
            }
            victim => {
                self.check_replace(&source, &target, moved, victim.as_ref(), who)?;
                self.replace(&source, &target, moved, victim.as_ref())?;
                drop(namespace);
                victim.as_ref().map_or(Ok(()), |victim| self.reap_if_unused(victim))
            }
        }
    }

    /// What forbids `moved` to leave `from` for `to`.
    fn check_leave(
        &self,
        moved: &Inode,
        from: &Arc<Inode>,
        to: &Arc<Inode>,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        if is_directory(moved) && self.is_above(moved, to)? {
            return Err(FsError::Invalid);
        }
        permission::may_remove(from, moved, who)?;
        // Moving a directory changes its `..`.
        if is_directory(moved) && from.ino != to.ino {
            permission::may(moved, WRITE, who)?;
        }
        Ok(())
    }

    fn check_replace(
        &self,
        source: &Resolved<'_>,
        target: &Resolved<'_>,
        moved: &Inode,
        victim: Option<&Arc<Inode>>,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.check_leave(moved, &source.directory, &target.directory, who)?;
        permission::may_change_names(&target.directory, who)?;
        let Some(victim) = victim else { return Ok(()) };
        if is_directory(victim) && self.is_above(victim, &source.directory)? {
            return Err(FsError::NotEmpty);
        }
        permission::may_remove(&target.directory, victim, who)?;
        match (is_directory(moved), is_directory(victim)) {
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            (true, true) if !self.is_empty(victim)? => Err(FsError::NotEmpty),
            _ => Ok(()),
        }
    }

    fn check_exchange(
        &self,
        source: &Resolved<'_>,
        target: &Resolved<'_>,
        moved: &Inode,
        other: &Inode,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.check_leave(moved, &source.directory, &target.directory, who)?;
        self.check_leave(other, &target.directory, &source.directory, who)
    }

    /// Whether `upper` is `directory` or one of those above it.
    fn is_above(&self, upper: &Inode, directory: &Arc<Inode>) -> Result<bool, FsError> {
        let mut at = Arc::clone(directory);
        // Each step leads up a tree of which every step was checked when it was made: a circle of
        // parents is damage that fsck finds; here only the shortest one is refused.
        while at.ino != upper.ino {
            let above = at.directory()?.parent();
            if at.ino == ROOT {
                return Ok(false);
            }
            if above == at.ino {
                return Err(FsError::Damaged { what: "the parent of directory", of: at.ino });
            }
            at = self.load(above)?;
        }
        Ok(true)
    }

    fn replace(
        &self,
        source: &Resolved<'_>,
        target: &Resolved<'_>,
        moved: &Arc<Inode>,
        victim: Option<&Arc<Inode>>,
    ) -> Result<(), FsError> {
        let now = self.now_ns();
        let (from, to) = (&source.directory, &target.directory);
        let crosses = from.ino != to.ino;
        let arrives = i32::from(is_directory(moved));
        let leaves = i32::from(victim.is_some_and(|victim| is_directory(victim)));
        let (less, more) = if crosses { (-arrives, arrives - leaves) } else { (-leaves, 0) };
        let edits = [Edit::links(from, less)?, Edit::links(to, more)?, Edit::parent(moved, to, crosses)];
        let dropped = victim.map(|victim| Dropped::begin(victim, now));
        let mut change = self.change();
        change.delete_entry(from.ino, source.name());
        change.put_entry(to.ino, target.name(), moved.ino, moved.kind);
        for edit in edits.iter().flatten() {
            change.put_inode(edit.inode.ino, &edit.record);
        }
        if let Some(dropped) = &dropped {
            dropped.log(&mut change)?;
        }
        change.apply()?;
        edits.into_iter().flatten().for_each(Edit::publish);
        self.forget_name(from, source.name())?;
        self.set_name(to, target.name(), moved)?;
        if let Some(dropped) = dropped {
            dropped.finish(self);
        }
        self.stamp(&[from, to], &[moved], now);
        Ok(())
    }

    fn exchange(
        &self,
        source: &Resolved<'_>,
        target: &Resolved<'_>,
        moved: &Arc<Inode>,
        other: &Arc<Inode>,
    ) -> Result<(), FsError> {
        let now = self.now_ns();
        let (from, to) = (&source.directory, &target.directory);
        let crosses = from.ino != to.ino;
        let more = i32::from(crosses) * (i32::from(is_directory(moved)) - i32::from(is_directory(other)));
        let edits = [
            Edit::links(from, -more)?,
            Edit::links(to, more)?,
            Edit::parent(moved, to, crosses),
            Edit::parent(other, from, crosses),
        ];
        let mut change = self.change();
        change.put_entry(to.ino, target.name(), moved.ino, moved.kind);
        change.put_entry(from.ino, source.name(), other.ino, other.kind);
        for edit in edits.iter().flatten() {
            change.put_inode(edit.inode.ino, &edit.record);
        }
        change.apply()?;
        edits.into_iter().flatten().for_each(Edit::publish);
        self.set_name(to, target.name(), moved)?;
        self.set_name(from, source.name(), other)?;
        self.stamp(&[from, to], &[moved, other], now);
        Ok(())
    }

    fn stamp(&self, parents: &[&Arc<Inode>], moved: &[&Arc<Inode>], now: i64) {
        for parent in parents {
            self.touch(parent, None, Some(now), Some(now));
        }
        for inode in moved {
            self.touch(inode, None, None, Some(now));
        }
    }
}
