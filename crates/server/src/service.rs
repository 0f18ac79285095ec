//! What all sessions share: the mount, the numbers, the processes.

use crate::answer::Asker;
use crate::connection::Connection;
use crate::description::{Description, Unmade};
use crate::direct::Medium;
use crate::grant::{Admission, Admitted};
use crate::hold::{Hold, Thing};
use crate::lane::Served;
use crate::logs::Logs;
use crate::map::Maps;
use crate::owner::{Owner, Owners};
use crate::peer::Peer;
use crate::session::Session;
use crate::share::{Limits, Resource, Shares};
use crate::shelf::Shelves;
use crate::statistics::Statistics;
use crate::token::Tokens;
use crate::window::Windows;
use nvmed_fs::versions::Version;
use nvmed_fs::{File, FsError, Node, OpenFlags, Stat};
use nvmed_io::Source;
use nvmed_io::caller::{Processes, Urgency};
use nvmed_stack::{Mount, Spared};
use nvmed_sys::sync::{Arc, Mutex, Weak};
use nvmed_wire::{Answer, Board, Handle, SECRET_BYTES};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sessions at a time (docs/spec/shared.md, "Limits").
pub(crate) const SESSIONS_MAX: usize = 4096;

/// A mounted file system with the sessions that use it.
pub struct Service {
    pub(crate) mount: Mount,
    pub(crate) admission: Admission,
    pub(crate) board: Arc<Board>,
    /// The last number given to a handle; 0 is the root.
    handles: AtomicU64,
    numbers: AtomicU64,
    pub(crate) sessions: Mutex<HashMap<u64, Arc<Session>>>,
    pub(crate) lanes: Arc<Served>,
    pub(crate) shares: Arc<Shares>,
    pub(crate) owners: Owners,
    pub(crate) windows: Windows,
    pub(crate) shelves: Shelves<Session>,
    pub(crate) logs: Logs<Session>,
    pub(crate) maps: Maps,
    pub(crate) tokens: Tokens,
    pub(crate) statistics: Statistics,
    pub(crate) unmade: Unmade,
    /// What spares its clients calls.
    pub(crate) spared: Spared,
    /// What the kernel said of the urgency of clients.
    processes: Processes,
}

impl Service {
    /// Serves `mount` to whom `admission` lets in; `board` is what its clients read, `window_bytes` the memory that
    /// windows on cached pages may take.
    #[must_use]
    pub fn new(mount: Mount, admission: Admission, board: Arc<Board>, window_bytes: u64) -> Self {
        Self::sparing(mount, admission, board, window_bytes, Spared::ALL)
    }

    /// As [`Service::new`], with no more that spares its clients calls than `spared`.
    #[must_use]
    pub fn sparing(
        mount: Mount,
        admission: Admission,
        board: Arc<Board>,
        window_bytes: u64,
        spared: Spared,
    ) -> Self {
        let limits = match &admission {
            Admission::Secret(_) => Limits::RUN,
            Admission::Gate(_) => Limits::MACHINE.on_this_host(),
        };
        let is_run = admission.is_run();
        let shelves = Shelves::new(spared.shelf, is_run, window_bytes / 2);
        let may_be_direct = is_run && spared.windows && spared.direct;
        let medium = if may_be_direct { Medium::of(&mount) } else { None };
        if medium.is_some() {
            board.offer_medium();
        }
        mount.count_changes(board.versions());
        Self {
            mount,
            admission,
            handles: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            sessions: Mutex::default(),
            lanes: Arc::default(),
            shares: Shares::new(shelves.within(limits)),
            owners: Owners::default(),
            windows: Windows::over(Arc::clone(&board), if spared.windows { window_bytes } else { 0 }, medium),
            shelves,
            logs: Logs::new(is_run && spared.writes),
            maps: Maps::default(),
            board,
            tokens: Tokens::default(),
            statistics: Statistics::default(),
            unmade: Unmade::default(),
            spared,
            processes: Processes::default(),
        }
    }

    /// Whether it serves one run, all of whose processes its user has started.
    pub(crate) fn is_run(&self) -> bool {
        self.admission.is_run()
    }

    /// How urgent a call of a session is whose client says that it is or not; none as long as nobody is. A run's
    /// processes are believed, and those whose grant allows it. Of any other the kernel must have said so within the
    /// last second: the I/O class of its process is real-time, which takes a privilege.
    pub(crate) fn urgency_of(&self, session: &Session, is_said: bool) -> Option<Urgency> {
        let device = self.mount.device();
        if !is_said && !device.has_urgent() {
            return None;
        }
        let is_urgent =
            is_said && (session.view().may_be_urgent || self.processes.of(session.peer().pid).is_urgent());
        if is_urgent && !device.has_urgent() {
            device.expect_urgent(Source::Told);
        }
        Some(Urgency::of(is_urgent))
    }

    /// The same, with limits of its own.
    #[must_use]
    pub fn limited(self, limits: Limits) -> Self {
        Self { shares: Shares::new(self.shelves.within(limits)), ..self }
    }

    /// The mounted file system.
    #[must_use]
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// How many sessions there are.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.lock().len()
    }

    /// How many processes have sessions.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.owners.count()
    }

    /// How many lanes are served, the last call of a dead session's among them.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes.count()
    }

    /// How many connections have not said hello.
    #[must_use]
    pub fn silent(&self) -> usize {
        self.shares.all(Resource::Silent)
    }

    /// How many things are on their way in messages.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.tokens.count()
    }

    /// A session for a process that has said hello.
    ///
    /// # Errors
    /// [`FsError::Access`] when it is not let in; `EMFILE` past the limit; what finding its tree answers.
    pub fn begin(&self, peer: Peer, secret: &[u8], tree: &[u8]) -> Result<Arc<Session>, FsError> {
        let peer = Arc::new(peer);
        loop {
            let changes = self.admission.changes();
            let view = self.admission.admit(&self.mount, secret, tree, &peer)?;
            let session = self.enter(Arc::clone(&peer), view, self.owners.begin(peer.pid))?;
            // Who takes a grant away ends the sessions that he sees: not this one, if it came just after.
            if self.admission.changes() == changes {
                return Ok(session);
            }
            self.end(&session);
        }
    }

    pub(crate) fn enter(
        &self,
        peer: Arc<Peer>,
        view: Admitted,
        owner: Arc<Owner>,
    ) -> Result<Arc<Session>, FsError> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let mut secret = [0; SECRET_BYTES];
        let drawn = nvmed_wire::random(&mut secret);
        let user = self.shares.user(peer.uid);
        let mut sessions = self.sessions.lock();
        let room = if sessions.len() < SESSIONS_MAX { Ok(()) } else { Err(Errno::MFILE) };
        match drawn.and(room).and_then(|()| user.take(Resource::Session)) {
            Ok(share) => {
                let session = Arc::new(Session::new((number, secret), peer, view, owner, (user, share)));
                sessions.insert(number, Arc::clone(&session));
                Ok(session)
            }
            Err(errno) => {
                self.owners.end(&owner);
                Err(FsError::Host(errno))
            }
        }
    }

    /// The session that a secret from a welcome names.
    #[must_use]
    pub(crate) fn session_of(&self, secret: &[u8; SECRET_BYTES]) -> Option<Arc<Session>> {
        self.sessions.lock().values().find(|session| session.secret() == *secret).cloned()
    }

    /// Ends a session: the process is dead, or has gone on in its heir. The server gives back what it held.
    pub fn end(&self, session: &Session) {
        // `bury` finds it in the list until its locks are gone, and waits here for the thread that ends it.
        let _ending = session.ending.lock();
        self.end_log(session);
        self.end_shelf(session, true);
        let held = session.end();
        held.iter().for_each(|hold| self.unmap_all(hold));
        drop(held);
        if !self.sessions.lock().contains_key(&session.number()) {
            return;
        }
        if self.owners.end(&session.owner) {
            self.board.lock_released();
        }
        let share = session.share.lock().take();
        assert!(share.is_some(), "session {} is in the list, and has given its share back", session.number());
        drop(share);
        let mut sessions = self.sessions.lock();
        self.statistics.ended(&session.counts);
        sessions.remove(&session.number());
    }

    /// How many calls all clients made, of sessions that ended too, and which they did not have to make, as JSON:
    /// docs/seeing.md, "A server".
    #[must_use]
    pub fn trips(&self) -> serde_json::Value {
        let sessions = self.sessions.lock();
        let spares = self.statistics.spares(sessions.values().map(|session| &session.counts));
        drop(sessions);
        serde_json::json!({
            "round_trips": self.statistics.round_trips(),
            "messages": self.statistics.messages_json(),
            "spared": self.statistics.spared_json(&spares),
        })
    }

    /// Ends the sessions of processes that are dead and whose hang-up the server has not seen yet: a parent that has
    /// waited for its child expects the child's locks to be gone. Answers whether there were any.
    pub(crate) fn bury(&self) -> bool {
        let dead = self.dead();
        dead.iter().for_each(|connection| connection.end(self));
        !dead.is_empty()
    }

    /// How many sessions' processes live, whether or not the hang-ups of the others have been heard.
    #[must_use]
    pub fn living(&self) -> usize {
        let dead = self.dead().len();
        self.sessions().saturating_sub(dead)
    }

    /// The connections of sessions that have hung up.
    fn dead(&self) -> Vec<Arc<Connection>> {
        let sessions = self.sessions.lock();
        let connections = sessions.values().filter_map(|session| session.connection.get());
        let connections: Vec<_> = connections.filter_map(Weak::upgrade).collect();
        drop(sessions);
        let mut polled: Vec<_> =
            connections.iter().map(|connection| PollFd::new(&connection.socket, PollFlags::RDHUP)).collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0) {
            return Vec::new();
        }
        let dead: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        connections
            .into_iter()
            .zip(dead)
            .filter_map(|(connection, dead)| dead.then_some(connection))
            .collect()
    }

    /// Ends the mappings of what is no longer held: what was stored through them becomes the file's.
    pub(crate) fn unmap_all(&self, hold: &Hold) {
        let (Thing::Description(description), maps) = (hold.thing(), hold.maps()) else { return };
        for (count, write) in [(maps.read, false), (maps.write, true)] {
            for _ in 0..count {
                // What does not reach the cache is the file's failed write-back, told by its next fsync; nobody is
                // left here to be told.
                let _ = self.end_map(&description, write);
            }
        }
    }

    /// All sessions, for those who show them.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Session>> {
        let mut all: Vec<_> = self.sessions.lock().values().cloned().collect();
        all.sort_by_key(|session| session.number());
        all
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle(self.handles.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Has a session hold an inode.
    ///
    /// # Errors
    /// `EMFILE` past the limit.
    pub(crate) fn hold_node(&self, session: &Session, node: Node) -> Result<Answer, FsError> {
        let (handle, status) = (self.handle(), status(&node));
        session.holds().add(handle, Thing::Inode(node), 1)?;
        Ok(held(handle, status, OpenFlags::PATH))
    }

    /// Has a session hold what another session or a message holds.
    ///
    /// # Errors
    /// As [`Service::hold_node`].
    pub(crate) fn hold(&self, session: &Session, thing: Thing) -> Result<Handle, FsError> {
        let handle = match &thing {
            Thing::Inode(_) => self.handle(),
            Thing::Description(description) => description.handle,
        };
        session.holds().add(handle, thing, 1).map(|()| handle)
    }

    /// Has a session hold a new open description.
    ///
    /// # Errors
    /// As [`Service::hold_node`].
    pub(crate) fn hold_file(&self, session: &Session, file: Arc<File>) -> Result<Answer, FsError> {
        let description = Description::new(self.handle(), file, Arc::clone(&self.board));
        self.hold_description(session, &description)
    }

    /// As [`Service::hold_file`], for who opened it; it may be granted to post the file's writes.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn hold_and_grant(&self, asker: &Asker<'_>, file: Arc<File>) -> Result<Answer, FsError> {
        let description = Description::new(self.handle(), file, Arc::clone(&self.board));
        let mut held = self.hold_description(asker.session, &description)?;
        // Who reads what was there makes calls as long as there is a grant; of a new file there is nothing to read.
        let reads = description.flags().reads() && !description.was_made();
        if !reads && let Answer::Held { grant, stat, .. } = &mut held {
            *grant = self.grant(asker, &description);
            // Who has closed it just before may have written since: what is posted would begin at another end.
            if grant.is_some() && description.stat().size != stat.size {
                self.end_grant(stat.ino);
                *grant = None;
            }
        }
        Ok(held)
    }

    /// Has a session hold an open description that nobody holds yet.
    ///
    /// # Errors
    /// As [`Service::hold_node`].
    pub(crate) fn hold_description(
        &self,
        session: &Session,
        description: &Arc<Description>,
    ) -> Result<Answer, FsError> {
        let (handle, flags) = (description.handle, description.flags());
        session.holds().add(handle, Thing::Description(Arc::clone(description)), 1)?;
        Ok(held(handle, status(&description.node()), flags))
    }
}

/// An inode's status, and its version then, unless it was being changed.
fn status(node: &Node) -> (Stat, Option<Version>) {
    let before = node.version();
    let stat = node.stat();
    (stat, before.filter(|_| node.version() == before))
}

fn held(handle: Handle, (stat, version): (Stat, Option<Version>), flags: OpenFlags) -> Answer {
    Answer::Held { handle, stat, version, flags, grant: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "session 1 is in the list, and has given its share back")]
    fn a_session_that_ends_twice_is_our_mistake() {
        let (secret, board) = ([7; SECRET_BYTES], Arc::new(Board::new().unwrap()));
        let service = Service::new(crate::toy_tests::mount(), Admission::Secret(secret), board, 0);
        let peer = Peer { pid: 1, uid: 0, gid: 0, groups: [].into(), real: (0, 0) };
        let session = service.begin(peer, &secret, b"").unwrap();
        drop(session.share.lock().take());
        service.end(&session);
    }
}
