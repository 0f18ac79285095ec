//! A session: what the server knows of one client process and holds for it.

use crate::connection::Connection;
use crate::description::Description;
use crate::grant::Admitted;
use crate::heir::Inheritance;
use crate::hold::{Hold, Holds, Thing};
use crate::owner::Owner;
use crate::peer::Peer;
use crate::share::{Resource, Share, User};
use crate::shelf::{self, Note};
use crate::statistics::Counts;
use nvmed_fs::{FileSystem, FsError, Node};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock, Weak};
use nvmed_wire::{Handle, SECRET_BYTES};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A session: the process that makes calls, what it sees of the file system, what it holds.
pub struct Session {
    number: u64,
    secret: [u8; SECRET_BYTES],
    peer: RwLock<Arc<Peer>>,
    view: Admitted,
    /// What it sees is not granted any more: it ends, and has no heirs.
    revoked: AtomicBool,
    pub(crate) owner: Arc<Owner>,
    /// Who pays for it: the user that its process was when it began.
    pub(crate) user: Arc<User>,
    /// What it has on its way in messages.
    pub(crate) sent: Arc<AtomicUsize>,
    holds: Mutex<Holds>,
    shelf: Mutex<Seat>,
    /// Opens that its process has posted, and the server has taken over.
    pub(crate) notes: Mutex<Vec<Note>>,
    /// The number of the log in which its process posts writes.
    pub(crate) log: OnceLock<usize>,
    /// Of its user's, until it ends.
    pub(crate) share: Mutex<Option<Share>>,
    /// Of an heir that was not adopted yet.
    pub(crate) inheritance: Mutex<Option<Inheritance>>,
    /// The heir that was made last of what this one holds.
    pub(crate) last_heir: Mutex<Weak<Session>>,
    /// Of an heir that was adopted: descriptor numbers that its process was not told of yet, the next one last.
    pub(crate) untold: Mutex<Vec<(i32, Handle)>>,
    /// What its last step through a directory brings, while nobody calls.
    pub(crate) brings: Mutex<Option<shelf::Brings<Session>>>,
    pub(crate) counts: Counts,
    /// Locked while it is ended: a thread that finds it dead waits until its locks are gone.
    pub(crate) ending: Mutex<()>,
    /// Where its process is seen to die.
    pub(crate) connection: OnceLock<Weak<Connection>>,
}

/// The shelf of a class of sessions.
pub(crate) type ClassShelf = shelf::ClassShelf<Session>;

/// Where a session finds the shelf of its class.
#[derive(Default)]
struct Seat {
    /// Once its process has asked for it.
    shelf: Option<Arc<ClassShelf>>,
    /// The session is over: it gets none any more.
    ended: bool,
}

impl Session {
    /// A session that holds nothing but its root. The owner counts it already.
    pub(crate) fn new(
        (number, secret): (u64, [u8; SECRET_BYTES]),
        peer: Arc<Peer>,
        view: Admitted,
        owner: Arc<Owner>,
        (user, share): (Arc<User>, Share),
    ) -> Self {
        Self {
            number,
            secret,
            peer: RwLock::new(peer),
            view,
            revoked: AtomicBool::new(false),
            owner,
            holds: Mutex::new(Holds::new(user.none(Resource::Handle))),
            user,
            shelf: Mutex::default(),
            notes: Mutex::default(),
            log: OnceLock::new(),
            sent: Arc::default(),
            share: Mutex::new(Some(share)),
            inheritance: Mutex::default(),
            last_heir: Mutex::default(),
            untold: Mutex::default(),
            brings: Mutex::default(),
            counts: Counts::default(),
            ending: Mutex::default(),
            connection: OnceLock::new(),
        }
    }

    /// Its number, for people.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What shows on another connection that it is this session's process.
    #[must_use]
    pub fn secret(&self) -> [u8; SECRET_BYTES] {
        self.secret
    }

    /// The file system as it sees it: every call of its goes through this value.
    #[must_use]
    pub fn files(&self) -> &FileSystem {
        &self.view.files
    }

    /// What it sees, and by which grant.
    #[must_use]
    pub fn view(&self) -> &Admitted {
        &self.view
    }

    /// Whether what it sees is not granted any more.
    #[must_use]
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::SeqCst)
    }

    /// What it sees is not granted any more.
    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Ordering::SeqCst);
    }

    /// The ids of the session's process, with which its calls are judged.
    #[must_use]
    pub fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.peer.read())
    }

    /// The process has changed its ids.
    pub(crate) fn set_peer(&self, peer: Peer) {
        *self.peer.write() = Arc::new(peer);
    }

    pub(crate) fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock()
    }

    /// Whether its end takes no time worth mentioning: what it holds is light, and with the last session of a class
    /// goes what that keeps.
    pub(crate) fn is_light(&self) -> bool {
        self.shelf().is_none() && self.holds().are_light()
    }

    /// How many handles it holds, and opens by posts that the server has taken over.
    #[must_use]
    pub fn handles(&self) -> usize {
        let noted = self.notes.lock().len();
        self.holds().len() + noted
    }

    /// The inode of a handle.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`] when it is not held.
    pub(crate) fn node(&self, handle: Handle) -> Result<Node, FsError> {
        if handle == Handle::ROOT { Ok(self.view.files.root()) } else { self.holds().node(handle) }
    }

    /// The shelf of its class, if its process has asked for it.
    pub(crate) fn shelf(&self) -> Option<Arc<ClassShelf>> {
        self.shelf.lock().shelf.clone()
    }

    /// Its class has this shelf from now on; false when it has one, or is over.
    pub(crate) fn take_shelf(&self, shelf: &Arc<ClassShelf>) -> bool {
        let mut seat = self.shelf.lock();
        if seat.ended || seat.shelf.is_some() {
            return false;
        }
        seat.shelf = Some(Arc::clone(shelf));
        true
    }

    /// It has no shelf from now on, and gets none any more if it is over; the one before.
    pub(crate) fn give_shelf(&self, ended: bool) -> Option<Arc<ClassShelf>> {
        let mut seat = self.shelf.lock();
        seat.ended |= ended;
        seat.shelf.take()
    }

    /// What a handle stands for.
    ///
    /// # Errors
    /// As [`Session::node`].
    pub(crate) fn thing(&self, handle: Handle) -> Result<Thing, FsError> {
        if handle == Handle::ROOT {
            Ok(Thing::Inode(self.view.files.root()))
        } else {
            self.holds().get(handle)
        }
    }

    /// The open description of a handle.
    ///
    /// # Errors
    /// As [`Session::node`].
    pub(crate) fn description(&self, handle: Handle) -> Result<Arc<Description>, FsError> {
        self.holds().description(handle)
    }

    /// Ends the session. The caller drops what it held. A call that has begun keeps what it uses until it is done.
    pub(crate) fn end(&self) -> Vec<Hold> {
        let notes = std::mem::take(&mut *self.notes.lock());
        drop(notes);
        let brings = self.brings.lock().take();
        drop(brings);
        self.holds().end()
    }

    /// Its counters, as JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let peer = self.peer();
        let mut told = self.counts.json();
        told["session"] = self.number.into();
        told["pid"] = peer.pid.into();
        told["command"] = command(peer.pid).into();
        told["uid"] = peer.uid.into();
        told["tree"] = (*self.view.tree).into();
        told["handles"] = self.handles().into();
        told
    }
}

/// What a process calls itself; empty of one that is gone.
fn command(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned()
}
