//! The session of this process.

use crate::core::{Core, STRANGE};
use crate::error::ClientError;
use crate::file::File;
use crate::filesystem::FileSystem;
use crate::link::{Link, NO_ROOM};
use crate::node::{Holding, Node};
use nvmed_fs::{FsError, OpenFlags};
use nvmed_mutant::Point;
use nvmed_sys::QuietFd;
use nvmed_wire::{
    Address, BoardView, Control, ControlAnswer, Handle, Inherited, NAMED_AT_ONCE, SECRET_BYTES, Socket,
    VERSION, Welcome,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// How long a server may take to answer that it has learnt the process's new ids.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A process's session with the server. Of a process that forks, the child goes on with an heir's in its place; nodes
/// and files stay what they are.
#[derive(Debug)]
pub struct Session {
    core: Arc<Core>,
    files: FileSystem,
}

/// An inode or a description that the session holds and did not open itself.
#[derive(Debug)]
pub enum Received {
    /// An open description.
    File(Arc<File>),
    /// An inode.
    Node(Node),
}

fn hello(address: &Address, tree: &[u8], again: Option<[u8; SECRET_BYTES]>) -> Control {
    Control::Hello { version: VERSION, secret: address.secret().to_vec(), tree: tree.to_vec(), again }
}

fn connect(address: &Address) -> Result<Socket, ClientError> {
    Socket::connect(address).map_err(|error| match error {
        nvmed_wire::SocketError::Host(errno @ (Errno::CONNREFUSED | Errno::NOENT)) => {
            ClientError::NoServer(errno)
        }
        other => other.into(),
    })
}

impl Session {
    /// A session at the server that listens at `address`, on all that it shows.
    ///
    /// # Errors
    /// There is none, or it refuses.
    pub fn connect(address: &Address) -> Result<Self, ClientError> {
        Self::connect_tree(address, b"")
    }

    /// As [`Session::connect`], with the directory `tree`, a path below the server's root, as its root.
    ///
    /// # Errors
    /// As there.
    pub fn connect_tree(address: &Address, tree: &[u8]) -> Result<Self, ClientError> {
        let hello = hello(address, tree, None);
        Self::begin(Link::begin(connect(address)?, &hello, true)?).map(|(session, _)| session)
    }

    /// Adopts the heir with this socket: the session, and what it holds.
    ///
    /// # Errors
    /// The descriptor is no heir's, or another process has adopted the heir already.
    pub fn adopt(heir: QuietFd) -> Result<(Self, Welcome), ClientError> {
        let (session, mut welcome) = Self::begin(Link::adopt(heir, true)?)?;
        Point::HeirAdopted.reached();
        session.hear_the_rest(&mut welcome).map_err(|error| ClientError::Host(error.errno()))?;
        Ok((session, welcome))
    }

    /// What an heir holds beyond what fits the first message.
    fn hear_the_rest(&self, welcome: &mut Welcome) -> Result<(), FsError> {
        while welcome.held.len() < welcome.inherits as usize {
            match self.core.talk()?.ask(&Control::Inherits, None)?.0 {
                ControlAnswer::Inherits(more) if !more.is_empty() => welcome.held.extend(more),
                _ => return Err(STRANGE),
            }
        }
        Ok(())
    }

    fn begin((link, welcome, board): (Link, Welcome, OwnedFd)) -> Result<(Self, Welcome), ClientError> {
        let board = BoardView::open(board.as_fd()).map_err(ClientError::Host)?;
        let core = Arc::new(Core::new(board, link));
        let files = FileSystem::new(&core, &welcome.root).map_err(|_| ClientError::Protocol)?;
        Ok((Self { core, files }, welcome))
    }

    /// Its file system.
    #[must_use]
    pub fn files(&self) -> &FileSystem {
        &self.files
    }

    /// What a session holds that it did not open: of a [`Welcome`], each handle once.
    ///
    /// # Errors
    /// `EPROTO` for what this library does not know.
    pub fn inherited(&self, what: &Inherited) -> Result<Received, FsError> {
        let holding = Holding::new(&self.core, what.handle, (what.stat, None))?;
        // An inode has no other flag; a description that only names one may have.
        if what.flags == OpenFlags::PATH && what.offset.is_none() {
            return Ok(Received::Node(Node(holding)));
        }
        // Who had it before may have a lock through it.
        holding.tell_end();
        Ok(Received::File(Arc::new(File::new(holding, what.flags, what.offset))))
    }

    /// A session for a process that is about to be made, or, with `same_process`, for the program that this one
    /// is about to execute: it holds what `held` names by descriptor number. Its socket; it ends when that is closed
    /// and nobody has adopted it. [`File::share`] comes before.
    ///
    /// # Errors
    /// The server's.
    pub fn heir(
        &self,
        held: &[(i32, Handle)],
        cwd: Option<Handle>,
        same_process: bool,
    ) -> Result<QuietFd, FsError> {
        let (first, rest) = held.split_at(held.len().min(NAMED_AT_ONCE));
        // The socket is taken until the server knows everything: another thread's heir would be the last one made.
        let mut talk = self.core.talk()?;
        let message = Control::Heir { held: first.to_vec(), cwd, same_process };
        let heir = talk.ask(&message, None)?.1.ok_or(NO_ROOM)?;
        for more in rest.chunks(NAMED_AT_ONCE) {
            talk.ask(&Control::HeirHolds { held: more.to_vec() }, None)?;
        }
        if same_process {
            Point::SuccessorMade.reached()
        } else {
            Point::HeirMade.reached()
        }
        Ok(QuietFd::new(heir))
    }

    /// Before a fork: what another thread could leave half done in the child is done, and not begun until
    /// [`Session::after_fork`] or [`Session::after_fork_in_child`].
    pub fn before_fork(&self) {
        self.core.link().before_fork();
    }

    /// After a fork, in the parent.
    pub fn after_fork(&self) {
        self.core.link().after_fork();
    }

    /// After a fork, in the child: from now on its calls are the heir's. Without one they are `EIO`.
    ///
    /// # Errors
    /// There is no heir, or it cannot be adopted.
    pub fn after_fork_in_child(&self, heir: Option<QuietFd>) -> Result<(), ClientError> {
        let parents = self.core.link();
        parents.leave();
        let adopted = heir.ok_or(ClientError::Gone).and_then(|heir| Link::adopt(heir, false));
        let (link, result) = match adopted {
            Ok((link, _, _)) => (link, Ok(())),
            Err(error) => (Link::nobody(), Err(error)),
        };
        let is_set = parents.next.set(Box::new(link)).is_ok();
        Point::HeirAdopted.reached();
        if is_set { result } else { Err(ClientError::Protocol) }
    }

    /// The process has changed its ids: the server learns them.
    ///
    /// # Errors
    /// The server could not be told, or refuses.
    pub fn again(&self, address: &Address) -> Result<(), ClientError> {
        let socket = connect(address)?;
        // Until the server has heard, no thread asks for the shelf of the ids before.
        let _talk = self.core.talk().ok();
        self.core.link().shelf.leave();
        self.core.leave_medium();
        let secret = self.core.link().secret();
        socket.send(&hello(address, b"", Some(secret)), None)?;
        match socket.receive(Some(ANSWER_MAX))? {
            (ControlAnswer::Done, _) => Ok(()),
            (ControlAnswer::Failed(errno), _) => Err(ClientError::Refused(Errno::from_raw_os_error(errno))),
            _ => Err(ClientError::Protocol),
        }
    }

    /// The descriptor that stands for a held description in a message of SCM_RIGHTS. [`File::share`] comes before.
    ///
    /// # Errors
    /// The server's.
    pub fn send(&self, handle: Handle) -> Result<OwnedFd, FsError> {
        self.core.talk()?.ask(&Control::Send { handle }, None)?.1.ok_or(NO_ROOM)
    }

    /// What a descriptor stands for that came in a message; held from now on.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`] when it stands for nothing; the server's.
    pub fn receive(&self, fd: BorrowedFd<'_>) -> Result<Received, FsError> {
        match self.core.talk()?.ask(&Control::Receive, Some(fd))?.0 {
            ControlAnswer::Received(what) => self.inherited(&what),
            _ => Err(STRANGE),
        }
    }

    /// The server's counters, as JSON.
    ///
    /// # Errors
    /// The server's.
    pub fn statistics(&self) -> Result<String, FsError> {
        match self.core.talk()?.ask(&Control::Statistics, None)?.0 {
            ControlAnswer::Text(text) => Ok(text),
            _ => Err(STRANGE),
        }
    }
}
