//! Making and removing names.
//!
//! Each operation holds the namespace's write lock, is one batch, and changes memory only after the
//! batch was applied.

use crate::LINKS_MAX;
use crate::account::Room;
use crate::blocks::alloc::Run;

use crate::core::Core;
use crate::directory::Size;
use crate::error::FsError;
use crate::filedata::Quiet;
use crate::inode::{Dentry, Home, Inode, State};
use crate::metadata::change::Change;
use crate::permission;
use crate::resolve::{Component, Last, Resolved};
use crate::status::{Credentials, MODE_BITS, MODE_GROUP_EXECUTE, MODE_SETGID};
use crate::view::Start;
use crate::{PATH_BYTES_MAX, xattr};
use core::ops::{Bound, ControlFlow};
use core::sync::atomic::Ordering;
use nvmed_layout::FileType;
use nvmed_layout::keys::{self, TARGET_PART_BYTES};
use nvmed_layout::record::{FLAG_KEYED_EXTENTS, INLINE_TARGET_BYTES, Record, Tail};
use nvmed_mutant::Mutant;
use nvmed_sys::sync::{Arc, MutexGuard};
use nvmed_units::Ino;

/// A new inode's mode, owner and what it is.
pub(crate) struct Recipe<'a> {
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) target: &'a [u8],
    /// Device number, of a special file.
    pub(crate) rdev: u64,
}

impl Recipe<'_> {
    /// The record of an inode made so in a directory: a setgid directory hands its group on, and to
    /// subdirectories the bit itself (Linux, inode_init_owner).
    fn record(&self, directory: &Inode, who: &Credentials<'_>, now_ns: i64) -> Record {
        let mut mode = self.mode & MODE_BITS;
        let mut gid = who.gid;
        if directory.mode() & MODE_SETGID != 0 {
            gid = directory.gid();
            let runs_as_group = mode & (MODE_SETGID | MODE_GROUP_EXECUTE) == MODE_SETGID | MODE_GROUP_EXECUTE;
            if self.kind == FileType::Directory {
                mode |= MODE_SETGID;
            } else if runs_as_group && !who.is_root() && !who.in_group(gid) {
                mode &= !MODE_SETGID;
            }
        }
        let mut record = Record::new(self.kind, mode, who.uid, gid, now_ns);
        match self.kind {
            FileType::Symlink => {
                let inline = self.target.len() <= INLINE_TARGET_BYTES;
                record.tail = Tail::Target(if inline { self.target.into() } else { Arc::default() });
                record.size = self.target.len() as u64;
            }
            FileType::CharDevice | FileType::BlockDevice => record.rdev = self.rdev,
            _ => {}
        }
        record
    }

    fn put_target(&self, change: &mut Change<'_>, ino: Ino) {
        if self.target.len() > INLINE_TARGET_BYTES {
            for (part, bytes) in self.target.chunks(TARGET_PART_BYTES).enumerate() {
                change.put_target(ino, part as u64, bytes);
            }
        }
    }
}

/// An inode that loses a name in a change under way: its locked state, and the record to be.
pub(crate) struct Dropped<'a> {
    inode: &'a Arc<Inode>,
    /// Keeps write-back away from blocks that are freed.
    quiet: Option<Quiet<'a>>,
    state: MutexGuard<'a, State>,
    record: Record,
    gone: bool,
}

impl Core {
    /// Makes an inode named `name` in a directory. The caller holds the namespace for writing and has
    /// found that the name is free.
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::NoSpace`], [`FsError::TooManyLinks`]; the store's.
    pub(crate) fn make(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
        recipe: &Recipe<'_>,
        who: &Credentials<'_>,
    ) -> Result<Arc<Inode>, FsError> {
        self.meta.writable()?;
        permission::may_change_names(directory, who)?;
        let room = Room::take(directory)?;
        let now = self.meta.now_ns();
        let record = recipe.record(directory, who, now);
        let is_directory = recipe.kind == FileType::Directory;
        let zone = is_directory && self.meta.begins_zone(directory, name);
        let pressure = self.meta.pressure(directory, self.meta.size_of_name(directory, name))?;
        let above = if is_directory { Some(grown(directory, 1)?) } else { None };
        let _changes = directory.name_changes(name);
        let mut change = self.meta.change();
        change.relieve(pressure.as_ref(), directory)?;
        let ino = change.new_ino();
        let own = change.put_new((directory, name), (ino, zone), &record);
        recipe.put_target(&mut change, ino);
        if let Some((_, record)) = &above {
            change.put_inode(directory, record);
        }
        change.apply()?;
        if let Some((mut state, record)) = above {
            directory.publish(&mut state, record);
        }
        self.meta.count_name(directory, name, true);
        let name: Arc<[u8]> = name.into();
        let dentry = Dentry { parent: Arc::clone(directory), name: Arc::clone(&name) };
        let inode = Arc::new(Inode::new(ino, record, Home { own, dentry: Some(dentry), zone }));
        if let Ok(made) = inode.directory() {
            made.names_mut().begin_complete();
            *made.size() = directory.directory()?.is_zone().then(Size::default);
        }
        room.keep();
        self.meta.inodes.insert(&inode);
        self.set_name(directory, name, &inode)?;
        self.meta.touch(directory, None, Some(now), Some(now));
        Ok(inode)
    }

    /// Makes an inode without a name (`O_TMPFILE`).
    ///
    /// # Errors
    /// As [`Core::make`].
    pub(crate) fn make_nameless(
        &self,
        directory: &Arc<Inode>,
        mode: u32,
        who: &Credentials<'_>,
    ) -> Result<Arc<Inode>, FsError> {
        self.meta.writable()?;
        permission::may_change_names(directory, who)?;
        let room = Room::take(directory)?;
        let recipe = Recipe { kind: FileType::File, mode, target: b"", rdev: 0 };
        let mut record = recipe.record(directory, who, self.meta.now_ns());
        record.nlink = 0;
        let mut change = self.meta.change();
        let ino = change.new_ino();
        change.put_new_nameless(ino, &record);
        change.apply()?;
        let inode = Arc::new(Inode::new(ino, record, Home { own: true, dentry: None, zone: false }));
        room.keep();
        inode.count_with(directory);
        self.meta.inodes.insert(&inode);
        Ok(inode)
    }

    /// Makes a directory or a symbolic link at a path.
    ///
    /// # Errors
    /// [`FsError::Exists`]; those of resolution and of [`Core::make`].
    pub(crate) fn make_at(
        &self,
        at: Start<'_>,
        path: &[u8],
        recipe: &Recipe<'_>,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        if recipe.kind == FileType::Symlink && recipe.target.is_empty() {
            return Err(FsError::NotFound);
        }
        if recipe.target.len() >= PATH_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let _namespace = self.names_write();
        let place = self.resolve(at, path, Last::Name, who)?;
        if place.inode.is_some() {
            return Err(FsError::Exists);
        }
        if place.slash && recipe.kind != FileType::Directory {
            return Err(FsError::NotFound);
        }
        at.view.writable()?;
        self.make(&place.directory, place.name(), recipe, who).map(drop)
    }

    /// Gives `inode` a second name. `nameless` allows one that never had a first (`O_TMPFILE`).
    ///
    /// # Errors
    /// [`FsError::NotPermitted`] for a directory, [`FsError::TooManyLinks`], [`FsError::Exists`]; those of
    /// resolution and the store's.
    pub(crate) fn link_inode(
        &self,
        inode: &Arc<Inode>,
        place: &Resolved<'_>,
        nameless: bool,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.meta.writable()?;
        if place.inode.is_some() {
            return Err(FsError::Exists);
        }
        if place.slash {
            return Err(FsError::NotFound);
        }
        permission::may_change_names(&place.directory, who)?;
        if inode.kind == FileType::Directory {
            return Err(FsError::NotPermitted);
        }
        inode.same_account(&place.directory)?;
        let now = self.meta.now_ns();
        let pressure =
            self.meta.pressure(&place.directory, self.meta.size_of_name(&place.directory, place.name()))?;
        let mut state = inode.lock();
        // With the times that it has: newer ones wait on, also if this fails.
        let mut record = state.record().clone();
        let was_nameless = record.nlink == 0;
        // What has lost its last name stays without one, as on Linux.
        let may_be = nameless && inode.unnamed.load(Ordering::SeqCst) == 0;
        if was_nameless && !may_be || inode.reaped.load(Ordering::SeqCst) {
            return Err(FsError::NotFound);
        }
        if record.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        record.nlink += 1;
        record.ctime_ns = now;
        let _changes = place.directory.name_changes(place.name());
        let name: Arc<[u8]> = place.name().into();
        let named = Dentry { parent: Arc::clone(&place.directory), name: Arc::clone(&name) };
        let mut change = self.meta.change();
        change.relieve(pressure.as_ref(), &place.directory)?;
        if was_nameless {
            change.put_first_name(named, inode, &record);
            change.delete_orphan(inode.ino);
        } else {
            change.put_inode(inode, &record);
            if Mutant::LinkCountedFirst.is_made() {
                change.apply()?;
                self.meta.commit_all()?;
                change = self.meta.change();
            }
            change.put_name(&place.directory, &name, inode);
            change.set_dentry(inode, Some(named));
        }
        change.apply()?;
        inode.publish(&mut state, record);
        drop(state);
        self.meta.count_name(&place.directory, &name, true);
        self.meta.touch(inode, None, None, Some(now));
        self.set_name(&place.directory, name, inode)?;
        self.meta.touch(&place.directory, None, Some(now), Some(now));
        Ok(())
    }

    /// Removes a name of a file.
    ///
    /// # Errors
    /// [`FsError::IsDirectory`], [`FsError::Kept`]; those of resolution and the store's.
    pub(crate) fn unlink_at(&self, at: Start<'_>, path: &[u8], who: &Credentials<'_>) -> Result<(), FsError> {
        self.meta.writable()?;
        let namespace = self.names_write();
        let place = self.resolve(at, path, Last::Name, who)?;
        let victim = place.inode.as_ref().ok_or(FsError::NotFound)?;
        let is_directory = victim.kind == FileType::Directory;
        if place.slash || place.component != Component::Name {
            return Err(if is_directory { FsError::IsDirectory } else { FsError::NotDirectory });
        }
        // In Linux's order: whoever may not remove it is told that first.
        permission::may_remove(&place.directory, victim, who)?;
        if is_directory {
            return Err(FsError::IsDirectory);
        }
        not_kept(victim)?;
        let now = self.meta.now_ns();
        let changes = place.directory.name_changes(place.name());
        let dropped = Dropped::begin(victim, (&place.directory, place.name()), now);
        let mut change = self.meta.change();
        change.delete_name(&place.directory, place.name());
        dropped.log(&mut change)?;
        change.apply()?;
        self.forget_name(&place.directory, place.name())?;
        self.meta.touch(&place.directory, None, Some(now), Some(now));
        dropped.finish(self);
        drop((changes, namespace));
        self.reap_if_unused(victim)?;
        // Removing a rollback journal is how SQLite commits, and with synchronous=FULL nothing is synced
        // after it: a name that was worth a sync goes durably.
        let durable = victim.synced.load(Ordering::Relaxed) && !Mutant::UnlinkVolatile.is_made();
        if durable { self.meta.commit(0) } else { Ok(()) }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::NotEmpty`], [`FsError::Invalid`] for `.`,
    /// [`FsError::NoName`] for the root, [`FsError::Kept`]; those of resolution and the store's.
    pub(crate) fn rmdir_at(&self, at: Start<'_>, path: &[u8], who: &Credentials<'_>) -> Result<(), FsError> {
        self.meta.writable()?;
        let _namespace = self.names_write();
        let place = self.resolve(at, path, Last::Name, who)?;
        match place.component {
            Component::Name => {}
            Component::Dot if path.iter().all(|&byte| byte == b'/') => return Err(FsError::NoName),
            Component::Dot => return Err(FsError::Invalid),
            Component::DotDot => return Err(FsError::NotEmpty),
        }
        let victim = place.inode.as_ref().ok_or(FsError::NotFound)?;
        permission::may_remove(&place.directory, victim, who)?;
        victim.directory()?;
        if !self.is_empty(victim)? {
            return Err(FsError::NotEmpty);
        }
        not_kept(victim)?;
        let now = self.meta.now_ns();
        let (mut above, above_record) = grown(&place.directory, -1)?;
        let _changes = (place.directory.name_changes(place.name()), victim.way_changes());
        let dropped = Dropped::begin(victim, (&place.directory, place.name()), now);
        let mut change = self.meta.change();
        change.delete_name(&place.directory, place.name());
        change.put_inode(&place.directory, &above_record);
        dropped.log(&mut change)?;
        change.apply()?;
        place.directory.publish(&mut above, above_record);
        drop(above);
        self.forget_name(&place.directory, place.name())?;
        self.meta.touch(&place.directory, None, Some(now), Some(now));
        dropped.finish(self);
        Ok(())
    }

    /// Whether a directory has no entries. The caller holds the namespace.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`]; the store's.
    pub(crate) fn is_empty(&self, directory: &Inode) -> Result<bool, FsError> {
        if let Some(empty) = directory.directory()?.names().is_empty() {
            return Ok(empty);
        }
        let (first, end) =
            self.meta.with_prefix(directory, |prefix| (keys::entry(prefix, b""), keys::entries_end(prefix)));
        let mut empty = true;
        self.meta.journal.store.scan(Bound::Excluded(&first), Bound::Excluded(&end), &mut |_, _| {
            empty = false;
            ControlFlow::Break(())
        })?;
        Ok(empty)
    }

    /// A name is gone. The caller has begun [`Inode::name_changes`].
    ///
    /// # Errors
    /// [`FsError::NotDirectory`].
    pub(crate) fn forget_name(&self, directory: &Arc<Inode>, name: &[u8]) -> Result<(), FsError> {
        self.meta.count_name(directory, name, false);
        let more = directory.directory()?.names_mut().set_absent(name);
        self.count_names(more);
        Ok(())
    }
}

/// Whether nobody keeps an inode that loses its last name. The caller holds the namespace's write lock.
///
/// # Errors
/// [`FsError::Kept`].
pub(crate) fn not_kept(victim: &Inode) -> Result<(), FsError> {
    let is_last = victim.kind == FileType::Directory || victim.nlink() <= 1;
    if is_last && victim.kept.load(Ordering::SeqCst) > 0 { Err(FsError::Kept(victim.ino.0)) } else { Ok(()) }
}

/// A directory's state, locked, and its record with `more` subdirectories.
///
/// # Errors
/// [`FsError::TooManyLinks`].
pub(crate) fn grown(directory: &Inode, more: i32) -> Result<(MutexGuard<'_, State>, Record), FsError> {
    let state = directory.lock();
    let mut record = state.record().clone();
    // The device's count, which may be damaged.
    record.nlink = record.nlink.saturating_add_signed(more);
    if record.nlink > LINKS_MAX { Err(FsError::TooManyLinks) } else { Ok((state, record)) }
}

impl<'a> Dropped<'a> {
    /// `inode` is to lose a name; a directory loses all of its links. The caller holds the namespace's write
    /// lock.
    pub(crate) fn begin(inode: &'a Arc<Inode>, (directory, name): (&Inode, &[u8]), now_ns: i64) -> Self {
        let is_directory = inode.kind == FileType::Directory;
        if inode.is_own() && !is_directory && inode.is_at(directory, name) {
            // Nothing lies at this name: it is forgotten before it goes.
            inode.set_dentry(None);
        }
        let last = is_directory || inode.nlink() <= 1;
        // Nobody opens it while we hold the namespace; someone who closes it meanwhile finds the orphan.
        let unused = is_directory || !inode.is_used();
        let quiet = (last && unused).then(|| inode.data.quiet());
        let state = inode.lock();
        let mut record = state.record().clone();
        // The device's count, which may be damaged.
        record.nlink = if is_directory { 0 } else { record.nlink.saturating_sub(1) };
        let [atime_ns, mtime_ns, ..] = inode.times_ns();
        (record.atime_ns, record.mtime_ns, record.ctime_ns) = (atime_ns, mtime_ns, now_ns);
        let gone = quiet.is_some() && record.flags & FLAG_KEYED_EXTENTS == 0;
        Self { inode, quiet, state, record, gone }
    }

    /// Puts what becomes of the inode into the change.
    ///
    /// # Errors
    /// What freeing its blocks answers.
    pub(crate) fn log(&self, change: &mut Change<'_>) -> Result<(), FsError> {
        if self.gone {
            return log_removal(change, self.inode, &self.record);
        }
        if self.record.nlink == 0 {
            change.put_nameless(self.inode, &self.record);
            change.put_orphan(self.inode.ino);
        } else {
            change.put_inode(self.inode, &self.record);
        }
        Ok(())
    }

    /// The change was applied. The caller holds the namespace still.
    pub(crate) fn finish(self, core: &Core) {
        let Self { inode, quiet, mut state, record, gone } = self;
        let ctime = record.ctime_ns;
        core.unnamed(inode);
        inode.publish(&mut state, record);
        if gone {
            inode.reaped.store(true, Ordering::SeqCst);
        }
        drop(state);
        drop(quiet);
        if gone {
            core.meta.inodes.remove(inode.ino);
            core.ends.forget(inode.ino, inode.kind);
            core.forget(inode);
            inode.leave_account();
        } else {
            core.meta.touch(inode, None, None, Some(ctime));
        }
    }
}

/// Puts the removal of an inode with few blocks, or of a link, into a change.
///
/// # Errors
/// What freeing its blocks answers.
pub(crate) fn log_removal(change: &mut Change<'_>, inode: &Inode, record: &Record) -> Result<(), FsError> {
    for extent in record.inline_extents() {
        change.free_run(Run { start: extent.physical, blocks: extent.blocks })?;
    }
    if record.kind() == FileType::Symlink && record.size as usize > INLINE_TARGET_BYTES {
        for part in 0..record.size.div_ceil(TARGET_PART_BYTES as u64) {
            change.delete_target(inode.ino, part);
        }
    }
    xattr::log_removal(change, inode.ino, record)?;
    change.delete_inode(inode);
    Ok(())
}
