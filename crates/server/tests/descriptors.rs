//! Descriptors that clients send and that nobody asked for: they fill no table, and nobody waits until they are closed.

mod support;

use nvmed_server::Limits;
use nvmed_wire::{Control, ControlAnswer, Socket};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use support::{Client, Shared, ask, hello, serve, serve_within};

/// What a kernel lets one message carry.
const MANY: usize = 253;
/// Long enough for an answer on a busy machine; who waits for a socket that lingers waits longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A socket that, when its last copy is closed, waits for its other end: for two minutes, if nobody ends it.
fn lingering() -> Option<(TcpStream, TcpStream)> {
    let Ok(door) = TcpListener::bind("127.0.0.1:0") else {
        println!("SKIPPED: no loopback network, to have a socket that lingers");
        return None;
    };
    let near = TcpStream::connect(door.local_addr().unwrap()).unwrap();
    let (far, _) = door.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&near, Some(Duration::from_secs(120))).unwrap();
    near.set_nonblocking(true).unwrap();
    while (&near).write(&[7; 1 << 16]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    Some((near, far))
}

fn connect(shared: &Shared) -> OwnedFd {
    let nvmed_wire::Address::Abstract { name, .. } = &shared.address else { panic!("a run's address") };
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    socket
}

fn send(socket: &OwnedFd, message: &Control, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let bytes = postcard::to_stdvec(message).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Sends messages, the last with descriptors, and lets go of the first of them at once: the server has its last copy,
/// or, where it was very quick, this thread waits, and nobody for it.
fn send_and_forget(
    shared: &Shared,
    before: usize,
    near: TcpStream,
    stray: Option<OwnedFd>,
) -> Option<OwnedFd> {
    let socket = connect(shared);
    let sending = std::thread::spawn(move || {
        for _ in 0..before {
            let _ = send(&socket, &Control::Lane, &[]);
        }
        let mut fds = vec![near.as_fd()];
        fds.extend(stray.iter().flat_map(|stray| std::iter::repeat_n(stray.as_fd(), MANY - 1)));
        // Who was hung up on already has sent nothing.
        let _ = send(&socket, &Control::Receive, &fds);
        let kept = stray.is_some().then_some(socket);
        std::thread::spawn(move || drop(near));
        kept
    });
    sending.join().unwrap()
}

/// Whether somebody new is let in, and somebody who is there answered.
fn serves(shared: &Shared, witness: &Client) {
    witness.socket.send(&Control::Lane, None).unwrap();
    let (answer, _) =
        witness.socket.receive::<ControlAnswer>(Some(PATIENCE)).expect("the witness is answered");
    assert_eq!(answer, ControlAnswer::Done);
    let socket = Socket::connect(&shared.address).unwrap();
    socket.send(&hello(shared.address.secret()), None).unwrap();
    let (answer, _) = socket.receive::<ControlAnswer>(Some(PATIENCE)).expect("a new client is answered");
    assert!(matches!(answer, ControlAnswer::Welcome(_)));
}

#[test]
fn messages_with_many_descriptors_leave_room_for_others() {
    const LIARS: usize = 8;
    let now = getrlimit(Resource::Nofile);
    // Fewer than the liars send, and many more than the rest of these tests has.
    setrlimit(Resource::Nofile, Rlimit { current: Some(700), maximum: now.maximum }).unwrap();
    let shared = serve();
    let witness = Client::connect(&shared);
    let stray = rustix::fs::memfd_create("stray", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut far_ends = Vec::new();
    for _ in 0..LIARS {
        let Some((near, far)) = lingering() else { return };
        let stray = stray.try_clone().unwrap();
        far_ends.push((send_and_forget(&shared, 0, near, Some(stray)), far));
    }
    serves(&shared, &witness);
}

#[test]
fn a_connection_that_ends_with_descriptors_in_it_stops_nobody() {
    let shared = serve();
    let witness = Client::connect(&shared);
    let mut far_ends = Vec::new();
    for _ in 0..16 {
        let Some((near, far)) = lingering() else { return };
        // The first is refused, and nobody is there to hear that: the others are never asked for.
        far_ends.push((send_and_forget(&shared, 2, near, None), far));
    }
    serves(&shared, &witness);
}

#[test]
fn who_is_not_let_in_with_descriptors_stops_nobody() {
    let shared = serve_within(Limits { silent: 1, hello: Duration::from_secs(3600), ..Limits::RUN });
    let witness = Client::connect(&shared);
    let silent = connect(&shared);
    let mut far_ends = Vec::new();
    for _ in 0..16 {
        let Some((near, far)) = lingering() else { return };
        far_ends.push((send_and_forget(&shared, 0, near, None), far));
    }
    witness.socket.send(&Control::Lane, None).unwrap();
    let answer = witness.socket.receive::<ControlAnswer>(Some(PATIENCE)).map(|(answer, _)| answer);
    assert_eq!(answer, Ok(ControlAnswer::Done));
    drop(silent);
    assert_eq!(ask(&witness.socket, &Control::Lane, None).0, ControlAnswer::Done);
}
