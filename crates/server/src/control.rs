//! Messages over a session's socket: calls that are rare, and those that carry descriptors.

use crate::connection::Connection;
use crate::heir::inherited;
use crate::hold::Thing;
use crate::peer::Peer;
use crate::server::Desk;
use crate::session::Session;
use crate::statistics;
use nvmed_fs::FsError;
use nvmed_wire::{Control, ControlAnswer, Handle, SECRET_BYTES, Sender, Socket, Token, VERSION};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::sync::Arc;

/// An answer, and the descriptor that comes along.
pub(crate) type Reply = (ControlAnswer, Option<OwnedFd>);

/// Whether a message may take so long that others must not wait for it: it reads files, or waits for changes of them,
/// or looks at every session.
pub(crate) fn is_long(connection: &Connection, message: &Control) -> bool {
    match message {
        Control::Map { .. } | Control::Window { .. } | Control::Statistics => true,
        // It makes a file of the host's.
        Control::Pipe { .. } => true,
        // What it is told of, or lets go of in the session before, is files.
        Control::Adopt { .. } => connection.heir().is_ok_and(|heir| {
            let before = heir.inheritance.lock().as_ref().and_then(|left| left.before.as_ref()?.upgrade());
            !heir.holds().are_light() || before.is_some_and(|before| !before.is_light())
        }),
        // What is posted to files that others get too is made, and that waits for the device like any write.
        Control::Heir { .. } | Control::HeirHolds { .. } | Control::Send { .. }
            if connection.session().is_ok_and(|session| session.log.get().is_some()) =>
        {
            true
        }
        // For a child, what its parent has mapped is mapped once more.
        Control::Heir { same_process: false, .. } | Control::HeirHolds { .. } => {
            connection.session().is_ok_and(|session| session.holds().are_mapped())
        }
        Control::Inherits => connection.session().is_ok_and(|heir| !heir.holds().are_light()),
        // Without a secret, grants are looked at, and directories that they name; with other ids, a shelf is left, too.
        Control::Hello { secret, again, .. } => secret.is_empty() || again.is_some(),
        _ => false,
    }
}

fn copy(fd: BorrowedFd<'_>) -> Result<OwnedFd, FsError> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, 0)?)
}

impl Desk {
    /// Answers a message of a connection.
    pub(crate) fn control(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        message: Control,
        fd: Option<BorrowedFd<'_>>,
        sender: Option<Sender>,
    ) -> Reply {
        self.service.statistics.count_message(statistics::message(&message));
        let reply = self.guarded(|| self.act(connection, message, fd, sender));
        connection.owner().inspect(|session| session.counts.count_message());
        let reply = reply.unwrap_or(Err(FsError::Host(Errno::IO)));
        reply.unwrap_or_else(|error| (ControlAnswer::Failed(error.errno().raw_os_error()), None))
    }

    fn act(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        message: Control,
        fd: Option<BorrowedFd<'_>>,
        sender: Option<Sender>,
    ) -> Result<Reply, FsError> {
        let service = &self.service;
        match message {
            Control::Hello { version, secret, tree, again } => {
                check(version)?;
                let peer = connection.peer(sender)?;
                match again {
                    None => self.hello(connection, peer, &secret, &tree),
                    Some(secret) => self.again(connection, peer, secret),
                }
            }
            Control::Adopt { version } => {
                check(version)?;
                let heir = connection.heir()?;
                let welcome = service.adopt(heir, sender)?;
                connection.greet(heir);
                Ok((ControlAnswer::Welcome(welcome), Some(copy(service.board.readers())?)))
            }
            Control::Log => Ok((ControlAnswer::Done, Some(service.log(connection.session()?)?))),
            Control::Lane => Ok((ControlAnswer::Done, Some(connection.lane(service)?))),
            Control::Heir { held, cwd, same_process } => {
                let session = connection.session()?;
                let heir = service.heir(session, held, cwd, same_process)?;
                self.connect_heir(&heir, session)
            }
            Control::HeirHolds { held } => {
                service.heir_holds(connection.session()?, held)?;
                Ok((ControlAnswer::Done, None))
            }
            Control::Inherits => Ok((ControlAnswer::Inherits(service.tell(connection.session()?)?), None)),
            Control::Map { handle, write } => {
                Ok((ControlAnswer::Done, Some(self.map(connection.session()?, handle, write)?)))
            }
            Control::Window { handle } => self.window(connection.session()?, handle),
            Control::Medium => {
                let peer = connection.session()?.peer();
                Ok((ControlAnswer::Done, Some(service.windows.medium(&peer)?)))
            }
            Control::Shelf => Ok((ControlAnswer::Done, Some(service.shelf(connection.session()?)?))),
            Control::Send { handle } => self.send(connection.session()?, handle),
            Control::Receive => {
                let fd = fd.ok_or(FsError::Invalid)?;
                self.receive(connection.session()?, fd)
            }
            Control::Statistics => {
                connection.session()?;
                service.take_all_posts();
                Ok((ControlAnswer::Text(self.statistics()), None))
            }
            Control::Pipe { handle, flags } => {
                let session = connection.session()?;
                let (node, peer) = (session.node(handle)?, session.peer());
                let pipe = session.files().pipe(&node, flags, &peer.credentials())?;
                Ok((ControlAnswer::Done, Some(pipe)))
            }
            Control::Bind { handle } => {
                let end = copy(fd.ok_or(FsError::Invalid)?)?;
                let session = connection.session()?;
                let (node, peer) = (session.node(handle)?, session.peer());
                session.files().bind(&node, end, &peer.credentials())?;
                Ok((ControlAnswer::Done, None))
            }
            Control::Connect { handle } => {
                let session = connection.session()?;
                let (node, peer) = (session.node(handle)?, session.peer());
                Ok((ControlAnswer::Done, Some(session.files().connect(&node, &peer.credentials())?)))
            }
        }
    }

    fn hello(
        &self,
        connection: &Arc<Connection>,
        peer: Peer,
        secret: &[u8],
        tree: &[u8],
    ) -> Result<Reply, FsError> {
        if connection.has_session() {
            return Err(FsError::Invalid);
        }
        let board = copy(self.service.board.readers())?;
        let session = self.service.begin(peer, secret, tree)?;
        connection.greet(&session);
        if session.is_revoked() {
            connection.shut(&self.service);
            return Err(FsError::Access);
        }
        Ok((ControlAnswer::Welcome(self.service.welcome(&session)), Some(board)))
    }

    /// A process that has a session has changed its ids.
    fn again(
        &self,
        connection: &Connection,
        peer: Peer,
        secret: [u8; SECRET_BYTES],
    ) -> Result<Reply, FsError> {
        let session = self.service.session_of(&secret).ok_or(FsError::Access)?;
        if connection.has_session() {
            return Err(FsError::Invalid);
        }
        if let Err(error) = self.service.admission.keep(&session.view().tree, &peer) {
            // With ids that it has no more it shall not go on.
            self.revoke(|other| other.number() == session.number());
            return Err(error);
        }
        self.service.leave_shelf(&session);
        self.service.has_ids(&session, peer);
        // One that it joined meanwhile, as who it was.
        self.service.leave_shelf(&session);
        Ok((ControlAnswer::Done, None))
    }

    /// A socket for the heir of a session: the heir's connection is ours already, the other end goes to the client.
    fn connect_heir(self: &Arc<Self>, heir: &Arc<Session>, parent: &Session) -> Result<Reply, FsError> {
        let connect = || -> Result<OwnedFd, Errno> {
            let (ours, theirs) = Socket::pair()?;
            ours.ask_for_senders()?;
            let theirs = rustix::io::fcntl_dupfd_cloexec(theirs.as_fd(), 0)?;
            self.enter(|number| Connection::of_heir(number, ours, Arc::clone(heir)))?;
            Ok(theirs)
        };
        let socket = connect().map_err(|errno| {
            self.service.end(heir);
            FsError::Host(errno)
        })?;
        // Who revokes has not seen the heir, or sees it now.
        if parent.is_revoked() { Err(FsError::Access) } else { Ok((ControlAnswer::Done, Some(socket))) }
    }

    /// The memory of a mapped file, as far as the description may use it: one that is open for writing also may
    /// make a mapping writable later (mprotect), and says so by another `write` then.
    fn map(&self, session: &Session, handle: Handle, write: bool) -> Result<OwnedFd, FsError> {
        let description = session.description(handle)?;
        let mapped = self.service.begin_map(&description, write, &session.user)?;
        let memory = if description.flags().writes() {
            copy(mapped.fd.as_fd())
        } else {
            let path = format!("/proc/self/fd/{}", mapped.fd.as_raw_fd());
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).map_err(FsError::from)
        };
        let counted = memory.and_then(|memory| {
            let mut holds = session.holds();
            let count = holds.maps(handle)?.of(write);
            *count = count.checked_add(1).ok_or(FsError::Host(Errno::NOMEM))?;
            Ok(memory)
        });
        if counted.is_err() {
            // Nobody has it mapped; what could not be gathered was not stored.
            let _ = self.service.end_map(&description, write);
        }
        counted
    }

    /// The window on a file that a session has open.
    fn window(&self, session: &Session, handle: Handle) -> Result<Reply, FsError> {
        let description = session.description(handle)?;
        self.service.end_grant(description.node().ino());
        let window = self.service.windows.open(&description, session.user.uid, &session.peer())?;
        Ok((ControlAnswer::Done, Some(copy(window.readers())?)))
    }

    /// What stands for something held that is about to be sent.
    fn send(&self, session: &Session, handle: Handle) -> Result<Reply, FsError> {
        let thing = session.thing(handle)?;
        let token = self.service.tokens.send(thing.clone(), session)?;
        // In this order: who holds it as a message is counted when the grant ends.
        if let Thing::Description(description) = thing {
            self.service.end_grant(description.node().ino());
        }
        Ok((ControlAnswer::Done, Some(token)))
    }

    /// A descriptor that came in a message: what it stands for is held from now on.
    fn receive(&self, session: &Session, fd: BorrowedFd<'_>) -> Result<Reply, FsError> {
        let sent = Token::of(fd).and_then(|token| self.service.tokens.get(token));
        let thing = sent.ok_or(FsError::BadDescriptor)?;
        let handle = self.service.hold(session, thing)?;
        let told = inherited(session, handle)?;
        // Who sent it has it too, or had: its offset stays here.
        Ok((ControlAnswer::Received(nvmed_wire::Inherited { offset: None, ..told }), None))
    }
}

fn check(version: u32) -> Result<(), FsError> {
    // Programs of another installation: they cannot know what we say.
    if version == VERSION { Ok(()) } else { Err(FsError::Host(Errno::PROTO)) }
}
