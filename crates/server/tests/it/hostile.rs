//! Clients that say what no client of ours says: they harm themselves, and nobody else.

use crate::support::{Client, Shared, ask, hello, mount, named, serve, serve_within, until};
use nvmed_dice::Dice;
use nvmed_fs::{FileSystem, Follow, FsError, LockKind, LockRange, OpenFlags};
use nvmed_io::caller;
use nvmed_server::{Admission, Admitted, Gate, Limits, Peer, Server, Service};
use nvmed_sys::{Mapping, Pages};
use nvmed_wire::{
    Address, Answer, Board, Call, Control, ControlAnswer, Handle, LockClass, MESSAGE_BYTES_MAX, Object,
    Socket, SocketError, VERSION,
};
use proptest::prelude::*;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io::Write;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LANE_BYTES: usize = 16_384 + (1 << 20);

/// A client that keeps its lane's memory, to write what it likes.
struct Liar {
    socket: Socket,
    memory: Mapping,
    fd: OwnedFd,
}

impl Liar {
    fn new(shared: &Shared) -> Self {
        let socket = Socket::connect(&shared.address).unwrap();
        let (answer, _) = ask(&socket, &hello(shared.address.secret()), None);
        assert!(matches!(answer, ControlAnswer::Welcome(_)));
        let (_, Some(fd)) = ask(&socket, &Control::Lane, None) else { panic!("no lane") };
        let memory = Mapping::shared(fd.as_fd(), 0, LANE_BYTES, Pages::Base).unwrap();
        Self { socket, memory, fd }
    }

    /// Says that there is a call, and how long.
    fn call(&self, message_bytes: u32, data_bytes: u32, state: u32) {
        self.memory.u32(4).store(message_bytes, Ordering::Relaxed);
        self.memory.u32(8).store(data_bytes, Ordering::Relaxed);
        self.memory.u32(0).store(state, Ordering::SeqCst);
        let _ = rustix::thread::futex::wake(self.memory.u32(0), rustix::thread::futex::Flags::empty(), 1);
    }

    /// Waits for the answer, or for the session's end; whether it was answered.
    fn answered(&self) -> bool {
        until("an answer or the end", || {
            self.memory.u32(0).load(Ordering::SeqCst) == 3 || self.socket.is_gone()
        });
        !self.socket.is_gone()
    }
}

/// An honest client is served as ever.
fn honest(client: &Client, file: Handle, round: u64) {
    client.pwrite(file, 0, &round.to_le_bytes());
    assert_eq!(client.pread(file, 0, 8), round.to_le_bytes());
}

#[test]
fn lengths_and_states_that_cannot_be_end_the_session() {
    let shared = serve();
    let witness = Client::connect(&shared);
    let file = witness.create("file");
    let lies = [
        (MESSAGE_BYTES_MAX as u32 + 1, 0, 1),
        (u32::MAX, 0, 1),
        (1, (1 << 20) + 1, 1),
        (1, u32::MAX, 1),
        (1, 0, 2),
        (1, 0, 5),
        (1, 0, u32::MAX),
        (0, 0, 1),
    ];
    for (round, (message, data, state)) in lies.into_iter().enumerate() {
        let liar = Liar::new(&shared);
        liar.call(message, data, state);
        assert!(!liar.answered(), "{message} {data} {state}");
        honest(&witness, file, round as u64);
    }
    until("only the witness is left", || shared.service.sessions() == 1 && shared.service.processes() == 1);
}

#[test]
fn posts_of_what_is_not_held_or_too_many_harm_nobody() {
    let shared = serve();
    let witness = Client::connect(&shared);
    let file = witness.create("file");
    let liar = Liar::new(&shared);
    let mut message = [0; 16];
    let len = postcard::to_slice(&Call::Ping, &mut message).unwrap().len() as u32;
    liar.memory.write(64, &message[..len as usize]);
    for round in 1..=100u32 {
        // Strangers' handles, its root, and numbers that were never given out.
        let handles = [file.0, 0, u64::MAX, u64::from(round)];
        for (place, handle) in (0..128).zip(handles.iter().cycle()) {
            liar.memory.u64(14_464 + place * 8).store(*handle, Ordering::Relaxed);
        }
        liar.memory.u32(14_336).store(round * 128, Ordering::Release);
        liar.call(len, 0, 1);
        assert!(liar.answered());
        honest(&witness, file, u64::from(round));
    }
    liar.memory.u32(14_400).store(7, Ordering::Relaxed);
    for (liar, posted) in [(liar, 100 * 128 + 129), (Liar::new(&shared), 129), (Liar::new(&shared), u32::MAX)]
    {
        liar.memory.u32(14_336).store(posted, Ordering::Release);
        // Whoever looks at all posts passes it by; its own next call ends it.
        assert!(matches!(witness.call(&Call::StatFs), Answer::FileSystem(_)));
        liar.memory.write(64, &message[..len as usize]);
        liar.call(len, 0, 1);
        assert!(!liar.answered(), "{posted}");
        honest(&witness, file, u64::from(posted));
    }
    until("only the witness is left", || shared.service.sessions() == 1 && shared.service.processes() == 1);
}

/// Writes anything into the slots of posted opens, near inodes that `next` says come now, and claims some of them,
/// until it `is_over`; counts what it was `given`.
fn lie_in_slots(liar: &Client, next: &AtomicU64, given: &AtomicU64, is_over: impl Fn() -> bool) {
    let mut dice = Dice::new(3);
    while !is_over() {
        let near = next.load(Ordering::Relaxed) + dice.roll(8);
        let ino = *dice.pick(&[near, near, near, near | 1 << 63, 0, u64::MAX, 1]).unwrap();
        let slot = dice.roll(64) as u32;
        if dice.chance(95) {
            liar.lane.opens().post(slot, ino);
            continue;
        }
        let flags = *dice.pick(&[OpenFlags::READ, OpenFlags::DIRECTORY, OpenFlags::TRUNCATE]).unwrap();
        if let Answer::Held { handle, .. } = liar.call(&Call::Claim { slot, ino, flags }) {
            liar.close(handle);
            given.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What is in the slots of posted opens is the client's word: it holds nobody up, and ends with its session.
#[test]
fn slots_of_opens_in_which_anything_may_be_harm_nobody() {
    let shared = serve();
    let (witness, liar) = (Client::connect(&shared), Client::connect(&shared));
    let shelves = [&witness, &liar].map(|client| client.control(&Control::Shelf).unwrap().unwrap());
    let files_free = || shared.service.mount().statfs().files_free;
    let (root, before, begun) = (Handle::ROOT, files_free(), Instant::now());
    let (next, given, over) = (AtomicU64::new(1), AtomicU64::new(0), AtomicBool::new(false));
    let is_over = || over.load(Ordering::Relaxed) || begun.elapsed() > Duration::from_secs(60);
    std::thread::scope(|scope| {
        scope.spawn(|| lie_in_slots(&liar, &next, &given, is_over));
        let has_met = || given.load(Ordering::Relaxed) > 0;
        for round in (0..).take_while(|round| *round < 400 || !has_met() && !is_over()) {
            assert_eq!(witness.call(&Call::Mkdir { at: root, path: b"dir", mode: 0o755 }), Answer::Done);
            witness.close(witness.create("file"));
            for (name, flags) in [("dir", OpenFlags::DIRECTORY), ("file", OpenFlags::READ)] {
                witness.close(witness.open(name, flags).unwrap());
                let Answer::Status(stat) = witness.call(&Call::Stat(named(name))) else { panic!("{round}") };
                next.store(stat.ino, Ordering::Relaxed);
                let chmod = Call::Chmod { object: named(name), mode: 0o700 };
                assert!(round % 3 > 0 || witness.call(&chmod) == Answer::Done, "{round}");
            }
            assert_eq!(witness.call(&Call::Rmdir { at: root, path: b"dir" }), Answer::Done);
            assert_eq!(witness.call(&Call::Unlink { at: root, path: b"file" }), Answer::Done);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(given.into_inner() > 0, "no lie met anything");
    drop((shelves, liar));
    until("what it had is given back", || files_free() == before);
}

#[test]
fn a_lane_cannot_be_cut_short_under_the_server() {
    let shared = serve();
    let liar = Liar::new(&shared);
    for bytes in [0, 4096, LANE_BYTES as u64 * 2] {
        assert_eq!(rustix::fs::ftruncate(&liar.fd, bytes), Err(rustix::io::Errno::PERM));
    }
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    // Its own bytes are its own to lose.
    let _ = rustix::fs::fallocate(&liar.fd, punch, 0, 4096);
    let witness = Client::connect(&shared);
    let file = witness.create("file");
    honest(&witness, file, 1);
}

fn handle() -> impl Strategy<Value = Handle> {
    prop_oneof![3 => (0..12u64).prop_map(Handle), 1 => any::<u64>().prop_map(Handle)]
}

/// A call that a liar could make, by the bytes of its message; the paths are short and strange.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let path = || {
        prop_oneof![
            Just(b"a".to_vec()),
            Just(b"/..//./a/b".to_vec()),
            Just(vec![0]),
            Just(vec![b'x'; 5000]),
            proptest::collection::vec(any::<u8>(), 0..20),
        ]
    };
    let number = || prop_oneof![Just(0), Just(u64::MAX), Just(i64::MAX as u64), any::<u64>()];
    let bytes = |call: &Call<'_>| {
        let mut bytes = vec![0; 20_000];
        let len = postcard::to_slice(call, &mut bytes).unwrap().len();
        bytes.truncate(len);
        bytes
    };
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..64),
        (handle(), path(), any::<u32>(), any::<u32>()).prop_map(move |(at, path, flags, mode)| {
            let object = Object::Path { at, path: &path, follow: Follow::Yes };
            bytes(&Call::Open { object, flags: OpenFlags(flags), mode })
        }),
        (handle(), number(), any::<u32>()).prop_map(move |(handle, offset, length)| {
            bytes(&Call::Read { handle, offset: Some(offset), bytes: length })
        }),
        (handle(), number(), 0..5000u32, any::<bool>()).prop_map(move |(handle, offset, length, sync)| {
            bytes(&Call::Write { handle, offset: Some(offset % (1 << 57)), bytes: length, sync })
        }),
        (handle(), number(), number()).prop_map(move |(handle, start, end)| {
            let kind = Some(LockKind::Exclusive);
            let range = LockRange { start, end };
            bytes(&Call::Lock { handle, class: LockClass::Process, range, kind })
        }),
        (handle(), any::<bool>())
            .prop_map(move |(handle, last)| { bytes(&Call::Close { handle, last, record_locks: true }) }),
        (handle(), any::<bool>()).prop_map(move |(handle, write)| bytes(&Call::Unmap { handle, write })),
        (handle(), path(), path()).prop_map(move |(at, old, new)| {
            bytes(&Call::Rename { from: at, old: &old, to: at, new: &new, flags: Default::default() })
        }),
        (handle(), number()).prop_map(move |(handle, size)| {
            bytes(&Call::Truncate { object: Object::Held(handle), bytes: size })
        }),
        (handle(), any::<Option<u64>>(), any::<u32>())
            .prop_map(move |(handle, after, room)| bytes(&Call::ReadDir { handle, after, bytes: room })),
    ]
}

#[test]
fn random_messages_harm_nobody() {
    let shared = serve();
    let witness = Client::connect(&shared);
    let file = witness.create("witness");
    let liar = std::cell::RefCell::new(Liar::new(&shared));
    let config = ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&(message(), 0..5000u32), |(message, data)| {
            let mut liar = liar.borrow_mut();
            if liar.socket.is_gone() {
                *liar = Liar::new(&shared);
            }
            liar.memory.write(64, &message[..message.len().min(MESSAGE_BYTES_MAX)]);
            liar.call(message.len().min(MESSAGE_BYTES_MAX) as u32, data, 1);
            liar.answered();
            honest(&witness, file, u64::from(data));
            Ok(())
        })
        .unwrap();
    drop(liar);
    until("only the witness is left", || shared.service.sessions() == 1 && shared.service.processes() == 1);
    let size = witness.size(file);
    assert_eq!(size, 8, "the witness's file is what it wrote");
}

#[test]
fn random_packets_end_their_connection_only() {
    let shared = serve();
    let witness = Client::connect(&shared);
    let file = witness.create("file");
    let Address::Abstract { name, .. } = &shared.address else { panic!("a run's address") };
    let connect = || {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        socket
    };
    let packets: [&[u8]; 6] = [b"", b"x", &[0xff; 100], &[0; 60_000], &[7; 65_536], &[1, 1]];
    for packet in packets {
        let socket = connect();
        let _ = rustix::net::send(&socket, packet, SendFlags::NOSIGNAL);
        let mut answer = [0; 64];
        // An answer that refuses, or the end; both come.
        let _ = rustix::net::recv(&socket, &mut answer, rustix::net::RecvFlags::empty());
        honest(&witness, file, packet.len() as u64);
    }
    // Some that say nothing at all.
    let silent: Vec<_> = (0..50).map(|_| connect()).collect();
    honest(&witness, file, 7);
    drop(silent);
    until("they are forgotten", || shared.service.sessions() == 1);
}

#[test]
fn who_asks_without_listening_is_hung_up_on() {
    let shared = serve();
    let witness = Client::connect(&shared);
    let file = witness.create("file");
    let socket = Socket::connect(&shared.address).unwrap();
    let _ = ask(&socket, &hello(shared.address.secret()), None);
    let asked = (0..100_000).find(|_| socket.try_send(&Control::Statistics, None).is_err());
    assert!(asked.is_some(), "it takes questions for ever");
    honest(&witness, file, 1);
    until("its session is ended", || {
        let _ = socket.try_send(&Control::Statistics, None);
        shared.service.sessions() == 1
    });
}

#[test]
fn descriptors_lanes_and_heirs_have_limits() {
    let shared = serve();
    let witness = Client::connect(&shared);
    let file = witness.create("file");
    let greedy = Client::connect(&shared);
    let mut lanes = Vec::new();
    let refused = loop {
        match ask(&greedy.socket, &Control::Lane, None) {
            (ControlAnswer::Done, Some(fd)) => lanes.push(fd),
            (ControlAnswer::Failed(errno), None) => break errno,
            other => panic!("{other:?}"),
        }
    };
    // It has one from its beginning.
    assert_eq!((refused, lanes.len()), (libc::EMFILE, 63));
    // A descriptor where none belongs is closed; two at once are no message.
    let stray = rustix::fs::memfd_create("stray", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    for _ in 0..2000 {
        let (answer, _) = ask(&greedy.socket, &Control::Receive, Some(&stray));
        assert_eq!(answer, ControlAnswer::Failed(libc::EBADF));
    }
    honest(&witness, file, 1);
    let heirs: Vec<_> = (0..100).map(|_| greedy.heir(&[], false).unwrap()).collect();
    let adopted = Client::adopt(heirs.into_iter().next().unwrap());
    let twice = ask(&adopted.socket, &Control::Adopt { version: VERSION }, None).0;
    assert_eq!(twice, ControlAnswer::Failed(libc::EINVAL), "adopted once");
    drop((greedy, adopted));
    until("all of it is gone", || shared.service.sessions() == 1 && shared.service.lanes() == 1);
    honest(&witness, file, 2);
}

#[test]
fn a_client_that_does_not_go_on_stops_nobody() {
    let shared = serve();
    let (stopped, witness) = (Liar::new(&shared), Client::connect(&shared));
    let file = witness.create("file");
    // It has called, and never looks at the answer; it was being served when it was stopped.
    let mut bytes = [0; 16];
    let len = postcard::to_slice(&Call::Ping, &mut bytes).unwrap().len();
    stopped.memory.write(64, &bytes[..len]);
    stopped.call(len as u32, 0, 1);
    for round in 0..100 {
        honest(&witness, file, round);
    }
    assert_eq!(witness.call(&Call::SyncAll), Answer::Done);
    assert!(stopped.answered(), "and the answer waits for it");
}

#[test]
fn who_never_says_hello_is_hung_up_on() {
    let shared = serve_within(Limits { hello: Duration::from_millis(100), ..Limits::RUN });
    let greeted = |asked: Socket| {
        // On a busy machine even a greeting comes too late, and its sender has to try again.
        asked.send(&hello(shared.address.secret()), None).ok()?;
        asked.receive::<ControlAnswer>(None).ok().map(|_| asked)
    };
    let session = loop {
        if let Some(session) = greeted(Socket::connect(&shared.address).unwrap()) {
            break session;
        }
    };
    let silent: Vec<_> = (0..3).map(|_| Socket::connect(&shared.address).unwrap()).collect();
    for socket in silent {
        assert_eq!(socket.receive::<ControlAnswer>(None).unwrap_err(), SocketError::Gone);
    }
    // It is older than they were.
    assert_eq!(ask(&session, &Control::Lane, None).0, ControlAnswer::Done);
    assert_eq!(shared.service.sessions(), 1);
}

/// Lets everybody in; who asks for the tree `later`, when it is told to.
struct Door {
    files: FileSystem,
    open: Mutex<Receiver<()>>,
}

impl Gate for Door {
    fn admit(&self, _: &Peer, tree: &[u8]) -> Result<Admitted, FsError> {
        if tree == b"later" {
            self.open.lock().unwrap().recv().unwrap();
        }
        Ok(Admitted { files: self.files.clone(), tree: Arc::default(), may_be_urgent: false })
    }

    fn changes(&self) -> u64 {
        0
    }
}

/// A server that lets everybody in, `later` at a word.
fn serve_behind_a_door() -> (Shared, Sender<()>) {
    let (tell, open) = channel();
    let mount = mount();
    let door = Door { files: FileSystem::clone(&mount), open: Mutex::new(open) };
    let board = Arc::new(Board::new().unwrap());
    let service = Arc::new(Service::new(mount, Admission::Gate(Arc::new(door)), board, 1 << 20));
    let address = Address::random().unwrap();
    let server = Server::start(Arc::clone(&service), &address).unwrap();
    (Shared { service, server, address }, tell)
}

/// A session may say that it is urgent as it likes: a run's is believed, any other only as far as the kernel says so.
#[test]
fn who_is_urgent_is_not_for_a_stranger_to_say() {
    let (machine, _tell) = serve_behind_a_door();
    let stranger = Client::greet(Socket::connect(&machine.address).unwrap(), &hello(&[]));
    let run = serve();
    let friend = Client::connect(&run);
    let is_so = caller::of_process(std::process::id()).is_urgent();
    for (client, shared, is_believed) in [(&stranger, &machine, is_so), (&friend, &run, true)] {
        for says in [false, true] {
            client.lane.say_urgent(says);
            let file = client.create("file");
            assert_eq!(client.call(&Call::Sync { handle: file, data_only: false }), Answer::Done);
            assert_eq!(shared.service.mount().device().has_urgent(), says && is_believed);
        }
    }
}

/// Closing a socket that lingers waits for its other end: for two minutes here, if nobody ends it.
#[test]
fn a_descriptor_that_waits_when_it_is_closed_stops_nobody() {
    let Ok(door) = TcpListener::bind("127.0.0.1:0") else {
        println!("SKIPPED: no loopback network, to have a socket that lingers");
        return;
    };
    let near = std::net::TcpStream::connect(door.local_addr().unwrap()).unwrap();
    let (far, _) = door.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&near, Some(Duration::from_secs(120))).unwrap();
    near.set_nonblocking(true).unwrap();
    while (&near).write(&[7; 1 << 16]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    let (shared, tell) = serve_behind_a_door();
    let liar = Socket::connect(&shared.address).unwrap();
    let tree = b"later".to_vec();
    let later = Control::Hello { version: VERSION, secret: Vec::new(), tree, again: None };
    liar.send(&later, None).unwrap();
    liar.send(&Control::Receive, Some(near.as_fd())).unwrap();
    // Nobody takes the second message before the first is answered, so that the server has the last copy.
    drop(near);
    tell.send(()).unwrap();
    assert!(matches!(liar.receive(None).unwrap().0, ControlAnswer::Welcome(_)));
    for round in 0..3 {
        let witness = Client::greet(Socket::connect(&shared.address).unwrap(), &hello(&[]));
        let file = witness.create("file");
        honest(&witness, file, round);
    }
    let early = liar.receive::<ControlAnswer>(Some(Duration::ZERO)).map(drop);
    assert_eq!(early, Err(SocketError::Host(Errno::AGAIN)), "it is closed before its sender is answered");
    drop(far);
    let (answer, _) = liar.receive::<ControlAnswer>(None).unwrap();
    assert_eq!(answer, ControlAnswer::Failed(libc::EBADF));
}

/// A program that starts a thousand others, each with a hundred files.
#[test]
fn a_tree_of_a_thousand_processes_fits() {
    let (shared, _tell) = serve_behind_a_door();
    let parent = Client::greet(Socket::connect(&shared.address).unwrap(), &hello(&[]));
    let held: Vec<_> = (0..100).map(|number| (-1, parent.create(&format!("file{number}")))).collect();
    let children: Vec<_> = (0..1000).map(|_| parent.heir(&held, false).unwrap()).collect();
    assert_eq!(shared.service.list().iter().map(|session| session.handles()).sum::<usize>(), 100_100);
    drop(children);
    until("they end", || shared.service.sessions() == 1);
    honest(&parent, held[0].1, 1);
}

#[test]
fn handles_end_where_the_users_do() {
    let shared = serve_within(Limits { handles: 200, ..Limits::RUN });
    let (one, other) = (Client::connect(&shared), Client::connect(&shared));
    let read = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let mine: Vec<_> = (0..150).map(|_| one.create("file")).collect();
    let theirs: Vec<_> = std::iter::from_fn(|| other.open("file", read).ok()).collect();
    // What one session holds in advance the other cannot have.
    assert!((8..=50).contains(&theirs.len()), "{}", theirs.len());
    assert_eq!(other.open("file", read), Err(libc::ENFILE));
    assert_eq!(other.heir(&[(3, theirs[0])], false).err(), Some(libc::ENFILE));
    honest(&one, mine[0], 1);
    drop(one);
    until("its handles are free", || shared.service.sessions() == 1);
    let more = (0..100).map(|_| other.open("file", read)).filter(Result::is_ok).count();
    assert_eq!(more, 100);
}
