//! An inode that the session holds.

use crate::core::{Core, STRANGE};
use crate::posted::{Granted, Progress};
use crate::shelf::Posted;
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_fs::posted::{Change, Grant, Outcome, Poster};
use nvmed_fs::versions::Version;
use nvmed_fs::{FileType, FsError, Stat};
use nvmed_wire::{Answer, Call, Card, Handle, Object, Spare};
use std::sync::{Arc, OnceLock};

/// An inode or a description that the session holds, until the last value that names it is dropped.
#[derive(Debug)]
pub(crate) struct Holding {
    pub core: Arc<Core>,
    /// By what the server knows it; not yet, of what was opened by a post.
    handle: OnceLock<Handle>,
    posted: Option<Posted>,
    pub ino: u64,
    pub kind: FileType,
    /// Its status when it was opened or looked up, and as long as the inode has this version.
    pub known: (Stat, Option<Version>),
    /// The right to post writes of it.
    pub granted: Granted,
    /// Others may wait for its end: it was inherited, received, shared or mapped, or a lock was asked for through it.
    told: AtomicBool,
}

impl Holding {
    pub fn new(
        core: &Arc<Core>,
        handle: Handle,
        known: (Stat, Option<Version>),
    ) -> Result<Arc<Self>, FsError> {
        Self::of(core, OnceLock::from(handle), None, known).map(Arc::new).ok_or(STRANGE)
    }

    /// What was opened by a call, and may be granted.
    pub fn opened(
        core: &Arc<Core>,
        handle: Handle,
        known: (Stat, Option<Version>),
        grant: Option<Grant>,
    ) -> Result<Arc<Self>, FsError> {
        let mut holding = Self::of(core, OnceLock::from(handle), None, known).ok_or(STRANGE)?;
        holding.granted = Granted::new(grant, known.0.size);
        Ok(Arc::new(holding))
    }

    /// What was opened by a post.
    pub fn posted(core: &Arc<Core>, posted: Posted, card: &Card) -> Option<Arc<Self>> {
        Self::of(core, OnceLock::new(), Some(posted), (card.stat, Some(card.version))).map(Arc::new)
    }

    fn of(
        core: &Arc<Core>,
        handle: OnceLock<Handle>,
        posted: Option<Posted>,
        known: (Stat, Option<Version>),
    ) -> Option<Self> {
        // The server is trusted; a kind that is none would be a newer one's.
        let kind = FileType::of_mode(known.0.mode)?;
        let told = AtomicBool::new(false);
        let (core, ino) = (Arc::clone(core), known.0.ino);
        Some(Self { core, handle, posted, ino, kind, known, granted: Granted::default(), told })
    }

    /// Whether it was opened by a post, and the server knows it by nothing yet.
    pub(crate) fn is_posted(&self) -> bool {
        self.posted.is_some() && self.handle.get().is_none()
    }

    /// By what the server knows it, from now on.
    ///
    /// # Errors
    /// `EIO` once the server is gone; what it answers when it cannot hold one more.
    #[inline]
    pub fn handle(&self) -> Result<Handle, FsError> {
        match (self.handle.get(), &self.posted) {
            (Some(handle), _) => Ok(*handle),
            (None, Some(posted)) => self.claim(posted),
            (None, None) => Err(STRANGE),
        }
    }

    #[cold]
    fn claim(&self, posted: &Posted) -> Result<Handle, FsError> {
        let _alone = self.core.link().claims.lock();
        if let Some(handle) = self.handle.get() {
            return Ok(*handle);
        }
        let handle = self.core.claim(posted, self.ino)?;
        Ok(*self.handle.get_or_init(|| handle))
    }

    /// Another process may have to learn at once that it is given up: from now on that is a call, and not a post.
    pub(crate) fn tell_end(&self) {
        self.told.store(true, Ordering::Relaxed);
    }

    pub fn object(&self) -> Result<Object<'static>, FsError> {
        self.handle().map(Object::Held)
    }

    /// As [`crate::posted::Posting::post`], as long as the server is there.
    pub(crate) fn with_grant<T>(
        &self,
        post: impl FnOnce(&Poster, Grant, &mut Progress) -> Option<T>,
    ) -> Option<T> {
        let link = self.core.link();
        if !link.is_open() || self.core.board.is_dead() {
            return None;
        }
        let posted = link.posting.post(&self.granted, post);
        // The holder of a dead server's logs may have read this one before: then the call says that it is gone.
        posted.filter(|_| !self.core.board.is_dead())
    }

    /// Whether something may be posted that the server has not made, and a window does not show: also by a grant that
    /// is about to end.
    #[inline]
    pub(crate) fn has_posts(&self) -> bool {
        self.granted.is_used() && !self.core.link().posting.is_taken()
    }

    /// Posts a change of its attributes, if it may be posted.
    pub(crate) fn post_change(&self, change: Change<'_>) -> bool {
        let posted = self.with_grant(|log, grant, _| {
            let posted = || grant.covers(&change) && log.post(grant, change) == Outcome::Done;
            posted().then_some(())
        });
        posted.is_some()
    }

    /// Asks for more of what was granted, or for a grant: what it has then.
    #[cold]
    pub(crate) fn renew(&self) -> Option<Grant> {
        let answered = self.handle().and_then(|handle| Ok(self.core.call(&Call::Renew { handle })?.answer));
        let Ok(Answer::Renewed { grant, bytes }) = answered else { return None };
        self.granted.renewed(grant, bytes);
        grant
    }

    /// The status that the open answered, if the grant is the only change since, and nothing was posted.
    fn status_as_granted(&self) -> Option<Stat> {
        if !self.granted.is_fresh() {
            return None;
        }
        let (stat, version) = self.known;
        if self.core.board.has_version_but_for_one(version?) { self.core.answered(stat) } else { None }
    }

    pub fn stat(&self) -> Result<Stat, FsError> {
        let shown = self.status_as_granted().or_else(|| self.core.status_shown(self.ino, &self.known));
        if let Some(stat) = shown {
            return Ok(stat);
        }
        match self.core.call(&Call::Stat(self.object()?))?.answer {
            Answer::Status(stat) => Ok(stat),
            _ => Err(STRANGE),
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let is_told = self.told.load(Ordering::Relaxed);
        match (self.handle.get(), &self.posted) {
            (Some(&Handle::ROOT), _) | (None, None) => {}
            (Some(handle), _) => self.core.let_go(*handle, is_told),
            (None, Some(posted)) => {
                if self.core.close_posted(posted, self.ino, is_told) {
                    self.core.link().count(Spare::Close);
                }
            }
        }
    }
}

/// An inode that somebody holds: a working directory, a directory descriptor, a looked-up file.
///
/// It stays the same inode whatever happens to its name.
#[derive(Clone, Debug)]
pub struct Node(pub(crate) Arc<Holding>);

impl Node {
    /// Its inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.0.ino
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> FileType {
        self.0.kind
    }

    /// The handle by which the server knows it.
    ///
    /// # Errors
    /// `EIO` once the server is gone; `EMFILE` when it holds no more.
    pub fn handle(&self) -> Result<Handle, FsError> {
        self.0.handle()
    }

    /// Its status.
    ///
    /// # Errors
    /// `EIO` once the server is gone.
    pub fn stat(&self) -> Result<Stat, FsError> {
        self.0.stat()
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        // Of one file system, and held: the number is no other inode's.
        self.0.ino == other.0.ino
    }
}
