//! Shelves: what calls were answered, where clients find it without a call (docs/spec/shelf.md).

use crate::description::Description;
use crate::peer::Peer;
use crate::walk::Walk;
use nvmed_fs::versions::Version;
use nvmed_fs::{Follow, FsError, Kept, Node};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_wire::{Board, ServerLane, Shelf, ShelfPages};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// Classes that have a shelf: each pins some 16,000 inodes at most, of 600 bytes.
const CLASSES_MAX: usize = 8;

/// What decides an answer, of what differs within a run.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Class {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
    real: (u32, u32),
}

impl Class {
    fn of(peer: &Peer) -> Self {
        Self { uid: peer.uid, gid: peer.gid, groups: peer.groups.iter().copied().collect(), real: peer.real }
    }
}

/// All shelves of a mount.
pub(crate) struct Shelves {
    /// Whether there are any: in a run, whose processes are one user's.
    offered: bool,
    classes: Mutex<HashMap<Class, Arc<ClassShelf>>>,
    /// Inodes whose cards were taken back by a call that is under way: nobody keeps them meanwhile.
    going: Mutex<HashMap<u64, usize>>,
    /// Files that are kept, so that who removes one looks no further when there is none.
    pub kept: AtomicUsize,
    pub budget: Budget,
    pages_max: usize,
}

/// Pages that all shelves may still take.
pub(crate) struct Budget(AtomicI64);

impl ShelfPages for Budget {
    fn take(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) > 0
    }
}

/// The shelf of one class.
pub(crate) struct ClassShelf {
    class: Class,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub shelf: Shelf,
    /// The files that may be opened by a post.
    pub kept: HashMap<u64, Kept>,
    /// Of calls that ask what a name stands for, and of those that open files to read them.
    looks: Walk,
    opens: Walk,
}

impl State {
    /// The walk of calls that open, or of those that only look.
    pub(crate) fn walk(&mut self, opens: bool) -> &mut Walk {
        if opens { &mut self.opens } else { &mut self.looks }
    }
}

impl ClassShelf {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether it is that of a process with these ids.
    pub fn is_of(&self, peer: &Peer) -> bool {
        self.class == Class::of(peer)
    }
}

/// What follows where a process is that goes through a directory, and is not on the shelf yet.
pub(crate) struct Brings {
    pub shelf: Arc<ClassShelf>,
    pub directory: Node,
    /// The directory's version, with all its names.
    pub listed: Version,
    pub follow: Follow,
    pub names: std::vec::IntoIter<Vec<u8>>,
    /// Files, to be opened and read; else only what the names stand for.
    pub opens: bool,
}

/// A posted open that the server has taken over: a description that waits to be claimed.
pub(crate) struct Note {
    pub lane: Arc<ServerLane>,
    pub slot: u32,
    pub ino: u64,
    pub description: Arc<Description>,
}

/// Nobody keeps an inode until this is dropped.
pub(crate) struct Going<'a> {
    shelves: &'a Shelves,
    pub ino: u64,
}

impl Drop for Going<'_> {
    fn drop(&mut self) {
        let mut going = self.shelves.going.lock();
        let left = going.get_mut(&self.ino).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            going.remove(&self.ino);
        }
    }
}

impl Shelves {
    /// Shelves whose pages take `bytes` bytes together; none unless they are `offered`.
    pub fn new(offered: bool, bytes: u64) -> Self {
        let pages = usize::try_from(bytes / 4096).unwrap_or(usize::MAX);
        Self {
            offered,
            classes: Mutex::default(),
            going: Mutex::default(),
            kept: AtomicUsize::new(0),
            budget: Budget(AtomicI64::new(i64::try_from(pages).unwrap_or(i64::MAX))),
            pages_max: pages,
        }
    }

    pub(crate) fn going(&self, ino: u64) -> Going<'_> {
        *self.going.lock().entry(ino).or_default() += 1;
        Going { shelves: self, ino }
    }

    pub(crate) fn is_going(&self, ino: u64) -> bool {
        self.going.lock().contains_key(&ino)
    }

    pub fn all(&self) -> Vec<Arc<ClassShelf>> {
        self.classes.lock().values().cloned().collect()
    }

    /// The shelf of a process's class, made if it has none; `board` counts the changes.
    ///
    /// # Errors
    /// [`FsError::NotSupported`] when there is none for it; the host has no memory.
    pub fn of(
        &self,
        board: &std::sync::Arc<Board>,
        peer: &Peer,
        (device, renews_atime): (u64, bool),
    ) -> Result<Arc<ClassShelf>, FsError> {
        let class = Class::of(peer);
        let mut classes = self.classes.lock();
        if let Some(shelf) = classes.get(&class) {
            return Ok(Arc::clone(shelf));
        }
        if !self.offered || classes.len() >= CLASSES_MAX {
            return Err(FsError::NotSupported);
        }
        let same_ids = class.real == (class.uid, class.gid);
        let shelf = Shelf::new(board, self.pages_max, device, (renews_atime, same_ids))?;
        let state =
            Mutex::new(State { shelf, kept: HashMap::new(), looks: Walk::default(), opens: Walk::default() });
        let shelf = Arc::new(ClassShelf { class: class.clone(), state });
        classes.insert(class, Arc::clone(&shelf));
        Ok(shelf)
    }

    /// As JSON.
    pub fn json(&self) -> serde_json::Value {
        let filled: Vec<_> = self.all().iter().map(|shelf| shelf.lock().shelf.filled()).collect();
        let cards: usize = filled.iter().map(|(cards, _)| cards).sum();
        let bytes: usize = filled.iter().map(|(_, bytes)| bytes).sum();
        serde_json::json!({
            "classes": filled.len(),
            "cards": cards,
            "bytes": bytes,
            "kept": self.kept.load(Ordering::Relaxed),
        })
    }
}

/// What a call asked about.
pub(crate) struct Question<'a> {
    pub at: &'a Node,
    pub path: &'a [u8],
    pub follow: Follow,
}
