//! The file system as its callers see it.

use crate::core::{Core, MountParts};
use crate::error::FsError;
use crate::file::File;
use crate::health::Trouble;
use crate::inode::Inode;
use crate::listing;
use crate::lock::LockOwner;
use crate::mapper::Mapper;
use crate::namespace::Recipe;
use crate::object::Object;
use crate::resolve::Last;
use crate::status::{Credentials, Follow, OpenFlags, RenameFlags, Stat, StatFs};
use crate::versions::{Counts, Trail, Version};
use crate::view::View;
use crate::{Durability, NAME_BYTES_MAX, Superblock};
use core::sync::atomic::Ordering;
use nvmed_layout::{FileType, LostCopy, ROOT};
use nvmed_mutant::Mutant;
use nvmed_units::BLOCK_BYTES;
use std::sync::Arc;

/// Metadata of one small file: an inode record, an entry with a name of middling length, their keys,
/// and what a B+tree leaves free in its nodes. For the estimate in `statfs` only.
const FILE_META_BYTES: u64 = 512;

/// A mounted file system; clones are the same one.
///
/// Every path call resolves from a held directory (a path that begins with `/` from the root) with the
/// rights of `who`. Calls may come from any number of threads.
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) core: Arc<Core>,
    pub(crate) view: View,
}

/// An inode that somebody holds: a working directory, a directory descriptor, a looked-up file.
///
/// It stays the same inode whatever happens to its name. What was found through a view to read is not changed, whoever
/// is handed it.
#[derive(Clone)]
pub struct Node {
    pub(crate) inode: Arc<Inode>,
    core: Arc<Core>,
    pub(crate) view: View,
}

impl core::fmt::Debug for Node {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Node({:?} {})", self.inode.kind, self.inode.ino)
    }
}

impl Node {
    pub(crate) fn new(inode: Arc<Inode>, core: &Arc<Core>, view: &View) -> Self {
        Self { inode, core: Arc::clone(core), view: view.clone() }
    }

    /// Its inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.inode.ino.0
    }

    /// Its status.
    #[must_use]
    pub fn stat(&self) -> Stat {
        self.core.status(&self.inode)
    }

    /// Its version, unless it is being changed, or nobody counts ([`FileSystem::count_changes`]).
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        self.inode.version()
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> FileType {
        self.inode.kind
    }

    /// Whether it has extended attributes; none while somebody changes its record, who may wait for the device.
    #[must_use]
    pub fn has_xattrs(&self) -> Option<bool> {
        self.inode.try_lock().map(|state| state.record().xattrs.is_some())
    }

    /// The record locks of process `pid` on this inode go, whichever description they were set through.
    pub fn drop_record_locks(&self, pid: u32) {
        if let Some(locks) = self.inode.locks_if_any() {
            locks.drop_owner(LockOwner::Process(pid));
        }
    }
}

/// A file or directory that stays as it is without being open: before its last name goes, the call that would remove
/// it answers [`FsError::Kept`]. Dropped outside of any lock that a call of the file system may wait for.
#[derive(Debug)]
pub struct Kept(Node);

impl Node {
    /// Keeps it, if it has a name.
    #[must_use]
    pub fn keep(&self) -> Option<Kept> {
        let _namespace = self.core.names_read();
        (self.inode.nlink() > 0).then(|| {
            self.inode.kept.fetch_add(1, Ordering::SeqCst);
            Kept(self.clone())
        })
    }
}

impl Kept {
    /// What is kept.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Node { inode, core, .. } = &self.0;
        let before = inode.kept.fetch_sub(1, Ordering::SeqCst);
        // A second panic while one unwinds would end the server.
        assert!(before > 0 || std::thread::panicking(), "inode {} is given back and was not kept", inode.ino);
        // A failure leaves the orphan record: the next mount frees the file.
        let _ = core.reap_if_unused(inode);
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inode, &other.inode)
    }
}

impl FileSystem {
    /// Mounts the file system of a device.
    ///
    /// Reads a bounded number of blocks, whatever the number of files; after a crash also the log.
    ///
    /// # Errors
    /// [`FsError::Layout`] when it holds none that this program can use; the
    /// store's and the device's.
    pub fn mount(parts: MountParts) -> Result<Self, FsError> {
        Core::mount(parts).map(|core| Self { core, view: View::default() })
    }

    /// Writes everything back, makes it durable, and leaves a short log. Calls that change something
    /// fail from then on.
    ///
    /// # Errors
    /// What could not be written; the file system stays usable then.
    pub fn unmount(&self) -> Result<(), FsError> {
        if self.core.options.read_only {
            return Ok(());
        }
        self.sync()?;
        if self.core.meta.health.unmount() {
            // What was changed between the sync and the mark.
            self.core.settle()?;
            if !matches!(self.core.meta.health.trouble(), Some(Trouble::Broken(_))) {
                let closed = self.core.meta.journal.store.close();
                let closed = closed.map_err(|error| self.core.meta.health.commit_failed(error));
                // A device that takes no writes keeps the longer log, in which everything is.
                closed.or_else(|error| if error.is_refusal() { Ok(()) } else { Err(error) })?;
            }
        }
        Ok(())
    }

    /// Has files be mapped where they lie, by [`File::map_range`], where the mount is on memory that keeps its bytes.
    /// Who maps them is told of changes from then on; the first one counts.
    pub fn map_in_place_by(&self, mapper: Arc<dyn Mapper>) {
        self.core.placed.shown_by(mapper);
    }

    /// Makes everything durable that was done before the call.
    ///
    /// # Errors
    /// What could not be written.
    pub fn sync(&self) -> Result<(), FsError> {
        if self.core.options.read_only {
            return Ok(());
        }
        let reaped = if self.core.is_in_trouble() { Ok(()) } else { self.core.reap_orphans() };
        // What can be saved is, whatever became of the rest.
        let settled = self.core.settle();
        reaped.and(settled)
    }

    /// A held file was read, without a call of this file system: renews its access time as relatime does.
    pub fn accessed(&self, node: &Node) {
        if !self.view.is_read_only() {
            self.core.meta.accessed(&node.inode);
        }
    }

    /// Status of the file system; through a view of a tree that is bounded, of the tree.
    #[must_use]
    pub fn statfs(&self) -> StatFs {
        let core = &self.core;
        let counters = core.meta.counters();
        let stats = core.meta.journal.store.stats();
        let blocks_free = core.meta.blocks.ledger.available() + core.meta.spare_blocks();
        // Metadata may take data blocks, but not all of them: files have data.
        let meta_free =
            (stats.tree_blocks.saturating_sub(stats.tree_blocks_used) + blocks_free / 2) * BLOCK_BYTES as u64;
        let uuid = &core.meta.superblock.uuid;
        let files_free = meta_free / FILE_META_BYTES;
        let all = [core.meta.superblock.data_blocks, blocks_free, counters.inodes + files_free, files_free];
        let root = core.root_of(&self.view);
        let [blocks, blocks_free, files, files_free] =
            root.account.get().map_or(all, |account| account.bounds(all));
        StatFs {
            block_bytes: BLOCK_BYTES as u32,
            blocks,
            blocks_free,
            files,
            files_free,
            name_bytes_max: NAME_BYTES_MAX as u32,
            id: u64::from_le_bytes(uuid[..8].try_into().expect("a UUID has sixteen bytes")),
            read_only: core.meta.writable().is_err() || self.view.is_read_only(),
        }
    }

    /// Whether each write is on the device when its call returns.
    #[must_use]
    pub fn writes_are_durable(&self) -> bool {
        self.core.options.durability == Durability::Device
    }

    /// What the superblock says.
    #[must_use]
    pub fn superblock(&self) -> Superblock {
        self.core.meta.current_superblock()
    }

    /// 4 KiB blocks of metadata that the mount read, superblocks of the file system included.
    #[must_use]
    pub fn mount_blocks_read(&self) -> u64 {
        // The two superblocks.
        self.core.meta.journal.store.stats().mount_blocks_read + 2
    }

    /// Counters of the block cache.
    #[must_use]
    pub fn cache_stats(&self) -> nvmed_cache::Stats {
        self.core.placed.cache_stats()
    }

    /// What the buffer before the memory has done on which files are in place; none where there is none.
    #[must_use]
    pub fn buffer_stats(&self) -> Option<nvmed_nvm::BufferStats> {
        self.core.placed.buffer_stats()
    }

    /// Copies of superblocks and of the log's last block that were lost, which this mount has written again.
    #[must_use]
    pub fn mended(&self) -> &[LostCopy] {
        &self.core.mended
    }

    /// Tells the device of all free space that its contents are not needed (`fstrim`); runs shorter than
    /// `bytes_min` are passed over. Answers the bytes told.
    ///
    /// Files are read and written meanwhile; an allocation may wait for some commands.
    ///
    /// # Errors
    /// [`FsError::ReadOnly`]; the device's, one that knows no such command among them.
    pub fn trim(&self, bytes_min: u64) -> Result<u64, FsError> {
        self.core.meta.writable()?;
        self.core.meta.blocks.trim(bytes_min)
    }

    /// Counters of the metadata store.
    #[must_use]
    pub fn store_stats(&self) -> nvmed_kv::Stats {
        self.core.meta.journal.store.stats()
    }

    /// The root directory, of a view its own.
    #[must_use]
    pub fn root(&self) -> Node {
        self.node(self.core.root_of(&self.view))
    }

    fn node(&self, inode: Arc<Inode>) -> Node {
        Node::new(inode, &self.core, &self.view)
    }

    /// The path of a held inode, from `/`, this file system's root, or this view's.
    ///
    /// # Errors
    /// [`FsError::NotFound`] once it has no name, or none that the view has; the store's.
    pub fn path_of(&self, node: &Node) -> Result<Vec<u8>, FsError> {
        let _namespace = self.core.names_read();
        self.core.path_of(&node.inode, &self.view)
    }

    /// Opens, and with `O_CREAT` makes, a file. `mode` has the umask applied.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(
        &self,
        at: &Node,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        who: &Credentials<'_>,
    ) -> Result<Arc<File>, FsError> {
        let file = self.core.open_at(self.start(at), path, flags, mode, who)?;
        if flags.has(OpenFlags::CREATE) || flags.has(OpenFlags::TRUNCATE) {
            self.core.written_through()?;
        }
        Ok(file)
    }

    /// Opens a held inode, as `/proc/self/fd/N` does: the permissions count anew. Not [`FileSystem::open`] of an
    /// [`Object`]: a held inode is not made, so it takes no mode, and a path is followed or not by its flags.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open_node(
        &self,
        node: &Node,
        flags: OpenFlags,
        who: &Credentials<'_>,
    ) -> Result<Arc<File>, FsError> {
        let view = if node.view.is_read_only() { &node.view } else { &self.view };
        self.core.open_inode(&node.inode, flags, view, who)
    }

    /// The inode at a path.
    ///
    /// # Errors
    /// Those of resolution.
    pub fn lookup(
        &self,
        at: &Node,
        path: &[u8],
        follow: Follow,
        who: &Credentials<'_>,
    ) -> Result<Node, FsError> {
        Ok(self.node(self.core.at(self.start(at), path, follow, who)?))
    }

    /// As [`FileSystem::lookup`]; `trail` gets what the answer depends on, also when it is [`FsError::NotFound`].
    ///
    /// # Errors
    /// Those of resolution.
    pub fn trace(
        &self,
        at: &Node,
        path: &[u8],
        follow: Follow,
        who: &Credentials<'_>,
        trail: &mut Trail,
    ) -> Result<Node, FsError> {
        Ok(self.node(self.core.trace(self.start(at), path, follow, who, trail)?))
    }

    /// The names in a directory that follow `after` in the order of a listing, at most `most`, which is not 0.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`]; what the device answers.
    pub fn names_after(&self, directory: &Node, after: &[u8], most: usize) -> Result<Vec<Vec<u8>>, FsError> {
        directory.inode.directory()?;
        let entries = listing::entries_after(&self.core, &directory.inode, after, most)?;
        Ok(entries.into_iter().map(|entry| entry.name).collect())
    }

    /// From now on changes of inodes are counted there. Before any other call.
    pub fn count_changes(&self, counts: &Arc<Counts>) {
        self.core.meta.inodes.count_changes(counts);
    }

    /// The status of the inode at a path.
    ///
    /// # Errors
    /// Those of resolution.
    pub fn stat(
        &self,
        at: &Node,
        path: &[u8],
        follow: Follow,
        who: &Credentials<'_>,
    ) -> Result<Stat, FsError> {
        self.core.status_at(self.start(at), path, follow, who)
    }

    /// Makes a directory. `mode` has the umask applied.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn mkdir(&self, at: &Node, path: &[u8], mode: u32, who: &Credentials<'_>) -> Result<(), FsError> {
        let recipe = Recipe { kind: FileType::Directory, mode: mode & 0o1777, target: b"", rdev: 0 };
        self.core.make_at(self.start(at), path, &recipe, who)?;
        self.core.written_through()
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of rmdir(2).
    pub fn rmdir(&self, at: &Node, path: &[u8], who: &Credentials<'_>) -> Result<(), FsError> {
        self.view.writable()?;
        self.core.rmdir_at(self.start(at), path, who)?;
        self.core.written_through()
    }

    /// Removes a name of a file; the file goes with its last name and its last open description.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn unlink(&self, at: &Node, path: &[u8], who: &Credentials<'_>) -> Result<(), FsError> {
        self.view.writable()?;
        self.core.unlink_at(self.start(at), path, who)?;
        self.core.written_through()
    }

    /// Renames; what the new name stood for is replaced, exchanged or an error.
    ///
    /// # Errors
    /// Those of rename(2) and renameat2(2).
    pub fn rename(
        &self,
        from: &Node,
        old: &[u8],
        to: &Node,
        new: &[u8],
        flags: RenameFlags,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.view.writable()?;
        self.core.rename_at((self.start(from), old), (self.start(to), new), flags, who)?;
        self.core.written_through()
    }

    /// Gives a file a second name; one that is held or open may be without a first (`O_TMPFILE`).
    ///
    /// # Errors
    /// Those of link(2); [`FsError::NotFound`] for a file that has lost its last name.
    pub fn link(
        &self,
        object: Object<'_>,
        to: &Node,
        new: &[u8],
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.link_unsynced(object, to, new, who)?;
        self.core.written_through()
    }

    fn link_unsynced(
        &self,
        object: Object<'_>,
        to: &Node,
        new: &[u8],
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.view.writable()?;
        let _namespace = self.core.names_write();
        let (inode, nameless) = match object {
            Object::At(from, old, follow) => {
                (self.core.resolve(self.start(from), old, follow.into(), who)?.found()?, false)
            }
            Object::Held(_) | Object::Open(_) => (self.changed(object, who)?, true),
        };
        if nameless && inode.nlink() > 0 {
            self.core.within(&self.view, &inode)?;
        }
        let place = self.core.resolve(self.start(to), new, Last::Name, who)?;
        self.core.link_inode(&inode, &place, nameless, who)
    }

    /// Makes a file, a named pipe, a socket or a device node: `mode` has the kind in its upper bits, none
    /// of them a regular file, and the umask applied. `rdev` counts for devices only.
    ///
    /// # Errors
    /// Those of mknod(2): [`FsError::NotPermitted`] for a device not made by root, [`FsError::Invalid`]
    /// for another kind.
    pub fn mknod(
        &self,
        at: &Node,
        path: &[u8],
        mode: u32,
        rdev: u64,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        let kind = match (mode >> 12) as u8 & 0xf {
            0 => FileType::File,
            bits => FileType::of(bits).ok_or(FsError::Invalid)?,
        };
        match kind {
            FileType::Directory => return Err(FsError::NotPermitted),
            FileType::Symlink => return Err(FsError::Invalid),
            FileType::CharDevice | FileType::BlockDevice if !who.is_root() => {
                return Err(FsError::NotPermitted);
            }
            _ => {}
        }
        self.core.make_at(self.start(at), path, &Recipe { kind, mode, target: b"", rdev }, who)?;
        self.core.written_through()
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// Those of symlink(2).
    pub fn symlink(
        &self,
        target: &[u8],
        at: &Node,
        path: &[u8],
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        let recipe = Recipe { kind: FileType::Symlink, mode: 0o777, target, rdev: 0 };
        self.core.make_at(self.start(at), path, &recipe, who)?;
        self.core.written_through()
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when it is none; those of resolution, the store's.
    pub fn readlink(&self, object: Object<'_>, who: &Credentials<'_>) -> Result<Vec<u8>, FsError> {
        let link = self.seen(object, who)?;
        if link.kind != FileType::Symlink {
            return Err(FsError::Invalid);
        }
        if !self.view.is_read_only() {
            self.core.meta.accessed(&link);
        }
        self.core.link_target(&link)
    }
}

impl Core {
    /// Writes back all data and records, and makes them durable.
    fn settle(&self) -> Result<(), FsError> {
        // A file that the device does not take keeps no other from being saved.
        let mut result = self.placed.write_back_all();
        // On a full device the last times and the number of inodes, both hints, may find no room: that must not
        // keep anybody from ending.
        for written in [self.meta.write_all_late(), self.meta.write_counters()] {
            let written =
                written.or_else(|error| if matches!(error, FsError::NoSpace) { Ok(()) } else { Err(error) });
            result = result.and(written);
        }
        if Mutant::EarlyDiscard.is_made() {
            self.meta.blocks.discard();
        }
        let committed = self.meta.commit_all();
        if committed.is_err() {
            // What was written over in place is asked to stay all the same.
            let _ = self.meta.handle.flush();
        }
        result = result.and(committed);
        if self.options.discard && result.is_ok() {
            self.meta.blocks.discard();
        }
        result
    }

    /// The path of an inode from the view's root, by a name that it has.
    pub(crate) fn path_of(&self, inode: &Arc<Inode>, view: &View) -> Result<Vec<u8>, FsError> {
        let mut names: Vec<Arc<[u8]>> = Vec::new();
        let mut at = Arc::clone(inode);
        while at.ino != view.root_ino() {
            if at.ino == ROOT {
                return Err(FsError::NotFound);
            }
            let dentry = at.dentry().filter(|_| at.nlink() > 0).ok_or(FsError::NotFound)?;
            names.push(dentry.name);
            at = dentry.parent;
        }
        if names.is_empty() {
            return Ok(b"/".to_vec());
        }
        // In one piece: a deep tree's path has thousands of steps.
        let mut path = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(path)
    }
}
