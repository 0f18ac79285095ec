//! Sockets of a session: whole messages, each with one descriptor at most.

use crate::address::Address;
use core::time::Duration;
use nvmed_sys::QuietFd;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Bytes of a message at most.
pub const SOCKET_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Connections that wait to be accepted: more than a tree of processes begins at once.
const BACKLOG: i32 = 128;
/// The head of a control message (cmsg(3)): a length, a level and a type.
#[repr(C)]
struct CmsgHeader(usize, i32, i32);

/// Room for control messages, aligned as the kernel has them: so it holds as many of them as its length says, and no
/// more.
#[repr(C, align(8))]
struct Beside<const BYTES: usize>([MaybeUninit<u8>; BYTES]);

impl<const BYTES: usize> Beside<BYTES> {
    const EMPTY: Self = Self([MaybeUninit::uninit(); BYTES]);
}

/// Bytes of what the kernel says beside a message: who sent it, and beside that one descriptor, or two. Of more that a
/// sender sends along, up to 253, the rest is closed by the thread that receives, which may take as long as the sender
/// likes, and comes into no table.
const SENDER_BYTES: usize = size_of::<CmsgHeader>() + 16;
const BESIDE_BYTES: usize = SENDER_BYTES + size_of::<CmsgHeader>() + 8;

/// Why a message did not come or go.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The other side is gone.
    #[error("the other side of the session is gone")]
    Gone,
    /// More than [`SOCKET_MESSAGE_BYTES_MAX`], more than one descriptor, or bytes that are no message.
    #[error("a message that is none of the protocol's")]
    Message,
    /// The host's refusal; `EAGAIN` when nothing came in time.
    #[error("the host refused: {0}")]
    Host(Errno),
}

impl From<Errno> for SocketError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::Gone,
            errno => Self::Host(errno),
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Socket(QuietFd);

impl From<QuietFd> for Socket {
    fn from(fd: QuietFd) -> Self {
        Self(fd)
    }
}

impl Socket {
    /// A connection to the server that listens at `address`.
    ///
    /// # Errors
    /// [`SocketError::Host`]: `ECONNREFUSED` and `ENOENT` when nobody listens.
    pub fn connect(address: &Address) -> Result<Self, SocketError> {
        let socket = Self(QuietFd::new(new()?));
        loop {
            match rustix::net::connect(&socket.0, &address.socket()?) {
                Ok(()) => return Ok(socket),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Two ends of a new connection. To either end the kernel tells the ids of the process that made the pair.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn pair() -> Result<(Self, Self), Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(QuietFd::new(one)), Self(QuietFd::new(other))))
    }

    /// The end that a descriptor is; checked no further than that messages of another kind of socket do not decode.
    #[must_use]
    pub fn of(fd: OwnedFd) -> Self {
        QuietFd::new(fd).into()
    }

    /// Sends a message, with a descriptor. It waits while the other side takes nothing.
    ///
    /// # Errors
    /// [`SocketError::Message`] for one that is too long; [`SocketError::Gone`].
    pub fn send<T: Serialize>(&self, message: &T, fd: Option<BorrowedFd<'_>>) -> Result<(), SocketError> {
        self.send_with(message, fd, SendFlags::NOSIGNAL)
    }

    /// As [`Socket::send`], without waiting.
    ///
    /// # Errors
    /// As there; [`SocketError::Host`] with `EAGAIN` when the other side takes nothing.
    pub fn try_send<T: Serialize>(&self, message: &T, fd: Option<BorrowedFd<'_>>) -> Result<(), SocketError> {
        self.send_with(message, fd, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_with<T: Serialize>(
        &self,
        message: &T,
        fd: Option<BorrowedFd<'_>>,
        flags: SendFlags,
    ) -> Result<(), SocketError> {
        let bytes = postcard::to_stdvec(message).map_err(|_| SocketError::Message)?;
        if bytes.len() > SOCKET_MESSAGE_BYTES_MAX {
            return Err(SocketError::Message);
        }
        let fds: &[BorrowedFd<'_>] = fd.as_slice();
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(SocketError::Message);
            }
            match rustix::net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits for the next message, for ever or so long. It comes without its descriptor where this process has no room
    /// for one.
    ///
    /// # Errors
    /// [`SocketError::Gone`], [`SocketError::Message`]; [`SocketError::Host`] with `EAGAIN` when nothing came.
    pub fn receive<T: DeserializeOwned>(
        &self,
        timeout: Option<Duration>,
    ) -> Result<(T, Option<OwnedFd>), SocketError> {
        self.wait(timeout)?;
        let mut fds = Vec::new();
        self.try_receive(&mut fds).map(|(message, _)| (message, fds.pop()))
    }

    /// Has the kernel say who sends each message that comes from now on: see [`Socket::try_receive`].
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn ask_for_senders(&self) -> Result<(), Errno> {
        rustix::net::sockopt::set_socket_passcred(&self.0, true)
    }

    /// The next message, without waiting, and who sent it. A descriptor that came along is added to `fds`, also that of
    /// what is no message: closing it is for the caller. Of several that came the others are closed here.
    ///
    /// # Errors
    /// As [`Socket::receive`].
    pub fn try_receive<T: DeserializeOwned>(
        &self,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(T, Option<Sender>), SocketError> {
        // No room is kept between messages: they are rare.
        let mut bytes = vec![0; SOCKET_MESSAGE_BYTES_MAX];
        let (len, sender) = self.take(&mut bytes, fds)?;
        match postcard::take_from_bytes(&bytes[..len]) {
            Ok((message, [])) => Ok((message, sender)),
            _ => Err(SocketError::Message),
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<(), SocketError> {
        let timeout = timeout.map(crate::memory::timespec);
        loop {
            let mut polled = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
            match rustix::event::poll(&mut polled, timeout.as_ref()) {
                Ok(0) => return Err(SocketError::Host(Errno::AGAIN)),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Whether the next message brings descriptors, without taking it, so that none comes into this process: taking
    /// them, and closing what is too much, may last as long as their sender likes. The caller has asked for senders.
    ///
    /// # Errors
    /// [`SocketError::Gone`]; [`SocketError::Host`] with `EAGAIN` when no message is there.
    pub fn brings_descriptors(&self) -> Result<bool, SocketError> {
        match self.glance(RecvFlags::PEEK)? {
            Some(brings) => Ok(brings),
            None => Err(SocketError::Gone),
        }
    }

    /// Hangs up, so that nothing more comes, and answers whether something is left that came before.
    #[must_use]
    pub fn hang_up(&self) -> bool {
        // It fails for one that is gone.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
        matches!(self.glance(RecvFlags::PEEK), Ok(Some(_)))
    }

    /// Forgets what is left after [`Socket::hang_up`]. The descriptors of it are closed here, which may last as long as
    /// their sender likes.
    pub fn forget_messages(&self) {
        while let Ok(Some(_)) = self.glance(RecvFlags::empty()) {}
    }

    /// Looks at the next message, or drops it; whether descriptors came along, of which none is received. None at the
    /// end.
    fn glance(&self, flags: RecvFlags) -> Result<Option<bool>, SocketError> {
        let mut space = Beside::<SENDER_BYTES>::EMPTY;
        let mut control = RecvAncillaryBuffer::new(&mut space.0);
        let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = loop {
            match rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut [0])], &mut control, flags) {
                Err(Errno::INTR) => {}
                got => break got?,
            }
        };
        // The end has no sender; an empty message has.
        let is_message = got.bytes > 0 || control.drain().next().is_some();
        Ok(is_message.then(|| got.flags.contains(ReturnFlags::CTRUNC)))
    }

    fn take(&self, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<(usize, Option<Sender>), SocketError> {
        let mut space = Beside::<BESIDE_BYTES>::EMPTY;
        let mut control = RecvAncillaryBuffer::new(&mut space.0);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = loop {
            match rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
                Err(Errno::INTR) => {}
                got => break got?,
            }
        };
        let (before, mut sender) = (fds.len(), None);
        for message in control.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(rights) => fds.extend(rights),
                RecvAncillaryMessage::ScmCredentials(who) => {
                    sender = Some(Sender {
                        pid: who.pid.as_raw_nonzero().get().cast_unsigned(),
                        uid: who.uid.as_raw(),
                        gid: who.gid.as_raw(),
                    });
                }
                _ => {}
            }
        }
        if got.bytes == 0 {
            return Err(SocketError::Gone);
        }
        // Cut short without any: this process has no room for a descriptor. The message itself is whole.
        let came = fds.len() - before;
        let cut = got.flags.contains(ReturnFlags::CTRUNC) && came > 0;
        if got.flags.contains(ReturnFlags::TRUNC) || cut || came > 1 {
            return Err(SocketError::Message);
        }
        Ok((got.bytes, sender))
    }

    /// Whether the other side has hung up.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::empty())];
        let now = crate::memory::timespec(Duration::ZERO);
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
            && polled[0].revents().intersects(gone)
    }

    /// Who was at the other end when the connection was made.
    ///
    /// # Errors
    /// What `getsockopt` answers.
    pub fn peer(&self) -> Result<Peer, Errno> {
        let who = rustix::net::sockopt::socket_peercred(&self.0)?;
        Ok(Peer {
            pid: who.pid.as_raw_nonzero().get().cast_unsigned(),
            uid: who.uid.as_raw(),
            gid: who.gid.as_raw(),
            groups: nvmed_sys::peer_groups(self.0.as_fd())?,
        })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Who sent a message, as the kernel says: a process with its real ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Its id.
    pub pid: u32,
    /// Its real user.
    pub uid: u32,
    /// Its real group.
    pub gid: u32,
}

/// A process, as the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its id.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Its supplementary groups.
    pub groups: Vec<u32>,
}

/// Where sessions begin.
#[derive(Debug)]
pub struct Listener(QuietFd);

impl Listener {
    /// Listens at an address. A path must not exist. Connections ask for the senders of their messages from the start
    /// (Linux 3.12: an accepted socket inherits that): a client that is fast sends its first message before the server
    /// could ask, and the kernel then says that nobody (65534) sent it.
    ///
    /// # Errors
    /// `EADDRINUSE`; what the host answers.
    pub fn bind(address: &Address) -> Result<Self, Errno> {
        let fd = new()?;
        rustix::net::sockopt::set_socket_passcred(&fd, true)?;
        rustix::net::bind(&fd, &address.socket()?)?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok(Self(QuietFd::new(fd)))
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// What `accept` answers; `EMFILE` leaves the connection waiting.
    pub fn accept(&self) -> Result<Socket, Errno> {
        loop {
            match rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC) {
                Ok(fd) => return Ok(Socket::of(fd)),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn new() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// The first bytes of a token's abstract name; then its number in hexadecimal.
const TOKEN_NAME: &[u8] = b"nvmed-held-";

/// What stands for something held while it is on its way in a message: a socket that is bound to a name and to
/// nothing else, so that data calls on it fail. While one copy of it is open anywhere, also in a message that
/// nobody has received, its name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// Its number; random.
    pub number: u64,
    /// The socket's inode, by which one that somebody else bound to the same name is told from it.
    pub inode: u64,
}

impl Token {
    /// Makes one, and its descriptor.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn make() -> Result<(Self, OwnedFd), Errno> {
        let mut bytes = [0; 8];
        crate::address::random(&mut bytes)?;
        let number = u64::from_le_bytes(bytes);
        let fd =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&fd, &name(number)?)?;
        let inode = rustix::fs::fstat(&fd)?.st_ino;
        Ok((Self { number, inode }, fd))
    }

    /// The token that a descriptor is, if it is one.
    #[must_use]
    pub fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        let address = SocketAddrUnix::try_from(rustix::net::getsockname(fd).ok()?).ok()?;
        let hex = address.abstract_name()?.strip_prefix(TOKEN_NAME)?;
        let text = core::str::from_utf8(hex).ok().filter(|text| text.len() == 16)?;
        let number = u64::from_str_radix(text, 16).ok()?;
        Some(Self { number, inode: rustix::fs::fstat(fd).ok()?.st_ino })
    }

    /// Whether no copy of it is open any more.
    ///
    /// # Errors
    /// The host has no descriptor left to look with.
    pub fn is_free(&self) -> Result<bool, Errno> {
        let fd =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        match rustix::net::bind(&fd, &name(self.number)?) {
            Ok(()) => Ok(true),
            Err(Errno::ADDRINUSE) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

fn name(number: u64) -> Result<SocketAddrUnix, Errno> {
    let hex = format!("{number:016x}");
    SocketAddrUnix::new_abstract_name(&[TOKEN_NAME, hex.as_bytes()].concat())
}
