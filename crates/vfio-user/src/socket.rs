//! Whole messages over a stream socket, with their descriptors, and never longer than a deadline.

use crate::error::ProtocolError;
use crate::message::{FDS_MAX, HEADER_BYTES, Header, Message};
use nvmed_sys::QuietFd;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of the smallest register write with its header: what the usual message fits in.
const SMALL: usize = 64;

/// When waiting ends.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end: Instant,
    timeout_ms: u32,
}

impl Deadline {
    /// `timeout_ms` milliseconds from now.
    pub fn after(timeout_ms: u32) -> Self {
        Self { end: Instant::now() + Duration::from_millis(u64::from(timeout_ms)), timeout_ms }
    }

    fn left(&self) -> Result<rustix::time::Timespec, ProtocolError> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ProtocolError::Timeout { timeout_ms: self.timeout_ms });
        }
        Ok(timespec(left))
    }
}

/// The host's form of a duration.
pub fn timespec(span: Duration) -> rustix::time::Timespec {
    let tv_sec = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    rustix::time::Timespec { tv_sec, tv_nsec: i64::from(span.subsec_nanos()) }
}

fn failed(errno: Errno) -> ProtocolError {
    match errno {
        Errno::PIPE | Errno::CONNRESET => ProtocolError::Closed,
        errno => ProtocolError::Socket { errno },
    }
}

/// One end of a connection. It reads no byte beyond the message that is due, so that a descriptor belongs to
/// the message with which it came.
#[derive(Debug)]
pub struct Connection {
    fd: QuietFd,
    /// What has come of the message that is due: its header, then its payload.
    partial: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Connection {
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd: QuietFd::new(fd), partial: Vec::with_capacity(SMALL), fds: Vec::new() }
    }

    /// As [`send`].
    pub fn send(
        &self,
        header: &Header,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<(), ProtocolError> {
        send(self.fd.as_fd(), header, payload, fds, deadline)
    }

    /// The next message, when all of it is there; None when the rest has not come yet.
    ///
    /// # Errors
    /// [`ProtocolError::Size`] after which the stream makes no sense any more; [`ProtocolError::Closed`].
    pub fn try_receive(&mut self) -> Result<Option<Message>, ProtocolError> {
        if self.partial.len() < HEADER_BYTES && !self.fill(HEADER_BYTES)? {
            return Ok(None);
        }
        let header = Header::read_from_bytes(&self.partial[..HEADER_BYTES]).expect("a header's bytes");
        let bytes = HEADER_BYTES + header.payload_bytes()?;
        if self.partial.len() < bytes && !self.fill(bytes)? {
            return Ok(None);
        }
        let payload = self.partial[HEADER_BYTES..].to_vec();
        self.partial.clear();
        Ok(Some(Message { header, payload, fds: std::mem::take(&mut self.fds) }))
    }

    /// The header of the message that is due, if it has come: to answer a message whose size makes no sense.
    pub fn due(&self) -> Option<Header> {
        self.partial.get(..HEADER_BYTES).and_then(|bytes| Header::read_from_bytes(bytes).ok())
    }

    /// The next message.
    ///
    /// # Errors
    /// As [`Self::try_receive`], and [`ProtocolError::Timeout`].
    pub fn receive(&mut self, deadline: Deadline) -> Result<Message, ProtocolError> {
        loop {
            if let Some(message) = self.try_receive()? {
                return Ok(message);
            }
            wait(self.fd.as_fd(), PollFlags::IN, deadline)?;
        }
    }

    /// Reads until `bytes` of the message are there; whether they are.
    fn fill(&mut self, bytes: usize) -> Result<bool, ProtocolError> {
        while self.partial.len() < bytes {
            let had = self.partial.len();
            self.partial.resize(bytes, 0);
            let got = receive_some(self.fd.as_fd(), &mut self.partial[had..], &mut self.fds);
            self.partial.truncate(had + got.unwrap_or(0));
            match got {
                Ok(0) => return Err(ProtocolError::Closed),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(true)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sends one message. Two senders of one socket take turns.
///
/// # Errors
/// [`ProtocolError::Closed`], [`ProtocolError::Timeout`] if the peer takes nothing, or the host's refusal.
pub fn send(
    fd: BorrowedFd<'_>,
    header: &Header,
    payload: &[&[u8]],
    fds: &[BorrowedFd<'_>],
    deadline: Deadline,
) -> Result<(), ProtocolError> {
    let bytes = header.bytes as usize;
    let mut small = [0; SMALL];
    let mut large = Vec::new();
    let message = if bytes <= SMALL {
        &mut small[..bytes]
    } else {
        large.resize(bytes, 0);
        &mut large[..]
    };
    let mut at = 0;
    for part in core::iter::once(&header.as_bytes()).chain(payload) {
        message[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    assert_eq!(at, bytes, "a header says what follows it");
    send_bytes(fd, message, fds, deadline)
}

fn send_bytes(
    fd: BorrowedFd<'_>,
    mut rest: &[u8],
    mut fds: &[BorrowedFd<'_>],
    deadline: Deadline,
) -> Result<(), ProtocolError> {
    while !rest.is_empty() {
        match send_some(fd, rest, fds) {
            Ok(done) => (rest, fds) = (&rest[done..], &[]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(fd, PollFlags::OUT, deadline)?,
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(())
}

/// Waits for the socket, at most until the deadline.
fn wait(fd: BorrowedFd<'_>, flags: PollFlags, deadline: Deadline) -> Result<(), ProtocolError> {
    let mut polled = [PollFd::from_borrowed_fd(fd, flags)];
    match rustix::event::poll(&mut polled, Some(&deadline.left()?)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

fn send_some(fd: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(fd, &[IoSlice::new(bytes)], &mut control, flags)
}

fn receive_some(fd: BorrowedFd<'_>, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(fd, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            // What is too much is closed here, and its sender hears of it.
            fds.extend(came);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() > FDS_MAX {
        return Err(Errno::TOOMANYREFS);
    }
    Ok(got.bytes)
}

/// Two ends of a new connection.
///
/// # Errors
/// The host's.
#[cfg(test)]
pub fn pair() -> (Connection, Connection) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .expect("a pair of sockets");
    (Connection::new(a), Connection::new(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Command, MESSAGE_BYTES_MAX};

    #[test]
    fn a_message_arrives_with_its_own_descriptors_however_it_is_cut() {
        let (near, mut far) = pair();
        let deadline = Deadline::after(1000);
        let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let plain = Header::command(1, Command::DeviceReset, 0);
        let with = Header::command(2, Command::DmaMap, 100);
        near.send(&plain, &[], &[], deadline).unwrap();
        near.send(&with, &[&[7; 60], &[8; 40]], &[file.as_fd()], deadline).unwrap();
        send_bytes(near.as_fd(), &plain.as_bytes()[..5], &[], deadline).unwrap();
        let first = far.receive(deadline).unwrap();
        assert_eq!((first.header, first.fds.len()), (plain, 0));
        let second = far.receive(deadline).unwrap();
        assert_eq!((second.header, second.payload.len(), second.fds.len()), (with, 100, 1));
        assert!(far.try_receive().unwrap().is_none());
        send_bytes(near.as_fd(), &plain.as_bytes()[5..], &[], deadline).unwrap();
        assert_eq!(far.try_receive().unwrap().unwrap().header, plain);
        drop(near);
        assert_eq!(far.try_receive().unwrap_err(), ProtocolError::Closed);
    }

    #[test]
    fn a_silent_peer_and_one_that_reads_nothing_end_by_the_deadline() {
        let (near, mut far) = pair();
        assert_eq!(far.receive(Deadline::after(1)).unwrap_err(), ProtocolError::Timeout { timeout_ms: 1 });
        let payload = vec![0; MESSAGE_BYTES_MAX - HEADER_BYTES];
        let header = Header::command(1, Command::RegionWrite, payload.len());
        let sent = (0..1000).find_map(|_| near.send(&header, &[&payload], &[], Deadline::after(1)).err());
        assert_eq!(sent, Some(ProtocolError::Timeout { timeout_ms: 1 }));
    }

    #[test]
    fn sizes_that_no_message_has_are_refused_with_the_header_at_hand() {
        for bytes in [0, 15, MESSAGE_BYTES_MAX as u32 + 1, u32::MAX] {
            let (near, mut far) = pair();
            let header = Header { bytes, ..Header::command(9, Command::Version, 0) };
            send_bytes(near.as_fd(), header.as_bytes(), &[], Deadline::after(1000)).unwrap();
            assert!(matches!(far.try_receive(), Err(ProtocolError::Size { .. })));
            assert_eq!(far.due(), Some(header));
        }
    }
}
