//! An open description: an inode, an access mode, an offset.

use crate::core::Core;
use crate::error::FsError;
use crate::filedata::Stream;
use crate::filesystem::Node;
use crate::inode::Inode;
use crate::listing::Listing;
use crate::lock::{LockHeld, LockKind, LockOwner, LockRange, Wait};
use crate::status::{DirEntry, OpenFlags, Stat, Whence};
use crate::view::View;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use nvmed_io::Source;
use nvmed_io::caller::{self, Urgency};
use nvmed_layout::FileType;
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_units::ByteOffset;

/// An open description. Descriptors that were duplicated or inherited share one.
///
/// Dropping the last reference closes it: its `flock` and OFD locks go, and a file without a name goes.
pub struct File {
    pub(crate) core: Arc<Core>,
    pub(crate) inode: Arc<Inode>,
    /// What who opened it sees.
    pub(crate) view: View,
    flags: AtomicU32,
    number: u64,
    offset: Mutex<u64>,
    /// The data path's part: readahead, errors already told.
    pub(crate) stream: Stream,
    listing: Option<Box<Mutex<Listing>>>,
    /// Whether a rule by path, or who opened it, makes its calls urgent.
    is_urgent: AtomicBool,
}

impl File {
    /// The caller has counted the inode's `opens`, and left out of the flags what acted once.
    pub(crate) fn new(
        core: Arc<Core>,
        inode: Arc<Inode>,
        flags: OpenFlags,
        view: View,
        is_urgent: bool,
    ) -> Self {
        let listing = (inode.kind == FileType::Directory).then(Box::default);
        Self {
            number: core.new_description(),
            stream: Stream::new(&inode.data),
            core,
            inode,
            view,
            flags: AtomicU32::new(flags.bits()),
            offset: Mutex::new(0),
            listing,
            is_urgent: AtomicBool::new(is_urgent),
        }
    }

    /// Whether its calls are urgent whoever makes them: a rule by path said so when it was opened, or
    /// [`File::set_urgent`].
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.is_urgent.load(Ordering::Relaxed)
    }

    /// Has its calls from now on be urgent whoever makes them, or as urgent as whoever makes them. The device makes the
    /// path of urgent requests if it has none.
    pub fn set_urgent(&self, urgent: bool) {
        if urgent {
            self.core.meta.handle.device().expect_urgent(Source::Told);
        }
        self.is_urgent.store(urgent, Ordering::Relaxed);
    }

    /// Does a call of this file, urgently where its calls are.
    #[inline]
    pub(crate) fn ruled<T>(&self, call: impl FnOnce() -> T) -> T {
        // One call of it, so that it is compiled into its caller.
        let _told = self.is_urgent().then(|| caller::begin(Urgency::Urgent));
        call()
    }

    /// The inode.
    #[must_use]
    pub fn node(&self) -> Node {
        Node::new(Arc::clone(&self.inode), &self.core, &self.view)
    }

    /// A number that no other description of this mount has.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the call that opened it also made the file (`O_CREAT`): such a file is empty, and is not cut by
    /// `O_TRUNC`.
    #[must_use]
    pub fn was_made(&self) -> bool {
        self.flags().has(OpenFlags::CREATE)
    }

    /// Access mode and status flags, as `F_GETFL` tells them; and [`OpenFlags::CREATE`] where the call that opened it
    /// made the file.
    #[must_use]
    pub fn flags(&self) -> OpenFlags {
        OpenFlags(self.flags.load(Ordering::Relaxed))
    }

    /// `F_SETFL`: changes the bits of [`OpenFlags::SETTABLE`], ignores others.
    ///
    /// # Errors
    /// None now; a bit may be refused later.
    pub fn set_flags(&self, flags: OpenFlags) -> Result<(), FsError> {
        let change = |now| Some(OpenFlags(now).with_settable_of(flags).bits());
        let _ = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        Ok(())
    }

    /// The shared offset, locked: calls that use it are atomic towards each other (POSIX.1-2017, 2.9.7).
    pub(crate) fn offset(&self) -> MutexGuard<'_, u64> {
        self.offset.lock()
    }

    /// Moves the shared offset; for a directory, `offset` is a cookie and 0 rewinds.
    ///
    /// # Errors
    /// [`FsError::Invalid`] before byte 0 or past `i64::MAX`; [`FsError::NoData`] when nothing is there;
    /// [`FsError::BadDescriptor`] with `O_PATH`.
    pub fn seek(&self, offset: i64, whence: Whence) -> Result<u64, FsError> {
        if self.flags().has(OpenFlags::PATH) {
            return Err(FsError::BadDescriptor);
        }
        if let Some(listing) = &self.listing {
            let mut listing = listing.lock();
            let from = match whence {
                Whence::Set => 0,
                Whence::Current => listing.position() as i64,
                Whence::End | Whence::Data | Whence::Hole => return Err(FsError::Invalid),
            };
            let to =
                from.checked_add(offset).and_then(|to| u64::try_from(to).ok()).ok_or(FsError::Invalid)?;
            listing.seek(to);
            return Ok(to);
        }
        let mut place = self.offset();
        let from = match whence {
            Whence::Set => 0,
            Whence::Current => *place as i64,
            Whence::End => self.inode.size.load(Ordering::Acquire) as i64,
            Whence::Data | Whence::Hole => {
                let offset = u64::try_from(offset).map_err(|_| FsError::NoData)?;
                *place = self.data_or_hole(ByteOffset(offset), whence == Whence::Data)?.0;
                return Ok(*place);
            }
        };
        let to = from.checked_add(offset).and_then(|to| u64::try_from(to).ok());
        *place = to.ok_or(FsError::Invalid)?;
        Ok(*place)
    }

    /// The shared offset; for a directory, the cookie of the last entry told.
    #[must_use]
    pub fn position(&self) -> u64 {
        match &self.listing {
            Some(listing) => listing.lock().position(),
            None => *self.offset(),
        }
    }

    /// Status of the inode.
    #[must_use]
    pub fn stat(&self) -> Stat {
        self.core.status(&self.inode)
    }

    /// Tells entries from the current position on until `tell` breaks; an entry at which it breaks is
    /// told again next time. `.` and `..` come first.
    ///
    /// An entry that is there all the time is told exactly once, whatever is made or removed meanwhile.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::BadDescriptor`]; the store's.
    pub fn read_dir(&self, tell: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<(), FsError> {
        let listing = self.listing.as_ref().ok_or(FsError::NotDirectory)?;
        if !self.flags().reads() {
            return Err(FsError::BadDescriptor);
        }
        let mut listing = listing.lock();
        // First, so that who looks at the inode's version when the first entry is told finds the listing's own.
        if self.stamps(self.flags()) {
            self.core.meta.accessed(&self.inode);
        }
        listing.tell(&self.core, &self.inode, self.view.root_ino(), tell)
    }

    /// Whether a read through it renews the access time.
    #[inline]
    pub(crate) fn stamps(&self, flags: OpenFlags) -> bool {
        !flags.has(OpenFlags::NOATIME) && !self.view.is_read_only()
    }

    /// Calls on what lies at a path only are refused with `O_PATH`.
    pub(crate) fn not_path_only(&self) -> Result<(), FsError> {
        if self.flags().has(OpenFlags::PATH) { Err(FsError::BadDescriptor) } else { Ok(()) }
    }

    /// A record lock needs an access mode that fits (fcntl(2)).
    fn record_lock(
        &self,
        owner: LockOwner,
        range: LockRange,
        kind: Option<LockKind>,
        wait: Wait<'_>,
    ) -> Result<(), FsError> {
        let fits = match kind {
            Some(LockKind::Shared) => self.flags().reads(),
            Some(LockKind::Exclusive) => self.flags().writes(),
            None => !self.flags().has(OpenFlags::PATH),
        };
        if !fits {
            return Err(FsError::BadDescriptor);
        }
        self.inode.locks().record(owner, range, kind, wait)
    }

    /// `F_SETLK`, `F_SETLKW`: the lock is the process's; `kind` none unlocks.
    ///
    /// # Errors
    /// [`FsError::WouldBlock`], [`FsError::Interrupted`], [`FsError::BadDescriptor`],
    /// [`FsError::TooManyLocks`].
    pub fn posix_lock(
        &self,
        pid: u32,
        range: LockRange,
        kind: Option<LockKind>,
        wait: Wait<'_>,
    ) -> Result<(), FsError> {
        self.record_lock(LockOwner::Process(pid), range, kind, wait)
    }

    /// `F_GETLK`: the first lock in the way, if any.
    #[must_use]
    pub fn posix_getlk(&self, pid: u32, range: LockRange, kind: LockKind) -> Option<LockHeld> {
        self.inode.locks_if_any()?.in_the_way(LockOwner::Process(pid), range, kind)
    }

    /// `F_OFD_SETLK`, `F_OFD_SETLKW`: the lock is this description's.
    ///
    /// # Errors
    /// As [`File::posix_lock`].
    pub fn ofd_lock(&self, range: LockRange, kind: Option<LockKind>, wait: Wait<'_>) -> Result<(), FsError> {
        self.record_lock(LockOwner::Description(self.number), range, kind, wait)
    }

    /// How many ranges of the file the process has locked.
    #[must_use]
    pub fn posix_locks(&self, pid: u32) -> usize {
        self.inode.locks_if_any().map_or(0, |locks| locks.ranges(LockOwner::Process(pid)))
    }

    /// How many ranges of the file this description has locked.
    #[must_use]
    pub fn ofd_locks(&self) -> usize {
        self.inode.locks_if_any().map_or(0, |locks| locks.ranges(LockOwner::Description(self.number)))
    }

    /// Bytes that it keeps of the names that [`File::read_dir`] has told.
    #[must_use]
    pub fn listing_bytes(&self) -> usize {
        let bytes = |listing: &Mutex<Listing>| listing.lock().bytes();
        self.listing.as_deref().map_or(0, bytes)
    }

    /// `F_OFD_GETLK`: the first lock in the way, if any.
    #[must_use]
    pub fn ofd_getlk(&self, range: LockRange, kind: LockKind) -> Option<LockHeld> {
        self.inode.locks_if_any()?.in_the_way(LockOwner::Description(self.number), range, kind)
    }

    /// `flock`; `kind` none unlocks.
    ///
    /// # Errors
    /// [`FsError::WouldBlock`], [`FsError::Interrupted`], [`FsError::BadDescriptor`].
    pub fn flock(&self, kind: Option<LockKind>, wait: Wait<'_>) -> Result<(), FsError> {
        self.not_path_only()?;
        self.inode.locks().whole(self.number, kind, wait)
    }

    /// Some descriptor of process `pid` for this file was closed: the process's record locks on the file
    /// go, whichever description they were set through (POSIX.1-2017, close).
    pub fn closed_by_process(&self, pid: u32) {
        if let Some(locks) = self.inode.locks_if_any() {
            locks.drop_owner(LockOwner::Process(pid));
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some(locks) = self.inode.locks_if_any() {
            locks.drop_owner(LockOwner::Description(self.number));
        }
        let handle = self.inode.data.handle.lock().take_if(|(number, _)| *number == self.number);
        drop(handle);
        let opens = &self.inode.opens;
        let one_of_more = |opens: u32| (opens > 1).then(|| opens - 1);
        loop {
            if opens.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_of_more).is_ok() {
                return;
            }
            self.core.placed.closing(&self.inode);
            match opens.compare_exchange(1, 0, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(0) => {
                    let ino = self.inode.ino;
                    return self.core.meta.health.broken(format!("inode {ino} is closed and was not open"));
                }
                // Somebody has opened it meanwhile.
                Err(_) => {}
            }
        }
        if self.inode.nlink() == 0 {
            // A failure leaves the orphan record: the next mount frees the file.
            let _ = self.core.reap_if_unused(&self.inode);
        }
    }
}
