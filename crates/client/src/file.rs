//! An open description, which a client may share with other processes.

use crate::advice::Untold;
use crate::cached::Cached;
use crate::core::{Core, STRANGE};
use crate::link::NO_ROOM;
use crate::listing::Listing;
use crate::node::{Holding, Node};
use crate::rhythm::Rhythm;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use nvmed_fs::{Allocate, FileType, FsError, OpenFlags, Stat, Whence};
use nvmed_sys::{ForkLock, QuietFd};
use nvmed_wire::{Answer, Call, Control, Handle, Object, Spare};
use std::sync::Arc;

/// An open description. Descriptors that were duplicated share one; so do processes, by fork, exec and SCM_RIGHTS.
///
/// The calls and their errors are those of [`nvmed_fs::File`]; the server knows which process calls. Every call can
/// fail with `EIO` once the server is gone. Dropping the last reference closes it.
#[derive(Debug)]
pub struct File {
    pub(crate) holding: Arc<Holding>,
    flags: AtomicU32,
    /// Whether the offset is here. If not, it is the server's.
    own: AtomicBool,
    /// The offset, of a directory the cookie of the last entry told, while it is here. Not taken any more once it is
    /// not: a forked child must not find it taken.
    offset: ForkLock<u64>,
    /// Of a directory; taken after the offset.
    pub(crate) listing: ForkLock<Listing>,
    pub(crate) cached: Cached,
    pub(crate) rhythm: Rhythm,
    pub(crate) untold: Untold,
}

/// A mapped file: map `fd`, shared or private. It holds the file's bytes until every [`File::map`] has seen its
/// [`File::unmap`].
#[derive(Debug)]
pub struct MappedFile {
    /// The file's memory.
    pub fd: Arc<QuietFd>,
}

impl File {
    /// With an offset: it is kept here.
    pub(crate) fn new(holding: Arc<Holding>, flags: OpenFlags, offset: Option<u64>) -> Self {
        let own = offset.is_some() && matches!(holding.kind, FileType::File | FileType::Directory);
        Self {
            holding,
            flags: AtomicU32::new(flags.0),
            own: AtomicBool::new(own),
            offset: ForkLock::new(offset.unwrap_or(0)),
            listing: ForkLock::default(),
            cached: Cached::default(),
            rhythm: Rhythm::default(),
            untold: Untold::default(),
        }
    }

    #[inline]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.holding.core
    }

    /// The handle by which the server knows it.
    ///
    /// # Errors
    /// `EIO` once the server is gone; `EMFILE` when it holds no more.
    #[inline]
    pub fn handle(&self) -> Result<Handle, FsError> {
        self.holding.handle()
    }

    /// The inode. Its handle is given up with the description.
    #[must_use]
    pub fn node(&self) -> Node {
        Node(Arc::clone(&self.holding))
    }

    /// How large the file was when it was opened.
    #[must_use]
    pub fn bytes_at_open(&self) -> u64 {
        self.holding.known.0.size
    }

    /// Access mode and status flags, as far as this process knows: another one that has the description may have
    /// changed those of [`OpenFlags::SETTABLE`]. What they mean is the server's affair.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> OpenFlags {
        OpenFlags(self.flags.load(Ordering::Relaxed))
    }

    /// `F_GETFL`. The server is asked if another process may have the description too.
    ///
    /// # Errors
    /// `EIO` once the server is gone.
    pub fn present_flags(&self) -> Result<OpenFlags, FsError> {
        if !self.own.load(Ordering::Relaxed) {
            let Answer::Count(flags) = self.core().call(&Call::Flags { handle: self.handle()? })?.answer
            else {
                return Err(STRANGE);
            };
            self.flags.store(flags as u32, Ordering::Relaxed);
        }
        Ok(self.flags())
    }

    /// `F_SETFL`: changes the bits of [`OpenFlags::SETTABLE`], ignores others.
    ///
    /// # Errors
    /// `EIO` once the server is gone.
    pub fn set_flags(&self, flags: OpenFlags) -> Result<(), FsError> {
        self.core().done(&Call::SetFlags { handle: self.handle()?, flags })?;
        let change = |now| Some(OpenFlags(now).with_settable_of(flags).bits());
        let _ = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        Ok(())
    }

    /// Calls `act` with the offset if it is kept here; none if it is the server's.
    #[inline]
    pub(crate) fn with_offset<T>(&self, act: impl FnOnce(&mut u64) -> T) -> Option<T> {
        if !self.own.load(Ordering::Acquire) {
            return None;
        }
        let mut offset = self.offset.lock();
        // Another thread may have shared it while this one waited.
        self.own.load(Ordering::Relaxed).then(|| act(&mut offset))
    }

    /// Another process is about to have the description too: its offset is the server's from now on. Comes before
    /// an heir that holds it, and before [`crate::Session::send`].
    pub fn share(&self) {
        self.holding.tell_end();
        self.tell_advice(None);
        self.with_offset(|offset| {
            let is_told = self.to_servers_cookie(offset).and_then(|()| {
                let by = i64::try_from(*offset).unwrap_or(i64::MAX);
                self.seek_there(by, Whence::Set)
            });
            // Without a server there is no offset either; one that cannot hold the description yet is not told.
            if is_told.is_ok() || !self.core().link().is_open() {
                self.own.store(false, Ordering::Release);
            }
        });
    }

    pub(crate) fn seek_there(&self, by: i64, whence: Whence) -> Result<u64, FsError> {
        match self.core().call(&Call::Seek { handle: self.handle()?, by, whence })?.answer {
            Answer::Count(offset) => Ok(offset),
            _ => Err(STRANGE),
        }
    }

    /// Moves the offset; for a directory, `offset` is a cookie and 0 rewinds.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::seek`].
    pub fn seek(&self, offset: i64, whence: Whence) -> Result<u64, FsError> {
        if self.flags().has(OpenFlags::PATH) {
            return Err(FsError::BadDescriptor);
        }
        let is_directory = self.holding.kind == FileType::Directory;
        let here = self.with_offset(|place| {
            let from = match whence {
                Whence::End | Whence::Data | Whence::Hole if is_directory => return Err(FsError::Invalid),
                Whence::Set => Some(0),
                Whence::Current => Some(*place as i64),
                Whence::End => self.cached_size().map(|size| size as i64),
                Whence::Data | Whence::Hole => None,
            };
            *place = match from {
                Some(from) => {
                    let to = from.checked_add(offset).and_then(|to| u64::try_from(to).ok());
                    to.ok_or(FsError::Invalid)?
                }
                None => {
                    if whence == Whence::End {
                        self.ask_for_size();
                    }
                    self.seek_there(offset, whence)?
                }
            };
            if is_directory && *place == 0 {
                // It begins anew, with what is there then.
                *self.listing.lock() = Listing::default();
            }
            Ok(*place)
        });
        here.unwrap_or_else(|| self.seek_there(offset, whence))
    }

    /// The offset; for a directory, the cookie of the last entry told.
    ///
    /// # Errors
    /// `EIO` once the server is gone.
    pub fn position(&self) -> Result<u64, FsError> {
        match self.with_offset(|offset| *offset) {
            Some(offset) => Ok(offset),
            None => self.seek_there(0, Whence::Current),
        }
    }

    /// Status of the inode.
    ///
    /// # Errors
    /// `EIO` once the server is gone.
    pub fn stat(&self) -> Result<Stat, FsError> {
        self.holding.stat()
    }

    /// Calls that change the inode need more than `O_PATH`.
    fn not_path_only(&self) -> Result<(), FsError> {
        if self.flags().has(OpenFlags::PATH) { Err(FsError::BadDescriptor) } else { Ok(()) }
    }

    /// What a change of its attributes is about.
    pub(crate) fn altered(&self) -> Result<Object<'static>, FsError> {
        self.not_path_only()?;
        self.holding.object()
    }

    /// Sets the size.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::truncate`].
    pub fn truncate(&self, bytes: u64) -> Result<(), FsError> {
        self.core().done(&Call::Truncate { object: self.altered()?, bytes })
    }

    /// `fallocate`.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::fallocate`].
    pub fn fallocate(&self, how: Allocate, offset: u64, bytes: u64) -> Result<(), FsError> {
        self.core().done(&Call::Allocate { handle: self.handle()?, how, offset, bytes })
    }

    /// `fsync`.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::fsync`].
    pub fn fsync(&self) -> Result<(), FsError> {
        self.core().done(&Call::Sync { handle: self.handle()?, data_only: false })
    }

    /// `fdatasync`. It makes no call when it came with the last write, and nobody has changed the file since.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::fdatasync`].
    pub fn fdatasync(&self) -> Result<(), FsError> {
        let board = &self.core().board;
        // In this order: what of this process's is taken after the look changes the mark before.
        let is_taken = || self.core().link().posting.is_taken();
        if self.rhythm.sync(|mark| is_taken() && board.is_unchanged(mark) && !board.is_dead()) {
            self.core().link().spared(Spare::Sync);
            return Ok(());
        }
        self.core().done(&Call::Sync { handle: self.handle()?, data_only: true })
    }

    /// Writes a range back, without making it durable (`sync_file_range`); 0 bytes reach to the end.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::sync_range`].
    pub fn sync_range(&self, offset: u64, bytes: u64) -> Result<(), FsError> {
        self.core().done(&Call::WriteBack { handle: self.handle()?, offset, bytes })
    }

    /// The file's memory for mmap; `write` when stores into it are to become the file's.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::map`].
    pub fn map(&self, write: bool) -> Result<MappedFile, FsError> {
        self.not_path_only()?;
        self.holding.tell_end();
        // Before the socket is taken: to claim what was posted may take it too.
        let handle = self.handle()?;
        let (_, fd) = self.core().talk()?.ask(&Control::Map { handle, write }, None)?;
        let Some(fd) = fd else {
            // It is mapped, as far as the server knows.
            self.unmap(write)?;
            return Err(NO_ROOM);
        };
        Ok(MappedFile { fd: Arc::new(QuietFd::new(fd)) })
    }

    /// Ends one mapping, made with the same `write`; with `write`, stores become the file's.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::unmap`].
    pub fn unmap(&self, write: bool) -> Result<(), FsError> {
        self.core().done(&Call::Unmap { handle: self.handle()?, write })
    }

    /// Makes a mapped range durable.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::msync`].
    pub fn msync(&self, offset: u64, bytes: u64) -> Result<(), FsError> {
        self.core().done(&Call::SyncMap { handle: self.handle()?, offset, bytes })
    }

    /// Some descriptor of this process for the file was closed: the process's record locks on the file go,
    /// whichever description they were set through.
    pub fn closed_by_process(&self) {
        // Without a server there are no locks.
        if let Ok(handle) = self.handle() {
            let _ = self.core().done(&Call::Close { handle, last: false, record_locks: true });
        }
    }
}
