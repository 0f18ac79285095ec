//! Servers that break the protocol, fall silent or die: an error or all ones, never a panic, never a hang.

mod toy;

use nvmed_dma::{MapError, Transport, Waited};
use nvmed_sys::{Mapping, Pages};
use nvmed_vfio_user::{Client, ClientError, ClientOptions, Header};
use proptest::prelude::*;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use toy::{Raw, access, words};
use zerocopy::IntoBytes;

const OPTIONS: ClientOptions = ClientOptions { reply_timeout_ms: 10_000, vectors_max: 4 };

/// One reply: command, payload, and whether a descriptor comes with it.
type Reply = (u16, Vec<u8>, bool);

/// The replies of a server that does all right, as the client asks for them.
fn good() -> Vec<Reply> {
    let region = words(&[32, 3, 0, 0, 16 << 10, 0, 0, 0]);
    vec![
        (1, b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":8}}\0".to_vec(), false),
        (4, words(&[16, 3, 9, 5]), false),
        (5, region, false),
        (10, access(4, 7, 2), false),
        (7, words(&[16, 1, 2, 4]), false),
        (8, vec![], false),
    ]
}

fn bytes_of(index: usize, reply: &Reply) -> Vec<u8> {
    let header = Header {
        id: index as u16 + 1,
        command: reply.0,
        bytes: 16 + reply.1.len() as u32,
        flags: Header::REPLY,
        errno: 0,
    };
    [header.as_bytes(), &reply.1[..]].concat()
}

/// A connection on which all that the server will say is said already.
fn prepared(messages: &[(Vec<u8>, bool)], fd: &OwnedFd) -> (OwnedFd, Raw) {
    let (near, far) = UnixStream::pair().unwrap();
    let far = Raw::new(far);
    for (bytes, with_fd) in messages {
        let fds = [fd.as_fd()];
        far.send(bytes, if *with_fd { &fds } else { &[] });
    }
    (near.into(), far)
}

fn file() -> OwnedFd {
    let memory = Mapping::shareable(16 << 10, Pages::Base).unwrap();
    memory.backing().unwrap().0.try_clone_to_owned().unwrap()
}

fn connect(replies: &[Reply]) -> (Result<Client, ClientError>, Raw) {
    let messages: Vec<_> =
        replies.iter().enumerate().map(|(index, reply)| (bytes_of(index, reply), reply.2)).collect();
    let (socket, far) = prepared(&messages, &file());
    rustix::net::shutdown(&far, rustix::net::Shutdown::Write).unwrap();
    (Client::from_socket(socket, "here".to_owned(), OPTIONS), far)
}

#[test]
fn a_right_server_is_taken_and_its_end_is_a_removal() {
    let (client, far) = connect(&good());
    let client = client.unwrap();
    assert_eq!((client.vectors(), client.is_gone()), (4, false));
    let memory = Arc::new(Mapping::anonymous(4096, Pages::Base).unwrap());
    assert!(matches!(client.map(Arc::clone(&memory)), Err(MapError::Refused { .. })));
    assert!(client.is_gone());
    assert_eq!((client.read32(0), client.read64(0)), (u32::MAX, u64::MAX));
    client.write32(0x1000, 1);
    client.write32(0x14, 1);
    assert_eq!(client.wait(0, client.events(0), 10_000_000), Waited::Event);
    assert_eq!(client.map(memory), Err(MapError::Refused { len: 4096, errno: Errno::PIPE }));
    drop(far);
}

#[test]
fn wrong_replies_are_named() {
    let cases: [(usize, Reply, &str); 16] = [
        (0, (1, vec![0, 0], false), "a version of 2 bytes; it needs 4"),
        (0, (1, b"\x01\0\0\0".to_vec(), false), "we speak 0.1"),
        (0, (1, b"\0\0\x02\0".to_vec(), false), "we speak 0.1"),
        (0, (1, b"\0\0\x01\0{".to_vec(), false), "does not end in NUL"),
        (0, (4, vec![], false), "a reply to command 4"),
        (1, (4, words(&[16, 3]), false), "a device info of 8 bytes"),
        (1, (4, words(&[16, 1, 9, 5]), false), "no PCI device"),
        (1, (4, words(&[16, 3, 7, 5]), false), "no PCI device"),
        (2, (5, words(&[32, 3, 1, 0, 16 << 10, 0, 0, 0]), false), "about another region"),
        (2, (5, words(&[32, 3, 0, 0, 4096, 0, 0, 0]), false), "no NVMe registers"),
        (2, (5, words(&[32, 3, 0, 0, 0, 1, 0, 0]), false), "no NVMe registers"),
        (2, (5, words(&[32, 3 | 8, 0, 32, 16 << 10, 0, 0, 0]), false), "a region capability of 0 bytes"),
        (
            2,
            (5, words(&[48, 3 | 8, 0, 32, 16 << 10, 0, 0, 0, 1, 0, 65, 0]), false),
            "more than 64 mappable areas",
        ),
        (
            2,
            (5, words(&[48, 3 | 8, 0, 32, 16 << 10, 0, 0, 0, 9 | 1 << 16, 32, 0, 0]), false),
            "runs backwards",
        ),
        (4, (7, vec![0; 15], false), "an interrupt info of 15 bytes"),
        (5, (8, vec![0; 4], true), ""),
    ];
    for (at, reply, words) in cases {
        let mut replies = good();
        replies[at] = reply;
        let (client, _far) = connect(&replies);
        match client {
            Ok(_) => assert_eq!(words, "", "reply {at} was taken"),
            Err(error) => assert!(error.to_string().contains(words) && !words.is_empty(), "{error}"),
        }
    }
}

#[test]
fn areas_that_cannot_be_mapped_are_not_believed() {
    // Size of the file is 16 KiB; area offset and size, region offset; what becomes of it.
    let sparse = |offset: u64, bytes: u64, base: u64| {
        let mut payload = words(&[64, 3 | 4 | 8, 0, 32, 64 << 10, 0]);
        payload.extend(base.to_le_bytes());
        payload.extend(words(&[1 | 1 << 16, 0, 1, 0]));
        payload.extend([offset.to_le_bytes(), bytes.to_le_bytes()].concat());
        payload
    };
    for (offset, bytes, base, taken) in [
        (0x1000, 0x1000, 0, true),
        (0x4000, 0x1000, 0, true),
        (0x1000, 0x3001, 0, true),
        (0x1001, 0x1000, 0, true),
        (0, 0x1000, 0, true),
        (0x1000, 0, 0, true),
        (0xf000, 0x2000, 0, false),
        (u64::MAX, 2, 0, false),
        (0x1000, 0x1000, u64::MAX - 0x1000, false),
    ] {
        let mut replies = good();
        replies[2] = (5, sparse(offset, bytes, base), true);
        let (client, _far) = connect(&replies);
        assert_eq!(client.is_ok(), taken, "{offset:#x} {bytes:#x} {base:#x}");
        // A doorbell there is a touch of the window, if there is one: it must not be a SIGBUS.
        client.into_iter().for_each(|client| client.write32(0x4ffc, 1));
    }
}

#[test]
fn a_silent_server_is_given_up_when_its_time_is_over() {
    let (socket, _far) = prepared(&[], &file());
    let options = ClientOptions { reply_timeout_ms: 20, ..OPTIONS };
    let error = Client::from_socket(socket, "here".to_owned(), options).unwrap_err();
    assert_eq!(error.errno(), Errno::TIMEDOUT);
    assert!(error.to_string().contains("did not answer within 20 ms"), "{error}");
}

#[test]
fn a_doorbell_goes_out_while_another_thread_waits_for_its_reply() {
    let messages: Vec<_> =
        good().iter().enumerate().map(|(index, reply)| (bytes_of(index, reply), reply.2)).collect();
    let (socket, far) = prepared(&messages, &file());
    let client = Client::from_socket(socket, "here".to_owned(), OPTIONS).unwrap();
    let mut heard = Vec::new();
    let mut hear = |wanted: &[u8]| {
        while !heard.windows(wanted.len()).any(|bytes| bytes == wanted) {
            let mut part = [0; 4096];
            let got = rustix::io::read(&far, &mut part).unwrap();
            heard.extend_from_slice(&part[..got]);
        }
    };
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| client.read32(0x1c));
        hear(&access(0x1c, 0, 4));
        client.write32(0x1000, 0x7777);
        hear(&0x7777u32.to_ne_bytes());
        assert!(!client.is_gone(), "the doorbell waited until the reply was given up");
        rustix::net::shutdown(&far, rustix::net::Shutdown::Both).unwrap();
        assert_eq!(reading.join().unwrap(), u32::MAX);
    });
    assert!(client.is_gone());
}

#[test]
fn who_refuses_says_why() {
    let header = Header { id: 0, command: 1, bytes: 16, flags: Header::REPLY | Header::ERROR, errno: 16 };
    let (socket, _far) = prepared(&[(header.as_bytes().to_vec(), false)], &file());
    let error = Client::from_socket(socket, "here".to_owned(), OPTIONS).unwrap_err();
    assert_eq!(error.errno(), Errno::BUSY);
}

#[test]
fn commands_of_the_server_are_refused_and_what_was_asked_is_answered() {
    let read = Header { id: 77, command: 11, bytes: 32, flags: 0, errno: 0 };
    let mut messages: Vec<_> =
        good().iter().enumerate().map(|(index, reply)| (bytes_of(index, reply), reply.2)).collect();
    messages.insert(1, ([read.as_bytes(), &[0; 16]].concat(), false));
    let (socket, _far) = prepared(&messages, &file());
    assert!(Client::from_socket(socket, "here".to_owned(), OPTIONS).is_ok());
}

#[test]
fn fuzz_wild_servers_never_end_the_client() {
    let file = file();
    let change = (any::<u8>(), any::<u16>(), prop_oneof![0..64u32, Just(u32::MAX), any::<u32>()]);
    let tail =
        prop::collection::vec((0..20u16, prop::collection::vec(any::<u8>(), 0..48), any::<bool>()), 0..8);
    proptest!(|(changes in prop::collection::vec(change, 0..4), tail in tail)| {
        let mut replies = good();
        replies[2] = (5, words(&[64, 15, 0, 32, 16 << 10, 0, 0, 0, 1 | 1 << 16, 0, 1, 0, 0x1000, 0, 0x1000, 0]), true);
        // What the client asks next is among these: reads and writes of registers, and mappings.
        let read = [access(0, 0, 4), vec![7; 4]].concat();
        replies.extend([(9, read, false), (10, access(0x14, 0, 4), false), (2, vec![], false)]);
        replies.extend(tail);
        let mut messages: Vec<_> =
            replies.iter().enumerate().map(|(index, reply)| (bytes_of(index, reply), reply.2)).collect();
        for (which, at, value) in changes {
            let count = messages.len();
            let message = &mut messages[usize::from(which) % count].0;
            let place = usize::from(at) % (message.len() / 4) * 4;
            message[place..place + 4].copy_from_slice(&value.to_le_bytes());
        }
        let (socket, far) = prepared(&messages, &file);
        rustix::net::shutdown(&far, rustix::net::Shutdown::Write).unwrap();
        if let Ok(client) = Client::from_socket(socket, "here".to_owned(), OPTIONS) {
            let _ = client.read32(0);
            client.write32(0x14, 1);
            client.write32(0x1000, 1);
            let memory = Arc::new(Mapping::shareable(4096, Pages::Base).unwrap());
            if let Ok(address) = client.map(memory) {
                client.unmap(address);
            }
            let _ = (client.reset(), client.read64(0), client.wait(0, client.events(0), 1));
        }
    });
}
