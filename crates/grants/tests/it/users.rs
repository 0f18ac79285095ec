//! Users of one device, each with the kernel's word for who he is: what was not granted is tried, and refused.

use crate::machine::{ALICE, BOB, Machine, as_user, greeting};
use crate::support::{Client, named, until};
use nvmed_fs::{LockKind, LockRange, OpenFlags, RenameFlags};
use nvmed_grants::{Quota, Reply, Request, Size, ask};
use nvmed_server::Limits;
use nvmed_wire::{
    Answer, Call, Control, ControlAnswer, Handle, LockClass, Object, Socket, SocketError, VERSION,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;

const MADE: OpenFlags = OpenFlags::CREATE.with(OpenFlags::READ_WRITE);

const fn raw(errno: Errno) -> i32 {
    errno.raw_os_error()
}

fn failed(answer: &Answer) -> Option<i32> {
    match answer {
        Answer::Failed(errno) => Some(*errno),
        _ => None,
    }
}

#[test]
fn a_user_reaches_nothing_of_another_user() {
    let Some(machine) = Machine::new("apart") else { return };
    machine.grant("alice", ALICE, true);
    machine.grant("bob", BOB, true);
    let alice = as_user(ALICE, || machine.session(""));
    let secret = alice.create("/secret");
    alice.pwrite(secret, 0, b"secret");
    as_user(BOB, || {
        for tree in ["alice", "/alice", "../alice", "..", "bob/../alice", "bob\0", "root"] {
            assert_eq!(machine.greet(tree).err(), Some(raw(Errno::ACCESS)), "{tree:?}");
        }
        let bob = machine.session("bob");
        assert_eq!(bob.names("/"), [""; 0]);
        for path in ["/secret", "/alice/secret", "alice", "/bob"] {
            assert_eq!(bob.open(path, OpenFlags::READ).err(), Some(raw(Errno::NOENT)), "{path}");
        }
        for path in ["..", "../alice/secret", "/../alice/secret", "./.././alice"] {
            let answer = bob.call(&Call::Stat(named(path)));
            assert!(matches!(answer, Answer::Away(_)), "{path}: {answer:?}");
        }
        for (link, target) in
            [("up", "../alice/secret"), ("whole", "/alice/secret"), ("self", "/proc/self/fd/3")]
        {
            let made = Call::Symlink { target: target.as_bytes(), at: Handle::ROOT, path: link.as_bytes() };
            assert_eq!(bob.call(&made), Answer::Done);
            let open = Call::Open { object: named(link), flags: OpenFlags::READ, mode: 0 };
            assert!(matches!(bob.call(&open), Answer::Away(_)), "{link}");
        }
        // Numbers of others' handles, and any other number.
        for number in (1..64).chain([u64::MAX, 1 << 32, secret.0]) {
            let handle = Handle(number);
            let held = Object::Held(handle);
            assert_eq!(failed(&bob.call(&Call::Stat(held))), Some(raw(Errno::BADF)), "{number}");
            let read = Call::Read { handle, offset: Some(0), bytes: 16 };
            assert_eq!(failed(&bob.call(&read)), Some(raw(Errno::BADF)));
            let at = Call::Stat(Object::Path { at: handle, path: b"secret", follow: nvmed_fs::Follow::Yes });
            assert_eq!(failed(&bob.call(&at)), Some(raw(Errno::BADF)));
            let link = Call::Link { object: held, to: Handle::ROOT, new: b"got" };
            assert_eq!(failed(&bob.call(&link)), Some(raw(Errno::BADF)));
            assert!(bob.control(&Control::Map { handle, write: false }).is_err());
            assert!(bob.control(&Control::Window { handle }).is_err());
            assert!(bob.control(&Control::Send { handle }).is_err());
            assert!(bob.heir(&[(5, handle)], false).is_err());
        }
        for new in ["../alice/put", "/../alice/put"] {
            bob.create("/mine");
            let rename = Call::Rename {
                from: Handle::ROOT,
                old: b"mine",
                to: Handle::ROOT,
                new: new.as_bytes(),
                flags: RenameFlags::Replace,
            };
            assert!(matches!(bob.call(&rename), Answer::Away(_)), "{new}");
        }
        let status = bob.call(&Call::StatFs);
        assert!(matches!(status, Answer::FileSystem(_)));
    });
    assert_eq!(alice.names("/"), ["secret"]);
    // A session cannot become another user's tree by a change of ids.
    let taken = alice.welcome.secret;
    as_user(BOB, || {
        let socket = Socket::connect(&machine.address).unwrap();
        let again = Control::Hello { version: VERSION, secret: vec![], tree: vec![], again: Some(taken) };
        assert_eq!(crate::support::ask(&socket, &again, None).0, ControlAnswer::Failed(raw(Errno::ACCESS)));
    });
    until("the session of whom it was tried is over", || alice.socket.is_gone());
}

#[test]
fn who_may_read_cannot_write_by_any_way() {
    let Some(machine) = Machine::new("read") else { return };
    machine.grant("alice", ALICE, false);
    let root = machine.session("");
    let file = root.create("/alice/file");
    root.pwrite(file, 0, &[7; 8192]);
    let chown = |path| Call::Chown { object: named(path), uid: Some(ALICE), gid: None };
    assert_eq!(root.call(&chown("/alice/file")), Answer::Done);
    as_user(ALICE, || {
        let alice = machine.session("");
        let rofs = Some(raw(Errno::ROFS));
        for flags in [OpenFlags::WRITE, OpenFlags::READ_WRITE, OpenFlags::TRUNCATE] {
            assert_eq!(alice.open("/file", flags).err(), rofs);
        }
        assert_eq!(alice.open("/new", MADE).err(), rofs);
        let handle = alice.open("/file", OpenFlags::READ).unwrap();
        let held = Object::Held(handle);
        let write = Call::Write { handle, offset: Some(0), bytes: 1, sync: false };
        assert!(failed(&alice.try_call(&write, b"x").0).is_some());
        assert_eq!(failed(&alice.call(&Call::Chmod { object: held, mode: 0o777 })), rofs);
        assert_eq!(failed(&alice.call(&Call::Chown { object: held, uid: Some(0), gid: None })), rofs);
        assert!(failed(&alice.call(&Call::Truncate { object: held, bytes: 0 })).is_some());
        assert_eq!(failed(&alice.call(&Call::Truncate { object: named("/file"), bytes: 0 })), rofs);
        assert_eq!(failed(&alice.call(&Call::Unlink { at: Handle::ROOT, path: b"file" })), rofs);
        let allocate = Call::Allocate { handle, how: nvmed_fs::Allocate::default(), offset: 0, bytes: 9000 };
        assert!(failed(&alice.call(&allocate)).is_some());
        assert!(alice.control(&Control::Map { handle, write: true }).is_err(), "no stores by a mapping");
        // What is given to be read cannot be made writable by opening it anew. What is one's own can: the test tests.
        let own = rustix::fs::memfd_create("own", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let again = format!("/proc/self/fd/{}", own.as_raw_fd());
        rustix::fs::open(&again, OFlags::RDWR, Mode::empty()).expect("a process opens its own anew");
        let map = alice.control(&Control::Map { handle, write: false }).unwrap().unwrap();
        let window = alice.control(&Control::Window { handle }).ok().flatten();
        for memory in [Some(map), window].into_iter().flatten() {
            assert!(rustix::io::pwrite(&memory, b"x", 0).is_err());
            assert!(rustix::fs::ftruncate(&memory, 0).is_err());
            let again = format!("/proc/self/fd/{}", memory.as_raw_fd());
            let opened = rustix::fs::open(&again, OFlags::RDWR, Mode::empty());
            assert!(opened.is_err(), "opened {again} to write");
        }
    });
    assert_eq!(root.pread(file, 0, 8192), [7; 8192]);
}

#[test]
fn two_clients_race_to_the_quota_and_neither_passes_it() {
    let Some(machine) = Machine::new("race") else { return };
    machine.grant("alice", ALICE, true);
    let limits = Quota { capacity: Some(Size(1 << 20)), ..Quota::default() };
    machine.ask(Request::Quota { name: "alice".to_owned(), limits });
    let written = std::thread::scope(|scope| {
        let writer = |name: &'static str| {
            let machine = &machine;
            scope.spawn(move || {
                as_user(ALICE, || {
                    let client = machine.session("alice");
                    let handle = client.create(name);
                    let mut done = 0;
                    loop {
                        let write = Call::Write { handle, offset: Some(done), bytes: 12_288, sync: false };
                        match client.try_call(&write, &[1; 12_288]).0 {
                            Answer::Written { bytes, .. } => done += u64::from(bytes),
                            answer => break (done, failed(&answer)),
                        }
                    }
                })
            })
        };
        ["/one", "/two"].map(writer).map(|thread| thread.join().unwrap())
    });
    assert!(written.iter().all(|(_, errno)| *errno == Some(raw(Errno::DQUOT))), "{written:?}");
    let total: u64 = written.iter().map(|(bytes, _)| bytes).sum();
    assert_eq!(total, 1 << 20, "all of it and nothing more");
    let told = machine.ask(Request::Grants);
    assert_eq!(told["trees"][0]["bytes_used"], 1 << 20, "{told}");
}

/// However many of everything one user takes, the other finds his.
#[test]
fn a_user_takes_no_more_than_his_share() {
    let limits = Limits { sessions: 3, lanes: 5, silent: 2, ..Limits::MACHINE };
    let Some(machine) = Machine::within("share", limits) else { return };
    machine.grant("alice", ALICE, true);
    machine.grant("bob", BOB, true);
    let full = Some(raw(Errno::MFILE));
    let connect = || Socket::connect(&machine.address).unwrap();
    // Asked one after the other, or one that said hello a moment ago would count as silent, too.
    let session = || Client::greet(connect(), &greeting(""));
    let (alice, more, heir, silent) = as_user(ALICE, || {
        let (alice, more) = (session(), session());
        let heir = alice.heir(&[], false).unwrap();
        assert_eq!(alice.heir(&[], false).err(), full);
        assert_eq!(machine.greet("").err(), full);
        for _ in 0..3 {
            alice.control(&Control::Lane).unwrap();
        }
        assert_eq!(more.control(&Control::Lane).err(), full, "a lane");
        until("nobody is silent", || machine.service.silent() == 0);
        let silent = [connect(), connect()];
        let third = connect();
        assert_eq!(third.receive::<ControlAnswer>(None).unwrap_err(), SocketError::Gone);
        (alice, more, heir, silent)
    });
    let bob = as_user(BOB, || {
        let bob = session();
        let heir = bob.heir(&[], false).unwrap();
        bob.control(&Control::Lane).unwrap();
        let file = bob.create("/file");
        bob.pwrite(file, 0, b"mine");
        (bob, heir, connect())
    });
    drop((alice, more, heir, silent));
    until("she is gone", || {
        let service = &machine.service;
        (service.sessions(), service.lanes(), service.silent()) == (2, 2, 1)
    });
    as_user(ALICE, || drop(session()));
    drop(bob);
}

/// Takes one after the other until the server refuses; how many there were, and why.
fn all<T>(mut take: impl FnMut(usize) -> Result<T, i32>) -> (Vec<T>, i32) {
    let mut taken = Vec::new();
    loop {
        match take(taken.len()) {
            Ok(one) => taken.push(one),
            Err(errno) => return (taken, errno),
        }
    }
}

fn lock_byte(client: &Client, handle: Handle, class: LockClass, byte: usize) -> Result<(), i32> {
    let range = LockRange { start: 2 * byte as u64, end: 2 * byte as u64 + 1 };
    match client.call(&Call::Lock { handle, class, range, kind: Some(LockKind::Exclusive) }) {
        Answer::Done => Ok(()),
        Answer::Failed(errno) => Err(errno),
        other => panic!("{other:?}"),
    }
}

/// The first names of a directory, told to a description of its own.
fn list(client: &Client) -> Result<Handle, i32> {
    let directory = client.open("/", OpenFlags::READ.with(OpenFlags::DIRECTORY))?;
    match client.call(&Call::ReadDir { handle: directory, after: None, bytes: 4096 }) {
        Answer::Entries { .. } => Ok(directory),
        Answer::Failed(errno) => Err(errno),
        other => panic!("{other:?}"),
    }
}

/// Whatever one user has the server hold, it ends with an error of his own, and the other has his.
#[test]
fn what_a_user_holds_ends_and_leaves_the_other_his() {
    let limits = Limits {
        handles: 200,
        messages: 5,
        locks: 20,
        names: 4000,
        maps: 3,
        mapped: 1 << 20,
        ..Limits::MACHINE
    };
    let Some(machine) = Machine::within("holds", limits) else { return };
    machine.grant("alice", ALICE, true);
    machine.grant("bob", BOB, true);
    let session = || Client::greet(Socket::connect(&machine.address).unwrap(), &greeting(""));
    let (full, no_memory) = (raw(Errno::NFILE), raw(Errno::NOMEM));
    let take_all = || {
        let (one, other) = (session(), session());
        let file = one.create("/file");
        for number in 0..20 {
            one.close(one.create(&format!("/a name that is kept {number}")));
        }
        let (sent, errno) = all(|_| other.control(&Control::Send { handle: Handle::ROOT }));
        assert_eq!((sent.len(), errno), (5, full), "messages");
        let (locked, errno) = all(|byte| lock_byte(&one, file, LockClass::Process, byte));
        // The last one might have split another: room for two is asked for.
        assert_eq!((locked.len(), errno), (19, raw(Errno::NOLCK)), "locks");
        let theirs = other.open("/file", OpenFlags::READ_WRITE).unwrap();
        assert_eq!(lock_byte(&other, theirs, LockClass::Description, 50), Err(raw(Errno::NOLCK)));
        let unlock = Call::Lock {
            handle: file,
            class: LockClass::Process,
            range: LockRange { start: 0, end: 10 },
            kind: None,
        };
        assert_eq!(one.call(&unlock), Answer::Done, "giving back is always possible");
        assert_eq!(lock_byte(&other, theirs, LockClass::Description, 50), Ok(()));
        let (listed, errno) = all(|_| list(&one));
        assert!(errno == no_memory && (2..10).contains(&listed.len()), "names: {errno} {}", listed.len());
        let (mapped, errno) = all(|number| {
            let file = one.create(&format!("/mapped{number}"));
            one.control(&Control::Map { handle: file, write: false })
        });
        assert_eq!((mapped.len(), errno), (3, full), "maps");
        let (opened, errno) = all(|_| other.open("/file", OpenFlags::READ));
        assert!(errno == full && opened.len() > 100, "handles: {errno} {}", opened.len());
        (one, other, sent)
    };
    let (one, other, sent) = as_user(ALICE, take_all);
    let bobs = as_user(BOB, take_all);
    drop((one, other, sent, bobs));
    until("they are gone", || machine.service.sessions() == 0 && machine.service.messages() == 0);
    drop(as_user(ALICE, take_all));
}

/// Medians of a user's calls, in nanoseconds.
fn medians(client: &Client) -> Vec<(&'static str, u128)> {
    const ROUNDS: usize = 4000;
    let file = client.create("/measured");
    let stat = || assert!(matches!(client.call(&Call::Stat(named("/measured"))), Answer::Status(_)));
    let open = || client.close(client.open("/measured", OpenFlags::READ).unwrap());
    let write = || client.pwrite(file, 0, &[1; 4096]);
    let lock = || {
        lock_byte(client, file, LockClass::Process, 1).unwrap();
        client.close(client.open("/measured", OpenFlags::READ).unwrap());
    };
    let send = || drop(client.control(&Control::Send { handle: file }).unwrap());
    let heir = || drop(client.heir(&[(3, file)], false).unwrap());
    let calls: [(&str, usize, &dyn Fn()); 6] = [
        ("stat", ROUNDS, &stat),
        ("open, close", ROUNDS, &open),
        ("write of 4 KiB", ROUNDS, &write),
        ("lock, open, close", ROUNDS, &lock),
        ("send a descriptor", 500, &send),
        ("heir of a fork", 500, &heir),
    ];
    let median = |rounds: usize, call: &dyn Fn()| {
        let mut times: Vec<_> = (0..rounds)
            .map(|_| {
                let begun = std::time::Instant::now();
                call();
                begun.elapsed().as_nanos()
            })
            .collect();
        times.sort_unstable();
        times[rounds / 2]
    };
    calls.into_iter().map(|(name, rounds, call)| (name, median(rounds, call))).collect()
}

/// What a call costs one user, alone and beside another who has all that he may have.
#[test]
#[ignore = "measures, for docs/serve.md: run it alone, with --nocapture"]
fn measure_a_user_beside_one_at_every_limit() {
    let Some(machine) = Machine::new("beside") else { return };
    machine.grant("alice", ALICE, true);
    machine.grant("bob", BOB, true);
    let session = || Client::greet(Socket::connect(&machine.address).unwrap(), &greeting(""));
    let alone = as_user(BOB, || medians(&session()));
    let hers = as_user(ALICE, || {
        let one = session();
        let file = one.create("/file");
        // One that is there for a session to be left for the rest.
        let heirs = all(|_| one.heir(&[], false));
        let messages = all(|_| one.control(&Control::Send { handle: file }));
        let locks =
            all(|byte| if byte < 4000 { lock_byte(&one, file, LockClass::Process, byte) } else { Err(0) });
        let opened = all(|_| one.open("/file", OpenFlags::READ));
        println!(
            "{} sessions, {} messages, {} locks, {} handles",
            heirs.0.len() + 1,
            messages.0.len(),
            4000,
            opened.0.len()
        );
        assert_eq!(
            (heirs.1, messages.1, opened.1),
            (raw(Errno::MFILE), raw(Errno::NFILE), raw(Errno::NFILE))
        );
        (one, heirs, messages, locks)
    });
    let beside = as_user(BOB, || medians(&session()));
    for ((call, alone), (_, beside)) in alone.iter().zip(&beside) {
        println!("{call}: {alone} ns alone, {beside} ns beside: {:.2}", *beside as f64 / *alone as f64);
    }
    drop(hers);
}

#[test]
fn a_large_file_is_mapped_by_whom_it_fits() {
    let Some(machine) = Machine::within("mapped", Limits { mapped: 1 << 20, ..Limits::MACHINE }) else {
        return;
    };
    machine.grant("alice", ALICE, true);
    as_user(ALICE, || {
        let client = Client::greet(Socket::connect(&machine.address).unwrap(), &greeting(""));
        let (large, other) = (client.create("/large"), client.create("/other"));
        client.pwrite(large, 0, &[7; 600 << 10]);
        client.pwrite(other, 0, &[7; 600 << 10]);
        assert_eq!(client.call(&Call::SyncAll), Answer::Done);
        let map = |handle| client.control(&Control::Map { handle, write: false }).map(drop);
        assert_eq!(map(large), Ok(()));
        assert_eq!(map(large), Ok(()), "its memory is there already");
        assert_eq!(map(other), Err(raw(Errno::NOMEM)));
        let unmap = Call::Unmap { handle: large, write: false };
        assert_eq!((client.call(&unmap), client.call(&unmap)), (Answer::Done, Answer::Done));
        assert_eq!(map(other), Ok(()));
    });
}

#[test]
fn a_revoked_tree_ends_for_who_uses_it() {
    let Some(machine) = Machine::new("revoke") else { return };
    machine.grant("alice", ALICE, true);
    machine.grant("bob", BOB, true);
    let bob = as_user(BOB, || machine.session(""));
    let alice = as_user(ALICE, || machine.session(""));
    let handle = alice.create("/file");
    alice.pwrite(handle, 0, b"before");
    let heir = alice.heir(&[(4, handle)], false).unwrap();
    let clients = machine.ask(Request::Clients).as_array().unwrap().clone();
    let theirs = |tree: &str| clients.iter().filter(|client| client["tree"] == tree).count();
    assert_eq!((theirs("alice"), theirs("bob")), (2, 1), "{clients:?}");
    assert!(clients.iter().any(|client| client["uid"] == ALICE && client["handles"].as_u64() > Some(0)));
    let told = machine.ask(Request::Revoke { name: "alice".to_owned() });
    assert_eq!(told["sessions_ended"], 2, "{told}");
    let write = Call::Write { handle, offset: Some(0), bytes: 5, sync: false };
    let after = alice.lane.call(&write, b"after", &alice.board, &|| !alice.socket.is_gone());
    assert!(after.is_err(), "a lane that was there answers nothing");
    assert!(Socket::of(heir).is_gone(), "nor does the session that waited for a child");
    as_user(ALICE, || {
        assert_eq!(machine.greet("alice").err(), Some(raw(Errno::ACCESS)));
        assert_eq!(machine.greet("").err(), Some(raw(Errno::ACCESS)));
    });
    bob.create("/still");
    let root = machine.session("");
    let file = root.open("/alice/file", OpenFlags::READ).unwrap();
    assert_eq!(root.pread(file, 0, 6), b"before", "and nothing was written after");
    // Granted anew, to read: the same files.
    machine.grant("alice", ALICE, false);
    assert_eq!(as_user(ALICE, || machine.session("").names("/")), ["file"]);
}

/// One user may have one tree to read and another to write: what he holds by the first he does not change by the
/// second.
#[test]
fn what_was_granted_to_read_is_not_changed_by_way_of_another_session() {
    let Some(machine) = Machine::new("launder") else { return };
    machine.grant("readable", ALICE, false);
    machine.grant("own", ALICE, true);
    let root = machine.session("");
    let file = root.create("/readable/file");
    root.pwrite(file, 0, b"kept");
    let chown = Call::Chown { object: named("/readable/file"), uid: Some(ALICE), gid: None };
    assert_eq!(root.call(&chown), Answer::Done);
    as_user(ALICE, || {
        let (reader, writer) = (machine.session("readable"), machine.session("own"));
        let opened = reader.open("/file", OpenFlags::READ).unwrap();
        let Answer::Held { handle: looked_up, .. } = reader.call(&Call::Lookup(named("/file"))) else {
            panic!("not held")
        };
        for handle in [opened, looked_up] {
            let token = reader.control(&Control::Send { handle }).unwrap().unwrap();
            let (answer, _) = crate::support::ask(&writer.socket, &Control::Receive, Some(&token));
            let ControlAnswer::Received(received) = answer else { panic!("{answer:?}") };
            let (handle, held) = (received.handle, Object::Held(received.handle));
            let rofs = Some(raw(Errno::ROFS));
            for flags in [OpenFlags::WRITE, OpenFlags::READ_WRITE, OpenFlags::TRUNCATE] {
                assert_eq!(failed(&writer.call(&Call::Open { object: held, flags, mode: 0 })), rofs);
            }
            assert_eq!(failed(&writer.call(&Call::Chmod { object: held, mode: 0o777 })), rofs);
            assert!(
                failed(&writer.call(&Call::Link { object: held, to: Handle::ROOT, new: b"got" })).is_some()
            );
            assert!(failed(&writer.call(&Call::Truncate { object: held, bytes: 0 })).is_some());
            let write = Call::Write { handle, offset: Some(0), bytes: 1, sync: false };
            assert!(failed(&writer.try_call(&write, b"x").0).is_some());
        }
    });
    assert_eq!(root.pread(file, 0, 4), b"kept");
}

#[test]
fn only_the_owner_administers() {
    let Some(machine) = Machine::new("admin") else { return };
    machine.grant("alice", ALICE, true);
    let socket = machine.dir.join("admin");
    let requests =
        [Request::Status, Request::Clients, Request::Revoke { name: "alice".to_owned() }, Request::Drain];
    let refused = |why: &str| {
        for request in &requests {
            let said = as_user(ALICE, || ask(&socket, request, false, |_| {}));
            assert!(matches!(said, Err(_) | Ok(Reply::Failed(_))), "{why}: {request:?}: {said:?}");
        }
        assert_eq!(machine.keeper.table().trees.len(), 1);
        assert!(!machine.keeper.is_draining());
    };
    refused("by the socket's mode");
    // Should the mode ever be wrong, the kernel still says who it is.
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    refused("by its user");
    let status = machine.ask(Request::Status);
    assert_eq!(status["draining"], false, "{status}");
    for line in ["", "{}", "\"status\" x", "{\"revoke\":1}", "\u{0}"] {
        use std::io::{Read, Write};
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("{\"failed\""), "{line:?}: {answer}");
    }
}

#[test]
fn a_drained_server_ends_with_its_last_session() {
    let Some(mut machine) = Machine::new("drain") else { return };
    machine.grant("alice", ALICE, true);
    let alice = as_user(ALICE, || machine.session(""));
    let handle = alice.create("/file");
    let admin = machine.dir.join("admin");
    let (told, answered) = std::sync::mpsc::channel();
    let waits = std::thread::spawn(move || {
        ask(&admin, &Request::Drain, true, |said| told.send(said.clone()).unwrap())
    });
    assert!(matches!(answered.recv().unwrap(), Reply::Done(_)));
    assert_eq!(as_user(ALICE, || machine.greet("").err()), Some(raw(Errno::SHUTDOWN)));
    alice.pwrite(handle, 0, b"goes on");
    assert_eq!(alice.pread(handle, 0, 7), b"goes on");
    assert!(!waits.is_finished());
    drop(alice);
    machine.server.take().unwrap().wait();
    assert_eq!(machine.service.sessions(), 0);
    machine.service.mount().unmount().unwrap();
    drop(machine.admin.take());
    assert!(waits.join().unwrap().is_ok());
}
