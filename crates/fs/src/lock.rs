//! Advisory locks with the owners that POSIX and Linux give them.
//!
//! Record locks belong to a process (`F_SETLK`) or to an open description (`F_OFD_SETLK`); the two
//! kinds conflict with each other, as in Linux. `flock` locks belong to an open description, cover
//! the file, and conflict only among themselves (fcntl(2), flock(2)).
//!
//! Waiting is not checked for circles: the processes of one mount are one process, whose threads share
//! their record locks, and for descriptions Linux does not check either.

use crate::error::FsError;
use nvmed_sys::sync::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Record locks on one file. A program that needs more locks records that it should lock together.
const RANGES_MAX: usize = 1 << 16;
/// How often a waiter asks whether it was cancelled: a signal handler that ran shall end the wait soon.
const CANCEL_POLL: Duration = Duration::from_millis(20);

/// How a lock excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// `F_RDLCK`, `LOCK_SH`: excludes exclusive ones.
    Shared,
    /// `F_WRLCK`, `LOCK_EX`: excludes all others.
    Exclusive,
}

/// Whose a record lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockOwner {
    /// A process, by its id: POSIX's record locks.
    Process(u32),
    /// An open description, by its number: `F_OFD_*`.
    Description(u64),
}

/// Bytes `start..end` of a file; `end` is [`u64::MAX`] for "to the end, however far it moves".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// A lock in the way of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHeld {
    /// Its kind.
    pub kind: LockKind,
    /// Its range.
    pub range: LockRange,
    /// Its owner; `F_GETLK` shows a description as process -1.
    pub owner: LockOwner,
}

/// What to do when a lock is taken.
#[derive(Clone, Copy)]
pub enum Wait<'a> {
    /// Fail with [`FsError::WouldBlock`].
    No,
    /// Wait until it is free or the function answers true, then [`FsError::Interrupted`].
    Until(&'a dyn Fn() -> bool),
}

impl LockRange {
    /// The whole file.
    pub const ALL: Self = Self { start: 0, end: u64::MAX };

    /// The range of a `struct flock` whose `l_whence` was resolved: `len` 0 is to the end, a negative
    /// `len` is the bytes before `start`.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when it begins before byte 0.
    pub fn of(start: i64, len: i64) -> Result<Self, FsError> {
        let (start, end) = match len {
            0 => (start, i64::MAX),
            1.. => (start, start.saturating_add(len)),
            _ => (start.checked_add(len).ok_or(FsError::Invalid)?, start),
        };
        let start = u64::try_from(start).map_err(|_| FsError::Invalid)?;
        let end = if end == i64::MAX { u64::MAX } else { end as u64 };
        Ok(Self { start, end })
    }

    fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl LockHeld {
    fn excludes(&self, owner: LockOwner, range: LockRange, kind: LockKind) -> bool {
        self.owner != owner
            && self.range.overlaps(range)
            && (self.kind == LockKind::Exclusive || kind == LockKind::Exclusive)
    }
}

/// The locks that are held on one file.
#[derive(Default)]
struct LockList {
    /// Those on ranges (fcntl(2)), in no order: files have few locks.
    records: Vec<LockHeld>,
    /// Those on the whole file (flock(2)), by their descriptions' numbers.
    whole: Vec<(u64, LockKind)>,
}

impl LockList {
    fn record_in_the_way(&self, owner: LockOwner, range: LockRange, kind: LockKind) -> Option<LockHeld> {
        let ways = self.records.iter().filter(|held| held.excludes(owner, range, kind));
        ways.min_by_key(|held| held.range.start).copied()
    }

    /// Takes `range` out of the owner's locks; one in whose middle it lies becomes two.
    fn cut(&mut self, owner: LockOwner, range: LockRange) {
        let mut rest = Vec::new();
        self.records.retain(|held| {
            if held.owner != owner || !held.range.overlaps(range) {
                return true;
            }
            let before = LockRange { start: held.range.start, end: range.start };
            let after = LockRange { start: range.end, end: held.range.end };
            let parts = [before, after].into_iter().filter(|part| part.start < part.end);
            rest.extend(parts.map(|part| LockHeld { range: part, ..*held }));
            false
        });
        self.records.append(&mut rest);
    }

    /// Adds a lock whose range was cut free, joined with its neighbours of the same kind.
    fn join(&mut self, owner: LockOwner, mut range: LockRange, kind: LockKind) {
        self.records.retain(|held| {
            let touches = held.range.end == range.start || held.range.start == range.end;
            let joins = held.owner == owner && held.kind == kind && touches;
            if joins {
                range.start = range.start.min(held.range.start);
                range.end = range.end.max(held.range.end);
            }
            !joins
        });
        self.records.push(LockHeld { kind, range, owner });
    }

    fn whole_in_the_way(&self, description: u64, kind: LockKind) -> bool {
        let exclusive = kind == LockKind::Exclusive;
        self.whole.iter().any(|&(who, held)| who != description && (exclusive || held == LockKind::Exclusive))
    }
}

/// The locks of one inode.
#[derive(Default)]
pub(crate) struct Locks {
    held: Mutex<LockList>,
    freed: Condvar,
}

impl Locks {
    fn held(&self) -> nvmed_sys::sync::MutexGuard<'_, LockList> {
        // A panic while a lock list was edited cannot leave a half-made entry: entries are `Copy`.
        self.held.lock()
    }

    /// Retries `attempt` as the locks change, until it succeeds or waiting is over.
    fn until(
        &self,
        wait: Wait<'_>,
        mut attempt: impl FnMut(&mut LockList) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let mut held = self.held();
        loop {
            match (attempt(&mut held), wait) {
                (Err(FsError::WouldBlock), Wait::Until(cancelled)) => {
                    if cancelled() {
                        return Err(FsError::Interrupted);
                    }
                    (held, _) = self.freed.wait_timeout(held, CANCEL_POLL);
                }
                (result, _) => return result,
            }
        }
    }

    /// Locks or (`kind` none) unlocks a range for `owner`, replacing what the owner held there.
    pub(crate) fn record(
        &self,
        owner: LockOwner,
        range: LockRange,
        kind: Option<LockKind>,
        wait: Wait<'_>,
    ) -> Result<(), FsError> {
        self.until(wait, |held| {
            if kind.is_some_and(|kind| held.record_in_the_way(owner, range, kind).is_some()) {
                return Err(FsError::WouldBlock);
            }
            if kind.is_some() && held.records.len() >= RANGES_MAX {
                return Err(FsError::TooManyLocks);
            }
            held.cut(owner, range);
            if let Some(kind) = kind {
                held.join(owner, range, kind);
            }
            Ok(())
        })?;
        // Freed or downgraded: someone else may get through now.
        self.freed.notify_all();
        Ok(())
    }

    /// How many ranges `owner` has.
    pub(crate) fn ranges(&self, owner: LockOwner) -> usize {
        self.held().records.iter().filter(|held| held.owner == owner).count()
    }

    /// The first lock that keeps `owner` from such a lock: `F_GETLK`.
    pub(crate) fn in_the_way(&self, owner: LockOwner, range: LockRange, kind: LockKind) -> Option<LockHeld> {
        self.held().record_in_the_way(owner, range, kind)
    }

    /// `flock`: locks the file for a description, or (`kind` none) unlocks it.
    pub(crate) fn whole(
        &self,
        description: u64,
        kind: Option<LockKind>,
        wait: Wait<'_>,
    ) -> Result<(), FsError> {
        self.until(wait, |held| {
            if kind.is_some_and(|kind| held.whole_in_the_way(description, kind)) {
                if matches!(wait, Wait::Until(_)) {
                    // Two that hold it shared and both wait for it exclusively would wait for ever:
                    // a conversion gives up what it holds first (flock(2)).
                    held.whole.retain(|&(who, _)| who != description);
                    self.freed.notify_all();
                }
                return Err(FsError::WouldBlock);
            }
            held.whole.retain(|&(who, _)| who != description);
            held.whole.extend(kind.map(|kind| (description, kind)));
            Ok(())
        })?;
        self.freed.notify_all();
        Ok(())
    }

    /// Drops every record lock of `owner`, and `flock`'s of a description.
    pub(crate) fn drop_owner(&self, owner: LockOwner) {
        let mut held = self.held();
        let before = held.records.len() + held.whole.len();
        held.records.retain(|lock| lock.owner != owner);
        if let LockOwner::Description(number) = owner {
            held.whole.retain(|&(who, _)| who != number);
        }
        if held.records.len() + held.whole.len() < before {
            self.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockKind::{Exclusive, Shared};

    const US: LockOwner = LockOwner::Process(1);
    const DESCRIPTION: LockOwner = LockOwner::Description(9);

    fn range(start: u64, end: u64) -> LockRange {
        LockRange { start, end }
    }

    #[test]
    fn a_record_lock_keeps_others_out_and_says_where() {
        let locks = Locks::default();
        locks.record(US, range(10, 20), Some(Exclusive), Wait::No).unwrap();
        let refused = locks.record(DESCRIPTION, range(19, 30), Some(Shared), Wait::No);
        assert!(matches!(refused, Err(FsError::WouldBlock)));
        let held = locks.in_the_way(DESCRIPTION, range(0, 100), Shared).unwrap();
        assert_eq!((held.owner, held.range, held.kind), (US, range(10, 20), Exclusive));
        assert_eq!(locks.in_the_way(US, range(0, 100), Exclusive), None, "one's own lock is no obstacle");
        assert_eq!(
            locks.in_the_way(DESCRIPTION, range(20, 30), Exclusive),
            None,
            "neighbours do not overlap"
        );
    }

    #[test]
    fn unlocking_the_middle_leaves_both_ends() {
        let locks = Locks::default();
        locks.record(US, range(0, 100), Some(Exclusive), Wait::No).unwrap();
        locks.record(US, range(40, 60), None, Wait::No).unwrap();
        locks.record(DESCRIPTION, range(40, 60), Some(Exclusive), Wait::No).unwrap();
        for taken in [range(39, 40), range(60, 61)] {
            assert!(locks.in_the_way(DESCRIPTION, taken, Shared).is_some());
        }
    }

    #[test]
    fn neighbours_of_one_kind_become_one_lock() {
        let locks = Locks::default();
        for start in [0, 20, 10] {
            locks.record(US, range(start, start + 10), Some(Shared), Wait::No).unwrap();
        }
        assert_eq!(locks.in_the_way(DESCRIPTION, range(29, 30), Exclusive).unwrap().range, range(0, 30));
        locks.record(US, range(5, 15), Some(Exclusive), Wait::No).unwrap();
        assert_eq!(locks.in_the_way(DESCRIPTION, range(0, 30), Exclusive).unwrap().range, range(0, 5));
        assert_eq!(locks.in_the_way(DESCRIPTION, range(5, 6), Shared).unwrap().range, range(5, 15));
    }

    #[test]
    fn any_close_by_the_process_drops_its_record_locks_only() {
        let locks = Locks::default();
        locks.record(US, range(0, 10), Some(Shared), Wait::No).unwrap();
        locks.record(DESCRIPTION, range(0, 10), Some(Shared), Wait::No).unwrap();
        locks.drop_owner(US);
        let held = locks.in_the_way(US, range(0, 10), Exclusive).unwrap();
        assert_eq!(held.owner, DESCRIPTION);
    }

    #[test]
    fn flock_ignores_record_locks_and_converts() {
        let locks = Locks::default();
        locks.record(US, LockRange::ALL, Some(Exclusive), Wait::No).unwrap();
        locks.whole(1, Some(Shared), Wait::No).unwrap();
        locks.whole(2, Some(Shared), Wait::No).unwrap();
        assert!(matches!(locks.whole(1, Some(Exclusive), Wait::No), Err(FsError::WouldBlock)));
        locks.drop_owner(LockOwner::Description(2));
        locks.whole(1, Some(Exclusive), Wait::No).unwrap();
        assert!(locks.whole(2, Some(Shared), Wait::No).is_err());
    }

    #[test]
    fn a_waiter_gets_the_lock_when_it_is_freed() {
        let locks = Locks::default();
        locks.record(US, LockRange::ALL, Some(Exclusive), Wait::No).unwrap();
        std::thread::scope(|scope| {
            let waiter =
                scope.spawn(|| locks.record(DESCRIPTION, range(0, 1), Some(Shared), Wait::Until(&|| false)));
            locks.record(US, LockRange::ALL, None, Wait::No).unwrap();
            waiter.join().unwrap().unwrap();
        });
        let cancelled = locks.record(US, range(0, 1), Some(Exclusive), Wait::Until(&|| true));
        assert!(matches!(cancelled, Err(FsError::Interrupted)));
    }

    #[test]
    fn ranges_are_those_of_struct_flock() {
        assert_eq!(LockRange::of(5, 0).unwrap(), range(5, u64::MAX));
        assert_eq!(LockRange::of(5, 3).unwrap(), range(5, 8));
        assert_eq!(LockRange::of(5, -3).unwrap(), range(2, 5));
        assert!(LockRange::of(2, -3).is_err());
        assert!(LockRange::of(-1, 0).is_err());
    }
}
