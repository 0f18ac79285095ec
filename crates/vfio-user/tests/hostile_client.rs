//! Clients that break the protocol: an error reply each, and a server that goes on.

mod toy;

use nvmed_sys::{Mapping, Pages};
use nvmed_vfio_user::Header;
use proptest::prelude::*;
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use toy::{BAR0_BYTES, Raw, Served, access, dma, words};

const VERSION: u16 = 1;
const MAP: u16 = 2;
const UNMAP: u16 = 3;
const INFO: u16 = 4;
const REGION: u16 = 5;
const IRQ: u16 = 7;
const SET_IRQS: u16 = 8;
const READ: u16 = 9;
const WRITE: u16 = 10;
const RESET: u16 = 13;

/// The device still says what it is.
fn alive(raw: &mut Raw) {
    assert_eq!(raw.ask(INFO, &words(&[16, 0, 0, 0]), &[]).unwrap(), words(&[16, 3, 9, 5]));
}

fn memory(bytes: usize) -> Mapping {
    Mapping::shareable(bytes, Pages::Base).unwrap()
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

#[test]
fn nothing_goes_before_the_version_and_there_is_one() {
    let served = Served::new();
    let mut raw = served.open();
    assert_eq!(raw.ask(INFO, &words(&[16, 0, 0, 0]), &[]), Err(Errno::INVAL));
    assert_eq!(raw.ask(VERSION, &[0, 0], &[]), Err(Errno::INVAL), "cut short");
    assert_eq!(raw.ask(VERSION, &[1, 0, 0, 0], &[]), Err(Errno::INVAL), "version 1.0");
    assert_eq!(raw.ask(VERSION, b"\0\0\x01\0{\"capabilities\":7}\0", &[]), Err(Errno::INVAL));
    let reply = raw.ask(VERSION, b"\0\0\x07\0{\"capabilities\":{\"max_msg_fds\":3}}\0", &[]).unwrap();
    assert_eq!(reply[..4], [0, 0, 1, 0], "the smaller of the minor versions");
    assert!(reply.ends_with(b"}\0"));
    assert_eq!(raw.ask(VERSION, &[0, 0, 1, 0], &[]), Err(Errno::INVAL), "twice");
    alive(&mut raw);
}

#[test]
fn wrong_messages_are_answered_with_what_is_wrong() {
    let served = Served::new();
    let mut raw = served.greeted();
    let end = BAR0_BYTES;
    let wrong: &[(u16, Vec<u8>, Errno)] = &[
        (0, vec![], Errno::NOSYS),
        (14, vec![], Errno::NOSYS),
        (999, vec![1; 100], Errno::NOSYS),
        (6, words(&[16, 0, 0, 0]), Errno::OPNOTSUPP),
        (11, vec![0; 16], Errno::OPNOTSUPP),
        (16, vec![0; 8], Errno::OPNOTSUPP),
        (RESET, vec![1], Errno::OPNOTSUPP),
        (INFO, vec![], Errno::INVAL),
        (INFO, words(&[15, 0, 0, 0]), Errno::INVAL),
        (INFO, words(&[16, 0, 0, 0, 0]), Errno::INVAL),
        (REGION, words(&[32, 0, 9, 0, 0, 0, 0, 0]), Errno::INVAL),
        (REGION, words(&[31, 0, 0, 0, 0, 0, 0, 0]), Errno::INVAL),
        (REGION, words(&[32, 0, 0, 0]), Errno::INVAL),
        (IRQ, words(&[16, 0, 5, 0]), Errno::INVAL),
        (IRQ, words(&[16, 0, u32::MAX, 0]), Errno::INVAL),
        (READ, access(end, 0, 1), Errno::INVAL),
        (READ, access(end - 3, 0, 4), Errno::INVAL),
        (READ, access(u64::MAX, 0, 4), Errno::INVAL),
        (READ, access(0, 0, 0), Errno::INVAL),
        (READ, access(0, 0, u32::MAX), Errno::INVAL),
        (READ, access(0, 9, 4), Errno::INVAL),
        (READ, access(0, 1, 4), Errno::INVAL),
        (READ, access(0, 0, 4)[..12].to_vec(), Errno::INVAL),
        (READ, [access(0, 0, 4), vec![0; 4]].concat(), Errno::INVAL),
        (WRITE, [access(end, 0, 4), vec![0; 4]].concat(), Errno::INVAL),
        (WRITE, [access(0, 0, 8), vec![0; 4]].concat(), Errno::INVAL),
        (WRITE, [access(0, 0, 4), vec![0; 8]].concat(), Errno::INVAL),
        (WRITE, access(0, 0, 4), Errno::INVAL),
        (UNMAP, dma(0, None, 0x1000, 0x1000), Errno::NOENT),
        (UNMAP, dma(1, None, 0x1000, 0x1000), Errno::INVAL),
        (UNMAP, dma(2, None, 0x1000, 0x1000), Errno::INVAL),
        (MAP, dma(3, Some(0), 0x1000, 0x1000), Errno::OPNOTSUPP),
    ];
    for (command, payload, errno) in wrong {
        assert_eq!(raw.ask(*command, payload, &[]), Err(*errno), "command {command}, {payload:?}");
    }
    let eventfd = eventfd();
    assert_eq!(raw.ask(INFO, &words(&[16, 0, 0, 0]), &[eventfd.as_fd()]), Err(Errno::INVAL));
    alive(&mut raw);
}

#[test]
fn memory_that_makes_no_sense_is_refused() {
    let served = Served::new();
    let mut raw = served.greeted();
    let memory = memory(0x4000);
    let fd = memory.backing().unwrap().0;
    let wrong = [
        (dma(8, Some(0), 0x1000, 0x1000), Errno::INVAL),
        (dma(3, Some(0), 0x1800, 0x1000), Errno::INVAL),
        (dma(3, Some(0x10), 0x1000, 0x1000), Errno::INVAL),
        (dma(3, Some(0), 0x1000, 0x1001), Errno::INVAL),
        (dma(3, Some(0), 0x1000, 0), Errno::INVAL),
        (dma(3, Some(0), u64::MAX - 0xfff, 0x1000), Errno::INVAL),
        (dma(3, Some(u64::MAX - 0xfff), 0x1000, 0x1000), Errno::INVAL),
        (dma(3, Some(0), 0x1000, 0x5000), Errno::INVAL),
        (dma(3, Some(0x4000), 0x1000, 0x1000), Errno::INVAL),
        (dma(3, Some(0), 0x1000, 0x1000)[..24].to_vec(), Errno::INVAL),
    ];
    for (payload, errno) in wrong {
        assert_eq!(raw.ask(MAP, &payload, &[fd]), Err(errno), "{payload:?}");
    }
    let good = dma(3, Some(0), 0x10_0000, 0x2000);
    assert_eq!(raw.ask(MAP, &good, &[fd, fd]), Err(Errno::INVAL), "two descriptors");
    assert_eq!(raw.ask(MAP, &good, &[eventfd().as_fd()]), Err(Errno::INVAL), "no file");
    raw.ask(MAP, &good, &[fd]).unwrap();
    for (address, bytes) in
        [(0x10_0000, 0x2000), (0xf_f000, 0x2000), (0x10_1000, 0x1000), (0xf_0000, 0x2_0000)]
    {
        let refused = raw.ask(MAP, &dma(3, Some(0), address, bytes.min(0x4000)), &[fd]);
        let want = if address + bytes.min(0x4000) > 0x10_0000 { Err(Errno::EXIST) } else { Ok(vec![]) };
        assert_eq!(refused, want, "over another range: {address:#x}");
    }
    assert_eq!(raw.ask(UNMAP, &dma(0, None, 0x10_0000, 0x1000), &[]), Err(Errno::NOENT), "half of it");
    let unmap = dma(0, None, 0x10_0000, 0x2000);
    assert_eq!(
        raw.ask(UNMAP, &unmap, &[eventfd().as_fd()]).unwrap(),
        unmap,
        "with a descriptor, as SPDK sends it"
    );
    raw.ask(MAP, &good, &[fd]).unwrap();
    raw.ask(UNMAP, &dma(2, None, 0, 0), &[]).unwrap();
    raw.ask(MAP, &good, &[fd]).unwrap();
    alive(&mut raw);
}

#[test]
fn the_server_keeps_memory_from_being_cut_short() {
    let served = Served::new();
    let mut raw = served.greeted();
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("cut", flags).unwrap();
    rustix::fs::ftruncate(&fd, 0x2000).unwrap();
    raw.ask(MAP, &dma(3, Some(0), 0x1000, 0x2000), &[fd.as_fd()]).unwrap();
    assert_eq!(rustix::fs::ftruncate(&fd, 0x1000), Err(Errno::PERM), "it would be a SIGBUS over there");
}

#[test]
fn interrupts_that_make_no_sense_are_refused() {
    let served = Served::new();
    let mut raw = served.greeted();
    let eventfd = eventfd();
    let memory = memory(4096);
    let set = |flags, index, start, count| words(&[20, flags, index, start, count]);
    for payload in [
        set(0, 2, 0, 1),
        set(4, 2, 0, 1),
        set(4 | 32 | 1, 2, 0, 1),
        set(4 | 32 | 8, 2, 0, 1),
        set(4 | 32 | 64, 2, 0, 1),
        set(4 | 32, 5, 0, 1),
        set(4 | 32, 0, 0, 1),
        set(4 | 32, 2, 4, 1),
        set(4 | 32, 2, u32::MAX, 2),
        set(4 | 32, 2, 0, 2),
        set(1 | 32, 2, 0, 1),
        set(2 | 32, 2, 0, 1),
        set(4 | 32, 2, 0, 0),
        words(&[19, 4 | 32, 2, 0, 1]),
        words(&[20, 4 | 32, 2, 0]),
    ] {
        assert_eq!(raw.ask(SET_IRQS, &payload, &[eventfd.as_fd()]), Err(Errno::INVAL), "{payload:?}");
    }
    let (file, _) = memory.backing().unwrap();
    let good = set(4 | 32, 2, 3, 1);
    assert_eq!(raw.ask(SET_IRQS, &good, &[file]), Err(Errno::INVAL), "no eventfd");
    assert_eq!(raw.ask(SET_IRQS, &set(1 | 8, 2, 0, 1), &[]), Err(Errno::OPNOTSUPP), "masking");
    raw.ask(SET_IRQS, &good, &[eventfd.as_fd()]).unwrap();
    raw.ask(SET_IRQS, &[set(2 | 32, 2, 0, 2), vec![0, 1]].concat(), &[]).unwrap();
    raw.ask(SET_IRQS, &set(4 | 32, 2, 3, 1), &[]).unwrap();
    raw.ask(SET_IRQS, &good, &[eventfd.as_fd()]).unwrap();
    raw.ask(SET_IRQS, &set(1 | 32, 2, 0, 0), &[]).unwrap();
    raw.ask(SET_IRQS, &good, &[eventfd.as_fd()]).unwrap();
    alive(&mut raw);
}

#[test]
fn a_message_without_end_ends_the_client_and_the_next_is_served() {
    let served = Served::new();
    for bytes in [0, 15, 1 << 20, u32::MAX] {
        let mut raw = served.greeted();
        let header = Header { id: 5, command: INFO, bytes, flags: 0, errno: 0 };
        raw.send(zerocopy::IntoBytes::as_bytes(&header), &[]);
        let (reply, _) = raw.receive().expect("a reply that says why");
        assert_eq!((reply.id, reply.errno), (5, Errno::MSGSIZE.raw_os_error() as u32));
        assert!(raw.receive().is_none(), "the connection is closed");
    }
    let raw = served.greeted();
    raw.send(&[1, 2, 3], &[]);
    drop(raw);
    let eventfd = eventfd();
    let mut raw = served.greeted();
    let message = raw.message(MAP, 0, &dma(3, Some(0), 0x1000, 0x1000));
    raw.send(&message, &[eventfd.as_fd(); 30]);
    assert!(raw.receive().is_none(), "more descriptors than it said that it takes");
    alive(&mut served.greeted());
}

#[test]
fn who_wants_no_reply_gets_none() {
    let served = Served::new();
    let mut raw = served.greeted();
    let write = raw.message(WRITE, Header::NO_REPLY, &[access(0x1000, 0, 4), vec![9; 4]].concat());
    let wrong = raw.message(WRITE, Header::NO_REPLY, &access(0x1000, 0, 4));
    let reply = raw.message(WRITE, Header::REPLY, &[]);
    raw.send(&[write, wrong, reply].concat(), &[]);
    let read = raw.ask(READ, &access(0x1000, 0, 4), &[]).unwrap();
    assert_eq!(read[16..], [9; 4]);
}

/// Any message: a command, flags, words, a cut, and which descriptors come with it.
type Wild = (u16, u32, Vec<u32>, u8, u8);

fn wild() -> impl Strategy<Value = Vec<Wild>> {
    let word = prop_oneof![0..64u32, Just(0x1000), Just(0x10_0000), Just(u32::MAX), any::<u32>()];
    let flags = prop_oneof![9 => Just(0u32), 1 => any::<u32>()];
    let message = (0..20u16, flags, prop::collection::vec(word, 0..12), any::<u8>(), any::<u8>());
    prop::collection::vec(message, 1..12)
}

fn send_wild(raw: &mut Raw, messages: &[Wild], fds: &[OwnedFd]) {
    for (command, flags, values, cut, which) in messages {
        let mut payload = words(values);
        // Mostly whole; else cut anywhere.
        payload.truncate(if *cut < 200 { payload.len() } else { usize::from(*cut) % (payload.len() + 1) });
        let message = raw.message(*command, *flags, &payload);
        let fds: Vec<_> = fds[..usize::from(*which % 4)].iter().map(AsFd::as_fd).collect();
        raw.send(&message, &fds);
    }
}

/// What fits the command, with one word changed: reaches further than what is arbitrary.
fn near(choice: u8, at: u8, value: u32) -> (u16, Vec<u8>) {
    let (command, mut payload) = match choice % 8 {
        0 => (MAP, dma(3, Some(0), 0x1000 * u64::from(at), 0x1000)),
        1 => (UNMAP, dma(0, None, 0x1000 * u64::from(at), 0x1000)),
        2 => (REGION, words(&[64, 0, 0, 0, 0, 0, 0, 0])),
        3 => (IRQ, words(&[16, 0, 2, 0])),
        4 => (SET_IRQS, words(&[20, 36, 2, 0, 1])),
        5 => (READ, access(8 * u64::from(at), 0, 8)),
        6 => (WRITE, [access(8 * u64::from(at), 0, 8), vec![7; 8]].concat()),
        _ => (RESET, vec![]),
    };
    if at % 2 == 1 && !payload.is_empty() {
        let place = usize::from(at) % (payload.len() / 4) * 4;
        payload[place..place + 4].copy_from_slice(&value.to_le_bytes());
    }
    (command, payload)
}

#[test]
fn fuzz_wild_clients_never_end_the_server() {
    let served = Served::new();
    let memory = memory(0x2000);
    let file = memory.backing().unwrap().0.try_clone_to_owned().unwrap();
    let fds = [file, eventfd(), eventfd()];
    let tweaks = || prop::collection::vec(any::<(u8, u8, u32)>(), 0..12);
    proptest!(|(messages in wild(), tweaks in tweaks(), greet in any::<bool>())| {
        let mut raw = if greet { served.greeted() } else { served.open() };
        for (choice, at, value) in tweaks {
            let (command, payload) = near(choice, at, value);
            let fd = if command == MAP { &fds[..1] } else if command == SET_IRQS { &fds[1..2] } else { &[] };
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            let message = raw.message(command, 0, &payload);
            raw.send(&message, &fds);
        }
        send_wild(&mut raw, &messages, &fds);
        raw.finish();
    });
    alive(&mut served.greeted());
}
