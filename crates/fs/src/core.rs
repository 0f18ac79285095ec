//! A mounted file system from inside: what all operations share.

use crate::account::Accounts;
use crate::end::Ends;
use crate::error::FsError;
use crate::health::Trouble;
use crate::in_place::InPlace;
use crate::inode::{Inode, State};
use crate::memory::Memory;
use crate::metadata::Metadata;
use crate::options::{Durability, MountOptions};
use crate::pages::Pages;
use crate::paths::Paths;
use crate::placed::Placed;
use core::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};
use nvmed_io::{Binding, Device, Source};
use nvmed_layout::record::Record;
use nvmed_layout::{Damage, FileType, LostCopy, ROOT};
use nvmed_sys::sync::{Arc, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Inodes kept in memory, about 600 bytes each without their pages; beyond, unused ones go.
const INODES_MAX: u64 = 1 << 16;
/// Names remembered in all directories together, about 80 bytes each.
const NAMES_MAX: isize = 1 << 18;
/// The share of them that goes when there are too many: one walk of the table pays for many loads.
const EVICT_SHARE: u64 = 8;

/// What a mount is made of.
pub struct MountParts {
    /// The device.
    pub device: Arc<Device>,
    /// The device's own bytes, where they are memory that can be stored to without commands.
    pub bytes: Option<Arc<nvmed_nvm::Memory>>,
    /// Memory for cached pages and for the log that is not on the device yet.
    pub memory: Memory,
    /// Settings.
    pub options: MountOptions,
}

/// Everything that the operations share.
pub(crate) struct Core {
    pub(crate) options: MountOptions,
    pub(crate) meta: Arc<Metadata>,
    /// The bytes of files.
    pub(crate) placed: Placed,
    /// Readers look names up; a writer changes them.
    namespace: RwLock<()>,
    root: OnceLock<Arc<Inode>>,
    pub(crate) paths: Paths,
    /// Names remembered in all directories.
    names: AtomicIsize,
    /// Inodes in memory at which unused ones go.
    inodes_limit: AtomicU64,
    next_description: AtomicU64,
    pub(crate) accounts: Accounts,
    pub(crate) ends: Ends,
    /// Copies that were lost when it was mounted, and were written again.
    pub(crate) mended: Vec<LostCopy>,
    /// Whether orphans of an earlier mount may be left.
    pub(crate) orphans_left: AtomicBool,
}

impl Core {
    /// Mounts: reads the superblock, opens the store, reads counters and root.
    pub(crate) fn mount(parts: MountParts) -> Result<Arc<Self>, FsError> {
        Self::mount_over(parts, None)
    }

    /// As [`Core::mount`], over what a dead process left: its batches go on where the log ends.
    ///
    /// What a device holds that takes no writes is read: the mount is read-only then, and says why.
    pub(crate) fn mount_over(parts: MountParts, dead: Option<&Memory>) -> Result<Arc<Self>, FsError> {
        if !parts.options.read_only && !parts.device.engine().is_read_only() {
            match Self::mount_as(&parts, dead, &parts.options) {
                // It has not said so, and refuses what a mount brings to its end.
                Err(error) if error.is_refusal() => {}
                mounted => return mounted,
            }
        }
        let core = Self::mount_as(&parts, dead, &MountOptions { read_only: true, ..parts.options.clone() })?;
        if !parts.options.read_only {
            core.meta.health.turn_read_only(Trouble::Protected);
        }
        Ok(core)
    }

    fn mount_as(
        parts: &MountParts,
        dead: Option<&Memory>,
        options: &MountOptions,
    ) -> Result<Arc<Self>, FsError> {
        let MountParts { device, bytes, memory, .. } = parts;
        if options.urgent || !options.urgent_files.is_empty() {
            device.expect_urgent(Source::Told);
        }
        let handle = device.handle(Binding::Spread);
        let opened = Metadata::open((device, bytes.clone(), handle), (memory, dead), options)?;
        let meta = Arc::new(opened.metadata);
        let core = Arc::new(Self {
            placed: match bytes {
                Some(medium) => Placed::InPlace(InPlace::new(&meta, (device, medium), memory, options)),
                None => Placed::Pages(Pages::new(&meta, device, memory, options)?),
            },
            meta,
            namespace: RwLock::new(()),
            root: OnceLock::new(),
            paths: Paths::new(),
            names: AtomicIsize::new(0),
            inodes_limit: AtomicU64::new(INODES_MAX),
            next_description: AtomicU64::new(1),
            accounts: Accounts::default(),
            ends: Ends::default(),
            orphans_left: AtomicBool::new(true),
            mended: opened.mended,
            options: options.clone(),
        });
        let root = core.meta.load_own(ROOT)?;
        if root.directory.is_none() {
            return Err(Damage::Root.into());
        }
        let _ = core.root.set(root);
        core.meta.look_at_tree();
        if !core.options.read_only {
            core.meta.mend(opened.copies_agree)?;
            if dead.is_none() {
                // Else when what a dead process had is in nobody else's hands.
                core.reap_orphans()?;
            }
        }
        Ok(core)
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
        self.meta.grow_if_low();
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

    /// A name of an inode went: paths that led to it, and through it, are not to be believed.
    pub(crate) fn unnamed(&self, inode: &Inode) {
        if inode.kind == FileType::Directory || inode.kind == FileType::Symlink {
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
        self.meta.inodes.len() > self.inodes_limit.load(Ordering::Relaxed)
            || self.names.load(Ordering::Relaxed) > NAMES_MAX
            || self.meta.is_late_full()
    }

    /// Forgets inodes that nobody uses, and names.
    #[cold]
    fn trim(&self) {
        // A failure leaves the inodes late and in memory; whoever syncs them is told.
        let _ = self.meta.write_all_late();
        let _namespace = self.namespace.write();
        if self.names.load(Ordering::Relaxed) > NAMES_MAX {
            for inode in self.meta.inodes.collect(|inode| inode.directory.is_some()) {
                if let Ok(directory) = inode.directory() {
                    self.count_names(-directory.names_mut().clear());
                }
            }
        }
        self.paths.clear();
        // Twice, because the first time spares what was used lately.
        for _ in 0..2 {
            let over = self.meta.inodes.len().saturating_sub(INODES_MAX - INODES_MAX / EVICT_SHARE);
            let gone = self.meta.inodes.evict(over as usize, |inode| {
                inode.ino != ROOT && !inode.is_late() && inode.nlink() > 0 && self.placed.is_clean(inode)
            });
            gone.iter().for_each(|inode| self.forget(inode));
        }
        // Those that are open or dirty stay; look again only when there are many more.
        let limit = (self.meta.inodes.len() + INODES_MAX / EVICT_SHARE).max(INODES_MAX);
        self.inodes_limit.store(limit, Ordering::Relaxed);
    }

    /// An inode leaves memory.
    pub(crate) fn forget(&self, inode: &Arc<Inode>) {
        if let Ok(directory) = inode.directory() {
            self.count_names(-directory.names_mut().clear());
        }
        self.placed.forget(inode);
    }

    /// With durability `device`: makes what the call has changed durable before it returns. Times that are
    /// written late are no call's result and wait as ever.
    pub(crate) fn written_through(&self) -> Result<(), FsError> {
        if self.options.durability == Durability::Device { self.meta.commit(0) } else { Ok(()) }
    }
}

impl State {
    /// The record as it was last applied.
    pub(crate) fn record(&self) -> &Record {
        &self.record
    }
}
