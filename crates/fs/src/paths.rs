//! Whole paths that were resolved lately, and where they led.
//!
//! A path is believed as long as nothing happened that could lead it elsewhere: no directory and no
//! symbolic link was renamed or removed and no directory changed its owner or mode anywhere (the *epoch*),
//! and the inode at its end lost no name. New names lead no path elsewhere that led somewhere before.

use crate::hash::Fold;
use crate::inode::Inode;
use crate::status::{Credentials, Follow};
use core::hash::Hasher;
use core::sync::atomic::{AtomicU64, Ordering};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_units::Ino;

/// Paths remembered: each may hold an inode, about 600 bytes, and itself.
const PATHS: usize = 4096;
/// Shortest path worth it: below, the steps cost no more.
const PATH_BYTES_MIN: usize = 16;

/// A path as it was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) at: &'a Inode,
    /// The directory that `/` is.
    pub(crate) root: Ino,
    pub(crate) path: &'a [u8],
    pub(crate) follow: Follow,
    pub(crate) who: &'a Credentials<'a>,
}

struct Known {
    hash: u64,
    epoch: u64,
    /// Names that the inode had lost then.
    unnamed: u32,
    at: Ino,
    root: Ino,
    follow: Follow,
    uid: u32,
    gid: u32,
    permitted: bool,
    groups: Box<[u32]>,
    path: Box<[u8]>,
    inode: Arc<Inode>,
}

#[derive(Default)]
struct Slot {
    /// The question that was asked last and not known: asked again, its answer is kept.
    missed: u64,
    known: Option<Box<Known>>,
}

/// The paths of a mount.
pub(crate) struct Paths {
    epoch: AtomicU64,
    slots: Box<[Mutex<Slot>]>,
}

/// A question that was not answered; what [`Paths::learn`] wants.
pub(crate) struct Miss {
    hash: u64,
    epoch: u64,
}

impl Question<'_> {
    fn hash(&self) -> u64 {
        let mut fold = Fold::default();
        fold.write(self.path);
        fold.write_u64(self.root.0);
        fold.write_u64(self.at.ino.0 << 1 | u64::from(self.follow == Follow::Yes));
        fold.finish()
    }
}

impl Known {
    fn answers(&self, question: &Question<'_>, hash: u64, epoch: u64) -> bool {
        let who = question.who;
        self.hash == hash
            && self.epoch == epoch
            && *self.path == *question.path
            && self.at == question.at.ino
            && self.root == question.root
            && self.follow == question.follow
            && (self.uid, self.gid, self.permitted) == (who.uid, who.gid, who.permitted)
            && *self.groups == *who.groups
            && self.unnamed == self.inode.unnamed.load(Ordering::SeqCst)
    }
}

impl Paths {
    pub(crate) fn new() -> Self {
        Self { epoch: AtomicU64::new(0), slots: (0..PATHS).map(|_| Mutex::default()).collect() }
    }

    /// Somebody else at the same slot is no reason to wait: then the path is walked.
    fn slot(&self, hash: u64) -> Option<MutexGuard<'_, Slot>> {
        self.slots[hash as usize % PATHS].try_lock()
    }

    /// Looks at the inode that a path leads to.
    ///
    /// # Errors
    /// When it is not known; with nothing to learn if it is not worth it.
    #[inline]
    pub(crate) fn find<T>(
        &self,
        question: &Question<'_>,
        look: impl FnOnce(&Arc<Inode>) -> T,
    ) -> Result<T, Option<Miss>> {
        if question.path.len() < PATH_BYTES_MIN {
            return Err(None);
        }
        let hash = question.hash();
        let epoch = self.epoch.load(Ordering::SeqCst);
        let Some(mut slot) = self.slot(hash) else { return Err(None) };
        match &slot.known {
            Some(known) if known.answers(question, hash, epoch) => {
                known.inode.found();
                Ok(look(&known.inode))
            }
            _ if slot.missed == hash => Err(Some(Miss { hash, epoch })),
            _ => {
                slot.missed = hash;
                Err(None)
            }
        }
    }

    /// Remembers where a path led. The caller has held the namespace since before it walked, and the
    /// question was missed before that.
    pub(crate) fn learn(&self, question: &Question<'_>, miss: &Miss, inode: &Arc<Inode>) {
        let Some(mut slot) = self.slot(miss.hash) else { return };
        let who = question.who;
        let known = Known {
            hash: miss.hash,
            epoch: miss.epoch,
            unnamed: inode.unnamed.load(Ordering::SeqCst),
            at: question.at.ino,
            root: question.root,
            follow: question.follow,
            uid: who.uid,
            gid: who.gid,
            permitted: who.permitted,
            groups: who.groups.into(),
            path: question.path.into(),
            inode: Arc::clone(inode),
        };
        let before = slot.known.replace(Box::new(known));
        drop(slot);
        drop(before);
    }

    /// Paths may lead elsewhere from now on.
    pub(crate) fn mistrust(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Lets go of all inodes.
    pub(crate) fn clear(&self) {
        for slot in &self.slots {
            slot.lock().known = None;
        }
    }
}
