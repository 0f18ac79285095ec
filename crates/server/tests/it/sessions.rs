//! Sessions: what one process does is what the others see, and what it held goes with it.

use crate::support::{Client, ask, hello, named, serve, until};
use nvmed_fs::{Follow, LockKind, LockOwner, LockRange, OpenFlags, RenameFlags, Whence};
use nvmed_wire::{
    Answer, Call, Control, ControlAnswer, Handle, LockClass, Object, Socket, TOLD_AT_ONCE, VERSION,
};

const EAGAIN: Answer = Answer::Failed(libc::EAGAIN);

fn lock(handle: Handle, class: LockClass, kind: Option<LockKind>) -> Call<'static> {
    Call::Lock { handle, class, range: LockRange { start: 0, end: 10 }, kind }
}

#[test]
fn a_client_opens_writes_reads_and_closes() {
    let shared = serve();
    let client = Client::connect(&shared);
    let file = client.create("file");
    client.pwrite(file, 0, b"written");
    assert_eq!(client.pread(file, 2, 100), b"itten");
    assert_eq!(client.names("/"), ["file"]);
    client.close(file);
    assert_eq!(client.read_at(file, Some(0), 1), Err(libc::EBADF), "it is closed");
    assert_eq!(client.open("none", OpenFlags::READ), Err(libc::ENOENT));
    drop(client);
    until("the session ends", || shared.service.sessions() == 0 && shared.service.processes() == 0);
}

#[test]
fn two_processes_see_one_file_system() {
    let shared = serve();
    let (one, other) = (Client::connect(&shared), Client::connect(&shared));
    let appends = OpenFlags::READ_WRITE.with(OpenFlags::CREATE).with(OpenFlags::APPEND);
    let (mine, theirs) = (one.open("log", appends).unwrap(), other.open("log", appends).unwrap());
    assert_eq!(one.write(mine, b"one."), 4);
    assert_eq!(other.write(theirs, b"two."), 8);
    assert_eq!(one.write(mine, b"one."), 12);
    assert_eq!(other.pread(theirs, 0, 100), b"one.two.one.");
    let rename = Call::Rename {
        from: Handle::ROOT,
        old: b"log",
        to: Handle::ROOT,
        new: b"renamed",
        flags: RenameFlags::Replace,
    };
    assert_eq!(one.call(&rename), Answer::Done);
    assert_eq!(other.names("/"), ["renamed"]);
    assert_eq!(other.call(&Call::Unlink { at: Handle::ROOT, path: b"renamed" }), Answer::Done);
    assert_eq!(one.pread(mine, 4, 4), b"two.", "unlinked, and open");
    assert_eq!(one.call(&Call::Truncate { object: Object::Held(mine), bytes: 2 }), Answer::Done);
    assert_eq!(other.pread(theirs, 0, 100), b"on");
}

#[test]
fn a_session_uses_what_it_holds_and_nothing_else() {
    let shared = serve();
    let (one, other) = (Client::connect(&shared), Client::connect(&shared));
    let file = one.create("file");
    for handle in [file, Handle(file.0 + 1), Handle(u64::MAX)] {
        assert_eq!(other.read_at(handle, Some(0), 1), Err(libc::EBADF));
        let close = Call::Close { handle, last: true, record_locks: true };
        assert_eq!(other.call(&close), Answer::Failed(libc::EBADF));
        assert_eq!(other.control(&Control::Send { handle }).err(), Some(libc::EBADF));
        assert_eq!(other.heir(&[(3, handle)], false).err(), Some(libc::EBADF));
    }
    one.pwrite(file, 0, b"still there");
    assert_eq!(shared.service.sessions(), 2, "no heir was left over");
}

#[test]
fn who_does_not_know_the_secret_gets_no_session() {
    let shared = serve();
    let socket = Socket::connect(&shared.address).unwrap();
    let (answer, _) = ask(&socket, &hello(b"sixteen bytes ..."), None);
    assert_eq!(answer, ControlAnswer::Failed(libc::EACCES));
    for early in [Control::Lane, Control::Statistics, Control::Send { handle: Handle::ROOT }] {
        assert_eq!(ask(&socket, &early, None).0, ControlAnswer::Failed(libc::EACCES));
    }
    assert_eq!(
        ask(&socket, &Control::Adopt { version: VERSION }, None).0,
        ControlAnswer::Failed(libc::EINVAL)
    );
    let old = Control::Hello { version: VERSION - 1, secret: Vec::new(), tree: Vec::new(), again: None };
    assert_eq!(ask(&socket, &old, None).0, ControlAnswer::Failed(libc::EPROTO));
}

#[test]
fn locks_keep_other_processes_out_until_their_owner_lets_go_or_dies() {
    let shared = serve();
    let (one, other) = (Client::connect(&shared), Client::connect(&shared));
    let (mine, theirs) = (one.create("file"), other.create("file"));
    let exclusive = Some(LockKind::Exclusive);
    for class in [LockClass::Process, LockClass::Description, LockClass::Whole] {
        assert_eq!(one.call(&lock(mine, class, exclusive)), Answer::Done);
        let seen = other.board.locks_released();
        assert_eq!(other.call(&lock(theirs, class, exclusive)), EAGAIN);
        assert_eq!(one.call(&lock(mine, class, None)), Answer::Done);
        assert_ne!(other.board.locks_released(), seen, "who waits is told");
        assert_eq!(other.call(&lock(theirs, class, exclusive)), Answer::Done);
        assert_eq!(other.call(&lock(theirs, class, None)), Answer::Done);
    }
    assert_eq!(one.call(&lock(mine, LockClass::Process, exclusive)), Answer::Done);
    let test = Call::LockTest {
        handle: theirs,
        class: LockClass::Process,
        range: LockRange::ALL,
        kind: LockKind::Shared,
    };
    let Answer::Lock(Some(held)) = other.call(&test) else { panic!("no lock in the way") };
    assert_eq!(held.owner, LockOwner::Process(std::process::id()));
    let again = one.create("file");
    one.close(again);
    assert_eq!(other.call(&test), Answer::Lock(None), "closing any descriptor of the file drops them");
    for class in [LockClass::Process, LockClass::Whole] {
        assert_eq!(one.call(&lock(mine, class, exclusive)), Answer::Done);
    }
    let seen = other.board.locks_released();
    drop(one);
    until("its death is told", || other.board.locks_released() != seen);
    until("its session ends", || shared.service.sessions() == 1);
    for class in [LockClass::Process, LockClass::Whole] {
        assert_eq!(other.call(&lock(theirs, class, exclusive)), Answer::Done);
    }
}

#[test]
fn processes_that_wait_for_each_other_are_told() {
    let shared = serve();
    let clients: Vec<_> = (0..3).map(|_| Client::connect(&shared)).collect();
    let files = ["a", "b", "c"];
    let exclusive = Some(LockKind::Exclusive);
    let open = |client: &Client, file: usize| client.create(files[file % 3]);
    let (circle, edeadlk) = (LockClass::Waiting, Answer::Failed(libc::EDEADLK));
    let held: Vec<_> =
        clients.iter().enumerate().map(|(at, client)| (open(client, at), open(client, at + 1))).collect();
    for (client, (own, _)) in clients.iter().zip(&held) {
        assert_eq!(client.call(&lock(*own, LockClass::Process, exclusive)), Answer::Done);
    }
    let wait = |at: usize| clients[at].call(&lock(held[at].1, circle, exclusive));
    assert_eq!((wait(0), wait(1)), (EAGAIN, EAGAIN), "nobody waits for them");
    assert_eq!(clients[2].call(&lock(held[2].1, LockClass::Process, exclusive)), EAGAIN, "it does not wait");
    assert_eq!(wait(2), edeadlk);
    assert_eq!((wait(0), wait(1)), (EAGAIN, EAGAIN), "who was told does not wait");
    let range = LockRange { start: 0, end: 10 };
    let test = Call::LockTest { handle: held[1].1, class: circle, range, kind: LockKind::Exclusive };
    assert!(matches!(clients[1].call(&test), Answer::Lock(Some(_))));
    assert_eq!(wait(2), EAGAIN, "the second has given up");
    assert_eq!(wait(1), edeadlk);
    assert_eq!(clients[2].call(&lock(held[2].0, LockClass::Process, None)), Answer::Done);
    assert_eq!(wait(1), Answer::Done);
}

#[test]
fn an_heir_shares_the_offset_and_not_the_record_locks() {
    let shared = serve();
    let parent = Client::connect(&shared);
    let file = parent.create("file");
    parent.write(file, b"0123456789");
    assert_eq!(parent.call(&Call::Seek { handle: file, by: 2, whence: Whence::Set }), Answer::Count(2));
    let exclusive = Some(LockKind::Exclusive);
    assert_eq!(parent.call(&lock(file, LockClass::Process, exclusive)), Answer::Done);
    assert_eq!(parent.call(&lock(file, LockClass::Whole, exclusive)), Answer::Done);
    let child = Client::adopt(parent.heir(&[(3, file), (4, file)], false).unwrap());
    let numbers: Vec<_> = child.welcome.held.iter().map(|(fd, it)| (*fd, it.handle, it.offset)).collect();
    assert_eq!(numbers, [(3, file, None), (4, file, None)], "the same description, shared");
    assert_eq!(child.read_at(file, None, 3).unwrap(), b"234");
    assert_eq!(parent.read_at(file, None, 3).unwrap(), b"567");
    assert_eq!(child.call(&lock(file, LockClass::Process, exclusive)), EAGAIN, "another process");
    assert_eq!(child.call(&lock(file, LockClass::Whole, exclusive)), Answer::Done, "the same description");
    drop(parent);
    until("the parent's session ends", || shared.service.sessions() == 1);
    assert_eq!(child.call(&lock(file, LockClass::Process, exclusive)), Answer::Done);
    let other = Client::connect(&shared);
    let theirs = other.create("file");
    assert_eq!(other.call(&lock(theirs, LockClass::Whole, exclusive)), EAGAIN, "the child has it still");
    drop(child);
    until("nobody is left but one", || shared.service.sessions() == 1);
    assert_eq!(other.call(&lock(theirs, LockClass::Whole, exclusive)), Answer::Done);
}

#[test]
fn an_heir_of_exec_is_the_same_process_and_gets_its_offset_back() {
    let shared = serve();
    let before = Client::connect(&shared);
    let (file, closed) = (before.create("file"), before.create("closed"));
    before.write(file, b"0123456789");
    let exclusive = Some(LockKind::Exclusive);
    assert_eq!(before.call(&lock(file, LockClass::Process, exclusive)), Answer::Done);
    let heir = before.heir(&[(0, file)], true).unwrap();
    // The kernel closes the old socket in exec; the server may hear of it late.
    let after = Client::adopt(heir);
    assert_eq!(shared.service.sessions(), 1, "the session before exec has ended with the adoption");
    let held = &after.welcome.held[0];
    assert_eq!((held.0, held.1.handle, held.1.offset), (0, file, Some(10)));
    assert_eq!(after.read_at(closed, Some(0), 1), Err(libc::EBADF));
    let other = Client::connect(&shared);
    let theirs = other.create("file");
    assert_eq!(other.call(&lock(theirs, LockClass::Process, exclusive)), EAGAIN, "exec keeps record locks");
    drop(before);
    assert_eq!(other.call(&lock(theirs, LockClass::Process, exclusive)), EAGAIN);
    drop(after);
    until("the process is gone", || shared.service.processes() == 1);
    assert_eq!(other.call(&lock(theirs, LockClass::Process, exclusive)), Answer::Done);
}

#[test]
fn many_descriptors_go_along() {
    let shared = serve();
    let before = Client::connect(&shared);
    let held: Vec<_> = (0..600).map(|number| (number, before.create(&format!("file{number}")))).collect();
    let heir = before.heir(&held[..500], true).unwrap();
    let more = Control::HeirHolds { held: held[500..].to_vec() };
    before.control(&more).unwrap();
    let after = Client::adopt(heir);
    assert_eq!((after.welcome.held.len(), after.welcome.inherits), (TOLD_AT_ONCE, 600));
    let mut told = after.welcome.held.clone();
    while let (ControlAnswer::Inherits(more), None) = ask(&after.socket, &Control::Inherits, None) {
        if more.is_empty() {
            break;
        }
        told.extend(more);
    }
    let told: Vec<_> = told.iter().map(|(number, it)| (*number, it.handle)).collect();
    assert_eq!(told, held);
    // A fork's are not told: its process knows them.
    let forked: Vec<_> = (0..5000).map(|_| after.create("file0")).map(|handle| (-1, handle)).collect();
    let child = Client::adopt(after.heir(&forked, false).unwrap());
    assert!(child.welcome.held.is_empty());
    child.pwrite(forked[4999].1, 0, b"held all the same");
    // What is not held is nobody's to hand on, and who asks for it has no heir any more.
    let sessions = || shared.service.processes();
    let before = sessions();
    let heir = child.heir(&[], false).unwrap();
    assert_eq!(sessions(), before + 1);
    let strange = Control::HeirHolds { held: vec![(3, Handle(u64::MAX))] };
    assert_eq!(child.control(&strange).err(), Some(libc::EBADF));
    until("the heir is gone", || sessions() == before);
    drop(heir);
}

/// Its path is longer than what a message has room for beside them.
#[test]
fn many_descriptors_go_along_with_a_deep_working_directory() {
    let shared = serve();
    let before = Client::connect(&shared);
    let name = [b'd'; 255];
    let deep = (0..240).fold(Handle::ROOT, |at, _| {
        assert_eq!(before.call(&Call::Mkdir { at, path: &name, mode: 0o755 }), Answer::Done);
        let below = Object::Path { at, path: &name, follow: Follow::No };
        let Answer::Held { handle, .. } = before.call(&Call::Lookup(below)) else { panic!("it is there") };
        handle
    });
    let held: Vec<_> =
        (0i32..).take(TOLD_AT_ONCE).map(|number| (number, before.create(&format!("file{number}")))).collect();
    let heir = before.control(&Control::Heir { held, cwd: Some(deep), same_process: true }).unwrap();
    let after = Client::adopt(heir.expect("its socket"));
    assert_eq!(after.welcome.held.len(), TOLD_AT_ONCE);
    assert_eq!(after.welcome.cwd.map(|cwd| cwd.handle), Some(deep));
}

#[test]
fn an_heir_that_nobody_adopts_ends_with_its_socket() {
    let shared = serve();
    let client = Client::connect(&shared);
    let file = client.create("file");
    let heir = client.heir(&[(3, file)], false).unwrap();
    assert_eq!(shared.service.sessions(), 2);
    drop(heir);
    until("it ends", || shared.service.sessions() == 1);
    client.pwrite(file, 0, b"unharmed");
}

#[test]
fn what_is_sent_in_a_message_is_held_until_it_is_received() {
    let shared = serve();
    let (sender, receiver) = (Client::connect(&shared), Client::connect(&shared));
    let file = sender.create("file");
    sender.write(file, b"sent");
    let token = sender.control(&Control::Send { handle: file }).unwrap().unwrap();
    assert!(rustix::io::read(&token, &mut [0]).is_err() && rustix::io::write(&token, b"x").is_err());
    sender.close(file);
    assert_eq!(sender.call(&Call::Unlink { at: Handle::ROOT, path: b"file" }), Answer::Done);
    let (answer, _) = ask(&receiver.socket, &Control::Receive, Some(&token));
    let ControlAnswer::Received(received) = answer else { panic!("{answer:?}") };
    assert_eq!(receiver.pread(received.handle, 0, 10), b"sent");
    // A second copy of the same message is the same description once more.
    let (answer, _) = ask(&receiver.socket, &Control::Receive, Some(&token));
    assert!(matches!(answer, ControlAnswer::Received(again) if again.handle == received.handle));
    drop(token);
    receiver.close(received.handle);
    assert_eq!(receiver.pread(received.handle, 0, 10), b"sent", "held twice");
    receiver.close(received.handle);
    let free = shared.service.mount().statfs().blocks_free;
    until("the file goes", || {
        shared.service.mount().statfs().blocks_free >= free && on_the_way(&sender) == 0
    });
    let stranger = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(
        ask(&receiver.socket, &Control::Receive, Some(&stranger)).0,
        ControlAnswer::Failed(libc::EBADF)
    );
}

fn on_the_way(client: &Client) -> u64 {
    let (ControlAnswer::Text(text), _) = ask(&client.socket, &Control::Statistics, None) else {
        panic!("no statistics")
    };
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["tokens"].as_u64().unwrap()
}

#[test]
fn a_stopped_server_fails_every_call_at_once() {
    let shared = serve();
    let client = Client::connect(&shared);
    client.create("file");
    shared.server.stop().stop();
    shared.server.wait();
    assert!(client.board.is_dead());
    let gone = client.lane.call(&Call::Ping, &[], &client.board, &|| true);
    assert_eq!(gone, Err(nvmed_wire::LaneError::Gone));
    assert_eq!(shared.service.sessions(), 0);
    assert_eq!(shared.service.lanes(), 0, "what is unmounted next is used by nobody");
    shared.service.mount().unmount().unwrap();
}

#[test]
fn a_server_that_is_to_finish_waits_for_its_last_client() {
    let shared = serve();
    let client = Client::connect(&shared);
    shared.server.stop().finish();
    let file = client.create("late");
    client.pwrite(file, 0, b"in time");
    assert_eq!(client.call(&Call::Stat(named("late"))), client.call(&Call::Stat(Object::Held(file))));
    drop(client);
    shared.server.wait();
    assert_eq!(shared.service.sessions(), 0);
}

#[test]
fn what_a_process_received_twice_its_child_has_twice() {
    let shared = serve();
    let client = Client::connect(&shared);
    let file = client.create("file");
    client.pwrite(file, 0, b"twice");
    let token = client.control(&Control::Send { handle: file }).unwrap().unwrap();
    let (answer, _) = ask(&client.socket, &Control::Receive, Some(&token));
    assert!(matches!(answer, ControlAnswer::Received(again) if again.handle == file));
    let child = Client::adopt(client.heir(&[(-1, file)], false).unwrap());
    child.close(file);
    assert_eq!(child.pread(file, 0, 10), b"twice");
    child.close(file);
    assert_eq!(child.read_at(file, Some(0), 1), Err(libc::EBADF));
    // An executed program knows nothing of that: what it is told of it has once.
    let after = Client::adopt(client.heir(&[(3, file)], true).unwrap());
    after.close(file);
    assert_eq!(after.read_at(file, Some(0), 1), Err(libc::EBADF));
}
