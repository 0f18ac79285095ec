//! Sockets of a session: messages, descriptors, who is there, and tokens on their way.

use nvmed_wire::{Address, Control, ControlAnswer, Handle, Listener, Socket, SocketError, Token};
use rustix::fd::AsFd;
use std::time::Duration;

const SOON: Option<Duration> = Some(Duration::from_secs(60));

#[test]
fn a_message_comes_with_its_descriptor() {
    let (one, other) = Socket::pair().unwrap();
    let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&memory, b"hello", 0).unwrap();
    one.send(&Control::Window { handle: Handle(3) }, Some(memory.as_fd())).unwrap();
    one.send(&Control::Lane, None).unwrap();
    let (first, fd) = other.receive::<Control>(SOON).unwrap();
    assert_eq!(first, Control::Window { handle: Handle(3) });
    let mut bytes = [0; 5];
    rustix::io::pread(fd.unwrap(), &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"hello");
    let (second, fd) = other.receive::<Control>(SOON).unwrap();
    assert!(second == Control::Lane && fd.is_none());
    assert!(!other.is_gone());
    drop(one);
    assert!(other.is_gone());
    assert_eq!(other.receive::<Control>(SOON).unwrap_err(), SocketError::Gone);
}

#[test]
fn what_is_no_message_is_an_error_and_its_descriptors_are_closed() {
    let (one, other) = Socket::pair().unwrap();
    let long = ControlAnswer::Text("x".repeat(70_000));
    assert_eq!(one.send(&long, None), Err(SocketError::Message));
    rustix::net::send(&one, &[0xff; 40], rustix::net::SendFlags::empty()).unwrap();
    assert_eq!(other.receive::<Control>(SOON).unwrap_err(), SocketError::Message);
    rustix::net::send(&one, &vec![2; 80_000], rustix::net::SendFlags::empty()).unwrap();
    assert_eq!(other.receive::<Control>(SOON).unwrap_err(), SocketError::Message);
    let nothing = other.receive::<Control>(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(nothing, SocketError::Host(rustix::io::Errno::AGAIN));
}

#[test]
fn a_listener_learns_from_the_kernel_who_connects() {
    let address = Address::random().unwrap();
    let listener = Listener::bind(&address).unwrap();
    let client = Socket::connect(&address).unwrap();
    let peer = listener.accept().unwrap().peer().unwrap();
    assert_eq!(peer.pid, std::process::id());
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    assert_eq!(peer.gid, rustix::process::getegid().as_raw());
    drop((client, listener));
    assert!(Socket::connect(&address).is_err(), "nobody listens");
}

/// A server that asked after it had accepted was told that nobody sent the first message of a client that was faster.
#[test]
fn the_first_message_of_a_client_has_its_sender_however_fast_it_comes() {
    let address = Address::random().unwrap();
    let listener = Listener::bind(&address).unwrap();
    for sent_first in [true, false] {
        let client = Socket::connect(&address).unwrap();
        let send = || client.send(&Control::Receive, None).unwrap();
        if sent_first {
            send();
        }
        let server = listener.accept().unwrap();
        if !sent_first {
            send();
        }
        let (_, sender) = server.try_receive::<Control>(&mut Vec::new()).unwrap();
        let sender = sender.expect("the kernel says who sent it");
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        assert_eq!((sender.pid, sender.uid, sender.gid), (std::process::id(), uid.as_raw(), gid.as_raw()));
    }
}

#[test]
fn a_token_is_recognised_while_it_is_on_its_way_and_then_free() {
    let (token, fd) = Token::make().unwrap();
    assert_eq!(Token::of(fd.as_fd()), Some(token));
    assert!(!token.is_free().unwrap());
    // No data call takes it.
    assert!(rustix::io::read(&fd, &mut [0; 1]).is_err() && rustix::io::write(&fd, b"x").is_err());
    let (one, other) = Socket::pair().unwrap();
    one.send(&Control::Receive, Some(fd.as_fd())).unwrap();
    drop(fd);
    assert!(!token.is_free().unwrap(), "it lies in a message");
    let (_, came) = other.receive::<Control>(SOON).unwrap();
    assert_eq!(Token::of(came.as_ref().unwrap().as_fd()), Some(token));
    drop(came);
    assert!(token.is_free().unwrap());
    assert_eq!(Token::of(one.as_fd()), None);
}
