//! Processes as owners of record locks. An owner is a number that the exec of a process keeps and no later process gets,
//! so that locks of a dead process are never taken for those of a new one with its id.

use crate::service::lock;
use nvmed_fs::{FsError, Node};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Files on which one process holds record locks; more are a mistake of the program, or an attack.
const FILES_MAX: usize = 1 << 16;

/// One process, as far as record locks go.
#[derive(Debug)]
pub(crate) struct Owner {
    /// What the file system knows it by.
    pub number: u32,
    /// Its process id, which `F_GETLK` shows.
    pid: AtomicU32,
    sessions: AtomicU32,
    locked: Mutex<Locked>,
}

#[derive(Debug, Default)]
struct Locked {
    ended: bool,
    files: HashMap<u64, Node>,
}

impl Owner {
    /// A process said hello or adopted a session: this is its id.
    pub fn is(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    /// One session more that belongs to the process.
    pub fn join(&self) {
        self.sessions.fetch_add(1, Ordering::SeqCst);
    }

    /// Lets `attempt` set a lock on `node`, which goes with the process.
    ///
    /// # Errors
    /// [`FsError::TooManyLocks`]; [`FsError::BadDescriptor`] when the process has just ended.
    pub fn lock(&self, node: &Node, attempt: impl FnOnce(u32) -> Result<(), FsError>) -> Result<(), FsError> {
        let mut locked = lock(&self.locked);
        if locked.ended {
            return Err(FsError::BadDescriptor);
        }
        if locked.files.len() >= FILES_MAX && !locked.files.contains_key(&node.ino()) {
            return Err(FsError::TooManyLocks);
        }
        attempt(self.number)?;
        locked.files.insert(node.ino(), node.clone());
        Ok(())
    }

    /// The process closed a descriptor of the file: its record locks there go. Whether it had any.
    pub fn closed(&self, ino: u64) -> bool {
        let node = lock(&self.locked).files.remove(&ino);
        if let Some(node) = &node {
            node.drop_record_locks(self.number);
        }
        node.is_some()
    }

    /// One session fewer; with the last one the process is dead, and its locks go. Whether it had any.
    fn leave(&self) -> bool {
        if self.sessions.fetch_sub(1, Ordering::SeqCst) > 1 {
            return false;
        }
        let mut locked = lock(&self.locked);
        locked.ended = true;
        let files = std::mem::take(&mut locked.files);
        files.values().for_each(|node| node.drop_record_locks(self.number));
        !files.is_empty()
    }
}

/// All processes with a session.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    last: AtomicU32,
    living: Mutex<HashMap<u32, Weak<Owner>>>,
}

impl Owners {
    /// A process that no session has belonged to yet; one belongs to it now.
    pub fn begin(&self, pid: u32) -> Arc<Owner> {
        let mut living = lock(&self.living);
        // After 2^32 processes numbers begin anew; one that still lives keeps its own.
        let number = loop {
            let number = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if !living.contains_key(&number) {
                break number;
            }
        };
        let owner =
            Owner { number, pid: AtomicU32::new(pid), sessions: AtomicU32::new(1), locked: Mutex::default() };
        let owner = Arc::new(owner);
        living.insert(number, Arc::downgrade(&owner));
        owner
    }

    /// A session of the process ended. Whether locks went with it.
    pub fn end(&self, owner: &Owner) -> bool {
        let released = owner.leave();
        if owner.sessions.load(Ordering::SeqCst) == 0 {
            lock(&self.living).remove(&owner.number);
        }
        released
    }

    /// The process id behind an owner's number; 0 of one that has just ended.
    pub fn pid(&self, number: u32) -> u32 {
        let owner = lock(&self.living).get(&number).and_then(Weak::upgrade);
        owner.map_or(0, |owner| owner.pid.load(Ordering::Relaxed))
    }

    /// How many processes there are.
    pub fn count(&self) -> usize {
        lock(&self.living).len()
    }
}
