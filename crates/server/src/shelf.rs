//! Shelves: what calls were answered, where clients find it without a call (docs/spec/shelf.md).

use crate::description::Description;
use crate::grant::Admitted;
use crate::peer::Peer;
use crate::share::{Limits, PART, Resource, SHELVES_MAX, Share, User};
use crate::walk::Walk;
use nvmed_fs::versions::Version;
use nvmed_fs::{Follow, FsError, Kept, Node};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard, Weak};
use nvmed_wire::{Board, ServerLane, Shelf, ShelfPages};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Classes of a run, which stay to its end: each keeps some 16,000 inodes at most, of 600 bytes.
const CLASSES_OF_RUN: usize = 8;

/// What decides an answer: who asks, and what he sees of the file system.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Class {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
    real: (u32, u32),
    /// By which grant.
    tree: std::sync::Arc<str>,
    /// Where the root of that is, and whether it is only to be read.
    shows: (u64, bool),
}

impl Class {
    pub fn of(peer: &Peer, view: &Admitted) -> Self {
        Self {
            uid: peer.uid,
            gid: peer.gid,
            groups: peer.groups.iter().copied().collect(),
            real: peer.real,
            tree: std::sync::Arc::clone(&view.tree),
            shows: view.files.shows(),
        }
    }
}

/// All shelves of a mount. `S` is a session, of which this room knows nothing.
///
/// Order of locks: the classes, a class's members and a session's seat. What is kept is dropped under none of them.
pub(crate) struct Shelves<S> {
    /// Whether there are any.
    offered: bool,
    /// Whether a class outlives its last session: in a run, whose processes come and go.
    stay: bool,
    classes: Mutex<Classes<S>>,
    /// Inodes whose cards were taken back by a call that is under way: nobody keeps them meanwhile.
    going: Mutex<HashMap<u64, usize>>,
    /// Files that are kept, so that who removes one looks no further when there is none.
    pub kept: AtomicUsize,
    /// Pages that all shelves may still take.
    pages: Arc<AtomicUsize>,
    /// Pages that one class may have: where several users share the server, as many as one of them may.
    pages_max: usize,
}

struct Classes<S> {
    by_class: HashMap<Class, Arc<ClassShelf<S>>>,
    /// Those that nobody is in any more, as long as they keep anything.
    ending: Vec<Arc<ClassShelf<S>>>,
}

/// Pages that one class has taken of its user's, and of all.
pub(crate) struct ClassPages {
    share: Share,
    left: Arc<AtomicUsize>,
}

impl ShelfPages for ClassPages {
    fn take(&mut self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        if self.share.grow(1).is_err() {
            return false;
        }
        let is_there = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
        if !is_there {
            self.share.shrink(1);
        }
        is_there
    }
}

impl ClassPages {
    fn give_all(&mut self) {
        self.left.fetch_add(self.share.count(), Ordering::Relaxed);
        self.share.set(0);
    }
}

/// The shelf of one class.
pub(crate) struct ClassShelf<S> {
    class: Class,
    /// The sessions of the class, by number.
    members: Mutex<HashMap<u64, Weak<S>>>,
    state: Mutex<State>,
    /// Of its user's shelves.
    _share: Share,
}

pub(crate) struct State {
    pub shelf: Shelf,
    pub pages: ClassPages,
    /// The files that may be opened by a post.
    kept: HashMap<u64, Kept>,
    kept_share: Share,
    /// Of calls that ask what a name stands for, and of those that open files to read them.
    looks: Walk,
    opens: Walk,
}

impl State {
    /// The walk of calls that open, or of those that only look.
    pub(crate) fn walk(&mut self, opens: bool) -> &mut Walk {
        if opens { &mut self.opens } else { &mut self.looks }
    }

    /// Whether an inode is kept.
    pub(crate) fn keeps(&self, ino: u64) -> bool {
        self.kept.contains_key(&ino)
    }

    /// What is kept under this number.
    pub(crate) fn kept(&self, ino: u64) -> Option<Node> {
        self.kept.get(&ino).map(|kept| kept.node().clone())
    }
}

impl<S> ClassShelf<S> {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether it is that of a process with these ids. What its session sees does not change.
    pub fn is_of(&self, peer: &Peer) -> bool {
        let Class { uid, gid, groups, real, .. } = &self.class;
        (*uid, *gid, *real) == (peer.uid, peer.gid, peer.real) && **groups == *peer.groups
    }

    /// The sessions of the class.
    pub(crate) fn members(&self) -> Vec<Arc<S>> {
        self.members.lock().values().filter_map(Weak::upgrade).collect()
    }
}

/// What follows where a process is that goes through a directory, and is not on the shelf yet.
pub(crate) struct Brings<S> {
    pub shelf: Arc<ClassShelf<S>>,
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
    /// Of its user's handles: it was open already, whatever he has.
    pub _share: Share,
}

/// Nobody keeps an inode until this is dropped.
pub(crate) struct Going<'a> {
    all: &'a Mutex<HashMap<u64, usize>>,
    pub ino: u64,
}

impl Drop for Going<'_> {
    fn drop(&mut self) {
        let mut going = self.all.lock();
        let left = going.get_mut(&self.ino).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            going.remove(&self.ino);
        }
    }
}

impl<S> Shelves<S> {
    /// Shelves whose pages take `bytes` bytes together, of one run or of several users; none unless they are `offered`.
    pub fn new(offered: bool, is_run: bool, bytes: u64) -> Self {
        let pages = usize::try_from(bytes / 4096).unwrap_or(usize::MAX);
        Self {
            offered,
            stay: is_run,
            classes: Mutex::new(Classes { by_class: HashMap::new(), ending: Vec::new() }),
            going: Mutex::default(),
            kept: AtomicUsize::new(0),
            pages: Arc::new(AtomicUsize::new(pages)),
            pages_max: if is_run { pages } else { pages / PART },
        }
    }

    /// Limits of each user, who may have as many pages as a class may.
    pub(crate) fn within(&self, limits: Limits) -> Limits {
        Limits { shelf_pages: limits.shelf_pages.min(self.pages_max), ..limits }
    }

    pub(crate) fn going(&self, ino: u64) -> Going<'_> {
        *self.going.lock().entry(ino).or_default() += 1;
        Going { all: &self.going, ino }
    }

    pub(crate) fn is_going(&self, ino: u64) -> bool {
        self.going.lock().contains_key(&ino)
    }

    /// Those of all classes that keep anything.
    pub fn all(&self) -> Vec<Arc<ClassShelf<S>>> {
        let classes = self.classes.lock();
        classes.by_class.values().chain(&classes.ending).cloned().collect()
    }

    /// The shelf of a class, made if there is none, of which a session with a number is from now on, if it still wants
    /// to be (`take`). `board` counts the changes.
    ///
    /// # Errors
    /// [`FsError::NotSupported`] when there is none for it; its user's share; the host has no memory.
    pub fn join(
        &self,
        board: &std::sync::Arc<Board>,
        class: Class,
        (number, session): (u64, &Arc<S>),
        user: &Arc<User>,
        told: (u64, bool),
        take: impl FnOnce(&Arc<ClassShelf<S>>) -> bool,
    ) -> Result<Arc<ClassShelf<S>>, FsError> {
        if !self.offered {
            return Err(FsError::NotSupported);
        }
        let mut classes = self.classes.lock();
        let shelf = match classes.by_class.get(&class) {
            Some(shelf) => Arc::clone(shelf),
            None => self.make(&classes, board, &class, user, told)?,
        };
        // One that nobody is in goes with this call.
        if !take(&shelf) {
            return Err(FsError::NotSupported);
        }
        // Before its process has the memory: who takes a card back looks at what the members have posted.
        shelf.members.lock().insert(number, Arc::downgrade(session));
        classes.by_class.entry(class).or_insert_with(|| Arc::clone(&shelf));
        Ok(shelf)
    }

    fn make(
        &self,
        classes: &Classes<S>,
        board: &std::sync::Arc<Board>,
        class: &Class,
        user: &Arc<User>,
        (device, renews_atime): (u64, bool),
    ) -> Result<Arc<ClassShelf<S>>, FsError> {
        let most = if self.stay { CLASSES_OF_RUN } else { SHELVES_MAX };
        if classes.by_class.len() + classes.ending.len() >= most {
            return Err(FsError::NotSupported);
        }
        let share = user.take(Resource::Shelf)?;
        let same_ids = class.real == (class.uid, class.gid);
        let state = State {
            shelf: Shelf::new(board, self.pages_max, device, (renews_atime, same_ids))?,
            pages: ClassPages { share: user.none(Resource::ShelfPage), left: Arc::clone(&self.pages) },
            kept: HashMap::new(),
            kept_share: user.none(Resource::Kept),
            looks: Walk::default(),
            opens: Walk::default(),
        };
        let (members, state) = (Mutex::default(), Mutex::new(state));
        Ok(Arc::new(ClassShelf { class: class.clone(), members, state, _share: share }))
    }

    /// A session with a number leaves its class. One that nobody is in any more ends, where several users share the
    /// server: what it keeps is given back, and its memory.
    pub fn leave(&self, shelf: &Arc<ClassShelf<S>>, number: u64) {
        let is_over = {
            let mut classes = self.classes.lock();
            let mut members = shelf.members.lock();
            members.remove(&number);
            let is_over = members.is_empty() && !self.stay;
            if is_over {
                // Who comes now gets another one; who takes cards back finds this one as long as it keeps anything.
                classes.by_class.remove(&shelf.class);
                classes.ending.push(Arc::clone(shelf));
            }
            is_over
        };
        if is_over {
            self.end(shelf);
            self.classes.lock().ending.retain(|other| !Arc::ptr_eq(other, shelf));
        }
    }

    /// The class keeps nothing any more. No slot is looked at: all its sessions are over, or have other ids.
    fn end(&self, shelf: &ClassShelf<S>) {
        let (left, kept) = {
            let mut state = shelf.lock();
            let left = state.shelf.end();
            state.pages.give_all();
            (left, state.kept.keys().copied().collect::<Vec<_>>())
        };
        left.release();
        // One at a time: who waits for one of them to be given back waits for that one.
        kept.into_iter().for_each(|ino| drop(self.give_back(shelf, ino)));
    }

    /// Keeps an inode, as long as its card may be opened by a post; gives it back when its user keeps so many already.
    pub(crate) fn keep(&self, state: &mut State, ino: u64, kept: Kept) -> Option<Kept> {
        if state.kept_share.grow(1).is_err() {
            return Some(kept);
        }
        self.kept.fetch_add(1, Ordering::SeqCst);
        state.kept.insert(ino, kept)
    }

    /// Keeps an inode no more; what was kept is for the caller to drop.
    pub(crate) fn give_back(&self, shelf: &ClassShelf<S>, ino: u64) -> Option<Kept> {
        let mut state = shelf.lock();
        let kept = state.kept.remove(&ino)?;
        state.kept_share.shrink(1);
        self.kept.fetch_sub(1, Ordering::Relaxed);
        Some(kept)
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
