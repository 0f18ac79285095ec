//! Direct windows: where files lie in memory, clients read the medium, and only what is the file's.

use crate::support::{Client, Shared, ask, mount_of, serve, serve_on, until};
use crate::windows::window;
use nvmed_fs::OpenFlags;
use nvmed_server::{Admission, Server, Service};
use nvmed_stack::{DeviceSpec, Spared};
use nvmed_wire::{Address, Answer, Board, Call, Control, ControlAnswer, Handle, Object, Seen};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

fn serve_in_memory() -> Shared {
    serve_on(DeviceSpec::parse("nvm:?size=64M").unwrap(), 1 << 20)
}

fn unlink(client: &Client, name: &str) {
    let call = Call::Unlink { at: Handle::ROOT, path: name.as_bytes() };
    assert_eq!(client.call(&call), Answer::Done);
}

#[test]
fn one_call_brings_the_places_of_all_around() {
    let shared = serve_in_memory();
    let client = Client::connect(&shared);
    let file = client.create("file");
    (0..24).for_each(|part| client.pwrite(file, (part * MIB) as u64, &vec![part as u8; MIB]));
    let view = window(&client, file);
    assert!(view.is_direct());
    let mut into = vec![0; MIB];
    assert_eq!(view.read(&mut into, 0), Seen::Missing);
    client.pread(file, (5 * MIB) as u64, 1);
    for part in 0..16 {
        assert_eq!(view.read(&mut into, (part * MIB) as u64), Seen::Bytes(MIB), "MiB {part}");
        assert!(into.iter().all(|&byte| byte == part as u8));
    }
    assert_eq!(view.read(&mut into, 16 * MIB as u64), Seen::Missing);
    // Copies there are none.
    let told: serde_json::Value = serde_json::from_str(&statistics(&client)).unwrap();
    assert_eq!((&told["windows"]["bytes"], &told["windows"]["direct"]), (&0.into(), &1.into()), "{told}");
}

fn statistics(client: &Client) -> String {
    match ask(&client.socket, &Control::Statistics, None) {
        (ControlAnswer::Text(text), None) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_nobody_has_open_is_not_read() {
    let shared = serve_in_memory();
    let (client, other) = (Client::connect(&shared), Client::connect(&shared));
    let file = client.create("file");
    client.pwrite(file, 0, &vec![1; MIB]);
    let view = window(&client, file);
    let mut byte = [0];
    client.pread(file, 0, 1);
    assert_eq!((view.read(&mut byte, 5000), byte), (Seen::Bytes(1), [1]));
    client.close(file);
    assert_eq!(view.read(&mut byte, 5000), Seen::Closed, "its blocks may be others' from now on");
    // Who opens it again finds what was told before.
    let file = other.open("file", OpenFlags::READ_WRITE).unwrap();
    let again = window(&other, file);
    assert_eq!((again.read(&mut byte, 5000), byte), (Seen::Bytes(1), [1]));
    // Another description keeps it open; the last one that has the window ends it.
    let second = other.open("file", OpenFlags::READ).unwrap();
    let too = window(&other, second);
    other.close(file);
    assert_eq!(too.read(&mut byte, 5000), Seen::Bytes(1));
    unlink(&other, "file");
    assert_eq!(too.read(&mut byte, 5000), Seen::Bytes(1), "a file without a name is there while it is open");
    other.close(second);
    assert_eq!((again.read(&mut byte, 5000), too.read(&mut byte, 5000)), (Seen::Closed, Seen::Closed));
    let next = other.create("next");
    (0..40).for_each(|part| other.pwrite(next, (part * MIB) as u64, &vec![9; MIB]));
    assert_eq!(view.read(&mut byte, 5000), Seen::Closed);
}

#[test]
fn the_end_of_a_session_ends_what_it_reads() {
    let shared = serve_in_memory();
    let client = Client::connect(&shared);
    let file = client.create("file");
    client.pwrite(file, 0, &vec![1; MIB]);
    let view = window(&client, file);
    client.pread(file, 0, 1);
    let mut byte = [0];
    assert_eq!(view.read(&mut byte, 0), Seen::Bytes(1));
    drop(client);
    until("its session is over", || shared.service.sessions() == 0);
    assert_eq!(view.read(&mut byte, 0), Seen::Closed);
}

/// A writer cuts a file and writes it again, each time with the next number, while another file grows into the blocks
/// that were free; readers see pages of one write, which are the file's.
#[test]
fn readers_never_see_the_bytes_of_another_file() {
    const PAGES: usize = 64;
    const FOREIGN: u64 = u64::MAX;
    let shared = serve_on(DeviceSpec::parse("nvm:?size=16M").unwrap(), 1 << 20);
    let writer = Client::connect(&shared);
    let (file, other) = (writer.create("file"), writer.create("other"));
    let whole = |number: u64| number.to_le_bytes().repeat(PAGES * PAGE / 8);
    writer.pwrite(file, 0, &whole(1));
    let (done, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let client = Client::connect(&shared);
                let file = client.open("file", OpenFlags::READ).unwrap();
                let view = window(&client, file);
                assert!(view.is_direct());
                let (mut into, mut at) = ([0; 2 * PAGE], 0);
                while !done.load(Ordering::Relaxed) {
                    at = (at + 7) % (PAGES - 2);
                    let offset = (at * PAGE) as u64;
                    match view.read(&mut into, offset) {
                        Seen::Bytes(bytes) => {
                            seen.fetch_add((bytes / PAGE) as u64, Ordering::Relaxed);
                            for page in into[..bytes].chunks_exact(PAGE) {
                                assert!(page.chunks(8).all(|word| word == &page[..8]), "half of a write");
                                assert_ne!(page[..8], FOREIGN.to_le_bytes(), "another file");
                            }
                        }
                        Seen::Missing => drop(client.pread(file, offset, 1)),
                        Seen::Closed => panic!("nothing ends the window"),
                    }
                }
            })
        });
        let truncate = |handle, bytes| {
            assert_eq!(writer.call(&Call::Truncate { object: Object::Held(handle), bytes }), Answer::Done);
        };
        let mut number = 1;
        let is_enough = |number| number >= 500 && seen.load(Ordering::Relaxed) >= 1000;
        while !is_enough(number) && readers.iter().all(|reader| !reader.is_finished()) {
            number += 1;
            // Large writes are seen a page at a time.
            match number % 4 {
                0 => writer.close(writer.open("file", OpenFlags::READ.with(OpenFlags::TRUNCATE)).unwrap()),
                part => truncate(file, (part - 1) * 8 * PAGE as u64),
            }
            writer.pwrite(other, 0, &whole(FOREIGN));
            writer.pwrite(file, 0, &whole(number));
            truncate(other, 0);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn entries_take_no_more_memory_than_windows_may() {
    // Room for the entries and regions of two groups of pages.
    let shared = serve_on(DeviceSpec::parse("nvm:?size=128M").unwrap(), 18 * PAGE as u64);
    let client = Client::connect(&shared);
    let mut byte = [0];
    let files = ["one", "two", "three"].map(|name| {
        let file = client.create(name);
        client.pwrite(file, 0, &vec![1; MIB]);
        let view = window(&client, file);
        client.pread(file, 0, 1);
        assert_eq!(view.read(&mut byte, 0), Seen::Bytes(1), "{name}");
        (file, view)
    });
    assert_eq!(files[0].1.read(&mut byte, 0), Seen::Closed, "the oldest goes");
    assert_eq!(files[1].1.read(&mut byte, 0), Seen::Bytes(1));
    // One that would take more alone is read by calls beyond that.
    let file = files[2].0;
    (0..3).for_each(|group| client.pwrite(file, group * (16 << 20), &[7; 10]));
    let view = window(&client, file);
    for group in 0..3 {
        assert_eq!(client.pread(file, group * (16 << 20), 1), [7]);
    }
    let read = |at| view.read(&mut [0], at);
    assert_eq!((read(0), read(16 << 20), read(32 << 20)), (Seen::Bytes(1), Seen::Bytes(1), Seen::Missing));
}

#[test]
fn files_in_pages_and_clients_that_are_not_to_have_it_get_copies() {
    let with_copies = |shared: &Shared| {
        let client = Client::connect(shared);
        assert!(!client.board.offers_medium());
        assert_eq!(client.control(&Control::Medium).err(), Some(libc::EOPNOTSUPP));
        let file = client.create("file");
        client.pwrite(file, 0, &[1; 2 * PAGE]);
        assert!(!window(&client, file).is_direct());
    };
    with_copies(&serve());
    with_copies(&serve_on(DeviceSpec::parse("nvm:?size=64M,profile=pcm,buffer=16M").unwrap(), 1 << 20));
    let address = Address::random().unwrap();
    let admission = Admission::Secret(address.secret().try_into().unwrap());
    let mount = mount_of(DeviceSpec::parse("nvm:?size=64M").unwrap());
    let spared = Spared { direct: false, ..Spared::ALL };
    let service = Service::sparing(mount, admission, Arc::new(Board::new().unwrap()), 1 << 20, spared);
    let service = Arc::new(service);
    let server = Server::start(Arc::clone(&service), &address).unwrap();
    with_copies(&Shared { service, server, address });
}
