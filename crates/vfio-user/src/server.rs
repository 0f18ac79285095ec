//! The server's socket: one client at a time, then the next.

use crate::error::{ProtocolError, ServerError};
use crate::message::{Command, Header};
use crate::session::{Device, Session};
use crate::socket::{Connection, Deadline, timespec};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Connections that wait to be looked at; each is then served or refused at once.
const BACKLOG: i32 = 16;
/// Messages answered before the server looks whether it shall stop.
const MESSAGES: u32 = 64;
/// Who may connect: the owner. Whoever can, reads and writes the device.
const MODE: u16 = 0o600;

/// Ends a [`Server::run`], from any thread.
#[derive(Clone, Debug)]
pub struct Stop(Arc<OwnedFd>);

impl Stop {
    fn new() -> Result<Self, Errno> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Makes the server finish the message at hand and return.
    pub fn stop(&self) {
        // It can only fail when it was written 2^64 times, and then it is readable.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// What woke the server.
#[derive(Clone, Copy, Default)]
struct Ready {
    stop: bool,
    listener: bool,
}

/// A socket at a path, on which a device is served.
#[derive(Debug)]
pub struct Server {
    listener: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket's name, which is removed only while it is ours.
    name: (u64, u64),
    stop: Stop,
}

impl Server {
    /// Makes the socket, for its owner only (mode 0600). A socket that a dead server left there is replaced.
    ///
    /// # Errors
    /// [`ServerError::Bind`]: something else has the path, or it cannot be made.
    pub fn bind(path: &Path) -> Result<Self, ServerError> {
        let fail = |errno, hint| ServerError::Bind { path: path.display().to_string(), errno, hint };
        let plain = |errno| fail(errno, "");
        let address = SocketAddrUnix::new(path)
            .map_err(|errno| fail(errno, "; a socket's path has at most 107 bytes"))?;
        clear(path, &address).map_err(|(errno, hint)| fail(errno, hint))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let listener = listener.map_err(plain)?;
        // Before it has a name: at no moment may somebody else connect.
        rustix::fs::fchmod(&listener, Mode::from_raw_mode(MODE.into())).map_err(plain)?;
        rustix::net::bind(&listener, &address).map_err(plain)?;
        rustix::net::listen(&listener, BACKLOG).map_err(plain)?;
        let stat = rustix::fs::stat(path).map_err(plain)?;
        let stop = Stop::new().map_err(plain)?;
        Ok(Self { listener, path: path.to_owned(), name: (stat.st_dev, stat.st_ino), stop })
    }

    /// What ends [`Server::run`].
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves `device` to one client after the other, until stopped. When a client goes, however it goes, the
    /// device is reset and forgets the client's memory and eventfds. A second client is told `EBUSY`.
    ///
    /// # Errors
    /// [`ServerError::Wait`].
    pub fn run(&mut self, device: &mut dyn Device) -> Result<(), ServerError> {
        loop {
            let ready = self.poll(None, None)?;
            if ready.stop {
                return Ok(());
            }
            let Some(client) = self.accept()? else { continue };
            // A host without a descriptor for it cannot serve this client, whose connection ends here.
            let Ok(mut session) = Session::new(client) else { continue };
            let stopped = self.serve(&mut session, device);
            session.end(device);
            if stopped? {
                return Ok(());
            }
        }
    }

    /// One client, to its end; whether the server was stopped meanwhile.
    fn serve(&self, session: &mut Session, device: &mut dyn Device) -> Result<bool, ServerError> {
        loop {
            let mut more = true;
            for _ in 0..MESSAGES {
                match session.step(device) {
                    Ok(true) => {}
                    Ok(false) => {
                        more = false;
                        break;
                    }
                    Err(_) => return Ok(false),
                }
            }
            let ready = if more {
                self.poll(None, Some(Duration::ZERO))?
            } else {
                let due = device.advance();
                let due = if session.is_pending() { Some(Duration::ZERO) } else { due };
                self.poll(Some(session.socket()), due)?
            };
            if ready.stop {
                return Ok(true);
            }
            if ready.listener && !hung_up(session.socket()) {
                self.refuse()?;
            }
        }
    }

    /// Sleeps until a client, a message or the stop comes, at most `timeout`.
    fn poll(&self, client: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<Ready, ServerError> {
        let timeout = timeout.map(timespec);
        let mut polled =
            vec![PollFd::new(&*self.stop.0, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        polled.extend(client.map(|client| PollFd::from_borrowed_fd(client, PollFlags::IN)));
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(errno) => return Err(self.failed(errno)),
        }
        Ok(Ready { stop: !polled[0].revents().is_empty(), listener: !polled[1].revents().is_empty() })
    }

    fn failed(&self, errno: Errno) -> ServerError {
        ServerError::Wait { path: self.path.display().to_string(), errno }
    }

    /// The next client; None when it went away meanwhile.
    fn accept(&self) -> Result<Option<OwnedFd>, ServerError> {
        match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(self.failed(errno)),
        }
    }

    /// Tells a second client that it is one too many.
    fn refuse(&self) -> Result<(), ServerError> {
        let Some(client) = self.accept()? else { return Ok(()) };
        let busy = Header::command(0, Command::Version, 0).failure(Errno::BUSY);
        // Its socket is empty, so that this does not wait; and it is closed either way.
        let _: Result<(), ProtocolError> = Connection::new(client).send(&busy, &[], &[], Deadline::after(1));
        Ok(())
    }
}

/// Whether the other end is closed. A client that died before the next one came is found dead here, even if
/// nothing else said so yet.
fn hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(1..))
}

/// Removes what a dead server left at the path, and nothing else.
fn clear(path: &Path, address: &SocketAddrUnix) -> Result<(), (Errno, &'static str)> {
    let plain = |errno| (errno, "");
    let stat = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        stat => stat.map_err(plain)?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err((Errno::EXIST, "; it is no socket, so it is left alone: choose another path"));
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(plain)?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(plain),
        Ok(()) | Err(Errno::AGAIN) => Err((Errno::ADDRINUSE, "; another server serves there")),
        Err(errno) => Err(plain(errno)),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ours = rustix::fs::statat(rustix::fs::CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.name);
        if ours {
            // A name that cannot be removed is found to be dead by the next server.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
