//! Closes that clients have posted, without waiting for them: docs/spec/shared.md, "Posts".

use crate::answer::Asker;
use crate::service::Service;
use crate::session::Session;
use crate::statistics::POSTED_CLOSE;
use nvmed_fs::{FsError, OpenFlags};
use nvmed_wire::{Call, Data, LaneError, ServerLane};
use rustix::io::Errno;

impl Service {
    /// Does the closes that a session has posted in one of its lanes.
    ///
    /// # Errors
    /// [`LaneError::Posts`] for what a client of ours does not write.
    pub(crate) fn take_posts(&self, session: &Session, lane: &ServerLane) -> Result<(), LaneError> {
        let mut data = Data::default();
        let taken = lane.take_posts(|handle| {
            let close = Call::Close { handle, last: true, record_locks: false };
            // What it does not hold it cannot close. A mistake of ours in one close is not the next one's.
            let _ = self.mount.guarded(|| self.answer_as(session, close, &mut data, POSTED_CLOSE));
        });
        taken.map(drop)
    }

    /// Does what all clients have posted.
    pub(crate) fn take_all_posts(&self) {
        self.take_posted_writes();
        let sessions: Vec<_> = self.sessions.lock().values().cloned().collect();
        for session in sessions {
            for lane in session.counts.lanes() {
                // One that says what cannot be is ended when it calls; what it held is nobody's to wait for.
                let _ = self.take_posts(&session, &lane);
            }
        }
    }

    /// Whether a call that failed is to be tried again: there was no room, what was posted may have made some, and the
    /// call has changed nothing.
    pub(crate) fn has_made_room(&self, asker: &Asker<'_>, call: &Call<'_>, error: &FsError) -> bool {
        if !is_no_room(error) {
            return false;
        }
        let unchanged = match *call {
            Call::Open { .. }
            | Call::Mkdir { .. }
            | Call::Mknod { .. }
            | Call::Symlink { .. }
            | Call::Link { .. }
            | Call::Rename { .. }
            | Call::Truncate { .. }
            | Call::Xattr { .. }
            | Call::Allocate { .. } => true,
            // What was appended may be there, and only not be durable.
            Call::Write { handle, .. } => asker.session.description(handle).is_ok_and(|description| {
                let flags = description.flags();
                !flags.has(OpenFlags::APPEND) || !flags.has_any(OpenFlags::WAITING)
            }),
            _ => false,
        };
        if unchanged {
            self.make_room();
        }
        // Also when there was nothing: another thread may just have taken what was posted.
        unchanged
    }

    /// Gives back what is only promised, or held by nobody who needs it.
    fn make_room(&self) {
        self.take_all_posts();
        self.end_grants();
    }

    /// Does what can be done twice, and once more if there was no room that is only promised. What is stored in a
    /// mapping gets its blocks here.
    ///
    /// # Errors
    /// Those of `act`.
    pub(crate) fn with_room<T>(&self, act: impl Fn() -> Result<T, FsError>) -> Result<T, FsError> {
        let done = act();
        if done.as_ref().is_err_and(is_no_room) {
            self.make_room();
            return act();
        }
        done
    }
}

fn is_no_room(error: &FsError) -> bool {
    matches!(error.errno(), Errno::NOSPC | Errno::DQUOT)
}
