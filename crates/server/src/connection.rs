//! One connection of a client: its socket, its lanes, and its session, once the client has said which.

use crate::lane::{self, Left};
use crate::peer::Peer;
use crate::service::Service;
use crate::session::Session;
use crate::share::{Resource, Share, User};
use nvmed_fs::FsError;
use nvmed_sys::sync::{Arc, Mutex, OnceLock};
use nvmed_wire::{LaneError, Request, Sender, ServerLane, Socket};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Lanes of one session (docs/spec/shared.md, "Limits").
const LANES_MAX: usize = 64;

/// A connection.
pub(crate) struct Connection {
    /// Its number in the event loop.
    pub number: u64,
    pub socket: Socket,
    session: OnceLock<Arc<Session>>,
    /// Whether the session's process has said hello, or adopted it.
    greeted: AtomicBool,
    /// Since when it has sent nothing, and its place in its user's share of silent connections; none for an heir's.
    silent: Option<Instant>,
    share: Mutex<Option<Share>>,
    /// The user who made it, in whose share all counts that the server does for it.
    pub user: Arc<User>,
    lanes: Mutex<Lanes>,
    complained: AtomicBool,
    /// The server has ended it, and its process may live.
    is_ours_to_end: AtomicBool,
}

#[derive(Default)]
struct Lanes {
    all: Vec<Arc<ServerLane>>,
    ended: bool,
}

impl Connection {
    /// A connection that a client has just made.
    pub fn new(number: u64, socket: Socket, user: Arc<User>, share: Share) -> Self {
        let share = Mutex::new(Some(share));
        Self { silent: Some(Instant::now()), share, ..Self::bare(number, socket, user) }
    }

    fn bare(number: u64, socket: Socket, user: Arc<User>) -> Self {
        Self {
            number,
            socket,
            session: OnceLock::new(),
            greeted: AtomicBool::new(false),
            silent: None,
            share: Mutex::default(),
            user,
            lanes: Mutex::default(),
            complained: AtomicBool::new(false),
            is_ours_to_end: AtomicBool::new(false),
        }
    }

    /// The connection of an heir, which nobody has adopted yet.
    pub(crate) fn of_heir(number: u64, socket: Socket, heir: Arc<Session>) -> Self {
        let connection = Self::bare(number, socket, Arc::clone(&heir.user));
        // It was made a line ago.
        let _ = connection.session.set(heir);
        connection
    }

    /// Tells the session, if there is one, by which connection the server sees its process die.
    pub(crate) fn introduce(self: &Arc<Self>) {
        if let Some(session) = self.session.get() {
            // If it was set before, it was set to this connection.
            let _ = session.connection.set(Arc::downgrade(self));
        }
    }

    /// The session of a process that has said hello.
    ///
    /// # Errors
    /// [`FsError::Access`] before, and once it was revoked.
    pub fn session(&self) -> Result<&Arc<Session>, FsError> {
        let greeted = self.greeted.load(Ordering::Acquire);
        self.session.get().filter(|session| greeted && !session.is_revoked()).ok_or(FsError::Access)
    }

    /// The session of an heir that waits for its process.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for any other connection.
    pub fn heir(&self) -> Result<&Arc<Session>, FsError> {
        let greeted = self.greeted.load(Ordering::Acquire);
        self.session.get().filter(|_| !greeted).ok_or(FsError::Invalid)
    }

    /// The process has said hello, or adopted its session.
    pub fn greet(self: &Arc<Self>, session: &Arc<Session>) {
        // An heir's is there already, and the same.
        let _ = self.session.set(Arc::clone(session));
        self.introduce();
        self.greeted.store(true, Ordering::Release);
        drop(self.share.lock().take());
    }

    /// Since when this connection has been open without a session.
    pub(crate) fn silent_since(&self) -> Option<Instant> {
        self.silent.filter(|_| !self.has_session())
    }

    /// Has the event loop see a hang-up.
    pub fn hang_up(&self) {
        self.is_ours_to_end.store(true, Ordering::SeqCst);
        // The event loop looks what is left.
        let _ = self.socket.hang_up();
    }

    /// Whether it belongs to a session.
    pub(crate) fn has_session(&self) -> bool {
        self.session.get().is_some()
    }

    /// Who connected, and sent a message.
    ///
    /// # Errors
    /// What the host answers.
    pub fn peer(&self, sender: Option<Sender>) -> Result<Peer, Errno> {
        let mut peer = Peer::of(&self.socket)?;
        if let Some(sender) = sender {
            peer.real = (sender.uid, sender.gid);
        }
        Ok(peer)
    }

    /// One lane more, with a thread that serves it: its memory.
    ///
    /// # Errors
    /// `EMFILE` past a limit; the host has no memory, descriptor or thread left.
    pub fn lane(self: &Arc<Self>, service: &Arc<Service>) -> Result<OwnedFd, FsError> {
        let session = Arc::clone(self.session()?);
        let mut lanes = self.lanes.lock();
        if lanes.ended {
            return Err(FsError::Host(Errno::IO));
        }
        if lanes.all.len() >= LANES_MAX {
            return Err(FsError::Host(Errno::MFILE));
        }
        let share = session.user.take(Resource::Lane)?;
        let peer = session.peer();
        let (lane, seat) = service.lanes.lane(&service.board, &peer)?;
        let lane = Arc::new(lane);
        let memory = lane.client().ok_or(Errno::IO)?.try_clone_to_owned();
        let memory = memory.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        let (served, service, connection) = (Arc::clone(&lane), Arc::clone(service), Arc::clone(self));
        session.counts.lane_begins(&lane);
        let counting = Arc::clone(&session);
        let counted = service.lanes.begin();
        let lanes_of_all = Arc::clone(&service.lanes);
        let serve = move |request: &mut Request| {
            let _counted = counted;
            let _share = share;
            let ended = lane::serve(&service, &session, &served, request);
            session.counts.lane_ends(&served);
            if let Err(error) = ended {
                connection.complain(&session, &error);
                return None;
            }
            // On a machine with many users each has memory of its own; and a process that lives has this mapped.
            let is_free = service.is_run() && !connection.is_ours_to_end.load(Ordering::SeqCst);
            let is_one_users = is_free && session.peer().has_ids_of(&peer);
            is_one_users.then_some(Left { lane: served, of: peer })
        };
        lanes_of_all.serve(seat, Box::new(serve)).map_err(|_| {
            counting.counts.lane_ends(&lane);
            FsError::Host(Errno::AGAIN)
        })?;
        lanes.all.push(lane);
        Ok(memory)
    }

    /// A client sent what no client of ours sends: the server ends its session, and prints a line.
    fn complain(&self, session: &Session, error: &LaneError) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            let (number, pid) = (session.number(), session.peer().pid);
            eprintln!("nvmed: session {number} (process {pid}) is ended: {error}");
        }
        self.hang_up();
    }

    /// Whose session it is, greeted or not.
    pub fn owner(&self) -> Option<&Arc<Session>> {
        self.session.get()
    }

    /// Whether its end takes no time worth mentioning: no lane is to be closed, and what its session holds is light.
    pub(crate) fn is_light(&self) -> bool {
        self.lanes.lock().all.is_empty() && self.session.get().is_none_or(|session| session.is_light())
    }

    /// Ends the session from the server's side: it answers no more calls of it.
    pub(crate) fn shut(&self, service: &Service) {
        self.is_ours_to_end.store(true, Ordering::SeqCst);
        self.end(service);
        self.hang_up();
    }

    /// The other side is gone: its lanes end when their calls are done, and its session with all that it held.
    pub fn end(&self, service: &Service) {
        let lanes = {
            let mut lanes = self.lanes.lock();
            lanes.ended = true;
            // Under the lock: who ends the session too finds the lanes closed. What the client found without a call is
            // worth nothing from here on.
            lanes.all.iter().for_each(|lane| lane.close());
            std::mem::take(&mut lanes.all)
        };
        if let Some(session) = self.session.get() {
            for lane in &lanes {
                // What it may not say it has said for nothing: all that it held goes now.
                let _ = service.take_posts(session, lane);
            }
            service.end(session);
        }
    }
}
