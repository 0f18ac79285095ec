//! The administrator's socket: the kernel tells the server which user has connected.

use crate::house::House;
use crate::keeper::is_owner;
use crate::request::{LINE_BYTES_MAX, Reply, Request};
use nvmed_sys::sync::{Arc, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Only the owner may connect.
const MODE: u32 = 0o600;
/// Connections answered at once: an administrator has a few.
const CONNECTIONS_MAX: usize = 16;
/// After so long without a request the server closes an administrator's connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// A socket at which a served device is administered, until this is dropped.
pub struct Admin {
    path: PathBuf,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// Connections that wait for the server's end.
    waiting: Arc<Mutex<Vec<UnixStream>>>,
}

impl Admin {
    /// Makes the socket, and answers root and the server's user. A socket that a dead server left there is replaced.
    ///
    /// # Errors
    /// The path is taken; the host has no descriptor or thread left.
    pub fn start(path: &Path, house: Arc<House>) -> Result<Self, std::io::Error> {
        clear_socket(path)?;
        let listener = UnixListener::bind(path)?;
        rustix::fs::chmod(path, Mode::from_raw_mode(MODE))?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let waiting = Arc::default();
        let desk = Desk { house, waiting: Arc::clone(&waiting), open: AtomicUsize::new(0) };
        let (desk, stopped) = (Arc::new(desk), Arc::clone(&stop));
        let thread = nvmed_sys::spawn_quiet("nvmed-admin", move || desk.run(&listener, &stopped))?;
        Ok(Self { path: path.to_owned(), stop, thread: Some(thread), waiting })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // It can only fail when it was written 2^64 times, and then it is readable.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // Its panic was told when it happened.
            let _ = thread.join();
        }
        let _ = rustix::fs::unlink(&self.path);
        self.waiting.lock().clear();
    }
}

/// Removes a socket that nobody listens at, and nothing else.
///
/// # Errors
/// `EEXIST` for what is no socket, `EADDRINUSE` for one at which somebody listens.
pub fn clear_socket(path: &Path) -> Result<(), Errno> {
    let stat = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        stat => stat?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(Errno::EXIST);
    }
    match UnixStream::connect(path).map_err(|error| Errno::from_io_error(&error)) {
        Err(Some(Errno::CONNREFUSED)) => rustix::fs::unlink(path),
        Ok(_) | Err(_) => Err(Errno::ADDRINUSE),
    }
}

struct Desk {
    house: Arc<House>,
    waiting: Arc<Mutex<Vec<UnixStream>>>,
    open: AtomicUsize,
}

impl Desk {
    fn run(self: &Arc<Self>, listener: &UnixListener, stop: &OwnedFd) {
        loop {
            let mut polled = [
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
            ];
            match rustix::event::poll(&mut polled, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            if !polled[0].revents().is_empty() {
                return;
            }
            // Who was there and went is nobody.
            if let Ok((stream, _)) = listener.accept() {
                self.take(stream);
            }
        }
    }

    /// Has a thread answer a connection: a client that sends nothing holds up no other.
    fn take(self: &Arc<Self>, stream: UnixStream) {
        if self.open.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
            self.open.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let desk = Arc::clone(self);
        let answer = move || {
            // Who does not read his answer has none.
            let _ = desk.answer(stream);
            desk.open.fetch_sub(1, Ordering::SeqCst);
        };
        if nvmed_sys::spawn_quiet("nvmed-admin", answer).is_err() {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn answer(&self, mut stream: UnixStream) -> Result<(), std::io::Error> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let uid = rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw();
        let mut line = String::new();
        let said = if is_owner(uid) {
            BufReader::new(&stream).take(LINE_BYTES_MAX).read_line(&mut line)?;
            match serde_json::from_str(&line) {
                Ok(request) => (self.house.answer(Request::clone(&request)), request == Request::Drain),
                Err(error) => (Reply::Failed(format!("not a request: {error}")), false),
            }
        } else {
            (Reply::Failed("only root and the server's user may administer it".to_owned()), false)
        };
        let (said, stays) = said;
        let mut text = serde_json::to_string(&said)?;
        text.push('\n');
        stream.write_all(text.as_bytes())?;
        if stays {
            self.waiting.lock().push(stream);
        }
        Ok(())
    }
}
