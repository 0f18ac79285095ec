//! A server over memory, and clients that speak the protocol themselves.
#![allow(dead_code, reason = "each test file uses a part")]

use nvmed_fs::{Follow, OpenFlags};
use nvmed_server::{Admission, Limits, Server, Service};
use nvmed_stack::{Config, DeviceSpec, Mount, Surroundings};
use nvmed_wire::{
    Address, Answer, Board, BoardView, Call, ClientLane, Control, ControlAnswer, Handle, Mark, Object,
    Socket, VERSION, Welcome, entries,
};
use rustix::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

pub fn mount() -> Mount {
    mount_of(DeviceSpec::parse("virtual:?media=dram,size=64M").unwrap())
}

pub fn mount_of(spec: DeviceSpec) -> Mount {
    let mut config = Config::new(PathBuf::from("/"), spec);
    config.format = true;
    config.cache_bytes = 4 << 20;
    config.cache_huge = false;
    config.writeback_seconds = 0;
    nvmed_stack::mount(&config, Surroundings::default()).unwrap()
}

pub struct Shared {
    pub service: Arc<Service>,
    pub server: Server,
    pub address: Address,
}

pub fn serve() -> Shared {
    serve_with(1 << 20)
}

/// A server whose windows have so many bytes.
pub fn serve_with(window_bytes: u64) -> Shared {
    serve_on(DeviceSpec::parse("virtual:?media=dram,size=64M").unwrap(), window_bytes)
}

/// A server with limits of its own.
pub fn serve_within(limits: Limits) -> Shared {
    serve_what(DeviceSpec::parse("virtual:?media=dram,size=64M").unwrap(), 1 << 20, limits)
}

/// A server of a device.
pub fn serve_on(spec: DeviceSpec, window_bytes: u64) -> Shared {
    serve_what(spec, window_bytes, Limits::RUN)
}

fn serve_what(spec: DeviceSpec, window_bytes: u64, limits: Limits) -> Shared {
    let address = Address::random().unwrap();
    let admission = Admission::Secret(address.secret().try_into().unwrap());
    let board = Arc::new(Board::new().unwrap());
    let service = Arc::new(Service::new(mount_of(spec), admission, board, window_bytes).limited(limits));
    let server = Server::start(Arc::clone(&service), &address).unwrap();
    Shared { service, server, address }
}

/// A client.
pub struct Client {
    pub socket: Socket,
    pub welcome: Welcome,
    pub board: BoardView,
    pub lane: ClientLane,
}

/// Asks a question over a socket.
pub fn ask(socket: &Socket, question: &Control, fd: Option<&OwnedFd>) -> (ControlAnswer, Option<OwnedFd>) {
    socket.send(question, fd.map(AsFd::as_fd)).unwrap();
    socket.receive(None).unwrap()
}

pub fn hello(secret: &[u8]) -> Control {
    Control::Hello { version: VERSION, secret: secret.to_vec(), tree: Vec::new(), again: None }
}

impl Client {
    pub fn connect(shared: &Shared) -> Self {
        Self::connect_to(&shared.address)
    }

    pub fn connect_to(address: &Address) -> Self {
        Self::greet(Socket::connect(address).unwrap(), &hello(address.secret()))
    }

    pub fn adopt(fd: OwnedFd) -> Self {
        Self::greet(Socket::of(fd), &Control::Adopt { version: VERSION })
    }

    pub fn greet(socket: Socket, greeting: &Control) -> Self {
        Self::try_greet(socket, greeting).unwrap_or_else(|errno| panic!("not welcome: {errno}"))
    }

    pub fn try_greet(socket: Socket, greeting: &Control) -> Result<Self, i32> {
        let (welcome, board) = match ask(&socket, greeting, None) {
            (ControlAnswer::Welcome(welcome), Some(board)) => (welcome, board),
            (ControlAnswer::Failed(errno), None) => return Err(errno),
            other => panic!("{other:?}"),
        };
        let board = BoardView::open(board.as_fd()).unwrap();
        let lane = new_lane(&socket);
        Ok(Self { socket, welcome, board, lane })
    }

    pub fn try_call(&self, call: &Call<'_>, data: &[u8]) -> (Answer, Vec<u8>) {
        let answered = self.lane.call(call, data, &self.board, &|| !self.socket.is_gone()).unwrap();
        let mut bytes = vec![0; answered.data_bytes];
        self.lane.data(0, &mut bytes);
        (answered.answer, bytes)
    }

    pub fn call(&self, call: &Call<'_>) -> Answer {
        self.try_call(call, &[]).0
    }

    pub fn control(&self, question: &Control) -> Result<Option<OwnedFd>, i32> {
        match ask(&self.socket, question, None) {
            (ControlAnswer::Failed(errno), _) => Err(errno),
            (_, fd) => Ok(fd),
        }
    }

    pub fn open(&self, path: &str, flags: OpenFlags) -> Result<Handle, i32> {
        match self.call(&Call::Open { object: named(path), flags, mode: 0o644 }) {
            Answer::Held { handle, .. } => Ok(handle),
            Answer::Failed(errno) => Err(errno),
            other => panic!("{other:?}"),
        }
    }

    pub fn create(&self, path: &str) -> Handle {
        self.open(path, OpenFlags::READ_WRITE.with(OpenFlags::CREATE)).unwrap()
    }

    pub fn close(&self, handle: Handle) {
        let close = Call::Close { handle, last: true, record_locks: true };
        assert_eq!(self.call(&close), Answer::Done);
    }

    /// As [`Client::close`], of what has no locks: without waiting.
    pub fn post(&self, handle: Handle) {
        if !self.lane.post(handle) {
            self.close(handle);
        }
    }

    pub fn pwrite(&self, handle: Handle, offset: u64, bytes: &[u8]) {
        self.write_there(handle, Some(offset), bytes, false);
    }

    /// At the description's own offset, or at the end: the offset afterwards.
    pub fn write(&self, handle: Handle, bytes: &[u8]) -> u64 {
        self.write_there(handle, None, bytes, false).0
    }

    /// With its sync: the file's mark, if what it has is durable.
    pub fn write_durably(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Option<Mark> {
        self.write_there(handle, Some(offset), bytes, true).1
    }

    fn write_there(
        &self,
        handle: Handle,
        offset: Option<u64>,
        bytes: &[u8],
        sync: bool,
    ) -> (u64, Option<Mark>) {
        let write = Call::Write { handle, offset, bytes: bytes.len() as u32, sync };
        match self.try_call(&write, bytes).0 {
            Answer::Written { bytes: written, offset, durable } if written as usize == bytes.len() => {
                (offset, durable)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn read_at(&self, handle: Handle, offset: Option<u64>, bytes: u32) -> Result<Vec<u8>, i32> {
        match self.try_call(&Call::Read { handle, offset, bytes }, &[]) {
            (Answer::Data(len), bytes) if len as usize == bytes.len() => Ok(bytes),
            (Answer::Failed(errno), _) => Err(errno),
            other => panic!("{other:?}"),
        }
    }

    pub fn pread(&self, handle: Handle, offset: u64, bytes: u32) -> Vec<u8> {
        self.read_at(handle, Some(offset), bytes).unwrap()
    }

    pub fn size(&self, handle: Handle) -> u64 {
        match self.call(&Call::Stat(Object::Held(handle))) {
            Answer::Status(stat) => stat.size,
            other => panic!("{other:?}"),
        }
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        let directory = self.open(path, OpenFlags::READ.with(OpenFlags::DIRECTORY)).unwrap();
        let mut names = Vec::new();
        loop {
            let call = Call::ReadDir { handle: directory, after: None, bytes: 300 };
            let (answer, bytes) = self.try_call(&call, &[]);
            let Answer::Entries { bytes: told, last } = answer else { panic!("{answer:?}") };
            assert_eq!(told as usize, bytes.len());
            names.extend(entries(&bytes).map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
            if last {
                break;
            }
        }
        self.close(directory);
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }

    /// A session for another process, which holds these.
    pub fn heir(&self, held: &[(i32, Handle)], same_process: bool) -> Result<OwnedFd, i32> {
        let heir = Control::Heir { held: held.to_vec(), cwd: None, same_process };
        self.control(&heir).map(|fd| fd.unwrap())
    }
}

pub fn new_lane(socket: &Socket) -> ClientLane {
    let (answer, Some(lane)) = ask(socket, &Control::Lane, None) else { panic!("no lane") };
    assert_eq!(answer, ControlAnswer::Done);
    ClientLane::open(lane.as_fd()).unwrap()
}

pub fn named(path: &str) -> Object<'_> {
    Object::Path { at: Handle::ROOT, path: path.as_bytes(), follow: Follow::Yes }
}

/// Waits until something is so; fails after a long time.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !so() {
        assert!(begun.elapsed().as_secs() < 60, "not in a minute: {what}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
