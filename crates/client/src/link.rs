//! The connection of one process: its socket and its lanes. A forked child gets a connection of its own,
//! which is found behind its parent's (`next`); it makes no call over its parent's.

use crate::error::ClientError;
use crate::lanes::{Lane, Lanes, Taken};
use crate::posted::Posting;
use crate::shelf::Shelf;
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_fs::FsError;
use nvmed_fs::posted::{LOG_BYTES, Poster};
use nvmed_io::caller;
use nvmed_sys::{ForkGuard, ForkLock, Mapping, Pages, QuietFd};
use nvmed_wire::{
    Answer, BoardView, Call, ClientLane, Control, ControlAnswer, Handle, LaneError, SECRET_BYTES, Socket,
    SocketError, Spare, VERSION, Welcome,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::OnceLock;
use std::time::Duration;

/// How long a server may take for a message of its socket. A server that lives answers in microseconds, or writes a
/// large file into memory for mmap; one that is gone hangs up.
const ANSWER_MAX: Duration = Duration::from_secs(120);

const GONE: FsError = FsError::Host(Errno::IO);

/// The answer came without the descriptor that belongs to it: this process has no room for one.
pub(crate) const NO_ROOM: FsError = FsError::Host(Errno::MFILE);

#[derive(Debug)]
pub(crate) struct Link {
    /// Taken for a message and its answer, and for whatever is set once below and in files: a fork finds it free.
    socket: ForkLock<Option<Socket>>,
    lanes: Lanes,
    pub(crate) shelf: Shelf,
    pub(crate) posting: Posting,
    /// Taken by who claims what was opened by a post.
    pub(crate) claims: ForkLock<()>,
    secret: [u8; SECRET_BYTES],
    /// No call comes through any more.
    ended: AtomicBool,
    /// A word that is 0 in a forked child, which has neither lanes nor socket.
    mark: Option<Mapping>,
    /// The link of a forked child.
    pub next: OnceLock<Box<Link>>,
}

/// An answer; the lane is taken until it is dropped.
pub(crate) struct Reply<'a> {
    pub answer: Answer,
    bytes: usize,
    lane: Lane<'a>,
}

impl Reply<'_> {
    /// Copies the data to the start of `into`; how much.
    pub fn data(&self, into: &mut [u8]) -> usize {
        let len = self.bytes.min(into.len());
        self.lane.lane.data(0, &mut into[..len]);
        len
    }

    /// The data.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        self.lane.lane.data(0, &mut bytes);
        bytes
    }
}

/// A descriptor, if this process has room for one.
fn room(socket: &Socket) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(socket, 0)
}

impl Link {
    /// Begins on a new connection, or goes on with an heir's. A process that begins with a call has its lane at once
    /// (`calls`): it waits for the server once, not twice.
    ///
    /// # Errors
    /// The server's refusal, or its silence.
    pub fn begin(
        socket: Socket,
        first: &Control,
        calls: bool,
    ) -> Result<(Self, Welcome, OwnedFd), ClientError> {
        socket.send(first, None)?;
        // For the lane's descriptor, and the board's.
        let calls = calls && room(&socket).is_ok_and(|_one| room(&socket).is_ok());
        if calls {
            socket.send(&Control::Lane, None)?;
        }
        match socket.receive(Some(ANSWER_MAX))? {
            (ControlAnswer::Welcome(welcome), Some(board)) => {
                let lanes = Lanes::default();
                if calls {
                    let (_, fd) = socket.receive::<ControlAnswer>(Some(ANSWER_MAX))?;
                    // Without it the first call asks again, and is told why there is none.
                    lanes.begin(fd.and_then(|fd| ClientLane::open(fd.as_fd()).ok()));
                }
                let mark = Mapping::anonymous(4096, Pages::Base).map_err(ClientError::Host)?;
                mark.wipe_on_fork().map_err(ClientError::Host)?;
                mark.u32(0).store(1, Ordering::Relaxed);
                let link = Self {
                    socket: ForkLock::new(Some(socket)),
                    lanes,
                    shelf: Shelf::default(),
                    posting: Posting::default(),
                    claims: ForkLock::new(()),
                    secret: welcome.secret,
                    ended: AtomicBool::new(false),
                    mark: Some(mark),
                    next: OnceLock::new(),
                };
                Ok((link, welcome, board))
            }
            (ControlAnswer::Failed(errno), _) => Err(ClientError::Refused(Errno::from_raw_os_error(errno))),
            (ControlAnswer::Welcome(_), None) => Err(ClientError::Host(Errno::MFILE)),
            _ => Err(ClientError::Protocol),
        }
    }

    /// As [`Link::begin`], of an heir.
    ///
    /// # Errors
    /// As there.
    pub fn adopt(heir: QuietFd, calls: bool) -> Result<(Self, Welcome, OwnedFd), ClientError> {
        Self::begin(heir.into(), &Control::Adopt { version: VERSION }, calls)
    }

    /// The link of a child for which there is no session.
    pub fn nobody() -> Self {
        Self {
            socket: ForkLock::new(None),
            lanes: Lanes::default(),
            shelf: Shelf::default(),
            posting: Posting::default(),
            claims: ForkLock::new(()),
            secret: [0; SECRET_BYTES],
            ended: AtomicBool::new(true),
            mark: None,
            next: OnceLock::new(),
        }
    }

    pub fn secret(&self) -> [u8; SECRET_BYTES] {
        self.secret
    }

    /// Whether calls come through, as far as this process knows.
    #[inline]
    pub fn is_open(&self) -> bool {
        let here = self.mark.as_ref().is_some_and(|mark| mark.u32(0).load(Ordering::Relaxed) == 1);
        here && !self.ended.load(Ordering::Relaxed)
    }

    /// Nobody is between a message and its answer until [`Link::after_fork`].
    pub fn before_fork(&self) {
        self.socket.hold();
    }

    pub fn after_fork(&self) {
        self.socket.release();
    }

    /// In a child: this is its parent's, and the socket's copy would keep it from being seen to end.
    pub fn leave(&self) {
        self.socket.release();
        self.ended.store(true, Ordering::Relaxed);
        drop(self.socket.lock().take());
    }

    /// The socket, for a message and its answer, or while something is set that a fork must not find half set.
    pub fn socket(&self) -> Result<Talk<'_>, FsError> {
        if !self.is_open() {
            return Err(GONE);
        }
        Ok(Talk { socket: self.socket.lock(), link: self })
    }

    /// Makes a call; see [`ClientLane::call`].
    ///
    /// # Errors
    /// What the server answers; `EIO` once it is gone.
    #[inline]
    pub fn call(&self, board: &BoardView, call: &Call<'_>, data: &[u8]) -> Result<Reply<'_>, FsError> {
        if !self.is_open() {
            return Err(GONE);
        }
        let lane = match self.lanes.take() {
            Taken::Lane(lane) => lane,
            Taken::Make => self.make_lane()?,
        };
        lane.lane.say_urgent(caller::of_thread().is_urgent());
        let answered = lane.lane.call(call, data, board, &|| self.is_alive());
        match answered {
            Ok(answered) => {
                let reply = Reply { answer: answered.answer, bytes: answered.data_bytes, lane };
                match reply.answer {
                    Answer::Failed(errno) => Err(FsError::Host(Errno::from_raw_os_error(errno))),
                    Answer::Away(_) => Err(FsError::Away(reply.to_vec().into_boxed_slice())),
                    _ => Ok(reply),
                }
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Posts the close of what is held (docs/spec/shared.md, "Posts"); false when it takes a call.
    pub fn post(&self, handle: Handle) -> bool {
        // Without a server nothing is held.
        !self.is_open() || self.lanes.take_free().is_some_and(|free| free.lane.post(handle))
    }

    #[cold]
    fn failed(&self, error: &LaneError) -> FsError {
        match error {
            LaneError::Message => FsError::NameTooLong,
            LaneError::Bytes { .. } => FsError::Invalid,
            _ => {
                self.ended.store(true, Ordering::Relaxed);
                GONE
            }
        }
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// Whether the server still has this session.
    pub(crate) fn is_alive(&self) -> bool {
        let gone = self.socket.lock().as_ref().is_none_or(Socket::is_gone);
        if gone {
            self.ended.store(true, Ordering::Relaxed);
        }
        !gone
    }

    #[cold]
    fn make_lane(&self) -> Result<Lane<'_>, FsError> {
        let mut control = self.socket()?;
        // A lane that the server makes and that finds no room here would be one of the session's all the same.
        let room = control.room();
        let made = room.and_then(|()| control.ask(&Control::Lane, None)).and_then(|(_, fd)| {
            let fd = fd.ok_or(NO_ROOM)?;
            let lane = ClientLane::open(fd.as_fd())?;
            self.lanes.put(lane).ok_or(GONE)
        });
        drop(control);
        match made {
            Err(_) if self.lanes.has_any() => {
                // The host has no memory for more: the calls take turns.
                self.lanes.not_made();
                loop {
                    if let Taken::Lane(lane) = self.lanes.take() {
                        return Ok(lane);
                    }
                }
            }
            Err(error) => {
                self.lanes.not_this_one();
                Err(error)
            }
            made => made,
        }
    }

    /// Asks for a log to post writes in, at some write of many that could have been posted.
    #[cold]
    pub(crate) fn ask_for_log(&self) {
        if !self.posting.wants_log() {
            return;
        }
        let Ok(mut talk) = self.socket() else { return };
        if self.posting.has_asked() {
            // Another thread has asked meanwhile.
            return;
        }
        let log = talk.ask(&Control::Log, None).ok().and_then(|(_, fd)| {
            let log = Mapping::shared(fd?.as_fd(), 0, LOG_BYTES, Pages::Base).ok()?;
            log.forbid_fork().ok()?;
            Some(Poster::new(log))
        });
        self.posting.put(log);
    }

    /// Counts a call that was not made. A process without a session counts nothing: it has no lane's memory.
    #[inline]
    pub(crate) fn spared(&self, what: Spare) {
        if self.is_open() {
            self.count(what);
        }
    }

    /// The same, of a link that was just seen to be open.
    #[inline]
    pub(crate) fn count(&self, what: Spare) {
        if let Some(lane) = self.lanes.first() {
            lane.spares().count(what);
        }
    }

    /// Counts a read of so many bytes, of a link that was just seen to be open.
    #[inline]
    pub(crate) fn count_read(&self, counts: [Spare; 2], bytes: usize) {
        if let Some(lane) = self.lanes.first() {
            lane.spares().add_read(counts, bytes as u64);
        }
    }
}

/// The socket, taken.
pub(crate) struct Talk<'a> {
    socket: ForkGuard<'a, Option<Socket>>,
    link: &'a Link,
}

impl Talk<'_> {
    /// Whether this process has room for a descriptor.
    ///
    /// # Errors
    /// `EMFILE`; `EIO` once the server is gone.
    fn room(&self) -> Result<(), FsError> {
        let Some(socket) = &*self.socket else { return Err(GONE) };
        room(socket).map(drop).map_err(FsError::Host)
    }

    /// Sends a message, waits for its answer.
    ///
    /// # Errors
    /// What the server answers; `E2BIG` for a message that is too long; `EIO` once it is gone.
    pub fn ask(
        &mut self,
        message: &Control,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(ControlAnswer, Option<OwnedFd>), FsError> {
        let Some(socket) = &*self.socket else { return Err(GONE) };
        match socket.send(message, fd) {
            // Nothing was sent, and nothing will be answered.
            Err(SocketError::Message) => return Err(FsError::Host(Errno::TOOBIG)),
            // The receive below says so too.
            Err(SocketError::Gone) | Ok(()) => {}
            Err(SocketError::Host(errno)) => return Err(FsError::Host(errno)),
            Err(_) => return Err(GONE),
        }
        match socket.receive(Some(ANSWER_MAX)) {
            Ok((ControlAnswer::Failed(errno), _)) => Err(FsError::Host(Errno::from_raw_os_error(errno))),
            Ok(answered) => Ok(answered),
            Err(SocketError::Host(errno)) if errno != Errno::AGAIN => Err(FsError::Host(errno)),
            Err(_) => {
                // An answer that comes later would be taken for the next message's.
                self.link.ended.store(true, Ordering::Relaxed);
                Err(GONE)
            }
        }
    }
}
