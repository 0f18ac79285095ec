//! Processes as owners of record locks. An owner is a number that the exec of a process keeps and no later process
//! gets, so that locks of a dead process are never taken for those of a new one with its id.

use crate::description::Description;
use crate::share::{Resource, Share, User};
use nvmed_fs::{FsError, LockKind, LockOwner, LockRange, Node};
use nvmed_sys::sync::{Arc, Mutex, Weak};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// Files on which one process holds record locks; more are a mistake of the program, or an attack.
const FILES_MAX: usize = 1 << 16;
/// Processes in the largest circle of waits that is looked for.
const CIRCLE_MAX: usize = 64;

/// A record lock that a process waits for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Through what it is asked for.
    pub description: Weak<Description>,
    pub range: LockRange,
    pub kind: LockKind,
}

impl Wanted {
    /// Who keeps the process with this number from having it.
    fn in_the_way(&self, number: u32) -> Option<LockOwner> {
        let held = self.description.upgrade()?.posix_getlk(number, self.range, self.kind)?;
        Some(held.owner)
    }
}

/// One process, as far as record locks go.
#[derive(Debug)]
pub(crate) struct Owner {
    /// What the file system knows it by.
    pub number: u32,
    /// Its process id, which `F_GETLK` shows.
    pid: AtomicU32,
    sessions: AtomicU32,
    locked: Mutex<Locked>,
    wanted: Mutex<Option<Wanted>>,
}

#[derive(Debug, Default)]
struct Locked {
    ended: bool,
    /// Files with locks, and how many ranges each has.
    files: HashMap<u64, (Node, usize)>,
    /// Of its user's.
    share: Option<Share>,
}

impl Locked {
    /// The process has `ranges` locks on a file now, as far as its user's share is concerned.
    fn set(&mut self, node: &Node, ranges: usize) {
        let before = self.files.insert(node.ino(), (node.clone(), ranges)).map_or(0, |(_, ranges)| ranges);
        self.less(before, ranges);
    }

    fn less(&mut self, before: usize, now: usize) {
        if let Some(share) = &mut self.share {
            assert!(before <= share.count(), "{before} locks on a file, and {} in all", share.count());
            share.set(share.count() - before + now);
        }
    }
}

/// Ranges that one more lock may add: it may split another one.
pub(crate) const RANGES_ADDED: usize = 2;

impl Owner {
    /// A process said hello or adopted a session: this is its id.
    pub fn is(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    /// One session more that belongs to the process.
    pub fn join(&self) {
        self.sessions.fetch_add(1, Ordering::SeqCst);
    }

    /// Lets `attempt` set a lock on `node`, or give one back, which goes with the process; it answers how many ranges
    /// the process has there then.
    ///
    /// # Errors
    /// [`FsError::TooManyLocks`], also past the user's limit; [`FsError::BadDescriptor`] when the process has just
    /// ended.
    pub fn lock(
        &self,
        user: &Arc<User>,
        node: &Node,
        sets: bool,
        attempt: impl FnOnce(u32) -> Result<usize, FsError>,
    ) -> Result<(), FsError> {
        let mut locked = self.locked.lock();
        if locked.ended {
            return Err(FsError::BadDescriptor);
        }
        if locked.files.len() >= FILES_MAX && !locked.files.contains_key(&node.ino()) {
            return Err(FsError::TooManyLocks);
        }
        let share = locked.share.get_or_insert_with(|| user.none(Resource::Lock));
        let before = share.count();
        if sets {
            share.grow(RANGES_ADDED)?;
        }
        let ranges = attempt(self.number);
        share.set(before);
        locked.set(node, ranges?);
        Ok(())
    }

    /// It has what it waited for, or does not wait any more.
    pub(crate) fn waits_no_more(&self) {
        *self.wanted.lock() = None;
    }

    /// The process closed a descriptor of the file: its record locks there go. Whether it had any.
    pub fn closed(&self, ino: u64) -> bool {
        let mut locked = self.locked.lock();
        let Some((node, ranges)) = locked.files.remove(&ino) else { return false };
        locked.less(ranges, 0);
        drop(locked);
        node.drop_record_locks(self.number);
        true
    }

    /// One session fewer; with the last one the process is dead, and its locks go. Whether it had any.
    fn leave(&self) -> bool {
        let sessions = self.sessions.fetch_sub(1, Ordering::SeqCst);
        assert!(sessions > 0, "a process without sessions leaves one");
        if sessions > 1 {
            return false;
        }
        let mut locked = self.locked.lock();
        locked.ended = true;
        let files = std::mem::take(&mut locked.files);
        files.values().for_each(|(node, _)| node.drop_record_locks(self.number));
        locked.share = None;
        !files.is_empty()
    }
}

/// All processes with a session.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    last: AtomicU32,
    living: Mutex<HashMap<u32, Weak<Owner>>>,
    /// Locked by a process that begins to wait: of those whose waits close a circle, one is the last.
    waiting: Mutex<()>,
}

impl Owners {
    /// A process that no session has belonged to yet; one belongs to it now.
    pub fn begin(&self, pid: u32) -> Arc<Owner> {
        let mut living = self.living.lock();
        // After 2^32 processes numbers begin anew; one that still lives keeps its own.
        let number = loop {
            let number = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if !living.contains_key(&number) {
                break number;
            }
        };
        let owner = Arc::new(Owner {
            number,
            pid: AtomicU32::new(pid),
            sessions: AtomicU32::new(1),
            locked: Mutex::default(),
            wanted: Mutex::default(),
        });
        living.insert(number, Arc::downgrade(&owner));
        owner
    }

    /// A session of the process ended. Whether locks went with it.
    pub fn end(&self, owner: &Owner) -> bool {
        let released = owner.leave();
        if owner.sessions.load(Ordering::SeqCst) == 0 {
            self.living.lock().remove(&owner.number);
        }
        released
    }

    /// Notes that a process waits for a lock, unless the lock's owner waits for this process: both would wait for ever.
    /// As in Linux one lock that is in the way is followed at a time, and threads of a process count as one.
    pub(crate) fn is_circle(&self, owner: &Owner, wanted: Wanted) -> bool {
        let _alone = self.waiting.lock();
        let mut in_the_way = wanted.in_the_way(owner.number);
        *owner.wanted.lock() = Some(wanted);
        for _ in 0..CIRCLE_MAX {
            let Some(LockOwner::Process(number)) = in_the_way else { return false };
            if number == owner.number {
                owner.waits_no_more();
                return true;
            }
            let wanted = self.find(number).and_then(|holder| holder.wanted.lock().clone());
            in_the_way = wanted.and_then(|wanted| wanted.in_the_way(number));
        }
        false
    }

    fn find(&self, number: u32) -> Option<Arc<Owner>> {
        self.living.lock().get(&number).and_then(Weak::upgrade)
    }

    /// The process id behind an owner's number; 0 of one that has just ended.
    pub fn pid(&self, number: u32) -> u32 {
        self.find(number).map_or(0, |owner| owner.pid.load(Ordering::Relaxed))
    }

    /// How many processes there are.
    pub fn count(&self) -> usize {
        self.living.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a process without sessions leaves one")]
    fn a_process_that_leaves_twice_is_our_mistake() {
        let owners = Owners::default();
        let owner = owners.begin(1);
        owners.end(&owner);
        owners.end(&owner);
    }

    #[test]
    #[should_panic(expected = "2 locks on a file, and 0 in all")]
    fn locks_that_were_not_counted_are_our_mistake() {
        let user = crate::share::Shares::new(crate::share::Limits::MACHINE).user(1);
        Locked { share: Some(user.none(Resource::Lock)), ..Locked::default() }.less(2, 0);
    }
}
