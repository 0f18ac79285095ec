//! An open description, as sessions and messages hold it.

use crate::direct::Viewer;
use crate::owner::RANGES_ADDED;
use crate::share::{Resource, Share, User};
use nvmed_fs::{DirEntry, File, FsError, LockKind, LockRange, Wait};
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_wire::{Board, Handle};
use rustix::io::Errno;
use std::ops::ControlFlow;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// An open description with its number. It is closed when no session and no message holds it and no call uses it.
pub(crate) struct Description {
    /// The number by which all who hold it know it.
    pub handle: Handle,
    holders: AtomicU32,
    owed: Arc<Owed>,
    /// What it has of a user's record locks, and of a user's names: of the one that asked for the first.
    shares: Mutex<[Option<Box<Share>>; 2]>,
    // In this order: direct windows are paused, then the file is closed, which gives its locks back, and at the last
    // close its blocks; then the board is told of it.
    pub(crate) viewers: Mutex<Vec<Viewer>>,
    file: Arc<File>,
    release: LockRelease,
}

/// The errno of what was promised and failed. A sync that came with a write: the next sync of the description answers
/// it, since that one may write what is left. A posted change: each sync answers it, since none will make it, and
/// success means that everything is there.
#[derive(Default)]
pub(crate) struct Owed {
    unsynced: AtomicI32,
    lost: AtomicI32,
    /// A sync has said what was lost.
    told: AtomicBool,
}

impl Owed {
    /// A sync that came with a write has failed.
    pub(crate) fn owe(&self, error: Errno) {
        self.unsynced.store(error.raw_os_error(), Ordering::SeqCst);
    }

    /// A posted change could not be made.
    fn lose(&self, error: Errno) {
        self.told.store(false, Ordering::SeqCst);
        self.lost.store(error.raw_os_error(), Ordering::SeqCst);
    }

    /// Whether the next sync has something to tell.
    pub(crate) fn is_due(&self) -> bool {
        self.unsynced.load(Ordering::SeqCst) != 0 || self.lost.load(Ordering::SeqCst) != 0
    }

    /// Whether something is lost that no sync has told.
    fn is_untold(&self) -> bool {
        self.lost.load(Ordering::SeqCst) != 0 && !self.told.load(Ordering::SeqCst)
    }

    /// What a sync is to answer.
    pub(crate) fn told(&self) -> Option<Errno> {
        let unsynced = self.unsynced.swap(0, Ordering::SeqCst);
        let lost = self.lost.load(Ordering::SeqCst);
        self.told.store(lost != 0, Ordering::SeqCst);
        [lost, unsynced].into_iter().find(|&owed| owed != 0).map(Errno::from_raw_os_error)
    }
}

/// Descriptions that are remembered for having lost something: beyond, it is only said of so many.
const UNTOLD_MAX: usize = 1024;

/// Descriptions that owe their programs the failure of a posted change.
#[derive(Default)]
pub(crate) struct Unmade(Mutex<Vec<Arc<Owed>>>);

impl Unmade {
    /// A posted change of this one could not be made.
    pub(crate) fn add(&self, owed: &Arc<Owed>, error: Errno) {
        let mut all = self.0.lock();
        owed.lose(error);
        all.retain(|other| other.is_untold() && !Arc::ptr_eq(other, owed));
        if all.len() < UNTOLD_MAX {
            all.push(Arc::clone(owed));
        }
    }

    /// How many of them have told nobody.
    pub(crate) fn untold(&self) -> usize {
        self.0.lock().iter().filter(|owed| owed.is_untold()).count()
    }
}

/// Tells the board, when it is dropped, that locks were given back.
struct LockRelease {
    locked: AtomicBool,
    board: Arc<Board>,
}

impl Drop for LockRelease {
    fn drop(&mut self) {
        if self.locked.load(Ordering::Relaxed) {
            self.board.lock_released();
        }
    }
}

impl Description {
    pub fn new(handle: Handle, file: Arc<File>, board: Arc<Board>) -> Arc<Self> {
        let release = LockRelease { locked: AtomicBool::new(false), board };
        Arc::new(Self {
            handle,
            holders: AtomicU32::new(0),
            owed: Arc::default(),
            shares: Mutex::default(),
            viewers: Mutex::default(),
            file,
            release,
        })
    }

    /// It has, or had, locks of its own.
    pub fn locked(&self) {
        self.release.locked.store(true, Ordering::Relaxed);
    }

    /// What its syncs are to answer.
    pub(crate) fn owed(&self) -> &Arc<Owed> {
        &self.owed
    }

    /// Sets a lock that is its own on a range, or gives one back, for a user.
    ///
    /// # Errors
    /// [`FsError::TooManyLocks`] past the user's limit; what [`File::ofd_lock`] answers.
    pub(crate) fn lock_range(
        &self,
        user: &Arc<User>,
        range: LockRange,
        kind: Option<LockKind>,
    ) -> Result<(), FsError> {
        let [share, _] = &mut *self.shares.lock();
        let share = share.get_or_insert_with(|| Box::new(user.none(Resource::Lock)));
        if kind.is_some() {
            share.grow(RANGES_ADDED)?;
        }
        let done = self.file.ofd_lock(range, kind, Wait::No);
        share.set(self.file.ofd_locks());
        done
    }

    /// Tells entries of a directory for a user: it keeps the names, so that it finds its way back.
    ///
    /// # Errors
    /// `ENOMEM` when the user's directories keep too many; what [`File::read_dir`] answers.
    pub fn tell(
        &self,
        user: &Arc<User>,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<(), FsError> {
        let [_, share] = &mut *self.shares.lock();
        let share = share.get_or_insert_with(|| Box::new(user.none(Resource::Names)));
        // One portion is little, and how much it will be nobody knows before.
        share.grow(1)?;
        let told = self.file.read_dir(each);
        share.set(self.file.listing_bytes());
        told
    }

    /// How many sessions and messages hold it.
    pub fn holders(&self) -> u32 {
        self.holders.load(Ordering::SeqCst)
    }
}

impl Deref for Description {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

/// One that holds a description: a session, or a message on its way.
pub(crate) struct Holding(Arc<Description>);

impl Holding {
    pub fn new(description: Arc<Description>) -> Self {
        description.holders.fetch_add(1, Ordering::SeqCst);
        Self(description)
    }

    pub fn description(&self) -> &Arc<Description> {
        &self.0
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let before = self.0.holders.fetch_sub(1, Ordering::SeqCst);
        // A second panic while one unwinds would end the server.
        assert!(before > 0 || std::thread::panicking(), "a description is let go of that nobody holds");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_fs::{Credentials, OpenFlags};

    #[test]
    #[should_panic(expected = "a description is let go of that nobody holds")]
    fn a_description_that_is_let_go_of_twice_is_our_mistake() {
        let mount = crate::toy_tests::mount();
        let flags = OpenFlags::READ.with(OpenFlags::DIRECTORY);
        let file = mount.open(&mount.root(), b"/", flags, 0, &Credentials::ROOT).unwrap();
        let description = Description::new(Handle(1), file, Arc::new(Board::new().unwrap()));
        drop(Holding(description));
    }
}
