//! Locks. The server never waits for one: a process that does tries again when some lock was released.

use crate::core::STRANGE;
use crate::file::File;
use nvmed_fs::{FsError, LockHeld, LockKind, LockRange, OpenFlags, Wait};
use nvmed_wire::{Answer, Call, LockClass};
use rustix::io::Errno;
use std::time::Duration;

/// How often a waiter asks whether it was cancelled, besides at every signal: one may come just before it sleeps.
const CANCEL_POLL: Duration = Duration::from_millis(20);

impl File {
    fn lock(
        &self,
        class: LockClass,
        range: LockRange,
        kind: Option<LockKind>,
        wait: Wait<'_>,
    ) -> Result<(), FsError> {
        self.holding.tell_end();
        let call = Call::Lock { handle: self.handle()?, class, range, kind };
        let board = &self.core().board;
        let mut given_up = false;
        loop {
            let seen = board.locks_released();
            match (self.core().done(&call), wait) {
                (Err(FsError::Host(Errno::AGAIN)), Wait::Until(_))
                    if class == LockClass::Whole && !given_up =>
                {
                    // A lock that is converted is given up first (flock(2)), or two that convert wait for ever.
                    given_up = true;
                    let give_up = Call::Lock { handle: self.handle()?, class, range, kind: None };
                    self.core().done(&give_up)?;
                }
                (Err(FsError::Host(Errno::AGAIN)), Wait::Until(cancelled)) => {
                    // Ended by a release, a signal, or the server's death: each is looked for.
                    let _ = board.wait_for_release(seen, CANCEL_POLL);
                    if cancelled() {
                        if let (LockClass::Waiting, Some(kind)) = (class, kind) {
                            // The server need not hear it when it is gone.
                            let _ = self.lock_in_the_way(class, range, kind);
                        }
                        return Err(FsError::Interrupted);
                    }
                }
                (Err(FsError::Host(Errno::AGAIN)), Wait::No) => return Err(FsError::WouldBlock),
                (done, _) => return done,
            }
        }
    }

    fn lock_in_the_way(
        &self,
        class: LockClass,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<LockHeld>, FsError> {
        match self.core().call(&Call::LockTest { handle: self.handle()?, class, range, kind })?.answer {
            Answer::Lock(held) => Ok(held),
            _ => Err(STRANGE),
        }
    }

    /// A record lock needs an access mode that fits (fcntl(2)).
    fn fits(&self, kind: Option<LockKind>) -> Result<(), FsError> {
        let fits = match kind {
            Some(LockKind::Shared) => self.flags().reads(),
            Some(LockKind::Exclusive) => self.flags().writes(),
            None => !self.flags().has(OpenFlags::PATH),
        };
        if fits { Ok(()) } else { Err(FsError::BadDescriptor) }
    }

    /// `F_SETLK`, `F_SETLKW`: the lock is the process's; `kind` none unlocks.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::posix_lock`].
    pub fn posix_lock(
        &self,
        range: LockRange,
        kind: Option<LockKind>,
        wait: Wait<'_>,
    ) -> Result<(), FsError> {
        self.fits(kind)?;
        let class = if matches!(wait, Wait::No) { LockClass::Process } else { LockClass::Waiting };
        self.lock(class, range, kind, wait)
    }

    /// `F_GETLK`: the first lock in the way, if any.
    ///
    /// # Errors
    /// `EIO` once the server is gone.
    pub fn posix_getlk(&self, range: LockRange, kind: LockKind) -> Result<Option<LockHeld>, FsError> {
        self.lock_in_the_way(LockClass::Process, range, kind)
    }

    /// `F_OFD_SETLK`, `F_OFD_SETLKW`: the lock is this description's.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::ofd_lock`].
    pub fn ofd_lock(&self, range: LockRange, kind: Option<LockKind>, wait: Wait<'_>) -> Result<(), FsError> {
        self.fits(kind)?;
        self.lock(LockClass::Description, range, kind, wait)
    }

    /// `F_OFD_GETLK`: the first lock in the way, if any.
    ///
    /// # Errors
    /// `EIO` once the server is gone.
    pub fn ofd_getlk(&self, range: LockRange, kind: LockKind) -> Result<Option<LockHeld>, FsError> {
        self.lock_in_the_way(LockClass::Description, range, kind)
    }

    /// `flock`; `kind` none unlocks.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::flock`].
    pub fn flock(&self, kind: Option<LockKind>, wait: Wait<'_>) -> Result<(), FsError> {
        if self.flags().has(OpenFlags::PATH) {
            return Err(FsError::BadDescriptor);
        }
        self.lock(LockClass::Whole, LockRange::ALL, kind, wait)
    }
}
