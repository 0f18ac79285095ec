//! The logs in which clients post changes, and which files these are: docs/spec/posted-writes.md.

use crate::description::Description;
use nvmed_fs::posted::{Grant, Log, SLOTS};
use nvmed_fs::versions::Counts;
use nvmed_stack::LOGS;
use nvmed_sys::sync::{Arc, Mutex, OnceLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Pages that a grant has promised: a client uses as many, less those for a file that leaves its record.
pub(crate) const PAGES_PROMISED: u64 = nvmed_wire::PAGES_GRANTED + 2;

/// The logs of one mount, and the files that are granted. `S` is a session, of which this room knows nothing.
pub(crate) struct Logs<S> {
    logs: [OnceLock<SessionLog<S>>; LOGS],
    /// A bit for each log that a session has.
    used: AtomicU32,
    /// Which log and slot changes of a file are posted in, by inode.
    granted: Mutex<HashMap<u64, (usize, u32)>>,
    /// How many these are: without any, an open costs one load.
    count: AtomicU32,
    /// The number of the last grant: no two have the same, in whichever logs they are. A forked process keeps those of
    /// its parent, which are over, and has a log of its own.
    last: AtomicU32,
    /// Whether sessions get logs.
    offered: bool,
}

/// A log, and what the server knows of it.
pub(crate) struct SessionLog<S> {
    pub log: Log,
    /// What is in it was written by no client of ours.
    pub strange: AtomicBool,
    /// Taken before the log is taken, and before a grant begins or ends.
    pub desk: Mutex<LogDesk<S>>,
}

/// Whose a log is, and what it may post.
pub(crate) struct LogDesk<S> {
    pub session: Option<Arc<S>>,
    /// The user who had it first: nobody else gets it.
    pub uid: Option<u32>,
    pub grants: [Option<Granted>; SLOTS],
}

/// A file whose changes are posted.
pub(crate) struct Granted {
    pub grant: Grant,
    pub description: Arc<Description>,
    pub changes: Changes,
}

/// The version of an inode has a change under way, until it is dropped.
pub(crate) struct Changes {
    counts: Arc<Counts>,
    pub ino: u64,
}

impl Changes {
    pub fn begin(counts: &Arc<Counts>, ino: u64) -> Self {
        counts.begin(ino);
        Self { counts: Arc::clone(counts), ino }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.counts.end(self.ino);
    }
}

impl<S> Logs<S> {
    /// Whether sessions get logs is `offered`.
    pub fn new(offered: bool) -> Self {
        Self {
            logs: [const { OnceLock::new() }; LOGS],
            used: AtomicU32::new(0),
            granted: Mutex::default(),
            count: AtomicU32::new(0),
            last: AtomicU32::new(0),
            offered,
        }
    }

    /// Whether sessions get logs.
    pub(crate) fn are_offered(&self) -> bool {
        self.offered
    }

    /// The log with a number, once it was made.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&SessionLog<S>> {
        self.logs[number].get()
    }

    /// The log with a number, made of `log` if there was none. Who has the number is alone with it.
    pub fn put(&self, number: usize, log: Log) -> &SessionLog<S> {
        self.logs[number].get_or_init(|| SessionLog {
            log,
            strange: AtomicBool::new(false),
            desk: Mutex::new(LogDesk { session: None, uid: None, grants: Default::default() }),
        })
    }

    /// The logs that sessions have.
    #[inline]
    pub fn in_use(&self) -> impl Iterator<Item = &SessionLog<S>> {
        let mut used = self.used.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            let number = (used != 0).then(|| used.trailing_zeros() as usize)?;
            used &= used - 1;
            Some(self.get(number))
        })
        .flatten()
    }

    /// A number that no session has, of a log that was this user's or nobody's; the caller has it from now on.
    pub(crate) fn take_number(&self, uid: u32) -> Option<usize> {
        let (mut mine, mut new) = (0, 0);
        for (number, log) in self.logs.iter().enumerate() {
            match log.get() {
                Some(log) if log.desk.lock().uid == Some(uid) => mine |= 1 << number,
                Some(_) => {}
                None => new |= 1 << number,
            }
        }
        self.take_among(mine).or_else(|| self.take_among(new))
    }

    fn take_among(&self, mut among: u32) -> Option<usize> {
        among &= !self.used.load(Ordering::Relaxed);
        while among != 0 {
            let bit = among & among.wrapping_neg();
            if self.used.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
                return Some(bit.trailing_zeros() as usize);
            }
            among &= !bit;
        }
        None
    }

    pub(crate) fn give_number(&self, number: usize) {
        let before = self.used.fetch_and(!(1 << number), Ordering::AcqRel);
        assert!(before & (1 << number) != 0 || std::thread::panicking(), "log {number} is given back twice");
    }

    /// Pages that are promised to files whose changes are posted, and not used.
    pub(crate) fn pages_promised(&self) -> u64 {
        if !self.are_granted() {
            return 0;
        }
        let promised = |log: &SessionLog<S>| -> u64 {
            let desk = log.desk.lock();
            desk.grants.iter().flatten().map(|granted| granted.description.promised_ahead()).sum()
        };
        self.in_use().map(promised).sum()
    }

    /// The number of a new grant.
    pub(crate) fn new_grant(&self) -> u32 {
        self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1)
    }

    /// Whether the changes of any file are posted.
    #[inline]
    pub(crate) fn are_granted(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Where the changes of a file are posted, if they are.
    #[inline]
    pub fn place(&self, ino: u64) -> Option<(usize, u32)> {
        if self.are_granted() { self.granted.lock().get(&ino).copied() } else { None }
    }

    /// All files whose changes are posted.
    pub fn files(&self) -> Vec<u64> {
        self.granted.lock().keys().copied().collect()
    }

    /// Changes of a file are posted from now on; false when they are already.
    pub fn enter(&self, ino: u64, place: (usize, u32)) -> bool {
        let mut granted = self.granted.lock();
        if granted.contains_key(&ino) {
            return false;
        }
        granted.insert(ino, place);
        self.count.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Changes of a file are posted no more.
    pub fn leave(&self, ino: u64) {
        let gone = self.granted.lock().remove(&ino);
        assert!(gone.is_some(), "inode {ino} is granted no more, and was not");
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}
