//! Renaming: both sides are one batch (rename(2), renameat2(2)).

use crate::core::Core;
use crate::error::FsError;
use crate::inode::{Dentry, Inode, State};
use crate::metadata::change::Change;
use crate::metadata::zone::Below;
use crate::namespace::{Dropped, grown, not_kept};
use crate::permission::{self, WRITE};
use crate::resolve::{Component, Last, Resolved};
use crate::status::{Credentials, RenameFlags};
use crate::versions;
use crate::view::Start;
use nvmed_layout::keys::{self, PREFIX_BYTES_MAX};
use nvmed_layout::record::Record;
use nvmed_layout::{FileType, ROOT};
use nvmed_mutant::Mutant;
use nvmed_sys::sync::{Arc, MutexGuard};

/// A directory whose number of subdirectories changes: its locked state, and the record to be.
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

    /// The change was applied.
    fn publish(self) {
        let Self { inode, mut state, record } = self;
        inode.publish(&mut state, record);
    }
}

/// An inode on its way to another name: where from, where to, and what a directory that is no zone's root
/// carries along.
struct Journey<'a> {
    inode: &'a Arc<Inode>,
    from: &'a Arc<Inode>,
    to: Dentry,
    /// Its prefix, and the names below.
    carried: Option<(Vec<u8>, Below)>,
    /// It is a zone's root when it arrives.
    zone: bool,
}

/// What two names stand for changes from now on, and where what was there has its place.
fn changes<'a>(
    (source, target): (&'a Resolved<'_>, &'a Resolved<'_>),
    moved: &'a Inode,
    other: Option<&'a Inode>,
) -> [Option<versions::Change<'a>>; 4] {
    let name = |place: &'a Resolved<'_>| place.directory.name_changes(place.name());
    [name(source), name(target), moved.way_changes(), other.and_then(Inode::way_changes)]
}

fn is_directory(inode: &Inode) -> bool {
    inode.kind == FileType::Directory
}

/// Whether the `..` of what is moved may change, where it is a directory that `crosses` into another one.
///
/// # Errors
/// [`FsError::Access`].
fn may_turn(moved: &Inode, crosses: bool, who: &Credentials<'_>) -> Result<(), FsError> {
    if crosses && is_directory(moved) { permission::may(moved, WRITE, who) } else { Ok(()) }
}

impl Core {
    /// Renames `old` below `from` to `new` below `to`.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when a directory would move below itself; [`FsError::NotEmpty`],
    /// [`FsError::IsDirectory`], [`FsError::NotDirectory`] for what would be replaced;
    /// [`FsError::Exists`], [`FsError::NoName`]; those of resolution and the store's.
    pub(crate) fn rename_at(
        &self,
        (from, old): (Start<'_>, &[u8]),
        (to, new): (Start<'_>, &[u8]),
        flags: RenameFlags,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.meta.writable()?;
        let namespace = self.names_write();
        let source = self.resolve(from, old, Last::AnyName, who)?;
        let target = self.resolve(to, new, Last::AnyName, who)?;
        match (source.component, target.component, flags) {
            (Component::Name, Component::Name, _) => {}
            (Component::Name, _, RenameFlags::NoReplace) => return Err(FsError::Exists),
            _ => return Err(FsError::NoName),
        }
        // As Linux looks them up: the old name, then the new one.
        source.check_name()?;
        let moved = source.inode.as_ref().ok_or(FsError::NotFound)?;
        target.check_name()?;
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
        if is_directory(moved) && self.is_above(moved, to) {
            return Err(FsError::Invalid);
        }
        moved.same_account(to)?;
        permission::may_remove(from, moved, who)
    }

    fn check_replace(
        &self,
        source: &Resolved<'_>,
        target: &Resolved<'_>,
        moved: &Inode,
        victim: Option<&Arc<Inode>>,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        // In Linux's order: first how the two lie, then what the caller may do.
        if victim.is_some_and(|victim| is_directory(victim) && self.is_above(victim, &source.directory)) {
            return Err(FsError::NotEmpty);
        }
        self.check_leave(moved, &source.directory, &target.directory, who)?;
        permission::may_change_names(&target.directory, who)?;
        let crosses = source.directory.ino != target.directory.ino;
        let Some(victim) = victim else { return may_turn(moved, crosses, who) };
        permission::may_remove(&target.directory, victim, who)?;
        match (is_directory(moved), is_directory(victim)) {
            (true, false) => return Err(FsError::NotDirectory),
            (false, true) => return Err(FsError::IsDirectory),
            _ => may_turn(moved, crosses, who)?,
        }
        if is_directory(victim) && !self.is_empty(victim)? {
            return Err(FsError::NotEmpty);
        }
        not_kept(victim)
    }

    fn check_exchange(
        &self,
        source: &Resolved<'_>,
        target: &Resolved<'_>,
        moved: &Inode,
        other: &Inode,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        if is_directory(other) && self.is_above(other, &source.directory) {
            return Err(FsError::Invalid);
        }
        self.check_leave(moved, &source.directory, &target.directory, who)?;
        self.check_leave(other, &target.directory, &source.directory, who)?;
        let crosses = source.directory.ino != target.directory.ino;
        may_turn(moved, crosses, who)?;
        may_turn(other, crosses, who)
    }

    /// Whether `upper` is `directory` or one of those above it.
    pub(crate) fn is_above(&self, upper: &Inode, directory: &Arc<Inode>) -> bool {
        let mut at = Some(Arc::clone(directory));
        while let Some(lower) = at.take_if(|lower| lower.ino != upper.ino) {
            if lower.ino == ROOT {
                return false;
            }
            at = lower.parent();
        }
        at.is_some()
    }

    /// What goes along with an inode that gets the name `to`, and whether it is to be a zone there: if its
    /// path would be too long, or what is below it too much for where it goes. The caller holds the open batch.
    fn journey<'a>(
        &self,
        change: &Change<'_>,
        inode: &'a Arc<Inode>,
        from: &'a Arc<Inode>,
        to: Dentry,
    ) -> Result<Journey<'a>, FsError> {
        let Some(_) = inode.directory.as_ref().filter(|part| !part.is_zone()) else {
            return Ok(Journey { inode, from, to, carried: None, zone: false });
        };
        let old = change.prefix(inode);
        let below = self.meta.read_below(&old)?;
        let path = self.meta.prefix_below(&to.parent, &to.name).len() + below.longest;
        let more = self.meta.size_of_name(&to.parent, &to.name).plus(below.size);
        let crowds = !self.share_top(from, &to.parent)
            && self.meta.pressure(&to.parent, more)?.is_some_and(|pressure| pressure.crowded);
        let zone = crowds || path > PREFIX_BYTES_MAX;
        Ok(Journey { inode, from, to, carried: Some((old, below)), zone })
    }

    /// Whether what is below two directories is counted together.
    fn share_top(&self, one: &Arc<Inode>, other: &Arc<Inode>) -> bool {
        matches!((self.meta.top(one), self.meta.top(other)), (Some(one), Some(other)) if one.ino == other.ino)
    }

    /// Gives what travels its new keys.
    fn travel(&self, change: &mut Change<'_>, journeys: &[&Journey<'_>]) {
        let mut moved = Vec::with_capacity(journeys.len());
        for journey in journeys {
            if journey.zone {
                change.becomes_zone(journey.inode);
            }
            let Some((old, below)) = &journey.carried else { continue };
            let new = if journey.zone {
                keys::zone(journey.inode.ino).to_vec()
            } else {
                let mut new = change.prefix(&journey.to.parent);
                keys::push_step(&mut new, &journey.to.name);
                new
            };
            moved.push((old.clone(), new, below));
        }
        change.rekey(&moved);
    }

    fn replace(
        &self,
        source: &Resolved<'_>,
        target: &Resolved<'_>,
        moved: &Arc<Inode>,
        victim: Option<&Arc<Inode>>,
    ) -> Result<(), FsError> {
        let now = self.meta.now_ns();
        let (from, to) = (&source.directory, &target.directory);
        let crosses = from.ino != to.ino;
        let arrives = i32::from(is_directory(moved));
        let leaves = i32::from(victim.is_some_and(|victim| is_directory(victim)));
        let (less, more) = if crosses { (-arrives, arrives - leaves) } else { (-leaves, 0) };
        let edits = [Edit::links(from, less)?, Edit::links(to, more)?];
        let _changes = changes((source, target), moved, victim.map(|victim| &**victim));
        let dropped = victim.map(|victim| Dropped::begin(victim, (to, target.name()), now));
        let name: Arc<[u8]> = target.name().into();
        let dentry = Dentry { parent: Arc::clone(to), name: Arc::clone(&name) };
        let state = moved.lock();
        let mut change = self.meta.change();
        let journey = self.journey(&change, moved, from, dentry.clone())?;
        if victim.is_none() && !self.share_top(from, to) {
            let mut more = self.meta.size_of_name(to, &name);
            if let Some((_, below)) = journey.carried.as_ref().filter(|_| !journey.zone) {
                more = more.plus(below.size);
            }
            change.relieve(self.meta.pressure(to, more)?.as_ref(), to)?;
        }
        self.travel(&mut change, &[&journey]);
        change.delete_name(from, source.name());
        if let Some(dropped) = &dropped {
            dropped.log(&mut change)?;
        }
        if Mutant::RenameInTwoCommits.is_made() {
            change.apply()?;
            self.meta.commit_all()?;
            change = self.meta.change();
        }
        change.put_renamed(dentry, moved, state.record());
        for edit in edits.iter().flatten() {
            change.put_inode(edit.inode, &edit.record);
        }
        change.apply()?;
        drop(state);
        edits.into_iter().flatten().for_each(Edit::publish);
        self.forget_name(from, source.name())?;
        if victim.is_none() {
            self.meta.count_name(to, &name, true);
        }
        self.arrived(&[&journey]);
        self.set_name(to, name, moved)?;
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
        let now = self.meta.now_ns();
        let (from, to) = (&source.directory, &target.directory);
        let crosses = from.ino != to.ino;
        let more = i32::from(crosses) * (i32::from(is_directory(moved)) - i32::from(is_directory(other)));
        let edits = [Edit::links(from, -more)?, Edit::links(to, more)?];
        let dentry =
            |directory: &Arc<Inode>, name: &[u8]| Dentry { parent: Arc::clone(directory), name: name.into() };
        let _changes = changes((source, target), moved, Some(other));
        let states = [moved.lock(), other.lock()];
        let mut change = self.meta.change();
        let there = self.journey(&change, moved, from, dentry(to, target.name()))?;
        let back = self.journey(&change, other, to, dentry(from, source.name()))?;
        self.travel(&mut change, &[&there, &back]);
        for (journey, state) in [&there, &back].into_iter().zip(&states) {
            change.put_renamed(journey.to.clone(), journey.inode, state.record());
            if Mutant::ExchangeInHalves.is_made() {
                change.apply()?;
                self.meta.commit_all()?;
                change = self.meta.change();
            }
        }
        for edit in edits.iter().flatten() {
            change.put_inode(edit.inode, &edit.record);
        }
        change.apply()?;
        drop(states);
        edits.into_iter().flatten().for_each(Edit::publish);
        self.arrived(&[&there, &back]);
        self.set_name(to, there.to.name, moved)?;
        self.set_name(from, back.to.name, other)?;
        self.stamp(&[from, to], &[moved, other], now);
        Ok(())
    }

    /// What was counted below the directories of a journey may be wrong, and paths to the traveller are.
    fn arrived(&self, journeys: &[&Journey<'_>]) {
        for journey in journeys {
            self.unnamed(journey.inode);
            if journey.carried.is_some() {
                self.meta.recount(journey.from);
                self.meta.recount(&journey.to.parent);
                if let Ok(part) = journey.inode.directory() {
                    *part.size() = None;
                }
            }
        }
    }

    fn stamp(&self, parents: &[&Arc<Inode>], moved: &[&Arc<Inode>], now: i64) {
        for parent in parents {
            self.meta.touch(parent, None, Some(now), Some(now));
        }
        for inode in moved {
            self.meta.touch(inode, None, None, Some(now));
        }
    }
}
