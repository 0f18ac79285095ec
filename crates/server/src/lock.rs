//! Locks of processes and of descriptions. Nothing waits here: a client that must wait looks at the board, and tries
//! again when some lock was released.

use crate::owner::Wanted;
use crate::service::Service;
use crate::session::Session;
use nvmed_fs::{FsError, LockHeld, LockKind, LockOwner, LockRange, Wait};
use nvmed_wire::{Answer, Handle, LockClass};
use rustix::io::Errno;
use std::sync::Arc;

impl Service {
    /// Sets or, without a kind, gives back a lock.
    ///
    /// # Errors
    /// [`FsError::WouldBlock`]; those of fcntl(2) and flock(2).
    pub(crate) fn lock(
        &self,
        session: &Session,
        handle: Handle,
        class: LockClass,
        range: LockRange,
        kind: Option<LockKind>,
    ) -> Result<Answer, FsError> {
        let description = session.description(handle)?;
        let range = checked(range)?;
        let attempt = || match class {
            LockClass::Process | LockClass::Waiting => {
                session.owner.lock(&session.user, &description.node(), kind.is_some(), |owner| {
                    description.posix_lock(owner, range, kind, Wait::No)?;
                    Ok(description.posix_locks(owner))
                })
            }
            LockClass::Description => description.lock_range(&session.user, range, kind),
            LockClass::Whole => description.flock(kind, Wait::No),
        };
        let mut done = attempt();
        if matches!(done, Err(FsError::WouldBlock)) && self.bury() {
            done = attempt();
        }
        if let (Err(FsError::WouldBlock), LockClass::Waiting, Some(kind)) = (&done, class, kind) {
            let wanted = Wanted { description: Arc::downgrade(&description), range, kind };
            if self.owners.is_circle(&session.owner, wanted) {
                return Err(FsError::Host(Errno::DEADLK));
            }
        } else if matches!(class, LockClass::Process | LockClass::Waiting) {
            session.owner.waits_no_more();
        }
        match done {
            // Before the answer, so that the release that lets this one in wakes it.
            Err(FsError::WouldBlock) => self.board.lock_refused(),
            Ok(()) if matches!(class, LockClass::Description | LockClass::Whole) => description.locked(),
            _ => {}
        }
        done?;
        // What was exclusive and is shared now lets others in as well.
        if kind != Some(LockKind::Exclusive) {
            self.board.lock_released();
        }
        Ok(Answer::Done)
    }

    /// The lock in the way of another.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`], [`FsError::Invalid`].
    pub(crate) fn test_lock(
        &self,
        session: &Session,
        handle: Handle,
        class: LockClass,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Answer, FsError> {
        let description = session.description(handle)?;
        let range = checked(range)?;
        let look = || match class {
            LockClass::Process | LockClass::Waiting => {
                Ok(description.posix_getlk(session.owner.number, range, kind))
            }
            LockClass::Description => Ok(description.ofd_getlk(range, kind)),
            LockClass::Whole => Err(FsError::Invalid),
        };
        if class == LockClass::Waiting {
            session.owner.waits_no_more();
        }
        let mut held = look()?;
        if held.is_some() && self.bury() {
            held = look()?;
        }
        Ok(Answer::Lock(held.map(|held| self.shown(held))))
    }

    /// A lock as a process sees it: its owner by process id.
    fn shown(&self, held: LockHeld) -> LockHeld {
        let owner = match held.owner {
            LockOwner::Process(number) => LockOwner::Process(self.owners.pid(number)),
            description => description,
        };
        LockHeld { owner, ..held }
    }
}

/// A range as a client brings it: one with no byte in it would be a lock that nothing ever cuts.
fn checked(range: LockRange) -> Result<LockRange, FsError> {
    if range.start < range.end { Ok(range) } else { Err(FsError::Invalid) }
}
