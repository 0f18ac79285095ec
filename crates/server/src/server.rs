//! The event loop: connections, their messages and hang-ups, tokens on their way.

use crate::connection::Connection;
use crate::control::{Reply, is_long};
use crate::errand::{Errands, Refused};
use crate::error::ServerError;
use crate::service::{SESSIONS_MAX, Service};
use crate::session::Session;
use crate::share::Resource;
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_wire::{Address, Control, ControlAnswer, Listener, SocketError};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections at a time: sessions, and those that have not said hello yet.
const CONNECTIONS_MAX: usize = SESSIONS_MAX + 1024;
/// How often it is looked for tokens that nobody has any more and for posts of clients that make no call, and whether a
/// host without descriptors has some again.
const SWEEP: Duration = Duration::from_secs(1);
const EVENTS: usize = 64;
/// Sessions that the statistics tell of, those with the most calls: a message holds 64 KiB.
const SESSIONS_TOLD: usize = 150;
/// Longer statistics go without the buckets of their latencies.
const TEXT_BYTES_MAX: usize = 60 << 10;
const PAGE_BYTES: u64 = 4096;
/// Events that are not a connection's.
const LISTENER: u64 = 0;
const WAKE: u64 = 1;

/// What the event loop and those who work for it share.
pub(crate) struct Desk {
    pub service: Arc<Service>,
    epoll: OwnedFd,
    wake: OwnedFd,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    last: AtomicU64,
    errands: Errands,
    /// Taken before what is in `errands`.
    clerks: Mutex<Vec<JoinHandle<()>>>,
    refused: Arc<Refused>,
    stopping: AtomicBool,
    finishing: AtomicBool,
    /// A clerk sweeps.
    sweeping: AtomicBool,
}

/// A running server.
pub struct Server {
    desk: Arc<Desk>,
    looper: Option<JoinHandle<()>>,
}

/// What ends a server, from any thread.
#[derive(Clone)]
pub struct Stop(Arc<Desk>);

impl Stop {
    /// Ends it now: the calls of all clients fail from now on.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::Release);
        self.0.wake();
    }

    /// Ends it when no session is left.
    pub fn finish(&self) {
        self.0.finishing.store(true, Ordering::Release);
        self.0.wake();
    }

    /// Ends the sessions that `which` names, and heirs that they are making; answers how many there were. None of their
    /// calls begins after this; clients find them gone.
    pub fn revoke(&self, which: impl Fn(&Session) -> bool) -> usize {
        self.0.revoke(which)
    }

    /// How many sessions there are.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.0.service.sessions()
    }

    /// How many sessions there are whose processes live.
    #[must_use]
    pub fn living(&self) -> usize {
        self.0.service.living()
    }
}

impl Server {
    /// Serves at `address`.
    ///
    /// # Errors
    /// [`ServerError::Busy`] when somebody listens there; [`ServerError::Host`].
    pub fn start(service: Arc<Service>, address: &Address) -> Result<Self, ServerError> {
        let host = ServerError::host;
        let listener = Listener::bind(address).map_err(|errno| match errno {
            Errno::ADDRINUSE => ServerError::Busy { address: format!("{address:?}") },
            errno => ServerError::Host { what: "a socket to listen at", errno },
        })?;
        rustix::io::ioctl_fionbio(&listener, true).map_err(host("a socket that does not wait"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(host("an event queue"))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(host("an event"))?;
        let add = |fd, number| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN)
                .map_err(host("an event"))
        };
        add(listener.as_fd(), LISTENER)?;
        add(wake.as_fd(), WAKE)?;
        let clerks_of_user = service.shares.limits.clerks;
        let desk = Arc::new(Desk {
            service,
            epoll,
            wake,
            connections: Mutex::default(),
            last: AtomicU64::new(WAKE),
            errands: Errands::new(clerks_of_user),
            clerks: Mutex::default(),
            refused: Arc::default(),
            stopping: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
            sweeping: AtomicBool::new(false),
        });
        let thread = |error: std::io::Error| ServerError::Host {
            what: "a thread",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        };
        // Dropped, it ends the threads that it has.
        let mut server = Self { desk, looper: None };
        for _ in 0..server.desk.errands.at_once() {
            let clerk = server.desk.clerk().map_err(thread)?;
            server.desk.clerks.lock().push(clerk);
        }
        server.desk.errands.begin();
        let desk = Arc::clone(&server.desk);
        let looper = nvmed_sys::spawn_quiet("nvmed-server", move || desk.run(&listener));
        server.looper = Some(looper.map_err(thread)?);
        Ok(server)
    }

    /// What ends it.
    #[must_use]
    pub fn stop(&self) -> Stop {
        Stop(Arc::clone(&self.desk))
    }

    /// Waits until it has ended: no client reaches the mount any more, every session is ended.
    pub fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some(looper) = self.looper.take() {
            // A panic in the thread has been reported by its hook; what follows is to be done all the same.
            let _ = looper.join();
        }
        let clerks = {
            let mut clerks = self.desk.clerks.lock();
            self.desk.errands.end();
            core::mem::take(&mut *clerks)
        };
        for clerk in clerks {
            let _ = clerk.join();
        }
        let left: Vec<_> = self.desk.connections.lock().drain().collect();
        left.iter().for_each(|(_, connection)| self.desk.end(connection));
        self.desk.service.board.set_dead();
        // Calls that were begun are done, so that the caller may unmount.
        self.desk.service.lanes.end();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop().stop();
        self.join();
    }
}

impl Desk {
    fn wake(&self) {
        // It is full only when it is set already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Hands an errand to a clerk, for a user or for the server.
    fn errand(self: &Arc<Self>, whose: Option<u32>, errand: impl FnOnce() + Send + 'static) {
        let desk = Arc::clone(self);
        let errand = move || {
            let _ = desk.guarded(errand);
        };
        // None is made after the last one was taken to be waited for.
        let mut clerks = self.clerks.lock();
        if self.errands.add(whose, Box::new(errand)) {
            match self.clerk() {
                Ok(clerk) => clerks.push(clerk),
                Err(_) => self.errands.not_hired(),
            }
        }
    }

    fn clerk(self: &Arc<Self>) -> Result<JoinHandle<()>, std::io::Error> {
        let desk = Arc::clone(self);
        nvmed_sys::spawn_quiet("nvmed-clerk", move || desk.errands.run())
    }

    /// A mistake of ours in one thing that is done turns the file system read-only, and ends nothing else.
    pub fn guarded<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        self.service.mount.guarded(act)
    }

    /// Ends a connection's session and gives up what it holds. What a panic of ours leaves behind stays unused.
    fn end(&self, connection: &Connection) {
        let _ = self.guarded(|| connection.end(&self.service));
    }

    /// Takes a connection in.
    ///
    /// # Errors
    /// `EMFILE` past the limit; what `epoll_ctl` answers.
    pub fn enter(&self, make: impl FnOnce(u64) -> Connection) -> Result<(), Errno> {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = Arc::new(make(number));
        let mut connections = self.connections.lock();
        let data = epoll::EventData::new_u64(number);
        let entered = match connections.len() {
            CONNECTIONS_MAX.. => Err(Errno::MFILE),
            _ => epoll::add(&self.epoll, connection.socket.as_fd(), data, EVERYTHING),
        };
        if let Err(errno) = entered {
            drop(connections);
            self.refuse(connection);
            return Err(errno);
        }
        connection.introduce();
        connections.insert(number, connection);
        Ok(())
    }

    fn run(self: &Arc<Self>, listener: &Listener) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let (mut listening, mut swept) = (true, Instant::now());
        // When it is next looked for those that say nothing.
        let mut deadline = None;
        while !self.stopping.load(Ordering::Acquire) {
            let sweeps = || self.service.tokens.count() > 0 || self.service.lanes() > 0;
            let sweep = (!listening || sweeps()).then_some(SWEEP);
            let silent = deadline.map(|deadline: Instant| deadline.saturating_duration_since(Instant::now()));
            let timeout = sweep.into_iter().chain(silent).min().map(timespec);
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    eprintln!("nvmed: the server cannot wait for its clients: {errno}");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => {
                        listening = self.accept(listener);
                        deadline = deadline.or(Some(Instant::now() + self.service.shares.limits.hello));
                    }
                    WAKE => drop(rustix::io::read(&self.wake, &mut [0; 8])),
                    number => self.attend(number),
                }
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                deadline = self.hang_up_on_the_silent();
            }
            if swept.elapsed() >= SWEEP {
                swept = Instant::now();
                if !listening {
                    listening = self.listen(listener);
                }
                // One that takes long, as the close of a large file may, is not joined by another clerk.
                if sweeps() && !self.sweeping.swap(true, Ordering::AcqRel) {
                    let desk = Arc::clone(self);
                    self.errand(None, move || {
                        let _ = desk.guarded(|| desk.service.tokens.sweep());
                        desk.service.take_all_posts();
                        desk.sweeping.store(false, Ordering::Release);
                    });
                }
            }
            if self.finishing.load(Ordering::Acquire) && self.connections.lock().is_empty() {
                return;
            }
        }
    }

    /// As [`Stop::revoke`].
    pub fn revoke(&self, which: impl Fn(&Session) -> bool) -> usize {
        // First the marks: who becomes an heir, or is greeted, after they were looked for, finds them.
        let marked: Vec<_> = self.service.list().into_iter().filter(|session| which(session)).collect();
        marked.iter().for_each(|session| session.revoke());
        let connections: Vec<_> = self.connections.lock().values().cloned().collect();
        let theirs = |connection: &&Arc<Connection>| connection.owner().is_some_and(|session| which(session));
        connections.iter().filter(theirs).for_each(|connection| connection.shut(&self.service));
        marked.len()
    }

    /// Accepts the connections that wait at the listener; false when the host has no descriptor for them, so that they
    /// wait on.
    fn accept(&self, listener: &Listener) -> bool {
        loop {
            match listener.accept() {
                Ok(socket) => {
                    let user = socket.peer().map(|peer| self.service.shares.user(peer.uid));
                    let taken = user.and_then(|user| Ok((user.take(Resource::Silent)?, user)));
                    match taken {
                        // One too many is hung up on.
                        Ok((share, user)) => {
                            _ = self.enter(|number| Connection::new(number, socket, user, share))
                        }
                        Err(_) if socket.hang_up() => self.refused.add(move || socket.forget_messages()),
                        Err(_) => drop(socket),
                    }
                }
                Err(Errno::AGAIN) => return true,
                Err(_) => {
                    let _ = epoll::delete(&self.epoll, listener);
                    return false;
                }
            }
        }
    }

    /// Ends connections that have not said hello in time; answers when the next one's time is over.
    fn hang_up_on_the_silent(&self) -> Option<Instant> {
        let (now, hello) = (Instant::now(), self.service.shares.limits.hello);
        let connections: Vec<_> = self.connections.lock().values().cloned().collect();
        let silent = connections.iter().filter_map(|one| Some((one, one.silent_since()? + hello)));
        let (late, waiting): (Vec<_>, Vec<_>) = silent.partition(|(_, deadline)| *deadline <= now);
        late.iter().for_each(|(connection, _)| connection.hang_up());
        waiting.iter().map(|(_, deadline)| *deadline).min()
    }

    fn listen(&self, listener: &Listener) -> bool {
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&self.epoll, listener, data, epoll::EventFlags::IN).is_ok()
    }

    /// Something came from a connection: a message, or its end.
    fn attend(self: &Arc<Self>, number: u64) {
        let Some(connection) = self.connections.lock().get(&number).cloned() else { return };
        let brings = connection.socket.brings_descriptors();
        if brings == Ok(true) {
            return self.attend_apart(connection);
        }
        match brings.and_then(|_| connection.socket.try_receive::<Control>(&mut Vec::new())) {
            Ok((message, sender)) if is_long(&connection, &message) => {
                let desk = Arc::clone(self);
                self.errand(Some(connection.user.uid), move || {
                    let reply = desk.control(&connection, message, None, sender);
                    desk.reply(connection, &reply);
                });
            }
            Ok((message, sender)) => {
                let reply = self.control(&connection, message, None, sender);
                self.reply(connection, &reply);
            }
            Err(SocketError::Host(Errno::AGAIN)) => self.await_next(connection),
            Err(_) => self.leave(connection),
        }
    }

    /// Takes a message with a descriptor. A client can make the thread that closes its descriptor wait for as long as
    /// the client likes (a file of its own FUSE, a socket that lingers). So a thread of the connection's own takes the
    /// message and closes what came with it; until then the server takes nothing more from this connection.
    fn attend_apart(self: &Arc<Self>, connection: Arc<Connection>) {
        let (desk, asking) = (Arc::clone(self), Arc::clone(&connection));
        // The unmount waits for this answer, as for those of lanes; it does not wait for the closing.
        let counted = self.service.lanes.begin();
        let attend = move || {
            let mut fds = Vec::new();
            let reply =
                asking.socket.try_receive::<Control>(&mut fds).map(|(message, sender)| match fds.first() {
                    Some(fd) => desk.control(&asking, message, Some(fd.as_fd()), sender),
                    // This process has no room for it.
                    None => (ControlAnswer::Failed(Errno::NFILE.raw_os_error()), None),
                });
            drop(counted);
            drop(fds);
            match reply {
                Ok(reply) => desk.reply(asking, &reply),
                Err(_) => desk.leave(asking),
            }
        };
        if nvmed_sys::spawn_quiet("nvmed-rights", attend).is_err() {
            // The host has no thread: the connection ends.
            self.leave(connection);
        }
    }

    /// Answers a message, and waits for the next one.
    fn reply(self: &Arc<Self>, connection: Arc<Connection>, (answer, fd): &Reply) {
        let sent = connection.socket.try_send(answer, fd.as_ref().map(AsFd::as_fd));
        let sent = match sent {
            Err(SocketError::Message) => {
                let too_long = ControlAnswer::Failed(Errno::TOOBIG.raw_os_error());
                connection.socket.try_send(&too_long, None)
            }
            sent => sent,
        };
        // Who does not take an answer before it asks again is no client of ours.
        if sent.is_ok() { self.await_next(connection) } else { self.leave(connection) }
    }

    fn await_next(self: &Arc<Self>, connection: Arc<Connection>) {
        let data = epoll::EventData::new_u64(connection.number);
        if epoll::modify(&self.epoll, connection.socket.as_fd(), data, EVERYTHING).is_err() {
            self.leave(connection);
        }
    }

    /// The other side of a connection is gone, or is to go.
    fn leave(self: &Arc<Self>, connection: Arc<Connection>) {
        // It reports nothing any more, which is all that is wanted of it.
        let _ = epoll::delete(&self.epoll, connection.socket.as_fd());
        if connection.socket.hang_up() {
            return self.leave_messages(connection);
        }
        if connection.is_light() {
            return self.forget(&connection);
        }
        let desk = Arc::clone(self);
        self.errand(Some(connection.user.uid), move || desk.forget(&connection));
    }

    /// As [`Desk::leave`], of a connection with messages that nobody took. The thread that closes the connection closes
    /// their descriptors too, which takes as long as their sender likes. So it is a thread of its own, as long as the
    /// user's share has room for one more silent connection.
    fn leave_messages(self: &Arc<Self>, connection: Arc<Connection>) {
        let share = connection.user.take(Resource::Silent);
        let is_alone = share.is_ok();
        let (desk, leaving) = (Arc::clone(self), Arc::clone(&connection));
        let alone = move || {
            let _share = share;
            desk.end(&leaving);
            leaving.socket.forget_messages();
            desk.forget(&leaving);
        };
        if is_alone && nvmed_sys::spawn_quiet("nvmed-rights", alone).is_ok() {
            return;
        }
        let desk = Arc::clone(self);
        self.errand(Some(connection.user.uid), move || {
            desk.end(&connection);
            let refused = Arc::clone(&desk.refused);
            refused.add(move || {
                connection.socket.forget_messages();
                desk.forget(&connection);
            });
        });
    }

    /// Closes a connection that was accepted, and whose client the server does not let in.
    fn refuse(&self, connection: Arc<Connection>) {
        if connection.socket.hang_up() {
            self.refused.add(move || connection.socket.forget_messages());
        }
    }

    fn forget(&self, connection: &Connection) {
        self.end(connection);
        self.connections.lock().remove(&connection.number);
        if self.finishing.load(Ordering::Acquire) {
            self.wake();
        }
    }

    /// The counters of the server, its mount and its sessions, as JSON.
    pub fn statistics(&self) -> String {
        let whole = self.told(true);
        // A message's limit, less what is around the text.
        if whole.len() < TEXT_BYTES_MAX { whole } else { self.told(false) }
    }

    fn told(&self, buckets: bool) -> String {
        let (service, now) = (&self.service, rustix::time::clock_gettime(rustix::time::ClockId::Monotonic));
        let (mut sessions, trips) = (service.list(), service.trips());
        sessions.retain(|session| session.counts.is_client());
        sessions.sort_by_key(|session| std::cmp::Reverse(session.counts.calls()));
        let left_out = sessions.len().saturating_sub(SESSIONS_TOLD);
        sessions.truncate(SESSIONS_TOLD);
        let (cache, device) = (service.mount.cache_stats(), service.mount.device());
        let requests = device.stats();
        serde_json::json!({
            "version": 1,
            "pid": rustix::process::getpid().as_raw_nonzero().get(),
            "device": service.mount.device_name(),
            "trouble": service.mount.trouble().map(|trouble| trouble.to_string()),
            "uptime_ns": service.statistics.uptime_ns(),
            "now_ns": now.tv_sec * 1_000_000_000 + now.tv_nsec,
            "calls": service.statistics.json(buckets),
            "round_trips": trips["round_trips"],
            "messages": trips["messages"],
            "spared": trips["spared"],
            "cache": {
                "bytes": cache.frames * PAGE_BYTES,
                "pages_asked": service.statistics.pages_asked(),
                "misses": cache.misses,
                "evictions": cache.evictions,
                "writebacks": cache.writebacks,
                "dirty_bytes": cache.dirty * PAGE_BYTES,
            },
            "buffer": service.mount.buffer_stats().map(|buffer| serde_json::json!({
                "now_ns": buffer.now_ns,
                "waited_ns": buffer.waited_ns,
                "fills": buffer.fills,
                "fills_ahead": buffer.fills_ahead,
                "used_ahead": buffer.used_ahead,
                "late_ahead": buffer.late_ahead,
                "wasted_ahead": buffer.wasted_ahead,
                "evictions": buffer.evictions,
                "programs": buffer.programs,
                "programmed_bytes": buffer.programmed_bytes,
            })),
            "windows": service.windows.json(),
            "shelves": service.shelves.json(),
            "requests": {
                "reads": requests.reads,
                "writes": requests.writes,
                "fua_writes": requests.fua_writes,
                "flushes": requests.flushes,
                "write_zeroes": requests.write_zeroes,
                "discards": requests.discards,
                "bytes_read": requests.bytes_read,
                "bytes_written": requests.bytes_written,
                "errors": requests.errors,
                "outstanding": device.outstanding(),
            },
            "lanes": { "open": service.lanes(), "busy": service.statistics.busy() },
            "tokens": service.tokens.count(),
            "sessions": sessions.iter().map(|session| session.json()).collect::<Vec<_>>(),
            "sessions_left_out": left_out,
        })
        .to_string()
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}

/// What is waited for at a connection, once.
const EVERYTHING: epoll::EventFlags =
    epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP).union(epoll::EventFlags::ONESHOT);
